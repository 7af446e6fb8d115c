"""Passes that bring a quantized model into the form whose steps are kernels of integers.

Operators of integers are read as operators of floats between DequantizeLinear and QuantizeLinear, as
exporters write most models. What only moves elements then moves integers, and each reader of a
DequantizeLinear gets one of its own, so that it can be one step with it.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from onnx import NodeProto

from byoc._dataclasses import dataclass
from byoc.model import (
    GraphIndex,
    Model,
    build_node,
    find_constant_value,
    get_stated_attributes,
    is_dequantize,
    is_quantize,
)
from byoc.passes import CleanPass, GraphEdits, ReadQuantizedOperators, clean_model

_MAX_POOL_OF_INTEGERS = 12  # the operator set
_MOVERS = frozenset(
    [
        *("Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Reshape"),
        *("Resize", "Slice", "SpaceToDepth", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
    ]
)
"""Operators whose results are elements of what they read, and nothing else."""


_FLIPS = {"int8": 1 << 7, "uint8": 0, "int16": 1 << 15, "uint16": 0}
INTEGERS = frozenset(_FLIPS)
"""The types whose operators have kernels of integers."""


def get_flip(dtype: str) -> int:
    """Return the bits that make integers of a type numbers from 0 on."""
    return _FLIPS[dtype]


def format_integer(dtype: str) -> str:
    """Return the initializer of a `kernel_integer`."""
    return f"{{{np.dtype(dtype).itemsize * 8}, {get_flip(dtype)}}}"


@dataclass(frozen=True, eq=False)
class TensorScale:
    """The scale and zero point of a tensor of 8 or 16 bits, one for all of it."""

    dtype: str
    scale: np.float32
    zero: int

    @property
    def bits(self) -> int:
        """The bits of an element."""
        return np.dtype(self.dtype).itemsize * 8

    @property
    def shifted_zero(self) -> int:
        """The zero point among numbers from 0 on."""
        return self.zero + get_flip(self.dtype)

    def quantize(self, value: float) -> int:
        """Return a float among numbers from 0 on, as QuantizeLinear makes it."""
        most = 2**self.bits
        with np.errstate(over="ignore"):
            scaled = float(np.clip(np.float32(value) / self.scale, -2 * most, 2 * most))
        return int(np.clip(np.rint(scaled) + self.shifted_zero, 0, most - 1))


def read_scale(index: GraphIndex, node: NodeProto, folder: Any) -> TensorScale | None:
    """Return the scale of a QDQ node on 8 or 16 bits, None for one by channel or a computed one."""
    whole = node.output[0] if is_quantize(node) else node.input[0]
    scale, zero = (
        find_constant_value(index, name, folder) if name else None for name in (*node.input[1:], "")[:2]
    )
    dtype = index.get_dtype(whole) or ""
    if dtype not in INTEGERS or scale is None or np.size(scale) != 1 or scale.dtype != np.float32:
        return None
    if len(node.input) > 2 and node.input[2] and (zero is None or np.size(zero) != 1):
        return None
    return TensorScale(
        dtype, np.float32(scale.reshape(-1)[0]), 0 if zero is None else int(zero.reshape(-1)[0])
    )


def find_requantized(model: Model) -> frozenset[str]:
    """Return the results of operators that read and make integers by scales of their own."""
    read = ReadQuantizedOperators.list_read_operators()
    return frozenset(node.output[0] for node in model.index.nodes if node.op_type in read)


def prefer_integers(model: Model) -> Model:
    """Return a model in the form whose steps are kernels of integers; it computes the same."""
    found = clean_model(model, [ReadQuantizedOperators(forms_only=True)]).model
    found = clean_model(found, [_MoveIntegers()]).model
    return clean_model(found, [_SeparateDequantize()]).model


@dataclass(frozen=True)
class _MoveIntegers(CleanPass):
    """Move integers instead of floats between a DequantizeLinear and a QuantizeLinear."""

    name: ClassVar[str] = "move-integers"
    operators: ClassVar[frozenset[str]] = _MOVERS

    def edit(self, edits: GraphEdits, numbers: Sequence[int]) -> None:
        """Let operators read what DequantizeLinear reads, and make what QuantizeLinear makes."""
        for number in numbers:
            self._edit_node(edits, number)

    def _edit_node(self, edits: GraphEdits, number: int) -> None:
        index = edits.index
        node = index.nodes[number]
        made = node.output[0]
        readers = index.consumers.get(made, ())
        if any(node.output[1:]) or made in index.outputs or len(readers) != 1:
            return
        last = index.nodes[readers[0]]
        result = read_scale(index, last, edits.folder) if is_quantize(last) else None
        if result is None or not _moves_integers(index, node, result.dtype):
            return
        count = len(node.input) if node.op_type == "Concat" else 1
        moved = list(node.input)
        before = []
        for at in range(count):
            maker = index.producers.get(node.input[at])
            first = None if maker is None else index.nodes[maker]
            given = (
                read_scale(index, first, edits.folder)
                if first is not None and is_dequantize(first)
                else None
            )
            if first is None or given is None or maker in index.constant_nodes:
                return
            if _same(given, result):
                moved[at] = first.input[0]
            elif node.op_type == "Concat":
                moved[at] = edits.names.new_tensor(f"{made}_{at}")
                before.append(
                    build_node("QuantizeLinear", [node.input[at], *last.input[1:]], [moved[at]])
                )
                edits.types[moved[at]] = _copy_shape(index, node.input[at], last.output[0])
            else:
                return
        mover = build_node(node.op_type, moved, [last.output[0]])
        mover.attribute.extend(node.attribute)
        edits.replace(number, *before, mover)
        edits.remove(readers[0])


def _moves_integers(index: GraphIndex, node: NodeProto, dtype: str) -> bool:
    """Return whether an operator moves integers of a type, too, and makes no new elements."""
    attributes = get_stated_attributes(node)
    if node.op_type == "MaxPool":
        return dtype in ("int8", "uint8") and index.get_opset(node) >= _MAX_POOL_OF_INTEGERS
    if node.op_type == "Resize":
        mode, places = (
            str(value.decode() if isinstance(value, bytes) else value)
            for value in (
                attributes.get("mode", "nearest"),
                attributes.get("coordinate_transformation_mode", ""),
            )
        )
        return mode == "nearest" and places != "tf_crop_and_resize"
    return True


def _same(one: TensorScale, other: TensorScale) -> bool:
    return (one.dtype, one.scale, one.zero) == (other.dtype, other.scale, other.zero)


def _copy_shape(index: GraphIndex, floats: str, whole: str) -> Any:
    found = type(index.type_protos[floats])()
    found.CopyFrom(index.type_protos[floats])
    found.tensor_type.elem_type = index.type_protos[whole].tensor_type.elem_type
    return found


@dataclass(frozen=True)
class _SeparateDequantize(CleanPass):
    """Give each reader of a DequantizeLinear that ends in a QuantizeLinear one of its own."""

    name: ClassVar[str] = "separate-dequantize"
    operators: ClassVar[frozenset[str]] = frozenset({"DequantizeLinear"})

    def edit(self, edits: GraphEdits, numbers: Sequence[int]) -> None:
        """Copy each DequantizeLinear for all its readers but one."""
        index = edits.index
        changed: dict[int, NodeProto] = {}
        for number in numbers:
            node = index.nodes[number]
            made = node.output[0]
            readers = list(dict.fromkeys(index.consumers.get(made, ())))
            if number in index.constant_nodes:
                continue
            if not readers and made not in index.outputs:  # integers move instead
                edits.remove(number)
            for reader in readers if made in index.outputs else readers[1:]:
                if index.bodies.get(reader):
                    continue
                own = edits.names.new_tensor(made)
                edits.types[own] = index.type_protos[made]
                if reader not in changed:
                    changed[reader] = NodeProto()
                    changed[reader].CopyFrom(index.nodes[reader])
                names = [own if name == made else name for name in changed[reader].input]
                del changed[reader].input[:]
                changed[reader].input.extend(names)
                copy = build_node("DequantizeLinear", node.input, [own])
                copy.attribute.extend(node.attribute)
                edits.insert_after(number, copy)
        for reader, node in changed.items():
            edits.replace(reader, node)
