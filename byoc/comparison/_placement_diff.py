"""The differences between two placements: nodes that moved, why, regions, and costs."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf, isclose, log10
from typing import Any, Literal

from byoc.bundle import PlacedNode
from byoc.comparison._placement_changes import (
    TOLERANCE,
    CostChange,
    ErrorChange,
    LostNodes,
    NodeMove,
    Placed,
    PlacementDiff,
    PlacementSnapshot,
    RegionChange,
    SnapshotError,
    SnapshotRegion,
    read_snapshot,
)
from byoc.errors import CauseKind, InputError
from byoc.zoo import Source

_DIGEST = 6  # characters of the digest in a region's name
_HOST = "host"
# The accelerator takes these nodes: that they are on the host is for the seconds to judge.
_CHOSEN = {CauseKind.COST, CauseKind.GIVEN}
_QUOTED = re.compile(r"'[^']*'")


def diff(
    old: Placed,
    new: Placed,
    model: Source | None = None,
    *,
    variant: str | None = None,
    **options: Any,
) -> PlacementDiff:
    """Return the differences from one placement to another.

    `old` and `new` are each a bundle (a path, or what `byoc.open_bundle` returned), what
    `byoc.partition` returned, the JSON report of a plan, a saved placement, or a rule file. `model` is
    what rule files are compared by: it is planned with each, with `options` of `byoc.partition`.
    `variant` is the name of the one that is compared, of the side or sides that have variants; a side
    without is compared as it is.

    Raises InputError for anything else, for a rule file without a model, for a model or options without
    a rule file, and for two sources that say nothing about the same.
    """
    sides = [read_snapshot(each, model, variant, options) for each in (old, new)]
    if variant is not None and not any(each.is_variant for each in sides):
        labels = " and ".join(each.label for each in sides)
        raise InputError(f"{labels} have no variants, so that none is '{variant}'")
    planning = [name for name, value in {"model": model, **options}.items() if value]
    if planning and not any(each.is_planned for each in sides):
        labels = " and ".join(each.label for each in sides)
        raise InputError(f"{', '.join(planning)}: is for rule files, and {labels} are plans already")
    return diff_snapshots(*sides)


def diff_snapshots(old: PlacementSnapshot, new: PlacementSnapshot) -> PlacementDiff:
    """Return the differences. Raises InputError if the two have nothing in common to compare."""
    notes = [
        f"{side.label} has no nodes: regions, reasons and costs are compared"
        for side in (old, new)
        if side.nodes is None
    ]
    notes += [
        f"{side.label} has no regions and no costs: nodes are compared"
        for side in (old, new)
        if side.costs is None
    ]
    if (old.nodes is None or new.nodes is None) and (old.costs is None or new.costs is None):
        raise InputError(
            f"{old.label} and {new.label} have nothing in common: a saved placement has nodes, a report "
            "has regions and costs; a bundle has both"
        )
    moves: list[NodeMove] = []
    pairs: list[tuple[PlacedNode, PlacedNode]] = []
    added: list[PlacedNode] = []
    removed: list[PlacedNode] = []
    if old.nodes is not None and new.nodes is not None:
        pairs, removed, added = match_nodes(old.nodes, new.nodes)
        both = old.costs is not None and new.costs is not None
        moves = _list_moves(pairs, sum(node.operations for node in new.nodes), both)
    reasons = {}
    if old.reasons is not None and new.reasons is not None:
        names = dict.fromkeys((*old.reasons, *new.reasons))
        counts = {name: (old.reasons.get(name, 0), new.reasons.get(name, 0)) for name in names}
        reasons = {name: count for name, count in counts.items() if count[0] != count[1]}
    costs = {}
    if old.costs is not None and new.costs is not None:
        costs = {name: CostChange(cost, new.costs[name]) for name, cost in old.costs.items()}
    missing = next((each for each in (old, new) if not each.errors), None)
    return PlacementDiff(
        old=old.label,
        new=new.label,
        matched=None if old.nodes is None or new.nodes is None else len(pairs),
        moves=tuple(moves),
        added=_count_nodes(added),
        removed=_count_nodes(removed),
        regions=tuple(_diff_regions(old.regions, new.regions, pairs)),
        reasons=reasons,
        costs=costs,
        lost=tuple(_list_lost(pairs, removed, added, Counter(new.dropped) - Counter(old.dropped))),
        errors=tuple(_diff_errors(old.errors, new.errors)),
        predicted=_find_predicted(old, new),
        notes=tuple(dict.fromkeys(notes)),
        not_compared="" if missing is None else f"{missing.label}: {missing.why_none}",
    )


def _find_predicted(old: PlacementSnapshot, new: PlacementSnapshot) -> CostChange | None:
    """Return the seconds that both plans minimized, the sum of all costs where that differs."""
    if old.taken is None or new.taken is None or old.costs is None or new.costs is None:
        return None
    if old.taken[0] != new.taken[0]:
        return CostChange(old.costs["seconds"], new.costs["seconds"])
    return CostChange(old.taken[1], new.taken[1])


def _list_lost(
    pairs: Iterable[tuple[PlacedNode, PlacedNode]],
    removed: Iterable[PlacedNode],
    added: Iterable[PlacedNode],
    dropped: Mapping[str, int],
) -> Iterator[LostNodes]:
    """Yield the nodes that were offloaded and are not supported any more, and those that are gone.

    Nodes that are on one side alone are compared by their number, since they may have been renamed; so
    are those whose name has another operator now.
    `dropped` are the numbers of nodes by operator that passes removed on the new side alone.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    removed, added = [*removed], [*added]
    for old, new in pairs:
        if old.operator and old.operator != new.operator:
            removed.append(old)
            added.append(new)
        elif old.device != _HOST and new.device == _HOST and not _CHOSEN.intersection(new.causes):
            reason = _QUOTED.sub("'...'", new.reason)
            groups.setdefault((new.operator or old.operator, reason), []).append(new.name)
    for (operator, reason), names in groups.items():
        yield LostNodes(operator, len(names), gone=False, reason=reason, nodes=tuple(names))
    before, after = _group_by_operator(removed), _group_by_operator(added)
    for operator, old_nodes in before.items():
        new_nodes = after.get(operator, [])
        gone = max(0, len(old_nodes) - len(new_nodes) - dropped.get(operator, 0))
        if gone:
            whole = tuple(node.name for node in old_nodes)
            yield LostNodes(operator, gone, gone=True, reason="", nodes=whole)
        offloaded = [node for node in old_nodes if node.device != _HOST]
        refused = [
            node for node in new_nodes if node.device == _HOST and not _CHOSEN.intersection(node.causes)
        ]
        fewer = len(offloaded) - sum(node.device != _HOST for node in new_nodes)
        number = min(fewer, len(refused))
        if number > 0:
            before_names = tuple(node.name for node in offloaded)
            yield LostNodes(operator, number, gone=False, reason=refused[0].reason, nodes=before_names)


