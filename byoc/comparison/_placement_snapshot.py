"""Placements of any origin in one form, so that two of them can be compared."""

import json
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

from byoc.bundle import (
    Bundle,
    PlacedNode,
    PlacedNodes,
    Report,
    TensorErrorReport,
    VerificationReport,
    is_bundle,
    open_own_files,
)
from byoc.codegen import parse_strict_json
from byoc.errors import InputError
from byoc.passes import MODEL_SCOPE
from byoc.pipeline import Result, partition
from byoc.planning import SavedPlacement, read_placement
from byoc.reporting import make_decision_document
from byoc.rules import split_generation
from byoc.support import ANNOTATIONS, check_type, find_file, read_limited, read_mapping
from byoc.zoo import Source

Placed = str | Path | Bundle | Result
"""A placement to compare: a bundle, a report, a saved placement or a rule file, or what Python has."""

_MAX_REPORT_BYTES = 1 << 28
# Of the allowed error: less is rounding, which differs between machines, and no sign of a worse model.
_ROUNDING = 0.01


@dataclass(frozen=True)
class SnapshotRegion:
    """A region: its device, its nodes, how often it runs, and the seconds of a run of it."""

    name: str
    device: str
    nodes: int
    trips: float
    seconds: float


@dataclass(frozen=True)
class SnapshotError:
    """The error of an output when the placement was verified.

    `decibels` is its signal-to-noise ratio against the float model, infinite if equal, -infinite if
    there is no ratio; `lowered` says that this one has a lower precision. `error` is its largest error
    against the model that was compiled, as a share of the range; up to `explained` it is the rounding
    of any machine, or noise explains it.
    """

    lowered: bool
    decibels: float
    error: float
    explained: float


@dataclass(frozen=True, eq=False)
class PlacementSnapshot:
    """A placement, as much of it as its source says: None is not known.

    `reasons` are the numbers of nodes on the host by reason, `costs` what one run is predicted to cost,
    and `taken` the seconds by which two plans are compared, by what they measure. `errors` are those of
    outputs by name, empty where nothing was verified; `why_none` says why. `dropped` are the numbers of
    nodes by operator that passes removed from the model, less those that they added. `is_variant` says
    that it is one of the variants of its source.
    """

    label: str
    nodes: tuple[PlacedNode, ...] | None = None
    regions: tuple[SnapshotRegion, ...] | None = None
    reasons: Mapping[str, int] | None = None
    costs: Mapping[str, float | None] | None = None
    taken: tuple[str, float] | None = None
    errors: Mapping[str, SnapshotError] = field(default_factory=dict)
    why_none: str = "it has no errors of outputs"
    dropped: Mapping[str, int] = field(default_factory=dict)
    is_variant: bool = False


def read_snapshot(
    source: Placed, model: Source | None, variant: str | None, options: Mapping[str, Any]
) -> PlacementSnapshot:
    """Return the placement that a source has; a rule file's is that of a model planned with options.

    Of a source with variants the one that is named `variant` is taken. Raises InputError for what is
    none of these, for one without that variant, and for a rule file without a model.
    """
    check_type("variant", variant, str | None)
    if isinstance(source, Result):
        return _describe_result(source, variant)
    if isinstance(source, Bundle):
        return _describe_bundle(source, variant)
    check_type("a placement", source, str | Path)
    path = Path(source)
    if is_bundle(path) or (path.is_file() and _read_start(path).startswith(b"PK")):
        return _describe_bundle(open_own_files(path), variant)
    if path.is_file():
        if not _read_start(path):
            raise InputError(f"{path}: it is empty: no report, saved placement or rule file")
        if _read_start(path).startswith(b"{"):
            report, is_variant = _read_report(path, variant)
            return replace(_describe_report(report, str(path)), is_variant=is_variant)
        if "nodes" in read_mapping(path):
            return _describe_saved(read_placement(path))
    else:
        _require_rules(str(source))
    if model is None:
        raise InputError(
            f"{path}: a rule file is compared by what it makes of a model: say which (--model)"
        )
    result = partition(model, source, **{"what_if": False, **options})
    return replace(_describe_result(result, None), label=str(source))


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
            return file.read(64).removeprefix(BOM_UTF8).lstrip()  # PowerShell begins a file with that
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


