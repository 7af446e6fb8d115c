"""The results of verification: errors of tensors and regions, whether they are within tolerance."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from byoc.errors import InputError
from byoc.verification._thresholds import TOLERANCE, Measure


@dataclass(frozen=True, slots=True)
class TieBreak:
    """Rows that a selection puts in another order than the original, or replaces, between tied keys.

    Of the `rows` of `outputs`, `moved` are in another order and `replaced` are other candidates. The
    original selects the same when its keys are moved such that those at most `gap` apart may change
    places. `selection` is the node that selects.
    """

    selection: str
    outputs: tuple[str, ...]
    rows: int
    moved: int
    replaced: int
    gap: float

    @property
    def changes(self) -> int:
        """The number of rows that are elsewhere or others."""
        return self.moved + self.replaced

    def __str__(self) -> str:
        """Return part of a sentence: `of 300 rows 2 in another order, tied within 2.4e-07`."""
        parts = [f"{self.moved} in another order"] * (self.moved > 0)
        parts += [f"{self.replaced} replaced by others"] * (self.replaced > 0)
        return f"of {self.rows} rows {' and '.join(parts)}, tied within {self.gap:.1e}"


@dataclass(frozen=True, slots=True)
class OutputError:
    """The error of one tensor.

    `relative` is `absolute` divided by the expected range (`Thresholds.error_scale`). Both are infinite
    if the tensors cannot be compared; `problem` then says why. `tolerance` limits the quantity that
    `measure` names: `relative` error, `units` in the last place of integers (the `absolute` error), or
    `dB`, the least signal-to-noise ratio. `signal_to_noise` (dB) and `cosine` are None if they do not
    exist, and `differing` is the share of elements that are not equal. `noise` is the absolute error
    that noise explains, which `noise_source` makes; it is measured only where the error is beyond the
    tolerance, and None otherwise. Where there is a `tie_break`, the expected rows are those that the
    original selects when ties are broken as in the actual tensor.
    """

    name: str
    dtype: str
    absolute: float
    relative: float
    tolerance: float
    problem: str = ""
    measure: Measure = "relative"
    signal_to_noise: float | None = None
    cosine: float | None = None
    differing: float | None = None
    noise: float | None = None
    noise_source: str = ""
    tie_break: TieBreak | None = None

    @property
    def within(self) -> bool:
        """True if the error is within the tolerance, or noise explains it."""
        if self.noise is not None and self.absolute <= self.noise:
            return True
        match self.measure:
            case "units":
                return self.absolute <= self.tolerance
            case "dB":
                return self.signal_to_noise is not None and self.signal_to_noise >= self.tolerance
            case _:
                return self.relative <= self.tolerance

    @property
    def is_measurable(self) -> bool:
        """True if the error is a number that noise may explain."""
        return not self.problem and (self.measure == "units" or self.dtype in TOLERANCE)

    @property
    def relative_noise(self) -> float | None:
        """The noise as a share of the expected range, None where it is not measured."""
        if self.noise is None or not self.absolute:
            return None
        return self.noise * self.relative / self.absolute

    @property
    def is_noise_needed(self) -> bool:
        """True if noise explains more than the tolerance allows."""
        noise = self.noise if self.measure == "units" else self.relative_noise
        return noise is not None and noise > self.tolerance

    @property
    def error_phrase(self) -> str:
        """Part of a sentence: `by 0.02 of its range, at most 0.0001 is allowed for float32`."""
        match self.measure:
            case "units":
                by, allowed = f"{self.absolute:g} units", f"at most {self.tolerance:g}"
            case "dB":
                noise = np.nan if self.signal_to_noise is None else self.signal_to_noise
                by, allowed = f"a noise of {noise:.1f} dB", f"no less than {self.tolerance:g} dB"
            case _:
                by, allowed = f"{self.relative:.2g} of its range", f"at most {self.tolerance:g}"
        explained = ""
        if self.is_noise_needed:
            share = f"{self.noise:g} units" if self.measure == "units" else f"{self.relative_noise:.2g}"
            explained = f", and {share} is the noise of {self.noise_source}"
        return f"by {by}, {allowed} is allowed for {self.dtype}{explained}"

    def severity(self) -> tuple[bool, float]:
        """Return a sort key: errors beyond their tolerance last, then by size."""
        return not self.within, self.relative


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The accuracy of an output in lower precision, compared with the original model's.

    `signal_to_noise` is in dB; `same_class` is the share of rows whose largest element is at the same
    index. Both are NaN if the outputs cannot be compared in this way.
    """

    name: str
    signal_to_noise: float
    same_class: float

    @property
    def exact(self) -> bool:
        """True if the output has no noise at all."""
        return self.signal_to_noise == np.inf


_NAMED = 3  # regions, at most, in a sentence

SampleKind = Literal["given", "other", "made", "none"]
"""The sample that a region was compared on: the one given, another one of the model's inputs, values
made for its boundary tensors alone, or none."""


