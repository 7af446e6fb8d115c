"""The form of nodes on int64 in int32, which most accelerators have instead.

Exporters write indices, lengths and positions as int64. Where all numbers of a node provably fit, it
computes the same in int32. Values come from byoc's ranges: those of constants and shapes, and of what is
used as an index, which lies within its table in every run that has a result.
"""

from collections.abc import Collection, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from onnx import NodeProto, TensorProto, TypeProto, helper, numpy_helper

from byoc.model import (
    DTYPE_NUMBERS,
    RANDOM_OPERATORS,
    GraphIndex,
    build_node,
    find_constant_value,
    set_attribute,
)
from byoc.model.ranges import Interval, limit_of_dtype
from byoc.model.schemas import FormalParameter, OperatorSchema, has_kernel, list_onnx_domains
from byoc.passes._simplify import GraphEdits
from byoc.passes._twin_forms import TwinForm, TwinnedTensors, is_among

_WIDE, _NARROW = "int64", "int32"
# The least number is left out: processors trap where it is divided by -1 for the rest.
_LIMITS = Interval(limit_of_dtype(_NARROW).low + 1, limit_of_dtype(_NARROW).high)
# What is saturated has one number more on either side.
_SATURATED_LIMITS = Interval(_LIMITS.low + 1, _LIMITS.high - 1)
_CLIP_OPSET = 12  # ONNX opset from which Clip takes integers
# Their results depend on the dtype itself, or on sums that byoc's ranges do not bound.
_LEFT = RANDOM_OPERATORS | frozenset(
    [
        *("BitShift", "Gemm", "Mean", "Optional", "ReduceL2", "ReduceLogSum"),
        *("ReduceLogSumExp", "ReduceMean"),
    ]
)


@dataclass(frozen=True)
class NarrowIntegers(TwinForm):
    """Compute on int64 whose values provably fit in int32, where rules take the one and not the other.

    What enters is saturated where its values are known only of runs that have a result: so an index that
    is beyond its table stays so, and the run fails as it did.
    """

    name: ClassVar[str] = "narrow-integers"
    suffix: ClassVar[str] = "int32"
    dtype: ClassVar[str | None] = _NARROW

    def find_candidates(
        self, index: GraphIndex, operators: Collection[str] | None = None
    ) -> Iterator[int]:
        """Yield the nodes of a graph that compute the same in int32."""
        for number, kind in enumerate(index.node_kinds):
            names = (*index.node_inputs[number], *index.node_outputs[number])
            wide = is_among(kind.operator, operators) and any(
                index.get_dtype(name) == _WIDE for name in names
            )
            if wide and self.describe(index, number) is not None:
                yield number

    def describe(self, index: GraphIndex, number: int) -> TwinnedTensors | None:
        """Return the tensors of the type variables that stand for int64 and may stand for int32."""
        node, op = index.nodes[number], index.node_kinds[number].op_type
        schema = index.get_schema(node)
        if schema is None or number in index.constant_nodes or number in index.bodies:
            return None
        if schema.domain not in list_onnx_domains() or op in _LEFT or states_dtype(schema):
            return None
        tensors = NodeTensors.of_node(index, number, schema)
        if any(index.get_dtype(name) is None for name in tensors.list_names()):
            return None  # a sequence, or nothing is known
        narrowed = [name for name in schema.variables if _can_narrow(tensors, name)]
        dtypes = tensors.read_dtypes() | dict.fromkeys(narrowed, _NARROW)
        if not narrowed or not has_kernel(schema, dtypes):
            return None
        inputs, outputs = (
            frozenset(i for i, each in enumerate(formals) if each.type_str in narrowed)
            for formals in (tensors.read_formals, tensors.made_formals)
        )
        return TwinnedTensors(inputs, outputs)

    def convert(
        self, edits: GraphEdits, number: int, inputs: Sequence[str], outputs: Sequence[str]
    ) -> Sequence[NodeProto]:
        """Return the node on int32."""
        node = deepcopy(edits.index.nodes[number])
        changed = list(node.output) != list(outputs)
        node.input[:], node.output[:] = inputs, outputs
        if node.op_type == "Cast" and changed:
            set_attribute(node, helper.make_attribute("to", DTYPE_NUMBERS[_NARROW]))
        return [node]

    def change_type(self, kind: TypeProto) -> TypeProto:
        """Return the type with int32 elements."""
        made = TypeProto()
        made.CopyFrom(kind)
        made.tensor_type.elem_type = DTYPE_NUMBERS[_NARROW]
        return made

    def change_constant(self, edits: GraphEdits, name: str) -> TensorProto | None:
        """Return a constant stored as int32; None where its value is not known."""
        value = find_constant_value(edits.index, name, edits.folder)
        return None if value is None else numpy_helper.from_array(value.astype(np.int32))

    def enter(self, edits: GraphEdits, name: str, twin: str) -> Sequence[NodeProto]:
        """Return a Cast, behind a Clip where the values fit only in runs that have a result.

        The Clip leaves room for one number on either side, which is as wrong an index as any beyond.
        """
        index, names = edits.index, edits.names
        cast = build_node("Cast", [name], [twin], names.new_node(twin), to=DTYPE_NUMBERS[_NARROW])
        if _LIMITS.holds(index.plain_ranges.find_interval(name)):
            return [cast]
        known = index.value_ranges.find_interval(name)
        ends = int(known.low) - 1, int(known.high) + 1
        bounds = [edits.store(np.array(end, np.int64), f"{name}_bound") for end in ends]
        limited = names.new_tensor(f"{name}_limited")
        edits.types[limited] = index.type_protos[name]
        cast.input[0] = limited
        return [build_node("Clip", [name, *bounds], [limited], names.new_node(limited)), cast]

    def leave(self, edits: GraphEdits, twin: str, name: str) -> Sequence[NodeProto]:
        """Return a Cast."""
        cast = edits.names.new_node(f"{name}_cast")
        return [build_node("Cast", [twin], [name], cast, to=DTYPE_NUMBERS[_WIDE])]


