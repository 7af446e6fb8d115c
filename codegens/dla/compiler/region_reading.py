"""A region for lowering: operations without composites, constants, shapes and quantization."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import onnx

from byoc.codegen import CompileError, Operation, Quantization, Region, TensorContract

from ..machine import FunctionKind
from .output_shapes import FROM_NHWC, Array, Shape, infer_shapes

# The machine's functions by operator, and those of a tensor times a function of it.

FUNCTIONS: Mapping[str, FunctionKind] = {
    "Sigmoid": FunctionKind.SIGMOID,
    "Tanh": FunctionKind.TANH,
    "HardSigmoid": FunctionKind.HARD_SIGMOID,
    "HardSwish": FunctionKind.HARD_SWISH,
    "LeakyRelu": FunctionKind.LEAKY_RELU,
    "Elu": FunctionKind.ELU,
    "Erf": FunctionKind.ERF,
    "Gelu": FunctionKind.GELU,
    "Sqrt": FunctionKind.SQRT,
    "Exp": FunctionKind.EXP,
    "Reciprocal": FunctionKind.RECIPROCAL,
    "Swish": FunctionKind.SWISH,
    "com.microsoft.Gelu": FunctionKind.GELU,
    "com.microsoft.FastGelu": FunctionKind.GELU_TANH,
    "com.microsoft.QuickGelu": FunctionKind.SWISH,
}
"""Operators that are a function of one variable, and the machine's function for each."""

_GATED = {FunctionKind.SIGMOID: FunctionKind.SWISH, FunctionKind.HARD_SIGMOID: FunctionKind.HARD_GATE}
"""The function that is a tensor times a function of it."""


def get_operator(operation: Operation) -> str:
    """Return an operator as rule files have it: `Conv`, `com.microsoft.QuickGelu`."""
    return ".".join(filter(None, (operation.domain, operation.op)))


def is_function(operation: Operation) -> bool:
    """Whether an operation is a function of one variable, its first input."""
    return get_operator(operation) in FUNCTIONS


def is_gate(operation: Operation) -> bool:
    """Whether the product of a tensor by this function of it is a function of the machine."""
    return FUNCTIONS.get(get_operator(operation)) in _GATED


def find_function(operations: Sequence[Operation]) -> tuple[FunctionKind, tuple[float, float]]:
    """Return the machine's function, with its two parameters, for one that is one operation or two.

    The second operation is the product of the first one's operand by its result. A parameter that the
    function does not have is 0.
    """
    first = operations[0]
    kind, attributes = FUNCTIONS[get_operator(first)], first.attributes
    parameters = (attributes.get("alpha", 0.0), attributes.get("beta", 0.0))
    if len(operations) > 1:
        kind = _GATED[kind]
        return kind, (1.0, 0.0) if kind is FunctionKind.SWISH else parameters
    if attributes.get("approximate") == "tanh":
        kind = FunctionKind.GELU_TANH
    return kind, parameters


# Operations in floating point beside quantized ones, with what converts between them as operations.
#
# `Region.operations` makes DequantizeLinear and QuantizeLinear part of the operations around them,
# whatever these compute in. Here they become operations again where one computes in floating point.

_PRODUCTS = ("Conv", "Gemm", "MatMul")
_ANY_OPERANDS = ("Add", "Sum", "Mul", "Concat")
_ONE_OPERAND = (
    *("BatchNormalization", "MaxPool", "AveragePool", "GlobalAveragePool", "Relu", "Clip", *FUNCTIONS),
    *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Dropout", "Identity", "Transpose"),
)
_OPERANDS: Mapping[str, int | None] = {
    **dict.fromkeys(_PRODUCTS, 2),
    **dict.fromkeys(_ANY_OPERANDS),
    **dict.fromkeys(_ONE_OPERAND, 1),
}
"""Operators that the machine has in integers, and how many of their inputs are operands; None: all."""

_CONVERSIONS = ("DequantizeLinear", "QuantizeLinear")


