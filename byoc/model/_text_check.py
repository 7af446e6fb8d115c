"""Text fields that are not UTF-8, which Python's protobuf lets pass in the syntax that ONNX uses."""

from dataclasses import dataclass
from functools import cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, EncodeError, Message
from google.protobuf.message_factory import GetMessageClass
from onnx import NodeProto

# Messages that a model has many of; most are short and alike, or have no byte that is not ASCII.
_SMALL_MESSAGES = frozenset({"AttributeProto", "NodeProto", "TypeProto", "ValueInfoProto"})
_MAX_SMALL_MESSAGE = 4096  # bytes; a larger message is searched part by part
_MAX_PARSED_BYTES = 16 << 20  # to parse more takes longer than to look at the messages


def find_non_text(root: Message) -> str:
    """Return the first text field that is not UTF-8, such as `NodeProto.name`, empty if there is none.

    protobuf checks this in its newer syntax only, which ONNX does not use: Python gets bytes.
    """
    try:
        if has_only_text(type(root), root.SerializeToString()):
            return ""
    except EncodeError:
        pass
    pending = [root]
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