@dataclass(frozen=True, slots=True)
class RegionError:
    """The error of a region alone, compared with its ONNX on plain onnxruntime on the same inputs.

    `outputs` has the worst error of each output over all `runs`: several in the body of a Loop, none if
    the region was not compared. `problem` says why it could not be run, `sample` what it was run on, and
    `judge` what computed the expected outputs where that is not onnxruntime.
    """

    name: str
    outputs: tuple[OutputError, ...] = ()
    runs: int = 1
    problem: str = ""
    sample: SampleKind = "given"
    judge: str = ""

    @property
    def within(self) -> bool:
        """True if the region ran and every output is within its tolerance."""
        return not self.problem and all(output.within for output in self.outputs)

    @property
    def worst(self) -> OutputError | None:
        """The output with the largest error; None without outputs."""
        return max(self.outputs, key=OutputError.severity, default=None)


@dataclass(frozen=True, slots=True)
class Reach:
    """The number of regions, and of those that the given sample did not reach.

    Of these, `others` were reached by other inputs of the model, `alone` were compared on values made
    for them alone, and `never` were not compared.
    """

    regions: int
    others: int
    alone: int
    never: int

    @property
    def not_reached(self) -> int:
        """The number of regions that the given sample did not reach."""
        return self.others + self.alone + self.never


@dataclass(frozen=True, slots=True)
class Verification:
    """The comparison of all outputs of a bundle with those of `against`, and of each region alone.

    `accuracy` compares with the model `original` if precision was lowered. `boundary` has every boundary
    tensor, compared with the same bundle whose regions run on plain onnxruntime, if asked for; what is
    off there and in no region is an error that adds up, so that it decides nothing. `not_compared` says
    why regions are missing. `samples` is the number of samples that outputs were compared on. `judge`
    computed the expected outputs where that was not onnxruntime. `notes` are contradictions between
    stated and actual types, which are no errors. `not_here` has the reasons of the regions that this
    machine cannot run: onnxruntime ran them, so that the rest is compared and they are not.
    """

    against: str
    outputs: tuple[OutputError, ...]
    original: str = ""
    accuracy: tuple[Accuracy, ...] = ()
    boundary: tuple[OutputError, ...] = ()
    regions: tuple[RegionError, ...] = ()
    not_compared: str = ""
    samples: int = 1
    judge: str = ""
    notes: tuple[str, ...] = ()
    not_here: Mapping[str, str] = field(default_factory=dict)

    @property
    def not_verified(self) -> str:
        """Why regions were not verified, as part of a sentence; empty where all were."""
        by_reason: dict[str, list[str]] = {}
        for region, reason in self.not_here.items():
            by_reason.setdefault(reason, []).append(region)
        return "; ".join(
            f"{_list_names(regions)} compiled, not verified here: {reason}"
            for reason, regions in by_reason.items()
        )

    @property
    def passed(self) -> bool:
        """True if every output and every region is within its tolerance."""
        outputs = all(output.within for output in self.outputs)
        return outputs and all(region.within for region in self.regions)

    @property
    def reach(self) -> "Reach":
        """The counts of regions by their samples."""
        count = Counter(region.sample for region in self.regions)
        return Reach(len(self.regions), count["other"], count["made"], count["none"])

    @property
    def tie_breaks(self) -> tuple[TieBreak, ...]:
        """The ties of outputs and regions, of each selection those of most rows; most rows first."""
        errors = [*self.outputs, *(output for region in self.regions for output in region.outputs)]
        found = [error.tie_break for error in errors if error.tie_break is not None]
        most = sorted(found, key=lambda each: -each.changes)
        return tuple({each.selection: each for each in reversed(most)}.values())[::-1]

    @property
    def largest_relative_error(self) -> float | None:
        """The largest relative error of an output; None if one is not finite."""
        largest = float(np.max([output.relative for output in self.outputs], initial=0.0))
        return largest if np.isfinite(largest) else None

    @property
    def worst(self) -> OutputError | None:
        """The output with the largest error; None without outputs."""
        return max(self.outputs, key=OutputError.severity, default=None)


def _list_names(regions: Sequence[str]) -> str:
    if len(regions) <= _NAMED:
        return ", ".join(regions)
    return f"{', '.join(regions[: _NAMED - 1])} and {len(regions) - _NAMED + 1} other regions"


def require_passed(verification: Verification) -> None:
    """Raise InputError if an error is beyond its tolerance.

    The message names the worst output and the first wrong region.
    """
    regions = [region for region in verification.regions if not region.within]
    worst = verification.worst
    problems = []
    if worst is not None and not worst.within:
        problems.append(_describe_error(f"output '{worst.name}'", worst, verification.against))
    if regions:
        problems.append(_describe_region_error(regions[0]))
    if problems:
        raise InputError(f"verification failed: {'; '.join(problems)}")


def _describe_error(tensor: str, error: OutputError, against: str) -> str:
    if error.problem:
        return f"{tensor} {error.problem}, compared with {against}"
    return f"{tensor} differs from {against} {error.error_phrase}"


def _describe_region_error(region: RegionError) -> str:
    worst = region.worst
    if worst is None or region.problem:
        return f"region {region.name} {region.problem}"
    tensor = f"region {region.name} alone: output '{worst.name}'"
    return _describe_error(tensor, worst, "its own ONNX on plain onnxruntime")
