"""Making a plan: every graph of the model is planned, its regions get names, the model is outlined."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

from byoc.costs.trips import check_trips
from byoc.errors import InputError
from byoc.graph.index import GraphIndex
from byoc.graph.load import Model
from byoc.graph.outline import Cut, GraphCuts, Group, check_unused, outline
from byoc.graph.unshare import unshared
from byoc.patterns.unit import Unit
from byoc.plan.bounding import bounded
from byoc.plan.data import GraphPlan, Plan, PlannedRegion
from byoc.plan.planner import Planner
from byoc.plan.settings import Settings
from byoc.plan.whatif import what_ifs
from byoc.rules.host import unmatched_host


def make_plan(
    model: Model, settings: Settings, asked: Mapping[str, Any], progress: Callable[[str], None]
) -> Plan:
    """Return the plan for a model: annotate, group, place, outline, bound.

    `asked` is what the caller gave, by name, for the manifest. Raises InputError when the model has no
    such Loop or Scan as the settings speak of, uses a target's domain, a cost that is needed is not
    known, or the strategy fails.
    """
    try:
        check_unused(model.index, [target.domain for target in settings.targets])
        check_trips(model.index, settings.trips)
    except InputError as error:
        raise InputError(f"{model.source}: {error}") from None
    progress("place")
    quantized = any(target.quantized for target in settings.targets)
    index = (unshared(model) if quantized else model).index
    numbers = {target.name: count() for target in settings.targets}
    names = [target.name for target in settings.targets]
    pins = settings.saved.resolve(index, names) if settings.saved else None
    root = _named(Planner(settings, pins).whole(index), numbers)
    more = [note for target in settings.targets for note in unmatched_host(index, target)]
    more += pins.notes if pins is not None else []
    root = replace(root, notes=(*root.notes, *more))
    progress("outline")
    try:
        outlined = outline(_cuts(root))
        progress("bound")
        result = bounded(root, outlined, model.folder)
    except InputError as error:
        raise InputError(f"{model.source}: {error}") from None
    root = replace(root, notes=(*root.notes, *result.notes))
    gains = tuple(what_ifs(root))
    return Plan(
        asked,
        model,
        settings.targets,
        root,
        result.proto,
        gains,
        result.values,
        origins=result.origins,
    )


def _named(plan: GraphPlan, numbers: Mapping[str, Iterator[int]]) -> GraphPlan:
    """Return a plan whose regions have names, the main graph's first."""
    regions = tuple(
        replace(region, name=f"{region.target.name}_{next(numbers[region.target.name])}")
        for region in plan.regions
    )
    bodies = {
        number: tuple(_named(body, numbers) for body in inner) for number, inner in plan.bodies.items()
    }
    return replace(plan, regions=regions, bodies=bodies)


def _cuts(plan: GraphPlan) -> GraphCuts:
    """Return what a plan does to its graph."""
    stay = {
        node: {"byoc.device": "host", "byoc.reason": str(reason)}
        for unit, reason in plan.host_units
        for node in unit.nodes
    }
    return GraphCuts(
        index=plan.index,
        cuts=tuple(_cut(plan.index, region) for region in plan.regions),
        metadata=stay,
        bodies={number: [_cuts(body) for body in inner] for number, inner in plan.bodies.items()},
    )


def _cut(index: GraphIndex, region: PlannedRegion) -> Cut:
    return Cut(
        name=region.name,
        domain=region.target.domain,
        groups=tuple(_group(index, unit) for unit in region.units),
        metadata={
            "byoc.target": region.target.name,
            "byoc.units": str(len(region.units)),
            "byoc.predicted_seconds": f"{region.seconds:.3e}",
        },
    )


def _group(index: GraphIndex, unit: Unit) -> Group:
    """Return what becomes of a unit in its region; the nodes of a QDQ group bear its name."""
    metadata = {"byoc.rules": ", ".join(unit.rules)}
    if unit.kind == "qdq":
        metadata["byoc.qdq"] = unit.name
    if unit.match is None:
        return Group(unit.nodes, metadata=metadata)
    inside = [index.nodes[i] for i in sorted(unit.match.nodes.values())]
    metadata["byoc.nodes"] = ", ".join(node.name or node.output[0] for node in inside)
    return Group(unit.nodes, unit.match.as_composite(index), metadata)
