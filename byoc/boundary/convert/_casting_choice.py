"""Choice of the nodes that compute in the short type: those whose results are read in it.

The choice proceeds backwards from the outputs: a node that only makes parameters that are float32 by the
schema of their readers, such as a Resize's scales, stays float32 itself, however long the chain. So does
arithmetic on extents, which would be wrong beyond 2048 in float16.
"""

from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from onnx import FunctionProto, NodeProto

from byoc.boundary.convert._short_dtypes import (
    FLOAT,
    Dtypes,
    OperatorSchemas,
    infer_body_dtypes,
    is_fixed,
)
from byoc.model import is_onnx, list_bodies, resolve_attributes


@dataclass(frozen=True, eq=False)
class ShortTypeChooser:
    """Chooses nodes of functions and bodies, by the schemas and the known data types.

    `functions` are the model's own by domain and name; `dtype` is float16 or bfloat16.
    """

    schemas: OperatorSchemas
    functions: Mapping[tuple[str, str], FunctionProto]
    dtype: str

    def find_function(self, node: NodeProto) -> FunctionProto | None:
        """Return the model's function that a node calls, or None."""
        return self.functions.get((node.domain, node.op_type))

    def infer_dtypes(self, nodes: Sequence[NodeProto], arguments: Dtypes) -> dict[str, str]:
        """Return the data types of all tensors of nodes in order, as far as they can be inferred."""
        result = dict(arguments)
        for node in nodes:
            if all(name in result for name in node.output if name):
                continue
            function = self.find_function(node)
            if function is not None:
                inner = self.expand_call(node, function, result)[1]
                made = [inner.get(name) for name in function.output]
            else:
                made = [
                    self.schemas.infer_output(node, i, result) if name else None
                    for i, name in enumerate(node.output)
                ]
            for name, dtype in zip(node.output, made, strict=False):
                if name and dtype is not None:
                    result.setdefault(name, dtype)
        return result

    def expand_call(
        self, call: NodeProto, function: FunctionProto, known: Dtypes
    ) -> tuple[list[NodeProto], dict[str, str]]:
        """Return the nodes of a function with the attributes of a call, and the data types in it."""
        nodes = [resolve_attributes(node, call) for node in function.node]
        pairs = zip(function.input, call.input, strict=False)
        arguments = {formal: known[name] for formal, name in pairs if name in known}
        return nodes, self.infer_dtypes(nodes, arguments)

    def choose(
        self,
        nodes: Sequence[NodeProto],
        known: Dtypes,
        wanted: Collection[str],
        exact: Set[str] = frozenset(),
    ) -> tuple[list[bool], set[str]]:
        """Return whether each node computes in the short type, and the tensors that are then read in it.

        `wanted` are tensors that are read in it from outside; nodes that make only tensors in `exact` do
        not compute in it. The nodes are in order.
        """
        short = set(wanted)
        result = [False] * len(nodes)
        for i in reversed(range(len(nodes))):
            node = nodes[i]
            made = {name for name in node.output if known.get(name) == FLOAT}
            if (made and made.isdisjoint(short)) or all(name in exact for name in node.output if name):
                continue
            result[i] = self.schemas.has_only_tensors(node) and self._bodies_allow_short(node)
            short.update(self._data_inputs(node, known))
        return result, short

    def _data_inputs(self, node: NodeProto, known: Dtypes) -> Iterator[str]:
        """Yield the data inputs of a node, including those of the nodes inside it.

        An input with a type variable counts as data, even if its operator supports float32 alone; an
        input with one fixed type by the schema is a parameter and does not.
        """
        function = self.find_function(node)
        if function is not None:
            nodes, inner = self.expand_call(node, function, known)
            _, short = self.choose(nodes, inner, [n for n in function.output if inner.get(n) == FLOAT])
            pairs = zip(function.input, node.input, strict=False)
            yield from (name for formal, name in pairs if formal in short)
            return
        for name, type_str in zip(node.input, self.schemas.input_types(node), strict=True):
            if known.get(name) == FLOAT and not is_fixed(type_str):
                yield name
        for body in list_bodies(node):
            inside = infer_body_dtypes(node, body, known)
            own = self.infer_dtypes(list(body.node), ChainMap(inside, dict(known)))
            outputs = [value.name for value in body.output if own.get(value.name) == FLOAT]
            _, short = self.choose(list(body.node), own, outputs)
            yield from short

    def _bodies_allow_short(self, node: NodeProto) -> bool:
        """Return whether the short type may enter and leave a node's bodies; true without bodies."""
        kinds = {*self.schemas.output_types(node)} if list_bodies(node) else ()
        return all(self.schemas.allows(node, kind, self.dtype) for kind in kinds)


def find_extent_arithmetic(
    nodes: Sequence[NodeProto], constants: Collection[str], small: Set[str]
) -> set[str]:
    """Return the `small` tensors that are computed from extents, and perhaps from constants.

    The extents themselves, which a Shape makes of data of any type, are left out.
    """
    fixed, extents, found = set(constants), set[str](), set[str]()
    for node in nodes:
        reads = [name for name in node.input if name]
        if list_bodies(node) or not is_onnx(node):
            continue
        if node.op_type in ("Shape", "Size"):
            extents.update(node.output)
        elif fixed.issuperset(reads):
            fixed.update(node.output)
        elif all(name in fixed or name in extents or name in found for name in reads):
            found.update(small & set(node.output))
    return found
