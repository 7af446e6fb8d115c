"""What regions compute in: what each target can, what was asked for, and what there is to go by."""

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.calibrating import inputs, wide_inputs, wide_network
from helpers.support import VANILLA, parse

from byoc.errors import InputError
from byoc.model import Model, is_inserted, prepare_model
from byoc.pipeline import (
    PLANNING,
    MeetBudget,
    Options,
    PlanVariant,
    Prepared,
    Request,
    partition,
    prepare_variants,
    take,
)
from byoc.quantization import (
    Budget,
    ChosenPrecision,
    Precision,
    Range,
    Ranges,
    UnitPrecisions,
    calibrate,
    choose_precision,
    has_float_mode,
)
from byoc.rules import load_rules
from byoc.support import Note, show_progress

NEEDS = "needs the ranges of tensors (--calibration FILE, or --data FOLDER to measure them)"
ALONE = (
    "ethos-u55 computes in integers alone, and floating point stays on the host: give the ranges of "
    "tensors (--calibration FILE, or --data FOLDER to measure them)"
)
HALF = """target: half
cost_model: dla
dtype: [float32, float16]
ops: [{op: [Conv, Relu, MatMul]}]
"""


@pytest.fixture
def ranges(net: Model) -> Ranges:
    return calibrate(net, inputs(4), method="minmax")


def concluded(net: Model, *rules: str | Path, **wanted: Any) -> ChosenPrecision:
    targets = [load_rules(str(name)) for name in rules]
    return choose_precision(net, targets, Precision(**wanted))


def ours(found: ChosenPrecision) -> int:
    return sum(map(is_inserted, found.model.index.nodes))


def test_a_target_with_a_float_mode_stays_in_it(net: Model, ranges: Ranges) -> None:
    found = concluded(net, VANILLA)
    assert (found.model, found.float_model, found.notes) == (net, None, ())
    found = concluded(net, VANILLA, calibration=ranges)
    assert found.model is net
    assert tuple(map(str, found.notes)) == (
        "--calibration is not used: all targets compute in floating point (--quantize int8)",
    )
    assert concluded(net, VANILLA, data="random").notes[0].text.startswith("--data is not used: ")


def test_which_targets_have_a_float_mode() -> None:
    modes = {name: has_float_mode(load_rules(name)) for name in ("dla", "ethos-u55", "nnpa")}
    assert modes == {"dla": True, "ethos-u55": False, "nnpa": True}


def test_integers_alone_without_data_is_told(net: Model) -> None:
    found = concluded(net, "ethos-u55")
    assert (found.model, found.notes) == (net, (Note("note", ALONE),))
    with pytest.raises(InputError) as error:
        concluded(net, "ethos-u55", quantize="int8")
    assert str(error.value) == f"quantize int8: ethos-u55 {NEEDS}"


def test_integers_alone_with_ranges_are_quantized_unasked(net: Model, ranges: Ranges) -> None:
    found = concluded(net, "ethos-u55", calibration=ranges)
    assert found.float_model is not None
    assert {"p", "s"} <= {node for nodes in found.units.values() for node in nodes}
    assert ours(found) > 0


def test_asked_for_a_float_target_is_quantized(net: Model, ranges: Ranges) -> None:
    found = concluded(net, VANILLA, quantize="int8", calibration=ranges)
    assert set(found.units) >= {"r", "p", "f"}
    assert ours(found) >= 2 * len(found.units)


def test_of_two_targets_the_integer_one_alone_is_unless_asked(net: Model, ranges: Ranges) -> None:
    """`Sigmoid` of the network is taken quantized by ethos-u55 and by no rule of dla."""
    unasked = concluded(net, VANILLA, "ethos-u55", calibration=ranges)
    alone = concluded(net, "ethos-u55", calibration=ranges)
    asked = concluded(net, VANILLA, "ethos-u55", calibration=ranges, quantize="int8")
    assert dict(unasked.units) == dict(alone.units)
    assert set(asked.units) >= set(concluded(net, VANILLA, calibration=ranges, quantize="int8").units)


