"""A node as rules see it: tensors by formal name, attributes, facts for conditions."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from onnx import NodeProto

from byoc.model import (
    Dim,
    GraphIndex,
    TensorType,
    collect_tensor_facts,
    filter_plain,
    get_input_quantization,
    get_output_quantization,
    is_onnx,
)
from byoc.schemas import FormalParameter, OperatorSchema

FLOAT32 = "float32"


@dataclass(frozen=True, slots=True)
class TensorUse:
    """A tensor that a node reads or makes: its formal name and type, its side, its own name."""

    formal: str
    type_str: str
    is_output: bool
    tensor: str


@dataclass(frozen=True, eq=False)
class RuleView:
    """A node of a graph; `schema` is None for an operator that has none.

    With `compute_dtype`, float32 tensors are treated as that type, unless the operator supports only
    float32. Without `with_values` the facts have no values of constants, which it can take long to
    compute: no rule for the operator reads them.
    """

    index: GraphIndex
    number: int
    node: NodeProto
    op: str
    schema: OperatorSchema | None
    compute_dtype: str | None = None
    with_values: bool = True

    def get_type(self, use: TensorUse) -> TensorType | None:
        """Return the type of a tensor as rules see it, None if it is not known."""
        known = self.index.types.get(use.tensor)
        if known is None or known.dtype != FLOAT32 or not self._supports_dtype(use, self.compute_dtype):
            return known
        return replace(known, dtype=self.compute_dtype or known.dtype)

    def _supports_dtype(self, use: TensorUse, dtype: str | None) -> bool:
        if dtype is None or self.schema is None:
            return dtype is not None
        return dtype in self.schema.get_allowed_dtypes(use.type_str)

    @cached_property
    def attributes(self) -> Mapping[str, Any]:
        """The attributes with all defaults."""
        return self.index.get_attributes(self.node)

    @cached_property
    def uses(self) -> tuple[TensorUse, ...]:
        """The tensors of the node, inputs first; without a schema their formal names are positions."""
        found = self.schema
        inputs = self._make_uses(self.node.input, found.inputs if found else (), output=False)
        outputs = self._make_uses(self.node.output, found.outputs if found else (), output=True)
        return (*inputs, *outputs)

    def _make_uses(
        self, tensors: Any, formals: tuple[FormalParameter, ...], *, output: bool
    ) -> Iterator[TensorUse]:
        side = "output" if output else "input"
        for position, tensor in enumerate(tensors):
            if not tensor or not self.index.is_used(tensor):
                continue
            if formals:
                formal = formals[min(position, len(formals) - 1)]  # the last may be variadic
                yield TensorUse(formal.name, formal.type_str, output, tensor)
            else:
                yield TensorUse(f"{side} {position}", "", output, tensor)

    @cached_property
    def is_quantized(self) -> bool:
        """Whether DequantizeLinear makes an input, or QuantizeLinear reads an output."""
        return any(
            (get_output_quantization if use.is_output else get_input_quantization)(
                self.index, use.tensor
            )
            is not None
            for use in self.uses
        )

    def find_tensor(self, formal: str) -> str | None:
        """Return the first tensor with a formal name, None if it is omitted."""
        return next((use.tensor for use in self.uses if use.formal == formal), None)

    def list_dims(self, formals: Collection[str]) -> list[Dim]:
        """Return the extents of the tensors with some formal names."""
        shapes = (self.index.get_shape(use.tensor) for use in self.uses if use.formal in formals)
        return [dim for shape in shapes for dim in shape or ()]

    @cached_property
    def result_type(self) -> TensorType | None:
        """The type of the first output."""
        return self.index.types.get(self.node.output[0]) if self.node.output else None

    @cached_property
    def facts(self) -> "NodeFacts":
        """The facts for check functions."""
        return NodeFacts(self)

    @cached_property
    def ranged_facts(self) -> "NodeFacts":
        """The facts for conditions, which must hold for whole ranges of open dimensions."""
        return NodeFacts(self, ranged=True)


class NodeFacts(Mapping[str, Any]):
    """The facts of a node, computed on demand.

    Keys: op, domain, opset, name, attr, and the formal parameters: a mapping as `collect_tensor_facts`
    returns, a list of them for a variadic parameter.
    """

    def __init__(self, view: RuleView, *, ranged: bool = False) -> None:
        """Wrap a node; nothing is looked up yet."""
        self._view = view
        self._ranged = ranged
        self._known: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        """Return a fact. Raises KeyError when there is none of the name."""
        if key not in self._known:
            self._known[key] = self._make_fact(key)
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
    def _formals(self) -> Mapping[str, FormalParameter]:
        found = self._view.schema
        return found.formals if found else {}

    def _make_fact(self, key: str) -> Any:
        view = self._view
        if key in self._formals:
            return self._make_tensor_facts(self._formals[key])
        if key == "attr":
            return filter_plain(view.attributes)
        if key == "op":
            return view.node.op_type
        if key == "domain":
            return "" if is_onnx(view.node) else view.node.domain
        if key == "opset":
            return view.index.get_opset(view.node)
        if key == "name":
            return view.node.name
        raise KeyError(key)

    def _make_tensor_facts(self, formal: FormalParameter) -> Any:
        uses = self._view.uses
        found = [self._describe_use(use) for use in uses if use.formal == formal.name]
        if formal.variadic:
            return found
        return found[0] if found else {"given": False}

    def _describe_use(self, use: TensorUse) -> dict[str, Any]:
        view = self._view
        kind = view.get_type(use)
        return collect_tensor_facts(
            view.index, use.tensor, kind, ranged=self._ranged, with_value=view.with_values
        )


NODE_FACTS = ("op", "domain", "opset", "name", "attr")
"""The keys of the facts that nodes of all operators have."""
