"""Giving symbolic dimensions a size."""

import onnx
import pytest
from helpers.support import parse
from onnx import TensorProto, helper

from byoc.errors import InputError
from byoc.model import (
    Dim,
    Dimensions,
    TensorType,
    fix_dims,
    get_stated_types,
    list_open_dims,
    name_extents,
    name_open_dims,
    prepare_model,
    read_tensor_types,
    read_type,
    walk_graphs,
)

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
    assert list_open_dims(parse(TEXT)) == ["batch", "length", "K"]


def test_every_mention_gets_the_size() -> None:
    """Inputs, outputs and inner values, in bodies too; the others stay symbolic."""
    model = parse(TEXT)
    before = model.SerializeToString()
    fixed = fix_dims(model, Dimensions({"batch": 2, "length": 7})).proto
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
    model = prepare_model(parse(text), "test", given=Dimensions({"N": 3}))
    assert model.index.types["a"] == TensorType("float32", (4, 3))
    assert model.index.types["y"].shape in ((3, 4), (3, "P"))


def test_sequences_and_optionals() -> None:
    model = parse(
        "g (seq(float[N, 4]) s, optional(float[N]) o) => (float[N] y) { y = OptionalGetElement (o) }"
    )
    fixed = fix_dims(model, Dimensions({"N": 5})).proto
    sequence, optional = (value.type for value in fixed.graph.input)
    assert read_type(sequence.sequence_type.elem_type) == TensorType("float32", (5, 4))
    assert read_type(optional.optional_type.elem_type) == TensorType("float32", (5,))


EXPECTED = "a size is written as 4, a relation as past+seq, a range as 1..64"


@pytest.mark.parametrize("name", ["", "?", "-1", "None", "unk", "unknown", "dynamic", "w"])
def test_a_model_and_a_type_name_open_extents_alike(name: str) -> None:
    proto = parse("g (float[3,w,w] x) => (float y) { y = ReduceMax <keepdims = 0> (x) }")
    for dim in proto.graph.input[0].type.tensor_type.shape.dim[1:]:
        dim.dim_param = name
    expected = (3, "w", "w") if name == "w" else (3, "x[1]", "x[2]")
    stated = read_type(proto.graph.input[0].type)
    assert stated is not None
    assert name_extents("x", stated).shape == expected
    name_open_dims(proto)
    assert read_tensor_types(get_stated_types(proto))["x"].shape == expected


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        (
            {"bach": 1},
            "no input has a dimension named 'bach' (did you mean batch?); "
            "open dimensions: batch, length, K",
        ),
        ({"zzz": 1}, "no input has a dimension named 'zzz'; open dimensions: batch, length, K"),
        ({"": 1}, "no input has a dimension named ''; open dimensions: batch, length, K"),
        (
            {"batch": 1, "K": -3},
            "dimension K=-3: a size is at least 0 and less than 2**63",
        ),
        (
            {"K": "len+1"},
            "dimension K=len+1: no input has a dimension named 'len' (did you mean length?); "
            f"{EXPECTED}; open dimensions: batch, length, K",
        ),
        ({"K": "length-1", "length": 0}, "dimension K=length-1: dimension K would be -1"),
        (
            {"K": "length+2", "length": 3, "batch": "K", "x": 1},
            "no input has a dimension named 'x'; open dimensions: batch, length, K",
        ),
        (
            {"K": 4, "length": 5, "batch": "K + length"},
            None,
        ),
        (
            {"K": "length", "length": "batch", "batch": "K"},
            "dimension K=length: the relations go round in a circle",
        ),
        ({"K": "1.5"}, f"dimension K=1.5: '1.5' is no size, relation or range; {EXPECTED}"),
        (
            {"batch": "one"},
            "dimension batch=one: no input has a dimension named 'one'; "
            f"{EXPECTED}; open dimensions: batch, length, K",
        ),
        ({"K": "-1"}, "dimension K=-1: a size is at least 0 and less than 2**63"),
        ({"K": ""}, f"dimension K=: '' is no size, relation or range; {EXPECTED}"),
        ({"K": "9..3"}, "dimension K=9..3: the range ends before it begins"),
        ({"K": "1 2..6"}, f"dimension K=1 2..6: '1 2..6' is no size, relation or range; {EXPECTED}"),
        (
            {"K": f"1..{2**63}"},
            f"dimension K=1..{2**63}: a size is at least 0 and less than 2**63",
        ),
        (
            {"K": "batch*length", "batch": 2**40, "length": 2**40},
            f"dimension K=batch*length: dimension K would be {2**80}",
        ),
    ],
)
def test_refusals(dims: dict[str, int | str], message: str | None) -> None:
    if message is None:
        assert list_open_dims(fix_dims(parse(TEXT), Dimensions(dims)).proto) == []
        return
    with pytest.raises(InputError) as caught:
        fix_dims(parse(TEXT), Dimensions(dims))
    assert str(caught.value) == message