def _read_report(path: Path, variant: str | None) -> tuple[Report, bool]:
    """Read what `byoc partition --format json` printed, of variants the one that is named.

    Returns also whether it is of a variant.
    """
    try:
        with path.open("rb") as file:
            content = read_limited(file, _MAX_REPORT_BYTES)
        if len(content) > _MAX_REPORT_BYTES:
            raise InputError(f"{path}: not a report: it has more than {_MAX_REPORT_BYTES} bytes")
        found = parse_strict_json(content.removeprefix(BOM_UTF8))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (json.JSONDecodeError, ValueError) as error:
        raise InputError(f"{path}: not a report: {error}") from None
    if not isinstance(found, dict):
        raise InputError(f"{path}: not a report of byoc")
    documents = found.get("variants")
    if isinstance(documents, list):
        found = _choose_variant(documents, variant, path)
    try:
        return Report.read(found), isinstance(documents, list)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _choose_variant(documents: Sequence[object], variant: str | None, path: Path) -> dict[str, Any]:
    """Return the report of a variant; that of the sizes that byoc chose, where none is named."""
    reports = {str(each.get("variant")): each for each in documents if isinstance(each, dict)}
    if not reports:
        raise InputError(f"{path}: not a report of byoc: it has no variants")
    first = next(iter(reports.values()))
    if variant is None and (len(reports) == 1 or "chosen_sizes" in first):
        return first
    if variant not in reports:
        raise InputError(f"{path}: it has the variants {', '.join(reports)}: say which (--variant)")
    return reports[variant]


def _describe_result(result: Result, variant: str | None) -> PlacementSnapshot:
    """Return the placement of a result, of variants the one that is named."""
    names = [each.name for each in result.variants]
    if variant is None or names == [""]:
        chosen = result.only
    elif variant in names:
        chosen = result.variants[names.index(variant)]
    else:
        raise InputError(f"no variant '{variant}'; the result has {', '.join(names)}")
    found = _describe_report(chosen.report, chosen.plan.model.source)
    nodes = make_decision_document(chosen.plan).list_placed_nodes()
    return replace(found, nodes=tuple(nodes), is_variant=names != [""])


def _describe_bundle(bundle: Bundle, variant: str | None) -> PlacementSnapshot:
    """Return the placement of a bundle, of variants the one that is named.

    One without decisions has no nodes.
    """
    is_variant = [each.name for each in bundle.manifest.variants] != [""]
    if variant is not None and is_variant:
        bundle = bundle.choose(variant)
    found = _describe_report(bundle.variant.report, str(bundle.display_path))
    found = replace(found, is_variant=is_variant)
    decisions = bundle.decisions()
    return found if decisions is None else replace(found, nodes=tuple(decisions.list_placed_nodes()))


def _describe_report(report: Report, label: str) -> PlacementSnapshot:
    predicted = report.predicted
    is_sum = predicted.measure == "total"
    return PlacementSnapshot(
        label,
        nodes=tuple(_list_nodes(report.placed)) if report.placed else None,
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
        taken=(predicted.measure, predicted.seconds if is_sum else predicted.optimized),
        errors=_describe_errors(report.verification),
        why_none=f"it is not verified: {report.not_verified}"
        if report.verification is None
        else "no output was compared when it was verified",
        dropped=_count_dropped(report),
    )


def _list_nodes(groups: Iterable[PlacedNodes]) -> Iterator[PlacedNode]:
    for each in groups:
        place = (each.operator, each.device, each.region, each.reason, each.causes, each.rule)
        for name, output in zip(each.nodes, each.outputs or each.nodes, strict=True):
            yield PlacedNode(name, output, *place)


def _describe_errors(verification: VerificationReport | None) -> dict[str, SnapshotError]:
    """Return the errors of outputs by name; none where nothing was verified."""
    if verification is None:
        return {}
    lowered = () if verification.accuracy is None else verification.accuracy.outputs
    accuracies = {each.name: each for each in lowered}
    found = {}
    for each in verification.outputs:
        accuracy = accuracies.get(each.name)
        ratio = each.signal_to_noise if accuracy is None else accuracy.signal_to_noise
        exact = each.absolute == 0 if accuracy is None else accuracy.exact
        decibels = inf if exact else -inf if ratio is None else ratio
        error = inf if each.relative is None else each.relative
        found[each.name] = SnapshotError(accuracy is not None, decibels, error, _explain(each))
    return found


def _explain(error: TensorErrorReport) -> float:
    """Return the error, as a share of the range, below which one is as good as another."""
    if not error.relative or not error.absolute:
        return _ROUNDING * error.tolerance if error.measure == "relative" else 0.0
    share = error.relative / error.absolute
    noise = error.noise * share if error.noise else 0.0  # 0 times an infinite share is no number
    limits = {"units": error.tolerance * share, "relative": _ROUNDING * error.tolerance}
    return max(noise, limits.get(error.measure, 0.0))


def _count_dropped(report: Report) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for each in report.passes:
        if each.scope == MODEL_SCOPE:
            counts.update(each.nodes_before)
            counts.subtract(each.nodes_after)
    return {operator: number for operator, number in counts.items() if number}


def _describe_saved(placement: SavedPlacement) -> PlacementSnapshot:
    """Return a saved placement, which knows no regions and no costs."""
    file = placement.file
    return PlacementSnapshot(
        placement.source,
        nodes=tuple(
            PlacedNode(
                name,
                file.outputs.get(name, name),
                file.signatures.get(name, "").partition("-")[0],
                device,
            )
            for name, device in file.nodes.items()
        ),
    )
