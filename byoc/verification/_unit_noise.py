"""The noise of single units: how far results move when quantized layers, or casts, are one unit off.

Two right implementations of a quantized operator round halves otherwise, or scale in fixed point, and
some of their results are neighbouring integers. Each is within one unit of the other, but the next layer
starts from there. So a part of the results of each QuantizeLinear is moved by one unit at random, and
onnxruntime computes the network again: what is allowed grows with the depth of a region as it does in
that region.

A cast of computed floats to bfloat16 or another short dtype does the same: where a value is almost half
way between two neighbours, two right executions take either.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import EncodeError
from onnx import ModelProto, NodeProto, TensorProto, helper

from byoc.errors import InputError
from byoc.model import (
    DTYPE_NUMBERS,
    DTYPES,
    EditableGraph,
    GraphIndex,
    build_node,
    copy_without,
    find_constant_value,
    get_stated_attributes,
    is_onnx,
    is_quantize,
    replace_names,
)
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.verification._rounding_noise import MOVING

Values = Mapping[str, Any]

_GATHERING = frozenset({"GatherND", "Compress", "Cast", "TopK", "Identity"})
_SEEDS = (1, 2)
SHARE = 1 / 8
"""The share of the results of each layer that is moved, half of them up and half of them down."""

CAST_SHARE = 1 / 64
"""The share of the results of each cast that is moved.

