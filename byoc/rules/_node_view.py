"""A node as rules see it: tensors by formal name, attributes, facts for conditions."""

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from onnx import NodeProto

from byoc.model import (
    Dim,
    GraphIndex,
    TensorType,
    collect_tensor_facts,
    filter_plain,
    get_constant_value,
    get_input_quantization,
    get_output_quantization,
    is_onnx,
    is_qdq_node,
)
from byoc.model.schemas import FormalParameter, OperatorSchema
from byoc.rules._rule_schema import OpRule
from byoc.support.expressions import Member, Name, compile_expression, walk_tree

# Signatures of nodes: nodes of one signature are the same to the rules of a file.
#
# A large graph repeats few nodes: the layers of a transformer have equal operators on equal types.
# What the rules say of one of them holds for all.

# A longer node holds data, which is not worth comparing.
_MAX_BYTES = 4096


@dataclass(frozen=True, eq=False)
class NodeSignatures:
    """The signatures of a graph's nodes; `find_rules` gives the rules for an operator."""

    index: GraphIndex
    find_rules: Callable[[str], Sequence[OpRule]]
    _reads_values: dict[str, bool | None] = field(default_factory=dict)

    def sign_node(self, number: int) -> Hashable:
        """Return the signature of a node, None for a node that may be unlike all others.

        A signature has all that rules read: the attributes, the types of tensors, whether these are
        constant or used, and values where a rule reads some. Nodes with bodies, and those next to
        QuantizeLinear or DequantizeLinear, have none; nor has any node where a rule reads names or calls
        a check function.
        """
        index = self.index
        kind = index.node_kinds[number]
        reads_values = self.reads_values(kind.operator)
        if reads_values is None or kind.has_bodies or kind.size > _MAX_BYTES:
            return None
        names = index.node_inputs[number]
        if self._is_beside_quantization(number):
            return None
        known = self._known
        inputs: tuple[Hashable, ...] = tuple([known.get(name) for name in names])
        if reads_values:
            inputs += tuple([self._get_value(name) for name in names if index.is_constant(name)])
        outputs = index.node_outputs[number]
        given = tuple(map(bool, names)), tuple(map(bool, outputs))
        return kind, inputs, tuple([known.get(name) for name in outputs]), given

    def reads_values(self, op: str) -> bool | None:
        """Return whether the rules for an operator read values of constants.

        None where they may read what no signature has: names, and whatever a check function asks for.
        """
        if op not in self._reads_values:
            self._reads_values[op] = _read_values(self.find_rules(op))
        return self._reads_values[op]

    @cached_property
    def _known(self) -> Mapping[str, Hashable]:
        """The facts that rules see of each tensor: type, whether it is constant, whether it is used."""
        index = self.index
        constants, used = index.constant_names, {*index.consumers, *index.outputs}
        found: dict[str, Hashable] = {
            name: (id(kind), name in constants, name in used) for name, kind in index.types.items()
        }
        found |= {name: (0, name in constants, True) for name in used if name not in found}
        return found

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

    def _is_beside_quantization(self, number: int) -> bool:
        tensors, index = self._quantized_tensors, self.index
        if not tensors:
            return False
        if is_qdq_node(index.nodes[number]):
            return True
        near = (*index.node_inputs[number], *index.node_outputs[number])
        return not tensors.isdisjoint(near)


def _read_values(rules: Sequence[OpRule]) -> bool | None:
    """Return whether rules read values of constants, None if they may read what no signature has."""
    if any(rule.check is not None for rule in rules):
        return None
    found = {part.value is not None for rule in rules for part in rule.tensors.values()}
    for condition in (condition for rule in rules for condition in rule.where):
        for part in walk_tree(compile_expression(condition.expr).tree):
            if isinstance(part, (Member, Name)) and part.name == "name":
                return None
            found.add(isinstance(part, Member) and part.name == "value")
    return True in found


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
