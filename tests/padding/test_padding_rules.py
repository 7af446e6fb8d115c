"""What is padded, with what behind the inputs, and the sentence that refuses it otherwise.

Below: the bounds of every operator that computes element by element, against what it computes.
"""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.support import parse
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from padding_parts import UNPADDED, Assumptions, PaddedGraph, Part, ValueBounds, Zone

from byoc.errors import InputError
from byoc.model import RANDOM_OPERATORS, Dimensions, prepare_model
from byoc.model.ranges import Interval
from byoc.padding import (
    EDGE,
    FirstValue,
    PaddedInput,
    PaddingDecision,
    PaddingRule,
    cut_outputs,
    decide_padding,
    find_unpadded_sizes,
    pad_inputs,
)

LOWEST = float(np.finfo(np.float32).min)


def decide(text: str, opset: int = 18, **sizes: int) -> PaddingDecision:
    proto = parse(text, opset=opset)
    return decide_padding(lambda fixed: prepare_model(proto, "m", None, Dimensions(dict(fixed))), sizes)


def attention(mask: str, low: float) -> str:
    """Return attention of normalized vectors, with a mask that is made of the input `mask`."""
    return f"""g (float[n, 4] x, int64[n] mask) => (float[n, 4] y)
        <float[4] w = {{1, 1, 1, 1}}, float one = {{1}}, float low = {{{low}}}, float zero = {{0}}> {{
        v = LayerNormalization(x, w)
        t = Transpose(v)
        s = MatMul(v, t)
        {mask}
        p = Softmax(a)
        y = MatMul(p, v)
    }}"""


ADDED = "m = Cast <to = 1> (mask) k = Sub(one, m) l = Mul(k, low) a = Add(s, l)"
CHOSEN = "m = Cast <to = 9> (mask) a = Where(m, s, low)"


@pytest.mark.parametrize(("mask", "low"), [(ADDED, LOWEST), (ADDED, -1e4), (CHOSEN, LOWEST)])
def test_a_mask_is_filled_with_zeros_and_begins_with_a_one(mask: str, low: float) -> None:
    rule = decide(attention(mask, low), n=8).rule
    assert rule is not None
    assert rule.inputs["mask"] == PaddedInput(("n",), 0, FirstValue(0, 1))
    assert rule.reads_values
    found = find_unpadded_sizes(rule, {"x": np.zeros((3, 4)), "mask": np.array([1, 0, 1])})
    assert found == {"n": 3}
    with pytest.raises(InputError, match="is padded only where it is 1 at index 0 of axis 0"):
        find_unpadded_sizes(rule, {"x": np.zeros((3, 4)), "mask": np.array([0, 1, 1])})


@pytest.mark.parametrize("power", ["q = Mul(x, x)", "q = Pow(x, two)"])
@pytest.mark.parametrize(
    "scaled",
    ["v = Div(x, r)", "i = Div(one, r) v = Mul(x, i)", "i = Reciprocal(r) v = Mul(i, x)"],
)
def test_a_root_mean_square_bounds_scores_however_exporters_write_it(power: str, scaled: str) -> None:
    """By the root of 4 here: scores of -1,000,000 are not closer together than those that x makes."""
    numbers = "<float two = {2}, int64[1] last = {-1}, float e = {1e-6},"
    body = f"{power} k = ReduceMean(q, last) b = Add(k, e) r = Sqrt(b) {scaled}"
    for low, is_padded in ((-1e6, True), (-10.0, False)):
        text = attention(CHOSEN, low).replace("v = LayerNormalization(x, w)", body)
        rule = decide(text.replace("<", numbers, 1), n=8).rule
        assert (rule is not None) == is_padded


def test_a_rule_has_the_assumptions_that_it_rests_on() -> None:
    """That zeros are behind x, and that the mask begins with a one; of the other input nothing."""
    text = attention(ADDED, LOWEST).replace("(float[n, 4] x,", "(float[n, 4] x, float[n] other,")
    text = text.replace("y = MatMul(p, v)", "y = MatMul(p, v) z = Relu(other)")
    text = text.replace("(float[n, 4] y)", "(float[n, 4] y, float[n] z)")
    rule = decide(text, n=8).rule
    assert rule is not None
    assert rule.inputs == {
        "x": PaddedInput(("n", 4), 0),
        "other": PaddedInput(("n",), EDGE),
        "mask": PaddedInput(("n",), 0, FirstValue(0, 1)),
    }


