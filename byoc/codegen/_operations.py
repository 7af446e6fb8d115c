"""A region as a list of operations, decoded and quantized: an emitter reads no protobuf."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import FunctionProto, ModelProto, NodeProto

from byoc._dataclasses import dataclass, field, replace
from byoc.boundary.contracts import TensorContract, is_conversion
from byoc.model import (
    CLAMP_OPERATORS,
    COMPOSITE_KEY,
    DTYPES,
    GraphIndex,
    TensorType,
    count_bits,
    get_metadata,
    get_node_name,
    list_node_captures,
    resolve_attributes,
    to_numpy_dtype,
)

# The quantization of a tensor: scale, zero point and axis, and the arithmetic that they define.

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Quantization:
    """The quantization of a tensor: real value = (stored - zero_point) * scale.

    `scale` is an array of floats and `zero_point` one of the tensor's stored dtype, of the same shape:
    rank 0 for one pair for the whole tensor, rank 1 for one pair for each index of the dimension `axis`,
    which is None otherwise. With a `block_size` other than 0 they have the tensor's rank, and one pair
    holds for that many consecutive indices of `axis` (ONNX, DequantizeLinear).
    """

    scale: Array
    zero_point: Array
    axis: int | None = None
    block_size: int = 0

    @property
    def dtype(self) -> str:
        """The stored dtype, such as `int8` or `uint4`."""
        return self.zero_point.dtype.name.replace("_", "")  # ml_dtypes writes float8_e4m3fn

    @property
    def is_per_tensor(self) -> bool:
        """Whether one scale and zero point hold for the whole tensor."""
        return self.axis is None

    @property
    def limits(self) -> tuple[int, int]:
        """The least and greatest integer of the dtype. Raises ValueError where floats are stored."""
        if not self.is_integer:
            raise ValueError(f"{self.dtype} has no least and greatest integer")
        bits = count_bits(self.dtype)
        low = 0 if self.dtype.startswith("u") else -(2 ** (bits - 1))
        return low, low + 2**bits - 1

    @property
    def is_integer(self) -> bool:
        """Whether integers are stored, and not floats of 8 or 4 bits."""
        return "int" in self.dtype

    def dequantize(self, stored: Array) -> Array:
        """Return the real values of stored ones in the dtype of `scale`, as DequantizeLinear does."""
        wide = np.int64 if self.is_integer else np.float32
        difference = stored.astype(wide) - self._expand(self.zero_point, stored).astype(wide)
        real: Array = difference.astype(self.scale.dtype) * self._expand(self.scale, stored)
        return real

    def quantize(self, real: Array) -> Array:
        """Return the stored integers of real values, as QuantizeLinear does: half to even, saturated."""
        low, high = self.limits
        rounded = np.rint(real / self._expand(self.scale, real))
        wide = rounded.astype(np.float64) + self._expand(self.zero_point, real).astype(np.float64)
        return np.clip(wide, low, high).astype(self.zero_point.dtype)

    def _expand(self, values: Array, tensor: Array) -> Array:
        """Return scales or zero points in a shape that broadcasts to a tensor."""
        if self.axis is None:
            return values
        if self.block_size:
            return np.repeat(values, self.block_size, self.axis)[
                tuple(slice(extent) for extent in tensor.shape)
            ]
        extents = [1] * tensor.ndim
        extents[self.axis] = values.size
        return values.reshape(extents)


def _find_no_type(name: str) -> TensorType | None:
    return None


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation of a region: a node with decoded attributes.

    `name` is the node's name, or its first output where it has none; errors use it. `op` is the
    operator, `domain` its domain, empty for ONNX's own. For a call of a composite, `composite` is the
    composite's name in the rule file and `op` its function's name, which differs between variants;
    otherwise `composite` is empty.

    `inputs` and `outputs` are names of tensors, empty where one is omitted. `attributes` holds all with
    a value, defaults of ONNX's schema included: numbers, strings, lists of them, TensorProto and
    GraphProto. Attributes of a composite are prefixed with the pattern's line: `c_strides`.

    `constants` names the inputs that are stored, for `Region.constant`. `inner` holds the operations of
    a composite in order, with tensor names as outside of it. `node` is the source of all of this.

    The rest says something of quantized operations alone (`Region.operations(quantized=True)`).
    `input_quantization` and `output_quantization` have one element for each of `inputs` and `outputs`,
    None for a tensor that is not quantized. `output_limits` are the least and greatest integer of each
    quantized output, those of its dtype unless a Relu or Clip is part of the operation. `fused` holds
    what is part of it behind `node`: Relu, Clip and QuantizeLinear, in order.
    """

    name: str
    op: str
    composite: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    constants: tuple[str, ...]
    node: NodeProto
    inner: tuple["Operation", ...] = field(default=())
    input_quantization: tuple[Quantization | None, ...] = ()
    output_quantization: tuple[Quantization | None, ...] = ()
    output_limits: tuple[tuple[int, int] | None, ...] = ()
    fused: tuple["Operation", ...] = ()
    find_type: Callable[[str], TensorType | None] = field(default=_find_no_type, repr=False)

    @property
    def input_types(self) -> tuple[TensorType | None, ...]:
        """The type of each of `inputs`, None where it is not known or the input is omitted."""
        return tuple(map(self.find_type, self.inputs))

    @property
    def output_types(self) -> tuple[TensorType | None, ...]:
        """The type of each of `outputs`, None where it is not known or the output is omitted."""
        return tuple(map(self.find_type, self.outputs))


