"""The accuracy of a bundle in lower precision: each output against the float model, in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Literal

from byoc.console import format_decibels, format_share
from byoc.reporting._report_summary import describe_poor_output

if TYPE_CHECKING:
    from byoc.bundle import OutputAccuracy, Report

# Conventions of byoc, of no standard: an error of 3 % and of 10 % of the signal, by root mean squares.
_GOOD = 30.0  # dB
_FAIR = 20.0  # dB
# MLPerf Inference wants 99 % of the float model's accuracy. Networks that choose a class keep it at
# ratios that ruin a picture: benchmarks/RESULTS.md has a text recognizer with 0.999 at 14 dB.
_SAME_CLASS = 0.99  # of the rows

Level = Literal["good", "warn", "bad"]


@dataclass(frozen=True)
class OutputQuality:
    """An output of lower precision against the float model.

    `ratio` is its signal-to-noise ratio as text, `same_class` the share of rows with the same largest
    element, empty if it is not known. `level` is `good` from 30 dB, `bad` below 20 dB unless 99 % of the
    rows agree, and `warn` otherwise.
    """

    output: str
    ratio: str
    same_class: str
    level: Level


def list_output_qualities(report: Report) -> list[OutputQuality]:
    """Return the outputs, the worst first; none unless a precision was lowered and verified."""
    verification = report.verification
    if verification is None or verification.accuracy is None:
        return []
    outputs = sorted(verification.accuracy.outputs, key=_get_ratio)
    return [
        OutputQuality(
            each.name,
            format_decibels(_get_ratio(each)),
            "" if each.same_class is None else format_share(each.same_class),
            _find_level(each),
        )
        for each in outputs
    ]


def list_quality_warnings(report: Report) -> Iterator[str]:
    """Yield why the accuracy of a lower precision says little, or is not known, or is bad."""
    if report.precision is None:
        return
    yield from filter(None, [describe_poor_output(report)])
    if report.precision.random:
        yield "scales are from random data"
    if report.verification is not None and report.verification.accuracy is None:
        yield "accuracy was not measured"


def _get_ratio(output: OutputAccuracy) -> float:
    if output.exact:
        return inf
    return -inf if output.signal_to_noise is None else output.signal_to_noise


def _find_level(output: OutputAccuracy) -> Level:
    ratio = _get_ratio(output)
    if ratio >= _GOOD:
        return "good"
    agrees = output.same_class is not None and output.same_class >= _SAME_CLASS
    return "warn" if ratio >= _FAIR or agrees or output.signal_to_noise is None else "bad"
