"""Regions that the sample does not reach: other inputs, values for a region alone, another judge."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import vendors
from helpers.support import Ran, parse
from interpreting import NEVER, bundle_of, interpreter, only, right
from onnx.reference import ReferenceEvaluator

from byoc.codegen import Artifact, Executor, Region
from byoc.errors import InputError
from byoc.pipeline import partition
from byoc.verification import Verification, require_passed, verify_against

BRANCHES = """
g (float[1, 4] x, bool which) => (float[1, 4] z) {
  z = If (which) <
    then_branch = t () => (float[1, 4] p) { q = Neg(x) p = Abs(q) },
    else_branch = e () => (float[1, 4] r) { s = Abs(x) r = Neg(s) }
  >
}"""


# Zero trips, unless the integer that the host reads is another one.
TRIPS = """
g (float[1, 4] x, int64 trips) => (float[1, 4] y) <bool go = {1}> {
  y = Loop(trips, go, x) <body = body
    (int64 i, bool go_in, float[1, 4] v) => (bool go_out, float[1, 4] w) {
    go_out = Identity(go_in)
    a = Abs(v)
    w = Neg(a)
  }>
}"""


X = {"x": np.array([[-2, -1, 0.5, 1]], np.float32)}


def verify_cut(
    text: str, folder: Path, monkeypatch: pytest.MonkeyPatch, spoil: Any, inputs: Mapping[str, Any]
) -> Verification:
    vendors.install(monkeypatch, wrong=interpreter(spoil))
    return verify_against(bundle_of(parse(text), folder).folder, inputs=inputs, regions=True)


@pytest.mark.parametrize("which", [True, False])
def test_the_other_branch_is_reached_by_a_flipped_condition(
    which: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = {**X, "which": np.array(which)}
    found = verify_cut(BRANCHES, tmp_path, monkeypatch, right, inputs)
    assert sorted(region.sample for region in found.regions) == ["given", "other"]
    assert all(region.outputs for region in found.regions)
    assert (found.reach.regions, found.reach.not_reached, found.reach.others) == (2, 1, 1)
    assert found.passed


@pytest.mark.parametrize("spoilt", ["p", "r"])
def test_an_error_of_the_other_branch_is_found(
    spoilt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil = only(spoilt, lambda value: value + np.float32(1))
    found = verify_cut(BRANCHES, tmp_path, monkeypatch, spoil, {**X, "which": np.array(True)})
    (wrong,) = (region for region in found.regions if not region.within)
    assert wrong.outputs[0].absolute == pytest.approx(1)
    assert not found.outputs[0].within, "the outputs on the other sample count as well"
    with pytest.raises(InputError, match=r"region npu_\d alone: output"):
        require_passed(found)


def test_a_loop_of_no_trips_is_reached_by_another_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = verify_cut(TRIPS, tmp_path, monkeypatch, right, {**X, "trips": np.array(0)})
    (region,) = found.regions
    assert (region.sample, region.runs) == ("other", 3)


def test_a_region_that_no_input_reaches_is_compared_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = verify_cut(NEVER, tmp_path, monkeypatch, right, X)
    assert sorted(region.sample for region in found.regions) == ["given", "made"]
    assert (found.reach.not_reached, found.reach.alone, found.reach.never) == (1, 1, 0)
    spoil = only("p", lambda value: value * np.float32(1.01))
    wrong = verify_cut(NEVER, tmp_path, monkeypatch, spoil, X)
    assert [output.within for output in wrong.outputs] == [True]
    assert [region.within for region in wrong.regions if region.sample == "made"] == [False]
    assert not wrong.passed


def test_a_region_that_does_not_run_alone_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(node: Any, model: Any, made: list[Any]) -> Sequence[Any]:
        if node.output[0] == "p":
            raise MemoryError("device")
        return made

    found = verify_cut(NEVER, tmp_path, monkeypatch, refuse, X)

    assert not found.passed
    with pytest.raises(InputError, match=r"region npu_\d does not run: .*device"):
        require_passed(found)


def test_what_is_special_is_asked_of_a_region_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.install(monkeypatch, wrong=interpreter(only("p", np.nan_to_num)))

    found = verify_against(bundle_of(parse(NEVER), tmp_path).folder, regions=True)

    (wrong,) = (region for region in found.regions if not region.within)
    assert (wrong.sample, wrong.special) == ("made", "nan")


def test_the_summary_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, byoc: Callable[..., Ran]
) -> None:
    vendors.install(monkeypatch, wrong=interpreter(right))
    bundle = bundle_of(parse(NEVER), tmp_path)
    model = tmp_path / "m.onnx"
    model.write_bytes(parse(NEVER).SerializeToString())
    asked = ["--rules", tmp_path / "npu.yaml", "--strategy", "all-supported", "--codegen", "wrong"]
    ran = byoc("partition", model, *asked, "-o", tmp_path / "c")
    assert ran.code == 0
    line = "; 1 of 2 regions not reached by the sample (1 compared alone)"
    assert line in ran.out.splitlines()[1]  # the first says that the host alone would be faster
    ran = byoc("verify", bundle.folder)
    assert "is not reached by any inputs that were tried; it is compared on values made" in ran.out


class Numpy:
    """A codegen that runs regions on onnx.reference, which has operators that onnxruntime lacks."""

    name = "numpy"

    def compile(self, region: Region, options: Mapping[str, str]) -> Artifact:
        return Artifact()

    def load(self, region: Region, artifact: Artifact) -> Executor:
        evaluator = ReferenceEvaluator(region.load(inline=True))
        return lambda inputs: dict(
            zip(evaluator.output_names, evaluator.run(None, dict(inputs)), strict=True)
        )


def test_the_reference_judges_where_onnxruntime_has_no_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """onnxruntime has Erf for float32 alone."""
    rules = "target: npu\ncost_model: dla\ndtype: float64\nops:\n  - op: [Erf, Neg]\n"
    vendors.install(monkeypatch, numpy=Numpy)
    (tmp_path / "npu.yaml").write_text(rules, encoding="utf-8")
    result = partition(
        parse("g (double[1, 4] x) => (double[1, 4] y) { a = Erf(x) y = Neg(a) }"),
        tmp_path / "npu.yaml",
        output=tmp_path / "b",
        strategy="all-supported",
        codegen="numpy",
    )
    found = result.verification
    assert found is not None
    assert found.judge == "onnx.reference, since onnxruntime has no kernel for Erf"
    assert found.passed
    assert found.regions[0].judge == found.judge
    assert result.report.verification is not None
    assert result.report.verification.judge == found.judge
