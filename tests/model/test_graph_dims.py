"""Giving symbolic dimensions a size."""

import onnx
import pytest
from onnx import TensorProto, helper
from support import parse

from byoc.errors import InputError
from byoc.model import (
    TensorType,
    get_stated_types,
    list_symbolic_dims,
    prepare_model,
    read_tensor_types,
    read_type,
    walk_graphs,
)
from byoc.model.inference import clear_negative_dims, fix_dims

TEXT = """
g (float[batch, length] x, float[batch, K] k, bool c) => (float[batch, length] y)
<float[batch, length] a> {
  a = Relu (x)
  y = If <then_branch = t () => (float[batch, length] u) <float[batch, length] u0>
            { u0 = Neg (a)
              u = Abs (u0) },
          else_branch = e () => (float[batch, length] v) { v = Neg (x) }> (c)
}
"""


def test_names_of_the_inputs_in_order() -> None:
    assert list_symbolic_dims(parse(TEXT)) == ["batch", "length", "K"]


def test_every_mention_gets_the_size() -> None:
    """Inputs, outputs and inner values, in bodies too; the others stay symbolic."""
    model = parse(TEXT)
    before = model.SerializeToString()
    fixed = fix_dims(model, {"batch": 2, "length": 7})
    assert model.SerializeToString() == before
    found = {
        value.name: read_type(value.type)
        for graph in walk_graphs(fixed.graph)
        for value in (*graph.input, *graph.output, *graph.value_info)
    }
    wanted = TensorType("float32", (2, 7))
    assert found.pop("k") == TensorType("float32", (2, "K"))
    assert found.pop("c") == TensorType("bool", ())
    assert found == dict.fromkeys(["x", "y", "a", "u", "u0", "v"], wanted)


def test_a_size_reaches_what_is_inferred() -> None:
    text = "g (float[N, 4] x) => (float[N, P] y) { a = Transpose (x)\n y = Transpose (a) }"
    model = prepare_model(parse(text), "test", dims={"N": 3})
    assert model.index.types["a"] == TensorType("float32", (4, 3))
    assert model.index.types["y"].shape in ((3, 4), (3, "P"))


def test_sequences_and_optionals() -> None:
    model = parse(
        "g (seq(float[N, 4]) s, optional(float[N]) o) => (float[N] y) { y = OptionalGetElement (o) }"
    )
    fixed = fix_dims(model, {"N": 5})
    sequence, optional = (value.type for value in fixed.graph.input)
    assert read_type(sequence.sequence_type.elem_type) == TensorType("float32", (5, 4))
    assert read_type(optional.optional_type.elem_type) == TensorType("float32", (5,))


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        (
            {"bach": 1},
            "no input has a dimension named 'bach' (did you mean batch?); "
            "symbolic dimensions: batch, length, K",
        ),
        (
            {"zzz": 1},
            "no input has a dimension named 'zzz'; symbolic dimensions: batch, length, K",
        ),
        ({"": 1}, "no input has a dimension named ''; symbolic dimensions: batch, length, K"),
        ({"batch": 0}, "dimension batch=0: a size is at least 1"),
        ({"batch": 1, "K": -3}, "dimension K=-3: a size is at least 1"),
    ],
)
def test_refusals(dims: dict[str, int], message: str) -> None:
    with pytest.raises(InputError) as caught:
        fix_dims(parse(TEXT), dims)
    assert str(caught.value) == message


def test_nothing_symbolic() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    with pytest.raises(InputError) as caught:
        prepare_model(model, "m.onnx", dims={"N": 1})
    assert str(caught.value) == "m.onnx: no input has a dimension named 'N'; no dimension has a name"


def test_a_name_that_only_inner_values_have_is_not_for_the_user() -> None:
    model = parse("g (float[2] x) => (float[M] y) { y = Relu (x) }")
    assert list_symbolic_dims(model) == []
    assert read_tensor_types(get_stated_types(model))["y"] == TensorType("float32", ("M",))


def test_a_sparse_input() -> None:
    kind = helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, ["N"])
    model = onnx.ModelProto()
    model.graph.input.append(helper.make_value_info("s", kind))
    fixed = fix_dims(model, {"N": 9})
    assert fixed.graph.input[0].type.sparse_tensor_type.shape.dim[0].dim_value == 9


def test_a_negative_extent_is_unknown_and_all_else_is_as_it_was() -> None:
    model = parse(TEXT)
    assert clear_negative_dims(model) is model
    branch = model.graph.node[1].attribute[0].g
    stated = [model.graph.input[0], model.graph.output[0], branch.value_info[0]]
    for value in stated:
        value.type.tensor_type.shape.dim[0].dim_value = -1
    before = model.SerializeToString()
    fixed = clear_negative_dims(model)
    assert model.SerializeToString() == before
    assert [str(read_type(value.type)) for value in fixed.graph.input[:2]] == [
        "float32[?, length]",
        "float32[batch, K]",
    ]
    inner = fixed.graph.node[1].attribute[0].g.value_info[0]
    assert not any(d.dim_value < 0 for d in inner.type.tensor_type.shape.dim)
    for value in stated:
        value.type.tensor_type.shape.dim[0].ClearField("dim_value")
    assert fixed == model
