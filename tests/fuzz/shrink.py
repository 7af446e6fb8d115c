"""Making an input that was found as small as it gets while it still does what it did."""

from collections.abc import Callable, Iterator

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from model_inputs import is_repeated, messages
from onnx import ModelProto

_MAX_ATTEMPTS = 3000
Same = Callable[[bytes], bool]


def shrink(kind: str, data: bytes, same: Same) -> bytes:
    """Return a smaller input of which `same` still holds."""
    tries = iter(range(_MAX_ATTEMPTS))

    def limited(smaller: bytes) -> bool:
        return next(tries, None) is not None and same(smaller)

    if kind == "models":
        data = _rounds(data, _smaller_models, limited)
    data = _rounds(data, _without_lines, limited)
    return _rounds(data, _without_bytes, limited) if len(data) < 2000 else data


def _rounds(data: bytes, candidates: Callable[[bytes], Iterator[bytes]], same: Same) -> bytes:
    while True:
        better = next((c for c in candidates(data) if len(c) < len(data) and same(c)), None)
        if better is None:
            return data
        data = better


def _smaller_models(data: bytes) -> Iterator[bytes]:
    """Yield the model without one of its fields or one of a field's elements, the largest first."""
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        return
    for place, message in enumerate(messages(model)):
        for descriptor, value in message.ListFields():
            for at in reversed(range(len(value))) if is_repeated(message, descriptor) else (-1,):
                yield _without(data, place, descriptor, at)


def _without(data: bytes, place: int, descriptor: FieldDescriptor, at: int) -> bytes:
    model = ModelProto()
    model.ParseFromString(data)
    message = next(m for i, m in enumerate(messages(model)) if i == place)
    if at < 0:
        message.ClearField(descriptor.name)
    else:
        del getattr(message, descriptor.name)[at]
    return model.SerializeToString()


def _without_lines(data: bytes) -> Iterator[bytes]:
    lines = data.splitlines(keepends=True)
    for i in range(len(lines)):
        yield b"".join(lines[:i] + lines[i + 1 :])


def _without_bytes(data: bytes) -> Iterator[bytes]:
    size = len(data) // 2
    while size:
        for start in range(0, len(data), size):
            yield data[:start] + data[start + size :]
        size //= 2
