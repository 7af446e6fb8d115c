"""What a placement by some costs loses to the one by others: by hand, by the verb, on real models."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from helpers.support import VANILLA, parse

from byoc.comparison import compare_decisions, measure_loss
from byoc.errors import InputError
from byoc.pipeline import PlanOptions

NET = "net (float[1, 8] x) => (float[1, 8] y) { a = Relu(x)\n y = Sin(a) }"


def write_table(path: Path, relu: float, sin: float | None = None, link: bool = True) -> str:
    """Write a table of the seconds of Relu and Sin, launches and transfers free."""
    types = "types: 'float32[1, 8] -> float32[1, 8]'"
    rows = [f"{{op: Relu, {types}, seconds: {relu}}}"]
    rows += [f"{{op: Sin, {types}, seconds: {sin}}}"] if sin is not None else []
    linked = "link: {bandwidth: .inf}, " if link else ""
    path.write_text(f"{{kind: table, name: {path.stem}, {linked}entries: [{', '.join(rows)}]}}")
    return str(path)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.chdir(tmp_path)
    onnx.save(parse(NET), "net.onnx")
    return {
        "fast": write_table(tmp_path / "fast.yaml", 1.0),
        "slow": write_table(tmp_path / "slow.yaml", 20.0),
        "host": write_table(tmp_path / "h.yaml", 10.0, 1.0, link=False),
        "measured_host": write_table(tmp_path / "mh.yaml", 5.0, 2.0, link=False),
    }


def test_the_loss_by_hand(files: dict[str, str]) -> None:
    asked = PlanOptions(str(VANILLA), cost_model=files["fast"], host_cost_model=files["host"])
    judge = PlanOptions(str(VANILLA), cost_model=files["slow"], host_cost_model=files["measured_host"])
    found = compare_decisions("net.onnx", asked, judge)
    # By the costs in question Relu goes to the accelerator: 1 + 1 s. By the others that takes 20 + 2 s,
    # and everything on the host 5 + 2 s.
    assert (found.predicted, found.chosen, found.best, found.host_only) == (2.0, 22.0, 7.0, 7.0)
    assert found.loss == pytest.approx(15 / 7)
    assert (found.units, found.estimated, found.proven) == (2, 0, True)


def test_costs_lose_nothing_to_themselves() -> None:
    asked = PlanOptions("dla")
    found = compare_decisions("zoo:inception_v1", asked, asked)
    assert (found.loss, found.proven) == (0.0, True)
    assert found.predicted == pytest.approx(found.chosen, rel=1e-12)


def test_a_loss_is_never_below_nothing(tmp_path: Path) -> None:
    """Costs off by some factor choose another placement; the judge's own is never worse."""
    losses = []
    for peak in ("5.0e+8", "5.0e+9", "5.0e+10"):
        file = tmp_path / "d.yaml"
        file.write_text(
            f"{{kind: roofline, name: d, peak: {{default: {peak}}}, bandwidth: 16.0e+9, "
            "launch: 50.0e-6, link: {bandwidth: 2.0e+9, latency: 5.0e-6}}"
        )
        judge = PlanOptions("dla", cost_model=file)
        losses.append(compare_decisions("zoo:squeezenet", PlanOptions("dla"), judge).loss)
    assert all(loss >= 0 for loss in losses)
    assert losses[0] > losses[1] > losses[2]


def test_the_verb_prices_by_files_and_measures_nothing(
    files: dict[str, str], byoc: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("byoc.comparison.compare_host", None)
    asked = ("compare-costs", "net.onnx", "--rules", VANILLA, "--costs", files["fast"])
    judged = ("--host-costs", files["host"], "--measured", files["slow"])
    judged += ("--measured-host", files["measured_host"])
    ran = byoc(*asked, *judged, "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    document = json.loads(ran.out)
    assert (document["rows"], document["mean_factor"]) == ([], None)
    (loss,) = document["optimality_loss"]
    assert loss["loss"] == pytest.approx(15 / 7)
    text = byoc(*asked, *judged).out
    assert "optimality loss: 214.3% on average over 1 model, 214.3% at worst" in text


def test_options_of_both_cost_models_reach_them(byoc: Any) -> None:
    asked = ("compare-costs", "zoo:squeezenet", "--rules", "dla", "--measured", "dla")
    for flag in ("--cost-option", "--measured-option"):
        ran = byoc(*asked, flag, "hw=x")
        assert ran.code == 1
        assert " has no option 'hw': it is a file, which has none" in ran.err


def test_units_are_measured_where_no_file_is_given(files: dict[str, str], byoc: Any) -> None:
    options = PlanOptions(str(VANILLA), cost_model=files["fast"], host_cost_model=files["host"])
    found = measure_loss("net.onnx", options, 0.0, 2)
    assert found.loss >= 0
    assert found.predicted == 2.0
    assert found.estimated == 0
    assert 0 < found.best < 1  # it was measured
    asked = (
        "compare-costs",
        "net.onnx",
        "--rules",
        VANILLA,
        "--loss",
        "--seconds",
        "0",
        "--repeats",
        "2",
    )
    ran = byoc(*asked, "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    document = json.loads(ran.out)
    assert [loss["model"] for loss in document["optimality_loss"]] == ["net.onnx"]
    assert [pair["op"] for pair in document["rows"][0]["pairs"]] in ([], ["vanilla"])


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--loss",), "it is about placements: give --rules, too"),
        (("--measured", "dla"), "it is about placements: give --rules, too"),
        (("--rules", "dla", "--measured-host", "host"), "give --measured, too"),
        (("--rules", "dla", "--measured-option", "a=b"), "give --measured, too"),
    ],
)
def test_flags_that_do_not_fit_are_refused(flags: tuple[str, ...], sentence: str, byoc: Any) -> None:
    ran = byoc("compare-costs", "zoo:squeezenet", *flags)
    assert ran.code == 2
    assert sentence in " ".join(ran.err.replace("│", " ").split())


def test_units_of_several_accelerators_are_not_measured() -> None:
    with pytest.raises(InputError, match=r"^units are measured for one accelerator at a time"):
        measure_loss("zoo:squeezenet", PlanOptions(["dla", str(VANILLA)]), 0.0, 1)
