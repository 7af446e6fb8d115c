"""The arithmetic contracts of targets in a report, and the conditions under which nodes are right."""

from collections.abc import Iterable, Iterator, Sequence

from byoc.bundle import ValueCondition, ValuePromise
from byoc.model import GraphIndex, get_node_name, get_operator_name
from byoc.planning import Plan
from byoc.rules import Arithmetic, Target, list_conditions

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_SHOWN = 4

# Where a promise has a meaning: operators, or data types.
_SELECTING = ("TopK", "ArgMax", "ArgMin", "MaxPool", "Hardmax", "NonMaxSuppression", "Unique")
_ROUNDING = ("Round", "QuantizeLinear", "DynamicQuantizeLinear", "Cast", "CastLike", "Resize")

_AS_DEFINED = ("kept", "first", "even")

Nodes = Sequence[tuple[GraphIndex, int]]
"""Nodes of graphs, those of bodies among them."""


def list_placed_nodes(plan: Plan, target: Target) -> Nodes:
    """Return the nodes in the regions of a target, with those in their bodies."""
    found: list[tuple[GraphIndex, int]] = []
    for region in plan.regions:
        if region.target is target:
            found += _enter_bodies((region.index, number) for number in region.nodes)
    return found


def _enter_bodies(nodes: Iterable[tuple[GraphIndex, int]]) -> Iterator[tuple[GraphIndex, int]]:
    for index, number in nodes:
        yield index, number
        for body in index.bodies.get(number, ()):
            for inner in body.index.walk():
                yield from ((inner, each) for each in range(len(inner.nodes)))


def find_promises(target: Target, nodes: Nodes) -> tuple[ValuePromise, ...]:
    """Return a target's promises that are weaker than ONNX's definition, each with its operators."""
    contract = target.arithmetic
    if not contract.clauses:
        return ()
    types: dict[str, set[str]] = {}
    for index, number in nodes:
        kind = index.node_kinds[number]
        names = (*index.node_inputs[number], *index.node_outputs[number])
        known = types.setdefault(kind.operator, set())
        known.update(dtype for name in names if (dtype := index.get_dtype(name)))
    found: dict[tuple[str, str], dict[str, None]] = {}
    for op, dtypes in types.items():
        for dtype in sorted(dtypes):
            for promise, value in _list_weaker(contract.resolve(op, dtype), op, dtype):
                found.setdefault((promise, value), {})[op] = None
    return tuple(
        ValuePromise(target=target.name, promise=promise, value=value, operators=tuple(sorted(ops)))
        for (promise, value), ops in sorted(found.items())
    )


def _list_weaker(resolved: Arithmetic, op: str, dtype: str) -> Iterator[tuple[str, str]]:
    """Yield the promises that are weaker than ONNX's definition, where they mean something."""
    meant: dict[str, str] = {"computes": resolved.computes} if resolved.computes else {}
    if dtype in _FLOATS:
        meant |= {"nan": resolved.nan, "infinities": resolved.infinities}
        meant |= {"denormals": resolved.denormals}
    if op in _SELECTING:
        meant["equal_keys"] = resolved.equal_keys
    if op in _ROUNDING or "QLinear" in op:
        meant["halves"] = resolved.halves
    yield from ((name, value) for name, value in meant.items() if value not in _AS_DEFINED)


def find_value_conditions(target: Target, nodes: Nodes) -> tuple[ValueCondition, ...]:
    """Return the conditions on which nodes of a target are right, where values are assumed to fit."""
    if target.values != "assumed" or not target.arithmetic.limits_values:
        return ()
    numbers: dict[int, tuple[GraphIndex, list[int]]] = {}
    for index, number in nodes:
        numbers.setdefault(id(index), (index, []))[1].append(number)
    found: dict[str, list[str]] = {}
    for index, own in numbers.values():
        for number, condition in list_conditions(index, target, own):
            node = index.nodes[number]
            found.setdefault(condition.text, []).append(
                f"{get_operator_name(node)} '{get_node_name(node)}'"
            )
    return tuple(
        ValueCondition(target=target.name, condition=text, nodes=tuple(names))
        for text, names in found.items()
    )


_NOT_KEPT = {
    "nan": "NaN",
    "infinities": "infinities",
    "denormals": "denormal floats",
    "equal_keys": "which of equal keys is first",
    "halves": "how exact halves are rounded",
}


def format_promises(promises: Sequence[ValuePromise]) -> Iterator[str]:
    """Yield a line for each target: in what it computes, and what values it does not keep."""
    for target in dict.fromkeys(each.target for each in promises):
        own = {each.promise: each for each in promises if each.target == target}
        parts = [
            f"computes in {each.value} ({_name(each)})"
            for each in promises
            if each.target == target and each.promise == "computes"
        ]
        lost = [f"{text} ({_name(own[name])})" for name, text in _NOT_KEPT.items() if name in own]
        if lost:
            parts.append(f"does not keep {', '.join(lost)}")
        yield f"{target} {', and '.join(parts)}"


def _name(promise: ValuePromise) -> str:
    shown = ", ".join(promise.operators[:_SHOWN])
    more = len(promise.operators) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def format_conditions(conditions: Sequence[ValueCondition]) -> Iterator[str]:
    """Yield a line for each condition on which an accelerator is right."""
    for each in conditions:
        more = f" and {len(each.nodes) - 1} more" if len(each.nodes) > 1 else ""
        yield f"{each.target} is right where {each.condition}: {each.nodes[0]}{more}"
