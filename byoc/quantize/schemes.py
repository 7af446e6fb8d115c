"""Choice of scales for each tensor at the boundary of units, and for each constant that they read."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import DisjointSet

from byoc.graph.attributes import written
from byoc.graph.index import GraphIndex
from byoc.graph.unshare import is_float
from byoc.graph.walk import describe, is_onnx
from byoc.quantize.classes import (
    classes_of,
    form_of,
    is_alike,
    params_given,
    params_of_class,
)
from byoc.quantize.numbers import Floats, Form, Params, extremes, fits, params_of, widened
from byoc.quantize.operators import OPERANDS, WEIGHTED, channels
from byoc.quantize.ranges import Given, Range, Ranges
from byoc.quantize.units import Candidate
from byoc.quantize.values import value_of
from byoc.quantize.wanted import Wanted


@dataclass(frozen=True, eq=False)
class Constant:
    """A constant to be quantized, at the node and input that read it; `is_bias` for an int32 bias.

    A bias's scale has shape `[]` or `[C]`, and its values count along `params.axis`.
    """

    node: int
    position: int
    name: str
    params: Params
    is_bias: bool = False


@dataclass(frozen=True, eq=False)
class Schemes:
    """The quantization of each boundary tensor and constant of units, and reasons for refused units."""

    activations: Mapping[str, Params]
    constants: Sequence[Constant]
    refused: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Store:
    """The constants of a model, with a cache of their extremes and quantizations."""

    index: GraphIndex
    folder: Path | None
    _extremes: dict[tuple[str, int | None], Any] = field(default_factory=dict)
    _params: dict[tuple[str, int | None, Form], Params | None] = field(default_factory=dict)

    def value(self, name: str) -> NDArray[Any]:
        """Return the value of a constant, which is read anew each time."""
        return value_of(self.index, name, self.folder)

    def extremes(self, name: str, axis: int | None = None) -> Any:
        """Return the least and the greatest value of a constant, or of each index of an axis."""
        key = name, axis
        if key not in self._extremes:
            self._extremes[key] = extremes(self.value(name), axis)
        return self._extremes[key]

    def params(self, name: str, axis: int | None, form: Form) -> Params | None:
        """Return the quantization of a constant; the same object for equal arguments."""
        key = name, axis, form
        if key not in self._params:
            low, high = self.extremes(name, axis)
            self._params[key] = params_of(low, high, form, axis)
        return self._params[key]


def schemes_of(store: Store, units: Sequence[Candidate], ranges: Ranges, dtype: str | None) -> Schemes:
    """Choose the quantization of some units, all of whose tensors have a range.

    `dtype` is that of activations, by default the first that the target has.
    """
    return _Deciding(store, units, ranges, dtype).decide()


@dataclass(eq=False)
class _Deciding:
    store: Store
    units: Sequence[Candidate]
    ranges: Ranges
    dtype: str | None
    activations: dict[str, Params] = field(default_factory=dict)
    constants: list[Constant] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    def decide(self) -> Schemes:
        classes = classes_of(self.store.index, self.units)
        self._activations(classes)
        for unit in self.units:
            for number in unit.unit.nodes:
                reason = self._constants_of(unit, number)
                if reason:
                    self.refused[unit.name] = reason
        return Schemes(self.activations, self.constants, self.refused)

    def _activations(self, classes: "DisjointSet[str]") -> None:
        requirements: dict[str, list[Wanted]] = {}
        tensor_type: dict[str, dict[str, Range | Given]] = {}
        of_unit: dict[str, list[str]] = {}
        for unit, name, requirement in self._uses():
            classes.add(name)
            root = classes[name]
            requirements.setdefault(root, []).append(requirement)
            tensor_type.setdefault(root, {})[name] = self._known(name)
            of_unit.setdefault(root, []).append(unit.name)
        for root, names in tensor_type.items():
            params, reason = params_of_class(names, form_of(requirements[root], self.dtype))
            if params is None:
                self.refused.update(dict.fromkeys(of_unit[root], reason))
                continue
            for name in names:
                self.activations[name] = self._with_axis(params, name)

    def _uses(self) -> Iterator[tuple[Candidate, str, Wanted]]:
        """Yield the boundary tensors of units, and constants that share their scale, use by use."""
        index = self.store.index
        for unit in self.units:
            boundary = {*unit.reads, *unit.makes}
            for number in unit.unit.nodes:
                node = index.nodes[number]
                alike = is_alike(node, unit)
                for out, names in ((False, node.input), (True, node.output)):
                    for position, name in enumerate(names):
                        constant = alike and name and index.is_constant(name) and is_float(index, name)
                        if name in boundary or constant:
                            yield (
                                unit,
                                name,
                                unit.wishes.of(index, node, position, "activations", out=out),
                            )

    def _known(self, name: str) -> Range | Given:
        entry = self.ranges.tensors.get(name)
        if entry is not None:
            return entry
        low, high = self.store.extremes(name)
        return Range(float(low), float(high))

    def _with_axis(self, params: Params, name: str) -> Params:
        tensor_type = self.store.index.types.get(name)
        shape = tensor_type.shape if tensor_type is not None else None
        if params.axis is None or params.axis >= 0 or shape is None:
            return params
        return replace(params, axis=params.axis % len(shape))

    def _constants_of(self, unit: Candidate, number: int) -> str:
        """Add the constants of a node; return the reason if the unit cannot be quantized, else empty."""
        index = self.store.index
        node = index.nodes[number]
        if not is_onnx(node) or node.op_type not in OPERANDS:
            return ""
        added: list[Constant] = []
        for position, name in enumerate(node.input):
            if not name or not index.is_constant(name) or not is_float(index, name):
                continue
            if is_alike(node, unit):
                params: Params | None = self.activations.get(name)
            elif position == 2 and node.op_type in WEIGHTED:
                reason = self._bias(unit, number, added)
                if reason:
                    return reason
                continue
            else:
                params = self._weights(unit, number, position)
            if params is None:
                return f"'{name}' has negative values, and its data type with zero point 0 has none"
            added.append(Constant(number, position, name, params))
        self.constants += added
        return ""

    def _weights(self, unit: Candidate, number: int, position: int) -> Params | None:
        index = self.store.index
        node = index.nodes[number]
        name = node.input[position]
        given = self.ranges.tensors.get(name)
        if isinstance(given, Given):
            return self._with_axis(params_given(given), name)
        requirement = unit.wishes.of(index, node, position, "weights", out=False)
        found = channels(index, node) if position == 1 and requirement.per_channel else None
        form = Form(requirement.dtypes[0], requirement.symmetric, requirement.power_of_two)
        return self.store.params(name, found[0] if found else None, form)

    def _bias(self, unit: Candidate, number: int, added: list[Constant]) -> str:
        """Add a bias, widening the weights' scales if need be; return why it is impossible, or empty."""
        index = self.store.index
        node = index.nodes[number]
        name = node.input[2]
        attributes = written(node)
        if attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0:
            return f"{describe(node)} has a bias, and its alpha or beta is not 1"
        values = self.store.value(name)
        if values.size not in {1, *values.shape[-1:]}:
            return f"the bias '{name}' is not one number for each channel"
        source = self._scale_of(unit, number)
        weights = next((one for one in added if one.position == 1), None)
        params = weights.params if weights else self.activations.get(node.input[1])
        if source is None or params is None or source.axis is not None:
            return f"the bias '{name}' has no scale: '{node.input[0]}' has none for all of it"
        bias = values.astype(np.float32).reshape(-1)
        if weights is not None and not isinstance(self.ranges.tensors.get(weights.name), Given):
            requirement = unit.wishes.of(index, node, 1, "weights", out=False)
            groups = (channels(index, node) or (0, 1))[1] if node.op_type == "ConvTranspose" else 1
            each = bias.reshape(groups if len(bias) > 1 else 1, -1)
            wide = widened(params, np.abs(each).max(axis=0), source.scale, requirement.power_of_two)
            if wide is not params:
                added[added.index(weights)] = Constant(number, 1, weights.name, wide)
                params = wide
        scale = self._product(source, params, number, len(bias))
        if not fits(bias, scale):
            return f"the bias '{name}' is too large for an int32 in steps of the scales given"
        axis = None if scale.ndim == 0 else max(values.ndim - 1, 0)
        points = np.zeros(scale.shape, np.int64)
        added.append(Constant(number, 2, name, Params(scale, points, "int32", axis), is_bias=True))
        return ""

    def _scale_of(self, unit: Candidate, number: int) -> Params | None:
        """Return the quantization of a node's first input; inside a unit, the one of its range."""
        index = self.store.index
        name = index.nodes[number].input[0]
        if name in unit.reads:
            return self.activations.get(name)
        entry = self.ranges.tensors.get(name)
        if isinstance(entry, Given):
            return params_given(entry)
        if entry is None:
            return None
        requirement = unit.wishes.of(index, index.nodes[number], 0, "activations", out=False)
        return params_of(entry.low, entry.high, form_of([requirement], self.dtype))

    def _product(self, source: Params, weights: Params, number: int, count: int) -> Floats:
        """Return the scale of a bias: activation times weights, in float32, for each channel."""
        scale = np.asarray(source.scale * weights.scale, np.float32)
        if scale.ndim == 0:
            return scale
        found = channels(self.store.index, self.store.index.nodes[number])
        groups = found[1] if found else 1
        return np.tile(scale, groups) if count == groups * len(scale) else scale