def test_a_mask_too_weak_for_the_scores_is_refused_with_the_node() -> None:
    assert decide(attention(ADDED, -5.0), n=8).refusals == {
        "n": "Softmax 'p': it goes over axis 1, which is n long, and padding is not proven to add "
        "nothing to that: up to 11 beside an element of -16 or more"
    }


CASES: dict[str, tuple[str, str]] = {
    "mean": (
        "<int64[1] i = {0}> { y = ReduceMean <keepdims = 0> (x, i) }",
        "ReduceMean 'y': it reduces over axis 0, which is n long",
    ),
    "softmax": (
        "{ y = Softmax <axis = 0> (x) }",
        "Softmax 'y': it goes over axis 0, which is n long, and padding is not proven to add nothing",
    ),
    "the last": (
        "<int64 i = {-1}> { y = Gather(x, i) }",
        "Gather 'y': its indices may count from the end of an axis that is n long",
    ),
    "size": (
        "{ s = Shape <start = 0, end = 1> (x) c = Cast <to = 1> (s) y = Div(x, c) }",
        "Div 'y': the value of 'c' depends on the size",
    ),
    "end": (
        "<int64[4] p = {0, 0, 1, 0}> { y = Pad(x, p) }",
        "Pad 'y': it pads the end of axis 0",
    ),
    "behind": (
        "{ y = Concat <axis = 0> (x, x) }",
        "Concat 'y': it appends to an axis that is n long, behind what padding adds",
    ),
    "unknown": ("{ y = NonZero(x) }", "NonZero 'y': what it makes of padding is not known"),
    "a constant's row": (
        "<float[9, 1] t = {0, 1, 2, 3, 4, 5, 6, 7, 8}, int64[1] j = {1}> "
        "{ e = Shape <end = 1> (x) s = Sub(e, j) r = Gather(t, s) y = Add(x, r) }",
        "Gather 'r': the value of 's' depends on the size",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_not_understood_is_refused_with_the_node_and_why(case: str) -> None:
    body, reason = CASES[case]
    dtype = "int64" if case == "unknown" else "float"
    decision = decide(f"g (float[n, 4] x) => ({dtype}[a, b] y) {body}", n=6)
    assert decision.rule is None
    assert decision.refusals["n"].startswith(reason)


def test_images_are_not_padded_and_their_batch_is() -> None:
    decision = decide(
        "g (float[b, 1, h, 8] x, float[2, 1, 3, 3] w) => (float[b, 2, k, 8] y) "
        "{ a = Conv <pads = [1, 1, 1, 1]> (x, w) y = Conv <pads = [1, 1, 1, 1], group = 2> (a, w) }",
        b=4,
        h=8,
    )
    assert decision.rule is not None
    assert decision.rule.dims == {"b": 4}
    assert decision.rule.inputs == {"x": PaddedInput(("b", 1, 8, 8), EDGE)}
    assert not decision.rule.reads_values
    assert decision.refusals["h"].startswith(
        "Conv 'y': its windows reach beyond the end of axis 2, and padding is not proven to be 0 there"
    )


def test_sums_by_a_mask_need_no_more_than_zeros() -> None:
    rule = decide(
        "g (float[n, 4] x, float[n, 1] m) => (float[4] y) <int64[1] i = {0}> "
        "{ t = Tanh(x) p = Mul(t, m) y = ReduceSum <keepdims = 0> (p, i) }",
        n=8,
    ).rule
    assert rule is not None
    assert {name: each.value for name, each in rule.inputs.items()} == {"x": 0, "m": 0}
    assert rule.outputs == {}


def test_dimensions_of_one_size_are_padded_together_where_they_have_to_be() -> None:
    rule = decide("g (float[n] x, float[m] z) => (float[k] y) { y = Add(x, z) }", n=5, m=5).rule
    assert rule is not None
    assert (rule.dims, rule.equal) == ({"n": 5}, {"m": "n"})
    assert rule.inputs["z"].shape == ("n",)


RULE = PaddingRule(
    {"b": 3, "n": 4},
    {"ids": PaddedInput(("b", "n"), 0), "x": PaddedInput(("b", 2), EDGE)},
    {"y": ("b", "n")},
)


def test_a_number_is_filled_in_along_the_last_axis_and_entries_are_repeated_along_others() -> None:
    given: Any = {"ids": np.array([[5, 6], [7, 8]]), "x": np.array([[1.0, 2], [3, 4]]), "other": 1}
    sizes = find_unpadded_sizes(RULE, given)
    padded = pad_inputs(RULE, given, sizes)
    assert padded["ids"].tolist() == [[5, 6, 0, 0], [7, 8, 0, 0], [7, 8, 0, 0]]
    assert padded["x"].tolist() == [[1, 2], [3, 4], [3, 4]]
    assert padded["other"] == 1
    assert cut_outputs(RULE, {"y": np.arange(12).reshape(3, 4)}, sizes)["y"].tolist() == [[0, 1], [4, 5]]


@pytest.mark.parametrize(
    ("ids", "x", "problem"),
    [
        ((2,), (2, 2), "input 'ids' has 1 dimensions, not 2"),
        ((2, 5), (2, 2), "n is 5, and may be 1 to 4"),
        ((2, 0), (2, 2), "n is 0, and may be 1 to 4"),
        ((2, 3), (1, 2), "input 'x' has b=1, another has 2"),
        ((2, 3), (2, 3), r"input 'x' is \[2, 3\], not \[2, 2\]"),
    ],
)
def test_inputs_that_do_not_fit_say_why(ids: Any, x: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        find_unpadded_sizes(RULE, {"ids": np.zeros(ids), "x": np.zeros(x)})


def test_an_output_that_is_too_short_is_a_sentence() -> None:
    with pytest.raises(InputError, match=r"output 'y' is \[1, 4\], too short for \[2, 1\]"):
        cut_outputs(RULE, {"y": np.zeros((1, 4))}, {"b": 2, "n": 1})


# Bounds.

INTERVALS = ((-3.0, 2.0), (0.5, 4.0), (-0.9, 0.9), (1.5, 300.0), (-5.0, -2.0), (-1e5, 1e5))
NEWEST_OPSET = min(24, onnx.defs.onnx_opset_version())
CONTRIB = ("BiasGelu", "FastGelu", "Gelu", "QuickGelu")
# The reference implementation takes such operands, and with them these change one element each.
_OF_AXES = {
    *("Compress", "Gather", "GatherElements", "GlobalAveragePool", "InstanceNormalization"),
    *("OptionalGetElement", "Squeeze"),
}
# By chance such an operator would change one element alone. A Dropout draws only where it trains.
_RANDOM = RANDOM_OPERATORS - {"Dropout"}
# What is not bounded where padding may be, and why.
WITHOUT_A_RULE = {
    "Hardmax": "computes along an axis",
    "Softmax": "computes along an axis",
    "LogSoftmax": "computes along an axis",
}


def make_model(operator: str, domain: str, count: int, low: float, high: float) -> onnx.ModelProto:
    """A model whose output `y` is an operator of whole numbers that are scaled and clipped before."""
    inputs = [f"i{number}" for number in range(count)]
    nodes = []
    for name in inputs:
        nodes += [
            helper.make_node("Cast", [name], [f"f{name}"], to=TensorProto.FLOAT),
            helper.make_node("Mul", [f"f{name}", "step"], [f"s{name}"]),
            helper.make_node("Clip", [f"s{name}", "low", "high"], [f"x{name}"]),
        ]
    attributes = {"fmod": 1} if operator == "Mod" else {}
    made = [f"x{name}" for name in inputs]
    nodes.append(helper.make_node(operator, made, ["y"], domain=domain, **attributes))
    constants = {"step": 1e-3, "low": low, "high": high}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.INT32, ["n"]) for name in inputs],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor(name, TensorProto.FLOAT, [], [each]) for name, each in constants.items()],
    )
    opsets = [
        helper.make_opsetid("", 20 if domain else NEWEST_OPSET),
        helper.make_opsetid("com.microsoft", 1),
    ]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def find_bounds(model: onnx.ModelProto, zone: Zone) -> Interval | None:
    graph = PaddedGraph(prepare_model(model, "m", None), {"n": 8})
    return ValueBounds(graph, Assumptions({}, {}), (), ()).find("y", zone)