RELATED = "g (float[T] x, float[past] p, float[new] n) => (float[T] y) { y = Neg(x) }"


@pytest.mark.parametrize(
    ("relation", "dims", "sizes"),
    [
        ("past+new", {"T": 8, "past": 3}, (8, 3, 5)),
        ("past+new", {"T": 8, "past": "1..4", "new": "1..4"}, "does not tell the size of new, past"),
        ("2*past", {"T": 7}, "does not tell the size of past"),
        ("2*past", {"T": 8, "past": 4, "new": 1}, (8, 4, 1)),
        ("min(past,4)", {"T": 4, "new": 1}, "does not tell the size of past"),
        ("min(past,4)", {"T": 4, "past": 6, "new": 1}, (4, 6, 1)),
        ("min(past,4)", {"past": 6, "T": 4, "new": 1}, (4, 6, 1)),
        ("past%4", {"T": 1, "past": 5, "new": 1}, (1, 5, 1)),
        ("past%4", {"past": 5, "T": 2, "new": 1}, "dimension T would be 1"),
    ],
)
def test_a_relation_of_a_size_holds_or_is_refused(
    relation: str, dims: dict[str, int | str], sizes: tuple[int, ...] | str
) -> None:
    """No relation is dropped, and one that several sizes would fit settles none."""
    given = Dimensions(dims, {"x": [relation]})
    if isinstance(sizes, tuple):
        fixed = fix_dims(parse(RELATED), given).proto
        assert [value.type.tensor_type.shape.dim[0].dim_value for value in fixed.graph.input] == [*sizes]
        return
    with pytest.raises(InputError) as caught:
        fix_dims(parse(RELATED), given)
    assert sizes in str(caught.value)


@pytest.mark.parametrize(
    ("wanted", "shapes"),
    [
        ("mask[0]+1", [(3,), (4,)]),
        ("'mask[0]'+1", [(3,), (4,)]),
        ("mask[0] + mask[0]", [(3,), (6,)]),
    ],
)
def test_a_name_that_is_a_part_of_another_is_read_alone(wanted: str, shapes: list[Dim]) -> None:
    text = "g (float[?] mask, float[?] attention_mask) => (float[?] y) { y = Neg(mask) }"
    model = parse(text)

    fixed = fix_dims(model, Dimensions({"mask[0]": 3, "attention_mask[0]": wanted})).proto

    assert [shapes_of(fixed)[name] for name in ("mask", "attention_mask")] == shapes
    other = fix_dims(model, Dimensions({"mask[0]": "attention_mask[0]"})).proto
    assert shapes_of(other)["mask"] == ("attention_mask[0]",)


def shapes_of(proto: onnx.ModelProto) -> dict[str, tuple[Dim, ...] | None]:
    """Return the stated shapes of the inputs."""
    kinds = {value.name: read_type(value.type) for value in proto.graph.input}
    return {name: kind.shape for name, kind in kinds.items() if kind is not None}


def test_relations() -> None:
    inputs = "int64[b, seq] x, float[b, past, 8] p, int64[b, total] m"
    model = parse(f"g ({inputs}) => (int64[b, seq] y) {{ y = Abs (x) }}")
    related = fix_dims(model, Dimensions({"total": "past + seq", "b": 1})).proto
    assert shapes_of(related) == {"x": (1, "seq"), "p": (1, "past", 8), "m": (1, "past + seq")}
    fixed = fix_dims(model, Dimensions({"total": "past+seq", "past": 0, "seq": "5"})).proto
    assert shapes_of(fixed) == {"x": ("b", 5), "p": ("b", 0, 8), "m": ("b", 5)}
    turned = fix_dims(model, Dimensions({"total": "past+seq", "past": 3}, {"m": (None, 9)}))
    assert shapes_of(turned.proto) == {"x": ("b", 6), "p": ("b", 3, 8), "m": ("b", 9)}
    with pytest.raises(InputError) as caught:
        fix_dims(model, Dimensions({"total": "past+seq", "past": 3, "seq": 4}, {"m": (2, 9)}))
    assert str(caught.value) == (
        "dimension total=past+seq: dimension total would be 7, but it is 9 by shape m=2,9"
    )


