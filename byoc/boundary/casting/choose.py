"""Which nodes compute in the short type: those whose results are read in it.

Asked from the end: a node that only makes parameters which are float32 by the schema of their readers,
such as a Resize's scales, stays float32 itself, however long the chain. So does arithmetic on extents,
which would be wrong beyond 2048 in float16.
"""

from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence, Set

from onnx import FunctionProto, NodeProto

from byoc.boundary.casting.dtypes import FLOAT, Dtypes, Schemas, body_dtypes, is_fixed
from byoc.graph.walk import bodies, is_onnx

Functions = Mapping[tuple[str, str], FunctionProto]

_EXTENTS = ("Shape", "Size")


class Chooser:
    """Chooses for the nodes of functions and bodies, by the schemas and what is known of the types.

    `functions` are the model's own, by domain and name; `dtype` is float16 or bfloat16.
    """

    def __init__(self, schemas: Schemas, functions: Functions, dtype: str) -> None:
        """Remember what a region has around it."""
        self.schemas = schemas
        self.functions = functions
        self.dtype = dtype

    def function(self, node: NodeProto) -> FunctionProto | None:
        """Return the function of the model that a node calls, None when it calls none."""
        return self.functions.get((node.domain, node.op_type))

    def known(self, nodes: Sequence[NodeProto], given: Dtypes) -> dict[str, str]:
        """Return the data types of all tensors of nodes in order, as far as they can be known."""
        result = dict(given)
        for node in nodes:
            if all(name in result for name in node.output if name):
                continue
            function = self.function(node)
            if function is not None:
                inner = self.inside(node, function, result)[1]
                made = [inner.get(name) for name in function.output]
            else:
                made = [
                    self.schemas.output(node, i, result) if name else None
                    for i, name in enumerate(node.output)
                ]
            for name, dtype in zip(node.output, made, strict=False):
                if name and dtype is not None:
                    result.setdefault(name, dtype)
        return result

    def inside(
        self, call: NodeProto, function: FunctionProto, known: Dtypes
    ) -> tuple[list[NodeProto], dict[str, str]]:
        """Return the nodes of a function with the attributes of a call, and the types in it."""
        nodes = [resolved(node, call) for node in function.node]
        pairs = zip(function.input, call.input, strict=False)
        given = {formal: known[name] for formal, name in pairs if name in known}
        return nodes, self.known(nodes, given)

    def choose(
        self,
        nodes: Sequence[NodeProto],
        known: Dtypes,
        wanted: Collection[str],
        exact: Set[str] = frozenset(),
    ) -> tuple[list[bool], set[str]]:
        """Return for each node whether it computes in the short type, and what is then read in it.

        `wanted` is read in it from outside; what makes `exact` alone does not compute in it. The nodes
        are in order.
        """
        asked = set(wanted)
        result = [False] * len(nodes)
        for i in reversed(range(len(nodes))):
            node = nodes[i]
            made = {name for name in node.output if known.get(name) == FLOAT}
            if (made and made.isdisjoint(asked)) or all(name in exact for name in node.output if name):
                continue
            result[i] = self.schemas.has_tensors_alone(node) and self._bodies_may(node)
            asked.update(self._asked(node, known))
        return result, asked

    def _asked(self, node: NodeProto, known: Dtypes) -> Iterator[str]:
        """Yield the data that a node reads, what is inside it included.

        That is what is short around it, even where its operator has to have it in float32 again; what
        has one type by the schema is a parameter, which is not.
        """
        function = self.function(node)
        if function is not None:
            nodes, inner = self.inside(node, function, known)
            _, asked = self.choose(nodes, inner, [n for n in function.output if inner.get(n) == FLOAT])
            pairs = zip(function.input, node.input, strict=False)
            yield from (name for formal, name in pairs if formal in asked)
            return
        for name, type_str in zip(node.input, self.schemas.inputs(node), strict=True):
            if known.get(name) == FLOAT and not is_fixed(type_str):
                yield name
        for body in bodies(node):
            inside = body_dtypes(node, body, known)
            own = self.known(list(body.node), ChainMap(inside, dict(known)))
            outputs = [value.name for value in body.output if own.get(value.name) == FLOAT]
            _, asked = self.choose(list(body.node), own, outputs)
            yield from asked

    def _bodies_may(self, node: NodeProto) -> bool:
        """Return whether a node may pass the short type into its bodies and out; true without any."""
        if not any(True for _ in bodies(node)):
            return True
        kinds = {*self.schemas.outputs(node)}
        return all(self.schemas.may_be(node, kind, self.dtype) for kind in kinds)


def from_extents(nodes: Sequence[NodeProto], constants: Collection[str], small: Set[str]) -> set[str]:
    """Return what is computed from extents, and perhaps constants, if it is `small`.

    The extents themselves, which a Shape makes of data of any type, are left out.
    """
    fixed, extents, found = set(constants), set[str](), set[str]()
    for node in nodes:
        reads = [name for name in node.input if name]
        if any(True for _ in bodies(node)) or not is_onnx(node):
            continue
        if node.op_type in _EXTENTS:
            extents.update(node.output)
        elif fixed.issuperset(reads):
            fixed.update(node.output)
        elif all(name in fixed or name in extents or name in found for name in reads):
            found.update(small & set(node.output))
    return found


def resolved(node: NodeProto, call: NodeProto) -> NodeProto:
    """Return a function's node with the values that a call gives for attributes; unwritten ones go."""
    given = {attribute.name: attribute for attribute in call.attribute}
    result = NodeProto()
    result.CopyFrom(node)
    del result.attribute[:]
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            result.attribute.add().CopyFrom(attribute)
        elif attribute.ref_attr_name in given:
            result.attribute.add().CopyFrom(given[attribute.ref_attr_name])
            result.attribute[-1].name = attribute.name
    return result
