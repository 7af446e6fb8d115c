"""Parts of comparing: minimal wrong parts, errors of layers, float twins, samples of special values."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil, isqrt, log2, prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import vendors
from helpers.cutting import UNLIKE, cut
from helpers.faulty import faulty  # noqa: F401 - a fixture
from helpers.skewed import skewed  # noqa: F401 - a fixture
from helpers.support import parse
from hypothesis import given
from hypothesis import strategies as st
from interpreting import NEVER, bundle_of, interpreter, right
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper, save

from byoc.codegen import Region, read_region
from byoc.errors import InputError
from byoc.model import GraphIndex, prepare_model, to_numpy_dtype
from byoc.reporting import make_full_verification_report
from byoc.rules import Arithmetic, ArithmeticContract
from byoc.verification import (
    DEFAULT_THRESHOLDS,
    _bundle_runs,
    _layer_probe,
    _special_check,
    compare_unit,
    run_plain,
    verify_against,
)
from byoc.verification._bundle_runs import vary_inputs
from byoc.verification._layer_probe import LayerRun, QuantizedLayer
from byoc.verification._part_trials import (
    NotTried,
    TrialBench,
    TrialOutcome,
    find_shortest_wrong,
    minimize_wrong,
)
from byoc.verification._quantization_noise import has_quantized_activations, run_float_twin
from byoc.verification._special_samples import make_empty_sample, make_special_samples
from byoc.verification._special_traits import SpecialTraits

Values = Mapping[str, Any]
OFF, AGREES, UNKNOWN = TrialOutcome.WRONG, TrialOutcome.RIGHT, TrialOutcome.UNKNOWN


def test_trials_on_earlier_inputs_are_counted() -> None:
    cutting: Any = SimpleNamespace(make_part=lambda operations: None)
    compiler: Any = None
    bench = TrialBench(cutting, compiler, DEFAULT_THRESHOLDS)
    assert isinstance(bench.try_operations([1]), NotTried)
    assert bench.try_outcome([1]) is bench.try_outcome([2]) is UNKNOWN
    moved = bench.move_to(cutting)
    assert moved.try_outcome([1]) is UNKNOWN
    assert (bench.count, moved.count, moved.move_to(cutting).count) == (2, 3, 3)


@given(st.integers(1, 200), st.data())
def test_the_earliest_prefix_in_few_tries(count: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(1, count))
    tried = []

    def trial(length: int) -> TrialOutcome:
        tried.append(length)
        return OFF if length >= first else AGREES

    assert find_shortest_wrong(count, trial) == first
    assert len(tried) <= ceil(log2(count)) + 1 if count > 1 else not tried
    assert len({*tried}) == len(tried)
    assert all(0 < length < count for length in tried)


@given(st.lists(st.sampled_from([OFF, AGREES, UNKNOWN]), min_size=1, max_size=30))
def test_whatever_is_known_a_change_from_right_to_off_is_found(outcomes: list[TrialOutcome]) -> None:
    outcomes[-1] = OFF
    found = find_shortest_wrong(len(outcomes), lambda length: outcomes[length - 1])
    assert outcomes[found - 1] is OFF
    before = [outcome for outcome in outcomes[: found - 1] if outcome is not UNKNOWN]
    assert not before or before[-1] is AGREES


@given(
    st.integers(1, 40).flatmap(
        lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1, max_size=4))
    )
)
def test_what_is_off_only_together_is_all_that_is_left(case: tuple[int, set[int]]) -> None:
    count, needed = case
    found = minimize_wrong(range(count), lambda items: OFF if needed <= {*items} else AGREES)
    assert found == sorted(needed)


@given(st.integers(1, 12), st.randoms(use_true_random=False))
def test_what_is_left_is_off_and_nothing_of_it_can_go(count: int, random: object) -> None:
    """Whatever outcome each set has, so that ddmin's promise holds though nothing is monotone."""
    told: dict[tuple[int, ...], TrialOutcome] = {tuple(range(count)): OFF}

    def trial(items: Sequence[int]) -> TrialOutcome:
        return told.setdefault(tuple(items), random.choice([OFF, AGREES, UNKNOWN]))  # type: ignore[attr-defined]

    found = minimize_wrong(range(count), trial)
    assert told[tuple(found)] is OFF
    assert found == sorted(found)
    if len(found) > 1:
        assert all(told[(*found[:i], *found[i + 1 :])] is not OFF for i in range(len(found)))


