"""The changes between two placements as data, and checks that none is worse than tolerated."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf, isclose, isfinite
from typing import Any, Literal

from byoc.comparison._comparison_options import DEFAULT_ERROR_GROWTH, Tolerances
from byoc.console import format_count, format_decibels, format_quantity
from byoc.errors import InputError, RequirementError
from byoc.support import check_type

TOLERANCE = 1e-9
"""Costs that differ by a smaller share are rounded otherwise, not other costs."""


@dataclass(frozen=True)
class NodeMove:
    """Nodes of one operator that changed the device, or stay on the host for another reason.

    `reason_before` and `reason_after` are why the first of them was or is on the host, `rules_before`
    and `rules_after` the locations of the rules that accepted them; empty on the other side. `share` is
    their part of the operations of the model, None where that is not known.
    """

    operator: str
    device_before: str
    device_after: str
    reason_before: str
    reason_after: str
    rules_before: tuple[str, ...]
    rules_after: tuple[str, ...]
    regions_before: tuple[str, ...]
    regions_after: tuple[str, ...]
    nodes: tuple[str, ...]
    share: float | None

    @property
    def is_move(self) -> bool:
        """Whether the device is another one."""
        return self.device_before != self.device_after


@dataclass(frozen=True)
class RegionChange:
    """A region that is new or gone, has another name, other nodes, or another cost.

    `before` and `after` are its names, None where there is none.
    """

    kind: Literal["added", "gone", "renamed", "changed", "repriced"]
    before: str | None
    after: str | None
    nodes_before: int | None
    nodes_after: int | None
    seconds_before: float | None
    seconds_after: float | None


@dataclass(frozen=True)
class CostChange:
    """A predicted cost before and after: seconds, joules, or a number; None where it is not known."""

    before: float | None
    after: float | None

    @property
    def is_equal(self) -> bool:
        """Whether it is the same but for rounding."""
        if self.before is None or self.after is None:
            return self.before is self.after
        return isclose(self.before, self.after, rel_tol=TOLERANCE, abs_tol=1e-300)


@dataclass(frozen=True)
class LostNodes:
    """Nodes of one operator that an accelerator took and takes no more, or that are gone.

    `gone` nodes are not in the model any more, no pass of byoc removed them, and no new nodes of that
    operator stand for them. The others are on the host, since an accelerator does not support them or
    for the `reason` that is known. `nodes` are their names; of renamed ones those of before.
    """

    operator: str
    number: int
    gone: bool
    reason: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class ErrorChange:
    """The error of an output before and after, and by how many dB it grew; below 0 it shrank.

    In the measure `accuracy` both are signal-to-noise ratios against the float model, in dB, infinite
    where the outputs are equal and -infinite where there is no ratio. In the measure `error` both are
    the largest errors against the model that was compiled, as shares of the output's range.
    """

    output: str
    measure: Literal["accuracy", "error"]
    before: float
    after: float
    growth: float


@dataclass(frozen=True)
class RegressionCheck:
    """A thing by which a placement could be worse: whether it is, and a sentence with the numbers."""

    name: str
    outcome: Literal["passed", "failure", "skipped"]
    sentence: str


@dataclass(frozen=True)
class PlacementDiff:
    """The differences between two placements.

    `matched` nodes are in both, None where one side has no nodes; `added` and `removed` are the nodes
    of one side alone by operator and device. `reasons` has the numbers of nodes on the host by reason,
    where they differ; `costs` are those of one run. `lost` nodes are among those that moved and were
    removed. `errors` are those of the outputs that both sides verified, `not_compared` says why there
    are none; `equal` leaves them out, since they differ a little between machines. `predicted` are the
    seconds of a run by which the two are compared: the sum of all costs, or the makespan or load where
    both plans minimized that. `notes` say what could not be compared.
    """

    old: str
    new: str
    matched: int | None
    moves: tuple[NodeMove, ...]
    added: Mapping[str, Mapping[str, int]]
    removed: Mapping[str, Mapping[str, int]]
    regions: tuple[RegionChange, ...]
    reasons: Mapping[str, tuple[int, int]]
    costs: Mapping[str, CostChange]
    lost: tuple[LostNodes, ...] = ()
    errors: tuple[ErrorChange, ...] = ()
    predicted: CostChange | None = None
    notes: tuple[str, ...] = ()
    not_compared: str = ""

    @property
    def equal(self) -> bool:
        """Whether nothing differs of what both sides say."""
        changes = (self.moves, self.added, self.removed, self.regions, self.reasons)
        return not any(changes) and all(cost.is_equal for cost in self.costs.values())

    @property
    def slowdown(self) -> float | None:
        """The share by which the predicted seconds grew, None where a side has none."""
        if self.predicted is None:
            return None
        before, after = self.predicted.before or 0.0, self.predicted.after or 0.0
        if before:
            return after / before - 1
        return inf if after else 0.0

    @property
    def moved(self) -> int:
        """The number of nodes that are on another device."""
        return sum(len(move.nodes) for move in self.moves if move.is_move)

    def list_checks(self, tolerances: Tolerances) -> tuple[RegressionCheck, ...]:
        """Return a check for each thing by which the new placement could be worse than tolerated.

        Raises InputError for a tolerance that was given and of which both sides say nothing.
        """
        return tuple(list_regression_checks(self, tolerances))

    def check(self, tolerances: Tolerances) -> None:
        """Raise RequirementError, with a line for each thing that is worse than tolerated.

        Raises InputError as `list_checks` does.
        """
        worse = [each.sentence for each in self.list_checks(tolerances) if each.outcome == "failure"]
        if worse:
            raise RequirementError(*worse)

    def to_json(self) -> dict[str, Any]:
        """Return the differences as one JSON document."""
        document = {"equal": self.equal, "moved": self.moved, **asdict(self)}
        for change in document["errors"]:  # JSON has no infinite numbers
            change |= {key: None for key in ("before", "after", "growth") if not isfinite(change[key])}
        return document


# Whether a placement is worse than the one before: the gate of `byoc diff --only-worse`.

_NAMED = 5  # nodes in a sentence


def list_regression_checks(found: PlacementDiff, tolerances: Tolerances) -> Iterator[RegressionCheck]:
    """Yield the checks of a diff, those that could not be made as skipped ones with the reason.

    Raises InputError for a tolerance that was given and of which both sides say nothing.
    """
    check_type("tolerances", tolerances, Tolerances)
    yield _check_slowdown(found, tolerances.max_slowdown)
    if found.matched is None:
        without = "; ".join(note for note in found.notes if "has no nodes" in note)
        for name in ("lost-nodes", "gone-nodes"):
            yield RegressionCheck(name, "skipped", without)
    else:
        yield _check_lost("lost-nodes", [each for each in found.lost if not each.gone])
        yield _check_lost("gone-nodes", [each for each in found.lost if each.gone])
    yield from _check_errors(found, tolerances.max_error_growth)


def _check_slowdown(found: PlacementDiff, most: float | None) -> RegressionCheck:
    slowdown, predicted = found.slowdown, found.predicted
    if slowdown is None or predicted is None:
        if most is not None:
            raise InputError(f"--max-slowdown: {'; '.join(found.notes)}")
        return RegressionCheck("slowdown", "skipped", "; ".join(found.notes))
    most = most or 0.0
    before, after = (format_quantity(each or 0.0, "s") for each in (predicted.before, predicted.after))
    change = f"predicted {before} -> {after}, {100 * slowdown:+.4g} %"
    is_met = slowdown <= most + TOLERANCE
    return _make_check("slowdown", is_met, f"{change}; at most {100 * most:.4g} % is tolerated")


def _check_lost(name: str, lost: Sequence[LostNodes]) -> RegressionCheck:
    is_gone = name == "gone-nodes"
    if not lost:
        none = "no operator of the model is gone" if is_gone else "no node lost its accelerator"
        return RegressionCheck(name, "passed", none)
    return RegressionCheck(name, "failure", "; ".join(map(_describe_lost, lost)))


def _describe_lost(lost: LostNodes) -> str:
    names = ", ".join(lost.nodes[:_NAMED])
    more = f" and {len(lost.nodes) - _NAMED} more" if len(lost.nodes) > _NAMED else ""
    nodes = f"{format_count(lost.number, 'node')} of {lost.operator}"
    among = "" if lost.number == len(lost.nodes) else "among "
    if lost.gone:
        return f"gone from the model: {nodes} ({among}{names}{more})"
    why = f": {lost.reason}" if lost.reason else ""
    return f"no longer offloaded: {nodes} ({among}{names}{more}){why}"


def _check_errors(found: PlacementDiff, most: float | None) -> Iterator[RegressionCheck]:
    """Yield a check for each output whose error both sides know."""
    if not found.errors:
        why = found.not_compared or "no output of one side is among those of the other"
        if most is not None:
            raise InputError(f"--max-error-growth: {why}")
        yield RegressionCheck("error-growth", "skipped", why)
        return
    limit = DEFAULT_ERROR_GROWTH if most is None else most
    for change in found.errors:
        values = (change.before, change.after)
        if change.measure == "accuracy":
            told = [format_decibels(each) for each in values]
            against = "signal-to-noise against the float model"
        else:
            told = [f"{each:.2g}" if isfinite(each) else "not comparable" for each in values]
            against = "largest error as a share of the range"
        grown = f"{change.growth:+.2f} dB of error" if isfinite(change.growth) else "from or to no error"
        sentence = f"output '{change.output}': {against} {told[0]} -> {told[1]}, {grown}"
        is_met = change.growth <= limit + TOLERANCE
        yield _make_check(
            f"error-growth {change.output}", is_met, f"{sentence}; at most {limit:g} dB is tolerated"
        )


def _make_check(name: str, is_met: bool, sentence: str) -> RegressionCheck:
    return RegressionCheck(name, "passed" if is_met else "failure", sentence)