def read_operations(
    model: ModelProto,
    domain: str,
    find_type: Callable[[str], TensorType | None],
    inputs: Sequence[TensorContract] = (),
    outputs: Sequence[TensorContract] = (),
) -> tuple[Operation, ...]:
    """Return the operations of a region's model, in order of execution.

    `domain` is that of the target's composites, `find_type` gives the types of tensors. byoc's own
    conversions of layout and float type are left out: the nodes between `name` and `inner` of the
    contracts of `inputs` and `outputs`.
    """
    reader = _OperationReader(GraphIndex.of_model(model), domain, find_type)
    skipped = set(find_conversions(reader.index, inputs, outputs))
    return tuple(reader.operation(node) for i, node in enumerate(reader.index.nodes) if i not in skipped)


def find_conversions(
    index: GraphIndex, inputs: Sequence[TensorContract], outputs: Sequence[TensorContract]
) -> Iterator[int]:
    """Yield the numbers of the nodes between `name` and `inner` of the contracts."""
    for contract in inputs:
        name = contract.name
        while name != contract.inner:
            readers = [i for i in index.consumers.get(name, ()) if is_conversion(index.nodes[i])]
            if len(readers) != 1:
                break
            yield readers[0]
            name = index.nodes[readers[0]].output[0]
    for contract in outputs:
        name = contract.name
        while name != contract.inner and name in index.producers:
            number = index.producers[name]
            if not is_conversion(index.nodes[number]):
                break
            yield number
            name = index.nodes[number].input[0]


@dataclass(frozen=True)
class _OperationReader:
    """Decodes the nodes of one region's model."""

    index: GraphIndex
    domain: str
    find_type: Callable[[str], TensorType | None]

    def operation(self, node: NodeProto) -> Operation:
        """Return a node of the model as an operation."""
        function = find_composite(self.index.proto, self.domain, node)
        inner = () if function is None else tuple(map(self._decode, instantiate_body(function, node)))
        composite = "" if function is None else get_metadata(node, COMPOSITE_KEY) or node.op_type
        return self._decode(node, composite, inner)

    def _decode(
        self, node: NodeProto, composite: str = "", inner: tuple[Operation, ...] = ()
    ) -> Operation:
        attributes = self.index.get_attributes(node)
        return Operation(
            name=get_node_name(node),
            op=node.op_type,
            composite=composite,
            domain="" if node.domain == "ai.onnx" else node.domain,
            inputs=tuple(node.input),
            outputs=tuple(node.output),
            attributes=attributes,
            constants=tuple(
                name for name in dict.fromkeys(node.input) if name in self.index.initializers
            ),
            node=node,
            inner=inner,
            find_type=self.find_type,
        )


def find_composite(model: ModelProto, domain: str, node: NodeProto) -> FunctionProto | None:
    """Return the function of a node that calls a composite, None for any other node."""
    if node.domain != domain:
        return None
    return next((f for f in model.functions if (f.domain, f.name) == (node.domain, node.op_type)), None)


def instantiate_body(function: FunctionProto, call: NodeProto) -> Iterator[NodeProto]:
    """Yield the nodes of a composite's function, instantiated for one call."""
    names = dict(zip(function.input, [*call.input, *[""] * len(function.input)], strict=False))
    read = {name for node in function.node for name in node.input}
    for inner, outer in zip(function.output, call.output, strict=False):
        if outer or inner not in read:  # what is read inside has a name, though the call leaves it out
            names[inner] = outer
    names[""] = ""
    prefix = next(filter(None, call.output), call.op_type)
    for node in function.node:
        result = resolve_attributes(node, call)
        for name in node.output:  # inner tensors, distinct from those of other calls
            names.setdefault(name, f"{prefix}/{name}")
        result.input[:] = [names.get(name, name) for name in node.input]
        result.output[:] = [names[name] for name in node.output]
        result.name = f"{call.name or prefix}/{get_node_name(node)}"
        yield result


# Operations of a region in quantized form: DequantizeLinear, operator, QuantizeLinear as one
# operation.
#
# A DequantizeLinear is part of each operation that reads its output, and a QuantizeLinear is part
# of the operation that makes its input, together with the Relus and Clips between the two:
# quantization keeps the order of numbers, so a clamp of real values is a clamp of the stored
# integers.