def compute(model: onnx.ModelProto, low: float, high: float) -> np.ndarray:
    """The values of an operator over a grid of its operands."""
    count = len(model.graph.input)
    side = np.linspace(low, high, 2001 if count == 1 else 41 if count == 2 else 13)
    grid = np.stack(np.meshgrid(*[np.round(side * 1000)] * count), -1).reshape(-1, count)
    feeds = {f"i{number}": grid[:, number].astype(np.int32) for number in range(count)}
    if model.graph.node[-1].domain:
        session = onnxruntime.InferenceSession(model.SerializeToString())
        return np.asarray(session.run(None, feeds)[0])
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(ReferenceEvaluator(model).run(None, feeds)[0])


def is_elementwise(operator: str, count: int) -> bool:
    """Whether a change of one element of the operands changes that element of the result alone."""
    model = make_model(operator, "", count, 0.1, 0.9)
    feeds: dict[str, Any] = {f"i{n}": np.array([200, 700, 300, 500], np.int32) for n in range(count)}
    changed = {name: np.array([200, 400, 300, 500], np.int32) for name in feeds}
    try:
        with np.errstate(all="ignore"):
            before, after = (ReferenceEvaluator(model).run(None, each)[0] for each in (feeds, changed))
    except Exception:  # it takes other operands
        return False
    if not isinstance(before, np.ndarray) or before.shape != (4,) or before.dtype != np.float32:
        return False
    return np.array_equal(before[[0, 2, 3]], after[[0, 2, 3]])


