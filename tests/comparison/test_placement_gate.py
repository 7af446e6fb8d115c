"""`byoc diff --only-worse`: what got worse is named with its numbers, and nothing else trips it."""

import json
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
import yaml
from helpers.calibrating import wide_inputs, wide_network
from helpers.support import VANILLA, Ran, parse
from test_placement_diff import NET, planned, rules

import byoc
from byoc import Precision, calibrate, diff, partition
from byoc.comparison import PlacementDiff
from byoc.errors import InputError, RequirementError

DLA_COSTS = Path(__file__).parents[2] / "cost_models" / "dla.yaml"


def outcomes(found: PlacementDiff, **tolerances: float) -> dict[str, str]:
    return {each.name: each.outcome for each in found.list_checks(byoc.Tolerances(**tolerances))}


def sentences(found: PlacementDiff) -> dict[str, str]:
    return {each.name: each.sentence for each in found.list_checks(byoc.Tolerances())}


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Bundles of one network in float, in int8, and in int8 with scales eight times as large."""
    folder = tmp_path_factory.mktemp("quantized")
    onnx.save(wide_network(), folder / "m.onnx")
    (folder / "data").mkdir()
    for number, sample in enumerate(wide_inputs(2)):
        np.savez(folder / f"data/{number}.npz", **sample)
    measured = byoc.calibrate(folder / "m.onnx", folder / "data")
    wide = {
        name: replace(each, low=8 * each.low, high=8 * each.high)
        for name, each in measured.tensors.items()
    }
    found = {"float": None, "int8": measured, "coarse": replace(measured, tensors=wide)}
    for name, ranges in found.items():
        precision = byoc.Precision(None if ranges is None else "int8", calibration=ranges)
        output = folder / f"{name}.byoc"
        byoc.partition(folder / "m.onnx", VANILLA, precision=precision, output=output)
    return {name: folder / f"{name}.byoc" for name in found}


def test_a_report_is_as_good_a_side_as_its_bundle(quantized: Mapping[str, Path], tmp_path: Path) -> None:
    result = planned(NET, rules(tmp_path, "a", "Add"), output=tmp_path / "a.byoc")
    (tmp_path / "a.json").write_text(json.dumps(result.to_json()))
    for side in (result, tmp_path / "a.byoc"):
        found = byoc.diff(tmp_path / "a.json", side)
        assert (found.matched, found.equal, found.notes) == (5, True, ())
        assert [each.growth for each in found.errors] == [0.0]
    other = planned(NET, rules(tmp_path, "b"))
    assert byoc.diff(tmp_path / "a.json", other).lost == byoc.diff(result, other).lost != ()


@pytest.mark.parametrize("grown", [0.9, 1.0, 1.04, 1.06, 1.1])
def test_a_plan_may_be_slower_by_the_tolerated_share(grown: float, tmp_path: Path) -> None:
    document = planned(NET, rules(tmp_path, "a", "Add")).to_json()
    (tmp_path / "old.json").write_text(json.dumps(document))
    for key in ("seconds", "optimized"):
        document["predicted"][key] *= grown
    (tmp_path / "new.json").write_text(json.dumps(document))
    found = byoc.diff(tmp_path / "old.json", tmp_path / "new.json")
    assert found.slowdown == pytest.approx(grown - 1)
    assert outcomes(found)["slowdown"] == ("failure" if grown > 1 else "passed")
    assert outcomes(found, max_slowdown=0.05)["slowdown"] == ("failure" if grown > 1.05 else "passed")
    assert f"{100 * (grown - 1):+.4g} %" in sentences(found)["slowdown"]


def test_an_operator_that_the_accelerator_takes_no_more_is_lost(tmp_path: Path) -> None:
    first, second = planned(NET, rules(tmp_path, "a", "Add")), planned(NET, rules(tmp_path, "b"))
    found = byoc.diff(first, second)
    (lost,) = found.lost
    assert (lost.operator, lost.number, lost.gone, lost.nodes) == ("Add", 2, False, ("two", "five"))
    assert sentences(found)["lost-nodes"] == (
        "no longer offloaded: 2 nodes of Add (two, five): Add is not among the operators of npu"
    )
    with pytest.raises(RequirementError, match="no longer offloaded: 2 nodes of Add"):
        found.check(byoc.Tolerances(max_slowdown=1e9))
    assert byoc.diff(second, first).lost == ()


def test_a_node_that_is_cheaper_on_the_host_is_not_lost(tmp_path: Path) -> None:
    file = rules(tmp_path, "a", "Add")
    forced = planned(NET, file)
    chosen = byoc.partition(parse(NET), file)
    found = byoc.diff(forced, chosen)
    assert found.moved == 4  # all to the host, where this small network is faster
    assert outcomes(found) == {
        **dict.fromkeys(("slowdown", "lost-nodes", "gone-nodes"), "passed"),
        "error-growth": "skipped",
    }


def test_a_renamed_target_is_no_worse(tmp_path: Path) -> None:
    file, other = rules(tmp_path, "a", "Add"), tmp_path / "b.yaml"
    other.write_text(file.read_text().replace("target: npu", "target: dsp"), encoding="utf-8")
    found = byoc.diff(planned(NET, file), planned(NET, other))
    assert (found.equal, found.moved) == (False, 4)
    found.check(byoc.Tolerances(max_slowdown=0.0))


NEXT = {  # changes of the network -> what the gate says of the nodes
    "a node is gone": (
        "    [two] b = Add(a, a)\n    [three] c = Sigmoid(b)",
        "    [three] c = Sigmoid(a)",
        "gone from the model: 1 node of Add (two)",
    ),
    "all names are new": ("five] y = Add(d, d)", "v] w = Add(d, d)\n    [vi] y = Identity(w)", ""),
    "another operator of that name": (
        "[three] c = Sigmoid(b)",
        "[three] c = Relu(b)",
        "gone from the model: 1 node of Sigmoid (three)",
    ),
}


@pytest.mark.parametrize("case", NEXT)
def test_nodes_that_are_gone_are_named_and_renamed_ones_are_not(case: str, tmp_path: Path) -> None:
    before, after, sentence = NEXT[case]
    text = NET.replace(before, after)
    assert text != NET
    file = rules(tmp_path, "a", "Add", "Identity")
    found = byoc.diff(planned(NET, file), planned(text, file))
    failed = [
        each.sentence
        for each in found.list_checks(byoc.Tolerances(max_slowdown=1e9))
        if each.outcome == "failure"
    ]
    assert failed == ([sentence] if sentence else [])


def test_nodes_that_a_pass_removes_are_not_gone(tmp_path: Path) -> None:
    """`drop-dropout` takes a node of the second plan alone."""
    text = NET.replace("[three] c = Sigmoid(b)", "[drop] s = Dropout(b)\n    [three] c = Sigmoid(s)")
    file = rules(tmp_path, "a", "Add")
    kept = planned(text, file, no_passes="drop-dropout")
    assert "Dropout" in {node.op_type for node in kept.plan.root.index.nodes}
    found = byoc.diff(kept, planned(text, file))
    assert dict(found.removed) == {"Dropout": {"host": 1}}
    assert outcomes(found)["gone-nodes"] == "passed"


def test_three_decibels_less_are_named(quantized: Mapping[str, Path]) -> None:
    """Coarser scales cost more than 3 dB here, where the noise of the weights is the rest."""
    found = byoc.diff(quantized["int8"], quantized["coarse"])
    (change,) = found.errors
    assert change.measure == "accuracy"
    assert change.growth == change.before - change.after > 3
    assert outcomes(found)["error-growth y"] == "failure"
    assert outcomes(found, max_error_growth=change.growth)["error-growth y"] == "passed"
    assert outcomes(found, max_error_growth=3.0)["error-growth y"] == "failure"
    assert f"{change.growth:+.2f} dB of error; at most 1 dB" in sentences(found)["error-growth y"]
    assert outcomes(byoc.diff(quantized["coarse"], quantized["int8"]))["error-growth y"] == "passed"


def plant(amount: float, by: float, low: float, high: float, make: Callable[[float], float]) -> None:
    """Make a regression of an amount: halve the interval of a factor until it is closer than `by`."""
    for _ in range(24):
        factor = (low + high) / 2
        if abs((found := make(factor)) - amount) < by:
            return
        low, high = (factor, high) if found < amount else (low, factor)
    pytest.fail(f"no factor regresses by {amount}")


def gate(byoc: Any, *arguments: str | Path) -> tuple[int, str, list[str]]:
    """Run `byoc diff` with the limits of docs/ci.md; return its code, errors, and JUnit's failures."""
    ran = byoc("diff", *arguments, "--only-worse", "--max-slowdown", "5%", "--junit", "j.xml")
    failures = ElementTree.parse("j.xml").getroot().findall("testsuite/testcase/failure")
    return ran.code, ran.err, [case.get("message", "") for case in failures]