def _group_by_operator(nodes: Iterable[PlacedNode]) -> dict[str, list[PlacedNode]]:
    groups: dict[str, list[PlacedNode]] = {}
    for node in nodes:
        groups.setdefault(node.operator, []).append(node)
    return groups


def _diff_errors(
    old: Mapping[str, SnapshotError], new: Mapping[str, SnapshotError]
) -> Iterator[ErrorChange]:
    """Yield the change of each error, for the outputs that both sides verified.

    Where one of them is in lower precision, the ratio to the float model is compared: the error against
    the quantized model says nothing of it.
    """
    for name, before in old.items():
        after = new.get(name)
        if after is None:
            continue
        if before.lowered or after.lowered:
            equal = before.decibels == after.decibels
            growth = 0.0 if equal else before.decibels - after.decibels
            yield ErrorChange(name, "accuracy", before.decibels, after.decibels, growth)
            continue
        least = max(before.explained, after.explained)
        first, second = max(before.error, least), max(after.error, least)
        yield ErrorChange(name, "error", before.error, after.error, _grow(first, second))


def _grow(before: float, after: float) -> float:
    """Return the dB by which an error grew: infinite from 0 or to infinity, -infinite the other way."""
    if before == after:
        return 0.0
    if min(before, after) <= 0:
        return inf if after > before else -inf
    return 20 * (log10(after) - log10(before))  # the quotient of two errors may be 0 or infinite


def match_nodes(
    old: Sequence[PlacedNode], new: Sequence[PlacedNode]
) -> tuple[list[tuple[PlacedNode, PlacedNode]], list[PlacedNode], list[PlacedNode]]:
    """Return the nodes that are in both, those of the old side alone, and those of the new side alone.

    A node is the same by name and first output, else by name, else by output.
    """
    pairs: dict[int, int] = {}
    taken: set[int] = set()
    keys = (
        lambda node: (node.name, node.output),
        lambda node: node.name,
        lambda node: node.output,
    )
    for key in keys:
        there: dict[object, int] = {}
        for number, node in enumerate(new):
            if number not in taken:
                there.setdefault(key(node), number)
        for number, node in enumerate(old):
            other = there.get(key(node))
            if number not in pairs and other is not None and other not in taken:
                pairs[number] = other
                taken.add(other)
    return (
        [(old[number], new[other]) for number, other in sorted(pairs.items())],
        [node for number, node in enumerate(old) if number not in pairs],
        [node for number, node in enumerate(new) if number not in taken],
    )


