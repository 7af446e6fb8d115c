"""Quantized layers of a region: compiled once more as outputs, and each measured alone.

A region shows only what crosses its boundary, and what its layers add up to there says little of each.
The probe shows the integers between the layers as the codegen computes them. Plain onnxruntime then
computes each layer on the integers that the codegen computed before it, so that errors do not add up.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, ValueInfoProto, helper

from byoc._dataclasses import dataclass, field
from byoc.model import (
    VIEW_OPERATORS,
    GraphIndex,
    NameAllocator,
    copy_without,
    find_constant_value,
    get_metadata,
    get_node_name,
    get_stated_attributes,
    inline_functions,
    is_onnx,
    is_quantize,
    replace_names,
)
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.verification._noise import NoiseGauge
from byoc.verification._quantization_noise import Thresholds, quantized_tensors_of
from byoc.verification._region_cutter import RegionCutter, RegionPart
from byoc.verification._unit_noise import NEAR_TIE, OutputError
from byoc.verification._verification_result import LayerError

Array = NDArray[Any]
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class QuantizedLayer:
    """The node that makes a quantized tensor of a region: its name, and its operator or composite.

    The operator of a QuantizeLinear is the one whose result it quantizes.
    """

    tensor: str
    name: str
    op: str


@dataclass(frozen=True, eq=False)
class LayerRun:
    """A tensor on one run: the codegen's, onnxruntime's, and what that rounded, None if not known.

    `real` is in units of the tensor, its zero point added, before it was rounded and clamped.
    """

    actual: Array
    expected: Array
    real: Array | None


@dataclass(frozen=True, eq=False)
class ComputedLayers:
    """The layers of a region on one run, and its outputs that are no quantized integers.

    `gauge` has what onnxruntime computes of the latter.
    """

    runs: Mapping[str, LayerRun]
    floats: Values
    gauge: NoiseGauge

    def compare_floats(self, thresholds: Thresholds) -> tuple[OutputError, ...]:
        """Return the errors of the outputs that are no quantized integers."""
        return self.gauge.compare(self.floats, thresholds)


@dataclass(frozen=True, eq=False)
class LayerProbe:
    """The quantized tensors of a region, and the models that show and compute them.

    `cutter` has the region and values that reach it. What makes a tensor of `left_out` is part of the
    layers that read it.
    """

    cutter: RegionCutter
    left_out: frozenset[str] = frozenset()
    _sessions: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def layers(self) -> tuple[QuantizedLayer, ...]:
        """The layers whose quantized tensors do not leave the region, in order, then those that do."""
        index = self.cutter.index
        quantized = quantized_tensors_of(self.cutter.region)
        inner: list[QuantizedLayer] = []
        last: list[QuantizedLayer] = []
        for number in self.cutter.operations:
            node = index.nodes[number]
            if is_onnx(node) and node.op_type in VIEW_OPERATORS:
                continue
            for name in filter(quantized.__contains__, node.output):
                if self.cutter.values[name].dtype.kind not in "iu" or name in self.left_out:
                    continue
                layer = self._describe_layer(number, name)
                (last if name in self._leaving else inner).append(layer)
        return (*inner, *last)

    @cached_property
    def exposed(self) -> tuple[str, ...]:
        """The quantized tensors that become outputs of the probe."""
        return tuple(layer.tensor for layer in self.layers if layer.tensor not in self._leaving)

    def list_operations(self, layer: QuantizedLayer) -> list[int]:
        """Return the operations of a layer: what computes its tensor from those of other layers."""
        index, operations = self.cutter.index, {*self.cutter.operations}
        ends = {each.tensor for each in self.layers} - {layer.tensor}
        found: set[int] = set()
        pending = [layer.tensor]
        while pending:
            number = index.producers.get(pending.pop())
            if number in operations - found:
                found.add(number)
                pending += [name for name in index.reads[number] if name not in ends]
        return sorted(found)

    def make_part(self) -> RegionPart:
        """Make the model of the probe, to be compiled in place of the region's."""
        part = self.cutter.make_part(self.cutter.operations, self.exposed)
        assert part is not None  # a region has outputs
        return part

    def read_outputs(self, part: RegionPart, made: Values) -> dict[str, Array]:
        """Return the tensors that a run of the probe made, by their names, as ONNX has them."""
        names = [value.name for value in part.model.graph.output]
        return {
            tensor: np.asarray(self.cutter.unpack(tensor, made[name]))
            for tensor, name in zip(part.made, names, strict=True)
        }

    def compute_layers(self, inputs: Values, shown: Mapping[str, Array]) -> "ComputedLayers":
        """Compute each layer and each output of the region on what was shown.

        `inputs` are those of the region, `shown` what `read_outputs` gave for them. Raises InputError
        when onnxruntime does not run the layers.
        """
        if "cut" not in self._sessions:
            with without_optimizations():
                self._sessions["cut"] = open_session(self._cut_model, self.cutter.region.path.parent)
        given = {**inputs, **{reader: shown[name] for name, reader in self._readers.items()}}
        made = run_session(self._sessions["cut"], given)
        tensors = {layer.tensor for layer in self.layers}
        runs = {
            name: LayerRun(actual, np.asarray(made[name]), self._find_real(name, {**inputs, **made}))
            for name, actual in shown.items()
            if name in tensors
        }
        floats = {name: actual for name, actual in shown.items() if name not in tensors}
        gauge = NoiseGauge(self._cut_model, self._folder, given, {name: made[name] for name in floats})
        return ComputedLayers(runs, floats, gauge)

    @cached_property
    def _leaving(self) -> frozenset[str]:
        """The tensors of the region that leave it, before conversions at the boundary."""
        whole = self.cutter.make_part(self.cutter.operations)
        return frozenset() if whole is None else frozenset(whole.made)

    def _describe_layer(self, number: int, tensor: str) -> QuantizedLayer:
        index = self.cutter.index
        node = index.nodes[number]
        if is_quantize(node):
            maker = index.producers.get(node.input[0])
            if maker is not None and maker in set(self.cutter.operations):
                node = index.nodes[maker]
        return QuantizedLayer(
            tensor, get_node_name(node), get_metadata(node, "byoc.composite") or node.op_type
        )

    @cached_property
    def _flat(self) -> ModelProto:
        return inline_functions(self.cutter.region.model)

    @cached_property
    def _index(self) -> GraphIndex:
        return GraphIndex(self._flat, {})

    @cached_property
    def _readers(self) -> dict[str, str]:
        """The input of the cut model that holds each quantized tensor that something reads."""
        names = NameAllocator(self._flat.graph)
        read = [each.tensor for each in self.layers if each.tensor in self._index.consumers]
        return {name: names.new_tensor(f"{name}_shown") for name in read}

    @cached_property
    def _cut_model(self) -> ModelProto:
        """The region with what reads its quantized tensors reading inputs instead."""
        result = copy_without(self._flat, "output", "value_info")
        for node in result.graph.node:
            replace_names(node.input, self._readers)
        for name, reader in self._readers.items():
            kind = helper.np_dtype_to_tensor_dtype(self.cutter.values[name].dtype)
            value = ValueInfoProto(name=reader)
            value.type.tensor_type.elem_type = kind
            result.graph.input.append(value)
        wanted = dict.fromkeys([*self.exposed, *sorted(self._leaving), *self._list_real_parts()])
        result.graph.output.extend(ValueInfoProto(name=name) for name in wanted)
        return result

    def _list_real_parts(self) -> Iterator[str]:
        """Yield the computed tensors that tell the real values before rounding."""
        for layer in self.layers:
            maker = self._find_rounding(layer.tensor)
            for name in () if maker is None else filter(None, maker.input):
                if name in self._index.producers and not self._index.is_constant(name):
                    yield name

    def _find_rounding(self, tensor: str) -> NodeProto | None:
        """Return the QuantizeLinear that makes a tensor, None where none does."""
        number = self._index.producers.get(tensor)
        node = None if number is None else self._index.nodes[number]
        return node if node is not None and is_quantize(node) else None

    def _find_real(self, tensor: str, values: Values) -> Array | None:
        """Return a tensor's real values in its units; None where they or the unit are not known.

        `values` are the tensors of one run, the region's inputs among them.
        """
        node = self._find_rounding(tensor)
        if node is None:
            return None
        found = [
            values[name] if name in values else find_constant_value(self._index, name, self._folder)
            for name in filter(None, node.input)
        ]
        if any(value is None for value in found):
            return None
        real, *rest = (np.asarray(value).astype(np.float64) for value in found)
        scale, zero = (rest[0], rest[1] if len(rest) > 1 else np.zeros(()))
        axis = get_stated_attributes(node).get("axis", 1)
        shape = [1] * real.ndim
        if scale.size > 1:
            if scale.ndim > 1 or real.shape[axis] != scale.size:
                return None  # scales of blocks
            shape[axis] = -1
        return np.asarray(real / scale.reshape(shape) + (zero.reshape(shape) if zero.ndim else zero))

    @property
    def _folder(self) -> Path:
        return self.cutter.region.path.parent


