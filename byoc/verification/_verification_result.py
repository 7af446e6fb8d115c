"""The results of verification: errors of regions and of a whole bundle."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from byoc._dataclasses import dataclass, field
from byoc.errors import InputError
from byoc.verification._unit_noise import OutputError, TieBreak

# The results of comparing quantized layers alone.


@dataclass(frozen=True, slots=True)
class LayerError:
    """The error of a layer alone, in units of its tensor, over all runs.

    `largest` is the largest error of a result, `differing` the share of results that are not equal.
    `mean` is the mean error that is furthest above its limit, `allowed` that limit, and `where` the part
    of the tensor that it is of, as text before "of": `channel 3`, `last index 4`, or with its comma
    `channel 3, first index of axis 2,`; empty for the whole tensor. Means are over results that rounding
    decides: without those at the ends of the range, and halfway between two integers. `units` is the
    most that a result may be off.
    """

    name: str
    op: str
    tensor: str
    largest: float
    differing: float
    mean: float
    allowed: float
    where: str
    units: float

    @property
    def within(self) -> bool:
        """True if neither a result nor a mean is off by more than is allowed."""
        return self.largest <= self.units and abs(self.mean) <= self.allowed

    def __str__(self) -> str:
        """Return the error as a sentence without a full stop."""
        who = f"{self.op} '{self.name}' is off alone"
        if self.largest > self.units:
            return (
                f"{who}: '{self.tensor}' differs by {self.largest:g} units, "
                f"at most {self.units:g} is allowed"
            )
        side = "above" if self.mean > 0 else "below"
        where = f"{self.where} of '{self.tensor}'" if self.where else f"'{self.tensor}'"
        return (
            f"{who}: {where} is {abs(self.mean):.2f} units {side} on average, "
            f"at most {self.allowed:.2f} is allowed"
        )


@dataclass(frozen=True)
class LayerCheck:
    """The quantized layers of a region, each compared alone.

    `floats` are the errors of the region's outputs in floating point, computed on the integers before.
    `same` says that the region, compiled again with its layers shown, gives the bits that it gave in the
    bundle: only then is the region right if each layer is. `traced` says that the codegen's `trace`
    showed them instead. Those of the tensors `left_out` were compared as parts of the layers that read
    them. `not_compared` says why there are none.
    """

    errors: tuple[LayerError, ...] = ()
    floats: tuple[OutputError, ...] = ()
    same: bool = False
    not_compared: str = ""
    traced: bool = False
    left_out: tuple[str, ...] = ()

    @property
    def wrong(self) -> tuple[LayerError, ...]:
        """The layers that are off alone, in order of execution."""
        return tuple(error for error in self.errors if not error.within)

    @property
    def explains(self) -> bool:
        """True if the region is right since each layer is."""
        return self.same and self.passed

    @property
    def passed(self) -> bool:
        """True if layers were compared, and none is off alone."""
        return bool(self.errors) and not self.problem

    @property
    def problem(self) -> str:
        """The layers that are off alone, as a sentence without a full stop; empty for none."""
        if self.wrong:
            more = f", and {len(self.wrong) - 1} more layers" if len(self.wrong) > 1 else ""
            return f"{self.wrong[0]}{more}"
        off = [error for error in self.floats if not error.within]
        return (
            f"its output '{off[0].name}' {off[0].problem or f'is off {off[0].error_phrase}'}"
            if off
            else ""
        )

    def __str__(self) -> str:
        """Return the finding as a sentence without a full stop."""
        if not self.errors:
            return f"its quantized layers are not compared alone: {self.not_compared}"
        if self.problem:
            return self.problem
        largest = max(error.largest for error in self.errors)
        mean = max(abs(error.mean) for error in self.errors)
        parts = f", {len(self.left_out)} more as parts of others" if self.left_out else ""
        by = f" by the codegen's trace{parts}" if self.traced else ""
        found = (
            f"{len(self.errors)} quantized layers, each compared alone{by}, are off by at most "
            f"{largest:g} units, and by {mean:.2f} on average of a channel"
        )
        if self.same:
            return found
        return f"{found}; with its layers shown it is compiled to something else than in the bundle"


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

SpecialKind = Literal["ends", "nan", "infinities", "empty"]
"""A kind of special values: finite ones, NaN, infinities, or no elements at all."""

SPECIAL_NAMES: Mapping[SpecialKind, str] = {
    "ends": "special values",
    "nan": "NaN",
    "infinities": "infinities",
    "empty": "extents of 0",
}

SampleKind = Literal["given", "other", "made", "none"]
"""The sample that a region was compared on: the one given, another one of the model's inputs, values
made for its boundary tensors alone, or none."""


@dataclass(frozen=True, slots=True)
class RegionError:
    """The error of a region alone, compared with its ONNX on plain onnxruntime on the same inputs.

    `outputs` has the worst error of each output over all `runs`: several in the body of a Loop, none if
    the region was not compared. `problem` says why it could not be run, `sample` what it was run on, and
    `judge` what computed the expected outputs where that is not onnxruntime. `layers` has the quantized
    layers, each compared alone; None where the outputs are equal, or floats.
    `wrong_inputs` are the first inputs of the region on which it was off, None where it never was;
    `special` is the kind of special values among them, None for other inputs. `too_large` says that it
    was asked no special values, which would have taken longer than all else.
    """

    name: str
    outputs: tuple[OutputError, ...] = ()
    runs: int = 1
    problem: str = ""
    sample: SampleKind = "given"
    judge: str = ""
    layers: LayerCheck | None = None
    wrong_inputs: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    special: SpecialKind | None = None
    too_large: bool = False

    @property
    def within(self) -> bool:
        """True if the region ran, every output is within its tolerance, and no layer is off alone."""
        outputs = all(output.within for output in self.outputs)
        return not self.problem and outputs and not self.layer_problem

    @property
    def layer_problem(self) -> str:
        """The layers that are off alone, as a sentence; empty for none."""
        return "" if self.layers is None else self.layers.problem

    @property
    def worst(self) -> OutputError | None:
        """The output with the largest error; None without outputs."""
        return max(self.outputs, key=OutputError.severity, default=None)

    @property
    def description(self) -> str:
        """The worst error, as part of a sentence about the region."""
        worst = self.worst
        if worst is None or self.problem:
            return self.problem
        if self.layer_problem:
            return self.layer_problem
        found = f"its output '{worst.name}' {worst.problem or f'is off {worst.error_phrase}'}"
        return (
            f"{found}; {self.layers}" if self.layers is not None and self.layers.not_compared else found
        )


@dataclass(frozen=True, slots=True)
class Reach:
    """The number of regions, and of those that the given sample did not reach.

    Of these, `others` were reached by other inputs of the model, `alone` were compared on values made
    for them alone, and `never` were not compared. `too_large` counts those, reached or not, that were
    asked no special values since these would have taken too long.
    """

    regions: int
    others: int
    alone: int
    never: int
    too_large: int = 0

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
        found = [
            f"{_list_names(regions)} compiled, not verified here: {reason}"
            for reason, regions in by_reason.items()
        ]
        never = [region.name for region in self.regions if region.sample == "none"]
        if never:
            found.append(f"{_list_names(never)} not compared: no inputs that were tried reach it")
        return "; ".join(found)

    @property
    def layers_not_compared(self) -> str:
        """The layers that were not compared alone, with the reason: a part of a sentence, or empty."""
        left = {each.name: each.layers.not_compared for each in self.regions if each.layers is not None}
        reasons = {name: reason for name, reason in left.items() if reason}
        if not reasons:
            return ""
        first = next(iter(reasons.values()))
        return f"the quantized layers of {_list_names(list(reasons))} were not compared alone: {first}"

    @property
    def passed(self) -> bool:
        """True if every output and every region is within its tolerance."""
        outputs = all(output.within for output in self.outputs)
        return outputs and all(region.within for region in self.regions)

    @property
    def reach(self) -> "Reach":
        """The counts of regions by their samples."""
        count = Counter(region.sample for region in self.regions)
        large = sum(region.too_large for region in self.regions)
        return Reach(len(self.regions), count["other"], count["made"], count["none"], large)

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
    if region.layer_problem:
        return f"region {region.name}: {region.layer_problem}"
    on = "" if region.special is None else f" on {SPECIAL_NAMES[region.special]}"
    tensor = f"region {region.name} alone{on}: output '{worst.name}'"
    said = _describe_error(tensor, worst, "its own ONNX on plain onnxruntime")
    left = region.layers is not None and region.layers.not_compared
    return f"{said}; {region.layers}" if left else said


@dataclass(frozen=True)
class NotVerified:
    """The reason why there was no verification; `missing` says that one was to be made."""

    reason: str
    missing: bool = False


@dataclass(frozen=True)
class RewriteComparison:
    """The errors of the outputs after a rewrite, the worst over `samples` samples.

    `equal` says that all outputs had the same bits. `not_compared` says why there are no errors, where
    neither onnxruntime nor a sample was to be had.
    """

    errors: tuple[OutputError, ...] = ()
    samples: int = 0
    equal: bool = False
    not_compared: str = ""

    @property
    def largest_error(self) -> float:
        """The largest error as a share of the output's range."""
        return max((error.relative for error in self.errors), default=0.0)

    @property
    def problem(self) -> str:
        """The errors beyond tolerance, as the end of a sentence; empty for none."""
        wrong = [error for error in self.errors if not error.within]
        if not wrong:
            return ""
        worst = max(wrong, key=OutputError.severity)
        return f"its output '{worst.name}' {worst.problem or f'is off {worst.error_phrase}'}"
