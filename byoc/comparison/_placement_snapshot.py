"""Placements of any origin in one form, so that two of them can be compared."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from byoc.bundle import Bundle, DecidedGraph, DecisionDocument, Report, open_own_files
from byoc.codegen import parse_strict_json
from byoc.errors import InputError
from byoc.pipeline import Result, partition
from byoc.planning import SavedPlacement, read_placement
from byoc.reporting import make_decision_document
from byoc.rules import split_generation
from byoc.support import ANNOTATIONS, check_type, find_file, read_limited, read_mapping
from byoc.zoo import Source

Placed = str | Path | Bundle | Result
"""A placement to compare: a bundle, a report, a saved placement or a rule file, or what Python has."""

_MAX_REPORT_BYTES = 1 << 28


@dataclass(frozen=True)
class SnapshotNode:
    """A node that is placed: what it is called, and where it is and why.

    `name` and `output` are behind the path of its graph. `reason` is why it is on the host, `rule` the
    location of the rule that accepted it; empty where that is not known, as the `region` is then.
    `operations` are those of one run.
    """

    name: str
    output: str
    operator: str
    device: str
    region: str = ""
    reason: str = ""
    rule: str = ""
    operations: float = 0.0


@dataclass(frozen=True)
class SnapshotRegion:
    """A region: its device, its nodes, how often it runs, and the seconds of a run of it."""

    name: str
    device: str
    nodes: int
    trips: float
    seconds: float


@dataclass(frozen=True, eq=False)
class PlacementSnapshot:
    """A placement, as much of it as its source says: None is not known.

    `reasons` are the numbers of nodes on the host by reason, `costs` what one run is predicted to cost.
    """

    label: str
    nodes: tuple[SnapshotNode, ...] | None = None
    regions: tuple[SnapshotRegion, ...] | None = None
    reasons: Mapping[str, int] | None = None
    costs: Mapping[str, float | None] | None = None


def read_snapshot(source: Placed, model: Source | None, options: Mapping[str, Any]) -> PlacementSnapshot:
    """Return the placement that a source has; a rule file's is that of a model planned with options.

    Raises InputError for what is none of these, and for a rule file without a model.
    """
    if isinstance(source, Result):
        return _describe_result(source.plan.model.source, source)
    if isinstance(source, Bundle):
        return _describe_bundle(source)
    check_type("a placement", source, str | Path)
    path = Path(source)
    if path.is_dir() or (path.is_file() and _read_start(path).startswith(b"PK")):
        return _describe_bundle(open_own_files(path))
    if path.is_file():
        if _read_start(path).startswith(b"{"):
            return _describe_report(_read_report(path), str(path))
        if "nodes" in read_mapping(path):
            return _describe_saved(read_placement(path))
    else:
        _require_rules(str(source))
    if model is None:
        raise InputError(
            f"{path}: a rule file is compared by what it makes of a model: say which (--model)"
        )
    return _describe_result(str(source), partition(model, source, **{"what_if": False, **options}))


def _require_rules(name: str) -> None:
    """Raise InputError unless a rule file of that name is installed."""
    try:
        find_file(ANNOTATIONS, split_generation(name)[0])
    except InputError:
        missing = (
            "no such bundle, report, saved placement or rule file (byoc rules lists installed ones)"
        )
        raise InputError(f"{name}: {missing}") from None


def _read_start(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(64).lstrip()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


def _read_report(path: Path) -> Report:
    """Read what `byoc partition --format json` printed."""
    try:
        with path.open("rb") as file:
            content = read_limited(file, _MAX_REPORT_BYTES)
        if len(content) > _MAX_REPORT_BYTES:
            raise InputError(f"{path}: not a report: it has more than {_MAX_REPORT_BYTES} bytes")
        found = parse_strict_json(content)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (json.JSONDecodeError, ValueError) as error:
        raise InputError(f"{path}: not a report: {error}") from None
    if not isinstance(found, dict):
        raise InputError(f"{path}: not a report of byoc")
    match found:
        case {"variants": [{"chosen_sizes": _} as first, *_]}:  # no other variant was asked for
            found = first
    try:
        return Report.read(found)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _describe_result(label: str, result: Result) -> PlacementSnapshot:
    return _describe_decisions(
        make_decision_document(result.plan), _describe_report(result.report, label)
    )


def _describe_bundle(bundle: Bundle) -> PlacementSnapshot:
    """Return the placement of a bundle; one without decisions has no nodes."""
    found = _describe_report(bundle.variant.report, str(bundle.display_path))
    decisions = bundle.decisions()
    return found if decisions is None else _describe_decisions(decisions, found)


def _describe_report(report: Report, label: str) -> PlacementSnapshot:
    predicted = report.predicted
    return PlacementSnapshot(
        label,
        regions=tuple(
            SnapshotRegion(each.name, each.device, each.nodes, each.trips, each.seconds)
            for each in report.regions
        ),
        reasons={each.reason: each.nodes for each in report.host_reasons},
        costs={
            "seconds": predicted.seconds,
            "execution": predicted.execution,
            "transfer": predicted.transfer,
            "launch": predicted.launch,
            "launches": sum(each.trips for each in report.regions),
            "joules": predicted.joules,
            "host_only": predicted.host_only,
            "offloaded_nodes": report.nodes.offloaded,
            "offloaded_share": report.compute.offloaded,
        },
    )


def _describe_saved(placement: SavedPlacement) -> PlacementSnapshot:
    """Return a saved placement, which knows no regions and no costs."""
    file = placement.file
    return PlacementSnapshot(
        placement.source,
        nodes=tuple(
            SnapshotNode(
                name,
                file.outputs.get(name, name),
                file.signatures.get(name, "").partition("-")[0],
                device,
            )
            for name, device in file.nodes.items()
        ),
    )


def _describe_decisions(decisions: DecisionDocument, report: PlacementSnapshot) -> PlacementSnapshot:
    """Return the snapshot of a report with the nodes of the decisions."""
    nodes = [node for graph in decisions.graphs for node in _describe_nodes(decisions, graph)]
    return PlacementSnapshot(report.label, tuple(nodes), report.regions, report.reasons, report.costs)


def _describe_nodes(decisions: DecisionDocument, graph: DecidedGraph) -> Sequence[SnapshotNode]:
    """Return the nodes of a graph that are placed, without those that byoc inserted."""
    nodes, units = graph.nodes, graph.units
    behind = f"{graph.path}/" if graph.path else ""
    sizes, inserted = Counter(nodes.units), {*nodes.inserted}
    found = []
    for number, unit in enumerate(nodes.units):
        if unit < 0 or number in inserted:
            continue
        outputs = [graph.tensors.names[tensor] for tensor in nodes.outputs[number] if tensor >= 0]
        operator = decisions.operators[nodes.operators[number]]
        region, reason = units.regions[unit], units.reasons[unit]
        found.append(
            SnapshotNode(
                name=f"{behind}{nodes.names[number]}",
                output=f"{behind}{next(iter(outputs), '')}",
                operator=f"{operator.domain}.{operator.name}" if operator.domain else operator.name,
                device=decisions.devices[units.devices[unit]],
                region=graph.regions[region].name if region >= 0 else "",
                reason=decisions.reasons[reason].text if reason >= 0 else "",
                rule=", ".join(decisions.rules[rule] for rule in units.rules[unit]),
                operations=units.operations[unit] / sizes[unit],
            )
        )
    return found