ConstantReader = Callable[[str], NDArray[Any] | None]
"""Gives the value of a constant by name, None for a tensor that is computed."""


def quantize_operations(
    operations: Sequence[Operation], outputs: Iterable[str], read_constant: ConstantReader
) -> tuple[Operation, ...]:
    """Return operations with those of quantization made part of the others.

    `outputs` are the tensors that are read elsewhere, which keep the operations that make them.
    """
    return _OperationGrouper(operations, frozenset(outputs), read_constant).group()


@dataclass
class _Tail:
    """The operations behind an output that join its operation: clamps, then a QuantizeLinear."""

    clamps: tuple[Operation, ...]
    quantize: Operation
    quantization: Quantization
    limits: tuple[int, int] | None


@dataclass
class _OperationGrouper:
    operations: Sequence[Operation]
    outputs: frozenset[str]
    read_constant: ConstantReader
    tails: dict[str, _Tail] = field(default_factory=dict)  # by the output that the tail begins at

    def __post_init__(self) -> None:
        self.makers = {name: each for each in self.operations for name in each.outputs if name}
        self.captured = frozenset(
            chain.from_iterable(list_node_captures(o.node) for o in self.operations)
        )
        self.readers = Counter(name for each in self.operations for name in each.inputs)
        self.dequantized = self._read_all("DequantizeLinear")
        self.quantized = self._read_all("QuantizeLinear")

    def group(self) -> tuple[Operation, ...]:
        """Return the operations in their order, each at the place of its operator."""
        for operation in self.operations:
            if operation.outputs[0] in self.quantized:
                self._add_tail(operation)
        followers = {
            each.outputs[0] for tail in self.tails.values() for each in (*tail.clamps, tail.quantize)
        }
        return tuple(
            self._form(operation)
            for operation in self.operations
            if operation.outputs[0] not in followers and not self._is_absorbed(operation)
        )

    def _is_absorbed(self, operation: Operation) -> bool:
        """Whether an operation is a DequantizeLinear that all its readers contain."""
        name = operation.outputs[0]
        return name in self.dequantized and not self._is_needed(name)

    def _is_needed(self, name: str) -> bool:
        """Whether a tensor is read other than as an input of an operation."""
        return name in self.outputs or name in self.captured

    def _form(self, operation: Operation) -> Operation:
        name = operation.outputs[0]
        if name in self.dequantized:
            return replace(
                operation,
                inputs=operation.inputs[:1],
                constants=self._list_constants(operation.inputs[:1], operation),
                input_quantization=(self.dequantized[name],),
                output_quantization=(None,),
                output_limits=(None,),
            )
        given = operation.inputs[:1] if name in self.quantized else operation.inputs
        sources = [self.makers[name] if name in self.dequantized else None for name in given]
        inputs = tuple(
            name if source is None else source.inputs[0]
            for name, source in zip(given, sources, strict=True)
        )
        tails = [self.tails.get(name) for name in operation.outputs]
        formed = replace(
            operation,
            inputs=inputs,
            outputs=tuple(
                name if tail is None else tail.quantize.outputs[0]
                for name, tail in zip(operation.outputs, tails, strict=True)
            ),
            constants=self._list_constants(inputs, operation, *filter(None, sources)),
            input_quantization=tuple(self.dequantized.get(name) for name in given),
            output_quantization=(self.quantized[name],)
            if name in self.quantized
            else tuple(None if tail is None else tail.quantization for tail in tails),
            output_limits=tuple(None if tail is None else tail.limits for tail in tails),
            fused=tuple(each for tail in tails if tail for each in (*tail.clamps, tail.quantize)),
        )
        if name in self.quantized:
            limits = self.quantized[name]
            return replace(formed, output_limits=(limits.limits if limits.is_integer else None,))
        return self._form_composite(operation, formed, sources) if operation.inner else formed

    def _form_composite(
        self, operation: Operation, formed: Operation, sources: Sequence[Operation | None]
    ) -> Operation:
        """Return a composite's operation with what is inside in quantized form, too."""
        around = [each for each in dict.fromkeys(sources) if each is not None]
        inside = [*around, *operation.inner, *formed.fused]
        inner = quantize_operations(inside, filter(None, formed.outputs), self.read_constant)
        limits = {
            name: limit
            for each in inner
            for name, limit in zip(each.outputs, each.output_limits, strict=False)
        }
        return replace(
            formed,
            inner=inner,
            output_limits=tuple(
                limits.get(name, limit)
                for name, limit in zip(formed.outputs, formed.output_limits, strict=True)
            ),
        )

    def _list_constants(self, names: Sequence[str], *sources: Operation) -> tuple[str, ...]:
        """Return the names that are constants of the operations that read them."""
        constants = {name for each in sources for name in each.constants}
        return tuple(name for name in dict.fromkeys(names) if name in constants)

    def _add_tail(self, quantize: Operation) -> None:
        """Make a QuantizeLinear, and the clamps before it, part of the operation that they follow."""
        quantization = self.quantized[quantize.outputs[0]]
        clamps: list[Operation] = []
        name = quantize.inputs[0]
        maker = self._find_maker(name)
        if maker is None:
            return
        while self._is_clamp(maker, quantization) and (source := self._find_maker(maker.inputs[0])):
            clamps.insert(0, maker)
            maker = source
            name = clamps[0].inputs[0]
        every = [maker, *clamps] if self._is_clamp(maker, quantization) else clamps
        self.tails[name] = _Tail(
            tuple(clamps), quantize, quantization, self._find_limits(every, quantization)
        )

    def _find_maker(self, name: str) -> Operation | None:
        """Return the operation whose output `name` has one reader, which may become part of it."""
        maker = self.makers.get(name)
        if maker is None or self.readers[name] != 1 or self._is_needed(name):
            return None
        is_quantization = maker.outputs[0] in self.dequantized or maker.outputs[0] in self.quantized
        return None if is_quantization else maker

    def _is_clamp(self, operation: Operation, quantization: Quantization) -> bool:
        """Whether an operation is the same as a clamp of integers that are quantized thus."""
        if operation.op not in CLAMP_OPERATORS or operation.domain or not quantization.is_integer:
            return False
        if not quantization.is_per_tensor or not 0 < quantization.scale < np.inf:
            return False
        bounds = [self.read_constant(name) for name in operation.inputs[1:] if name]
        return all(
            bound is not None and bound.size == 1 and not np.isnan(bound).any() for bound in bounds
        )

    def _find_limits(
        self, clamps: Sequence[Operation], quantization: Quantization
    ) -> tuple[int, int] | None:
        """Return the least and greatest stored integer behind some clamps, None for stored floats."""
        if not quantization.is_integer:
            return None
        low, high = quantization.limits
        for clamp in clamps:
            least, most = (int(quantization.quantize(each)) for each in self._read_bounds(clamp))
            low, high = min(max(low, least), most), min(max(high, least), most)
        return low, high

    def _read_bounds(self, clamp: Operation) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the least and greatest real value of a Relu or Clip, rank 0."""
        low, high = (0.0, np.inf) if clamp.op == "Relu" else (-np.inf, np.inf)
        stated = (clamp.attributes.get("min", low), clamp.attributes.get("max", high))
        names = (*clamp.inputs[1:], "", "")[:2]
        values = (
            self.read_constant(name) if name else np.array(default, np.float32)
            for name, default in zip(names, stated, strict=True)
        )
        least, most = (np.reshape(value, ()) for value in values if value is not None)
        return least, most

    def _read_all(self, op: str) -> Mapping[str, Quantization]:
        """Return the quantization of each operation of one operator, by its output."""
        found = (
            (each.outputs[0], self._read_quantization(each))
            for each in self.operations
            if each.op == op and not each.domain
        )
        return {name: quantization for name, quantization in found if quantization is not None}

    def _read_quantization(self, operation: Operation) -> Quantization | None:
        """Return the quantization of a DequantizeLinear or QuantizeLinear.

        None where scale or zero point are computed, or an attribute changes the arithmetic.
        """
        scale = self.read_constant(operation.inputs[1])
        attributes = operation.attributes
        if scale is None or attributes.get("precision") or not attributes.get("saturate", 1):
            return None
        is_dequantize = operation.op == "DequantizeLinear"
        stated = DTYPES.get(attributes.get("output_dtype") or 0)
        if is_dequantize and stated not in {None, scale.dtype.name}:
            return None
        name = (*operation.inputs[2:], "")[0]
        point = self.read_constant(name) if name else None
        if name and point is None:
            return None
        if point is None:
            kind = operation.input_types[0] if is_dequantize else operation.output_types[0]
            dtype = kind.dtype if kind is not None else None if is_dequantize else stated or "uint8"
            if dtype is None:
                return None
            point = np.zeros(scale.shape, to_numpy_dtype(dtype))
        if scale.size == 1 and not attributes.get("block_size"):
            return Quantization(scale.reshape(()), point.reshape(()))
        return Quantization(
            scale, point, self._find_axis(operation, scale), attributes.get("block_size") or 0
        )

    def _find_axis(self, operation: Operation, scale: NDArray[Any]) -> int:
        """Return the axis of the scales, counted from the front where the rank is known."""
        axis = int(operation.attributes.get("axis", 1))
        kind = operation.input_types[0]
        rank = scale.ndim if scale.ndim > 1 else len(kind.shape) if kind and kind.shape else 0
        return axis + rank if axis < 0 else axis
