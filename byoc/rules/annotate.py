"""The annotator: which nodes an accelerator takes, and for every other one why not.

A node is taken when one of the rules for its operator accepts it. Where all refuse, the reasons are
those of the rule that came nearest (the fewest objections, the first of equals).
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from onnx import NodeProto
from onnx.defs import OpSchema

from byoc.graph.attributes import effective, onnx_domains, open_dtypes, written
from byoc.graph.index import GraphIndex
from byoc.graph.types import TensorType
from byoc.graph.walk import captured, is_onnx
from byoc.rules.schema import ANY, ANY_DTYPE, AttributeRule, ElementRule, OpRule, RuleFile, TensorRule
from byoc.verdict import YES, Mark, refuse


def annotate(index: GraphIndex, rules: RuleFile) -> list[Mark]:
    """Return a mark for each node of the main graph, in the order of the nodes.

    Constant nodes are marked like any other; whether they are placed is not decided here.
    """
    by_op: dict[str, list[tuple[str, OpRule]]] = {}
    for i, rule in enumerate(rules.ops):
        for op in rule.op:
            by_op.setdefault(op, []).append((f"ops[{i}]", rule))
    return [_mark(node, index, by_op, rules) for node in index.nodes]


def _mark(
    node: NodeProto,
    index: GraphIndex,
    by_op: Mapping[str, Sequence[tuple[str, OpRule]]],
    rules: RuleFile,
) -> Mark:
    name = node.op_type if is_onnx(node) else f"{node.domain}.{node.op_type}"
    candidates = (*by_op.get(name, ()), *by_op.get(ANY, ()))
    if not candidates:
        return Mark(refuse(f"{name} is not among the operators of {rules.target}"))
    schema = index.schema(node)
    if schema is None and (is_onnx(node) or node.domain in onnx_domains()):
        return Mark(refuse(f"{name} has no operator schema in ONNX to check it against"))
    if not any(map(index.is_used, node.output)):
        return Mark(refuse(f"nothing reads what {name} makes"))
    attributes = written(node) if schema is None else effective(node, schema, index.types)
    refusals: list[tuple[str, ...]] = []
    for place, rule in candidates:
        found = _objections(rule, node, schema, attributes, index, rule.dtype or rules.dtype)
        reasons = tuple(dict.fromkeys(found))  # a variadic input may fail many times for one reason
        if not reasons:
            return Mark(YES, place, rule.standalone)
        refusals.append(reasons)
    first, *others = min(refusals, key=len)
    return Mark(refuse(f"{name}: {first}", *others))


def _objections(  # noqa: PLR0913, PLR0917 - one rule against all that is known of one node
    rule: OpRule,
    node: NodeProto,
    schema: OpSchema | None,
    attributes: Mapping[str, Any],
    index: GraphIndex,
    dtypes: Sequence[str],
) -> Iterator[str]:
    yield from _bounds("the operator set", index.opset(node), rule.opset.min, rule.opset.max)
    seen = set()
    for name, computed, tensor in _tensors(node, schema, index, dtypes):
        seen.add(name)
        wanted = rule.tensors.get(name, _NO_RULE)
        yield from _tensor(name, tensor, wanted, dtypes if computed else (), index)
    for tensor in captured(node):
        if tensor not in index.types:
            yield f"the type of '{tensor}', which a body reads, is not known"
    for name, wanted in rule.tensors.items():
        if name not in seen and wanted.absent is False:
            yield f"{name} is absent"
    for name, allowed in rule.attributes.items():
        yield from _attribute(name, attributes.get(name), allowed)


_NO_RULE = TensorRule()


def _is_computed(variable: str, schema: OpSchema, dtypes: Sequence[str]) -> bool:
    """Return whether the target's dtypes are meant for a type variable: what the result is made of.

    A Gather's indices and a Dropout's flag could never have the dtype that a float target computes in.
    """
    possible = open_dtypes(schema, variable)
    result = schema.outputs[0].type_str if schema.outputs else ""
    return bool(possible) and (variable == result or not possible.isdisjoint(dtypes))


def _tensors(
    node: NodeProto, schema: OpSchema | None, index: GraphIndex, dtypes: Sequence[str]
) -> Iterator[tuple[str, bool, str]]:
    """Yield for each tensor in use its name in the schema, whether it must be of `dtypes`, and itself.

    Without a schema tensors are called by their position, and the dtypes are meant for all of them.
    """
    sides = (("input", node.input), ("output", node.output))
    for side, names in sides:
        formals = getattr(schema, f"{side}s") if schema else ()
        for position, tensor in enumerate(names):
            if not index.is_used(tensor):
                continue
            if schema is None or not formals:
                yield f"{side} {position}", schema is None, tensor
            else:
                formal = formals[min(position, len(formals) - 1)]  # the last may be variadic
                yield formal.name, _is_computed(formal.type_str, schema, dtypes), tensor


def _tensor(
    formal: str, tensor: str, rule: TensorRule, dtypes: Sequence[str], index: GraphIndex
) -> Iterator[str]:
    if rule.absent:
        yield f"{formal} is given, but must be absent"
        return
    known = index.types.get(tensor)
    if known is None:
        yield f"the type of {formal} is not known"
        return
    allowed = rule.dtype or dtypes
    if allowed and ANY_DTYPE not in allowed and known.dtype not in allowed:
        yield f"{formal} is {known.dtype}; supported: {', '.join(allowed)}"
    if rule.rank is not None:
        yield from _rank(formal, known, rule.rank)
    if rule.constant is not None and index.is_constant(tensor) != rule.constant:
        yield f"{formal} must {'' if rule.constant else 'not '}be a constant"


def _rank(formal: str, known: TensorType, allowed: Sequence[int]) -> Iterator[str]:
    if known.shape is None:
        yield f"the rank of {formal} is not known"
    elif len(known.shape) not in allowed:
        yield f"{formal} has rank {len(known.shape)}; supported: {', '.join(map(str, allowed))}"


def _attribute(name: str, value: Any, rule: AttributeRule) -> Iterator[str]:
    if rule.absent is not None and (value is None) != rule.absent:
        yield f"{name} must be absent" if rule.absent else f"{name} must be given"
    if value is None or rule.absent:
        return
    yield from _value(name, value, rule)
    if rule.length is not None and len(value) not in rule.length:
        yield f"{name} has {len(value)} elements; supported: {', '.join(map(str, rule.length))}"
    if rule.each is not None:
        elements = enumerate(value)
        off = (o for i, element in elements for o in _value(f"{name}[{i}]", element, rule.each))
        yield from islice(off, 1)  # one element is enough to refuse the attribute


def _value(name: str, value: Any, rule: AttributeRule | ElementRule) -> Iterator[str]:
    if rule.one_of is not None and value not in rule.one_of:
        yield f"{name} is {value}; supported: {', '.join(map(str, rule.one_of))}"
    yield from _bounds(name, value, rule.min, rule.max)


def _bounds(name: str, value: Any, low: float | None, high: float | None) -> Iterator[str]:
    if isinstance(value, str) and (low, high) != (None, None):
        yield f"{name} is {value}, not a number"  # as was Cast's `to` before opset 6
        return
    if low is not None and value < low:
        yield f"{name} is {value}, at least {low:g} is supported"
    if high is not None and value > high:
        yield f"{name} is {value}, at most {high:g} is supported"
