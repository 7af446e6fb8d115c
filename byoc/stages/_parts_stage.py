"""The stage that places nodes in parts, where accelerators refuse them whole and take the parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from byoc.errors import InputError
from byoc.model import get_operator_name, name_nodes
from byoc.planning import NodeSplitter, find_parts
from byoc.stages._ask_stage import Ask
from byoc.stages._planning_stages import Annotate, Group, Place
from byoc.stages._state import Placed, Prepared, take
from byoc.support import report_step

if TYPE_CHECKING:
    from byoc.planning import GraphPlan, WholePrice

_LEAST_GAIN = 1e-9  # of the objective, relative: what is less is rounding, and nodes stay whole
_MAX_NAMES = 4  # of nodes in the note


@dataclass(frozen=True)
class PlaceParts:
    """Place again with the refused nodes that have a function body in parts, where that pays.

    A trial prices the parts of a node on the host as the whole node. Nodes of which it offloads nothing
    stay whole, and the others are placed at what their parts cost: all of them, and those alone of which
    everything is offloaded. The cheapest of these plans and of the one without parts is kept.
    """

    def run(self, state: Placed) -> Placed:
        """Return the state with the better placement: its own where no such node pays in parts."""
        settings, failed = state.settings, state.findings.not_in_parts
        if failed:
            note = f"nodes stay whole, since the bundle with some in parts failed: {failed}"
            return replace(state, root=replace(state.root, notes=(*state.root.notes, note)))
        splitter = NodeSplitter(state.model, settings.targets, state.request.options.no_passes)
        candidates = splitter.find_candidates(state.root)
        if not candidates:
            return state
        report_step(f"place {len(candidates)} nodes in parts")
        try:
            plans = [state, *_place_in_parts(state, splitter, candidates)]
        except InputError:  # as where the cost of a part is not known, and none may be estimated
            return state
        best = min(plans, key=lambda each: each.root.placement.cost.total)
        least = (1 - _LEAST_GAIN) * state.root.placement.cost.total
        if best.root.placement.cost.total >= least:
            return state
        root = replace(best.root, host_only=state.root.host_only)  # whole nodes, as the model has them
        return replace(best, root=_add_note(root, state.root))


def _place_in_parts(
    state: Placed, splitter: NodeSplitter, candidates: Mapping[str, WholePrice]
) -> Iterator[Placed]:
    """Yield placements with nodes in parts, each with another choice of them."""
    trial = find_parts(_place(state, splitter, candidates, candidates).root)
    tried: list[Collection[str]] = []
    for wanted in (any, all):
        chosen = [name for name, offloaded in trial.items() if wanted(offloaded)]
        while chosen and chosen not in tried:
            tried.append(chosen)
            placed = _place(state, splitter, chosen, {})
            parts = find_parts(placed.root)
            left = [name for name in chosen if any(parts.get(name, ()))]
            if left == chosen:
                yield placed
            chosen = left


def _place(
    state: Placed,
    splitter: NodeSplitter,
    names: Collection[str],
    prices: Mapping[str, WholePrice],
) -> Placed:
    """Place the model with some nodes in parts."""
    prepared = replace(
        Prepared(**take(Prepared, state)),
        precision=replace(state.precision, model=splitter.split(names)),
        settings=replace(state.settings, whole_prices=prices),
        findings=replace(state.findings, whole=state.model),
    )
    placed = Place().run(Ask().run(Group().run(Annotate().run(prepared))))
    return replace(placed, settings=replace(placed.settings, whole_prices={}))


def _add_note(root: GraphPlan, before: GraphPlan) -> GraphPlan:
    """Return a plan with a note on the nodes that are in parts, whose operators `before` has."""
    names = [*find_parts(root)]
    operators = _count_operators(before, names)
    listed = ", ".join(f"'{name}'" for name in names[:_MAX_NAMES])
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    what = ", ".join(f"{operator} ({count})" for operator, count in operators.items())
    note = f"placed in parts, since no accelerator takes them whole: {what}: {listed}{more}"
    return replace(root, notes=(*root.notes, note))


def _count_operators(root: GraphPlan, names: Collection[str]) -> Counter[str]:
    """Count some nodes of a plan by operator."""
    wanted = {*names}
    return Counter(
        get_operator_name(graph.index.nodes[number])
        for graph in root.walk()
        for number, name in name_nodes(graph.index, graph.path).items()
        if name in wanted
    )
