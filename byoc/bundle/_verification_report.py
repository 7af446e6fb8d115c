"""The part of a report that says how a bundle's outputs compare with those of the original."""

from math import isfinite
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict

from byoc.support import StrictModel


def _finite_or_none(value: object) -> object:
    return None if isinstance(value, float) and not isfinite(value) else value


Finite = Annotated[float | None, BeforeValidator(_finite_or_none)]
"""A number that JSON can represent; None for any other."""


class ReportModel(StrictModel):
    """Base of the parts of reports: made from keywords, or from an object with the same attributes."""

    model_config = ConfigDict(from_attributes=True)

    def to_json(self) -> dict[str, Any]:
        """Return the data that JSON can represent, in the order of the fields."""
        return self.model_dump(mode="json")


class TieBreakReport(ReportModel):
    """Rows that a selection puts in another order or replaces; the fields are those of `TieBreak`."""

    selection: str
    outputs: tuple[str, ...]
    rows: int
    moved: int
    replaced: int
    gap: float


class FidelityReport(ReportModel):
    """An output's signal-to-noise ratios against the float model; the fields are those of `Fidelity`."""

    signal_to_noise: Finite
    reference: Finite
    spread: Finite
    least: Finite


class TensorErrorReport(ReportModel):
    """The error of a tensor; the fields are those of `OutputError`."""

    name: str
    dtype: str
    absolute: Finite
    relative: Finite
    tolerance: float
    problem: str
    measure: str
    signal_to_noise: Finite
    cosine: Finite
    differing: float | None
    noise: Finite = None
    noise_source: str = ""
    tie_break: TieBreakReport | None = None
    fidelity: FidelityReport | None = None
    within: bool


class OutputAccuracy(ReportModel):
    """The accuracy of an output in lower precision; `exact` if it has no noise at all."""

    name: str
    signal_to_noise: Finite
    same_class: Finite
    exact: bool


class AccuracyReport(ReportModel):
    """The accuracy of all outputs in lower precision, compared with the model `original`."""

    original: str
    outputs: tuple[OutputAccuracy, ...]


class ReachReport(ReportModel):
    """The counts of regions by their samples; the fields are those of `Reach`."""

    regions: int
    not_reached: int
    others: int
    alone: int
    never: int
    too_large: int = 0


class VerificationReport(ReportModel):
    """The comparison of a bundle's outputs with those of `against`.

    `largest_relative_error` is None if one is not finite, `accuracy` if no precision was lowered,
    `judge` if onnxruntime computed what is expected, and `reach` if regions were not compared. The
    errors are the worst on some `samples`. `tie_breaks` are those of outputs and regions, of most rows
    first.
    """

    against: str
    passed: bool
    largest_relative_error: float | None
    outputs: tuple[TensorErrorReport, ...]
    accuracy: AccuracyReport | None
    samples: int = 1
    judge: str | None = None
    reach: ReachReport | None = None
    notes: tuple[str, ...] = ()
    tie_breaks: tuple[TieBreakReport, ...] = ()
