"""Rules that need the whole graph: nodes that stay on the host, and values beyond what is promised.

Ranges of values decide the latter (`byoc.model.ranges`): they are asked for only where a clause limits
an operator on a data type that the node has.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from math import inf, isfinite
from typing import Any, Literal

from onnx import NodeProto

from byoc._dataclasses import dataclass, field
from byoc.errors import CauseKind
from byoc.model import GraphIndex, describe_node, get_node_name, get_operator_name
from byoc.model.ranges import Interval, NodeRange, ValueRanges, limit_of_dtype
from byoc.rules._node_view import Objection, ObjectionKind, make_unknown
from byoc.rules._rule_loading import Target
from byoc.rules._rule_schema import Host, Nodes, RuleFile
from byoc.rules._schema_values import Arithmetic, ArithmeticContract
from byoc.support.expressions import matches


@dataclass(frozen=True, slots=True)
class _HostMatch:
    """A match of a node in `host`: the location of the entry, and the node as told, and by name."""

    location: str
    display_name: str
    node: str


def find_host_nodes(
    index: GraphIndex, host: Host, place: Callable[[str], str]
) -> Mapping[int, Objection]:
    """Return the reasons for all nodes that stay on the host.

    `place` maps a location in the merged rules to one in a file. Nodes in the bodies of a downstream
    node are downstream, too.
    """
    result: dict[int, Objection] = {}
    if host.after.ops or host.after.names:
        for number, source in _find_downstream(index, host.after, place).items():
            text = f"it is downstream of {source.display_name}, after which all stays on the host"
            result[number] = _keep(source, text)
    if host.ops or host.names:
        for number, node in enumerate(index.nodes):
            chosen = _match_node(node, host, "host", place)
            if chosen is not None:
                text = f"{chosen.display_name} is kept on the host"
                result[number] = _keep(chosen, text)
    return result


def _keep(match: _HostMatch, text: str) -> Objection:
    return Objection(
        match.location, text, ObjectionKind.OPERATOR, names=(match.node,), cause=CauseKind.HOST
    )


def is_kept_whole(node: NodeProto, rules: RuleFile) -> bool:
    """Return whether a file wants a node whole: it keeps it so, or speaks of it under `host`."""
    name = get_operator_name(node)
    host = rules.host
    if name in (*rules.keep, *host.ops, *host.after.ops):
        return True
    return any(matches(pattern, node.name) for pattern in (*host.names, *host.after.names))


def _match_node(
    node: NodeProto, nodes: Nodes, prefix: str, place: Callable[[str], str]
) -> _HostMatch | None:
    name = get_operator_name(node)
    if name in nodes.ops:
        location = place(f"{prefix}.ops[{nodes.ops.index(name)}]")
        return _HostMatch(location, name, get_node_name(node))
    for position, pattern in enumerate(nodes.names):
        if matches(pattern, node.name):
            location = place(f"{prefix}.names[{position}]")
            return _HostMatch(location, f"the name '{node.name}'", node.name)
    return None


def _find_downstream(
    index: GraphIndex, after: Nodes, place: Callable[[str], str]
) -> dict[int, _HostMatch]:
    around = _find_outer_source(index, after, place)
    if around is not None:
        return dict.fromkeys(range(len(index.nodes)), around)
    found: dict[int, _HostMatch] = {}
    pending: list[tuple[int, _HostMatch]] = []
    for number in range(len(index.nodes)):
        source = next(_find_sources(index, number, after, place), None)
        if source is not None:
            pending.append((number, source))
    for number, source in pending:  # grows while it is walked
        for tensor in index.nodes[number].output:
            for reader in index.consumers.get(tensor, ()):
                if reader not in found:
                    found[reader] = source
                    pending.append((reader, source))
    return found


def _find_sources(
    index: GraphIndex, number: int, after: Nodes, place: Callable[[str], str]
) -> Iterator[_HostMatch]:
    """Yield the matches of `after` for a node: itself, then the nodes in its bodies."""
    node = index.nodes[number]
    chosen = _match_node(node, after, "host.after", place)
    if chosen is not None:
        yield _HostMatch(chosen.location, describe_node(node), get_node_name(node))
    for body in index.bodies.get(number, ()):
        for inner in range(len(body.index.nodes)):
            yield from _find_sources(body.index, inner, after, place)


def _find_outer_source(
    index: GraphIndex, after: Nodes, place: Callable[[str], str]
) -> _HostMatch | None:
    """Return the match that the graph's own node is downstream of, None for the main graph."""
    if index.outer is None:
        return None
    return _find_downstream(index.outer, after, place).get(get_body_node(index))


def get_body_node(body: GraphIndex) -> int:
    """Return the number of the node that has a graph as its body."""
    around = body.outer.bodies if body.outer is not None else {}
    return next(number for number, inner in around.items() if any(each.index is body for each in inner))


