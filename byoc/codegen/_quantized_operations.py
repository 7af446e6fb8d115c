"""Operations of a region in quantized form: DequantizeLinear, operator, QuantizeLinear as one operation.

A DequantizeLinear is part of each operation that reads its output, and a QuantizeLinear is part of the
operation that makes its input, together with the Relus and Clips between the two: quantization keeps the
order of numbers, so a clamp of real values is a clamp of the stored integers.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.codegen._operations import Operation
from byoc.codegen._quantization import Quantization
from byoc.model import CLAMP_OPERATORS, DTYPES, list_node_captures, to_numpy_dtype

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
