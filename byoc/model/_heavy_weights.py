"""Reading a model file without its heavy weights, whose data is read when the whole model is asked for.

The wire format (protobuf, "Encoding") is walked without being parsed: messages, then their fields, each
a tag and a value of known length. In the copy that is parsed, a heavy initializer of the main graph has
its bytes as external data, in the model's own file, so that every reader of weights finds them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple

from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto

from byoc.errors import InputError
from byoc.model._tensor_data import count_bytes, read_raw_bytes
from byoc.model._walk import walk_nodes, walk_tensors

# To copy so many bytes takes longer than to find them. What planning knows of values is far smaller.
_HEAVY_BYTES = 256 << 10

# Field numbers of onnx.proto.
_GRAPH, _INITIALIZER, _DIMS, _DATA_TYPE, _NAME, _RAW_DATA, _DOC = 7, 5, 1, 2, 8, 9, 12
_PLAIN_FIELDS = frozenset({_DIMS, _DATA_TYPE, _NAME, _RAW_DATA, _DOC})
# Wire types: a number, bytes after their length, and those of a fixed length.
_VARINT, _BYTES, _FIXED = 0, 2, {1: 8, 5: 4}
_VARINT_BYTES = 10
# Walking pays where most of a file is heavy weights.
_LEAST_BYTES_FOR_A_FIELD = 16 << 10


class _Field(NamedTuple):
    """A field of a message: number and wire type; where it, its value and the next field begin."""

    number: int
    kind: int
    start: int
    value: int
    end: int

    def is_bytes(self, number: int) -> bool:
        """Return whether it is the field of a number, and holds bytes, as messages do."""
        return self.number == number and self.kind == _BYTES


class _UnusualError(Exception):
    """A file that is better read as a whole."""


@dataclass(frozen=True, eq=False)
class HeavyWeights:
    """The initializers of a model whose data is in its file, which must not have changed since."""

    path: Path
    state: tuple[int, int]

    def fill(self, proto: ModelProto) -> None:
        """Read the data of those that a copy of the model has. Raises InputError for a changed file."""
        outside = [
            each for each in proto.graph.initializer if each.data_location == TensorProto.EXTERNAL
        ]
        if outside and _describe_state(self.path) != self.state:
            raise InputError(f"{self.path}: changed while it was in use")
        for tensor in outside:
            data = read_raw_bytes(tensor, self.path.parent)
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
        with path.open("rb") as file:
            data, count = _ModelCutter(file, path.name).cut(state[0])
        proto = ModelProto.FromString(data)
    except (_UnusualError, OSError, DecodeError):
        return None
    if not _has_only_heavy(proto, count):
        return None
    return proto, HeavyWeights(path.absolute(), state)


def _describe_state(path: Path) -> tuple[int, int] | None:
    """Return the size of a file and when it was written; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _has_only_heavy(proto: ModelProto, count: int) -> bool:
    """Return whether just so many tensors have external data, of the right length, and no scales."""
    outside = [each for each in walk_tensors(proto) if each.data_location == TensorProto.EXTERNAL]
    nodes = walk_nodes(chain(proto.graph.node, *(function.node for function in proto.functions)))
    if len(outside) != count or any(node.op_type.endswith("QuantizeLinear") for node in nodes):
        return False
    try:
        return all(int(each.external_data[2].value) == count_bytes(each) for each in outside)
    except KeyError:  # an unknown data type
        return False


@dataclass
class _ModelCutter:
    """Copies a model file without the data of heavy initializers, of which it counts the fields."""

    file: BinaryIO
    name: str
    left: int = 0

    def cut(self, size: int) -> tuple[bytes, int]:
        """Return the copy, and how many initializers have their data outside. Raises _UnusualError."""
        self.left = size // _LEAST_BYTES_FOR_A_FIELD
        parts, count = [], 0
        for field in self._walk(0, size):
            if not field.is_bytes(_GRAPH):
                parts.append(self._read(field.start, field.end))
                continue
            graph, found = self._cut_graph(field.value, field.end)
            if not found:
                raise _UnusualError
            parts.append(_write_field(_GRAPH, graph))
            count += found
        return b"".join(parts), count

    def _cut_graph(self, start: int, end: int) -> tuple[bytes, int]:
        parts: list[bytes] = []
        count, kept = 0, start
        for field in self._walk(start, end):
            if not field.is_bytes(_INITIALIZER) or field.end - field.value <= _HEAVY_BYTES:
                continue
            tensor = self._cut_tensor(field.value, field.end)
            if tensor is not None:
                parts += [self._read(kept, field.start), _write_field(_INITIALIZER, tensor)]
                kept = field.end
                count += 1
        return b"".join([*parts, self._read(kept, end)]) if count else b"", count

    def _cut_tensor(self, start: int, end: int) -> bytes | None:
        """Return a tensor whose raw data is in the file; None if it has none, or not in one piece."""
        fields = list(self._walk(start, end))
        raw = [field for field in fields if field.is_bytes(_RAW_DATA)]
        heavy = len(raw) == 1 and raw[0].end - raw[0].value > _HEAVY_BYTES
        if not heavy or not _PLAIN_FIELDS.issuperset(field.number for field in fields):
            return None
        outside = TensorProto(data_location=TensorProto.EXTERNAL)
        length = raw[0].end - raw[0].value
        for key, value in (("location", self.name), ("offset", raw[0].value), ("length", length)):
            outside.external_data.add(key=key, value=str(value))
        kept = [self._read(each.start, each.end) for each in fields if each.number != _RAW_DATA]
        return b"".join([*kept, outside.SerializeToString()])

    def _walk(self, start: int, end: int) -> Iterator[_Field]:
        """Yield the fields of a message between two offsets of the file."""
        while start < end:
            self.left -= 1
            if self.left < 0:
                raise _UnusualError
            head = self._read(start, min(end, start + 2 * _VARINT_BYTES))
            tag, size = _read_varint(head, 0)
            value, kind = start + size, tag & 7
            if kind == _BYTES:
                length, more = _read_varint(head, size)
                value += more
                stop = value + length
            elif kind == _VARINT:
                stop = value + _read_varint(head, size)[1]
            elif kind in _FIXED:
                stop = value + _FIXED[kind]
            else:
                raise _UnusualError
            if stop > end:
                raise _UnusualError
            yield _Field(tag >> 3, kind, start, value, stop)
            start = stop

    def _read(self, start: int, end: int) -> bytes:
        self.file.seek(start)
        return self.file.read(end - start)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of 7 bits in each byte, the last byte below 128, and how many bytes it takes."""
    value = 0
    for count, byte in enumerate(data[at : at + _VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, count + 1
    raise _UnusualError


def _write_field(number: int, value: bytes) -> bytes:
    """Return a field of bytes in the wire format."""
    return bytes([number << 3 | _BYTES]) + _write_varint(len(value)) + value


def _write_varint(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])
