"""The error of one tensor, and whether tolerance, noise or ties explain it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from byoc.verification._thresholds import TOLERANCE, Measure

# Differences of two tensors of numbers: the largest, the mean square, the mean of a channel.


@dataclass(frozen=True)
class Difference:
    """The largest difference of two tensors, and the mean of its squares."""

    largest: float = 0.0
    power: float = 0.0


def measure_difference(one: Any, other: Any) -> Difference:
    """Return the difference of two tensors of numbers, 0 where they cannot be compared.

    Elements that are not finite on either side are left out.
    """
    if one is None or other is None or isinstance(one, list) or isinstance(other, list):
        return Difference()
    wanted, got = (np.asarray(value) for value in (one, other))
    if wanted.shape != got.shape or wanted.dtype.kind == "O" or got.dtype.kind == "O":
        return Difference()
    error = wanted.astype(np.float64) - got.astype(np.float64)
    error = error[np.isfinite(error)]
    if not error.size:
        return Difference()
    return Difference(float(np.max(np.abs(error))), float(np.mean(error**2)))


def measure_shift(one: Any, other: Any) -> float:
    """Return the largest mean difference of a channel of two tensors of integers.

    Channels are along axis 1 or along the last one; tensors of one axis or none have no channels.
    """
    error = np.asarray(one).astype(np.float64) - np.asarray(other).astype(np.float64)
    if error.ndim < 2 or not error.size:
        return 0.0
    means = [
        error.mean(tuple(i for i in range(error.ndim) if i != axis)) for axis in (1, error.ndim - 1)
    ]
    return max(float(np.abs(each).max()) for each in means)


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
        """Return part of a sentence: `of 300 rows 2 in another order, tied within 2.4e-07`.

        Keys that are equal are said to be so.
        """
        parts = [f"{self.moved} in another order"] * (self.moved > 0)
        parts += [f"{self.replaced} replaced by others"] * (self.replaced > 0)
        tied = f"tied within {self.gap:.1e}" if self.gap else "with equal keys"
        return f"of {self.rows} rows {' and '.join(parts)}, {tied}"


@dataclass(frozen=True, slots=True)
class Fidelity:
    """The signal-to-noise ratios of an output against the float model, over all samples, in dB.

    `signal_to_noise` is the bundle's, `reference` that of onnxruntime with the same integers, `spread`
    by how much lower other right executions are, and `least` what the bundle must have.
    """

    signal_to_noise: float
    reference: float
    spread: float
    least: float

    @property
    def within(self) -> bool:
        """True if the output is as near to the float model as right executions are."""
        return self.signal_to_noise >= self.least

    def __str__(self) -> str:
        """Return part of a sentence: `15.7 dB against the float model, onnxruntime 15.9 dB`."""
        spread = f", other right executions {self.spread:.1f} dB less" if self.spread >= 0.1 else ""
        return (
            f"{self.signal_to_noise:.1f} dB against the float model, "
            f"onnxruntime {self.reference:.1f} dB{spread}"
        )


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
    original selects when ties are broken as in the actual tensor. `fidelity` is measured where an
    error of a quantized network is beyond its tolerance, and noise does not explain it or the float
    model is known.
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
    fidelity: Fidelity | None = None

    @property
    def within(self) -> bool:
        """True if the error is within the tolerance, noise explains it, or it keeps its fidelity."""
        if self.noise is not None and self.absolute <= self.noise:
            return True
        if self.fidelity is not None and self.fidelity.within:
            return True
        return self.is_tolerated

    @property
    def is_tolerated(self) -> bool:
        """True if the error is within the tolerance by itself."""
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
        if self.fidelity is not None:
            explained += (
                f"; it has {self.fidelity}, and at least {self.fidelity.least:.1f} dB is allowed"
            )
        return f"by {by}, {allowed} is allowed for {self.dtype}{explained}"

    def severity(self) -> tuple[bool, float]:
        """Return a sort key: errors beyond their tolerance last, then by size."""
        return not self.within, self.relative
