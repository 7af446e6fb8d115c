"""The levels of accuracy of a lower precision, and what is warned of."""

from pathlib import Path
from typing import Any

import pytest
from helpers.calibrating import network
from helpers.support import VANILLA

import byoc
from byoc.bundle import AccuracyReport, OutputAccuracy
from byoc.reporting import list_output_qualities, list_quality_warnings


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> byoc.Report:
    output = tmp_path_factory.mktemp("accuracy") / "m.byoc"
    precision = byoc.Precision("int8", data="random")
    options: dict[str, Any] = {"strategy": "all-supported", "precision": precision}
    return byoc.partition(network(), VANILLA, output=output, **options).report


def with_outputs(report: byoc.Report, *outputs: OutputAccuracy) -> byoc.Report:
    accuracy = AccuracyReport(original="m", outputs=outputs)
    verification = report.verification.model_copy(update={"accuracy": accuracy})
    return report.model_copy(update={"verification": verification})


@pytest.mark.parametrize(
    ("ratio", "same_class", "exact", "told"),
    [
        (30.0, 0.5, False, ("30.0 dB", "good")),
        (29.9, 1.0, False, ("29.9 dB", "warn")),
        (20.0, 0.5, False, ("20.0 dB", "warn")),
        (19.9, 0.989, False, ("19.9 dB", "bad")),
        (14.4, 0.999, False, ("14.4 dB", "warn")),
        (14.4, None, False, ("14.4 dB", "bad")),
        (None, 1.0, True, ("equal", "good")),
        (None, None, False, ("not known", "warn")),
    ],
)
def test_levels(
    ratio: float | None,
    same_class: float | None,
    exact: bool,
    told: tuple[str, str],
    report: byoc.Report,
) -> None:
    output = OutputAccuracy(name="y", signal_to_noise=ratio, same_class=same_class, exact=exact)
    (found,) = list_output_qualities(with_outputs(report, output))
    assert (found.ratio, found.level) == told
    assert (found.same_class == "") == (same_class is None)


def test_the_worst_output_is_first(report: byoc.Report) -> None:
    outputs = [
        OutputAccuracy(name=name, signal_to_noise=ratio, same_class=1.0, exact=ratio is None)
        for name, ratio in (("a", 40.0), ("b", None), ("c", 12.0))
    ]
    assert [each.output for each in list_output_qualities(with_outputs(report, *outputs))] == list("cab")


def test_random_scales_and_missing_accuracy_are_warned_of(report: byoc.Report, tmp_path: Path) -> None:
    assert list(list_quality_warnings(report)) == ["scales are from random data"]
    assert len(list_output_qualities(report)) == len(report.verification.outputs)
    unknown = report.verification.model_copy(update={"accuracy": None})
    without = report.model_copy(update={"verification": unknown})
    assert list(list_quality_warnings(without))[1:] == ["accuracy was not measured"]
    plain = byoc.partition(network(), VANILLA, output=tmp_path / "m.byoc").report
    assert (list_output_qualities(plain), list(list_quality_warnings(plain))) == ([], [])


def test_less_than_ten_decibels_are_warned_of(report: byoc.Report) -> None:
    outputs = [
        OutputAccuracy(name=name, signal_to_noise=ratio, same_class=1.0, exact=ratio is None)
        for name, ratio in (("a", 40.0), ("b", None), ("c", 9.94))
    ]
    poor = with_outputs(report, *outputs)
    text = "only 9.9 dB signal-to-noise are left in output 'c': choose scales with --data FOLDER, or"
    assert next(iter(list_quality_warnings(poor))).startswith(text)
    assert list(list_quality_warnings(with_outputs(report, *outputs[:2]))) == [
        "scales are from random data"
    ]
    weights = poor.precision.model_copy(update={"weights": [object()]})
    told = next(iter(list_quality_warnings(poor.model_copy(update={"precision": weights}))))
    assert told.endswith("a smaller --block keeps more")
