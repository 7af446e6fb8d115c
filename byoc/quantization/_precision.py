"""The precision that a user asks for: a type, what scales are concluded from, an accuracy budget."""

from __future__ import annotations

import re
from math import inf
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, ValueInfoProto, helper, numpy_helper

from byoc import quantization, samples
from byoc._dataclasses import dataclass, field, replace
from byoc.errors import InputError
from byoc.model import GraphIndex, evaluate_constants, get_stated_attributes, is_onnx, read_array
from byoc.quantization._calibrators import DTYPES
from byoc.support import Flag, Panel, Syntax, check_types, declare_field

# Quantization arithmetic: scales and zero points from ranges, integers from floats.
#
# `real = scale * (quantized - zero_point)`, as in ONNX's QuantizeLinear. Scale and zero point of a
# range follow Jacob et al., "Quantization and Training of Neural Networks for Efficient
# Integer-Arithmetic-Only Inference" (2018, sections 2.1 and 3), like TensorFlow Lite and
# onnxruntime's quantizer.
#
# Here are also the properties of operators that this needs, and the values of constants, which are
# read or computed on demand and not kept.

OPERANDS = frozenset(
    [
        *("Conv", "ConvTranspose", "Gemm", "MatMul", "Concat", "PRelu"),
        *("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean"),
    ]
)
"""A constant is here any other input; elsewhere it is a parameter, and stays float."""

WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""A second input with channels, and perhaps a bias as the third."""


def find_channels(index: GraphIndex, node: NodeProto) -> tuple[int, int] | None:
    """Return the axis of the weights that has the output's channels, and the number of groups.

    ConvTranspose has weights `[C, M / group, ...]` (ONNX, ConvTranspose), so one index of axis 1 stands
    for a channel in each group. None for operators without weights, or weights of unknown rank.
    """
    if not is_onnx(node) or node.op_type not in WEIGHTED:
        return None
    rank = index.get_rank(node.input[1])
    if rank is None:
        return None
    attributes = get_stated_attributes(node)
    if node.op_type in ("Conv", "ConvTranspose"):
        return int(node.op_type == "ConvTranspose"), int(attributes.get("group", 1))
    if node.op_type == "Gemm":
        return (0 if attributes.get("transB", 0) else 1), 1
    return (rank - 1, 1) if rank > 1 else None


def is_depthwise(index: GraphIndex, node: NodeProto) -> bool:
    """Return whether a node is a Conv each of whose output channels reads one of several channels."""
    if not is_onnx(node) or node.op_type != "Conv":
        return False
    shape = index.get_shape(node.input[1])
    groups = get_stated_attributes(node).get("group", 1)
    return shape is not None and shape[1] == 1 and groups > 1


def read_constant(index: GraphIndex, name: str, folder: Path | None) -> NDArray[Any]:
    """Return the value of a constant: the stored one, or computed by ONNX's reference implementation."""
    if name in index.stored_tensors:
        return read_array(index.stored_tensors[name], folder)
    nodes = [index.nodes[number] for number in index.find_constant_nodes([name])]
    read = {other for node in nodes for other in node.input if other in index.stored_tensors}
    stored = [
        numpy_helper.from_array(read_array(index.stored_tensors[other], folder), other)
        for other in sorted(read)
    ]
    graph = helper.make_graph(nodes, "constant", [], [ValueInfoProto(name=name)], stored)
    imports = index.proto.opset_import
    model = helper.make_model(graph, opset_imports=imports, ir_version=index.proto.ir_version)
    return evaluate_constants(model)[0]


