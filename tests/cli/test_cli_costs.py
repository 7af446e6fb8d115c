"""`byoc compare-costs` on what was measured, and `byoc cost-models check`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.support import Ran

from byoc.cli._common import OutputFormat
from byoc.cli._cost_verbs import print_comparison
from byoc.comparison.profiling import PredictionComparison, Samples


def compared(number: int, spread: float = 0.0) -> PredictionComparison:
    measured = Samples(number + 1.0, spread * (number + 1.0), 9)
    return PredictionComparison(f"m{number}", "host", number + 1.5, measured, number + 1.0, 0, None)


@pytest.mark.parametrize("models", [4, 5])
def test_few_models_are_not_ranked(models: int, capsys: pytest.CaptureFixture[str]) -> None:
    found = [compared(number) for number in range(models)]
    print_comparison(found, [], [], OutputFormat.text)
    assert ("rank correlation over the models: 1.000" in capsys.readouterr().out) == (models == 5)
    print_comparison(found, [], [], OutputFormat.json)
    rank = json.loads(capsys.readouterr().out)["rank_correlation"]
    assert rank == (pytest.approx(1.0) if models == 5 else None)


def test_a_wide_spread_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    print_comparison([compared(0, 0.6), compared(1, 0.5)], [], [], OutputFormat.text)
    out = capsys.readouterr().out
    warnings = [line for line in out.splitlines() if line.startswith("warning: ")]
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
        f"{path}: launch: expected a number",
        f"{path}: peak: must be given",
        f"{path}: bandwidth: must be given",
        "dla: ok",
        "host: ok, for the host: it has no link",
    ]
    assert lines[5].startswith("none.yaml: no such file")
    assert byoc("cost-models", "check", "dla", "--format", "json").code == 0