def test_what_the_user_quantized_passes_untouched() -> None:
    proto = parse("""g (float[1, 4] x) => (float[1, 4] y)
        <float s = {0.1}, int8 z = {0}> {
        q = QuantizeLinear(x, s, z)
        d = DequantizeLinear(q, s, z)
        r = Relu(d)
        p = QuantizeLinear(r, s, z)
        y = DequantizeLinear(p, s, z)
    }""")
    model = prepare_model(proto, "qdq.onnx")
    found = concluded(model, "ethos-u55")
    assert (found.model, found.notes) == (model, ())
    known = Ranges("minmax", 1, "data", {name: Range(-1.0, 1.0) for name in "xdry"})
    found = concluded(model, "ethos-u55", calibration=known)
    assert [n.op_type for n in found.model.index.nodes] == [n.op_type for n in model.index.nodes]
    assert ours(found) == 0
    assert any("is quantized already" in note.text for note in found.notes)
    assert found.notes[-1].text == "nothing is quantized"


def test_float16_for_the_one_of_two_that_has_it(net: Model, tmp_path: Path) -> None:
    (tmp_path / "half.yaml").write_text(HALF)
    found = concluded(net, VANILLA, tmp_path / "half.yaml", quantize="float16")
    assert [target.compute_dtype for target in found.targets] == [None, "float16"]
    assert (found.model, found.notes) == (net, ())
    with pytest.raises(InputError, match=f"^{re.escape(str(VANILLA))}: dtype: no rule is for float16; "):
        concluded(net, VANILLA, quantize="float16")
    notes = concluded(net, tmp_path / "half.yaml", quantize="float16", data="random").notes
    assert [note.text for note in notes] == ["--data is not used: float16 needs no scales"]


def test_float16_for_two_that_do_not_have_it(net: Model) -> None:
    with pytest.raises(InputError, match="float16"):
        concluded(net, VANILLA, "ethos-u55", quantize="float16")


def test_a_dtype_that_the_target_does_not_have(net: Model, ranges: Ranges) -> None:
    with pytest.raises(InputError) as error:
        concluded(net, VANILLA, quantize="uint8", calibration=ranges)
    assert str(error.value) == (
        f"{VANILLA}: quantization.activations.dtype: uint8 is not supported; supported: int8"
    )


def test_targets_without_rules_for_integers(net: Model, ranges: Ranges) -> None:
    with pytest.raises(InputError) as error:
        concluded(net, "nnpa", quantize="int8", calibration=ranges)
    assert str(error.value) == (
        "nnpa: no rule has `quantized: true`, so nothing can be quantized: leave --quantize int8 out, "
        "or name rules for integers, such as dla or ethos-u55"
    )


def test_a_dtype_that_nothing_computes_in() -> None:
    with pytest.raises(InputError, match=r"^quantize: int4 is not among int8, uint8, int16, uint16, "):
        Precision(quantize="int4")


def test_made_up_data_is_warned_of(net: Model) -> None:
    found = concluded(net, VANILLA, quantize="int8", data="random")
    assert str(found.notes[0]).startswith("warning: the scales are concluded from random data")


@pytest.mark.parametrize(("count", "told"), [(1, "1 sample"), (3, "3 samples"), (4, "")])
def test_few_samples_are_warned_of(net: Model, count: int, told: str) -> None:
    ranges = calibrate(net, inputs(count), method="minmax")
    found = concluded(net, VANILLA, quantize="int8", calibration=ranges)
    warnings = [str(note) for note in found.notes if note.severity == "warning"]
    expected = f"warning: the scales are concluded from {told}: values beyond theirs are clipped"
    assert warnings == ([expected] if told else [])


