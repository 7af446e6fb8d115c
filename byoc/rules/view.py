"""A node as rules see it: tensors by formal name, attributes, facts for conditions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from onnx import NodeProto

from byoc.graph.attributes import effective, open_dtypes, written
from byoc.graph.facts import plain, tensor_facts
from byoc.graph.index import GraphIndex
from byoc.graph.outer import outer_of_made, outer_of_read
from byoc.graph.types import TensorType
from byoc.graph.walk import is_onnx
from byoc.rules.operators import Formal, Signature

FLOAT32 = "float32"


@dataclass(frozen=True, slots=True)
class Use:
    """A tensor that a node reads or makes: its formal name and type, its side, its own name."""

    formal: str
    type_str: str
    output: bool
    tensor: str


@dataclass(frozen=True, eq=False)
class View:
    """A node of a graph; `signature` is None for an operator that ONNX does not define.

    With `compute`, float32 tensors are treated as that type, unless the operator supports only float32.
    """

    index: GraphIndex
    number: int
    node: NodeProto
    op: str
    signature: Signature | None
    compute: str | None = None

    def kind(self, use: Use) -> TensorType | None:
        """Return the type of a tensor as rules see it, None if it is not known."""
        known = self.index.types.get(use.tensor)
        if known is None or known.dtype != FLOAT32 or not self._has(use, self.compute):
            return known
        return replace(known, dtype=self.compute or known.dtype)

    def _has(self, use: Use, dtype: str | None) -> bool:
        if dtype is None or self.signature is None:
            return dtype is not None
        return dtype in open_dtypes(self.signature.schema, use.type_str)

    @cached_property
    def attributes(self) -> Mapping[str, Any]:
        """The attributes with all defaults."""
        if self.signature is None:
            return written(self.node)
        return effective(self.node, self.signature.schema, self.index.types)

    @cached_property
    def uses(self) -> tuple[Use, ...]:
        """The tensors of the node, inputs first; without a schema their formal names are positions."""
        found = self.signature
        inputs = self._uses(self.node.input, found.inputs if found else (), output=False)
        outputs = self._uses(self.node.output, found.outputs if found else (), output=True)
        return (*inputs, *outputs)

    def _uses(self, tensors: Any, formals: tuple[Formal, ...], *, output: bool) -> Iterator[Use]:
        side = "output" if output else "input"
        for position, tensor in enumerate(tensors):
            if not tensor or not self.index.is_used(tensor):
                continue
            if formals:
                formal = formals[min(position, len(formals) - 1)]  # the last may be variadic
                yield Use(formal.name, formal.type_str, output, tensor)
            else:
                yield Use(f"{side} {position}", "", output, tensor)

    @cached_property
    def quantized(self) -> bool:
        """Whether DequantizeLinear makes an input, or QuantizeLinear reads an output."""
        return any(
            (outer_of_made if use.output else outer_of_read)(self.index, use.tensor) is not None
            for use in self.uses
        )

    def tensor(self, formal: str) -> str | None:
        """Return the first tensor with a formal name, None if it is omitted."""
        return next((use.tensor for use in self.uses if use.formal == formal), None)

    @cached_property
    def result(self) -> TensorType | None:
        """The type of the first output."""
        return self.index.types.get(self.node.output[0]) if self.node.output else None

    @cached_property
    def facts(self) -> "Facts":
        """The facts for conditions and check functions."""
        return Facts(self)


class Facts(Mapping[str, Any]):
    """The facts of a node, computed on demand.

    Keys: op, domain, opset, name, attr, and the formal parameters: a mapping as `tensor_facts` returns,
    a list of them for a variadic parameter.
    """

    def __init__(self, view: View) -> None:
        """Wrap a node; nothing is looked up yet."""
        self._view = view
        self._known: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        """Return a fact. Raises KeyError when there is none of the name."""
        if key not in self._known:
            self._known[key] = self._fact(key)
        return self._known[key]

    def __contains__(self, key: object) -> bool:
        """Return whether there is a fact of the name."""
        return key in NODE_FACTS or key in self._formals

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the facts."""
        yield from (*NODE_FACTS, *self._formals)

    def __len__(self) -> int:
        """Return the number of facts."""
        return len(NODE_FACTS) + len(self._formals)

    @property
    def _formals(self) -> Mapping[str, Formal]:
        found = self._view.signature
        return found.formals if found else {}

    def _fact(self, key: str) -> Any:
        view = self._view
        if key in self._formals:
            return self._tensors(self._formals[key])
        if key == "attr":
            return plain(view.attributes)
        if key == "op":
            return view.node.op_type
        if key == "domain":
            return "" if is_onnx(view.node) else view.node.domain
        if key == "opset":
            return view.index.opset(view.node)
        if key == "name":
            return view.node.name
        raise KeyError(key)

    def _tensors(self, formal: Formal) -> Any:
        uses = self._view.uses
        found = [self._told(use) for use in uses if use.formal == formal.name]
        if formal.variadic:
            return found
        return found[0] if found else {"given": False}

    def _told(self, use: Use) -> dict[str, Any]:
        kind = self._view.kind(use)
        facts = tensor_facts(self._view.index, use.tensor)
        if kind is not None and kind.dtype != facts["dtype"]:
            facts["dtype"] = kind.dtype
            if kind.bytes is not None:
                facts["bytes"] = kind.bytes
        return facts


NODE_FACTS = ("op", "domain", "opset", "name", "attr")
"""The keys of the facts that nodes of all operators have."""