def _list_moves(
    pairs: Iterable[tuple[PlacedNode, PlacedNode]], operations: float, reasons: bool
) -> list[NodeMove]:
    """Return the moves, those of most operations first.

    With `reasons`, which both sides have then, nodes that stay for another reason are among them.
    Reasons that differ in the names that they quote alone are one.
    """
    groups: dict[tuple[str, ...], list[tuple[PlacedNode, PlacedNode]]] = {}
    for old, new in pairs:
        why = _QUOTED.sub("''", old.reason), _QUOTED.sub("''", new.reason)
        if old.device != new.device or (reasons and why[0] != why[1]):
            key = new.operator or old.operator, old.device, new.device, *why
            groups.setdefault(key, []).append((old, new))
    moves = [
        NodeMove(
            operator=key[0],
            device_before=key[1],
            device_after=key[2],
            reason_before=found[0][0].reason,
            reason_after=found[0][1].reason,
            rules_before=_collect(old.rule for old, _ in found),
            rules_after=_collect(new.rule for _, new in found),
            regions_before=_collect(old.region for old, _ in found),
            regions_after=_collect(new.region for _, new in found),
            nodes=tuple(new.name for _, new in found),
            share=sum(new.operations for _, new in found) / operations if operations else None,
        )
        for key, found in groups.items()
    ]
    return sorted(moves, key=lambda move: (not move.is_move, -(move.share or 0.0), -len(move.nodes)))


def _collect(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, texts)))


def _count_nodes(nodes: Iterable[PlacedNode]) -> dict[str, dict[str, int]]:
    """Return the numbers of nodes by operator and device."""
    counts: dict[str, Counter[str]] = {}
    for node in nodes:
        counts.setdefault(node.operator, Counter())[node.device] += 1
    return {operator: dict(devices) for operator, devices in counts.items()}


def _diff_regions(
    old: Sequence[SnapshotRegion] | None,
    new: Sequence[SnapshotRegion] | None,
    pairs: Iterable[tuple[PlacedNode, PlacedNode]],
) -> Iterator[RegionChange]:
    """Yield the regions that differ, in launch order, those that are gone last.

    A region of another name is the same as the one that it shares the most nodes with, or, where nodes
    are not known, the one whose name has the same digest.
    """
    if old is None or new is None:
        return
    before, after = ({each.name: each for each in side} for side in (old, new))
    shared = Counter(
        (first.region, second.region)
        for first, second in pairs
        if first.region and second.region and first.region not in after and second.region not in before
    )
    partner: dict[str, str] = {}
    for (first, second), _ in sorted(shared.items(), key=lambda item: (-item[1], item[0])):
        if first not in partner.values() and second not in partner:
            partner[second] = first
    digests = {_get_digest(each): each.name for each in old if each.name not in after}
    for region in new:
        known = before.get(region.name)
        if known is not None:
            if not isclose(known.seconds, region.seconds, rel_tol=TOLERANCE, abs_tol=1e-300):
                yield _change("repriced", known, region)
            continue
        name = partner.get(region.name) or digests.get(_get_digest(region))
        if name is None or (name in partner.values() and region.name not in partner):
            yield _change("added", None, region)
            continue
        partner[region.name] = name
        same = before[name].nodes == region.nodes == shared.get((name, region.name), region.nodes)
        yield _change("renamed" if same else "changed", before[name], region)
    for region in old:
        if region.name not in after and region.name not in partner.values():
            yield _change("gone", region, None)


def _get_digest(region: SnapshotRegion) -> str:
    """Return the digest in a region's name, or the whole name if it has none."""
    digest = region.name.removeprefix(f"{region.device}_")
    return digest if len(digest) >= _DIGEST and digest != region.name else region.name


def _change(
    kind: Literal["added", "gone", "renamed", "changed", "repriced"],
    old: SnapshotRegion | None,
    new: SnapshotRegion | None,
) -> RegionChange:
    return RegionChange(
        kind,
        before=None if old is None else old.name,
        after=None if new is None else new.name,
        nodes_before=None if old is None else old.nodes,
        nodes_after=None if new is None else new.nodes,
        seconds_before=None if old is None else old.seconds,
        seconds_after=None if new is None else new.seconds,
    )
