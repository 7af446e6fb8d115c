"""Sequences as lists: the shapes of what is put in come out again."""

import numpy as np
import onnx
import pytest
from helpers.support import parse
from onnx import helper, numpy_helper

from byoc.model import prepare_model
from byoc.onnxrt import open_session, run_session

X = "float[2,3] x, float[4,3] z, float[n,3] o"
CASES = {
    "appended": (
        "e = SequenceEmpty() a = SequenceInsert(e, x) b = SequenceInsert(a, z)"
        " y = ConcatFromSequence<axis=0>(b)",
        (6, 3),
    ),
    "stacked": ("b = SequenceConstruct(x, x) y = ConcatFromSequence<axis=0, new_axis=1>(b)", (2, 2, 3)),
    "stacked behind": (
        "b = SequenceConstruct(x, x) y = ConcatFromSequence<axis=-1, new_axis=1>(b)", (2, 3, 2),
    ),
    "at a position": ("b = SequenceConstruct(x, z) y = SequenceAt(b, one)", (4, 3)),
    "from the end": ("b = SequenceConstruct(x, z) y = SequenceAt(b, last)", (4, 3)),
    "inserted in front": (
        "e = SequenceConstruct(x) b = SequenceInsert(e, z, zero) y = SequenceAt(b, zero)", (4, 3),
    ),
    "erased": ("e = SequenceConstruct(x, z) b = SequenceErase(e, zero) y = SequenceAt(b, zero)", (4, 3)),
    "erased at the end": (
        "e = SequenceConstruct(x, z) b = SequenceErase(e) y = ConcatFromSequence<axis=0>(b)", (2, 3),
    ),
    "split in ones": ("b = SplitToSequence<axis=1>(x) y = SequenceAt(b, one)", (2, 1)),
    "split without the axis": (
        "b = SplitToSequence<axis=1, keepdims=0>(x) y = SequenceAt(b, one)", (2,),
    ),
    "split in parts": ("b = SplitToSequence<axis=0>(z, three) y = SequenceAt(b, last)", (1, 3)),
    "split in a list": ("b = SplitToSequence<axis=0>(z, parts) y = SequenceAt(b, zero)", (1, 3)),
    "passed on": ("e = SequenceConstruct(x, z) b = Identity(e) y = SequenceAt(b, one)", (4, 3)),
    "behind it": ("b = SequenceConstruct(x, z) c = SequenceAt(b, one) y = Relu(c)", (4, 3)),
}  # fmt: skip
STORED = {"zero": 0, "one": 1, "last": -1, "three": 3, "parts": [1, 3]}


def make_model(text: str, inputs: str = X) -> onnx.ModelProto:
    """Return a model whose output says nothing of its extents."""
    proto = parse(f"g ({inputs}) => (y) {{ {text} }}", opset=17)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None))
    used = {name for node in proto.graph.node for name in node.input}
    for name, value in STORED.items():
        if name in used:
            proto.graph.initializer.append(numpy_helper.from_array(np.array(value, np.int64), name))
    return proto


@pytest.mark.parametrize("name", CASES)
def test_what_comes_out_has_the_extents_of_what_went_in(name: str) -> None:
    text, shape = CASES[name]
    proto = make_model(text)

    assert prepare_model(proto, "m").index.types["y"].shape == shape
    given = {
        each.name: np.ones([dim.dim_value or 5 for dim in each.type.tensor_type.shape.dim], np.float32)
        for each in proto.graph.input
    }
    assert run_session(open_session(proto), given)["y"].shape == shape


def test_open_extents_add_up() -> None:
    text = "b = SequenceConstruct(x, o, o) y = ConcatFromSequence<axis=0>(b)"
    kind = prepare_model(make_model(text), "m").index.types["y"]

    assert kind.shape is not None
    assert "n" in str(kind.shape[0])
    assert kind.shape[1] == 3


@pytest.mark.parametrize(
    "text",
    [
        "b = SequenceConstruct(x, z) y = SequenceAt(b, p)",
        "e = SequenceConstruct(x, x) b = SequenceInsert(e, z, p) y = SequenceAt(b, zero)",
        "b = SplitToSequence<axis=0>(o) y = ConcatFromSequence<axis=0>(b)",
    ],
)
def test_a_position_that_is_computed_says_nothing(text: str) -> None:
    kind = prepare_model(make_model(text, f"{X}, int64 p"), "m").index.types.get("y")

    assert kind is None or kind.shape is None or kind.shape[0] is None


def test_equal_elements_come_out_at_any_position() -> None:
    text = "b = SequenceConstruct(x, x) y = SequenceAt(b, p)"

    assert prepare_model(make_model(text, f"{X}, int64 p"), "m").index.types["y"].shape == (2, 3)
