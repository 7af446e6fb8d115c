"""The strategy protocol, and the placement that a strategy returns."""

import math
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from enum import StrEnum
from typing import Protocol, Self

from byoc._dataclasses import dataclass, field, fields, is_dataclass, replace
from byoc.errors import InputError, shorten_text
from byoc.placement._form_regions import choose_fusions, form_regions
from byoc.placement._hard_limits import Cost, evaluate
from byoc.placement._problem import UNLIMITED, Ints, Problem

# More than the rounding errors by which two sums of the same costs can differ.
_ROUNDING = 2.0**-48
_LONGEST_NAME = 80  # characters of a plug-in's name in tables


class NoPlacementError(InputError):
    """A problem has no placement that keeps all its limits: this is proven."""

    def __init__(self) -> None:
        """Say so; `run_strategy` puts the name of the strategy in front."""
        super().__init__("no placement keeps all the limits")


class Robust(StrEnum):
    """The regret that a robust placement has the least of, over the samples."""

    mean = "mean"
    """the mean regret"""
    worst = "worst"
    """the largest regret"""


class Measure(StrEnum):
    """The quantity that a placement minimises."""

    total = "total"
    """all costs added up: one inference that does one thing at a time"""
    makespan = "makespan"
    """the time of one inference with host and accelerators at work at the same time"""
    load = "load"
    """the time for which one inference occupies the busiest device: a pipeline of several inferences
    finishes one so often"""


@dataclass(frozen=True, eq=False)
class Placement:
    """The device and the region of every unit, and the resulting cost."""

    labels: Ints
    """int64 (units,): the device of each unit, 0 = host."""
    regions: Ints
    """int64 (units,): the region of each unit, -1 = host, numbered in launch order."""
    cost: Cost
    bound: float | None = None
    """Lower bound in seconds on `value` for any placement; None if the strategy proves none."""
    notes: tuple[str, ...] = ()
    """Sentences on what the strategy did not take into account."""
    why_host: str = "the strategy left it on the host"
    """The reason why units that an accelerator accepts are on the host."""
    fusions: tuple[int, ...] = ()
    """The chosen fusions of the problem, in rising order."""
    measures: Mapping[str, float] = field(default_factory=dict)
    """Further numbers that the strategy states of its answer or its search, by name: columns of a study.
    Names are those of Python variables, at most 32."""

    @property
    def measure(self) -> Measure:
        """The quantity that `value` and `bound` are of."""
        return Measure.total

    @property
    def value(self) -> float:
        """The seconds that the placement minimises."""
        return self.cost.total

    @classmethod
    def from_labels(  # noqa: PLR0913, PLR0917 - the parts of a placement
        cls,
        problem: Problem,
        labels: Ints,
        bound: float | None = None,
        notes: tuple[str, ...] = (),
        why_host: str = why_host,
        regions: Ints | None = None,
        fusions: tuple[int, ...] | None = None,
    ) -> Self:
        """Build a placement from `labels`, int64 (units,), and compute its cost.
        Forms the regions and chooses the fusions that are not given. `bound`, 0 or more, is lowered by
        the rounding error of a sum.
        """
        if regions is None:
            regions = form_regions(problem, labels)
        if fusions is None:
            fusions = choose_fusions(problem, labels, regions)
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
SHARED_ENGINES = "shared engines"
CONTENTION = "contention"
DIRECT_LINKS = "direct links"
NETWORKS = "networks"
BUDGET = "budget"
CONDITIONS = frozenset({SHARED_ENGINES, CONTENTION, DIRECT_LINKS, NETWORKS, BUDGET})
"""The requirements that a problem's `Conditions` make."""
ALL_REQUIREMENTS = CONDITIONS | {
    *(LAUNCH, MUST, REGION_SIZE, REGION_COUNT, CAPACITY, FUSIONS, SEVERAL_DEVICES, CONNECTED)
}
"""All requirements that a strategy can take into account beyond execution and transfer."""


class Strategy(Protocol):
    """Turns a problem into a placement; usually a frozen dataclass whose fields are its options.
    The optional attribute `honours: frozenset[str]`, a subset of `ALL_REQUIREMENTS`, lists the
    requirements that the strategy takes into account beyond execution and transfer; without it, none.
    The optional attribute `repairable: bool` asks for the nearest placement that keeps all hard limits
    where the strategy's own breaks one (see `solve_problem`); without it, such an answer is an error.
    """

    @property
    def name(self) -> str:
        """The name that users select it by."""
        ...

    def solve(self, problem: Problem) -> Placement:
        """Return a placement; raise InputError if the strategy cannot solve such a problem.

        Raises NoPlacementError where it proves that no placement keeps all the limits.
        """
        ...


