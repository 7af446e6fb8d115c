"""Ranges of values: each value that a model computes lies in its range, and ranges are narrow."""

import re
import sys
from collections.abc import Mapping
from itertools import combinations_with_replacement, product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import parse
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from byoc.errors import InputError
from byoc.model import GraphIndex, infer_types, prepare_model
from byoc.model.ranges import Interval, ValueRanges

sys.path.insert(0, str(Path(__file__).parents[1] / "onnx_suite"))
from suite import Case, collect

# The reference follows no definition there: it draws at random, or the outputs are no numbers.
_LEFT_OUT = ("bernoulli_seed", "training", "_string", "strings")


def index_of(model: onnx.ModelProto) -> GraphIndex:
    return prepare_model(model, "test").index


def measure(value: Any) -> Interval | None:
    """Return the interval of the numbers in an array; None where it has none."""
    if not isinstance(value, np.ndarray) or value.dtype.kind in "OSUc":
        return None
    if value.dtype.kind not in "biuf":
        value = value.astype(np.float64)
    value = value[~np.isnan(value)] if value.dtype.kind == "f" else value
    return Interval(value.min().item(), value.max().item()) if value.size else None


def find_wrong(ranges: ValueRanges, values: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each tensor with a value outside of its range."""
    found = []
    for name, value in values.items():
        actual = measure(value)
        claimed = ranges.find(name)
        if actual is not None and not claimed.whole.holds(actual):
            found.append(f"{name}: {actual} is not in {claimed.whole}")
        elif actual is not None and claimed.parts is not None:
            elements = np.asarray(value).ravel().tolist()
            if len(elements) != len(claimed.parts):
                found.append(f"{name}: {len(elements)} elements, not {len(claimed.parts)}")
            elif not all(
                part.holds(Interval.at(each))
                for part, each in zip(claimed.parts, elements, strict=True)
                if not np.isnan(each)
            ):
                found.append(f"{name}: {elements} are not in {claimed.parts}")
    return found


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return [
        case
        for case in collect(costly=False)
        if case.kind in ("node", "simple") and not any(part in case.name for part in _LEFT_OUT)
    ]


def test_the_outputs_of_onnx_own_tests_lie_in_their_ranges(cases: list[Case]) -> None:
    """Each operator, with nothing known of its inputs, and with the range of each that is given."""
    wrong, tried = [], 0
    for case in cases:
        try:
            index = index_of(case.model)
        except InputError:  # operators that no reader knows
            continue
        for inputs, expected in case.data_sets:
            known = {name: found for name in inputs if (found := measure(inputs[name])) is not None}
            for given_ranges in ({}, known):
                ranges = ValueRanges(index, given=given_ranges)
                wrong += [f"{case.name}: {text}" for text in find_wrong(ranges, expected)]
        tried += 1
    assert tried > 1000
    assert wrong == []


# Each makes a matrix of four elements of matrices `a` and `b` and of constants of the same dtype.
STEPS = (
    *(f"y = {op}(a)" for op in ("Abs", "Neg", "Sign", "Identity", "Transpose")),
    *(f"y = {op}(a, b)" for op in ("Add", "Sub", "Mul", "Max", "Min", "MatMul", "Sum")),
    *(f"c = {op}(a, rows) y = Expand(c, square)" for op in ("ReduceSum", "ReduceMax", "ReduceProd")),
    "y = CumSum(a, axis)",
    "z = Equal(b, zero) d = Where(z, two, b) y = Div(a, d)",
    "z = Equal(b, zero) d = Where(z, two, b) y = Mod(a, d)",
    "y = Pow(a, two)",
    "y = Clip(a, , two)",
    "y = Clip(a, two)",
    "t = Cast <to = 9> (b) y = Where(t, a, two)",
    "t = Less(a, b) y = CastLike(t, a)",
    "c = Concat <axis = 1> (a, b) y = Slice(c, ones, threes, ones)",
    "c = Gather(a, axis) y = Expand(c, square)",
    "c = Split <num_outputs = 2> (a) y = Expand(c, square)",
    "s = Shape(a) t = CastLike(s, a) y = Add(a, t)",
    "n = Pad(a, pads, two) y = Slice(n, ones, threes)",
    "s = Size(a) t = CastLike(s, a) u = Range(zero, t, two) v = Expand(u, square) y = Mul(a, v)",
)
DTYPES = {"int64": 7, "int32": 6, "int8": 3, "uint8": 2}
ENDS = st.sampled_from([-(2**31), -200, -3, -1, 0, 1, 2, 7, 255, 2**24 + 1, 2**31 - 1])
CONSTANTS = {
    **{"rows": "int64[1] rows = {0}", "square": "int64[2] square = {2, 2}", "axis": "int64 axis = {0}"},
    **{"ones": "int64[2] ones = {0, 1}", "threes": "int64[2] threes = {2, 3}"},
    "pads": "int64[4] pads = {1, 1, 1, 1}",
}


def write_step(step: str, number: int, read: tuple[str, str], dtype: str) -> str:
    """Return the lines of a step: its own names have a number, constants are those of its dtype."""

    def rename(found: re.Match[str]) -> str:
        name = found[0]
        if name in ("zero", "two"):
            return f"{name}_{dtype}"
        given = dict(zip("ab", read, strict=True))
        return given.get(name, f"r{number}" if name == "y" else f"{name}{number}")

    return re.sub(r"\b([a-z]|zero|two)\b", rename, step)


@st.composite
def make_integer_model(draw: st.DrawFn) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Draw a model of integers, square matrices, and inputs for it; nothing is divided by 0."""
    tensors, lines = {"x0": "int64", "x1": "int64"}, []
    for number in range(draw(st.integers(1, 10))):
        one, other = (draw(st.sampled_from(sorted(tensors))) for _ in range(2))
        dtype = draw(st.sampled_from(sorted(DTYPES)))
        for end, name in (("p", one), ("q", other)):
            lines.append(f"{end}{number} = Cast <to = {DTYPES[dtype]}> ({name})")
            tensors[f"{end}{number}"] = dtype
        step = draw(st.sampled_from(STEPS))
        if dtype == "uint8":
            step = step.replace("Neg(a)", "Identity(a)")
        lines.append(write_step(step, number, (f"p{number}", f"q{number}"), dtype))
        tensors[f"r{number}"] = dtype
    constants = [*CONSTANTS.values()]
    constants += [f"{d} {n}_{d} = {{{v}}}" for d in DTYPES for n, v in (("zero", 0), ("two", 2))]
    outputs = ", ".join(f"{dtype}[2, 2] {name}" for name, dtype in tensors.items() if name[0] != "x")
    text = (
        f"g (int64[2, 2] x0, int64[2, 2] x1) => ({outputs}) <{', '.join(constants)}> "
        f"{{ {' '.join(lines)} }}"
    )
    values = {name: [draw(ENDS) for _ in range(4)] for name in ("x0", "x1")}
    inputs = {name: np.array(each, np.int64).reshape(2, 2) for name, each in values.items()}
    return parse(text, opset=18), inputs


@settings(max_examples=100, deadline=None)
@given(make_integer_model())
def test_the_values_of_random_models_lie_in_their_ranges(
    drawn: tuple[onnx.ModelProto, dict[str, Any]],
) -> None:
    model, inputs = drawn
    names = [value.name for value in model.graph.output]
    with np.errstate(all="ignore"):
        made = dict(zip(names, ReferenceEvaluator(model).run(names, inputs), strict=True))
    index = GraphIndex(model, infer_types(model, {}).type_protos)
    measured = {name: Interval(int(each.min()), int(each.max())) for name, each in inputs.items()}
    for known in ({}, measured):
        assert find_wrong(ValueRanges(index, given=known), made) == []


EXACT = {"Add", "Sub", "Mul", "Max", "Min", "Div"}
PAIRS = {
    "int32": ("Add", "Sub", "Mul", "Max", "Min", "Div", "Mod", "Mod <fmod = 1>", "Pow", "BitwiseAnd"),
    "uint32": ('BitShift <direction = "LEFT">', 'BitShift <direction = "RIGHT">', "BitwiseOr", "Mod"),
}


@pytest.mark.parametrize(("dtype", "call"), [(d, call) for d, calls in PAIRS.items() for call in calls])
def test_the_range_of_two_operands_holds_what_each_pair_gives(dtype: str, call: str) -> None:
    """All pairs of intervals of small numbers; where nothing is lost the ends are taken."""
    numbers = np.arange(-4 if dtype == "int32" else 0, 5)
    right = numbers[numbers > 0] if call[:3] in ("Div", "Mod", "Pow") else numbers
    model = parse(
        f"g ({dtype}[{numbers.size}, 1] a, {dtype}[1, {right.size}] b) => "
        f"({dtype}[{numbers.size}, {right.size}] y) {{ y = {call}(a, b) }}",
        opset=18,
    )
    given = {"a": numbers.astype(dtype)[:, None], "b": right.astype(dtype)[None]}
    (table,) = ReferenceEvaluator(model).run(None, given)
    index = GraphIndex(model, infer_types(model, {}).type_protos)
    spans = [[*combinations_with_replacement(range(each.size), 2)] for each in (numbers, right)]
    for (first, last), (start, end) in product(*spans):
        known = {
            "a": Interval(int(numbers[first]), int(numbers[last])),
            "b": Interval(int(right[start]), int(right[end])),
        }
        actual = table[first : last + 1, start : end + 1]
        found = ValueRanges(index, given=known).describe_node(0, ()).makes[0][2]
        least, most = int(actual.min()), int(actual.max())
        assert found.low <= least
        assert most <= found.high
        if call in EXACT:
            assert (found.low, found.high) == (least, most)


EXAMPLES = {
    "ids index the rows of their table, from behind as well": (
        "g (int64[1, 8] ids, float[30522, 4] t) => (float[1, 8, 4] y, int64[1, 8] z) "
        "{ z = Add(ids, ids) y = Gather(t, ids) }",
        {"ids": (-30522, 30521), "z": (-61044, 61042)},
    ),
    "what is moved into an index is one": (
        "g (int32[8] ids, float[100, 4] t) => (float[2, 4, 4] y) <int64[2] s = {2, 4}, int64 two = {2}> "
        "{ w = Cast <to = 7> (ids) a = Add(w, two) r = Reshape(a, s) y = Gather(t, r) }",
        {"ids": (-102, 97), "r": (-100, 99)},
    ),
    "a cast to fewer bits wraps, so that nothing follows for what is cast": (
        "g (int64[8] ids, float[100, 4] t) => (float[8, 4] y) "
        "{ w = Cast <to = 6> (ids) y = Gather(t, w) }",
        {"ids": (-(2**63), 2**63 - 1), "w": (-100, 99)},
    ),
    "shapes are followed element by element": (
        "g (float[N, 3, 224, 224] x) => (int64[] y, int64[1] z) <int64 two = {2}, int64[1] one = {1}> "
        "{ s = Shape(x) h = Gather(s, two) y = Mul(h, h) z = Slice(s, one, two1) two1 = Add(one, one) }",
        {"y": (224 * 224, 224 * 224)},
    ),
    "positions and counts": (
        "g (float[4, 1000] x) => (int64[4, 1] y, int64[4000, 2] n, bool[4, 1000] b, int64 c) "
        "{ y = ArgMax <axis = 1> (x) m = NonZero(x) n = Transpose(m) b = IsNaN(x) "
        "w = Cast <to = 7> (b) c = ReduceSum <keepdims = 0> (w) }",
        {"y": (0, 999), "m": (0, 999), "c": (0, 4000)},
    ),
    "floats become whole numbers": (
        "g (float[4] x) => (int64[4] y, int32[4] z) <float ten = {10.0}> "
        "{ s = Sigmoid(x) t = Mul(s, ten) y = Cast <to = 7> (t) f = Clip(x, low, ten) "
        "low = Neg(ten) z = Cast <to = 6> (f) }",
        {"y": (0, 10), "z": (-10, 10)},
    ),
    "what a branch gives is what either gives": (
        "g (bool c, int64[1] x) => (int64[1] y) <int64[1] a = {5}> "
        "{ y = If (c) <then_branch = t () => (int64[1] u) { u = Neg(a) }, "
        "else_branch = e () => (int64[1] v) { v = Abs(a) }> }",
        {"y": (-5, 5)},
    ),
    "a loop counts its iterations, and keeps what each keeps": (
        "g (int64 n, bool c) => (int64[1] y, int64[k, 1] z) <int64[1] zero = {0}, int64 m = {7}> "
        "{ y, z = Loop (m, c, zero) <body = b (int64 i, bool d, int64[1] s) => "
        "(bool d2, int64[1] s2, int64[1] t) { d2 = Identity(d) t = Add(s, i) s2 = Min(s, t) }> }",
        {"y": (0, 0), "z": (0, 6)},
    ),
}


@pytest.mark.parametrize("case", EXAMPLES)
def test_ranges_are_those_that_follow(case: str) -> None:
    text, wanted = EXAMPLES[case]
    ranges = index_of(parse(text)).value_ranges
    found = {name: ranges.find(name).whole for name in wanted}
    assert {name: (each.low, each.high) for name, each in found.items()} == wanted


def test_sums_by_constant_weights_are_those_of_the_channel_with_most() -> None:
    """What the largest weight would give is beyond float32; what the weights add up to is not."""
    weights = np.zeros((900, 2), np.int8)
    weights[:4] = [[1, -100], [2, 3], [3, 100], [-4, 5]]
    weights[4:, 1] = 3
    model = parse(
        "g (uint8[1, 900] x, uint8[1, 900, 9] v) => (int32[1, 2] y, int32[1, 2, 9] z) "
        "<int8[2] k = {0, 3}, uint8 p = {5}> { y = MatMulInteger(x, w, p, k) z = ConvInteger(v, c) }"
    )
    filters = np.ascontiguousarray(weights.T[:, :, None] - np.array([0, 3], np.int8)[:, None, None])
    for name, array in (("w", weights), ("c", filters)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    ranges = index_of(model).value_ranges
    # The second channel without its zero point: -103, 0, 97, 2.
    assert ranges.find("y").whole == Interval(-103 * 250 - 99 * 5, 99 * 250 + 103 * 5)
    assert ranges.find("z").whole == Interval(-103 * 255, 99 * 255)
    assert ranges.describe_node(0, ()).summed == 103 * 250 + 99 * 5
