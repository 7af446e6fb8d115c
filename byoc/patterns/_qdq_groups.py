"""QDQ groups: an operator between DequantizeLinear and QuantizeLinear nodes, as one unit.

An int8 accelerator supports such a group or nothing: its operator computes in floating point only on
paper.
"""

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence

from byoc._dataclasses import dataclass, replace
from byoc.errors import YES, Cause, CauseKind, Verdict, refuse
from byoc.model import (
    GraphIndex,
    describe_node,
    get_node_name,
    is_dequantize,
    is_qdq_node,
    is_quantize,
    may_be_float,
)
from byoc.patterns._contraction_order import ContractionOrder
from byoc.patterns._matcher import Mark, Match, Unit, describe_rejection, find_matches_at
from byoc.patterns._pattern import Pattern, PatternForm
from byoc.patterns._pattern_search import MAX_ATTEMPTS, AttemptBudget, PatternSearch
from byoc.patterns._pattern_syntax import ANY_OPERATOR, NodeTable


def form_qdq_groups(index: GraphIndex, units: Sequence[Unit], marks: Sequence[Mark]) -> list[Unit]:
    """Form QDQ groups around the units that a rule for quantized operators accepts.

    A group is the unit, the DequantizeLinear of each of its activations, which nothing else may read,
    and the QuantizeLinear nodes that alone read its outputs. If one is missing and no other rule accepts
    the unit, the unit is refused with the reason. A DequantizeLinear fed by constants is a constant and
    goes with its reader. A composite may hold DequantizeLinear and QuantizeLinear nodes of its own, and
    then needs no others there. A path that leaves a group and returns, through a computed scale,
    prevents the group, too. Where an operator is accepted in floating point alone, the DequantizeLinear
    and QuantizeLinear nodes around it that no rule takes are refused for that, with the reason.
    """
    has_qdq = any(kind.is_qdq for kind in {*index.node_kinds})
    floats = {n: _NoGroupError(mark.not_quantized) for n, mark in enumerate(marks) if mark.not_quantized}
    if not any(mark.accepts_quantized for mark in marks):
        return [_explain_lone_node(index, unit, floats) for unit in units] if floats else list(units)
    finder = _GroupFinder(index, {node: unit for unit in units for node in unit.nodes})
    order: ContractionOrder | None = None
    changed: dict[int, Unit] = {}
    absorbed: set[int] = set()
    for unit in units:
        quantized = unit.verdict and any(marks[node].accepts_quantized for node in unit.nodes)
        if not quantized:
            continue
        if not has_qdq and all(marks[node].accepts_plain for node in unit.nodes):
            continue  # there can be no group, and none is needed
        if len(unit.nodes) == 1 and is_qdq_node(index.nodes[unit.nodes[0]]):
            continue
        try:
            around = finder.find(unit.nodes)
            _require_quantized_rules(index, unit, marks)
            if order is None:  # most graphs have no group
                order = _join_units(index, units)
            _join_group(order, (*unit.nodes, *around))
        except _NoGroupError as error:
            if not all(marks[node].accepts_plain for node in unit.nodes):
                name = unit.composite or index.nodes[unit.nodes[0]].op_type
                verdict = refuse(
                    Cause(
                        CauseKind.QUANTIZATION,
                        f"{name} is no whole QDQ group: {error}",
                        name,
                        f"{marks[unit.nodes[0]].rule}.quantized",
                        names=error.names,
                    )
                )
                changed[unit.nodes[0]] = replace(unit, verdict=verdict, rules=(), must=False)
            else:
                floats.update(dict.fromkeys(unit.nodes, error))
        else:
            absorbed.update(around)
            nodes = tuple(sorted((*unit.nodes, *around)))
            changed[unit.nodes[0]] = replace(unit, nodes=nodes, kind="qdq")
    left = [changed.get(unit.nodes[0], unit) for unit in units if unit.nodes[0] not in absorbed]
    return [_explain_lone_node(index, unit, floats) for unit in left] if has_qdq and floats else left


def _explain_lone_node(index: GraphIndex, unit: Unit, floats: "Mapping[int, _NoGroupError]") -> Unit:
    """Return a refused DequantizeLinear or QuantizeLinear with what keeps it out of a group.

    `floats` has the nodes that are accepted in floating point alone, and why.
    """
    node = index.nodes[unit.nodes[0]]
    if unit.verdict or len(unit.nodes) > 1 or not is_qdq_node(node):
        return unit
    if is_dequantize(node):
        near = [reader for name in node.output for reader in index.consumers.get(name, ())]
    else:
        near = [index.producers.get(node.input[0], -1)]
    found = next((number for number in near if number in floats), None)
    if found is None:
        return unit
    operator = describe_node(index.nodes[found])
    reason = f"{operator} is taken in floating point, not in integers: {floats[found]}"
    names = get_node_name(index.nodes[found]), *floats[found].names
    cause = Cause(CauseKind.QUANTIZATION, reason, node.op_type, names=names)
    return replace(unit, verdict=refuse(cause))


