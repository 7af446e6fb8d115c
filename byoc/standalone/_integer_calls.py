"""Steps of integers: operators between DequantizeLinear and QuantizeLinear, of 8 and 16 bits.

Sums are exact, in 32 bits or, where their bound is beyond, in 64. One float for each channel, the
product of the scales of both operands over that of the result, brings a sum to the scale of the result,
where it is rounded half to even. It was computed in float64 and rounded once: results of 8 bits differ
from exact arithmetic only within 5e-5 of a tie, those of 16 bits within 2e-2; where an operator of
integers was written, it is computed in float32, as by onnxruntime. What reads one tensor of 8 bits
element by element is a table, computed by the definition when the program is made. Such an operator of
16 bits is computed in floats, and only a change of the scale in integers.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, numpy_helper
from onnx.helper import make_tensor_value_info

from byoc._dataclasses import dataclass, field
from byoc.errors import InputError
from byoc.model import DTYPE_NUMBERS, is_dequantize, is_onnx, is_quantize
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.standalone._integer_graph import INTEGERS, TensorScale, get_flip, read_scale
from byoc.standalone._integer_kernels import (
    IntegerOperand,
    SumWidth,
    describe_int_convolution,
    describe_int_max,
    describe_int_product,
    find_sum_width,
    store_zeros,
)
from byoc.standalone._kernel_calls import (
    IMAGE_RANKS,
    describe_pool,
    get_bias,
)
from byoc.standalone._node_calls import find_limits
from byoc.standalone._program_graph import SCRATCH, Call, ProgramGraph, format_float

Array = NDArray[Any]

_BYTES = 256  # values of a byte
_MOST_NODES = 16  # of a table: a longer way back is rarely one
_ROUNDING = 2.0**-23  # of a product and a sum of floats of 32 bits, as a share of what is added
_MOST_ROUNDED = 1 / 8  # of a unit of the result
_ACTIVATED = frozenset({"Conv", "Gemm", "MatMul", "Add", "Mul", "DequantizeLinear"})
_UNARY = frozenset(
    [
        *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Celu", "Clip", "Cos"),
        "Cosh",
        *("Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu"),
        *("Log", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Sinh"),
        *("Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "ThresholdedRelu"),
        *("Add", "Div", "Max", "Min", "Mul", "Pow", "PRelu", "Sub"),
    ]
)
"""Operators of one element, given that other operands are single constants."""


@dataclass(frozen=True, eq=False)
class IntegerNodes:
    """Nodes that are one step on integers, and its call."""

    nodes: tuple[int, ...]
    call: Call


def find_integer_nodes(graph: ProgramGraph) -> list[IntegerNodes]:
    """Return the steps on integers of a graph; none of them shares a node with another one."""
    found = dict[int, IntegerNodes]()
    for number, node in enumerate(graph.index.nodes):
        if is_quantize(node) and number not in graph.sizes.constant_nodes:
            made = _Group(graph, number).make()
            if made is not None:
                for each in made.nodes:  # a table may be one of tables
                    found.pop(each, None)
                found[number] = made
    return list(found.values())


@dataclass(eq=False)
class _Group:
    """The nodes that end in a QuantizeLinear, from the back to the front, and their call."""

    graph: ProgramGraph
    last: int
    inside: set[int] = field(default_factory=set)
    low: float = -np.inf
    high: float = np.inf

    def make(self) -> IntegerNodes | None:
        """Return the step, None where no kernel computes it."""
        graph, index = self.graph, self.graph.index
        result = read_scale(index, index.nodes[self.last], graph.folder)
        number = self._find_maker(index.nodes[self.last].input[0])
        if result is None or number is None:
            return None
        self.inside = {self.last}
        table = self._make_table(result)
        if table is not None:
            return self._finish(table)
        limits = find_limits(graph, index.nodes[number])
        if limits is not None:
            before = self._find_maker(index.nodes[number].input[0])
            if before is not None and index.nodes[before].op_type in _ACTIVATED:
                call = self._make_core(before, result, limits)
                if call is not None:
                    self.inside |= {number, before}
                    return self._finish(call)
        call = self._make_core(number, result, (-np.inf, np.inf))
        if call is None:
            return None
        self.inside.add(number)
        return self._finish(call)

    def _finish(self, call: Call) -> IntegerNodes:
        return IntegerNodes(tuple(sorted(self.inside)), call)

    def _find_maker(self, name: str) -> int | None:
        """Return the node that makes a tensor which nothing else reads, None where there is none."""
        index = self.graph.index
        number = index.producers.get(name)
        if number is None or name in index.outputs or number in self.graph.sizes.constant_nodes:
            return None
        alone = len(index.consumers[name]) == 1 and not any(index.nodes[number].output[1:])
        return number if alone and is_onnx(index.nodes[number]) else None

    def _make_core(self, number: int, result: TensorScale, limits: tuple[float, float]) -> Call | None:
        node = self.graph.index.nodes[number]
        maker = _CORES.get(node.op_type)
        self.low, self.high = limits
        kept = set(self.inside)
        call: Call | None = None if maker is None else maker(self, node, result)
        if call is None:
            self.inside = kept
        return call

    @property
    def is_limited(self) -> bool:
        """Whether an activation limits the result."""
        return (self.low, self.high) != (-np.inf, np.inf)

    @property
    def result(self) -> str:
        return self.graph.index.nodes[self.last].output[0]

    def read_operand(self, name: str) -> IntegerOperand | None:
        """Return the operand of a DequantizeLinear; one that is no constant joins the step."""
        graph, index = self.graph, self.graph.index
        number = index.producers.get(name)
        if number is None or not is_dequantize(index.nodes[number]):
            return None
        node = index.nodes[number]
        dtype = index.get_dtype(node.input[0]) or ""
        if dtype not in INTEGERS or not all(graph.is_constant(each) for each in node.input[1:] if each):
            return None
        if number not in graph.sizes.constant_nodes:
            if self._find_maker(name) is None and not self._is_read_here(name):
                return None
            self.inside.add(number)
        scales = graph.get_constant(node.input[1])
        zeros = (
            graph.get_constant(node.input[2])
            if len(node.input) > 2 and node.input[2]
            else np.zeros(1, dtype)
        )
        if (
            scales.dtype != np.float32
            or scales.ndim > 1
            or int(graph.index.get_attributes(node).get("block_size", 0))
        ):
            return None
        return IntegerOperand(
            node.input[0], dtype, scales.reshape(-1), zeros.reshape(-1).astype(np.int64)
        )

    def multiply_scales(self, one: IntegerOperand, other: IntegerOperand) -> Array:
        """Return the scales of a product's sums, in float32 where the operator was one of integers.

        That is how onnxruntime's have them; between floats float64 is nearer to what ONNX defines.
        """
        dtype = np.float32 if self.result in self.graph.requantized else np.float64
        return one.scales.astype(dtype) * other.scales

    def _is_read_here(self, name: str) -> bool:
        """Return whether one node alone reads a tensor, as both of its operands."""
        index = self.graph.index
        return name not in index.outputs and len({*index.consumers.get(name, ())}) == 1

    def format_rounding(self, result: TensorScale, step: int) -> str:
        """Return the initializer of a `kernel_rounding`; limits are those of the activation."""
        low, high = result.quantize(self.low), result.quantize(self.high)
        flip = get_flip(result.dtype)
        return f"{{{result.bits}, {result.shifted_zero}, {low}, {high}, {flip}, {step}}}"

    def find_bias(
        self, name: str | None, scales: Array, result: TensorScale, width: SumWidth
    ) -> tuple[Array | None, Array | None] | None:
        """Return a bias as integers in the scale of sums, or as offsets; None if it is computed.

        A bias that may lead beyond the sums' width is an offset.
        """
        if not name:
            return None, None
        graph, index = self.graph, self.graph.index
        if not graph.is_constant(name):
            return None
        maker = index.producers.get(name)
        node = None if maker is None else index.nodes[maker]
        if node is not None and is_dequantize(node) and index.get_dtype(node.input[0]) == "int32":
            own = graph.get_constant(node.input[1]).astype(np.float64).reshape(-1)
            zero = graph.get_constant(node.input[2]) if len(node.input) > 2 and node.input[2] else 0
            if np.allclose(own, scales, rtol=1e-6, atol=0) and not np.any(zero):
                whole = graph.get_constant(node.input[0]).reshape(-1)
                if width.holds(whole):
                    return whole, None
        offsets = graph.get_constant(name).astype(np.float64).reshape(-1) / result.scale
        if not _adds_exactly(float(np.abs(offsets).max(initial=0))):
            return None
        return None, offsets.astype(np.float32)

    def _make_table(self, result: TensorScale) -> Call | None:
        """Return the call of a table where each element of the result is made of one that is read.

        That one may be read several times, as for HardSwish in two operators.
        """
        graph, index = self.graph, self.graph.index
        nodes, read = {self.last}, {index.nodes[self.last].input[0]}
        while not _are_bytes(graph, read):
            number = max(index.producers.get(name, -1) for name in read)
            if number < 0 or len(nodes) > _MOST_NODES or not self._is_elementwise(number, nodes):
                return None
            nodes.add(number)
            read = {
                name
                for each in nodes
                for name in index.nodes[each].input
                if name and not graph.is_constant(name) and index.producers.get(name) not in nodes
            }
        name = next(iter(read))
        if graph.get_shape(name) != graph.get_shape(self.result) or result.bits > 8:
            return None
        table = _compute_table(graph, sorted(nodes), name)
        if table is None:
            return None
        self.inside |= nodes
        structure = f"{{1, {prod(graph.get_shape(name))}}}"
        return Call("kernel_look_up", (name, table, self.result), "kernel_rows", structure)

    def _is_elementwise(self, number: int, readers: set[int]) -> bool:
        """Return whether a node, which some nodes alone read, makes each element of one."""
        index = self.graph.index
        node = index.nodes[number]
        return (
            (is_onnx(node) and node.op_type in _UNARY) or is_dequantize(node) or is_quantize(node)
        ) and (
            number not in self.graph.sizes.constant_nodes
            and not any(node.output[1:])
            and node.output[0] not in index.outputs
            and readers.issuperset(index.consumers[node.output[0]])
            and all(
                prod(self.graph.get_shape(name)) == 1
                for name in node.input
                if name and self.graph.is_constant(name)
            )
        )


def _are_bytes(graph: ProgramGraph, names: set[str]) -> bool:
    """Return whether names are of one tensor, of 8 bits."""
    return len(names) == 1 and graph.get_dtype(*names) in ("int8", "uint8")


def _compute_table(graph: ProgramGraph, nodes: Sequence[int], first: str) -> Array | None:
    """Compute the table of nodes that read one tensor; None where onnxruntime does not run them."""
    index = graph.index
    last = index.nodes[nodes[-1]].output[0]
    model = onnx.ModelProto(ir_version=index.proto.ir_version)
    model.opset_import.extend(index.proto.opset_import)
    model.graph.name = "table"
    model.graph.node.extend(index.nodes[number] for number in nodes)
    known = {
        name
        for number in nodes
        for name in index.nodes[number].input
        if name and graph.is_constant(name)
    }
    model.graph.initializer.extend(
        numpy_helper.from_array(graph.get_constant(name), name) for name in known
    )
    dtypes = [index.get_dtype(name) or "" for name in (first, last)]
    model.graph.input.append(make_tensor_value_info(first, DTYPE_NUMBERS[dtypes[0]], [_BYTES]))
    model.graph.output.append(make_tensor_value_info(last, DTYPE_NUMBERS[dtypes[1]], None))
    try:
        with without_optimizations(), np.errstate(all="ignore"):
            given = np.arange(_BYTES, dtype=np.uint8).view(dtypes[0])
            made = run_session(open_session(model, None), {first: given})[last]
    except InputError:
        return None
    return np.ascontiguousarray(np.asarray(made).reshape(-1)).view(np.uint8)


def _make_convolution(group: _Group, node: NodeProto, result: TensorScale) -> Call | None:
    graph = group.graph
    x, weights = (group.read_operand(name) for name in node.input[:2])
    if x is None or weights is None or x.scales.size != 1 or not graph.is_constant(weights.tensor):
        return None
    if len(graph.get_shape(x.tensor)) not in IMAGE_RANKS or not prod(graph.get_shape(group.result)):
        return None
    scales = group.multiply_scales(x, weights)
    shape = graph.get_shape(weights.tensor)
    stored = graph.get_constant(weights.tensor).reshape(shape[0], -1)
    width = find_sum_width(x, weights, prod(shape[1:]), stored)
    bias = group.find_bias(get_bias(node), scales, result, width)
    if bias is None:
        return None
    # Scales and offsets are read with one step: a bias by channel needs a scale by channel.
    step = int(scales.size > 1 or bias[1] is not None)
    scales = np.broadcast_to(scales, (shape[0],)) if step else scales
    rounding = group.format_rounding(result, step)
    constants = (
        store_zeros(weights.zeros, weights.dtype),
        bias[0],
        (scales / result.scale).astype(np.float32),
        bias[1],
    )
    return describe_int_convolution(
        graph, node, (x, weights), rounding, constants, group.result, width.wide
    )


def _make_gemm(group: _Group, node: NodeProto, result: TensorScale) -> Call | None:
    attributes = group.graph.index.get_attributes(node)
    if attributes.get("transA", 0) or any(
        attributes.get(name, 1.0) != 1.0 for name in ("alpha", "beta")
    ):
        return None
    return _make_product(group, node, result, bool(attributes.get("transB", 0)), get_bias(node))


def _make_matmul(group: _Group, node: NodeProto, result: TensorScale) -> Call | None:
    return _make_product(group, node, result, False, None)


def _make_product(
    group: _Group, node: NodeProto, result: TensorScale, transposed: bool, bias_name: str | None
) -> Call | None:
    graph = group.graph
    a, b = (group.read_operand(name) for name in node.input[:2])
    if (
        a is None
        or b is None
        or a.scales.size != 1
        or (b.scales.size > 1 and not graph.is_constant(b.tensor))
    ):
        return None
    shapes = graph.get_shape(a.tensor), graph.get_shape(b.tensor), graph.get_shape(node.output[0])
    scales = group.multiply_scales(a, b)
    stored = graph.get_constant(b.tensor) if graph.is_constant(b.tensor) else None
    rows = None if stored is None or stored.ndim != 2 else stored if transposed else stored.T
    width = find_sum_width(a, b, shapes[0][-1], rows)
    bias = group.find_bias(bias_name, scales, result, width)
    if bias is None or any(each is not None and each.size not in (1, shapes[2][-1]) for each in bias):
        return None
    whole, offsets = (
        None if each is None else np.broadcast_to(each, (shapes[2][-1],)).copy() for each in bias
    )
    step = int(scales.size > 1 or offsets is not None)
    scales = np.broadcast_to(scales, (shapes[2][-1],)) if step else scales
    constants = (whole, (scales / result.scale).astype(np.float32), offsets)
    zeros = store_zeros(a.zeros, a.dtype), store_zeros(b.zeros, b.dtype)
    types = (a.c_type, b.c_type, 0, int(b.zeros.size > 1 and zeros[1] is not None))
    return describe_int_product(
        shapes,
        transposed,
        (a.tensor, zeros[0], b.tensor, zeros[1], *constants, group.result, SCRATCH),
        types,
        group.format_rounding(result, step),
        stored,
        width.wide,
    )


def _make_sum(group: _Group, node: NodeProto, result: TensorScale) -> Call | None:
    def format_scales(a: float, b: float) -> tuple[float, float]:
        return a / float(result.scale), b / float(result.scale)

    return _make_pair(group, node, result, "kernel_add_int", format_scales)


def _make_scaled(group: _Group, node: NodeProto, result: TensorScale) -> Call | None:
    return _make_pair(
        group, node, result, "kernel_scale_int", lambda a, b: (a * b / float(result.scale), 0)
    )


def _make_pair(
    group: _Group,
    node: NodeProto,
    result: TensorScale,
    function: str,
    find_scales: Callable[[float, float], tuple[float, float]],
) -> Call | None:
    """Return the call for two operands, of which one may be repeated along whole axes."""
    graph = group.graph
    a, b = (group.read_operand(name) for name in node.input)
    if a is None or b is None or a.scales.size != 1 or b.scales.size != 1:
        return None
    y = graph.get_shape(group.result)
    if graph.get_shape(a.tensor) != y:
        a, b = b, a
    lines = _find_lines(graph.get_shape(b.tensor), y)
    if graph.get_shape(a.tensor) != y or lines is None or not prod(y):
        return None
    outer, inner, b_outer, b_inner = lines
    scales = find_scales(float(a.scales[0]), float(b.scales[0]))
    if function == "kernel_add_int" and not _adds_exactly(a.reach * scales[0] + b.reach * scales[1]):
        return None
    numbers = (outer, inner, b_outer, b_inner, a.c_type, b.c_type, a.zero, b.zero)
    parts = (*numbers, *map(format_float, scales), group.format_rounding(result, 0))
    structure = f"{{{', '.join(map(str, parts))}}}"
    return Call(function, (a.tensor, b.tensor, group.result), "kernel_int_pair", structure)


def _adds_exactly(largest: float) -> bool:
    """Return whether a sum of such magnitudes, in units of the result, is within a part of a unit.

    The kernels add floats of 32 bits: large ones that cancel leave what was rounded off.
    """
    return largest * _ROUNDING <= _MOST_ROUNDED


def _find_lines(b: tuple[int, ...], y: tuple[int, ...]) -> tuple[int, int, int, int] | None:
    """Return lines and elements of y, and b's steps along both; None where b repeats otherwise."""
    b = (*(1,) * (len(y) - len(b)), *b)
    if b == y:
        return 1, prod(y), 0, 1
    for axis in range(len(y) + 1):
        if b[:axis] == y[:axis] and all(extent == 1 for extent in b[axis:]):
            return prod(y[:axis]), prod(y[axis:]), 1, 0
        if all(extent == 1 for extent in b[:axis]) and b[axis:] == y[axis:]:
            return prod(y[:axis]), prod(y[axis:]), 0, 1
    return None


