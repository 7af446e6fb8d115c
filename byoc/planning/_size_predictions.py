"""The predicted seconds of a placement at other sizes or costs than those it was made for."""

from collections.abc import Mapping
from dataclasses import replace

from byoc.model import GraphIndex, PlannedSizes
from byoc.planning._graph_placement import plan_graphs
from byoc.planning._graph_plan import GraphPlan
from byoc.planning._graph_units import GraphUnits
from byoc.planning._pinned_nodes import PinnedNode, PinnedNodes
from byoc.planning._plan_data import PredictionAtSizes
from byoc.planning._plan_settings import PlanSettings


def predict_at_ends(
    root: GraphPlan, settings: PlanSettings, units: Mapping[int, GraphUnits]
) -> tuple[PredictionAtSizes, ...]:
    """Return predictions for the ends and the middle of the ranges that the user gave, none without any.

    All ranges are at their least, their middle, or their largest size together. `units` has those of
    each graph, by the id of its index.
    """
    planned = root.index.planned
    if not planned.ranges:
        return ()
    ends = [{name: span[at] for name, span in planned.ranges.items()} for at in (0, 1)]
    found = [_predict_at(root, settings, units, {**planned.sizes, **end}) for end in ends]
    middle = PredictionAtSizes(dict(planned.sizes), root.cost.total, root.host_only)
    return found[0], middle, found[1]


def _predict_at(
    root: GraphPlan, settings: PlanSettings, units: Mapping[int, GraphUnits], sizes: Mapping[str, int]
) -> PredictionAtSizes:
    """Price the placement at other sizes: every node is pinned to where it is."""
    index = replace(root.index, planned=PlannedSizes(sizes))
    resized = {id(old): new for old, new in _pair_graphs(root.index, index)}
    inside = {id(new): units[old] for old, new in resized.items()}
    pins = _pin_nodes(root, {old: id(new) for old, new in resized.items()})
    plan = plan_graphs(index, replace(settings, doubt=None), inside, pins)
    return PredictionAtSizes(dict(sizes), plan.cost.total, plan.host_only)


def price_placement(
    root: GraphPlan, settings: PlanSettings, units: Mapping[int, GraphUnits]
) -> GraphPlan:
    """Return the plan that has every node where another plan has it, at the costs of these settings.

    `units` has those of each graph, by the id of its index. Raises InputError as `plan_graphs`.
    """
    same = {id(plan.index): id(plan.index) for plan in root.walk()}
    return plan_graphs(root.index, replace(settings, doubt=None), units, _pin_nodes(root, same))


def _pin_nodes(root: GraphPlan, graphs: Mapping[int, int]) -> PinnedNodes:
    """Pin every node to where it is; `graphs` has the id of each graph's index in the new plan."""
    return PinnedNodes(
        {
            graphs[id(plan.index)]: {
                node: PinnedNode(f"node {node}", label, "the placement")
                for unit, label in zip(plan.units, plan.placement.labels.tolist(), strict=True)
                for node in unit.nodes
            }
            for plan in root.walk()
        }
    )


def _pair_graphs(old: GraphIndex, new: GraphIndex) -> list[tuple[GraphIndex, GraphIndex]]:
    """Return each graph of one index with that of the other, bodies included."""
    pairs = [(old, new)]
    for node, bodies in old.bodies.items():
        for before, after in zip(bodies, new.bodies[node], strict=True):
            pairs += _pair_graphs(before.index, after.index)
    return pairs