def _join_units(index: GraphIndex, units: Sequence[Unit]) -> ContractionOrder:
    """Return an order in which the nodes of each unit are joined."""
    order = ContractionOrder(index)
    for unit in units:
        order.join(unit.nodes)
    return order


def _require_quantized_rules(index: GraphIndex, unit: Unit, marks: Sequence[Mark]) -> None:
    """Raise _NoGroupError unless rules for quantized operators accept all computing nodes of a unit."""
    for number in unit.nodes:
        if not marks[number].accepts_quantized and not is_qdq_node(index.nodes[number]):
            node = index.nodes[number]
            text = f"no rule for quantized operators takes {describe_node(node)}"
            raise _NoGroupError(text, get_node_name(node))


def _join_group(order: ContractionOrder, nodes: Collection[int]) -> None:
    """Join nodes in an order. Raise _NoGroupError if a path leaves them and returns."""
    between = order.join(nodes)
    if between is not None:
        node = order.index.nodes[between]
        text = f"a path leaves it and comes back through {describe_node(node)}"
        raise _NoGroupError(text, get_node_name(node))


def check_unaccepted_nodes(index: GraphIndex, nodes: Iterable[int], marks: Sequence[Mark]) -> Verdict:
    """Check whether the nodes of a composite that no rule accepts may be in it.

    The DequantizeLinear and QuantizeLinear nodes of a whole group need no rule of their own.
    """
    inside = sorted(nodes)
    unaccepted = [node for node in inside if not marks[node].verdict]
    if not unaccepted:
        return YES
    core = [node for node in inside if not is_qdq_node(index.nodes[node])]
    if not core or not all(marks[node].accepts_quantized for node in core):
        return refuse(describe_rejection(index.nodes[unaccepted[0]], marks[unaccepted[0]]))
    try:
        _GroupFinder(index).find(inside)
    except _NoGroupError as error:
        return refuse(f"it is no whole QDQ group: {error}")
    return YES


class _NoGroupError(Exception):
    """Nodes are not the core of a QDQ group; says why, with the nodes and tensors that are named."""

    def __init__(self, text: str, *names: str) -> None:
        """Make the error of its sentence, and of the names that this quotes."""
        super().__init__(text)
        self.names = names


@dataclass(frozen=True)
class _GroupFinder:
    """Finds the nodes of a QDQ group; `unit_of` has the units so far, None before there are any."""

    index: GraphIndex
    unit_of: Mapping[int, Unit] | None = None

    def find(self, core: Collection[int]) -> list[int]:
        """Return the other nodes of the group around some. Raise _NoGroupError if there is none."""
        inside = set(core)
        made = {name for node in core for name in self.index.nodes[node].output if name}
        entering = (name for node in core for name in self._activations(node) if name not in made)
        around: dict[int, None] = {}
        for name in dict.fromkeys(entering):
            if not self.index.is_constant(name) and may_be_float(self.index, name):
                around[self._dequantize_of(name, inside)] = None
        for name in sorted(made, key=lambda name: self.index.producers[name]):
            readers = self.index.consumers.get(name, ())
            leaves = name in self.index.outputs or not inside.issuperset(readers)
            if leaves and may_be_float(self.index, name):
                around.update(dict.fromkeys(self._quantize_of(name, inside)))
        if not around and not any(is_qdq_node(self.index.nodes[node]) for node in core):
            raise _NoGroupError("nothing that it reads or makes is quantized")
        return list(around)

    def _activations(self, number: int) -> Sequence[str]:
        """Return the inputs of a node that must be quantized: all but its own scale and zero point."""
        node = self.index.nodes[number]
        return node.input[:1] if is_qdq_node(node) else self.index.reads[number]

    def _dequantize_of(self, name: str, inside: set[int]) -> int:
        """Return the DequantizeLinear that makes an input for the group alone."""
        producer = self.index.producers.get(name, -1)
        if producer < 0:
            raise _NoGroupError(
                f"its input '{name}' comes from outside the graph, not from a DequantizeLinear", name
            )
        node = self.index.nodes[producer]
        if not is_dequantize(node):
            text = f"its input '{name}' is made by {describe_node(node)}, not by a DequantizeLinear"
            raise _NoGroupError(text, name, get_node_name(node))
        readers = [user for user in self.index.consumers[name] if user not in inside]
        if readers:
            reader = self.index.nodes[readers[0]]
            text = f"its input '{name}' is read by {describe_node(reader)}, too"
            raise _NoGroupError(text, name, get_node_name(reader))
        if name in self.index.outputs:
            raise _NoGroupError(f"its input '{name}' is an output of the graph, too", name)
        self._require_free(producer)
        return producer

    def _quantize_of(self, name: str, inside: set[int]) -> Iterator[int]:
        """Yield the QuantizeLinear nodes that alone read an output."""
        if name in self.index.outputs:
            text = f"its output '{name}' is an output of the graph, and is not quantized"
            raise _NoGroupError(text, name)
        for number in self.index.consumers[name]:
            if number in inside:
                continue
            node = self.index.nodes[number]
            if not is_quantize(node) or name in node.input[1:]:
                reader = describe_node(node)
                text = f"its output '{name}' is read by {reader}, not by a QuantizeLinear alone"
                raise _NoGroupError(text, name, get_node_name(node))
            self._require_free(number)
            yield number

    def _require_free(self, number: int) -> None:
        if self.unit_of is None:
            return
        unit = self.unit_of.get(number)
        if unit is None or len(unit.nodes) > 1:
            node = self.index.nodes[number]
            text = f"{describe_node(node)} belongs to another composite"
            raise _NoGroupError(text, get_node_name(node))


