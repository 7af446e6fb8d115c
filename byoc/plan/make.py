"""Making a plan: annotate, group, pose, place, outline."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx

from byoc.costs.load import load_device_costs, load_host_costs
from byoc.costs.pose import Posed, pose
from byoc.errors import ByocError, InputError
from byoc.graph.load import Model
from byoc.graph.outline import Cut, Group, interface, outline
from byoc.patterns.group import Unit, group
from byoc.placement import Placement, Problem, Strategy, objection
from byoc.placement.strategies.host_only import HostOnly
from byoc.plan.data import Plan, PlannedRegion, host_reason
from byoc.rules.annotate import annotate
from byoc.rules.load import Target


def make_plan(  # noqa: PLR0913, PLR0917 - the pipeline's parts, all needed
    model: Model,
    target: Target,
    strategy: Strategy,
    cost_models: tuple[str, str],
    asked: Mapping[str, Any],
    progress: Callable[[str], None],
) -> Plan:
    """Return the plan for a model: annotate, group, place, outline. `cost_models`: host, device."""
    host = load_host_costs(cost_models[0])
    device = load_device_costs(cost_models[1])
    index = model.index
    progress("annotate")
    marks = annotate(index, target.rules)
    units = group(index, target.patterns, marks)
    posed = pose(index, units, host, device, connected=target.rules.regions == "connected")
    progress(f"place {len(units)} units")
    placement = _solve(strategy, posed.problem)
    regions = _regions(model, target, units, posed, placement)
    progress("outline")
    labels = zip(units, placement.labels, strict=True)
    stay = {
        node: {"byoc.device": "host", "byoc.reason": str(host_reason(unit, placement))}
        for unit, label in labels
        if label == 0
        for node in unit.nodes
    }
    cuts = [_cut(index.nodes, target, region) for region in regions]
    return Plan(
        asked=asked,
        model=model,
        target=target,
        units=tuple(units),
        posed=posed,
        placement=placement,
        host_only=HostOnly().solve(posed.problem).cost,
        regions=regions,
        proto=_outline(model, cuts, stay),
    )


def _outline(
    model: Model, cuts: Sequence[Cut], stay: Mapping[int, Mapping[str, str]]
) -> onnx.ModelProto:
    try:
        return outline(model.index, cuts, stay)
    except InputError as error:
        raise InputError(f"{model.source}: {error}") from None


def _solve(strategy: Strategy, problem: Problem) -> Placement:
    """Return a strategy's placement, which may be somebody else's code, after holding it to its word."""
    try:
        placement = strategy.solve(problem)
    except ByocError:
        raise
    except Exception as error:  # a plug-in can fail in any way; say whose fault it was
        described = f"{type(error).__name__}: {error}"
        raise InputError(f"strategy {_named(strategy)}: failed with {described}") from error
    wrong = objection(problem, placement)
    if wrong:
        raise InputError(f"strategy {_named(strategy)}: {wrong}")
    return placement


def _named(strategy: Strategy) -> str:
    return str(getattr(strategy, "name", type(strategy).__name__))


def _regions(
    model: Model, target: Target, units: Sequence[Unit], posed: Posed, placement: Placement
) -> tuple[PlannedRegion, ...]:
    regions = []
    for number in range(int(placement.regions.max(initial=-1)) + 1):
        rows = (placement.regions == number).nonzero()[0]
        members = tuple(units[row] for row in rows)
        device = int(placement.labels[rows[0]])
        seconds = posed.problem.seconds[rows, device].sum() + posed.problem.launch[device - 1]
        nodes = sorted(node for unit in members for node in unit.nodes)
        border = interface(model.index, nodes)
        regions.append(PlannedRegion(f"{target.name}_{number}", members, border, float(seconds)))
    return tuple(regions)


def _cut(nodes: Sequence[onnx.NodeProto], target: Target, region: PlannedRegion) -> Cut:
    return Cut(
        name=region.name,
        domain=target.domain,
        groups=tuple(_group(nodes, unit) for unit in region.units),
        metadata={
            "byoc.target": target.name,
            "byoc.units": str(len(region.units)),
            "byoc.predicted_seconds": f"{region.seconds:.3e}",
        },
    )


def _group(nodes: Sequence[onnx.NodeProto], unit: Unit) -> Group:
    rules = {"byoc.rules": ", ".join(unit.rules)}
    if unit.match is None:
        return Group(unit.nodes, metadata=rules)
    names = ", ".join(nodes[i].name or nodes[i].output[0] for i in unit.nodes)
    return Group(unit.nodes, unit.match.as_composite(nodes), rules | {"byoc.nodes": names})