def test_the_file_of_another_model(net: Model, tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_text("tensors:\n" + "".join(f"  t{i}: {{low: 0, high: 1}}\n" for i in range(9)))
    with pytest.raises(InputError) as error:
        concluded(net, VANILLA, quantize="int8", calibration=path)
    assert str(error.value) == (
        f"{path}: tensors: the model has none of them; are they those of another model?"
    )


def test_a_file_that_has_no_more_than_the_input(net: Model, tmp_path: Path) -> None:
    path = tmp_path / "few.yaml"
    path.write_text("tensors: {x: {low: -1, high: 1}}\n")
    found = concluded(net, VANILLA, quantize="int8", calibration=path)
    assert found.notes[-1].text == "nothing is quantized"
    assert any("has no range" in note.text for note in found.notes)


def ran(model: onnx.ModelProto, **wanted: Any) -> Any:
    options: dict[str, Any] = {"strategy": "all-supported", "precision": Precision(**wanted)}
    return partition(model, VANILLA, **options)


def test_a_budget_leaves_out_what_it_takes(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number, sample in enumerate(wide_inputs(6)):
        np.savez(data / f"{number}.npz", **sample)
    model = wide_network()
    whole = ran(model, quantize="int8", data=data).plan.lowered
    assert whole is not None
    assert (whole.units, whole.source, whole.samples, whole.random) == (6, "data", 6, False)
    budget = Budget("dB", 0)
    easy = ran(model, quantize="int8", data=data, budget=budget).plan.lowered
    assert (easy.in_float, easy.reached) == ((), easy.all_quantized)
    budget = Budget("dB", round(easy.reached) + 3)
    steps: list[str] = []
    with show_progress(steps.append):
        found = ran(model, quantize="int8", data=data, budget=budget)
    plans = [step for step in steps if step.startswith("accuracy of plan ")]
    assert plans[0] == "accuracy of plan 1 for the budget, 0 of 6 units in floating point"
    assert plans[1] == "accuracy of plan 2 for the budget, 6 of 6 units in floating point"
    told = found.plan.lowered
    assert told.reached >= budget.least > told.all_quantized == easy.all_quantized
    assert 0 < len(told.in_float) <= whole.units
    floats = ran(model, quantize="int8", data=data, budget=Budget("dB", 90))
    assert found.plan.cost.total <= floats.plan.cost.total
    assert told.units == whole.units - len(told.in_float)
    assert [unit.alone for unit in told.in_float] == sorted(unit.alone for unit in told.in_float)
    document = found.report.precision
    assert document.budget == str(budget)
    assert [unit.unit for unit in document.in_float] == [unit.unit for unit in told.in_float]
    assert {unit.device for unit in document.in_float} <= {"dla", "host"}


def test_a_budget_without_samples_or_without_integers(net: Model, ranges: Ranges) -> None:
    budget = Budget("dB", 30)
    with pytest.raises(InputError, match=r"^accuracy budget 30dB: it is measured on samples \(--data"):
        ran(net.proto, quantize="int8", calibration=ranges, budget=budget)
    with pytest.raises(InputError, match=r"^accuracy budget 30dB: nothing is quantized \(--quantize\)$"):
        ran(net.proto, data="random", budget=budget)


def test_budgets_are_met_at_the_least_cost_of_all_plans(tmp_path: Path) -> None:
    for number, sample in enumerate(wide_inputs(4)):
        np.savez(tmp_path / f"{number}.npz", **sample)
    precision = Precision("int8", data=tmp_path, budget=Budget("dB", 45))
    options = Options(VANILLA, precision=precision, what_if=False)
    (state,) = prepare_variants(Request(wide_network(), options))
    units = [*state.precision.units]
    assert state.accuracy_test is not None
    budget = MeetBudget(state.accuracy_test, PLANNING)
    every = [
        budget.try_precisions(state, UnitPrecisions(frozenset(left)))
        for count in range(len(units) + 1)
        for left in combinations(units, count)
    ]
    met = budget.run(state)
    trade = met.plan.lowered.trade
    after_refusal = budget.run(Prepared(**take(Prepared, met)))
    assert after_refusal.plan.lowered.trade == trade
    assert after_refusal.plan.lowered.in_float == met.plan.lowered.in_float
    assert [point.seconds for point in trade] == sorted(point.seconds for point in trade)
    for least in range(30, 46):
        costs = [
            each.planned.plan.cost.total for each in every if each.accuracy.signal_to_noise >= least
        ]
        found = next(point.seconds for point in trade if point.reached >= least)
        assert found <= 1.05 * min(costs), least


def test_a_network_of_one_unit_meets_a_budget(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    for number in range(4):
        np.savez(tmp_path / f"{number}.npz", x=random.normal(size=(1, 8, 8, 8)).astype(np.float32))
    model = parse("g (float[1, 8, 8, 8] x) => (float[1, 8, 8, 8] y) { c = Conv(x, w) y = Relu(c) }")
    weights = random.normal(size=(8, 8, 1, 1)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    precision = Precision("int8", data=tmp_path, budget=Budget("dB", 20))
    options = Options("dla", precision=precision, strategy="all-supported")
    (state,) = prepare_variants(Request(prepare_model(model, "one"), options))
    assert state.precision.units == {"y": ("c", "y")}
    met = PlanVariant().run(state)
    (point,) = met.plan.lowered.trade
    assert point.in_float == ("y",), "it costs less without conversions"
    assert met.findings.budget.accuracy.signal_to_noise == np.inf