def find_unmatched_names(index: GraphIndex, target: Target) -> list[str]:
    """Return a sentence for each name pattern of `host` that matches no node, in bodies neither.

    Operators are not checked: a file lists those of all models that it is for.
    """
    names = [node.name for graph in index.walk() for node in graph.nodes]
    host = target.rules.host
    patterns = [(f"host.names[{i}]", pattern) for i, pattern in enumerate(host.names)]
    patterns += [(f"host.after.names[{i}]", pattern) for i, pattern in enumerate(host.after.names)]
    return [
        f"{target.locate(place)}: no node has a name that matches '{pattern}'"
        for place, pattern in patterns
        if not any(matches(pattern, name) for name in names)
    ]


def check_batch(index: GraphIndex, most: int, place: str) -> Mapping[int, Objection]:
    """Return the objections to nodes that depend on an input with a batch of more than `most`.

    Inputs of rank 2 or more have a batch. All nodes in a body of such a node depend on it, too.
    """
    if index.outer is not None:
        around = check_batch(index.outer, most, place).get(get_body_node(index))
        return {} if around is None else dict.fromkeys(range(len(index.nodes)), around)
    found: dict[int, Objection] = {}
    for tensor, objection in _check_inputs(index, most, place):
        pending = [tensor]
        while pending:
            for reader in index.consumers.get(pending.pop(), ()):
                if reader not in found:
                    found[reader] = objection
                    pending.extend(index.nodes[reader].output)
    return found


def _check_inputs(index: GraphIndex, most: int, place: str) -> Iterator[tuple[str, Objection]]:
    for name in index.inputs:
        known = index.types.get(name)
        if known is None or (known.shape is not None and len(known.shape) < 2):
            continue
        batch = known.shape[0] if known.shape else None
        if not isinstance(batch, int):
            yield name, make_unknown(place, f"the batch of the model's input '{name}'", batch)
        elif batch > most:
            allowed = f"at most {most}"
            text = f"the batch of the model's input '{name}' is {batch}, {allowed} is supported"
            yield (
                name,
                Objection(
                    place,
                    text,
                    value=str(batch),
                    allowed=allowed,
                    names=(name,),
                    cause=CauseKind.LIMIT,
                ),
            )


# Nodes whose whole numbers may leave what the arithmetic contract of their target promises.


# Inputs that say where and how many. They are no larger than the tensors that they are about, and ends
# beyond those are cut off: what computes them is held to the contract.
_PARAMETERS = {
    **dict.fromkeys(("Expand", "Reshape", "Tile", "CumSum", "CenterCropPad", "Trilu"), (1,)),
    **dict.fromkeys(("Split", "Squeeze", "Unsqueeze", "TopK", "OneHot"), (1,)),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax"), (1,)),
    **dict.fromkeys(("ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"), (1,)),
    "ConstantOfShape": (0,),
    "Pad": (1, 3),
    "Resize": (3,),
    "Slice": (1, 2, 3, 4),
}


@dataclass(frozen=True)
class ValueCondition:
    """A condition on a node's values under which its target computes it right.

    `objection` says that it is not known to hold, `text` what has to hold.
    """

    objection: Objection
    text: str


@dataclass(frozen=True)
class _Excess:
    """A whole number that may leave a promise, with its limit; `what` says how, `subject` names it.

    `name` is the tensor or node in both.
    """

    promise: Literal["exact_below", "overflow"]
    op: str
    dtype: str
    limit: Any
    subject: str
    what: str
    name: str