def read_dequantized(
    index: GraphIndex, node: NodeProto, folder: Path | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the constant that a DequantizeLinear makes, and its scale, broadcast to the same rank."""
    values = [read_constant(index, name, folder) for name in node.input]
    integers, scale = (value.astype(np.float64) for value in values[:2])
    point = values[2].astype(np.float64) if len(values) > 2 else np.zeros_like(scale)
    shape = [1] * integers.ndim
    if scale.ndim:
        shape[helper.get_node_attr_value(node, "axis")] = -1
    scale = scale.reshape(shape)
    return np.asarray((integers - point.reshape(shape)) * scale), scale


Float32Array = NDArray[np.float32]

_INT32 = float(2**31 - 2**8)  # what an int32 holds, less the rounding of a float32 scale
_LEAST_ROOM = 2.0**24  # for a bias: it is given in float32, which has no more digits
_LEAST = float(np.finfo(np.float32).tiny)
"""Smaller scales are no normal numbers: what is so small is as good as 0."""


@dataclass(frozen=True, eq=False)
class QuantizationParams:
    """The quantization of a tensor.

    `scale` is float32 and `zero_point` int64, both of shape `[]`, or `[C]` with one for each index of
    `axis`.
    """

    scale: Float32Array
    zero_point: NDArray[np.int64]
    dtype: str
    axis: int | None = None

    def broadcast_along(self, rank: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return scale and zero point in a shape that broadcasts against a tensor of a rank."""
        if self.axis is None:
            return self.scale.astype(np.float64), self.zero_point
        shape = [1] * rank
        shape[self.axis] = -1
        return self.scale.astype(np.float64).reshape(shape), self.zero_point.reshape(shape)


def is_same_form(one: QuantizationParams, other: QuantizationParams) -> bool:
    """Return whether two quantizations make the same integers of each value."""
    return (
        (one.dtype, one.axis) == (other.dtype, other.axis)
        and np.array_equal(one.scale, other.scale)
        and np.array_equal(one.zero_point, other.zero_point)
    )


@dataclass(frozen=True, slots=True)
class ScaleRequirement:
    """Requirements on a quantization: `dtype`, zero points of 0, and scales that are powers of two."""

    dtype: str
    symmetric: bool = False
    power_of_two: bool = False


def compute_params(
    low: Any, high: Any, form: ScaleRequirement, axis: int | None = None
) -> QuantizationParams | None:
    """Return scale and zero point for ranges from `low` to `high`: numbers, or `[C]` for an axis.

    A range is widened to include 0, which is then represented exactly. Symmetric: `scale = max(|low|,
    |high|) / qmax`; None for an unsigned type if a range extends below 0. Otherwise: `scale = (high -
    low) / (qmax - qmin)`, `zero_point = round(qmin - low / scale)`. Powers of two are rounded up, so
    that nothing is clipped. A range of only 0 has scale 1.
    """
    least, most = DTYPES[form.dtype]
    below = np.minimum(np.asarray(low, np.float64), 0.0)
    above = np.maximum(np.asarray(high, np.float64), 0.0)
    if form.symmetric:
        if least == 0 and np.any(below < 0):
            return None
        scale = _round_scale(np.maximum(-below, above) / most, form.power_of_two)
        return QuantizationParams(scale, np.zeros(scale.shape, np.int64), form.dtype, axis)
    scale = _round_scale((above - below) / (most - least), form.power_of_two)
    points = np.rint(least - below / scale.astype(np.float64))
    return QuantizationParams(scale, np.clip(points, least, most).astype(np.int64), form.dtype, axis)


def _round_scale(scale: NDArray[np.float64], power_of_two: bool) -> Float32Array:
    usable = np.where(scale < _LEAST, 1.0, scale)
    if power_of_two:
        mantissa, exponent = np.frexp(usable)  # 0.5 <= mantissa < 1
        usable = np.ldexp(1.0, np.where(mantissa == 0.5, exponent - 1, exponent))
    return np.asarray(usable, np.float32)


def quantize_values(values: NDArray[Any], params: QuantizationParams) -> NDArray[np.int64]:
    """Return values as integers, rounded half to even and saturated, as QuantizeLinear does."""
    scale, points = params.broadcast_along(values.ndim)
    least, most = DTYPES[params.dtype]
    rounded = np.rint(values.astype(np.float64) / scale) + points
    return np.asarray(np.clip(rounded, least, most), dtype=np.int64)


def find_extremes(
    values: NDArray[Any], axis: int | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the minimum and the maximum of an array, or of each index of an axis."""
    around = None if axis is None else tuple(i for i in range(values.ndim) if i != axis)
    if values.size == 0:
        count = () if axis is None else (values.shape[axis],)
        return np.zeros(count), np.zeros(count)
    low, high = values.min(axis=around), values.max(axis=around)
    return np.asarray(low, np.float64), np.asarray(high, np.float64)


def find_largest_sum(count: int, activation: str, weight: str) -> int:
    """Return the largest magnitude of a sum of products of activations, zero points off, and weights.

    It is 0 for activations of more than 8 bits: their sums may need more than an int32 in any case, and
    what computes them has wider ones.
    """
    (low, high), (least, most) = DTYPES[activation], DTYPES[weight]
    return count * (high - low) * max(-least, most) if high - low < 2**8 else 0


def widen_scales(
    weights: QuantizationParams,
    bias: Float32Array,
    activation: Float32Array,
    power_of_two: bool,
    products: int = 0,
) -> QuantizationParams:
    """Return the weights' quantization with scales large enough for a bias `[C]` to fit into int32.

    `activation` is the scale of what the weights are multiplied with, `[]`, or `[C]` by output channel.
    A bias is counted in steps of `activation * scale`; a channel with tiny weights and a normal bias
    would overflow. So would the sum of a bias that fills the int32 and of `products`, the largest sum of
    the products that it is added to. onnxruntime's quantizer widens the weights' scale likewise.
    """
    room = activation.astype(np.float64) * max(_INT32 - products, _LEAST_ROOM)
    least = np.abs(bias.astype(np.float64)) / room
    if weights.scale.ndim == 0:
        least = np.asarray(least.max(initial=0.0))
    scale = weights.scale.astype(np.float64)
    if np.all(scale >= least):
        return weights
    wide = np.where(scale >= least, scale, least)
    return replace(weights, scale=_round_scale(wide, power_of_two))


def fits_int32(bias: Float32Array, scale: Float32Array) -> bool:
    """Return whether a bias `[C]` in steps of `scale` fits into int32."""
    return bool(np.all(np.abs(bias.astype(np.float64)) <= scale.astype(np.float64) * (2.0**31 - 1)))


def quantize_bias(bias: Float32Array, scale: Float32Array) -> NDArray[np.int32]:
    """Return a bias in steps of `scale`, rounded half to even."""
    return np.rint(bias.astype(np.float64) / scale.astype(np.float64)).astype(np.int32)


# Accuracy budgets, and what a model keeps of its accuracy.

_TEXT = re.compile(r"(?:snr=)?(?P<db>[0-9]+(?:\.[0-9]+)?) ?dB|top1=(?P<share>[01](?:\.[0-9]+)?)", re.I)
_MEASURES = {"dB": "signal_to_noise", "top1": "same_class"}  # the fields of `KeptAccuracy`


@dataclass(frozen=True, slots=True)
class KeptAccuracy:
    """The accuracy that a variant of a model keeps, over some samples.

    `signal_to_noise` (dB) is that of the worst output, with the powers of all samples added up;
    `same_class` the share of rows (all axes but the last), of the worst output, whose largest element is
    where it was. `noises` has the power of the error of each output over that of its signal.
    """

    signal_to_noise: float
    same_class: float
    noises: tuple[float, ...] = field(default=(), compare=False)

    @property
    def noise(self) -> float:
        """The power of the error over that of the signal."""
        return float(10 ** (-self.signal_to_noise / 10))


@dataclass(frozen=True)
class Budget:
    """The least accuracy to keep: `Budget("dB", 45)` or `Budget("top1", 0.99)`.

    `dB` is the signal-to-noise ratio of the outputs, at least 0; `top1` the share of rows with the
    largest element where it was, from 0 to 1. Raises InputError for another measure, or such a number.
    """

    measure: Literal["dB", "top1"]
    least: float

    def __post_init__(self) -> None:
        """Raise InputError for a measure that there is not, or a number outside its range."""
        if self.measure not in _MEASURES:
            raise InputError(f"accuracy budget: {self.measure!r} is neither dB nor top1")
        if not isinstance(self.least, (int, float)) or not 0 <= self.least < inf:
            raise InputError(f"accuracy budget: {self.least!r} is no number from 0 on")
        if self.measure == "top1" and self.least > 1:
            raise InputError(f"accuracy budget: '{self}': a share is at most 1")

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Return a budget from text: `30dB` or `top1=0.99`. Raises InputError for other text."""
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise InputError(f"accuracy budget: '{text}' is neither like 30dB nor like top1=0.99")
        if match["db"] is not None:
            return cls("dB", float(match["db"]))
        return cls("top1", float(match["share"]))

    def __str__(self) -> str:
        """Return it as it is written on the command line."""
        return f"{self.least:g}dB" if self.measure == "dB" else f"top1={self.least:g}"

    def is_met(self, found: KeptAccuracy) -> bool:
        """Return whether an accuracy is within the budget."""
        return self.measure_of(found) >= self.least

    def measure_of(self, found: KeptAccuracy) -> float:
        """Return an accuracy in the measure of the budget."""
        value: float = getattr(found, _MEASURES[self.measure])
        return value


FLOATS = ("float16", "bfloat16")
INTEGERS = ("int8", "uint8", "int16", "uint16")
WEIGHTS = "int4-weights"
EFFORTS = ("quick", "normal", "thorough")
DEFAULT_BLOCK = 32  # weights in 4 bits that share a scale
LEAST_BLOCK = 16  # the smallest that MatMulNBits has


@dataclass(frozen=True)
class Precision:
    """The precision that the user wants for regions.

    `quantize` is one of `INTEGERS` or `FLOATS`, None for what suits each target, or `int4-weights`: the
    weights of matrix products alone, with a scale for each `block` of them, in at most `weight_bits` on
    average where these are given. Ranges come from
    `calibration`, a file of them, or are measured on `data`, a folder or `random`: `method` chooses
    them, None compares several. `effort` is how much is tried on data, `normal` unless given. With a
    `budget` units are in 16 bits or in floating point, at the least predicted cost, so that outputs on
    `data` stay so accurate.
    """

    quantize: str | None = declare_field(
        None,
        "the type that accelerators compute in, or `int4-weights`: weights of products in 4 bits.",
        Flag(
            "Compute in this type on accelerators, or store weights in 4 bits; unless given, as the "
            "model does.",
            choices=(*INTEGERS, *FLOATS, WEIGHTS),
        ),
    )
    calibration: str | Path | quantization.Ranges | None = declare_field(
        None,
        "the ranges of tensors, or a file of them.",
        Flag(
            "The file of tensor ranges, by byoc calibrate, that scales are computed from.",
            Syntax.PATH,
            panel=Panel.PRECISION,
        ),
    )
    data: str | Path | None = declare_field(
        None,
        "a folder of samples, or `random`.",
        Flag(
            "Samples to measure ranges on, instead of --calibration, or to round int4-weights on.",
            metavar="FOLDER|random",
        ),
    )
    method: str | None = None
    effort: str | None = declare_field(
        None,
        "how much is tried on `data`: `quick`, `normal`, which is the default, or `thorough`.",
        Flag(
            "With --data: how much is tried; normal unless given.",
            choices=EFFORTS,
            panel=Panel.PRECISION,
        ),
    )
    images: samples.Preprocessing | None = None
    budget: Budget | None = declare_field(
        None,
        "the accuracy that is to be kept.",
        Flag(
            "Compute units in 16 bits or in floating point, at the least predicted cost, so that "
            "outputs on --data stay so accurate.",
            names=("--accuracy-budget",),
            metavar="30dB|top1=0.99",
            read=Budget.parse,
            panel=Panel.PRECISION,
        ),
    )
    block: int | None = declare_field(
        None,
        "how many weights share a scale with `int4-weights`: a power of two from 16 on, by default 32.",
        Flag(
            "With --quantize int4-weights: so many weights share a scale; 32 unless given.",
            Syntax.INTEGER,
            metavar="NUMBER",
            panel=Panel.PRECISION,
        ),
    )

    weight_bits: float | None = declare_field(
        None,
        "how many bits a weight takes on average at most with `int4-weights`, scales included.",
        Flag(
            "With --quantize int4-weights: store weights in 2, 4 or 8 bits or as they are, by tensor, "
            "so that each takes at most so many bits on average, scales included.",
            Syntax.NUMBER,
            metavar="NUMBER",
            panel=Panel.PRECISION,
        ),
    )

    def __post_init__(self) -> None:
        """Raise InputError for a value of another type than declared, or a type nothing computes in."""
        check_types(Precision, vars(self))
        if self.quantize is not None and self.quantize not in (*INTEGERS, *FLOATS, WEIGHTS):
            known = ", ".join((*INTEGERS, *FLOATS, WEIGHTS))
            raise InputError(f"quantize: {self.quantize} is not among {known}")
        if self.block is not None:
            _check_block(self.block)
            if self.quantize != WEIGHTS:
                raise InputError(f"--block {self.block}: is for --quantize {WEIGHTS} alone")
        if self.weight_bits is not None:
            if not 0 < self.weight_bits < inf:
                raise InputError(f"--weight-bits {self.weight_bits:g}: must be a number above 0")
            if self.quantize != WEIGHTS:
                raise InputError(
                    f"--weight-bits {self.weight_bits:g}: is for --quantize {WEIGHTS} alone"
                )
        if self.effort is not None:
            if self.effort not in EFFORTS:
                raise InputError(f"effort: {self.effort} is not among {', '.join(EFFORTS)}")
            if self.data is None:
                raise InputError(f"--effort {self.effort}: is for --data alone")

    @property
    def may_quantize(self) -> bool:
        """Whether a target that computes in integers may get a quantized model."""
        given = self.calibration is not None or self.data is not None
        return self.quantize in INTEGERS or (self.quantize is None and given)

    @property
    def quantizes_activations(self) -> bool:
        """Whether accelerators may compute in integers: not in 16-bit floats, nor with weights alone."""
        return self.quantize not in (*FLOATS, WEIGHTS)

    @property
    def record(self) -> dict[str, str | None]:
        """The precision as the manifest records it, files by their names alone."""
        given = self.calibration
        file = Path(given).name if isinstance(given, (str, Path)) else None
        block = {} if self.quantize != WEIGHTS else {"block": str(self.block or DEFAULT_BLOCK)}
        effort = {} if self.effort is None else {"effort": self.effort}
        if self.weight_bits is not None:
            block["weight_bits"] = f"{self.weight_bits:g}"
        return (
            block
            | effort
            | {
                "quantize": self.quantize,
                "calibration": file if given is None or file is not None else "ranges in memory",
                "data": None if self.data is None else Path(self.data).name,
                "method": (self.method or "measured")
                if self.data is not None and given is None
                else None,
                "accuracy_budget": None if self.budget is None else str(self.budget),
            }
        )


NATIVE: Precision = Precision()
"""The precision that suits each target, without anything to conclude scales from."""


def _check_block(block: int) -> None:
    """Raise InputError for a block that MatMulNBits does not have."""
    if block < LEAST_BLOCK or block & (block - 1):
        raise InputError(f"--block {block}: must be a power of two of at least {LEAST_BLOCK}")
