"""Models that are nearly right: small valid ones, changed in their structure or in their bytes."""

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from onnx import ModelProto, TensorProto, helper, numpy_helper

_TEXTS = [
    """
    g (float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y)
    <float[4, 3, 3, 3] w, float[4] b = {1, 2, 3, 4}> {
      c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w, b)
      r = Relu (c)
      a = Add (r, c)
      p = MaxPool <kernel_shape = [1, 1], strides = [1, 1]> (a)
      y = Mul (p, a)
    }""",
    """
    g (float[N, 6] x) => (float[A, B] y, int64[R] s) <int64[2] shape = {3, -1}> {
      s = Shape (x)
      k = Constant <value = float[1] {2.0}> ()
      q = Gemm <alpha = 0.5, transB = 1> (x, x)
      z = Softmax <axis = 1> (q)
      m = MatMul (z, x)
      d, mask = Dropout (m)
      n = Mul (d, k)
      y = Reshape (n, shape)
    }""",
    """
    g (bool c, float[2] x) => (float[2] y) {
      h = Relu (x)
      y = If (c) <
        then_branch = t () => (float[2] a) { a = Add (h, x) },
        else_branch = e () => (float[2] a) { i = Neg (h)
          a = Relu (i) }
      >
    }""",
    """
    g (int64 n, bool go, float[2] x) => (float[2] y, float[K, 2] all) {
      y, all = Loop (n, go, x) <body = b (int64 i, bool before, float[2] v) =>
        (bool after, float[2] next, float[2] out) {
          after = Identity (before)
          next = Add (v, x)
          out = Relu (next)
      }>
    }""",
    """
    g (float[3, 2] xs, float[2] start) => (float[2] last, float[3, 2] each) {
      last, each = Scan (start, xs) <num_scan_inputs = 1, body = b (float[2] s, float[2] v) =>
        (float[2] t, float[2] o) { t = Add (s, v)
          o = Relu (t) }>
    }""",
    """
    g (uint8[1, 4] x) => (float[1, 2] y) <float sx = {0.1}, uint8 zx = {3}, float[4, 2] w> {
      f = DequantizeLinear (x, sx, zx)
      f2, f3 = Split <axis = 1> (f)
      f4 = Concat <axis = 1> (f2, f3)
      m = MatMul (f4, w)
      t = Transpose <perm = [0, 1]> (m)
      y = Cast <to = 1> (t)
    }""",
]
_FUNCTION = """
<ir_version: 10, opset_import: ["" : 17, "acme" : 1]>
g (float[2, 2] x) => (float[2, 2] y) { a = acme.F <k = 2> (x)
  y = Relu (a) }
<domain: "acme", opset_import: ["" : 17]>
F <k> (p) => (q) { r = LeakyRelu <alpha: float = @k> (p)
  q = Add (r, p) }
"""


@cache
def seeds() -> tuple[bytes, ...]:
    """Return the models that everything begins with, serialized."""
    head = '<ir_version: 8, opset_import: ["" : {}]>'
    models = [
        onnx.parser.parse_model(head.format(17 if i else 13) + text) for i, text in enumerate(_TEXTS)
    ]
    for model in models:
        fill(model)
    sequence = helper.make_tensor_sequence_value_info("q", TensorProto.FLOAT, [2])
    models[1].graph.value_info.append(sequence)
    values = numpy_helper.from_array(np.ones(1, np.float32), "sparse")
    places = numpy_helper.from_array(np.zeros(1, np.int64), "places")
    models[2].graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [4]))
    beside = TensorProto(name="far", dims=[2], data_type=1, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "w.bin"), ("offset", "0"), ("length", "8")):
        beside.external_data.add(key=key, value=value)
    models[3].graph.initializer.append(beside)
    models[4].graph.initializer.append(
        TensorProto(name="text", dims=[1], data_type=8, string_data=[b"a"])
    )
    helper.set_model_props(models[5], {"key": "value"})
    models.append(onnx.parser.parse_model(_FUNCTION))
    return tuple(model.SerializeToString(deterministic=True) for model in models)


