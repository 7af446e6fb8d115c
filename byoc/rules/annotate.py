"""The annotator: the nodes that an accelerator supports, and the reasons for all others.

A node that the file keeps on the host stays there. Any other node is supported if one of the rules for
its operator accepts it; the first in the order of the file counts. If all refuse, the reasons are those
of the nearest rule: the fewest objections; ties by severity, then by file order.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from onnx import NodeProto

from byoc.expressions import compile_expression
from byoc.graph.attributes import onnx_domains
from byoc.graph.index import GraphIndex
from byoc.graph.walk import captured, is_onnx
from byoc.plugins import CHECKS, load_function
from byoc.rules.attributes import attribute_objections, bound_objections
from byoc.rules.batch import batch_objections
from byoc.rules.border import converts
from byoc.rules.host import forced
from byoc.rules.load import Target
from byoc.rules.objections import Attempt, Kind, Objection, nearness, ordered
from byoc.rules.operators import Signature, name_of, signature
from byoc.rules.schema import OpRule
from byoc.rules.scheme import Scheme
from byoc.rules.tensors import tensor_objections
from byoc.rules.values import ANY
from byoc.rules.view import Use, View
from byoc.verdict import YES, Mark, refuse

__all__ = ["Annotator", "Attempt", "Objection", "annotate"]


def annotate(index: GraphIndex, target: Target) -> list[Mark]:
    """Annotate a graph: return a mark for each node, in the order of the nodes.

    Constant nodes are marked, too; they are not placed. Raises InputError when a check function that the
    file names cannot be loaded.
    """
    annotator = Annotator(target, index)
    return [annotator.mark(number) for number in range(len(index.nodes))]


@dataclass(frozen=True, eq=False)
class _Rule:
    """A rule with its location in a file, and its dtypes with theirs."""

    place: str
    rule: OpRule
    dtypes: tuple[str, Sequence[str]]


@dataclass(frozen=True, eq=False)
class Annotator:
    """The rules of a target, applied to the nodes of a graph."""

    target: Target
    index: GraphIndex

    def mark(self, number: int) -> Mark:
        """Return the mark of a node."""
        found = self._ruled(number)
        if found.verdict:
            return found
        return self._at_border(number) or found

    def _at_border(self, number: int) -> Mark | None:
        """Return the mark of a node that the accelerator runs to convert at a boundary, else None."""
        if self.target.rules.quantization.convert != "device" or number in self._forced:
            return None
        if not converts(self.index, number, lambda other: self._ruled(other).quantized):
            return None
        return Mark(YES, self.target.place("quantization.convert"))

    def _ruled(self, number: int) -> Mark:
        """Return the mark of a node according to the rules alone."""
        barred = self._barred(number)
        if barred is not None:
            return Mark(refuse(barred.text), plain=False)
        view = self._view(number)
        accepted: dict[bool, _Rule] = {}
        refused: list[Attempt] = []
        for rule in self._candidates(view.op):
            if rule.rule.quantized in accepted:
                continue
            attempt = self._attempt(rule, view)
            if attempt.objections:
                refused.append(attempt)
                continue
            accepted[rule.rule.quantized] = rule
            if len(accepted) == 2 or not self.target.quantized:
                break
        if not accepted:
            first, *others = (o.text for o in min(refused, key=nearness).objections)
            return Mark(refuse(f"{view.op}: {first}", *others), plain=False)
        holds = next(iter(accepted.values()))
        return Mark(
            YES,
            holds.place,
            holds.rule.standalone,
            must=holds.rule.level == "must",
            plain=False in accepted,
            quantized=True in accepted,
        )

    def attempts(self, number: int) -> list[Attempt]:
        """Return the attempts of all rules for a node's operator, the nearest first; never empty.

        If no rule applies (the node is kept on the host, its operator is not in the file), there is one
        attempt with an empty `rule`.
        """
        barred = self._barred(number)
        if barred is not None:
            return [Attempt("", (barred,))]
        view = self._view(number)
        return sorted((self._attempt(rule, view) for rule in self._candidates(view.op)), key=nearness)

    def _attempt(self, rule: _Rule, view: View) -> Attempt:
        batch = self._batch.get(view.number)
        found = (*self._against(rule, view), *((batch,) if batch else ()))
        objections = ordered(found) or ordered(self._check(rule, view))
        return Attempt(rule.place, objections, fits=rule.rule.quantized == view.quantized)

    @cached_property
    def _forced(self) -> Mapping[int, Objection]:
        return forced(self.index, self.target.rules.host, self.target.place)

    @cached_property
    def _rules(self) -> Mapping[str, Sequence[_Rule]]:
        """The rules by operator; a rule for any operator is among those of each."""
        rules = self.target.rules
        found: dict[str, list[_Rule]] = {op: [] for rule in rules.ops for op in (*rule.op, ANY)}
        for position, rule in enumerate(rules.ops):
            place = self.target.place(f"ops[{position}]")
            dtypes = self.target.place("dtype"), rules.dtype
            if rule.dtype:
                dtypes = f"{place}.dtype", rule.dtype
            made = _Rule(place, rule, dtypes)
            for op in found if ANY in rule.op else dict.fromkeys(rule.op):
                found[op].append(made)
        return found

    def _candidates(self, op: str) -> Sequence[_Rule]:
        found = self._rules.get(op)
        return self._rules[ANY] if found is None else found

    def _barred(self, number: int) -> Objection | None:
        """Return the reason that keeps a node on the host before any rule is tried, else None."""
        kept = self._forced.get(number)
        if kept is not None:
            return kept
        node = self.index.nodes[number]
        op = name_of(node)
        if not self._candidates(op):
            text = f"{op} is not among the operators of {self.target.name}"
            return Objection("ops", text, Kind.OPERATOR)
        if self._signature(node) is None and (is_onnx(node) or node.domain in onnx_domains()):
            text = f"{op} has no operator schema in ONNX to check it against"
            return Objection("", text, Kind.OPERATOR)
        if not any(map(self.index.is_used, node.output)):
            return Objection("", f"nothing reads what {op} makes", Kind.OPERATOR)
        return None

    @cached_property
    def _batch(self) -> Mapping[int, Objection]:
        most, place = self.target.rules.limits.batch, self.target.place("limits.batch")
        return {} if most is None else batch_objections(self.index, most, place)

    def _view(self, number: int) -> View:
        node = self.index.nodes[number]
        compute = self.target.compute
        return View(self.index, number, node, name_of(node), self._signature(node), compute)

    def _signature(self, node: NodeProto) -> Signature | None:
        schema = self.index.schema(node)
        return None if schema is None else signature(schema)

    def _against(self, rule: _Rule, view: View) -> Iterator[Objection]:
        """Yield the objections of a rule to a node in no particular order, possibly repeated."""
        place, node = rule.place, view.node
        version = self.index.opset(node)
        if rule.rule.opset.min is not None or rule.rule.opset.max is not None:
            opset = rule.rule.opset
            yield from bound_objections(f"{place}.opset", "the operator set", version, opset, Kind.OPSET)
        seen = set()
        for use in view.uses:
            seen.add(use.formal)
            wanted = rule.rule.tensors.get(use.formal)
            dtypes = self._dtypes(rule, use, view)
            key = f"{place}.tensors.{use.formal}"
            yield from tensor_objections(key, use, wanted, dtypes, view, rule.rule.quantized)
            if rule.rule.quantized:
                yield from self._scheme.objections(use, wanted, view)
        if rule.rule.quantized:
            yield from self._scheme.between(view)
        for tensor in captured(node):
            if tensor not in self.index.types:
                text = f"the type of '{tensor}', which a body reads, is not known"
                yield Objection(place, text, Kind.UNKNOWN)
        for name, asked in rule.rule.tensors.items():
            if name not in seen and asked.absent is False:
                yield Objection(f"{place}.tensors.{name}.absent", f"{name} is absent")
        for name, allowed in rule.rule.attributes.items():
            value = view.attributes.get(name)
            yield from attribute_objections(f"{place}.attributes.{name}", name, value, allowed)
        yield from self._conditions(rule, view)

    def _dtypes(self, rule: _Rule, use: Use, view: View) -> tuple[str, Sequence[str]]:
        """Return the allowed dtypes of a tensor, with their location; none if all are allowed."""
        if rule.rule.quantized and not rule.rule.dtype:
            found = self._scheme.dtypes(use, view)
            if found is not None:
                return found
        held = view.signature is None or view.signature.is_computed(use.type_str, rule.dtypes[1])
        return rule.dtypes if held else (rule.place, ())

    @cached_property
    def _scheme(self) -> Scheme:
        return Scheme(self.target.rules.quantization, self.target.place)

    @cached_property
    def _checks(self) -> Mapping[str, Callable[..., object]]:
        names = {rule.check for rule in self.target.rules.ops if rule.check}
        return {name: load_function(CHECKS, name) for name in sorted(names)}

    def _conditions(self, rule: _Rule, view: View) -> Iterator[Objection]:
        for position, condition in enumerate(rule.rule.where):
            holds, text = compile_expression(condition.expr).answer(view.facts)
            if not holds:
                kind = Kind.UNKNOWN if holds is None else Kind.ATTRIBUTE
                text = condition.reason if condition.reason and holds is False else text
                yield Objection(f"{rule.place}.where[{position}]", text, kind)

    def _check(self, rule: _Rule, view: View) -> Iterator[Objection]:
        """Yield the objection of a rule's check function, which runs last."""
        name = rule.rule.check
        if name is not None:
            text = said(name, self._checks[name], view.facts)
            if text:
                yield Objection(f"{rule.place}.check", text, Kind.ATTRIBUTE)


def said(name: str, check: Callable[..., object], facts: Mapping[str, Any]) -> str:
    """Call a check function, and return its reason, empty if it has none.

    A function that raises, as on facts that are not known, or returns no text is a reason, too.
    """
    try:
        reason = check(facts)
    except Exception as error:  # code of others can fail in any way
        return f"check {name} failed with {type(error).__name__}: {' '.join(str(error).split())[:160]}"
    if reason is not None and not isinstance(reason, str):
        return f"check {name} gave {type(reason).__name__}, not a text"
    return reason or ""
