"""From a plan's regions to functions of the model, and conversions where tensors cross to them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from onnx import ModelProto

from byoc.boundary.convert import (
    ConvertedModel,
    RegionBoundary,
    TransposeShares,
    convert_boundary,
)
from byoc.model import (
    TARGET_KEY,
    GraphCuts,
    GraphIndex,
    HeavyWeights,
    OutlineGroup,
    RegionCut,
    find_images,
    get_node_name,
    outline,
)
from byoc.patterns import Unit
from byoc.planning._graph_plan import GraphPlan, PlannedRegion
from byoc.planning._plan_settings import read_requirements
from byoc.rules import Target


def outline_regions(root: GraphPlan, heavy: HeavyWeights | None) -> ModelProto:
    """Return the model of a plan with its regions as functions, and the weights that its index lacks.

    Raises InputError as `outline`, and where the file of these weights has changed since it was read.
    """
    outlined = outline(_describe_cuts(root))
    if heavy is not None:
        heavy.fill(outlined)
    return outlined


def computes_otherwise(targets: Sequence[Target]) -> bool:
    """Return whether regions of a target compute in another dtype than the model, which may fail."""
    return any(read_requirements(target).compute is not None for target in targets)


def _describe_cuts(plan: GraphPlan) -> GraphCuts:
    """Return the changes of a plan to its graph, as `outline` takes them."""
    # Many nodes have one reason.
    why: dict[int, dict[str, str]] = {}
    on_host: dict[int, dict[str, str]] = {}
    for unit, reason in plan.host_units:
        if id(reason) not in why:
            why[id(reason)] = {"byoc.device": "host", "byoc.reason": str(reason)}
        on_host.update(dict.fromkeys(unit.nodes, why[id(reason)]))
    return GraphCuts(
        index=plan.index,
        cuts=tuple(_describe_cut(plan.index, region) for region in plan.regions),
        metadata=on_host,
        bodies={node: [_describe_cuts(body) for body in inner] for node, inner in plan.bodies.items()},
    )


def _describe_cut(index: GraphIndex, region: PlannedRegion) -> RegionCut:
    return RegionCut(
        name=region.name,
        domain=region.target.domain,
        groups=tuple(_describe_group(index, unit) for unit in region.units),
        metadata={
            TARGET_KEY: region.target.name,
            "byoc.units": str(len(region.units)),
            "byoc.predicted_seconds": f"{region.seconds:.3e}",
        },
    )


def _describe_group(index: GraphIndex, unit: Unit) -> OutlineGroup:
    """Return a unit as it is in its region; the nodes of a QDQ group bear its name."""
    metadata = {"byoc.rules": ", ".join(unit.rules)}
    if unit.kind == "qdq":
        metadata["byoc.qdq"] = unit.name
    if unit.match is None:
        return OutlineGroup(unit.nodes, metadata=metadata)
    inside = [index.nodes[i] for i in sorted(unit.match.nodes.values())]
    metadata["byoc.nodes"] = ", ".join(map(get_node_name, inside))
    return OutlineGroup(unit.nodes, unit.match.make_composite(index), metadata)


def cut_regions(
    index: GraphIndex, regions: Sequence[PlannedRegion], folder: Path | None
) -> ConvertedModel:
    """Return the model of a main graph with nothing but some regions cut out, boundaries converted.

    The nodes of each region are units of the graph; `folder` is where the model's external data lies.
    Raises InputError as `outline_regions` and `convert_boundaries`.
    """
    outlined = outline(GraphCuts(index, tuple(_describe_cut(index, region) for region in regions)))
    return convert_boundary(outlined, _describe_boundaries(index, regions), folder)


def convert_boundaries(root: GraphPlan, outlined: ModelProto, folder: Path | None) -> ConvertedModel:
    """Return the outlined model of a plan with conversions at its boundaries; it is edited in place.

    `folder` is where the model's external data lies. Raises InputError as `convert_boundary` does.
    """
    boundaries = [boundary for graph in root.walk() for boundary in _region_boundaries(graph)]
    return convert_boundary(outlined, boundaries, folder)


def _region_boundaries(graph: GraphPlan) -> list[RegionBoundary]:
    """Return the boundaries of a graph's own regions, without those of bodies."""
    if not graph.regions:
        return []
    names = [target.name for target in graph.targets]
    shares = dict(zip(names, graph.graph_problem.transpose_shares, strict=False))
    return _describe_boundaries(graph.index, graph.regions, shares)


def _describe_boundaries(
    index: GraphIndex,
    regions: Sequence[PlannedRegion],
    shares: Mapping[str, Mapping[str, TransposeShares]] = MappingProxyType({}),
) -> list[RegionBoundary]:
    """Return the boundaries of regions; `shares` says by target what its regions transpose."""
    spatial = find_images(index)
    return [
        RegionBoundary(
            region.name,
            read_requirements(region.target),
            spatial,
            index.type_protos,
            shares.get(region.target.name, {}),
        )
        for region in regions
    ]