# The measurement of a quantized layer alone: its largest error, and what it is off by on average.
#
# A right machine rounds some results to the neighbouring integer, and up as often as down. So no
# result is more than one unit off, and no channel is off on average: a bias that is missing, a zero
# point or a scale that is another one moves all results of a channel to one side, however little.
# Results of one real value are rounded alike: the white of a page is one result, however many
# pixels it has. How far a mean may be off depends on the fractions that real values have: where all
# lie just below a half, as those of a pool over two pixels, an error of a hundredth of a unit moves
# every one of them.

_MEAN_SHARE = 1 / 8  # of a unit, that a mean may be off, and an error before rounding
_DEVIATIONS = 4.0  # of a mean of that many results
_LEAST_RESULTS = 16  # in the same step of a unit: of fewer no mean is judged
_EPSILON = float(np.finfo(np.float32).eps)
_STEPS = 16  # of a unit: real values in the same step count as one
_TABLE = 2**22  # steps of all channels that a table is made of


def measure_layer(layer: QuantizedLayer, runs: Sequence[LayerRun], units: float) -> LayerError:
    """Return the error of a layer over several runs; infinite where shapes or dtypes differ.

    `units` is the most that a result may be off.
    """
    if any(
        run.actual.shape != run.expected.shape or run.actual.dtype != run.expected.dtype for run in runs
    ):
        infinite = float("inf")
        return LayerError(layer.name, layer.op, layer.tensor, infinite, 1.0, 0.0, 0.0, "", units)
    results = [_compare_run(run) for run in runs]
    errors = [result.errors for result in results]
    largest = max((float(np.max(np.abs(error), initial=0.0)) for error in errors), default=0.0)
    count = sum(error.size for error in errors)
    differing = sum(int(np.count_nonzero(error)) for error in errors) / max(count, 1)
    mean, allowed, where = 0.0, _MEAN_SHARE, ""
    if differing:
        means = list(_list_means(results))
        if means:
            mean, allowed, where = max(means, key=lambda each: abs(each[0]) - each[1])
    return LayerError(
        layer.name, layer.op, layer.tensor, largest, differing, mean, allowed, where, units
    )


