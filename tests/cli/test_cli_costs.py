"""`byoc compare-costs` on what was measured, and `byoc cost-models check`."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx
import pytest
from helpers.support import Ran, parse

from byoc.comparison import PredictionComparison, Samples


def compared(number: int, spread: float = 0.0) -> PredictionComparison:
    measured = Samples(number + 1.0, spread * (number + 1.0), 9)
    return PredictionComparison(f"m{number}", "host", number + 1.5, measured, number + 1.0, 0, None)


Measure = Callable[..., Ran]


@pytest.fixture
def measure(
    byoc: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ran]:
    """Run `byoc compare-costs` on as many models as there are comparisons, with these as the result."""
    model = tmp_path / "m.onnx"
    onnx.save(parse("g (float[2] x) => (float[2] y) { y = Neg(x) }"), model)

    def run(found: Sequence[PredictionComparison], *flags: str) -> Ran:
        each = iter(found)
        monkeypatch.setattr("byoc.comparison.compare_host", lambda *_: next(each))
        return byoc("compare-costs", *[model] * len(found), *flags)

    return run


@pytest.mark.parametrize("models", [4, 5])
def test_few_models_are_not_ranked(models: int, measure: Measure) -> None:
    found = [compared(number) for number in range(models)]
    text = measure(found).out
    assert ("rank correlation over the models: 1.000" in text) == (models == 5)
    rank = json.loads(measure(found, "--format", "json").out)["rank_correlation"]
    assert rank == (pytest.approx(1.0) if models == 5 else None)


def test_a_wide_spread_is_a_warning(measure: Measure) -> None:
    lines = measure([compared(0, 0.6), compared(1, 0.5)]).out.splitlines()
    warnings = [line for line in lines if line.startswith("warning: ")]
    assert warnings == [
        "warning: m0: the runs spread over 600 ms around 1 s; measure again on a machine that is idle"
    ]


def test_cost_files_are_checked_with_every_mistake_and_its_place(
    byoc: Callable[..., Ran], tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text("kind: roofline\nname: mine\nlaunch: 20us\n")

    ran = byoc("cost-models", "check", tmp_path / "mine.yaml", "dla", "host", "none.yaml")

    assert ran.code == 1
    path = tmp_path / "mine.yaml"
    lines = ran.out.splitlines()
    assert lines[:5] == [
        f"{path}: launch: expected a number without a unit, not '20us': figures are in seconds, bytes, "
        "operations and joules, 10 us is 1.0e-5 and 4 GB/s is 4.0e+9",
        f"{path}: peak: must be given",
        f"{path}: bandwidth: must be given",
        "dla: ok",
        "host: ok, for the host: it has no link",
    ]
    assert lines[5].startswith("none.yaml: no such file")
    assert byoc("cost-models", "check", "dla", "--format", "json").code == 0
