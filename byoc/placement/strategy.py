"""What a strategy is, and what it gives back."""

from dataclasses import dataclass
from typing import Protocol, Self

from byoc.placement.objective import Cost, evaluate
from byoc.placement.problem import Ints, Problem
from byoc.placement.regions import form_regions

# More than the few roundings by which two sums of the same costs may differ.
_ROUNDING = 2.0**-48


@dataclass(frozen=True, eq=False)
class Placement:
    """Where every unit runs, in which region, and what that costs."""

    labels: Ints
    """int64 (units,): the device of each unit, 0 = host."""
    regions: Ints
    """int64 (units,): the region of each unit, -1 = host, numbered in launching order."""
    cost: Cost
    bound: float | None = None
    """Seconds that no placement's total can fall below; None if the strategy proves nothing."""
    notes: tuple[str, ...] = ()
    """Sentences on what the strategy left out of its account."""
    why_host: str = "the strategy left it on the host"
    """Why units that an accelerator would take are on the host."""

    @classmethod
    def of(
        cls,
        problem: Problem,
        labels: Ints,
        bound: float | None = None,
        notes: tuple[str, ...] = (),
        why_host: str = why_host,
    ) -> Self:
        """Form and cost the regions of `labels`, int64 (units,); take rounding off `bound`."""
        regions = form_regions(problem, labels)
        proven = None if bound is None else bound * (1 - _ROUNDING)
        return cls(labels, regions, evaluate(problem, labels, regions), proven, notes, why_host)


CHEAPER_ON_HOST = "the host is cheaper once moving the data is counted"


class Strategy(Protocol):
    """Turns a problem into a placement; a frozen dataclass here, whose fields are its options."""

    @property
    def name(self) -> str:
        """What the user calls it."""
        ...

    def solve(self, problem: Problem) -> Placement:
        """Return a placement; raise InputError where the strategy cannot take such a problem."""
        ...
