"""What a strategy is, and what it gives back."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, Self

from byoc.errors import InputError, shortened
from byoc.placement.fusions import best_fusions
from byoc.placement.objective import Cost, evaluate
from byoc.placement.problem import UNLIMITED, Ints, Problem
from byoc.placement.regions import form_regions

# More than the few roundings by which two sums of the same costs may differ.
_ROUNDING = 2.0**-48
_LONGEST_NAME = 80


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
    fusions: tuple[int, ...] = ()
    """Which of the problem's fusions are chosen, in rising order."""

    @classmethod
    def of(  # noqa: PLR0913, PLR0917 - what a placement is made of
        cls,
        problem: Problem,
        labels: Ints,
        bound: float | None = None,
        notes: tuple[str, ...] = (),
        why_host: str = why_host,
        regions: Ints | None = None,
        fusions: tuple[int, ...] | None = None,
    ) -> Self:
        """Cost the regions of `labels`, int64 (units,); take rounding off `bound`, which is 0 or more.

        Regions that are not given are formed, fusions that are not given are chosen.
        """
        if regions is None:
            regions = form_regions(problem, labels)
        if fusions is None:
            fusions = best_fusions(problem, labels, regions)
        cost = evaluate(problem, labels, regions, fusions)
        proven = None if bound is None else max(bound * (1 - _ROUNDING), 0.0)
        return cls(labels, regions, cost, proven, notes, why_host, fusions)


CHEAPER_ON_HOST = "the host is cheaper once moving the data is counted"

LAUNCH = "launch"
MUST = "must"
REGION_SIZE = "region size"
REGION_COUNT = "region count"
CAPACITY = "capacity"
FUSIONS = "fusions"
SEVERAL_DEVICES = "several devices"
CONNECTED = "connected"
EVERYTHING = frozenset(
    {LAUNCH, MUST, REGION_SIZE, REGION_COUNT, CAPACITY, FUSIONS, SEVERAL_DEVICES, CONNECTED}
)
"""All that a strategy can take into account beyond execution and transfer."""


class Strategy(Protocol):
    """Turns a problem into a placement; a frozen dataclass here, whose fields are its options.

    `honours: frozenset[str]`, out of `EVERYTHING`, says what it takes into account when it chooses,
    beyond execution and transfer. A strategy without it honours nothing more.
    """

    @property
    def name(self) -> str:
        """What the user calls it."""
        ...

    def solve(self, problem: Problem) -> Placement:
        """Return a placement; raise InputError where the strategy cannot take such a problem."""
        ...


_SENTENCES = {
    LAUNCH: "launches played no part in the choice",
    MUST: "it was not told that some units must be on an accelerator",
    REGION_SIZE: "it was not told how many nodes a region may have",
    REGION_COUNT: "it was not told how many regions a device may have",
    CAPACITY: "it was not told how much memory a device has",
    FUSIONS: "what units save by running as one played no part in the choice",
    SEVERAL_DEVICES: "it is made for one accelerator",
    CONNECTED: "it was not told that regions must be connected",
}


def called(strategy: object) -> str:
    """Return what messages call a strategy."""
    own = type(strategy).__name__
    try:
        return shortened(str(getattr(strategy, "name", own)), _LONGEST_NAME) or own
    except Exception:  # a name can be computed, and fail
        return own


def needs(problem: Problem) -> frozenset[str]:
    """Return what a problem asks for beyond execution and transfer, out of `EVERYTHING`."""
    asked = {
        LAUNCH: problem.launch.any(),
        MUST: problem.must.any(),
        REGION_SIZE: (problem.min_nodes > 1).any() or (problem.max_nodes < UNLIMITED).any(),
        REGION_COUNT: (problem.max_regions < UNLIMITED).any(),
        CAPACITY: (problem.capacity < float("inf")).any(),
        FUSIONS: bool(problem.fusions),
        SEVERAL_DEVICES: problem.devices > 1,
        CONNECTED: problem.connected.any(),
    }
    return frozenset(need for need, is_asked in asked.items() if is_asked)


def unhonoured(strategy: Strategy, problem: Problem) -> tuple[str, ...]:
    """Return a sentence for each thing that the problem asks for and the strategy ignores.

    Raises InputError where what it honours is no set of names.
    """
    honours: object = None
    with suppress(Exception):  # it can be computed, and fail
        honours = getattr(strategy, "honours", frozenset())
    if not isinstance(honours, (frozenset, set, tuple, list)):
        raise InputError(f"strategy {called(strategy)}: its honours are not a set of names")
    return tuple(_SENTENCES[need] for need in sorted(needs(problem)) if need not in honours)