Roundings of float32 are a thousandth of a unit of bfloat16. A cast that is left out is off by half a
unit at most in every element, which has more than twice the mean square of these moves.
"""

# The units in the last place of short floats, relative to the smallest number of the same exponent.
_UNITS = {
    **{"bfloat16": 2.0**-7, "float16": 2.0**-10, "float8e4m3fn": 2.0**-3, "float8e4m3fnuz": 2.0**-3},
    **{"float8e5m2": 2.0**-2, "float8e5m2fnuz": 2.0**-2},
}
# A number that is moved by so much of that, relative to itself, is rounded to the next one: it is 0.7 to
# 1.4 units.
_RELATIVE = 0.7


@dataclass(frozen=True, eq=False)
class UnitNoise:
    """Runs a model without functions with its quantized activations one unit off, for given inputs.

    `folder` holds the external data of the model. Outputs are what their own layers make: what is moved
    are the activations that they read. With `casts`, what casts to short floats make is moved instead.
    """

    model: ModelProto
    folder: Path | None
    inputs: Values
    casts: bool = False

    @cached_property
    def runs(self) -> tuple[Values, ...]:
        """The outputs of each run by name; none where nothing can be moved."""
        moved = self._find_casts() if self.casts else self._find_moved()
        if not moved:
            return ()
        try:
            with without_optimizations():
                return tuple(
                    run_session(
                        open_session(self._make_moved_model(moved, seed), self.folder), self.inputs
                    )
                    for seed in _SEEDS
                )
        except (InputError, EncodeError, ValueError):
            return ()

    def _find_moved(self) -> dict[str, Any]:
        """Return the activations that QuantizeLinears make, each with the zero point of its dtype."""
        index = GraphIndex(self.model, {})
        found = {}
        for number, node in enumerate(index.nodes):
            if not is_quantize(node) or number in index.constant_nodes:
                continue
            name = (*node.input[2:], "")[0]
            point = find_constant_value(index, name, self.folder) if name else np.zeros((), np.uint8)
            if point is not None and point.dtype.kind in "iu" and node.output[0] in index.consumers:
                found[node.output[0]] = point
        return found

    def _find_casts(self) -> dict[str, Any]:
        """Return the short floats that are cast from computed values and read, each with its dtype."""
        index = GraphIndex(self.model, {})
        found = {}
        for number, node in enumerate(index.nodes):
            if not is_onnx(node) or node.op_type != "Cast" or number in index.constant_nodes:
                continue
            dtype = DTYPES.get(get_stated_attributes(node).get("to", 0), "")
            if (
                dtype in _UNITS
                and node.output[0] in index.consumers
                and is_computed(index, node.input[0])
            ):
                found[node.output[0]] = dtype
        return found

    def _make_moved_model(self, moved: Mapping[str, Any], seed: int) -> ModelProto:
        """Return the model with what reads the given tensors reading moved ones."""
        result = copy_without(self.model, "value_info")
        graph = EditableGraph(result.graph)
        readers = {name: graph.names.new_tensor(f"{name}_moved") for name in moved}
        move = _move_last_places if self.casts else _move_by_units
        for number, node in enumerate(graph.nodes):
            replace_names(node.input, readers)
            for name in filter(moved.__contains__, node.output):
                made = move(graph, name, readers[name], moved[name], seed + number)
                graph.insert_after(number, *made)
        graph.write_to(result.graph)
        graph.write_stored(result.graph)
        return result


def _move_last_places(
    graph: EditableGraph, name: str, made: str, dtype: str, seed: int
) -> Iterator[NodeProto]:
    """Yield nodes that move some elements of a tensor of short floats by one unit, up or down."""
    names = (graph.names.new_tensor(f"{made}_{i}") for i in range(7))
    real, drawn, whole, step, part, moved, sum_ = names
    unit = graph.store(np.array(_RELATIVE * _UNITS[dtype], np.float32), f"{made}_unit")
    most = 1 / (1 - CAST_SHARE)  # numbers beyond 1 are truncated to 1, all others to 0
    yield build_node("Cast", [name], [real], to=TensorProto.FLOAT)
    yield build_node("RandomUniformLike", [real], [drawn], low=-most, high=most, seed=float(seed))
    yield build_node("Cast", [drawn], [whole], to=TensorProto.INT32)
    yield build_node("Cast", [whole], [step], to=TensorProto.FLOAT)
    yield build_node("Mul", [step, unit], [part])
    yield build_node("Mul", [real, part], [moved])
    yield build_node("Add", [real, moved], [sum_])
    yield build_node("Cast", [sum_], [made], to=DTYPE_NUMBERS[dtype])


def find_computed_in(index: GraphIndex, dtype: str) -> set[str]:
    """Return the tensors of a main graph that depend on an operator which computes in a dtype."""
    number = DTYPE_NUMBERS[dtype]
    short = {v.name for v in index.graph.input if v.type.tensor_type.elem_type == number}
    short |= {tensor.name for tensor in index.graph.initializer if tensor.data_type == number}
    computed: set[str] = set()
    for node in index.nodes:
        reads = set(node.input)
        is_cast = is_onnx(node) and node.op_type == "Cast"
        if is_cast:
            reaches = get_stated_attributes(node).get("to") == number
        else:
            reaches = not short.isdisjoint(reads)
        computes = reaches and not is_cast and node.op_type not in MOVING | _GATHERING
        short.update(node.output if reaches else ())
        computed.update(node.output if computes or not computed.isdisjoint(reads) else ())
    return computed


def is_computed(index: GraphIndex, name: str) -> bool:
    """Return whether a tensor is more than numbers that the graph is given, moved or selected."""
    seen, pending = set[int](), [name]
    while pending:
        number = index.producers.get(pending.pop())
        if number is None or number in seen or number in index.constant_nodes:
            continue
        seen.add(number)
        node = index.nodes[number]
        if not is_onnx(node) or node.op_type not in MOVING | _GATHERING:
            return True
        pending.append(node.input[0] if node.op_type != "Where" else node.input[1])
        pending.extend(node.input[1:] if node.op_type in {"Concat", "Where"} else ())
    return False


def _move_by_units(
    graph: EditableGraph, name: str, made: str, point: Any, seed: int
) -> Iterator[NodeProto]:
    """Yield nodes that move some elements of a tensor of integers by one, up or down.

    `point` is a number of their dtype.
    """
    dtype = point.dtype
    names = (graph.names.new_tensor(f"{made}_{i}") for i in range(7))
    real, drawn, step, wide, sum_, low, high = names
    limits = (np.iinfo(dtype).min, np.iinfo(dtype).max)
    bounds = [graph.store(np.array(limit, np.int32), f"{made}_limit") for limit in limits]
    most = 1 / (1 - SHARE)  # numbers beyond 1 are truncated to 1, all others to 0
    yield build_node("Cast", [name], [real], to=TensorProto.FLOAT)
    yield build_node("RandomUniformLike", [real], [drawn], low=-most, high=most, seed=float(seed))
    yield build_node("Cast", [drawn], [step], to=TensorProto.INT32)
    yield build_node("Cast", [name], [wide], to=TensorProto.INT32)
    yield build_node("Add", [wide, step], [sum_])
    yield build_node("Max", [sum_, bounds[0]], [low])
    yield build_node("Min", [low, bounds[1]], [high])
    yield build_node("Cast", [high], [made], to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