def list_elementwise() -> Iterator[tuple[str, str, int]]:
    """Yield operator, domain, and number of operands of all operators of ONNX and onnxruntime."""
    for name in sorted({schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}):
        try:
            schema = onnx.defs.get_schema(name, NEWEST_OPSET, "")
        except onnx.defs.SchemaError:  # it is newer
            continue
        count = schema.min_input if schema.min_input == schema.max_input else max(schema.min_input, 1)
        counts = {count, 3} if schema.max_input > 3 else {count}
        if schema.deprecated or not 1 <= count <= 3 or name in _OF_AXES | _RANDOM:
            continue
        for each in sorted(counts):
            if is_elementwise(name, each):
                yield name, "", each
    for name in CONTRIB:
        yield name, "com.microsoft", 2 if name == "BiasGelu" else 1
    yield "FastGelu", "com.microsoft", 2


ELEMENTWISE = tuple(list_elementwise())


def test_the_operators_are_found() -> None:
    found = {name for name, _, _ in ELEMENTWISE}
    assert {"Cos", "Sin", "Sum", "PRelu", "Pow", "Clip", "Mod", "Where", "Shrink"} <= found
    assert len(found) > 50


@pytest.mark.parametrize(("operator", "domain", "count"), ELEMENTWISE)
def test_what_an_operator_computes_is_within_its_bounds(operator: str, domain: str, count: int) -> None:
    bounded = 0
    for low, high in INTERVALS:
        model = make_model(operator, domain, count, low, high)
        found = find_bounds(model, Zone.of({0: Part.rest}))
        if found is None:
            continue
        bounded += 1
        values = compute(model, low, high).astype(np.float64)
        room = 1e-5 * max(1.0, np.abs(values[np.isfinite(values)]).max(initial=0.0))
        assert not np.isnan(values).any()
        assert found.low - room <= values.min()
        assert values.max() <= found.high + room
    assert bool(bounded) != (operator in WITHOUT_A_RULE)


@pytest.mark.parametrize("operator", ["Cos", "Sin", "Softsign", "Gelu", "HardSwish", "Mish"])
def test_infinity_that_becomes_nan_is_not_bounded(operator: str) -> None:
    body = f"m = Cast<to = 9>(i) x = Where(m, low, high) y = {operator}(x)"
    ends = "<float low = {-inf}, float high = {1}>"
    model = parse(f"g (int32[n] i) => (float[n] y) {ends} {{ {body} }}", opset=22)
    assert find_bounds(model, Zone.of({0: Part.rest})) is None
    assert find_bounds(model, UNPADDED) is not None


def test_whole_numbers_are_bounded_by_their_type() -> None:
    model = parse("g (float[n, 4] x) => (int64[n] y) { y = ArgMax<axis = 1, keepdims = 0>(x) }")
    assert find_bounds(model, Zone.of({0: Part.rest})) == Interval(-(2.0**63), 2.0**63)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("y = Tan(x)", "nothing bounds the input 'x' there"),
        ("c = Cast<to = 1>(i) y = Tan(c)", "nothing bounds what Tan makes there ('y')"),
        ("c = Cast<to = 1>(i) t = Tan(c) y = Add(t, c)", "nothing bounds what Tan makes there ('t')"),
        ("c = Cast<to = 1>(i) t = CumSum(c, z) y = Abs(t)", "no rule bounds what CumSum makes ('t')"),
    ],
)
def test_the_node_where_bounds_are_lost_is_named(body: str, sentence: str) -> None:
    model = parse(f"g (int32[n] i, float[n] x) => (float[n] y) <int64 z = {{0}}> {{ {body} }}", opset=22)
    graph = PaddedGraph(prepare_model(model, "m", None), {"n": 8})
    bounds, zone = ValueBounds(graph, Assumptions({}, {}), (), ()), Zone.of({0: Part.rest})
    assert bounds.find("y", zone) is None
    assert bounds.describe_loss("y", zone) == sentence