def fill(model: ModelProto, names: Collection[str] = ("w",)) -> None:
    """Give a value to the initializers that the text only declares."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for value in list(model.graph.value_info):
        if value.name in names and value.name not in stored:
            dims = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            model.graph.initializer.append(
                numpy_helper.from_array(np.ones(dims, np.float32), value.name)
            )
            model.graph.value_info.remove(value)


def make(chance: random.Random) -> bytes:
    """Return one input: one time in eight changed in its bytes, else in its structure."""
    data = chance.choice(seeds())
    return mutate(data, chance)


def mutate(data: bytes, chance: random.Random) -> bytes:
    """Return a changed model; bytes that are no model are changed as bytes."""
    if chance.random() < 0.125:
        return mutate_bytes(data, chance)
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        return mutate_bytes(data, chance)
    while True:
        try:
            _change(model, chance)
        except (ValueError, UnicodeError):  # a value that the field does not take
            continue
        if chance.random() < 0.5:
            break
    if model.ByteSize() > 1 << 16:
        return data
    return model.SerializeToString()


def mutate_bytes(data: bytes, chance: random.Random) -> bytes:
    """Return the bytes with some of them flipped, removed, repeated, or put in."""
    result = bytearray(data or b"\0")
    for _ in range(1 + int(chance.expovariate(0.7))):
        start = chance.randrange(len(result) + 1)
        stop = min(start + 1 + int(chance.expovariate(0.1)), len(result))
        action = chance.randrange(5)
        if action == 0 and start < len(result):
            result[start] ^= 1 << chance.randrange(8)
        elif action == 1:
            del result[start:stop]
        elif action == 2:
            result[start:start] = result[start:stop]
        elif action == 3:
            result[start:stop] = chance.randbytes(stop - start)
        else:
            result[start:start] = chance.choice((b"\xff" * 9 + b"\x01", b"\0", b"\x80\x80", b"\xc3\x28"))
        result = result or bytearray(b"\0")
    return bytes(result)


def messages(root: Message) -> Iterator[Message]:
    """Yield a message and all in it."""
    pending = [root]
    while pending:
        message = pending.pop()
        yield message
        for descriptor, value in message.ListFields():
            if descriptor.type == FieldDescriptor.TYPE_MESSAGE:
                pending.extend(value if is_repeated(message, descriptor) else [value])


def is_repeated(message: Message, descriptor: FieldDescriptor) -> bool:
    """Return whether a field of a message holds a list."""
    return hasattr(getattr(message, descriptor.name), "extend")


def _change(model: ModelProto, chance: random.Random) -> None:
    everything = list(messages(model))
    message = chance.choice(everything)
    filled: list[FieldDescriptor] = [descriptor for descriptor, _ in message.ListFields()]
    anything = chance.random() < 0.15 or not filled
    fields: Sequence[Any] = message.DESCRIPTOR.fields if anything else filled
    descriptor: FieldDescriptor = chance.choice(fields)
    if is_repeated(message, descriptor):
        _change_list(message, descriptor, everything, chance)
    elif descriptor.type == FieldDescriptor.TYPE_MESSAGE:
        if chance.random() < 0.3:
            message.ClearField(descriptor.name)
        else:
            _graft(getattr(message, descriptor.name), everything, chance)
    elif chance.random() < 0.15:
        message.ClearField(descriptor.name)
    else:
        setattr(message, descriptor.name, _value(descriptor, everything, chance))


def _change_list(
    message: Message, descriptor: FieldDescriptor, everything: list[Message], chance: random.Random
) -> None:
    items = getattr(message, descriptor.name)
    action = chance.randrange(5)
    at = chance.randrange(len(items)) if len(items) else 0
    if descriptor.type != FieldDescriptor.TYPE_MESSAGE:
        if action == 0 or not len(items):
            items.append(_value(descriptor, everything, chance))
        elif action == 1:
            del items[at]
        elif action == 2:
            items.append(items[at])
        else:
            items[at] = _value(descriptor, everything, chance)
    elif action == 0 or not len(items):
        _graft(items.add(), everything, chance)
    elif action == 1:
        del items[at]
    elif action == 2:
        items.add().CopyFrom(items[at])
    elif action == 3:
        other = chance.randrange(len(items))
        kept = type(items[at])()
        kept.CopyFrom(items[at])
        items[at].CopyFrom(items[other])
        items[other].CopyFrom(kept)
    else:
        _graft(items[at], everything, chance)


def _graft(message: Message, everything: list[Message], chance: random.Random) -> None:
    """Put a message of the same kind from elsewhere in the model, or in another, in place of one."""
    donors = everything
    if chance.random() < 0.4:
        other = ModelProto()
        other.ParseFromString(chance.choice(seeds()))
        donors = list(messages(other))
    alike = [
        donor for donor in donors if donor.DESCRIPTOR is message.DESCRIPTOR and donor is not message
    ]
    if alike:
        kept = type(message)()
        kept.CopyFrom(chance.choice(alike))
        message.CopyFrom(kept)


_WHOLE = [0, 1, -1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 21, 26, 127, 255, 1 << 20]
_WHOLE += [2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, -(2**63), -(2**31)]
_NUMBERS = [0.0, -0.0, 1.0, -1.0, 0.1, float("nan"), float("inf"), 3e38, 1e-45]
_TEXT = ["", "x", "y", "a", "w", "\0", "é", "a/b", "..", "value", "body", "ai.onnx", "acme", "byoc.dla"]
_TEXT += ["n" * 300, "dla_0", "conv_relu", "location", "/etc/passwd", "-1", "9" * 30, "axis", "\n"]


@cache
def _operators() -> list[str]:
    return sorted({schema.name for schema in onnx.defs.get_all_schemas()})


def _text(everything: list[Message], chance: random.Random) -> str:
    where = chance.random()
    if where < 0.1:
        return chance.choice(_operators())
    if where < 0.3:
        return chance.choice(_TEXT)
    named = chance.choice(everything)
    found: list[str] = [
        text
        for descriptor, value in named.ListFields()
        if descriptor.type == FieldDescriptor.TYPE_STRING
        for text in (value if is_repeated(named, descriptor) else [value])
    ]
    return chance.choice(found or _TEXT)


_Make = Callable[[FieldDescriptor, list[Message], random.Random], object]
_OF_TYPE: dict[int, _Make] = {
    FieldDescriptor.TYPE_STRING: lambda _, everything, chance: _text(everything, chance),
    FieldDescriptor.TYPE_BYTES: lambda _, everything, chance: (
        chance.randbytes(chance.choice((0, 1, 4, 8, 16))) if chance.random() < 0.5 else b"text"
    ),
    FieldDescriptor.TYPE_FLOAT: lambda _, __, chance: chance.choice(_NUMBERS),
    FieldDescriptor.TYPE_DOUBLE: lambda _, __, chance: chance.choice(_NUMBERS),
    FieldDescriptor.TYPE_ENUM: lambda descriptor, _, chance: chance.choice(
        [value.number for value in descriptor.enum_type.values] if descriptor.enum_type else [0]
    ),
}


def _value(descriptor: FieldDescriptor, everything: list[Message], chance: random.Random) -> object:
    make_value = _OF_TYPE.get(descriptor.type)
    if make_value is not None:
        return make_value(descriptor, everything, chance)
    return chance.choice(_WHOLE if chance.random() < 0.6 else _WHOLE[:13])