def test_planted_changes_of_a_plan(
    tmp_path: Path, byoc: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan slower by 10 % and a lost operator are named; another name of the target is no fault."""
    monkeypatch.chdir(tmp_path)
    onnx.save(wide_network(), "m.onnx")
    like_dla = "target: npu\nextends: dla\ncodegen: dla\n"
    Path("old.yaml").write_text(like_dla)
    Path("old.json").write_text(
        byoc("partition", "m.onnx", "--rules", "old.yaml", "--format", "json").out
    )
    kind = yaml.safe_load(DLA_COSTS.read_text(encoding="utf-8"))

    def slow_down(factor: float) -> float:
        peak = {f"peak.{dtype}": float(rate) / factor for dtype, rate in kind["peak"].items()}
        changed = {**peak, "bandwidth": float(kind["bandwidth"]) / factor}
        Path("slow.yaml").write_text(f"{like_dla}cost_parameters: {json.dumps(changed)}\n")
        return diff("old.json", "slow.yaml", "m.onnx").slowdown or 0.0

    plant(0.10, 0.0005, 1.0, 2.0, slow_down)
    code, errors, failures = gate(byoc, "old.json", "slow.yaml", "--model", "m.onnx")
    assert (code, errors) == (6, f"byoc: {failures[0]}\n")
    assert re.fullmatch(
        r"predicted \S+ .s -> \S+ .s, \+(10|9\.9\d*|10\.0\d*) %; at most 5 % is tolerated", failures[0]
    )

    Path("lost.yaml").write_text(f"{like_dla}drop: {{ops: [Relu]}}\n")
    code, errors, failures = gate(byoc, "old.json", "lost.yaml", "--model", "m.onnx")
    lost = [each for each in failures if each.startswith("no longer offloaded: 3 nodes of Relu")]
    assert (code, len(lost)) == (6, 1)
    assert f"byoc: {lost[0]}\n" in errors

    Path("renamed.yaml").write_text(like_dla.replace("npu", "dsp"))
    assert gate(byoc, "old.json", "renamed.yaml", "--model", "m.onnx") == (0, "", [])


def test_a_planted_loss_of_three_decibels(
    tmp_path: Path, byoc: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranges are widened until the output has 3 dB less against the float model."""
    monkeypatch.chdir(tmp_path)
    model = wide_network()
    del model.graph.node[-2:]  # the means of whole images would hide most of the noise
    output = onnx.helper.make_tensor_value_info("h", onnx.TensorProto.FLOAT, [1, 8, 32, 32])
    model.graph.output[0].CopyFrom(output)
    onnx.save(model, "m.onnx")
    measured = calibrate("m.onnx", wide_inputs(2))

    def compile_with(factor: float, bundle: str) -> None:
        wider = {
            name: replace(each, low=factor * each.low, high=factor * each.high)
            for name, each in measured.tensors.items()
        }
        precision = Precision("int8", calibration=replace(measured, tensors=wider))
        partition("m.onnx", VANILLA, precision=precision, output=bundle)

    def lose(factor: float) -> float:
        compile_with(factor, "new.byoc")
        return diff("old.byoc", "new.byoc").errors[0].growth

    compile_with(1.0, "old.byoc")
    plant(3.0, 0.05, 1.0, 4.0, lose)
    code, errors, failures = gate(byoc, "old.byoc", "new.byoc", "--max-error-growth", "2.95dB")
    assert (code, errors) == (6, f"byoc: {failures[0]}\n")
    assert re.fullmatch(
        r"output 'h': signal-to-noise against the float model \S+ dB -> \S+ dB, "
        r"\+(2\.9|3\.0)\d* dB of error; at most 2\.95 dB is tolerated",
        failures[0],
    )
    assert gate(byoc, "old.byoc", "new.byoc", "--max-error-growth", "3.05dB") == (0, "", [])
    assert gate(byoc, "new.byoc", "old.byoc", "--max-error-growth", "0dB") == (0, "", [])


def test_int8_is_less_exact_than_float(quantized: Mapping[str, Path]) -> None:
    (change,) = byoc.diff(quantized["float"], quantized["int8"]).errors
    assert change.measure == "accuracy"
    assert change.growth > 30
    assert byoc.diff(quantized["int8"], quantized["float"]).errors[0].growth == -change.growth


@pytest.fixture(scope="module")
def float_document(quantized: Mapping[str, Path]) -> Any:
    return byoc.open_bundle(quantized["float"]).variant.report.to_json()


@pytest.mark.parametrize(
    ("old", "new", "growth"),
    [
        (5e-7, 9e-6, 0.0),  # both below a hundredth of the allowed 1e-3
        (5e-7, 2e-5, 20 * np.log10(2)),
        (2e-5, 4e-5, 20 * np.log10(2)),
        (4e-5, 2e-5, -20 * np.log10(2)),
        (0.0, 0.0, 0.0),
        (None, 4e-5, -np.inf),  # not comparable before
        (4e-5, None, np.inf),
        (None, None, 0.0),
        (1e-4, 1e300, 20 * 304),
        (1e300, 1e-4, -20 * 304),
        (5e-324, 1e300, 20 * (300 + 5)),
    ],
)
def test_rounding_is_no_growth(
    old: float | None, new: float | None, growth: float, float_document: Any, tmp_path: Path
) -> None:
    for name, error in (("old", old), ("new", new)):
        document = deepcopy(float_document)
        (output,) = document["verification"]["outputs"]
        output |= {"absolute": error, "relative": error, "tolerance": 1e-3, "measure": "relative"}
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    (change,) = byoc.diff(tmp_path / "old.json", tmp_path / "new.json").errors
    assert change.growth == pytest.approx(growth)
    known = [np.inf if each is None else each for each in (old, new)]
    assert [change.before, change.after] == known


def test_a_tolerance_needs_both_sides(quantized: Mapping[str, Path], tmp_path: Path) -> None:
    plan = planned(NET, rules(tmp_path, "a", "Add"))
    byoc.save_placement(plan.plan, tmp_path / "p.yaml")
    with pytest.raises(
        InputError, match=r"^--max-error-growth: .*: it is not verified: nothing was comp"
    ):
        outcomes(byoc.diff(plan, plan), max_error_growth=1.0)
    with pytest.raises(InputError, match=r"^--max-slowdown: .*p\.yaml has no regions and no costs"):
        outcomes(byoc.diff(tmp_path / "p.yaml", plan), max_slowdown=0.1)
    assert outcomes(byoc.diff(tmp_path / "p.yaml", plan))["slowdown"] == "skipped"
    old = tmp_path / "old.json"
    old.write_text(json.dumps(plan.report.to_json()))
    assert outcomes(byoc.diff(old, plan))["lost-nodes"] == "skipped"


def test_places_that_do_not_fit_are_no_report(tmp_path: Path) -> None:
    result = planned(NET, rules(tmp_path, "a", "Add"))
    document = result.to_json()
    document["placed"][0]["outputs"] = ["one", "two", "three"]
    (tmp_path / "r.json").write_text(json.dumps(document))
    with pytest.raises(
        InputError, match=r"r\.json: not a report of byoc: placed.*1 nodes and 3 outputs"
    ):
        byoc.diff(tmp_path / "r.json", result)


def test_reports_of_variants_are_compared_by_name(tmp_path: Path) -> None:
    text = NET.replace("float[1, 64]", "float[n, 64]")
    sizes = {"small": {"n": 1}, "large": {"n": 8}}
    result = planned(text, rules(tmp_path, "a", "Add"), variants=sizes)
    (tmp_path / "v.json").write_text(json.dumps(result.to_json()))
    found = byoc.diff(tmp_path / "v.json", tmp_path / "v.json", variant="large")
    assert found.equal
    assert found.costs["seconds"].before == result.variants[1].report.predicted.seconds
    for variant in (None, "huge"):
        with pytest.raises(InputError, match=r"v\.json: it has the variants small, large: say which"):
            byoc.diff(tmp_path / "v.json", tmp_path / "v.json", variant=variant)
    assert byoc.diff(result, tmp_path / "v.json", variant="large").equal
    with pytest.raises(InputError, match=r"^no variant 'huge'; the result has small, large"):
        byoc.diff(result, result, variant="huge")


def test_a_variant_is_compared_with_a_side_that_has_none(tmp_path: Path) -> None:
    file = rules(tmp_path, "a", "Add")
    alone = planned(NET, file, output=tmp_path / "alone.byoc")
    whole = planned(
        NET,
        file,
        variants={"here": {"rules": str(file)}, "there": {"rules": str(rules(tmp_path, "b"))}},
        output=tmp_path / "whole.byoc",
    )
    (tmp_path / "alone.json").write_text(json.dumps(alone.to_json()))
    plain = (alone, tmp_path / "alone.json", tmp_path / "alone.byoc")
    for one in plain:
        for other in (whole, tmp_path / "whole.byoc"):
            assert byoc.diff(one, other, variant="here").moved == 0
            assert byoc.diff(other, one, variant="there").moved > 0
        with pytest.raises(InputError, match="have no variants, so that none is 'here'"):
            byoc.diff(one, one, variant="here")
    with pytest.raises(InputError, match=r"^variant: 1 is not text or None"):
        byoc.diff(whole, whole, variant=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "it is empty: no report, saved placement or rule file"),
        (b" \n", "it is empty: no report, saved placement or rule file"),
        (b'{"variants": []}', "not a report of byoc: it has no variants"),
        (b'{"variants": [1]}', "not a report of byoc: it has no variants"),
    ],
)
def test_a_baseline_that_is_none_is_one_sentence(content: bytes, told: str, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_bytes(content)
    with pytest.raises(InputError, match=rf"r\.json: {told}$"):
        byoc.diff(tmp_path / "r.json", tmp_path / "r.json")


def test_a_mark_of_the_byte_order_is_no_part_of_a_report(tmp_path: Path) -> None:
    result = planned(NET, rules(tmp_path, "a", "Add"))
    (tmp_path / "r.json").write_bytes(json.dumps(result.to_json()).encode("utf-8-sig"))
    assert byoc.diff(tmp_path / "r.json", result).equal


def test_the_command_and_its_junit(tmp_path: Path, byoc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, ops in (("a", ["Add"]), ("b", [])):
        rules(tmp_path, name, *ops)
    onnx.save(parse(NET), "net.onnx")
    asked = ("--model", "net.onnx", "--strategy", "all-supported", "--junit", "j.xml")
    ran = byoc("diff", "a.yaml", "b.yaml", *asked, "--max-slowdown", "900%", "--format", "json")
    assert ran.code == 6
    assert ran.err.startswith("byoc: no longer offloaded: 2 nodes of Add (two, five): ")
    checks = json.loads(ran.out)["checks"]
    cases = ElementTree.parse("j.xml").getroot().findall("testsuite/testcase")
    assert [case.get("name") for case in cases] == [check["name"] for check in checks]
    told = ["".join(case.itertext()).strip() or case[0].get("message") for case in cases]
    assert told == [check["sentence"] for check in checks]
    assert [check["outcome"] for check in checks] == ["passed", "failure", "passed", "skipped"]
    same = byoc("diff", "a.yaml", "a.yaml", *asked, "--only-worse")
    assert (same.code, same.err) == (0, "")
    for wrong in (("--exit-code", "--only-worse"), ("--max-slowdown", "5"), ("--max-slowdown=-1%",)):
        assert byoc("diff", "a.yaml", "a.yaml", *asked, *wrong).code == 2
    assert byoc("diff", "a.yaml", "a.yaml", *asked).code == 2  # nothing is judged, so JUnit has no cases
    for file in ("a.yaml", "net.onnx"):
        before = Path(file).read_bytes()
        lost = byoc("diff", "a.yaml", "b.yaml", *asked[:-1], file, "--only-worse")
        assert (lost.code, Path(file).read_bytes()) == (1, before)
        assert lost.err == f"byoc: {file}: cannot be written: it would replace what is read, {file}\n"
    missing = byoc("diff", "a.yaml", "none.yaml", *asked, "--only-worse")
    assert missing.code == 1
    assert ElementTree.parse("j.xml").find("testsuite/testcase/error") is not None
