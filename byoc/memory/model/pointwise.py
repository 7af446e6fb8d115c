"""What a step reads element by element, so that it can write its result over it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from onnx import FunctionProto, NodeProto

from byoc.graph.walk import captured
from byoc.memory.model.operators import pointwise_inputs

Functions = Mapping[tuple[str, str, str], FunctionProto]


@dataclass(frozen=True)
class Needs:
    """What one tensor is made of: outer tensors read element by element, and those read otherwise.

    An operator never makes fewer elements than one that it reads element by element, so a tensor of as
    many elements as the result is in the same order all along the way.
    """

    same: frozenset[str] = field(default_factory=frozenset)
    other: frozenset[str] = field(default_factory=frozenset)


def needs(nodes: Sequence[NodeProto], functions: Functions) -> dict[str, Needs]:
    """Return for each tensor that some nodes make what it is made of, `nodes` being sorted.

    A call of a function is taken for what is inside it.
    """
    found: dict[str, Needs] = {}
    for node in nodes:
        function = functions.get((node.domain, node.op_type, node.overload))
        if function is not None:
            inner = needs(list(function.node), functions)
            for name, formal in zip(node.output, function.output, strict=False):
                found[name] = _called(node, function, inner.get(formal, Needs()), found)
            continue
        pointwise = pointwise_inputs(node)
        given = [name if position in pointwise else "" for position, name in enumerate(node.input)]
        others = [*(n for p, n in enumerate(node.input) if p not in pointwise), *captured(node)]
        first, rest = _joined(given, others, found), _joined((), (*given, *others), found)
        for position, name in enumerate(node.output):
            found[name] = rest if position else first
    return found


def _joined(same: Iterable[str], other: Iterable[str], found: Mapping[str, Needs]) -> Needs:
    one = [found.get(name, Needs(frozenset({name}))) for name in same if name]
    two = [found.get(name, Needs(frozenset({name}))) for name in other if name]
    alike = frozenset[str]().union(*(each.same for each in one))
    unlike = frozenset[str]().union(
        *(each.other for each in one), *(each.same | each.other for each in two)
    )
    return Needs(alike - unlike, unlike)


def _called(call: NodeProto, function: FunctionProto, inner: Needs, found: Mapping[str, Needs]) -> Needs:
    """Return what an output of a call is made of, in the names of those who call."""
    outer = dict(zip(function.input, call.input, strict=False))
    same = [outer.get(name, "") for name in inner.same]
    return _joined(same, [outer.get(name, "") for name in inner.other], found)
