"""Reading a model file without its heavy weights, and without text that is not UTF-8.

The wire format (protobuf, "Encoding") is walked without being parsed: messages, then their fields, each
a tag and a value of known length. In the copy that is parsed, a heavy initializer of the main graph has
its bytes as external data, in the model's own file, so that every reader of weights finds them.
"""

from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from io import FileIO
from math import prod
from pathlib import Path

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, EncodeError, Message
from google.protobuf.message_factory import GetMessageClass
from onnx import ModelProto, NodeProto, TensorProto

from byoc._dataclasses import dataclass, field
from byoc.errors import InputError
from byoc.model._graph_index import MIN_IR_OF_DEFAULTS
from byoc.model._node_kinds import list_distinct_nodes
from byoc.model._tensor_data import add_input, count_bytes, is_large, read_raw_bytes
from byoc.model._walk import copy_without, walk_distinct_tensors, walk_tensors

# Models without their weights, so that what is done with them costs the same for 1 MB and 1 GB.


def replace_weights(proto: ModelProto, *graph_fields: str) -> ModelProto:
    """Return a model whose weights, the large and the external initializers, are graph inputs.

    Initializers that a caller may override become inputs, too: no type may depend on their values. The
    main graph lacks the given fields (`value_info`, ...) as well.
    """
    result = copy_without(proto, "initializer", *graph_fields)
    inputs = {value.name for value in proto.graph.input}
    overridable = inputs if proto.ir_version >= MIN_IR_OF_DEFAULTS else set()
    for tensor in proto.graph.initializer:
        small = tensor.data_location != TensorProto.EXTERNAL and not is_large(tensor)
        if small and tensor.name not in overridable:
            result.graph.initializer.append(tensor)
        elif tensor.name not in inputs:
            add_input(result.graph, tensor)
    return result


def make_skeleton(proto: ModelProto, folder: Path | None) -> ModelProto:
    """Return the model with its weights turned into graph inputs, as `replace_weights` does it.

    Other external tensors are embedded, since the checker does not know the model's folder.
    """
    result = replace_weights(proto)
    for tensor in walk_tensors(result):
        if tensor.data_location == TensorProto.EXTERNAL:
            tensor.raw_data = read_raw_bytes(tensor, folder)
            tensor.ClearField("data_location")
            del tensor.external_data[:]
    return result


def inline_functions(model: ModelProto) -> ModelProto:
    """Return a model with the bodies of functions in place of their calls; weights are not read."""
    if not model.functions:
        return model
    from onnx.inliner import inline_local_functions  # noqa: PLC0415 - seldom needed

    flat = inline_local_functions(replace_weights(model))
    result = copy_without(flat, "input", "initializer")
    result.graph.input.extend(model.graph.input)
    result.graph.initializer.extend(model.graph.initializer)
    return result


# Text fields that are not UTF-8, which Python's protobuf lets pass in the syntax that ONNX uses.

# Messages that a model has many of; most are short and alike, or have no byte that is not ASCII.
_SMALL_MESSAGES = frozenset({"AttributeProto", "NodeProto", "TypeProto", "ValueInfoProto"})
_MAX_SMALL_MESSAGE = 4096  # bytes; a larger message is searched part by part
_MAX_PARSED_BYTES = 16 << 20  # to parse more takes longer than to look at the messages


def find_non_text(root: ModelProto) -> str:
    """Return the first text field that is not UTF-8, such as `NodeProto.name`, empty if there is none.

    protobuf checks this in its newer syntax only, which ONNX does not use: Python gets bytes.
    """
    try:
        # To serialize weights takes longer than to look at the messages.
        if not _has_large_weights(root) and has_only_text(ModelProto, root.SerializeToString()):
            return ""
    except EncodeError:
        pass
    pending: list[Message] = [root]
    seen: set[bytes] = set()
    while pending:
        message = pending.pop()
        fields = _classify_fields(message.DESCRIPTOR)
        if fields.name in _SMALL_MESSAGES and _is_small(message):
            data = message.SerializeToString()
            if data.isascii() or data in seen:
                continue
            seen.add(data)
        for name in fields.texts:
            if type(getattr(message, name)) is bytes:
                return f"{fields.name}.{name}"
        for name in fields.lists_of_texts:
            if bytes in map(type, getattr(message, name)):
                return f"{fields.name}.{name}"
        pending.extend(getattr(message, name) for name in fields.messages if message.HasField(name))
        for name in fields.lists_of_messages:
            pending.extend(getattr(message, name))
    return ""