def separate_conversions(
    operations: Sequence[Operation], given: Collection[str], outputs: Collection[str]
) -> Iterator[Operation]:
    """Yield operations, those in floating point with conversions of their own around them.

    `given` and `outputs` are the region's inputs and outputs. An operation computes in integers if all
    its operands are quantized, or are made for it alone by one that does, and its result is quantized,
    here or behind such operations.
    """
    in_integers = _find_integer_operations(operations, outputs)
    computed = {*given, *(name for each in operations for name in each.outputs)}
    dequantized: dict[tuple[str, int], str] = {}
    for each in operations:
        if each.outputs[0] in in_integers or each.op in _CONVERSIONS:
            yield each
            continue
        inputs, encodings = list(each.inputs), list(each.input_quantization)
        for position, (name, quantization) in enumerate(zip(inputs, encodings, strict=True)):
            if quantization is None or name not in computed:
                continue
            key = name, id(quantization)
            if key not in dequantized:
                dequantized[key] = f"{name}/float{len(dequantized) or ''}"
                yield _make_conversion(each, "DequantizeLinear", name, dequantized[key], position)
            inputs[position], encodings[position] = dequantized[key], None
        yield from _separate_results(
            replace(each, inputs=tuple(inputs), input_quantization=tuple(encodings))
        )


def _separate_results(operation: Operation) -> Iterator[Operation]:
    """Yield an operation in floating point, and what quantizes its results."""
    quantized = [number for number, each in enumerate(operation.output_quantization) if each is not None]
    if not quantized:
        yield operation
        return
    made = [
        f"{name}/real" if number in quantized else name for number, name in enumerate(operation.outputs)
    ]
    nothing = (None,) * len(made)
    yield replace(
        operation,
        outputs=tuple(made),
        output_quantization=nothing,
        output_limits=nothing,
        fused=(),
    )
    for number in quantized:
        yield replace(
            _make_conversion(operation, "QuantizeLinear", made[number], operation.outputs[number], 0),
            input_quantization=(None,),
            output_quantization=operation.output_quantization[number : number + 1],
            output_limits=operation.output_limits[number : number + 1],
            fused=operation.fused,
        )


def _make_conversion(beside: Operation, op: str, x: str, y: str, position: int) -> Operation:
    """Return a conversion beside an operation; its quantization is that of the operation's input."""
    return replace(
        beside,
        op=op,
        domain="",
        inputs=(x,),
        outputs=(y,),
        attributes={},
        constants=(),
        inner=(),
        input_quantization=beside.input_quantization[position : position + 1],
        output_quantization=(None,),
        output_limits=(None,),
        fused=(),
    )


def _find_integer_operations(operations: Sequence[Operation], outputs: Collection[str]) -> set[str]:
    """Return the operations that compute in integers, by their first outputs."""
    readers: dict[str, list[str]] = {}
    for each in operations:
        for name in each.inputs:
            readers.setdefault(name, []).append(each.outputs[0])
    found = {each.outputs[0] for each in operations}
    before = len(found) + 1
    while len(found) < before:  # what has a neighbour in floats is in floats itself
        before = len(found)
        for each in (*operations, *reversed(operations)):
            name = each.outputs[0]
            reads = all(given is not None or read in found for read, given in _list_operands(each))
            behind = readers.get(name, [])
            is_inside = bool(behind) and name not in outputs and found.issuperset(behind)
            is_quantized = each.output_quantization[:1] not in ((), (None,))
            if not (reads and (is_quantized or is_inside)):
                found.discard(name)
    return found


def _list_operands(operation: Operation) -> list[tuple[str, object]]:
    """Return the operands with their quantization; one without, of an operator in floats alone."""
    operator = get_operator(operation)
    if operator not in _OPERANDS:
        return [("", None)]
    pairs = zip(operation.inputs, operation.input_quantization, strict=True)
    return [(name, given) for name, given in list(pairs)[: _OPERANDS[operator]] if name]


_GREATEST = float(np.finfo(np.float32).max)
_TARGETS = {"Reshape": 1, "Split": 1, "Squeeze": 1, "Unsqueeze": 1, "GroupQueryAttention": 6}
"""Operators whose results have a shape that depends on the value of an input, with its position."""


@dataclass(frozen=True, eq=False)
class Operand:
    """A tensor that an operation reads, and what its integers stand for, None for floats."""

    name: str
    quantization: Quantization | None


def list_operands(operation: Operation) -> list[Operand]:
    """Return the operands of an operation; of one that is left out the name is empty."""
    pairs = zip(operation.inputs, operation.input_quantization, strict=True)
    found = [Operand(name, quantization) for name, quantization in pairs]
    if any(each.quantization and each.quantization.block_size for each in found):
        raise CompileError(
            "the scales are of blocks, but must be of a tensor or an axis", [operation.name]
        )
    return found


