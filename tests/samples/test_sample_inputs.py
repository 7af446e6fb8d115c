"""Sample inputs: seeded, of every type that can be sampled, refused in a sentence otherwise."""

import numpy as np
import pytest
from helpers.support import parse, prepared

from byoc.errors import InputError
from byoc.model import GraphIndex
from byoc.samples import sample_inputs

ALL = """g (float[2, 3] f, double[4] d, float16[N, 2] h, int64[50] i, uint8[50] u, bool[50] b, float s)
    => (float[2, 3] y) { y = Relu(f) }"""


def test_types_and_shapes_are_the_inputs() -> None:
    made = sample_inputs(prepared(ALL).index)
    assert {name: (str(v.dtype), v.shape) for name, v in made.items()} == {
        "f": ("float32", (2, 3)),
        "d": ("float64", (4,)),
        "h": ("float16", (1, 2)),
        "i": ("int64", (50,)),
        "u": ("uint8", (50,)),
        "b": ("bool", (50,)),
        "s": ("float32", ()),
    }


def test_the_same_seed_gives_the_same_numbers() -> None:
    index = prepared(ALL).index
    one, same, other = sample_inputs(index), sample_inputs(index, seed=0), sample_inputs(index, seed=1)
    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert not any(np.array_equal(one[name], other[name]) for name in one)


def test_the_numbers_of_seed_zero_stay_what_they_are() -> None:
    made = sample_inputs(prepared("g (float[3] x) => (float[3] y) { y = Relu(x) }").index)
    assert made["x"].tolist() == pytest.approx([0.1257302, -0.1321049, 0.6404226], abs=1e-6)


def test_floats_are_standard_normal_and_integers_are_bits() -> None:
    text = "g (float[100, 100] f, int32[1000] i, bool[1000] b) => (float[100, 100] y) { y = Relu(f) }"
    made = sample_inputs(prepared(text).index)
    assert abs(float(made["f"].mean())) < 0.05
    assert abs(float(made["f"].std()) - 1) < 0.05
    assert sorted(set(made["i"].tolist())) == [0, 1]
    assert sorted(set(made["b"].tolist())) == [False, True]


@pytest.mark.parametrize(("ir", "given"), [(8, ["x"]), (3, ["x"])])
def test_an_input_with_a_stored_value_gets_none(ir: int, given: list[str]) -> None:
    text = "g (float[2] x, float[2] k) => (float[2] y) <float[2] k = {1, 2}> { y = Add(x, k) }"
    assert list(sample_inputs(prepared(text, ir=ir, opset=8).index)) == given


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("complex64[2]", "complex64[2]"),
        ("sparse_tensor(float[2])", "neither tensors nor maps of them"),
        ("float[]", "float32[...]"),
    ],
)
def test_what_cannot_be_sampled_is_said(kind: str, shown: str) -> None:
    model = parse(f"g ({kind} x, float[2] f) => (float[2] y) {{ y = Relu(f) }}")
    with pytest.raises(InputError) as caught:
        sample_inputs(GraphIndex.of_model(model))
    assert str(caught.value) == f"no sample input can be made for 'x' ({shown})"


def test_more_dimensions_than_arrays_have() -> None:
    shape = ", ".join(["1"] * 100)
    model = prepared(f"g (float[{shape}] x) => (float[{shape}] y) {{ y = Neg(x) }}")
    with pytest.raises(InputError, match=r"no sample input can be made for 'x': it has 100 dimensions$"):
        sample_inputs(model.index)
