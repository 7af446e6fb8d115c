"""Refusals of codegens, kept from round to round, so that the next plan heeds them.

ONNX Runtime had to learn it first: a region that its provider claims and then fails to compile must not
end the run (microsoft/onnxruntime pull request 6580, issue 25334).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from byoc.codegen import Refusal
from byoc.errors import Cause, CauseKind
from byoc.model import PART_KEY, GraphIndex, get_metadata, name_nodes
from byoc.patterns import JointUnit
from byoc.planning._graph_plan import PlannedRegion
from byoc.planning._plan_data import Plan, RefusedRegion

# Rounds in which a codegen may name single nodes, then in which whole regions go; then the target does.
_ROUNDS_BY_NODE = 24
_ROUNDS = 32  # see above: until the target gets nothing

_EVERYTHING = ""
"""Stands for all nodes of a model, where nodes are named."""


@dataclass(frozen=True)
class SizeLimit:
    """The most nodes that a region may have since larger ones were too large, and the reason."""

    nodes: int
    reason: str


@dataclass(frozen=True)
class KnownLimits:
    """Limits of targets, by name, that turned out when regions were compiled or run.

    `refused` has the nodes that a target does not take, each by its name or its first output, in a body
    behind its graph path (`Loop_0/body/add`), with the reason; an empty name stands for all of them.
    `attempts` has the nodes, named likewise, that were computed wrong with the target's options, and how
    many of the codegen's options to recover with were tried.
    """

    refused: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    sizes: Mapping[str, SizeLimit] = field(default_factory=lambda: MappingProxyType({}))
    attempts: Mapping[str, Mapping[str, int]] = field(default_factory=lambda: MappingProxyType({}))

    def with_refused(self, target: str, nodes: Sequence[str], reason: str) -> "KnownLimits":
        """Return these limits with more nodes refused; the earlier reason of a node stays."""
        known = {**dict.fromkeys(nodes, reason), **self.refused.get(target, {})}
        return replace(self, refused={**self.refused, target: known})

    def with_attempts(self, target: str, nodes: Sequence[str], attempts: int) -> "KnownLimits":
        """Return these limits with the number of options that were tried for some nodes."""
        own = {**self.attempts.get(target, {}), **dict.fromkeys(nodes, attempts)}
        return replace(self, attempts={**self.attempts, target: own})

    def count_attempts(self, region: PlannedRegion, path: str) -> int:
        """Return the number of options to recover with that were tried for a region, or a part of it.

        `path` is the path of the region's graph.
        """
        known = self.attempts.get(region.target.name, {})
        names = find_faulty_nodes(region, path, ()) if known else ()
        return max((known.get(name, 0) for name in names), default=0)

    def with_size(self, target: str, limit: SizeLimit) -> "KnownLimits":
        """Return these limits with regions of at most so many nodes."""
        return replace(self, sizes={**self.sizes, target: limit})

    def refused_rows(
        self, index: GraphIndex, path: str, units: Sequence[JointUnit], target: str
    ) -> dict[int, Cause]:
        """Return the units of a graph, by number, that a target turned out not to take, and why.

        `path` is the graph path, empty for the main graph.
        """
        refused, limit = self.refused.get(target, {}), self.sizes.get(target)
        if not refused and limit is None:
            return {}
        found = {}
        names = name_nodes(index, path) if refused else {}
        for row, unit in enumerate(units):
            keys = (key for node in unit.nodes for key in _keys(index, path, node, names))
            why = next((refused[key] for key in keys if key and key in refused), None)
            why = why or refused.get(_EVERYTHING)
            if why is None and limit is not None and len(unit.nodes) > limit.nodes:
                why = limit.reason
            if why is not None:
                own = (index.nodes[node] for node in unit.nodes)
                named = (name for node in own for name in (node.name, *node.output) if name)
                found[row] = Cause(CauseKind.CODEGEN, why, names=tuple(dict.fromkeys(named)))
        return found


@dataclass(frozen=True)
class RefusalHistory:
    """The rounds of planning so far in which codegens refused regions.

    `limits` are what the next plan has to keep to, `refused` the regions, in order.
    """

    limits: KnownLimits = field(default_factory=KnownLimits)
    refused: tuple[RefusedRegion, ...] = ()
    rounds: int = 0

    def add(self, plan: Plan, refusals: Sequence[Refusal]) -> "RefusalHistory":
        """Return the history with a round in which regions of a plan were refused.

        At first the nodes that codegens name do not come back, then whole regions; after 32 rounds a
        target that still refuses something gets nothing. A region that was too large is split, and one
        with other options stays.
        """
        rounds = self.rounds + 1
        history = replace(self, rounds=rounds)
        regions = {region.name: region for region in plan.regions}
        paths = {region.name: graph.path for graph in plan.root.walk() for region in graph.regions}
        too_large: dict[str, list[Refusal]] = {}
        for refusal in refusals:
            region = regions[refusal.region]
            sized = refusal.too_large or refusal.most
            if sized and rounds < _ROUNDS and _is_splittable(region, refusal.most):
                too_large.setdefault(refusal.target, []).append(refusal)
            elif refusal.options is not None and rounds < _ROUNDS_BY_NODE:
                history = history._try_options(refusal, region, paths[region.name])
            elif rounds < _ROUNDS:
                named = refusal.nodes if rounds < _ROUNDS_BY_NODE and not refusal.too_large else ()
                tried = history._describe_options(refusal)
                history = history._reset_attempts(region, paths[region.name])
                nodes = find_faulty_nodes(region, paths[region.name], named)
                history = history._refuse(replace(refusal, tried=refusal.tried or tried), nodes)
            else:
                reason = f"regions still fail after {rounds} rounds: {refusal.reason}"
                history = history._refuse(replace(refusal, reason=reason), ())
        for target, own in too_large.items():
            most = min(each.most or _halve(regions[each.region]) for each in own)
            history = history._split(target, own, most)
        return history

    def _refuse(self, refusal: Refusal, nodes: tuple[str, ...]) -> "RefusalHistory":
        """Return the history with nodes refused, all of the target's where none are given."""
        region = RefusedRegion(
            refusal.target,
            refusal.region,
            refusal.codegen,
            refusal.reason,
            nodes,
            failed=refusal.failed,
            tried=refusal.tried,
            detail=refusal.detail,
        )
        limits = self.limits.with_refused(refusal.target, nodes or (_EVERYTHING,), region.why)
        return replace(self, limits=limits, refused=(*self.refused, region))

    def _try_options(self, refusal: Refusal, region: PlannedRegion, path: str) -> "RefusalHistory":
        """Return the history with a region that is compiled with the next options."""
        nodes = find_faulty_nodes(region, path, ())
        attempts = self.limits.count_attempts(region, path) + 1
        limits = self.limits.with_attempts(refusal.target, nodes, attempts)
        again = RefusedRegion(
            refusal.target,
            refusal.region,
            refusal.codegen,
            refusal.reason,
            failed=refusal.failed,
            options=dict(refusal.options or {}),
            detail=refusal.detail,
        )
        return replace(self, limits=limits, refused=(*self.refused, again))

    def _describe_options(self, refusal: Refusal) -> str:
        """Return which options a region was compiled with before it was refused; empty for none."""
        earlier = [each.options for each in self.refused if each.region == refusal.region]
        texts = [", ".join(f"{n}={text}" for n, text in each.items()) for each in earlier if each]
        return f"also off with {', then with '.join(texts)}" if texts else ""

    def _reset_attempts(self, region: PlannedRegion, path: str) -> "RefusalHistory":
        """Return the history with the target's own options for what stays of a region."""
        if not self.limits.count_attempts(region, path):
            return self
        nodes = find_faulty_nodes(region, path, ())
        return replace(self, limits=self.limits.with_attempts(region.target.name, nodes, 0))

    def _split(self, target: str, refusals: Sequence[Refusal], most: int) -> "RefusalHistory":
        """Return the history with regions of a target limited to a number of nodes."""
        regions = [
            RefusedRegion(
                target,
                each.region,
                each.codegen,
                each.reason,
                split=most,
                failed=each.failed,
                tried=each.tried,
                detail=each.detail,
            )
            for each in refusals
        ]
        limits = self.limits.with_size(target, SizeLimit(most, regions[0].why))
        return replace(self, limits=limits, refused=(*self.refused, *regions))