@dataclass(frozen=True, eq=False)
class _RealValues:
    """Real values before they were rounded, as arrays of the layer's shape.

    `steps` number them by sixteenths of a unit. `rises` and `falls` mark the results that an error of an
    eighth of a unit before rounding would move up, or down.
    """

    steps: NDArray[np.int64]
    rises: NDArray[np.bool_]
    falls: NDArray[np.bool_]

    def select(self, indices: Any) -> "_RealValues":
        """Return those at some indices."""
        return _RealValues(self.steps[indices], self.rises[indices], self.falls[indices])


@dataclass(frozen=True, eq=False)
class _Results:
    """The results of a layer on one run, arrays of its shape.

    `errors` are in units, `decided` marks those that rounding decides. `real` is None where the real
    values are not known.
    """

    errors: Array
    decided: NDArray[np.bool_]
    real: _RealValues | None = None

    def take_end(self, axis: int, index: int) -> "_Results":
        """Return the results at one index of an axis, which remains."""
        end: tuple[Any, ...] = (*[slice(None)] * axis, [index])
        real = None if self.real is None else self.real.select(end)
        return _Results(self.errors[end], self.decided[end], real)


def _compare_run(run: LayerRun) -> _Results:
    errors = run.actual.astype(np.float64) - run.expected.astype(np.float64)
    decided = _find_decided(run)
    real = run.real
    if real is None or real.shape != errors.shape or not np.isfinite(real).all():
        return _Results(errors, decided)
    nearest = np.rint(real)
    steps = np.floor(real * _STEPS).astype(np.int64)
    rises, falls = np.rint(real + _MEAN_SHARE) != nearest, np.rint(real - _MEAN_SHARE) != nearest
    return _Results(errors, decided, _RealValues(steps, rises, falls))