def check_time_limit(name: str, seconds: float, endless: bool = False) -> None:
    """Raise ValueError unless a field of a strategy is a number of seconds above 0, or `endless`."""
    if not seconds > 0 or (math.isinf(seconds) and not endless):
        raise ValueError(f"{name} is {seconds:g}, but must be a number of seconds above 0")


def check_count(name: str, count: int) -> None:
    """Raise ValueError unless a field of a strategy is 0 or more."""
    if count < 0:
        raise ValueError(f"{name} is {count}, but must be 0 or more")


def limit_time(strategy: Strategy, seconds: float | None) -> Strategy:
    """Return a strategy that takes at most so many seconds; for None the given one.

    A strategy with a field `time_limit` counts seconds of an ordinary computer by its steps. Others are
    returned as they are.
    Raises InputError if `seconds` is not a number above 0.
    """
    if seconds is None:
        return strategy
    if not 0 < seconds < math.inf:
        raise InputError(f"time limit {seconds:g}: not a number of seconds above 0")
    if not is_dataclass(strategy):
        return strategy
    limits = {each.name: seconds for each in fields(strategy) if each.name == "time_limit"}
    limited: Strategy = replace(strategy, **limits)
    return limited


def solve_applicable(problem: Problem, strategies: Iterable[Strategy]) -> Iterator[Placement]:
    """Yield the placements of the strategies that can solve a problem."""
    for strategy in strategies:
        with suppress(InputError):
            yield strategy.solve(problem)


_SENTENCES = {
    LAUNCH: "launches played no part in the choice",
    MUST: "it was not told that some units must be on an accelerator",
    REGION_SIZE: "it was not told how many nodes a region may have",
    REGION_COUNT: "it was not told how many regions a device may have",
    CAPACITY: "it was not told how much memory a device has",
    FUSIONS: "what units save by running as one played no part in the choice",
    SEVERAL_DEVICES: "it is made for one accelerator",
    CONNECTED: "it was not told that regions must be connected",
    SHARED_ENGINES: "it was not told which devices share an engine",
    CONTENTION: "that devices at work at once slow one another played no part in the choice",
    DIRECT_LINKS: "links between accelerators played no part in the choice",
    NETWORKS: "rates, deadlines and weights of networks played no part in the choice",
    BUDGET: "it was not told what a placement may cost by the other costs",
}


def strategy_display_name(strategy: object) -> str:
    """Return the name of a strategy for messages."""
    own = type(strategy).__name__
    try:
        return shorten_text(str(getattr(strategy, "name", own)), _LONGEST_NAME) or own
    except Exception:  # a property of a plug-in can fail
        return own


def find_requirements(problem: Problem) -> frozenset[str]:
    """Collect the requirements of a problem beyond execution and transfer, of `ALL_REQUIREMENTS`."""
    requirements = {
        LAUNCH: problem.launch.any(),
        MUST: problem.must.any(),
        REGION_SIZE: (problem.min_nodes > 1).any() or (problem.max_nodes < UNLIMITED).any(),
        REGION_COUNT: (problem.max_regions < UNLIMITED).any(),
        CAPACITY: (problem.capacity < float("inf")).any(),
        FUSIONS: bool(problem.fusions),
        SEVERAL_DEVICES: problem.devices > 1,
        CONNECTED: problem.connected.any(),
    }
    conditions = problem.conditions
    if conditions is not None:
        requirements |= {
            SHARED_ENGINES: conditions.engines is not None,
            CONTENTION: conditions.slowdown is not None,
            DIRECT_LINKS: conditions.direct is not None,
            NETWORKS: bool(conditions.networks),
            BUDGET: conditions.other is not None,
        }
    return frozenset(name for name, present in requirements.items() if present)


def describe_ignored(
    strategy: Strategy, problem: Problem, but: Set[str] = frozenset()
) -> tuple[str, ...]:
    """Return a sentence for each requirement of the problem, `but` some, that the strategy ignores.

    Raises InputError if `honours` is not a set of names.
    """
    honours: object = None
    with suppress(Exception):  # a property of a plug-in can fail
        honours = getattr(strategy, "honours", frozenset())
    if not isinstance(honours, (frozenset, set, tuple, list)):
        raise InputError(
            f"strategy {strategy_display_name(strategy)}: its honours are not a set of names"
        )
    needs = sorted(find_requirements(problem) - but)
    return tuple(_SENTENCES[need] for need in needs if need not in honours)