def _is_splittable(region: PlannedRegion, most: int) -> bool:
    """Return whether a target may have regions of `most` nodes, 0 for half of them, instead of one."""
    least = region.target.rules.limits.min_nodes or 0
    return len(region.units) > 1 and (most or _halve(region)) >= least


def _halve(region: PlannedRegion) -> int:
    """Return half of a region's nodes, but no less than the largest of its units has."""
    return max(len(region.nodes) // 2, *(len(unit.nodes) for unit in region.units))


def find_faulty_nodes(region: PlannedRegion, path: str, named: Sequence[str]) -> tuple[str, ...]:
    """Return the nodes of a region's units that have nodes of some names in them; all where none has.

    `path` is the path of the region's graph. A codegen may name a node, a tensor that it makes, or one
    inside a body; the nodes that come back are named as in `KnownLimits.refused`.
    """
    index = region.index
    wanted = set(named)
    blamed = [unit for unit in region.units if wanted & {unit.name, *_all_names(index, unit.nodes)}]
    names = name_nodes(index, path)
    nodes = [node for unit in blamed or region.units for node in unit.nodes]
    users = [node for node in nodes if node not in index.inserted_nodes]
    keys = (names.get(node) or _output(index, path, node) for node in users or nodes)
    return tuple(dict.fromkeys(filter(None, keys)))


def _all_names(index: GraphIndex, nodes: Sequence[int]) -> set[str]:
    """Return all names that stand for some nodes: theirs, their outputs', and those in their bodies."""
    found = {name for node in nodes for name in (index.nodes[node].name, *index.nodes[node].output)}
    for inner in (i for node in nodes for body in index.bodies.get(node, ()) for i in body.index.walk()):
        found |= {name for node in inner.nodes for name in (node.name, *node.output)}
    return found - {""}


def _keys(index: GraphIndex, path: str, node: int, names: Mapping[int, str]) -> tuple[str | None, ...]:
    """Return the names under which a node may be refused.

    A part of a node goes by its own name alone: the last makes the tensor that the whole node makes.
    """
    if get_metadata(index.nodes[node], PART_KEY):
        return (names.get(node),)
    return names.get(node), _output(index, path, node)


def _output(index: GraphIndex, path: str, node: int) -> str:
    name = next(filter(None, index.nodes[node].output), "")
    return f"{path}/{name}" if path and name else name