def _find_decided(run: LayerRun) -> NDArray[np.bool_]:
    """Mark the results that rounding decides: not clamped, and not halfway between two integers."""
    expected, actual = run.expected.astype(np.float64), run.actual.astype(np.float64)
    if not expected.size:
        return np.zeros(expected.shape, bool)
    ends = expected.min(), expected.max()
    decided = np.ones(expected.shape, bool)
    if ends[0] < ends[1]:
        for end in ends:
            decided &= (expected != end) | (actual != end)
    if run.real is not None and run.real.shape == expected.shape:
        near = np.maximum(NEAR_TIE, 4 * _EPSILON * np.abs(run.real))
        halfway = np.abs(np.abs(run.real - np.floor(run.real)) - 0.5) < near
        decided &= ~(halfway & (np.abs(actual - expected) <= 1))
    return decided


def _list_means(results: Sequence[_Results]) -> Iterator[tuple[float, float, str]]:
    """Yield mean errors: each mean, what is allowed, and where it is, empty for the whole tensor.

    They are those of the whole, of each channel, and of each channel at both ends of each axis of an
    image, which padding reaches.
    """
    for mean, allowed, _ in _compare_means(results, None):
        yield mean, allowed, ""
    shapes = [result.errors.shape for result in results]
    rank = len(shapes[0])
    if rank < 2 or any(len(shape) != rank for shape in shapes):
        return
    for axis in dict.fromkeys((1, rank - 1)):
        if len({shape[axis] for shape in shapes}) == 1:
            word = "channel" if axis == 1 or rank < 3 else "last index"
            for mean, allowed, index in _compare_means(results, axis):
                yield mean, allowed, f"{word} {index}"
    if len({shape[1] for shape in shapes}) > 1:
        return
    for axis in range(2, rank):
        for index, word in ((0, "first"), (-1, "last")):
            if all(shape[axis] > 2 for shape in shapes):
                ends = [result.take_end(axis, index) for result in results]
                for mean, allowed, channel in _compare_means(ends, 1):
                    yield mean, allowed, f"channel {channel}, {word} index of axis {axis},"


def _find_indices(shape: tuple[int, ...], axis: int | None) -> NDArray[np.int64]:
    """Return the index of each element along an axis; 0 without one."""
    if axis is None:
        return np.zeros(shape, np.int64)
    around = [1] * len(shape)
    around[axis] = -1
    return np.broadcast_to(np.arange(shape[axis]).reshape(around), shape)


def _compare_means(results: Sequence[_Results], axis: int | None) -> Iterator[tuple[float, float, int]]:
    """Yield the mean error at each index of an axis with enough results: mean, allowed, index."""
    indices = np.concatenate([_find_indices(each.errors.shape, axis)[each.decided] for each in results])
    if not indices.size:
        return
    errors = np.concatenate([each.errors[each.decided] for each in results])
    moved = [np.full(errors.shape, _MEAN_SHARE)] * 2
    real = [each.real.select(each.decided) for each in results if each.real is not None]
    if len(real) == len(results):
        steps = np.concatenate([each.steps for each in real])
        rises = np.concatenate([each.rises for each in real])
        falls = np.concatenate([each.falls for each in real])
        indices, (errors, *moved) = _average_steps(indices, steps, (errors, rises, falls))
    counts = np.bincount(indices)
    sums = [np.bincount(indices, each) for each in (errors, errors**2, *moved)]
    for index in np.flatnonzero(counts >= _LEAST_RESULTS):
        mean, square, rising, falling = (float(each[index] / counts[index]) for each in sums)
        deviation = np.sqrt(max(square - mean**2, 0.0) / counts[index])
        share = max(_MEAN_SHARE, rising if mean > 0 else falling)
        yield mean, float(share + _DEVIATIONS * deviation), int(index)


def _average_steps(
    channels: NDArray[np.int64], steps: NDArray[np.int64], values: Sequence[Array]
) -> tuple[NDArray[np.int64], list[Array]]:
    """Return the means of values in each step of a channel that has some, and the channel of each."""
    steps = steps - steps.min()
    width = int(steps.max()) + 1
    keys = channels * width + steps
    size = (int(channels.max()) + 1) * width
    if size > _TABLE:
        owners, keys = np.unique(keys, return_inverse=True)
    else:
        owners = np.arange(size)
    counts = np.bincount(keys, minlength=owners.size)
    filled = counts > 0
    means = [np.bincount(keys, each, minlength=owners.size)[filled] / counts[filled] for each in values]
    return owners[filled] // width, means
