"""The annotator: the nodes that an accelerator supports, and the reasons for all others.

A node that the file keeps on the host stays there. Any other node is supported if one of the rules for
its operator accepts it; the first in the order of the file counts. If all refuse, the reasons are those
of the nearest rule: the fewest objections; ties by severity, then by file order.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from byoc._dataclasses import dataclass, field, replace
from byoc.errors import YES, CauseKind, refuse
from byoc.model import (
    GraphIndex,
    NodeKind,
    TensorQuantization,
    find_constant_value,
    find_type_origin,
    get_constant_value,
    get_input_quantization,
    get_operator_name,
    get_output_quantization,
    is_onnx,
    is_qdq_node,
    list_node_captures,
)
from byoc.model.schemas import INSTALL_HINT, has_runtime_schemas, list_onnx_domains
from byoc.patterns import ANY_OPERATOR, Mark
from byoc.rules._graph_rules import ValueChecker, check_batch, find_host_nodes
from byoc.rules._node_view import (
    Attempt,
    Objection,
    ObjectionKind,
    RuleView,
    TensorUse,
    check_attribute,
    check_bounds,
    object_to_open,
    rate_attempt,
    run_check_function,
    sort_objections,
)
from byoc.rules._quantization_scheme import (
    SchemeChecker,
    converts_at_boundary,
    converts_between_operators,
)
from byoc.rules._rule_loading import KnownMarks, Target
from byoc.rules._rule_schema import OpRule
from byoc.rules._tensor_constraints import check_known_shape, check_tensor
from byoc.support import CHECKS, load_function
from byoc.support.expressions import Member, Name, compile_expression, walk_tree

__all__ = ["ASKED_RULE", "Annotator", "Attempt", "Objection", "annotate_graph"]

ASKED_RULE = "--ask everything"  # the location of the rules for what is asked of the compiler alone


# Signatures of nodes: nodes of one signature are the same to the rules of a file.
#
# A large graph repeats few nodes: the layers of a transformer have equal operators on equal types.
# What the rules say of one of them holds for all.

# A longer node holds data, which is not worth comparing.
_MAX_BYTES = 4096


@dataclass(frozen=True, eq=False)
class NodeSignatures:
    """The signatures of a graph's nodes; `find_rules` gives the rules for an operator.

    Signatures made with the same `numbers` can be compared between graphs: what is equal has one number.
    """

    index: GraphIndex
    find_rules: Callable[[str], Sequence[OpRule]]
    numbers: dict[Hashable, int] = field(default_factory=dict)
    _reads_values: dict[str, "_ReadValues"] = field(default_factory=dict)
    _kinds: dict[NodeKind, int] = field(default_factory=dict)

    def sign_node(self, number: int) -> Hashable:
        """Return the signature of a node, None for a node that may be unlike all others.

        A signature has all that rules read: the attributes, the types of tensors, whether these are
        constant or used, how they are quantized, and values where a rule reads some. Nodes with bodies
        have none; nor has any node where a rule reads names or calls a check function.
        """
        index = self.index
        kind = index.node_kinds[number]
        read = self._find_read_values(kind.operator)
        if read.unlike_others or kind.has_bodies or kind.size > _MAX_BYTES:
            return None
        names, outputs = index.node_inputs[number], index.node_outputs[number]
        known = self._known
        parts = [self._number_kind(kind)]
        parts += [known.get(name, -1) if name else -2 for name in names]
        parts.append(-3)  # no number: outputs follow
        parts += [known.get(name, -1) if name else -2 for name in outputs]
        if read.constants:
            parts += [self._number(self._get_value(name)) for name in names if index.is_constant(name)]
        if not self._quantized_tensors.isdisjoint((*names, *outputs)):
            described = self._describe_quantization(number, (*names, *outputs), read.scales)
            parts.append(self._number(described))
        return tuple(parts)

    def reads_values(self, op: str) -> bool:
        """Return whether the rules for an operator may read values of constants."""
        read = self._find_read_values(op)
        return read.unlike_others or read.constants

    def _find_read_values(self, op: str) -> "_ReadValues":
        if op not in self._reads_values:
            self._reads_values[op] = _find_read_values(self.find_rules(op))
        return self._reads_values[op]

    def _number(self, value: Hashable) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    def _number_kind(self, kind: NodeKind) -> int:
        """Return the number of a kind in graphs of these operator sets and ranges of open dimensions."""
        if kind not in self._kinds:
            own = kind.operator, kind.attributes
            self._kinds[kind] = self._number((*own, self._graph_number))
        return self._kinds[kind]

    @cached_property
    def _graph_number(self) -> int:
        ranges = self.index.planned.ranges
        return self._number((frozenset(self.index.opsets.items()), frozenset(ranges.items())))

    @cached_property
    def _known(self) -> Mapping[str, int]:
        """The facts that rules see of each tensor: type, whether it is constant, whether it is used."""
        index = self.index
        constants, used = index.constant_names, {*index.consumers, *index.outputs}
        numbers = {id(kind): self._number(kind) for kind in index.types.values()}
        found = {
            name: (numbers[id(kind)] << 2) | (name in constants) << 1 | (name in used)
            for name, kind in index.types.items()
        }
        untyped = self._number("no type") << 2
        return {name: untyped | (name in constants) << 1 | 1 for name in used} | found

    def _get_value(self, name: str) -> Hashable:
        value = get_constant_value(self.index, name)
        return None if value is None else (value.dtype.str, value.shape, tuple(value.ravel().tolist()))

    @cached_property
    def _quantized_tensors(self) -> frozenset[str]:
        """The tensors that a DequantizeLinear makes or a QuantizeLinear reads."""
        index, found = self.index, set[str]()
        for number, kind in enumerate(index.node_kinds):
            if kind.is_onnx and kind.op_type == "DequantizeLinear":
                found.update(index.node_outputs[number])
            elif kind.is_onnx and kind.op_type == "QuantizeLinear":
                found.update(index.node_inputs[number])
        return frozenset(found)

    def _describe_quantization(self, number: int, names: Sequence[str], with_scales: bool) -> Hashable:
        """Return all that rules see of how tensors of a node are quantized.

        Scales and zero points are seen by which of them are equal and by what a scheme asks for, unless
        conditions read them (`with_scales`). Reasons name tensors whose formal names are not unique.
        """
        found: list[Hashable] = []
        places: dict[Hashable, int] = {}  # the first place of each scale or zero point
        for name in names:
            for one in self._get_quantizations(name):
                if one is None:
                    found.append(None)
                    continue
                found += one.quantized_type, one.axis
                for read in (one.scale, one.zero_point):
                    facts, value = self._get_scale_facts(read)
                    found += facts, places.setdefault(value, len(places))
                    found += (value,) if with_scales else ()
        return (*found, *(() if self._has_unique_formals(number) else names))

    def _has_unique_formals(self, number: int) -> bool:
        schema = self.index.get_schema(self.index.nodes[number])
        if schema is None:
            return False
        formals = [*schema.inputs, *schema.outputs]
        unique = len({each.name for each in formals}) == len(formals)
        return unique and not any(each.variadic for each in formals)

    def _get_quantizations(self, name: str) -> tuple[TensorQuantization | None, ...]:
        """Return the quantization of a tensor as an input, and as an output."""
        if name not in self._quantized_tensors:
            return (None,)
        return get_input_quantization(self.index, name), get_output_quantization(self.index, name)

    @cached_property
    def _scale_facts(self) -> dict[str, tuple[Hashable, Hashable]]:
        return {}

    def _get_scale_facts(self, name: str) -> tuple[Hashable, Hashable]:
        """Return the facts of a scale or zero point, and its value, or its name if that is large."""
        if name not in self._scale_facts:
            stored = find_constant_value(self.index, name) if name else np.zeros(())
            facts: Hashable = None
            if stored is not None and stored.dtype.kind not in "OSU":
                facts = bool(np.any(stored)), bool(np.all(np.frexp(stored.astype(np.float64))[0] == 0.5))
            small = get_constant_value(self.index, name) if name else stored
            value: Hashable = name if small is None else tuple(small.reshape(-1).tolist())
            known = self.index.types.get(name)
            self._scale_facts[name] = (known, facts, small is None, bool(name)), value
        return self._scale_facts[name]


class _ReadValues(NamedTuple):
    """The values that rules read: of constants, and of scales and zero points.

    Nodes are `unlike_others` where rules may read what no signature has.
    """

    constants: bool = False
    scales: bool = False
    unlike_others: bool = False


def _find_read_values(rules: Sequence[OpRule]) -> _ReadValues:
    """Find the values that rules read."""
    if any(rule.check is not None for rule in rules):
        return _ReadValues(unlike_others=True)
    constants = any(part.value is not None for rule in rules for part in rule.tensors.values())
    scales = False
    for condition in (condition for rule in rules for condition in rule.where):
        parts = list(walk_tree(compile_expression(condition.expr).tree))
        read = {part.name for part in parts if isinstance(part, (Member, Name))}
        if "name" in read:
            return _ReadValues(unlike_others=True)
        constants |= "value" in read
        scales |= not read.isdisjoint(("scale", "zero_point"))
    return _ReadValues(constants, scales)


# The rules of a target, applied to a graph.


def annotate_graph(index: GraphIndex, target: Target) -> list[Mark]:
    """Annotate a graph: return a mark for each node, in the order of the nodes.

    Constant nodes are marked, too; they are not placed. Raises InputError when a check function that the
    file names cannot be loaded.
    """
    annotator = Annotator(target, index)
    return [annotator.annotate_node(number) for number in range(len(index.nodes))]


@dataclass(frozen=True, eq=False)
class _LocatedRule:
    """A rule with its location in a file, and its dtypes with theirs."""

    location: str
    rule: OpRule
    dtypes: tuple[str, Sequence[str]]


@dataclass(frozen=True, eq=False)
class Annotator:
    """The rules of a target, applied to the nodes of a graph."""

    target: Target
    index: GraphIndex
    _ruled: dict[int, Mark] = field(default_factory=dict)
    """the marks of nodes by the rules alone; conversions beside a node ask for its mark, too"""

    def annotate_node(self, number: int) -> Mark:
        """Return the mark of a node."""
        found = self._apply_rules(number)
        if found.verdict:
            return found
        return self._mark_conversion(number) or found

    def _mark_conversion(self, number: int) -> Mark | None:
        """Return the mark of a node that the accelerator runs to convert at a boundary, else None."""
        convert = self.target.rules.quantization.convert
        if convert not in ("device", "between") or number in self._host_nodes:
            return None

        def is_quantized(other: int) -> bool:
            return self._apply_rules(other).accepts_quantized

        def is_float(other: int) -> bool:
            mark = self._apply_rules(other)
            return bool(mark.verdict) and mark.accepts_plain

        if convert == "device":
            found = converts_at_boundary(self.index, number, is_quantized)
        else:
            found = converts_between_operators(self.index, number, is_quantized, is_float)
        return Mark(YES, self.target.locate("quantization.convert")) if found else None

    def _apply_rules(self, number: int) -> Mark:
        """Return the mark of a node according to the rules alone."""
        if number not in self._ruled:
            self._ruled[number] = self._find_mark(number)
        return self._ruled[number]

    def _find_mark(self, number: int) -> Mark:
        kept = self._host_nodes.get(number)
        if kept is not None:
            return Mark(
                refuse(kept.make_cause(get_operator_name(self.index.nodes[number]))), accepts_plain=False
            )
        if number in self._batch_objections:
            return self._try_rules(number)[0]
        known, asks = self._known_marks, self.target.asks_beyond  # which depends on the graph as well
        signature = None if asks else self._signatures.sign_node(number)
        if signature in known.marks:
            return self._check_values(number, known.marks[signature])
        mark, shared = self._try_rules(number)
        if shared and signature is not None:
            known.marks[signature] = mark
        return self._check_values(number, mark)

    def _check_values(self, number: int, mark: Mark) -> Mark:
        """Return the mark of a node by its values as well, which nodes of one signature do not share."""
        if self._values is None or not mark.verdict or number in self.index.constant_nodes:
            return mark
        condition = self._values.find_condition(number)
        if condition is None:
            return mark
        cause = condition.objection.make_cause(get_operator_name(self.index.nodes[number]), named=True)
        return Mark(refuse(cause), accepts_plain=False)

    def _try_rules(self, number: int) -> tuple[Mark, bool]:
        """Return the mark of a node that is not kept on the host, and whether all like it get it, too.

        They do not where something is not known: then the reason says what it depends on.
        """
        barred = self._find_bar(number)
        if barred is not None:
            cause = barred.make_cause(get_operator_name(self.index.nodes[number]))
            return Mark(refuse(cause), accepts_plain=False), True
        view = self._make_view(number)
        accepted: dict[bool, _LocatedRule] = {}
        refused: list[Attempt] = []
        for rule in self._find_rules(view.op):
            if rule.rule.quantized in accepted:
                continue
            attempt = self._try_rule(rule, view)
            if attempt.objections:
                refused.append(attempt)
                continue
            accepted[rule.rule.quantized] = rule
        if not accepted:
            asked = [(each, self._try_rule(each, view)) for each in self._find_asked_rules(number)]
            accepted = {each.rule.quantized: each for each, tried in asked if not tried.objections}
            refused = refused or [tried for _, tried in asked]
        kinds = {objection.kind for attempt in refused for objection in attempt.objections}
        shared = ObjectionKind.UNKNOWN not in kinds
        if not accepted:
            first, *others = min(refused, key=rate_attempt).objections
            causes = [first.make_cause(view.op, named=True)]
            causes += [other.make_cause(view.op) for other in others]
            distinct = {cause.text: cause for cause in reversed(causes)}  # the first of each counts
            reasons = [distinct[text] for text in dict.fromkeys(cause.text for cause in causes)]
            return Mark(refuse(*reasons), accepts_plain=False), shared
        near = (each for each in refused if each.fits and view.is_quantized and True not in accepted)
        nearest = min(near, key=rate_attempt, default=None)
        holds = next(iter(accepted.values()))
        mark = Mark(
            YES,
            holds.location,
            holds.rule.standalone,
            is_required=holds.rule.level == "must",
            accepts_plain=False in accepted,
            accepts_quantized=True in accepted,
            not_quantized=nearest.objections[0].text if nearest else "",
        )
        return mark, shared

    def list_attempts(self, number: int) -> list[Attempt]:
        """Return the attempts of all rules for a node's operator, the nearest first; never empty.

        If no rule applies (the node is kept on the host, its operator is not in the file), there is one
        attempt with an empty `rule`.
        """
        barred = self._find_bar(number)
        if barred is not None:
            return [Attempt("", (barred,))]
        view = self._make_view(number)
        return sorted(
            (self._try_rule(rule, view, values=True) for rule in self._find_rules(view.op)),
            key=rate_attempt,
        )

    def _try_rule(self, rule: _LocatedRule, view: RuleView, *, values: bool = False) -> Attempt:
        """Try a rule on a node; with `values`, hold its values to the arithmetic contract as well."""
        batch = self._batch_objections.get(view.number)
        found = [*self._find_objections(rule, view), *((batch,) if batch else ())]
        refused = any(objection.kind is not ObjectionKind.UNKNOWN for objection in found)
        found += self._check_conditions(rule, view, refused)
        objections = sort_objections(found) or sort_objections(self._run_check(rule, view))
        if values and not objections and self._values is not None:
            condition = self._values.find_condition(view.number)
            objections = () if condition is None else (condition.objection,)
        objections = tuple(self._name_origin(each, view) for each in objections)
        return Attempt(rule.location, objections, fits=rule.rule.quantized == view.is_quantized)

    def _name_origin(self, objection: Objection, view: RuleView) -> Objection:
        """Return an objection to an unknown type with its origin, unless the node reads or is that."""
        if objection.kind is not ObjectionKind.UNKNOWN:
            return objection
        origin = find_type_origin(self.index, (*view.node.input, *view.node.output))
        own = {*view.node.output, *(name for name in view.node.input if name in self.index.inputs)}
        if origin is None or origin.tensor in own:
            return objection
        return replace(
            objection,
            origin=str(origin),
            flags=origin.flags,
            names=origin.names,
            advice="" if origin.flags else origin.remedy,
        )

    @cached_property
    def _host_nodes(self) -> Mapping[int, Objection]:
        return find_host_nodes(self.index, self.target.rules.host, self.target.locate)

    @cached_property
    def _rules_by_operator(self) -> Mapping[str, Sequence[_LocatedRule]]:
        """The rules by operator; a rule for any operator is among those of each."""
        rules = self.target.rules
        found: dict[str, list[_LocatedRule]] = {
            op: [] for rule in rules.ops for op in (*rule.op, ANY_OPERATOR)
        }
        for position, rule in enumerate(rules.ops):
            location = self.target.locate(f"ops[{position}]")
            dtypes = self.target.locate("dtype"), rules.dtype
            if rule.dtype:
                dtypes = f"{location}.dtype", rule.dtype
            made = _LocatedRule(location, rule, dtypes)
            for op in found if ANY_OPERATOR in rule.op else dict.fromkeys(rule.op):
                found[op].append(made)
        return found

    def _find_rules(self, op: str) -> Sequence[_LocatedRule]:
        found = self._rules_by_operator.get(op)
        return self._rules_by_operator[ANY_OPERATOR] if found is None else found

    def _find_asked_rules(self, number: int) -> Sequence[_LocatedRule]:
        """Return the rules for what is asked of the compiler: it is not asked about bodies."""
        is_plain = number not in self.index.bodies and not is_qdq_node(self.index.nodes[number])
        if not (self.target.asks_beyond and self.index.outer is None and is_plain):
            return ()
        rules = self.target.unlimited_rules
        return [_LocatedRule(ASKED_RULE, rule, (ASKED_RULE, rule.dtype or ())) for rule in rules]

    def _find_bar(self, number: int) -> Objection | None:
        """Return the reason that keeps a node on the host before any rule is tried, else None."""
        kept = self._host_nodes.get(number)
        if kept is not None:
            return kept
        node = self.index.nodes[number]
        op = get_operator_name(node)
        if not self._find_rules(op) and not self._find_asked_rules(number):
            text = f"{op} is not among the operators of {self.target.name}"
            return Objection("ops", text, ObjectionKind.OPERATOR, cause=CauseKind.OPERATOR)
        standard = is_onnx(node) or node.domain in list_onnx_domains()
        if standard and self.index.get_schema(node) is None:
            text = f"{op} has no operator schema in ONNX to check it against"
            return Objection("", text, ObjectionKind.OPERATOR)
        if not any(map(self.index.is_used, node.output)):
            return Objection("", f"nothing reads what {op} makes", ObjectionKind.OPERATOR)
        return None

    @cached_property
    def _batch_objections(self) -> Mapping[int, Objection]:
        most, location = self.target.rules.limits.batch, self.target.locate("limits.batch")
        return {} if most is None else check_batch(self.index, most, location)

    def _make_view(self, number: int) -> RuleView:
        node = self.index.nodes[number]
        op, schema = get_operator_name(node), self.index.get_schema(node)
        with_values = self._signatures.reads_values(op)
        return RuleView(self.index, number, node, op, schema, self.target.compute_dtype, with_values)

    def _find_objections(self, rule: _LocatedRule, view: RuleView) -> Iterator[Objection]:
        """Yield the objections to tensors and attributes in no particular order, possibly repeated."""
        location, node = rule.location, view.node
        version = self.index.get_opset(node)
        if rule.rule.opset.min is not None or rule.rule.opset.max is not None:
            opset = rule.rule.opset
            yield from check_bounds(
                f"{location}.opset", "the operator set", version, opset, ObjectionKind.OPSET
            )
        if rule.rule.tensors and view.schema is None:
            text = f"the tensors of {view.op} cannot be told by name"
            hint = "" if has_runtime_schemas() else f": {INSTALL_HINT}"
            yield Objection(f"{location}.tensors", f"{text}{hint}", ObjectionKind.UNKNOWN)
        seen = set()
        for use in view.uses:
            seen.add(use.formal)
            wanted = rule.rule.tensors.get(use.formal)
            dtypes = self._get_allowed_dtypes(rule, use, view)
            key = f"{location}.tensors.{use.formal}"
            yield from check_tensor(key, use, wanted, dtypes, view, rule.rule.quantized)
            if not use.is_output:
                known = view.get_type(use)
                yield from check_known_shape(self._shapes[0], use.formal, known, self._shapes[1])
            if rule.rule.quantized:
                yield from self._scheme.check_tensor(use, wanted, view)
        if rule.rule.quantized:
            yield from self._scheme.check_same_scale(view)
        for tensor in list_node_captures(node):
            if tensor not in self.index.types:
                text = f"the type of '{tensor}', which a body reads, is not known"
                yield Objection(location, text, ObjectionKind.UNKNOWN, names=(tensor,))
        for name, asked in rule.rule.tensors.items():
            if name not in seen and asked.absent is False:
                yield Objection(f"{location}.tensors.{name}.absent", f"{name} is absent")
        for name, allowed in rule.rule.attributes.items():
            value = view.attributes.get(name)
            yield from check_attribute(f"{location}.attributes.{name}", name, value, allowed)

    def _get_allowed_dtypes(
        self, rule: _LocatedRule, use: TensorUse, view: RuleView
    ) -> tuple[str, Sequence[str]]:
        """Return the allowed dtypes of a tensor, with their location; none if all are allowed."""
        if rule.rule.quantized and not rule.rule.dtype:
            found = self._scheme.find_dtypes(use, view)
            if found is not None:
                return found
        held = view.schema is None or view.schema.is_computed(use.type_str, rule.dtypes[1])
        return rule.dtypes if held else (rule.location, ())

    @cached_property
    def _values(self) -> ValueChecker | None:
        """The check of values; None where the file says nothing about them, or they are assumed."""
        limits = self.target.arithmetic.limits_values and self.target.values == "shown"
        return ValueChecker(self.target, self.index) if limits else None

    @cached_property
    def _shapes(self) -> tuple[str, Literal["any", "ranked", "static"]]:
        """The location of `shapes` in the rule file, and how much it asks of the shapes of inputs."""
        return self.target.locate("shapes"), self.target.rules.shapes

    @cached_property
    def _known_marks(self) -> KnownMarks:
        return self.target.open_known_marks()

    @cached_property
    def _signatures(self) -> NodeSignatures:
        def find_rules(op: str) -> list[OpRule]:
            return [each.rule for each in self._find_rules(op)]

        return NodeSignatures(self.index, find_rules, self._known_marks.numbers)

    @cached_property
    def _scheme(self) -> SchemeChecker:
        return SchemeChecker(self.target.rules.quantization, self.target.locate)

    @cached_property
    def _checks(self) -> Mapping[str, Callable[..., object]]:
        names = {rule.check for rule in self.target.rules.ops if rule.check}
        return {name: load_function(CHECKS, name) for name in sorted(names)}

    def _check_conditions(
        self, rule: _LocatedRule, view: RuleView, refused: bool
    ) -> Iterator[Objection]:
        """Yield the objections of a rule's conditions.

        A condition that cannot be evaluated is none where the node is `refused` anyway: conditions are
        written for tensors and attributes that the rule takes.
        """
        for position, condition in enumerate(rule.rule.where):
            holds, text = compile_expression(condition.expr).decide(view.ranged_facts)
            if not holds and not (holds is None and refused):
                text = condition.reason if condition.reason and holds is False else text
                place = f"{rule.location}.where[{position}]"
                if holds is None:
                    dims = view.list_dims(compile_expression(condition.expr).names)
                    yield object_to_open(place, text, *dims)
                else:
                    yield Objection(place, text, ObjectionKind.ATTRIBUTE)

    def _run_check(self, rule: _LocatedRule, view: RuleView) -> Iterator[Objection]:
        """Yield the objection of a rule's check function, which runs last."""
        name = rule.rule.check
        if name is not None:
            text = run_check_function(name, self._checks[name], view.facts)
            if text:
                yield Objection(f"{rule.location}.check", text, ObjectionKind.ATTRIBUTE)