def _has_large_weights(model: ModelProto) -> bool:
    """Return whether the initializers say that they hold more than is parsed once more."""
    elements = sum(
        prod(tensor.dims) for tensor in model.graph.initializer if tensor.HasField("raw_data")
    )
    return elements > _MAX_PARSED_BYTES  # of a byte or more each, but for the few of less


def has_only_text(kind: type[Message], data: bytes) -> bool:
    """Return whether a serialized message parses in protobuf's newer syntax, where all texts are UTF-8.

    One of more than 16 MiB is not tried.
    """
    if len(data) > _MAX_PARSED_BYTES:
        return False
    try:
        _make_strict_class(kind.DESCRIPTOR).FromString(data)
    except DecodeError:
        return False
    return True


@cache
def _make_strict_class(kind: Descriptor) -> type[Message]:
    """Return the class of a kind of message as if its file were written in the newer syntax."""
    file = FileDescriptorProto()
    kind.file.CopyToProto(file)
    file.syntax = "proto3"
    pool = DescriptorPool()
    pool.Add(file)
    found: type[Message] = GetMessageClass(pool.FindMessageTypeByName(kind.full_name))
    return found


def _is_small(message: Message) -> bool:
    """Return whether a message may be serialized; the size takes as long to find as the bytes."""
    if isinstance(message, NodeProto) and not message.attribute:
        return True
    return message.ByteSize() <= _MAX_SMALL_MESSAGE


@dataclass(frozen=True)
class _MessageFields:
    """The name of a kind of message, and the names of its fields that hold texts or messages."""

    name: str
    texts: list[str]
    lists_of_texts: list[str]
    messages: list[str]
    lists_of_messages: list[str]


@cache
def _classify_fields(kind: Descriptor) -> _MessageFields:
    empty = GetMessageClass(kind)()
    texts = [field.name for field in kind.fields if field.type == FieldDescriptor.TYPE_STRING]
    inner = [field.name for field in kind.fields if field.type == FieldDescriptor.TYPE_MESSAGE]
    return _MessageFields(
        kind.name,
        [name for name in texts if isinstance(getattr(empty, name), str)],
        [name for name in texts if not isinstance(getattr(empty, name), str)],
        [name for name in inner if isinstance(getattr(empty, name), Message)],
        [name for name in inner if not isinstance(getattr(empty, name), Message)],
    )


# To copy so many bytes takes longer than to find them. No value that planning reads is as large: those
# have at most 1,024 elements (`get_constant_value`), of 16 bytes at most.
_HEAVY_BYTES = 16 << 10

# Field numbers of onnx.proto.
_GRAPH, _INITIALIZER, _DIMS, _DATA_TYPE, _NAME, _RAW_DATA, _DOC = 7, 5, 1, 2, 8, 9, 12
_EXTERNAL_DATA, _KEY, _VALUE = 13, 1, 2
_PLAIN_FIELDS = frozenset({_DIMS, _DATA_TYPE, _NAME, _DOC})
# All external data has a location; operators whose scales are read end in the other word.
_LOCATION, _SCALED = b"location", b"QuantizeLinear"
# Wire types: a number, bytes after their length, and those of a fixed length.
_VARINT, _BYTES, _FIXED = 0, 2, {1: 8, 5: 4}
_VARINT_BYTES = 10  # of the longest varint of protobuf: 64 bits, 7 in each
_HEAD_BYTES = 2 * _VARINT_BYTES  # a tag and a length
_WINDOW_BYTES = 4 << 10  # what is read at once where many small fields follow each other
# Walking pays where most of a file is heavy weights.
_LEAST_BYTES_FOR_A_FIELD = 4 << 10