@dataclass(frozen=True, eq=False)
class NodeTensors:
    """The inputs and outputs of a node with their formal parameters."""

    index: GraphIndex
    number: int
    read_formals: Sequence[FormalParameter]
    made_formals: Sequence[FormalParameter]

    @classmethod
    def of_node(cls, index: GraphIndex, number: int, schema: OperatorSchema) -> "NodeTensors":
        """Return the tensors of a node."""
        return cls(
            index,
            number,
            schema.list_input_formals(len(index.node_inputs[number])),
            schema.list_output_formals(len(index.node_outputs[number])),
        )

    def list_names(self) -> list[str]:
        """Return all tensors that there are."""
        index = self.index
        return [n for n in (*index.node_inputs[self.number], *index.node_outputs[self.number]) if n]

    def read_dtypes(self) -> dict[str, str]:
        """Return the dtype that each type variable stands for."""
        index = self.index
        pairs = (
            *zip(self.read_formals, index.node_inputs[self.number], strict=True),
            *zip(self.made_formals, index.node_outputs[self.number], strict=True),
        )
        return {formal.type_str: index.get_dtype(name) or "" for formal, name in pairs if name}

    def list_of(self, variable: str) -> tuple[list[str], list[str]]:
        """Return the tensors of a type variable, those that the node reads and those that it makes."""
        reads, makes = self.index.node_inputs[self.number], self.index.node_outputs[self.number]
        given, made = (
            [
                name
                for formal, name in zip(formals, names, strict=True)
                if name and formal.type_str == variable
            ]
            for formals, names in ((self.read_formals, reads), (self.made_formals, makes))
        )
        return given, made

    def stands_for(self, variable: str, wide: str, narrow: str) -> bool:
        """Return whether a type variable stands for one dtype, and may stand for another."""
        index, (given, made) = self.index, self.list_of(variable)
        formals = {each.type_str: each for each in (*self.read_formals, *self.made_formals)}
        formal = formals.get(variable)
        if formal is None or narrow not in formal.dtypes or variable.startswith("tensor("):
            return False
        if not formal.homogeneous or any(index.get_dtype(name) != wide for name in (*given, *made)):
            return False
        # Or else nothing is of the variable, or an attribute says what it is.
        return bool(given) or (bool(made) and index.node_kinds[self.number].op_type == "Cast")


def _can_narrow(tensors: NodeTensors, variable: str) -> bool:
    """Return whether a type variable stands for int64, and int32 would hold all its tensors."""
    if not tensors.stands_for(variable, _WIDE, _NARROW):
        return False
    index, (given, made) = tensors.index, tensors.list_of(variable)
    if not all(_fits(index, name) for name in (*given, *made)):
        return False
    summed = index.value_ranges.describe_node(tensors.number, ()).summed if made else 0
    return _LIMITS.holds(Interval.around(summed))


def states_dtype(schema: OperatorSchema) -> bool:
    """Return whether an attribute of an operator says what dtype something has; Cast's is known."""
    stated = {"to", "dtype", "output_dtype"} & schema.attributes.keys()
    return bool(stated) and schema.op_type != "Cast"


def _fits(index: GraphIndex, name: str) -> bool:
    """Return whether a tensor's values fit in int32: in any run, or in those that have a result.

    In the latter case it may have to be saturated, which Clip does to integers from some version on.
    """
    if _LIMITS.holds(index.plain_ranges.find_interval(name)):
        return True
    known = index.value_ranges.find_interval(name)
    return index.opsets.get("", 1) >= _CLIP_OPSET and _SATURATED_LIMITS.holds(known)