@dataclass(frozen=True, eq=False)
class _RangeCheck:
    """The whole numbers of a graph, held to what a contract promises of them."""

    contract: ArithmeticContract
    index: GraphIndex
    ranges: ValueRanges
    _limits: dict[str, Mapping[str, Arithmetic]] = field(default_factory=dict)
    """the limits on whole numbers by operator and dtype"""

    def find_excess(self, number: int) -> _Excess | None:
        """Return the first thing of a node that is not shown to stay inside; None where all is."""
        kind = self.index.node_kinds[number]
        limits = self._find_limits(kind.operator)
        if not limits:
            return None
        whole, makes = self._whole_numbers, self.index.node_outputs[number]
        reads = self.index.node_inputs[number]
        if parameters := _PARAMETERS.get(kind.operator):
            reads = tuple(name for i, name in enumerate(reads) if i not in parameters)
        if whole.isdisjoint(reads) and whole.isdisjoint(makes):
            return None
        ranges = self.ranges.describe_node(number, reads)
        return next(self._find_all(number, kind.operator, ranges, limits), None)

    @cached_property
    def _whole_numbers(self) -> frozenset[str]:
        """The tensors of whole numbers."""
        return frozenset(name for name, kind in self.index.types.items() if "int" in kind.dtype)

    @cached_property
    def _whole_dtypes(self) -> frozenset[str]:
        """The dtypes of the graph that are of whole numbers."""
        dtypes = {kind.dtype for kind in self.index.types.values()}
        return frozenset(dtype for dtype in dtypes if "int" in dtype)

    def _find_limits(self, op: str) -> Mapping[str, Arithmetic]:
        if op not in self._limits:
            found = {dtype: self.contract.resolve(op, dtype) for dtype in self._whole_dtypes}
            self._limits[op] = {
                dtype: each
                for dtype, each in found.items()
                if each.exact_below is not None or each.overflow != "wraps"
            }
        return self._limits[op]

    def _find_all(
        self, number: int, op: str, ranges: NodeRange, limits: Mapping[str, Arithmetic]
    ) -> Iterator[_Excess]:
        node = get_node_name(self.index.nodes[number])
        for name, dtype, found in (*ranges.reads, *ranges.makes):
            most = limits[dtype].exact_below if dtype in limits else None
            whole = found if found.is_finite else limit_of_dtype(dtype)
            if most is not None and whole.magnitude > most:
                what = f"'{name}' {_describe_range(whole, dtype, most)}"
                yield _Excess("exact_below", op, dtype, most, f"'{name}'", what, name)
        least, dtype = _find_least(limits, ranges) if ranges.summed else (inf, "")
        if ranges.summed > least:
            reach = f"{int(ranges.summed):,}" if isfinite(ranges.summed) else "any number"
            what = f"what it adds up may reach {reach}"
            yield _Excess("exact_below", op, dtype, int(least), f"what '{node}' adds up", what, node)
        for name, dtype, found in ranges.makes:
            promised = limits[dtype].overflow if dtype in limits else "wraps"
            if promised != "wraps" and not limit_of_dtype(dtype).holds(found):
                what = f"'{name}' may leave {dtype}"
                yield _Excess("overflow", op, dtype, promised, f"'{name}'", what, name)


@dataclass(frozen=True, eq=False)
class ValueChecker:
    """The arithmetic contract of a target, held to the ranges of a graph's values."""

    target: Target
    index: GraphIndex

    def find_condition(self, number: int) -> ValueCondition | None:
        """Return the first condition that is not shown to hold of a node; None where all are."""
        found = self._check.find_excess(number)
        if found is None:
            return None
        if found.promise == "exact_below":
            text = f"{self.target.name} computes whole numbers exactly up to {found.limit:,} alone"
            holds = f"{found.subject} stays from {-found.limit:,} to {found.limit:,}"
        else:
            becomes = "saturates" if found.limit == "saturates" else "may become anything"
            text = f"on {self.target.name} it {becomes} instead of wrapping"
            holds = f"{found.subject} stays within {found.dtype}"
        objection = self._object(found, f"{found.what}, and {text}")
        return ValueCondition(objection, holds)

    @cached_property
    def _check(self) -> _RangeCheck:
        return _RangeCheck(self.target.arithmetic, self.index, self.index.value_ranges)

    def _object(self, found: _Excess, text: str) -> Objection:
        position = self.target.arithmetic.find_clause(found.op, found.dtype, found.promise)
        return Objection(
            self.target.locate(f"arithmetic[{position}].{found.promise}"),
            text,
            allowed=str(found.limit),
            flags=("--values assumed",),
            names=(found.name,),
            cause=CauseKind.VALUES,
        )


def _find_least(limits: Mapping[str, Arithmetic], ranges: NodeRange) -> tuple[float, str]:
    """Return the least magnitude of exact numbers among a node's dtypes, and that dtype."""
    dtypes = dict.fromkeys(dtype for _, dtype, _ in (*ranges.makes, *ranges.reads))
    found = ((limits[dtype].exact_below, dtype) for dtype in dtypes if dtype in limits)
    return min(((most, dtype) for most, dtype in found if most is not None), default=(inf, ""))


def _describe_range(found: Interval, dtype: str, most: int) -> str:
    if found.holds(limit_of_dtype(dtype)):
        return f"may be any {dtype}"
    return f"may be {int(found.high if found.high > most else found.low):,}"


def find_exceeded(
    index: GraphIndex, contract: ArithmeticContract, given: Mapping[str, Interval]
) -> Literal["", "exact_below", "overflow"]:
    """Return the promise of whole numbers that a graph may leave on inputs in given ranges.

    It is that of the first node that is not shown to stay inside; empty where all are.
    """
    check = _RangeCheck(contract, index, ValueRanges(index, given=given))
    numbers = (n for n in range(len(index.nodes)) if n not in index.constant_nodes)
    found = next(filter(None, map(check.find_excess, numbers)), None)
    return "" if found is None else found.promise


def list_conditions(
    index: GraphIndex, target: Target, numbers: Iterable[int]
) -> Iterator[tuple[int, ValueCondition]]:
    """Yield the nodes of some that are right on a condition alone, each with the first one."""
    checker = ValueChecker(target, index)
    for number in numbers:
        found = checker.find_condition(number) if target.arithmetic.limits_values else None
        if found is not None:
            yield number, found