# Every place in a graph where a composite could be, overlapping ones included.

# The attempts for one pattern in one graph grow linearly with the graph, so that the time does, too.
_ATTEMPTS_PER_NODE = 20
_LEAST_ATTEMPTS = 100_000  # of matching one pattern in a small graph
_MAX_AT_A_NODE = 8  # matches of a pattern that begin at one node


def free_nodes(index: GraphIndex, marks: Sequence[Mark]) -> frozenset[int]:
    """Return the nodes that a composite may contain: accepted by the rules, and not constant.

    If there are rules for quantized operators, DequantizeLinear and QuantizeLinear nodes are free
    without being accepted; `filter_allowed` decides about them.
    """
    free = {number for number, mark in enumerate(marks) if mark.verdict}
    if any(mark.accepts_quantized for mark in marks):
        free.update(number for number, kind in enumerate(index.node_kinds) if kind.is_qdq)
    return frozenset(free - index.constant_nodes)


def find_candidates(
    index: GraphIndex, patterns: Sequence[Pattern], marks: Sequence[Mark]
) -> list[Match]:
    """Find every match of accepted nodes that can become one node, overlapping ones included.

    Larger matches come first, then the order is that of the patterns, their variants, and the nodes. Of
    several ways to match the same nodes by one pattern the first counts. A form has at most 8 matches at
    one node. Matches that take too many attempts are not found.
    """
    return filter_allowed(index, find_matches(index, patterns, free_nodes(index, marks)), marks)


def find_matches(index: GraphIndex, patterns: Sequence[Pattern], free: Container[int]) -> list[Match]:
    """Find every match of free nodes, in the order of `find_candidates`."""
    table = NodeTable.from_index(index)
    matches = [match for pattern in patterns for match in _matches_of_pattern(pattern, table, free)]
    return sorted(matches, key=lambda match: -len(match.nodes))


def filter_allowed(index: GraphIndex, found: Iterable[Match], marks: Sequence[Mark]) -> list[Match]:
    """Return the matches that the marks of their nodes allow, in their order."""
    free = free_nodes(index, marks)
    return [
        match
        for match in found
        if free.issuperset(match.nodes.values())
        and check_unaccepted_nodes(index, match.nodes.values(), marks)
    ]


def _matches_of_pattern(pattern: Pattern, table: NodeTable, free: Container[int]) -> Iterator[Match]:
    attempts_left = max(_LEAST_ATTEMPTS, _ATTEMPTS_PER_NODE * len(table.ops))
    seen: set[frozenset[int]] = set()
    for form in pattern.forms:
        attempts = AttemptBudget()
        search = PatternSearch(form, table, free, attempts)
        for number in _start_nodes(form, table):
            if attempts_left <= 0:
                return
            if number not in free or not search.may_start(number):
                continue
            attempts.left = before = min(MAX_ATTEMPTS, attempts_left)
            count = 0
            for match in find_matches_at(pattern, search, number):
                nodes = frozenset(match.nodes.values())
                if nodes not in seen:
                    seen.add(nodes)
                    count += 1
                    yield match
                if count == _MAX_AT_A_NODE:
                    break
            attempts_left -= before - max(attempts.left, 0)


def _start_nodes(form: PatternForm, table: NodeTable) -> Sequence[int]:
    """Return the nodes at which matching may begin; none if the graph lacks a required operator."""
    for line in form.required:
        if not line.matches_any_operator and not any(op in table.by_op for op in line.ops):
            return ()
    ops = {op for line, _ in form.starts for op in line.ops}
    if ANY_OPERATOR in ops:
        return table.by_op[ANY_OPERATOR]
    return sorted(number for op in ops for number in table.by_op.get(op, ()))