def read_encoding(
    quantization: Quantization | None, nodes: Sequence[str], channels: int = 0
) -> tuple[Array, Array]:
    """Return the scale and the zero point of activations, rank 0, or one of each for each channel.

    That is allowed where `channels`, their number, is not 0. Raises CompileError for other scales, or
    for one that is not positive, or too large.
    """
    assert quantization is not None
    scales, zeros = quantization.scale.astype(np.float64), quantization.zero_point
    if not quantization.is_per_tensor and (quantization.axis, scales.shape) != (1, (channels,)):
        raise CompileError("activations have a scale for each channel, but must have one scale", nodes)
    wrong = scales[~((scales > 0) & (scales <= _GREATEST / 256))]
    if wrong.size:
        raise CompileError(
            f"a scale of {wrong[0]}: it must be positive, and 256 times it finite in float32", nodes
        )
    return scales, zeros


@dataclass(frozen=True, eq=False)
class RegionReading:
    """A region for lowering: `operations` in order, with composites replaced by their operations.

    DequantizeLinear and QuantizeLinear are part of the operations that compute in integers.
    """

    region: Region

    @cached_property
    def operations(self) -> tuple[Operation, ...]:
        """The operations that run; those inside a composite have its name."""
        found: list[Operation] = []
        for each in self.region.operations(quantized=True):
            found += [_rename_inner(one, each) for one in each.inner] or [each]
        inputs, outputs = (
            {contract.inner for contract in each} for each in (self.region.inputs, self.region.outputs)
        )
        return tuple(separate_conversions(found, inputs, outputs))

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        """The shape in ONNX of each input of the region and of each computed tensor."""
        found: dict[str, Shape] = {}
        for contract in self.region.inputs:
            readers = [each.name for each in self.operations]
            found[contract.inner] = _static_shape(contract, readers)
        for each in self.operations:
            given = [self._find_shape(name, found) if name else None for name in each.inputs]
            made = zip(
                each.outputs, infer_shapes(each, given, self._read_target(each, found)), strict=False
            )
            found |= {name: shape for name, shape in made if name}
        return found

    def _read_target(self, operation: Operation, computed: Mapping[str, Shape]) -> list[int]:
        """Return the value of the input that says a shape; nothing where that is not known."""
        position = _TARGETS.get(operation.op, len(operation.inputs))
        names = [name for name in operation.inputs[position : position + 1] if name]
        if not names or names[0] in computed:
            return []
        return [int(each) for each in self.stored_array(names[0]).reshape(-1)]

    def _find_shape(self, name: str, computed: Mapping[str, Shape]) -> Shape:
        return computed[name] if name in computed else self.stored_array(name).shape

    def check_shapes(self) -> None:
        """Raise CompileError, with the node, where the region states another shape than is made here."""
        shapes = self.shapes
        stated = dict(map(_value_extents, self.region.model.graph.value_info))
        makers = {name: [each.name] for each in self.operations for name in each.outputs}
        for contract in self.region.outputs:
            if not self.is_constant(contract.inner):
                stated[contract.inner] = _static_shape(contract, makers.get(contract.inner, []))
        pairs = ((each, name) for each in self.operations for name in each.outputs if name in shapes)
        for each, name in pairs:
            made = shapes[name]
            expected = stated.get(name) or made
            if len(expected) != len(made) or any(
                extent not in {None, real} for extent, real in zip(expected, made, strict=True)
            ):
                why = f"'{name}' should have the shape {expected}, but {each.op} makes {made}"
                raise CompileError(why, [each.name])

    def is_constant(self, name: str) -> bool:
        """Whether a tensor is stored, or computed from stored tensors only."""
        return bool(name) and name not in self.shapes

    def is_weights(self, operand: Operand, in_integers: bool) -> bool:
        """Whether an operand is a constant matrix, of a product in integers one without zero points."""
        if not self.is_constant(operand.name):
            return False
        stored, found = self.stored_array(operand.name), operand.quantization
        return stored.ndim == 2 and (
            not in_integers or found is None or (stored.dtype == np.int8 and not found.zero_point.any())
        )

    @cached_property
    def dynamic_products(self) -> Mapping[str, "DynamicProduct"]:
        """The products of integers that are quantized as the program runs, by their results.

        A tensor is quantized to integers only where all that reads it multiplies it by integers.
        """
        rounded = {each.outputs[0] for each in self.operations if each.op == "DynamicQuantizeLinear"}
        outputs = {contract.inner for contract in self.region.outputs}
        readers: dict[str, list[Operation]] = {}
        for each in self.operations:
            for name in dict.fromkeys(each.inputs):
                readers.setdefault(name, []).append(each)
        found: dict[str, DynamicProduct] = {}
        for each in self.operations:
            name = each.outputs[0]
            if each.op != "DequantizeLinear" or each.inputs[0] not in rounded or name in outputs:
                continue
            products = [self._read_product(one, name) for one in readers.get(name, ())]
            made = [product for product in products if product is not None]
            if len(made) == len(products):
                found.update((one.output, one) for one in made)
        return found

    def _read_product(self, operation: Operation, name: str) -> "DynamicProduct | None":
        """Return a convolution or product of a tensor by constant integers; None for anything else."""
        if (
            operation.op not in ("Conv", "MatMul")
            or operation.domain
            or operation.inputs.count(name) != 1
        ):
            return None
        operands = list_operands(operation)
        weights = operands[1]
        encoding = weights.quantization
        if operands[0].name != name or encoding is None or not self.is_constant(weights.name):
            return None
        stored, is_matrix = self.stored_array(weights.name), operation.op == "MatMul"
        if stored.ndim != (2 if is_matrix else 4) or any(operation.inputs[2:]):
            return None
        found = _centre_weights(stored, encoding, stored.ndim - 1 if is_matrix else 0)
        if found is None:
            return None
        centred = found.T[:, :, None, None] if is_matrix else found
        scales = np.broadcast_to(encoding.scale.astype(np.float64).reshape(-1), len(centred))
        return DynamicProduct(operation.outputs[0], name, centred, scales)

    def constant_array(self, operand: Operand) -> Array:
        """Return a constant in ONNX's order of axes, dequantized if it is quantized."""
        stored = self.stored_array(operand.name)
        return stored if operand.quantization is None else operand.quantization.dequantize(stored)

    def stored_array(self, name: str) -> Array:
        """Return a constant in ONNX's order of axes as it is stored."""
        return self.region.constant(name, layout="")