_Field = tuple[int, int, int, int, int]
"""A field of a message: number and wire type; where it, its value and the next field begin."""


class _UnusualError(Exception):
    """A file that is better read as a whole."""


@dataclass(frozen=True, eq=False)
class HeavyWeights:
    """The initializers of a model whose data is in its file, which must not have changed since.

    `beside_text` says that all texts of the model were seen to be UTF-8.
    """

    path: Path
    state: tuple[int, int]
    beside_text: bool

    def fill(self, proto: ModelProto) -> None:
        """Read the data of those that a copy of the model has. Raises InputError for a changed file."""
        outside = [
            each for each in proto.graph.initializer if each.data_location == TensorProto.EXTERNAL
        ]
        if not outside:
            return
        if _describe_state(self.path) != self.state:
            raise InputError(f"{self.path}: changed while it was in use")
        with self.path.open("rb") as file:
            for tensor in outside:
                fields = {entry.key: int(entry.value) for entry in tensor.external_data[1:]}
                file.seek(fields["offset"])
                data = file.read(fields["length"])
                tensor.ClearField("data_location")
                tensor.ClearField("external_data")
                tensor.raw_data = data


def read_without_heavy_weights(path: Path) -> tuple[ModelProto, HeavyWeights] | None:
    """Read a model file whose heaviest weights stay in it.

    Returns None where it has none, or is better read as a whole: it is a link, not valid, quantized
    (scales may be heavy, and are read), or its weights are in other files.
    """
    try:
        state = _describe_state(path)
        if state is None or state[0] <= _HEAVY_BYTES or path.is_symlink():
            return None
        with path.open("rb", buffering=0) as file:
            data, count = _ModelCutter(_FileWindow(file, state[0]), path.name).cut()
        proto = ModelProto.FromString(data)
    except (_UnusualError, OSError, DecodeError, IndexError):
        return None
    if not _has_only_heavy(proto, count, data):
        return None
    return proto, HeavyWeights(path.absolute(), state, has_only_text(ModelProto, data))


def _describe_state(path: Path) -> tuple[int, int] | None:
    """Return the size of a file and when it was written; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _has_only_heavy(proto: ModelProto, count: int, data: bytes) -> bool:
    """Return whether just so many tensors have external data, of the right length, and no scales.

    `data` is the serialized model.
    """
    tensors: Iterable[TensorProto] = proto.graph.initializer
    if data.count(_LOCATION) != count or _SCALED in data:  # the words may stand in other places, too
        all_nodes = [proto.graph.node, *(function.node for function in proto.functions)]
        nodes = [node for some in all_nodes for node in list_distinct_nodes(some)]
        if any(node.op_type.endswith(_SCALED.decode()) for node in nodes):
            return False
        tensors = walk_distinct_tensors(proto, nodes)
    outside = [each for each in tensors if each.data_location == TensorProto.EXTERNAL]
    try:
        fits = all(int(each.external_data[2].value) == count_bytes(each) for each in outside)
    except (IndexError, KeyError):  # not what the cutter wrote; an unknown data type
        return False
    return fits and len(outside) == count


@dataclass
class _FileWindow:
    """A file of some bytes of which a part is in memory: `data`, from the offset `start` on."""

    file: FileIO
    size: int
    data: bytes = b""
    start: int = 0

    def find(self, offset: int) -> int:
        """Load the head of the field at an offset into `data`, and return its index there."""
        at = offset - self.start
        if at < 0 or (at + _HEAD_BYTES > len(self.data) and self.start + len(self.data) < self.size):
            self.data, self.start = self.read(offset, offset + _WINDOW_BYTES), offset
            return 0
        return at

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes between two offsets."""
        at = start - self.start
        if at >= 0 and end - self.start <= len(self.data):
            return self.data[at : end - self.start]
        self.file.seek(start)
        return self.file.read(end - start)


