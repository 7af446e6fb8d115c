"""The results of comparing quantized layers alone."""

from dataclasses import dataclass

from byoc.verification._output_error import OutputError


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
    bundle: only then is the region right if each layer is. `not_compared` says why there are none.
    """

    errors: tuple[LayerError, ...] = ()
    floats: tuple[OutputError, ...] = ()
    same: bool = False
    not_compared: str = ""

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
        found = (
            f"{len(self.errors)} quantized layers, each compared alone, are off by at most "
            f"{largest:g} units, and by {mean:.2f} on average of a channel"
        )
        if self.same:
            return found
        return f"{found}; with its layers shown it is compiled to something else than in the bundle"