@dataclass(frozen=True, eq=False)
class DynamicProduct:
    """A convolution or product of a tensor that is quantized as the program runs, by constant integers.

    `weights` are int8 [output channels, input channels of a group, rows, columns of the kernel], zero
    points subtracted, and `scales` float64 [output channels]. `read` is the tensor, `output` the result.
    """

    output: str
    read: str
    weights: Array
    scales: Array


def _centre_weights(stored: Array, encoding: Quantization, axis: int) -> Array | None:
    """Return weights less their zero points in int8; None where they do not fit, or scales do not.

    Several scales must be those of `axis`, the channels of the result.
    """
    if encoding.axis not in {None, axis} or stored.dtype.itemsize != 1 or not encoding.is_integer:
        return None
    along = (1,) * axis + (-1,) + (1,) * (stored.ndim - axis - 1)
    centred = stored.astype(np.int64) - encoding.zero_point.astype(np.int64).reshape(along)
    fits = centred.min(initial=0) >= -128 and centred.max(initial=0) <= 127
    return centred.astype(np.int8) if fits and np.isfinite(encoding.scale).all() else None


def _rename_inner(operation: Operation, composite: Operation) -> Operation:
    """Return an operation inside a composite with names of nodes that the region has."""
    fused = (
        each if each in composite.fused else replace(each, name=composite.name)
        for each in operation.fused
    )
    return replace(operation, name=composite.name, fused=tuple(fused))


def _value_extents(value: onnx.ValueInfoProto) -> tuple[str, tuple[int | None, ...]]:
    """Return the name and extents of a tensor, None for an unknown extent; () if the rank is unknown."""
    extents = value.type.tensor_type.shape.dim
    return value.name, tuple(d.dim_value if d.HasField("dim_value") else None for d in extents)


def _static_shape(contract: TensorContract, nodes: Sequence[str]) -> Shape:
    """Return the shape of a boundary tensor in ONNX's order. Raises CompileError for unknown extents."""
    shape = contract.type.shape
    extents = [] if shape is None else [extent for extent in shape if isinstance(extent, int)]
    if shape is None or len(extents) < len(shape):
        what = f"'{contract.name}' is {contract.type}: all extents must be known (--dim gives a model's)"
        raise CompileError(what, nodes)
    return tuple(extents[i] for i in (FROM_NHWC if contract.layout == "NHWC" else range(len(extents))))