@dataclass
class _ModelCutter:
    """Copies a model file without the data of heavy initializers, of which it counts the fields."""

    file: _FileWindow
    name: str
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.file.size // _LEAST_BYTES_FOR_A_FIELD

    def cut(self) -> tuple[bytes, int]:
        """Return the copy, and how many initializers have their data outside.

        Raises _UnusualError or IndexError for a file that is better read as a whole.
        """
        parts, count = [], 0
        for number, kind, start, value, end in self._walk(0, self.file.size):
            if number != _GRAPH or kind != _BYTES:
                parts.append(self.file.read(start, end))
                continue
            graph, found = self._cut_graph(value, end)
            if not found:
                raise _UnusualError
            parts += [_write_head(_GRAPH, sum(map(len, graph))), *graph]
            count += found
        return b"".join(parts), count

    def _cut_graph(self, start: int, end: int) -> tuple[list[bytes], int]:
        """Return the parts of a graph, and how many of its initializers have their data outside."""
        parts: list[bytes] = []
        count, kept = 0, start
        for number, kind, at, value, stop in self._walk(start, end):
            if stop - value <= _HEAVY_BYTES or number != _INITIALIZER or kind != _BYTES:
                continue
            tensor = self._cut_tensor(value, stop)
            if tensor is not None:
                parts += [self.file.read(kept, at), _write_field(_INITIALIZER, tensor)]
                kept = stop
                count += 1
        return [*parts, self.file.read(kept, end)], count

    def _cut_tensor(self, start: int, end: int) -> bytes | None:
        """Return a tensor whose raw data is in the file; None if it has none, or not in one piece."""
        raw = None
        for number, kind, at, value, stop in self._walk(start, end):
            if number == _RAW_DATA and kind == _BYTES and raw is None and stop - value > _HEAVY_BYTES:
                raw = at, value, stop
            elif number not in _PLAIN_FIELDS:
                return None
        if raw is None:
            return None
        before, value, after = raw
        offset, length = b"%d" % value, b"%d" % (after - value)
        ends = self.file.read(start, before), self.file.read(after, end)
        return b"".join(
            (*ends, self._location, _write_entry(b"offset", offset), _write_entry(b"length", length))
        )

    @cached_property
    def _location(self) -> bytes:
        """The fields that say that a tensor's data is in this file."""
        outside = TensorProto(data_location=TensorProto.EXTERNAL)
        outside.external_data.add(key="location", value=self.name)
        return outside.SerializeToString()

    def _walk(self, start: int, end: int) -> Iterator[_Field]:
        """Yield the fields of a message between two offsets of the file."""
        file = self.file
        while start < end:
            self.left -= 1
            if self.left < 0:
                raise _UnusualError
            head = file.find(start)
            data = file.data
            tag, at = (data[head], head + 1) if data[head] < 0x80 else _read_varint(data, head)
            kind = tag & 7
            if kind == _BYTES:
                length, at = (data[at], at + 1) if data[at] < 0x80 else _read_varint(data, at)
                value = start + at - head
                stop = value + length
            elif kind == _VARINT:
                value = start + at - head
                stop = value + _read_varint(data, at)[1] - at
            elif kind in _FIXED:
                value = start + at - head
                stop = value + _FIXED[kind]
            else:
                raise _UnusualError
            if stop > end:
                raise _UnusualError
            yield tag >> 3, kind, start, value, stop
            start = stop


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of 7 bits in each byte, the last byte below 128, and where it ends.

    Raises _UnusualError where it is too long, IndexError where it ends too early.
    """
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value = byte & 0x7F
    for count in range(1, _VARINT_BYTES):
        byte = data[at + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, at + count + 1
    raise _UnusualError


def _write_field(number: int, value: bytes) -> bytes:
    """Return a field of bytes in the wire format."""
    return _write_head(number, len(value)) + value


def _write_head(number: int, length: int) -> bytes:
    """Return the tag and the length that precede a field of `length` bytes."""
    return bytes([number << 3 | _BYTES]) + _write_varint(length)


def _write_varint(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def _write_entry(key: bytes, value: bytes) -> bytes:
    """Return an entry of a tensor's external data."""
    return _write_field(_EXTERNAL_DATA, _write_field(_KEY, key) + _write_field(_VALUE, value))
