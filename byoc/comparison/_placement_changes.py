"""Placements of any origin in one form, the changes between two, and checks of these."""

import json
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf, isclose, isfinite
from pathlib import Path
from typing import Any, Literal

from byoc._dataclasses import asdict, dataclass, field, replace
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
from byoc.comparison._comparison_options import DEFAULT_ERROR_GROWTH, Tolerances
from byoc.console import format_count, format_decibels, format_quantity
from byoc.errors import InputError, RequirementError
from byoc.passes import MODEL_SCOPE
from byoc.pipeline import Result, partition
from byoc.planning import SavedPlacement, read_placement
from byoc.reporting import make_decision_document
from byoc.rules import split_generation
from byoc.support import (
    ANNOTATIONS,
    check_type,
    describe_missing_file,
    find_file,
    read_limited,
    read_mapping,
)
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
    is_planned: bool = False


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
    return replace(_describe_result(result, None), label=str(source), is_planned=True)


_MAKES_REPORT = "`byoc partition MODEL --rules FILE --format json` prints one"


def _require_rules(name: str) -> None:
    """Raise InputError unless a rule file of that name is installed."""
    try:
        find_file(ANNOTATIONS, split_generation(name)[0])
    except InputError:
        what = "bundle, report, saved placement or rule file"
        missing = describe_missing_file(Path(name), what)
        raise InputError(f"{missing} (byoc rules lists installed ones)") from None


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
        raise InputError(f"{path}: not a report: {error}; {_MAKES_REPORT}") from None
    if not isinstance(found, dict):
        raise InputError(f"{path}: not a report of byoc")
    if not {"variants", "model", "nodes"} & found.keys():
        raise InputError(f"{path}: not a report of byoc; {_MAKES_REPORT}")
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


# The changes between two placements as data, and checks that none is worse than tolerated.


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
