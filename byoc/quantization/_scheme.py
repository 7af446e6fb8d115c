"""Choice of scales for each tensor at the boundary of units, and for each constant that they read."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from byoc.errors import YES, Verdict, refuse
from byoc.model import GraphIndex, describe_node, get_stated_attributes, is_onnx, may_be_float
from byoc.quantization._calibrators import GivenQuantization, Range, Ranges
from byoc.quantization._candidates import (
    QuantizationCandidate,
    TensorRequirement,
    combine_requirements,
    compute_channel_params,
    compute_class_params,
    convert_given,
    find_scale_classes,
    shares_scale,
)
from byoc.quantization._precision import (
    OPERANDS,
    WEIGHTED,
    Float32Array,
    QuantizationParams,
    ScaleRequirement,
    compute_params,
    find_channels,
    find_extremes,
    find_largest_sum,
    fits_int32,
    is_depthwise,
    read_constant,
    widen_scales,
)


@dataclass(frozen=True, eq=False)
class QuantizedConstant:
    """A constant to be quantized, at the node and input that read it; `is_bias` for an int32 bias.

    A bias's scale has shape `[]` or `[C]`, and its values count along `params.axis`.
    """

    node: int
    position: int
    name: str
    params: QuantizationParams
    is_bias: bool = False


@dataclass(frozen=True, eq=False)
class QuantizationScheme:
    """The quantization of each boundary tensor and constant of units, and reasons for refused units."""

    activations: Mapping[str, QuantizationParams]
    constants: Sequence[QuantizedConstant]
    refused: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class ConstantStore:
    """The constants of a model, with a cache of their extremes and quantizations."""

    index: GraphIndex
    folder: Path | None
    shifts: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """What is taken from biases, `[C]`, by the output of the node that reads one."""
    weights: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """What is quantized in the place of weights, by their names; scales are those of the weights."""
    _extremes: dict[tuple[str, int | None], Any] = field(default_factory=dict)
    _params: dict[tuple[str, int | None, ScaleRequirement], QuantizationParams | None] = field(
        default_factory=dict
    )

    def read_value(self, name: str) -> NDArray[Any]:
        """Return the value of a constant, which is read anew each time."""
        return read_constant(self.index, name, self.folder)

    def read_weights(self, name: str) -> NDArray[Any]:
        """Return the value of a constant as it is to be quantized."""
        return self.weights[name] if name in self.weights else self.read_value(name)

    def read_bias(self, node: NodeProto, name: str) -> NDArray[Any]:
        """Return the value of the bias that a node reads, less what is to be taken from it."""
        value = self.read_value(name)
        shift = self.shifts.get(node.output[0])
        if shift is None:
            return value
        shape = value.shape if value.size == shift.size else shift.shape
        return np.asarray(np.broadcast_to(value.reshape(-1), shift.shape) - shift, np.float32).reshape(
            shape
        )

    def find_extremes(self, name: str, axis: int | None = None) -> Any:
        """Return the least and the greatest value of a constant, or of each index of an axis."""
        key = name, axis
        if key not in self._extremes:
            self._extremes[key] = find_extremes(self.read_value(name), axis)
        return self._extremes[key]

    def find_params(
        self, name: str, axis: int | None, form: ScaleRequirement
    ) -> QuantizationParams | None:
        """Return the quantization of a constant; the same object for equal arguments."""
        key = name, axis, form
        if key not in self._params:
            low, high = self.find_extremes(name, axis)
            self._params[key] = compute_params(low, high, form, axis)
        return self._params[key]


def choose_scheme(
    store: ConstantStore, units: Sequence[QuantizationCandidate], ranges: Ranges, dtype: str | None
) -> QuantizationScheme:
    """Choose the quantization of some units, all of whose tensors have a range.

    `dtype` is that of activations, by default the first that the target has.
    """
    return _SchemeBuilder(store, units, ranges, dtype).build()


@dataclass(eq=False)
class _SchemeBuilder:
    store: ConstantStore
    units: Sequence[QuantizationCandidate]
    ranges: Ranges
    dtype: str | None
    activations: dict[str, QuantizationParams] = field(default_factory=dict)
    constants: list[QuantizedConstant] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    def build(self) -> QuantizationScheme:
        self._choose_activations()
        for unit in self.units:
            for number in unit.unit.nodes:
                verdict = self._add_constants(unit, number)
                if not verdict:
                    self.refused[unit.name] = str(verdict)
        return QuantizationScheme(self.activations, self.constants, self.refused)

    def _choose_activations(self) -> None:
        classes = find_scale_classes(self.store.index, self.units)
        uses_of: dict[str, list[tuple[QuantizationCandidate, str, TensorRequirement]]] = {}
        for unit, name, requirement in self._find_uses():
            uses_of.setdefault(classes.get(name, name), []).append((unit, name, requirement))
        for uses in uses_of.values():
            entries = {name: self._find_range(name) for _, name, _ in uses}
            requirements = [requirement for *_, requirement in uses]
            form = combine_requirements(requirements, self.dtype)
            params = self._choose_params(entries, requirements, form)
            if params is None:
                reason = f"'{uses[0][1]}' has negative values, which {form.dtype} with zero point 0"
                units = (unit.name for unit, *_ in uses)
                self.refused.update(dict.fromkeys(units, f"{reason} cannot represent"))
                continue
            for name in entries:
                self.activations[name] = self._normalize_axis(params, name)

    def _choose_params(
        self,
        entries: Mapping[str, Range | GivenQuantization],
        requirements: Sequence[TensorRequirement],
        form: ScaleRequirement,
    ) -> QuantizationParams | None:
        """Return the quantization of a class: a scale for each channel where all uses allow that."""
        name, *others = entries
        channels = self.ranges.channels.get(name)
        if channels is None or others or not all(each.channels for each in requirements):
            return compute_class_params(entries, form)
        return compute_channel_params(channels, form)

    def _find_uses(self) -> Iterator[tuple[QuantizationCandidate, str, TensorRequirement]]:
        """Yield the boundary tensors of units, and constants that share their scale, use by use."""
        index = self.store.index
        for unit in self.units:
            boundary = {*unit.reads, *unit.makes}
            for number in unit.unit.nodes:
                node = index.nodes[number]
                alike = shares_scale(node, unit)
                uses = [(False, *use) for use in enumerate(node.input)]
                uses += [(True, *use) for use in enumerate(node.output)]
                for out, position, name in uses:
                    constant = alike and name and index.is_constant(name) and may_be_float(index, name)
                    if name in boundary or constant:
                        requirement = unit.requirements.find_requirement(
                            index, node, position, "activations", out=out
                        )
                        yield unit, name, requirement

    def _find_range(self, name: str) -> Range | GivenQuantization:
        entry = self.ranges.tensors.get(name)
        if entry is not None:
            return entry
        low, high = self.store.find_extremes(name)
        return Range(float(low), float(high))

    def _normalize_axis(self, params: QuantizationParams, name: str) -> QuantizationParams:
        rank = self.store.index.get_rank(name)
        if params.axis is None or params.axis >= 0 or rank is None:
            return params
        return replace(params, axis=params.axis % rank)

    def _add_constants(self, unit: QuantizationCandidate, number: int) -> Verdict:
        """Add the constants of a node, unless the unit cannot be quantized."""
        index = self.store.index
        node = index.nodes[number]
        if not is_onnx(node) or node.op_type not in OPERANDS:
            return YES
        added: list[QuantizedConstant] = []
        for position, name in enumerate(node.input):
            if not name or not index.is_constant(name) or not may_be_float(index, name):
                continue
            if shares_scale(node, unit):
                params: QuantizationParams | None = self.activations.get(name)
            elif position == 2 and node.op_type in WEIGHTED:
                verdict = self._add_bias(unit, number, added)
                if not verdict:
                    return verdict
                continue
            else:
                params = self._choose_weights(unit, number, position)
            if params is None:
                return refuse(
                    f"'{name}' has negative values, and its data type with zero point 0 has none"
                )
            added.append(QuantizedConstant(number, position, name, params))
        self.constants += added
        return YES

    def _choose_weights(
        self, unit: QuantizationCandidate, number: int, position: int
    ) -> QuantizationParams | None:
        index = self.store.index
        node = index.nodes[number]
        name = node.input[position]
        given = self.ranges.tensors.get(name)
        if isinstance(given, GivenQuantization):
            return self._normalize_axis(convert_given(given), name)
        requirement = unit.requirements.find_requirement(index, node, position, "weights", out=False)
        found = find_channels(index, node) if position == 1 and requirement.per_channel else None
        form = ScaleRequirement(requirement.dtypes[0], requirement.symmetric, requirement.power_of_two)
        return self.store.find_params(name, found[0] if found else None, form)

    def _add_bias(
        self, unit: QuantizationCandidate, number: int, added: list[QuantizedConstant]
    ) -> Verdict:
        """Add a bias if that is possible, widening the weights' scales if need be."""
        index = self.store.index
        node = index.nodes[number]
        name = node.input[2]
        attributes = get_stated_attributes(node)
        if attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0:
            return refuse(f"{describe_node(node)} has a bias, and its alpha or beta is not 1")
        values = self.store.read_bias(node, name)
        if values.size not in {1, *values.shape[-1:]}:
            return refuse(f"the bias '{name}' is not one number for each channel")
        source = self._find_input_params(unit, number)
        weights = next((one for one in added if one.position == 1), None)
        params = weights.params if weights else self.activations.get(node.input[1])
        if source is None or params is None:
            return refuse(f"the bias '{name}' has no scale: '{node.input[0]}' has none")
        if source.axis is not None:
            if not is_depthwise(index, node):
                no_scale = f"the bias '{name}' has no scale"
                return refuse(f"{no_scale}: '{node.input[0]}' has none for all of it")
            count = self.store.read_value(node.input[1]).shape[0] // len(source.scale)
            source = replace(source, scale=np.repeat(source.scale, count))
        bias = values.astype(np.float32).reshape(-1)
        if weights and not isinstance(self.ranges.tensors.get(weights.name), GivenQuantization):
            requirement = unit.requirements.find_requirement(index, node, 1, "weights", out=False)
            groups = (find_channels(index, node) or (0, 1))[1] if node.op_type == "ConvTranspose" else 1
            each = bias.reshape(groups if len(bias) > 1 else 1, -1)
            count = self._count_products(number)
            products = find_largest_sum(count, source.dtype, params.dtype)
            most = np.abs(each).max(axis=0)
            wide = widen_scales(params, most, source.scale, requirement.power_of_two, products)
            if wide is not params:
                added[added.index(weights)] = QuantizedConstant(number, 1, weights.name, wide)
                params = wide
        scale = self._bias_scale(source, params, number, len(bias))
        if not fits_int32(bias, scale):
            return refuse(f"the bias '{name}' is too large for an int32 in steps of the scales given")
        axis = None if scale.ndim == 0 else max(values.ndim - 1, 0)
        params = QuantizationParams(scale, np.zeros(scale.shape, np.int64), "int32", axis)
        added.append(QuantizedConstant(number, 2, name, params, is_bias=True))
        return YES

    def _count_products(self, number: int) -> int:
        """Return the number of products that each result of a node with weights is the sum of."""
        node = self.store.index.nodes[number]
        axis, groups = find_channels(self.store.index, node) or (0, 1)
        shape = self.store.read_value(node.input[1]).shape
        channels = shape[axis] * (groups if node.op_type == "ConvTranspose" else 1)
        return int(prod(shape) // max(channels, 1))

    def _find_input_params(self, unit: QuantizationCandidate, number: int) -> QuantizationParams | None:
        """Return the quantization of a node's first input; inside a unit, the one of its range."""
        index = self.store.index
        name = index.nodes[number].input[0]
        if name in unit.reads:
            return self.activations.get(name)
        entry = self.ranges.tensors.get(name)
        if isinstance(entry, GivenQuantization):
            return convert_given(entry)
        if entry is None:
            return None
        requirement = unit.requirements.find_requirement(
            index, index.nodes[number], 0, "activations", out=False
        )
        return compute_params(entry.low, entry.high, combine_requirements([requirement], self.dtype))

    def _bias_scale(
        self, source: QuantizationParams, weights: QuantizationParams, number: int, count: int
    ) -> Float32Array:
        """Return the scale of a bias: activation times weights, in float32, for each channel."""
        scale = np.asarray(source.scale * weights.scale, np.float32)
        if scale.ndim == 0:
            return scale
        found = find_channels(self.store.index, self.store.index.nodes[number])
        groups = found[1] if found else 1
        return np.tile(scale, groups) if count == groups * len(scale) else scale