def test_two_names_of_one_size() -> None:
    """As of the caches that torch's dynamo exporter names apart, and a mask of past and sequence."""
    inputs = "int64[b, seq] x, float[b, k] key, float[b, v] value, int64[m, total] mask"
    model = parse(f"g ({inputs}) => (int64[b, seq] y) {{ y = Abs (x) }}")
    equal: dict[str, int | str] = {"v": "k", "m": "b", "total": "k+seq"}
    assert shapes_of(fix_dims(model, Dimensions(equal)).proto) == {
        "x": ("b", "seq"),
        "key": ("b", "k"),
        "value": ("b", "k"),
        "mask": ("b", "k + seq"),
    }
    fixed = fix_dims(model, Dimensions({**equal, "k": 4, "b": 1})).proto
    assert list_open_dims(fixed) == ["seq", "seq + 4"]
    with pytest.raises(InputError, match=r"^dimension k=4: dimension k would be 4, but it is 3 by "):
        fix_dims(model, Dimensions({"v": "k", "k": 4}, {"value": (None, 3)}))


UNNAMED = """
g (float[?, 3, ?, w] x, float[?, 4] z) => (float[?, 3, ?, w] y) { y = Relu (x) }
"""


def test_dimensions_without_a_name() -> None:
    model = parse(UNNAMED)
    for value in model.graph.input:  # as Paddle writes them: one name for all that have none
        for dim in value.type.tensor_type.shape.dim:
            if not dim.HasField("dim_value") and dim.dim_param != "w":
                dim.dim_param = "?"
    assert list_open_dims(model) == ["x[0]", "x[2]", "w", "z[0]"]
    fixed = fix_dims(model, Dimensions({"x[2]": 7, "w": "x[2]*2"})).proto
    assert shapes_of(fixed) == {"x": ("?", 3, 7, 14), "z": ("?", 4)}
    types = prepare_model(model, "m").index.types
    assert types["x"].shape == ("x[0]", 3, "x[2]", "w")
    assert types["z"].shape == ("z[0]", 4)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"x": (1, 3, None, 640)}, None),
        ({"x": ("n", 3, "h", "h")}, None),
        ({"xx": (1,)}, "shape xx=1: no such input (did you mean x?); inputs: x, z"),
        ({"x": (1, 3, 640)}, "shape x=1,3,640: 'x' has 4 dimensions, not 3"),
        ({"x": (1, 4, 8, 8)}, "shape x=1,4,8,8: dimension 1 of 'x' is 3 in the model"),
    ],
)
def test_whole_shapes(shapes: dict[str, tuple[Dim, ...]], message: str | None) -> None:
    model = parse(UNNAMED)
    if message is None:
        found = shapes_of(fix_dims(model, Dimensions(shapes=shapes)).proto)["x"]
        wanted = {(1, 3, None, 640): (1, 3, None, 640), ("n", 3, "h", "h"): ("n", 3, "h", "h")}
        assert found == wanted[shapes["x"]]
        return
    with pytest.raises(InputError) as caught:
        fix_dims(model, Dimensions(shapes=shapes))
    assert str(caught.value) == message


def test_a_range_stays_open() -> None:
    fixed = fix_dims(parse(TEXT), Dimensions({"length": "1..2048", "batch": 2}))
    assert shapes_of(fixed.proto)["x"] == (2, "length")
    assert fixed.ranges == {"length": (1, 2048)}


def test_nothing_symbolic() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    with pytest.raises(InputError) as caught:
        prepare_model(model, "m.onnx", given=Dimensions({"N": 1}))
    assert (
        str(caught.value) == "m.onnx: no input has a dimension named 'N'; no input has an open dimension"
    )


def test_a_name_that_only_inner_values_have_is_not_for_the_user() -> None:
    model = parse("g (float[2] x) => (float[M] y) { y = Relu (x) }")
    assert list_open_dims(model) == []
    assert read_tensor_types(get_stated_types(model))["y"] == TensorType("float32", ("M",))


def test_a_sparse_input() -> None:
    kind = helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, ["N"])
    model = onnx.ModelProto()
    model.graph.input.append(helper.make_value_info("s", kind))
    fixed = fix_dims(model, Dimensions({"N": 9})).proto
    assert fixed.graph.input[0].type.sparse_tensor_type.shape.dim[0].dim_value == 9


def test_a_negative_extent_is_unknown_and_all_else_is_as_it_was() -> None:
    model = parse(TEXT)
    assert prepare_model(model, "m").proto is model
    branch = model.graph.node[1].attribute[0].g
    stated = [model.graph.input[0], model.graph.output[0], branch.value_info[0]]
    for value in stated:
        value.type.tensor_type.shape.dim[0].dim_value = -1
    before = model.SerializeToString()
    fixed = prepare_model(model, "m").proto
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
