"""The table of regions: equal ones in one row, and of many kinds those that take longest."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from byoc.bundle import RegionReport, ReportedTensor
from byoc.reporting._quantities import format_count, format_quantity

NUMBER_COLUMNS = ("nodes", "inputs", "outputs", "runs", "predicted", "estimate", "together")
"""The columns that are aligned on the right."""


@dataclass(frozen=True)
class RegionKind:
    """Equal regions: their number and the first of them, and the seconds of all in a run."""

    first: RegionReport
    count: int
    seconds: float


def fold_regions(regions: Sequence[RegionReport]) -> list[RegionKind]:
    """Return the kinds of regions in the order of the first of each.

    Equal regions have the same device, graph, nodes, composites, tensor types and seconds.
    """
    kinds: dict[tuple[object, ...], RegionKind] = {}
    for region in regions:
        types = [
            tuple((each.dtype, each.shape, each.bytes) for each in side)
            for side in (region.inputs, region.outputs)
        ]
        composites = tuple(sorted(region.composites.items()))
        told = [region.seconds, *([] if region.estimate is None else [region.estimate.seconds])]
        seconds = [f"{each:.6g}" for each in told]  # equal but for the order of a sum
        key = (region.device, region.graph, region.nodes, region.trips, composites, *types, *seconds)
        known = kinds.get(key, RegionKind(region, 0, 0.0))
        added = known.seconds + region.trips * region.seconds
        kinds[key] = replace(known, count=known.count + 1, seconds=added)
    return list(kinds.values())


def select_kinds(kinds: Sequence[RegionKind], most: int) -> tuple[list[RegionKind], str]:
    """Return the kinds of regions that take longest, in their order, and a line on the others."""
    if len(kinds) <= most:
        return list(kinds), ""
    shown = {id(kind) for kind in sorted(kinds, key=lambda kind: -kind.seconds)[:most]}
    left = [kind for kind in kinds if id(kind) not in shown]
    number, seconds = sum(kind.count for kind in left), sum(kind.seconds for kind in left)
    line = f"  and {format_count(number, 'other region')}, {format_quantity(seconds, 's')} (--verbose)"
    return [kind for kind in kinds if id(kind) in shown], line


def make_region_rows(kinds: Sequence[RegionKind]) -> list[dict[str, str]]:
    """Return a row for each kind of region; if some are in bodies, with their paths and trip counts."""
    inside = any(kind.first.graph for kind in kinds)
    folded = any(kind.count > 1 for kind in kinds)
    estimated = any(kind.first.estimate is not None for kind in kinds)
    rows = []
    for kind in kinds:
        region = kind.first
        times = f" x {kind.count}" if kind.count > 1 else ""
        rows.append(
            {
                "region": f"{region.name}{times}",
                "device": region.device,
                **({"in": region.graph} if inside else {}),
                "nodes": str(region.nodes),
                "inputs": _format_boundary(region.inputs),
                "outputs": _format_boundary(region.outputs),
                **({"runs": f"{region.trips:g} x"} if inside else {}),
                "predicted": format_quantity(region.seconds, "s"),
                **({"estimate": _format_estimate(region)} if estimated else {}),
                **({"together": format_quantity(kind.seconds, "s")} if folded else {}),
            }
        )
    return rows


def _format_estimate(region: RegionReport) -> str:
    return "" if region.estimate is None else format_quantity(region.estimate.seconds, "s")


def _format_boundary(values: Sequence[ReportedTensor]) -> str:
    sizes = [value.bytes for value in values]
    known = sum(size for size in sizes if size is not None)
    if None not in sizes:
        return f"{len(values)} ({format_quantity(known, 'B')})"
    return (
        f"{len(values)} ({format_quantity(known, 'B')} + unknown)"
        if known
        else f"{len(values)} (unknown)"
    )