@pytest.mark.parametrize("table", [1, 2**22])
def test_many_results_of_one_real_value_count_as_one(
    table: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page is mostly white, and a right machine rounds all of that to the other integer."""
    monkeypatch.setattr(_layer_probe, "_TABLE", table)
    random = np.random.default_rng(0)
    real = random.uniform(-100, 100, (1, 3, 40, 40))
    real[:, 1, 12:] = 7.49

    white = measure_rounded(real, real + 0.02)
    assert white.within
    assert white.differing > 0.2
    shifted = real.copy()
    shifted[:, 1] += 0.3
    found = measure_rounded(real, shifted)
    assert not found.within
    assert found.where == "channel 1"
    assert found.mean == pytest.approx(0.3, abs=0.1)


def measure_rounded(real: np.ndarray, moved: np.ndarray) -> _layer_probe.LayerError:
    """Return the error of a machine that rounds other values than the real ones."""
    run = LayerRun(np.rint(moved).astype(np.int8), np.rint(real).astype(np.int8), real)
    return _layer_probe.measure_layer(QuantizedLayer("y", "conv", "Conv"), [run], 1.0)


def test_results_just_below_a_half_may_all_be_rounded_up() -> None:
    """The mean of two integers is a half or whole, and a scale moves all halves to one side."""
    random = np.random.default_rng(0)
    real = np.concatenate(
        [random.integers(-160, 160, (1, 500, 1, 1)) / 2, np.full((1, 24, 1, 1), 80.25)], 1
    )
    real -= random.uniform(0.002, 0.004, real.shape)
    rough = measure_rounded(real, real + random.uniform(-0.03, 0.03, real.shape))
    assert rough.within
    assert rough.differing > 0.2
    lower = measure_rounded(real, np.where(random.uniform(size=real.shape) < 0.5, real - 0.6, real))
    assert lower.largest == 1
    assert not lower.within
    far = real - 0.25  # an error of an eighth before rounding moves none of these
    assert not measure_rounded(
        far, np.where(random.uniform(size=far.shape) < 0.8, far + 0.4, far)
    ).within


@pytest.mark.parametrize(("axis", "index", "where"), [(2, 0, "first"), (3, -1, "last")])
def test_an_edge_that_is_off_on_average_is_found(axis: int, index: int, where: str) -> None:
    """Padding with another number than the zero point moves the edges of an image alone."""
    real = np.random.default_rng(0).uniform(-100, 100, (1, 3, 300, 300))
    moved = real.copy()
    np.moveaxis(moved[:, 1], axis - 1, 0)[index] += 0.4
    found = measure_rounded(real, moved)
    assert not found.within
    assert found.where == f"channel 1, {where} index of axis {axis},"
    assert "channel 1, " in str(found)
    assert measure_rounded(real, real + 0.05).within


def test_what_stays_uncompared_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_bundle_runs, "run_alone", lambda region: iter(()))
    vendors.install(monkeypatch, wrong=interpreter(right))
    inputs = {"x": np.array([[-2, -1, 0.5, 1]], np.float32)}

    found = verify_against(bundle_of(parse(NEVER), tmp_path).folder, inputs=inputs, regions=True)

    assert (found.reach.not_reached, found.reach.alone, found.reach.never) == (1, 0, 1)
    assert found.passed, "nothing was off"
    report = make_full_verification_report(found).to_json()
    counts = {"regions": 2, "not_reached": 1, "others": 0, "alone": 0, "never": 1, "too_large": 0}
    assert report["reach"] == counts


def test_inputs_are_varied_one_by_one_and_all_at_once() -> None:
    given = {"a": np.array(True), "n": np.array([0]), "x": np.zeros(2, np.float32), "i": np.arange(3)}
    model: Any = None
    varied = [(bool(v["a"]), int(v["n"][0])) for v in vary_inputs(model, given, seeded=False)]
    assert varied == [(False, 3), (False, 0), (True, 3)]


ASKED = {
    "Relu": "(float[4, 8] x) => (float[4, 8] y) { y = Relu(x) }",
    "cast to whole": "(float[4, 8] x) => (int32[4, 8] y) { y = Cast<to: int = 6>(x) }",
    "looks up": (
        "(int64[3] x) => (float[3, 2] y) <float[4, 2] t = {1, 2, 3, 4, 5, 6, 7, 8}> { y = Gather(t, x) }"
    ),
    "looks up behind a sum": (
        "(int64[3] x) => (float[3, 2] y) <float[5, 2] t = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, "
        "int64 one = {1}> { a = Add(x, one) y = Gather(t, a) }"
    ),
    "divides by a sum": (
        "(int32[4, 8] x, int32[4, 8] z) => (int32[4, 8] y) { a = Mul(z, z) y = Div(x, a) }"
    ),
    "product": (
        "(float[2, 3] x) => (float[2, 2] y) "
        "<float[3, 2] w = {1, -2, 0.5, 3, 0.25, -1}> { a = MatMul(x, w) y = Relu(a) }"
    ),
}


def traits_of(text: str) -> SpecialTraits:
    return SpecialTraits(GraphIndex.of_model(parse(f"g {text}", opset=20)))


def list_kinds(text: str, **base: np.ndarray) -> list[str]:
    samples = make_special_samples(
        traits_of(text), base, Arithmetic(), lambda name, value: (-np.inf, np.inf)
    )
    return list(dict.fromkeys(sample.kind for sample in samples))


def test_which_kinds_of_values_are_asked() -> None:
    x = np.ones((4, 8), np.float32)
    assert list_kinds(ASKED["Relu"], x=x) == ["ends", "nan", "infinities"]
    assert list_kinds(ASKED["product"], x=np.ones((2, 3), np.float32)) == ["nan"]
    assert list_kinds(ASKED["cast to whole"], x=x) == ["ends"]
    assert list_kinds(ASKED["looks up"], x=np.array([0, 1, 2])) == []
    assert list_kinds(ASKED["looks up behind a sum"], x=np.array([0, 1, 2])) == []
    assert list_kinds(
        ASKED["divides by a sum"], x=np.ones((4, 8), np.int32), z=np.ones((4, 8), np.int32)
    ) == ["ends"]


def test_divisors_are_neither_0_nor_minus_1() -> None:
    text = "(int32[9] x, int32[9] z) => (int32[9] y) { y = Div(x, z) }"
    ones = np.ones(9, np.int32)
    samples = [
        sample.inputs
        for sample in make_special_samples(
            traits_of(text), {"x": ones, "z": ones}, Arithmetic(), lambda name, value: (-np.inf, np.inf)
        )
    ]
    divisors = np.concatenate([inputs["z"] for inputs in samples])
    assert not np.isin(divisors, (0, -1)).any()
    assert (np.concatenate([inputs["x"] for inputs in samples]) < 0).any()


def test_values_stay_within_what_is_exact_and_what_an_input_can_be() -> None:
    text = "(int64[64] x) => (int64[64] y) { y = Neg(x) }"
    base = {"x": np.zeros(64, np.int64)}
    bounded = make_special_samples(
        traits_of(text), base, Arithmetic(exact_below=1000), lambda name, value: (-np.inf, np.inf)
    )
    assert max(np.abs(sample.inputs["x"]).max() for sample in bounded) == 1000
    ranged = make_special_samples(traits_of(text), base, Arithmetic(), lambda name, value: (3, 9))
    assert {*np.concatenate([sample.inputs["x"] for sample in ranged]).tolist()} == {3, 4, 7, 8, 9}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("computes", ["float32", "bfloat16", "float16", ""])
def test_finite_values_are_finite_in_what_a_target_computes_in(dtype: str, computes: str) -> None:
    kind = to_numpy_dtype(dtype)
    base = {"x": np.ones(4000).astype(kind)}
    name = {"float32": "float", "float64": "double"}.get(dtype, dtype)
    samples = make_special_samples(
        traits_of(f"({name}[4000] x) => ({name}[4000] y) {{ y = Neg(x) }}"),
        base,
        Arithmetic(computes=computes),
        lambda name, value: (-np.inf, np.inf),
    )
    ends = [sample.inputs["x"] for sample in samples if sample.kind == "ends"]
    made = [each.astype(to_numpy_dtype(computes or dtype)).astype(np.float64) for each in ends]
    assert made
    assert all(np.isfinite(each).all() for each in made)


def test_keys_that_are_equal_in_what_a_target_computes_in_may_be_selected_in_any_order() -> None:
    keys = {"x": np.array([1, 1 + 2.0**-20, 0.5], np.float32)}
    text = "(float[3] x) => (int64[1] y) { y = ArgMax<axis = 0>(x) }"
    expected, actual = {"y": np.array([1])}, {"y": np.array([0])}
    for computes, equal_keys, same in (
        ("float16", "any", True),
        ("float16", "first", False),
        ("", "any", False),
    ):
        run = _special_check.SpecialRun(
            "ends",
            traits_of(text),
            lambda values: expected,
            keys,
            Arithmetic(computes=computes, equal_keys=equal_keys),
            DEFAULT_THRESHOLDS,
            frozenset(),
        )
        errors, allowed = run.compare(expected, actual)
        assert all(error.within for error in errors) is same
        assert bool(allowed) is same


REDUCTIONS = {
    "ReduceL1": lambda row: sum(map(abs, row)),
    "ReduceL2": lambda row: isqrt(sum(each * each for each in row)),
    "ReduceMean": lambda row: int(Fraction(sum(row), len(row))),
    "ReduceProd": prod,
    "ReduceSum": sum,
    "ReduceSumSquare": lambda row: sum(each * each for each in row),
}
"""What operators make of a row of whole numbers, exactly."""


@pytest.mark.parametrize("beyond", ["saturates", "wraps"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("op", REDUCTIONS)
def test_whole_numbers_are_reduced_exactly_and_what_is_beyond_their_type_is_open(
    op: str, dtype: str, beyond: str, tmp_path: Path
) -> None:
    axes = (
        "y = ReduceSum<keepdims = 0>(x, axes)"
        if op == "ReduceSum"
        else f"y = {op}<axes = [1], keepdims = 0>(x)"
    )
    text = f"g ({dtype}[4, 5] x) => ({dtype}[4] y) <int64[1] axes = {{1}}> {{ {axes} }}"
    save(parse(text, opset=13), tmp_path / "model.onnx")
    region = read_region(tmp_path / "model.onnx", "npu_0", "npu")
    ends = np.iinfo(dtype)

    def hold(value: int) -> int:
        if beyond == "saturates":
            return min(max(value, ends.min), ends.max)
        return (value - ends.min) % 2**ends.bits + ends.min

    def exact(inputs: Values) -> Values:
        return {"y": np.array([hold(REDUCTIONS[op](row)) for row in inputs["x"].tolist()], dtype)}

    def in_float32(inputs: Values) -> Values:
        rounded = [int(np.float32(each)) for each in exact(inputs)["y"].tolist()]
        return {"y": np.array([hold(each) for each in rounded], dtype)}

    def off_by_one(inputs: Values) -> Values:
        return {"y": exact(inputs)["y"] + np.asarray(1, dtype)}

    def judge(run: Any) -> bool:
        compared, _ = compare_unit(region, run, ArithmeticContract(()), lambda *_: (-np.inf, np.inf))
        return compared.within

    assert judge(exact)
    assert not judge(off_by_one)
    assert op in {"ReduceL1", "ReduceL2", "ReduceMean"} or not judge(in_float32)


def test_open_extents_are_0_in_one_sample() -> None:
    base = {"x": np.zeros((2, 3), np.float32), "z": np.zeros(3, np.float32)}
    sample = make_empty_sample({"x": ("n", 3), "z": (3,)}, base)
    assert sample is not None
    assert {name: value.shape for name, value in sample.inputs.items()} == {"x": (0, 3), "z": (3,)}
    assert make_empty_sample({"x": (2, 3), "z": (3,)}, base) is None


Array = NDArray[Any]


X = {"x": np.random.default_rng(0).standard_normal((1, 64)).astype(np.float32)}


def dense(weight: Array, quantized: bool) -> ModelProto:
    """Two layers of 64 numbers with int8 weights, the activations int8 as well where `quantized`."""
    stored = {
        "w": weight,
        "ws": np.array(0.01, np.float32),
        "s": np.array(0.05, np.float32),
        "t": np.array(0.03, np.float32),
        "z": np.array(0, np.int8),
    }
    nodes = [helper.make_node("DequantizeLinear", ["w", "ws", "z"], ["wd"])]
    read = "x"
    for layer, made in enumerate(("a", "y")):
        if quantized:
            scale = "t" if layer else "s"
            nodes += [
                helper.make_node("QuantizeLinear", [read, scale, "z"], [f"q{layer}"]),
                helper.make_node("DequantizeLinear", [f"q{layer}", scale, "z"], [f"d{layer}"]),
            ]
            read = f"d{layer}"
        nodes.append(helper.make_node("MatMul", [read, "wd"], [made]))
        read = made
    shape = [1, 64]
    graph = helper.make_graph(
        nodes,
        "dense",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(value, name) for name, value in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


WEIGHT = np.random.default_rng(1).integers(-40, 40, (64, 64)).astype(np.int8)


def test_the_float_twin_is_the_network_without_rounding() -> None:
    twin = run_float_twin(dense(WEIGHT, quantized=True), None, X)["y"]
    weight = WEIGHT.astype(np.float64) * 0.01
    clamped = np.clip(X["x"].astype(np.float64), -128 * 0.05, 127 * 0.05)
    hidden = np.clip(clamped @ weight, -128 * 0.03, 127 * 0.03)
    np.testing.assert_allclose(twin, hidden @ weight, rtol=1e-4, atol=1e-4)


DYNAMIC = {
    "MatMulInteger": "float[1, 64] x) => (float[1, 16] y",
    "ConvInteger": "float[1, 4, 4, 4] x) => (float[1, 16, 4, 4] y",
}


def dynamic(op: str, per_channel: bool, further: str = "") -> ModelProto:
    """Return a network whose activations are quantized as it runs, with weights of uint8."""
    count = 16 if per_channel else 1
    shape = [16, 4, 1, 1] if op == "ConvInteger" else [64, 16]
    proto = parse(
        f"g ({DYNAMIC[op]}) {{ q, s, z = DynamicQuantizeLinear(x) p = {op}(q, w, z, wz)"
        f" f = Cast<to = 1>(p) y = Mul(f, s) {further} }}"
    )
    generator = np.random.default_rng(4)
    stored = {
        "w": generator.integers(0, 256, shape).astype(np.uint8),
        "wz": generator.integers(100, 140, [count] if count > 1 else []).astype(np.uint8),
    }
    for name, value in stored.items():
        proto.graph.initializer.append(numpy_helper.from_array(value, name))
    return proto


@pytest.mark.parametrize(
    ("op", "per_channel"), [("ConvInteger", False), ("MatMulInteger", False), ("MatMulInteger", True)]
)
def test_the_float_twin_does_not_round_what_is_quantized_as_it_runs(op: str, per_channel: bool) -> None:
    proto = dynamic(op, per_channel)
    stored = {
        each.name: numpy_helper.to_array(each).astype(np.float64) for each in proto.graph.initializer
    }
    x = X["x"].reshape([1, 4, 4, 4] if op == "ConvInteger" else [1, 64])
    weights = stored["w"] - stored["wz"]

    twin = run_float_twin(proto, None, {"x": x})["y"]

    line = "oi,nihw->nohw" if op == "ConvInteger" else "io,ni->no"
    exact = np.einsum(line, weights.reshape(weights.shape[:2]), x.astype(np.float64))
    np.testing.assert_allclose(twin, exact, rtol=1e-4, atol=1e-2)
    rounded = run_plain(proto, prepare_model(proto, "dynamic"), {"x": x})["y"]
    assert 1.0 < np.max(np.abs(rounded - exact)) < 100.0  # of sums of up to some thousands


def test_the_float_twin_does_not_round_what_a_dequantize_linear_reads() -> None:
    proto = parse(
        "g (float[1,64] x) => (float[1,64] y) { q, s, z = DynamicQuantizeLinear(x)"
        " y = DequantizeLinear(q, s, z) }"
    )
    x = X["x"].reshape(1, 64)

    twin = run_float_twin(proto, None, {"x": x})["y"]

    np.testing.assert_allclose(twin, x, rtol=1e-4, atol=1e-5)
    assert np.abs(run_plain(proto, prepare_model(proto, "dynamic"), {"x": x})["y"] - x).max() > 1e-4


def test_the_float_twin_of_operators_of_integers_is_that_of_their_qdq_groups() -> None:
    text = """g (float[1, 64] x) => (float[1, 16] y)
        <float s = {0.05}, int8 z = {3}, float ws = {0.01}, int8 wz = {0}, float t = {0.2}> {
        q = QuantizeLinear(x, s, z) p = QLinearMatMul(q, s, z, w, ws, wz, t, z)
        y = DequantizeLinear(p, t, z) }"""
    proto = parse(text)
    weights = np.random.default_rng(4).integers(-127, 128, (64, 16)).astype(np.int8)
    proto.graph.initializer.append(numpy_helper.from_array(weights, "w"))

    twin = run_float_twin(proto, None, X)["y"]

    exact = np.clip(X["x"].astype(np.float64), -131 * 0.05, 124 * 0.05) @ (weights * 0.01)
    np.testing.assert_allclose(twin, exact, rtol=1e-4, atol=1e-4)


def test_integers_that_something_else_reads_are_rounded_in_the_twin_too() -> None:
    proto = dynamic("MatMulInteger", False, "other = Cast<to = 1>(q)")
    proto.graph.output.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, [1, 64]))
    assert run_float_twin(proto, None, X) == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)", True),
        ("w = DequantizeLinear(z, s) y = Mul(x, w)", False),
        ("a, b, c = DynamicQuantizeLinear(x) y = DequantizeLinear(a, b, c)", True),
        ("q = QuantizeLinear(s, s, z) w = DequantizeLinear(q, s, z) y = Mul(x, w)", False),
        ("y = Relu(x)", False),
    ],
)
def test_quantized_weights_alone_are_no_quantized_activations(text: str, expected: bool) -> None:
    head = "g (float[1, 4] x) => (float[1, 4] y) <float s = {0.1}, uint8 z = {3}>"
    assert has_quantized_activations(parse(f"{head} {{ {text} }}")) is expected


@pytest.mark.usefixtures("faulty")
def test_a_region_that_nothing_runs_is_kept_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(region: Region) -> None:
        raise InputError("no such operator")

    monkeypatch.setattr(_bundle_runs, "make_reference_executor", refuse)
    result = cut(parse(UNLIKE), tmp_path / "b", codegen="faulty", codegen_options={"fault": "elsewhere"})
    assert result.report.not_verified == (
        "dla_0 cannot run on this machine: there is no board; otherwise: no such operator"
    )
    assert result.report.verification_missing
    assert result.report.nodes.offloaded == 2