def _make_mean(group: _Group, node: NodeProto, result: TensorScale) -> Call | None:
    graph = group.graph
    x = group.read_operand(node.input[0])
    if x is None or x.scales.size != 1:
        return None
    pool = describe_pool(graph, node)
    if pool is None:
        return None
    scale = format_float(float(x.scales[0]) / float(result.scale))
    structure = f"{{{pool}, {x.c_type}, {x.zero}, {scale}, {group.format_rounding(result, 0)}}}"
    return Call("kernel_pool_average_int", (x.tensor, group.result), "kernel_int_pool", structure)


def _make_largest(group: _Group, node: NodeProto, result: TensorScale) -> Call | None:
    x = group.read_operand(node.input[0])
    own = None if x is None else (x.dtype, *x.scales.tolist(), *x.zeros.tolist())
    if x is None or own != (result.dtype, float(result.scale), result.zero) or group.is_limited:
        return None
    return describe_int_max(group.graph, node, x.tensor, group.result)


def _make_rescaled(group: _Group, node: NodeProto, result: TensorScale) -> Call | None:
    """Return the call that changes the scale of a tensor: a sum of it and of nothing."""
    x = group.read_operand(node.output[0])
    count = prod(group.graph.get_shape(group.result))
    if x is None or x.scales.size != 1 or not count:
        return None
    scale = format_float(float(x.scales[0]) / float(result.scale))
    parts = (1, count, 0, 1, x.c_type, x.c_type, x.zero, x.zero, scale, "0.0f")
    structure = f"{{{', '.join(map(str, parts))}, {group.format_rounding(result, 0)}}}"
    return Call("kernel_add_int", (x.tensor, x.tensor, group.result), "kernel_int_pair", structure)


_CORES: Mapping[str, Callable[[_Group, NodeProto, TensorScale], Call | None]] = {
    "Conv": _make_convolution,
    "Gemm": _make_gemm,
    "MatMul": _make_matmul,
    "Add": _make_sum,
    "Mul": _make_scaled,
    "AveragePool": _make_mean,
    "GlobalAveragePool": _make_mean,
    "MaxPool": _make_largest,
    "DequantizeLinear": _make_rescaled,
}
