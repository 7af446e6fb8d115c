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
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import EncodeError
from onnx import ModelProto, NodeProto, TensorProto, helper

from byoc._dataclasses import dataclass
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
from byoc.verification._quantization_noise import TOLERANCE, Measure
from byoc.verification._rounding_noise import MOVING

# The error of one tensor, and whether tolerance, noise or ties explain it.

# Differences of two tensors of numbers: the largest, the mean square, the mean of a channel.


@dataclass(frozen=True)
class Difference:
    """The largest difference of two tensors, and the mean of its squares."""

    largest: float = 0.0
    power: float = 0.0


def measure_difference(one: Any, other: Any) -> Difference:
    """Return the difference of two tensors of numbers, 0 where they cannot be compared.

    Elements that are not finite on either side are left out.
    """
    if one is None or other is None or isinstance(one, list) or isinstance(other, list):
        return Difference()
    wanted, got = (np.asarray(value) for value in (one, other))
    if wanted.shape != got.shape or wanted.dtype.kind == "O" or got.dtype.kind == "O":
        return Difference()
    error = wanted.astype(np.float64) - got.astype(np.float64)
    error = error[np.isfinite(error)]
    if not error.size:
        return Difference()
    return Difference(float(np.max(np.abs(error))), float(np.mean(error**2)))


def measure_shift(one: Any, other: Any) -> float:
    """Return the largest mean difference of a channel of two tensors of integers.

    Channels are along axis 1 or along the last one; tensors of one axis or none have no channels.
    """
    error = np.asarray(one).astype(np.float64) - np.asarray(other).astype(np.float64)
    if error.ndim < 2 or not error.size:
        return 0.0
    means = [
        error.mean(tuple(i for i in range(error.ndim) if i != axis)) for axis in (1, error.ndim - 1)
    ]
    return max(float(np.abs(each).max()) for each in means)


@dataclass(frozen=True, slots=True)
class TieBreak:
    """Rows that a selection puts in another order than the original, or replaces, between tied keys.

    Of the `rows` of `outputs`, `moved` are in another order and `replaced` are other candidates. The
    original selects the same when its keys are moved such that those at most `gap` apart may change
    places. `selection` is the node that selects.
    """

    selection: str
    outputs: tuple[str, ...]
    rows: int
    moved: int
    replaced: int
    gap: float

    @property
    def changes(self) -> int:
        """The number of rows that are elsewhere or others."""
        return self.moved + self.replaced

    def __str__(self) -> str:
        """Return part of a sentence: `of 300 rows 2 in another order, tied within 2.4e-07`.

        Keys that are equal are said to be so.
        """
        parts = [f"{self.moved} in another order"] * (self.moved > 0)
        parts += [f"{self.replaced} replaced by others"] * (self.replaced > 0)
        tied = f"tied within {self.gap:.1e}" if self.gap else "with equal keys"
        return f"of {self.rows} rows {' and '.join(parts)}, {tied}"


@dataclass(frozen=True, slots=True)
class Fidelity:
    """The signal-to-noise ratios of an output against the float model, over all samples, in dB.

    `signal_to_noise` is the bundle's, `reference` that of onnxruntime with the same integers, `spread`
    by how much lower other right executions are, and `least` what the bundle must have.
    """

    signal_to_noise: float
    reference: float
    spread: float
    least: float

    @property
    def within(self) -> bool:
        """True if the output is as near to the float model as right executions are."""
        return self.signal_to_noise >= self.least

    def __str__(self) -> str:
        """Return part of a sentence: `15.7 dB against the float model, onnxruntime 15.9 dB`."""
        spread = f", other right executions {self.spread:.1f} dB less" if self.spread >= 0.1 else ""
        return (
            f"{self.signal_to_noise:.1f} dB against the float model, "
            f"onnxruntime {self.reference:.1f} dB{spread}"
        )


@dataclass(frozen=True, slots=True)
class OutputError:
    """The error of one tensor.

    `relative` is `absolute` divided by the expected range (`Thresholds.error_scale`). Both are infinite
    if the tensors cannot be compared; `problem` then says why. `tolerance` limits the quantity that
    `measure` names: `relative` error, `units` in the last place of integers (the `absolute` error), or
    `dB`, the least signal-to-noise ratio. `signal_to_noise` (dB) and `cosine` are None if they do not
    exist, and `differing` is the share of elements that are not equal. `noise` is the absolute error
    that noise explains, which `noise_source` makes; it is measured only where the error is beyond the
    tolerance, and None otherwise. Where there is a `tie_break`, the expected rows are those that the
    original selects when ties are broken as in the actual tensor. `fidelity` is measured where an
    error of a quantized network is beyond its tolerance, and noise does not explain it or the float
    model is known.
    """

    name: str
    dtype: str
    absolute: float
    relative: float
    tolerance: float
    problem: str = ""
    measure: Measure = "relative"
    signal_to_noise: float | None = None
    cosine: float | None = None
    differing: float | None = None
    noise: float | None = None
    noise_source: str = ""
    tie_break: TieBreak | None = None
    fidelity: Fidelity | None = None

    @property
    def within(self) -> bool:
        """True if the error is within the tolerance, noise explains it, or it keeps its fidelity."""
        if self.noise is not None and self.absolute <= self.noise:
            return True
        if self.fidelity is not None and self.fidelity.within:
            return True
        return self.is_tolerated

    @property
    def is_tolerated(self) -> bool:
        """True if the error is within the tolerance by itself."""
        match self.measure:
            case "units":
                return self.absolute <= self.tolerance
            case "dB":
                return self.signal_to_noise is not None and self.signal_to_noise >= self.tolerance
            case _:
                return self.relative <= self.tolerance

    @property
    def is_measurable(self) -> bool:
        """True if the error is a number that noise may explain."""
        return not self.problem and (self.measure == "units" or self.dtype in TOLERANCE)

    @property
    def relative_noise(self) -> float | None:
        """The noise as a share of the expected range, None where it is not measured."""
        if self.noise is None or not self.absolute:
            return None
        return self.noise * self.relative / self.absolute

    @property
    def is_noise_needed(self) -> bool:
        """True if noise explains more than the tolerance allows."""
        noise = self.noise if self.measure == "units" else self.relative_noise
        return noise is not None and noise > self.tolerance

    @property
    def error_phrase(self) -> str:
        """Part of a sentence: `by 0.02 of its range, at most 0.0001 is allowed for float32`."""
        match self.measure:
            case "units":
                by, allowed = f"{self.absolute:g} units", f"at most {self.tolerance:g}"
            case "dB":
                noise = np.nan if self.signal_to_noise is None else self.signal_to_noise
                by, allowed = f"a noise of {noise:.1f} dB", f"no less than {self.tolerance:g} dB"
            case _:
                by, allowed = f"{self.relative:.2g} of its range", f"at most {self.tolerance:g}"
        explained = ""
        if self.is_noise_needed:
            share = f"{self.noise:g} units" if self.measure == "units" else f"{self.relative_noise:.2g}"
            explained = f", and {share} is the noise of {self.noise_source}"
        if self.fidelity is not None:
            explained += (
                f"; it has {self.fidelity}, and at least {self.fidelity.least:.1f} dB is allowed"
            )
        return f"by {by}, {allowed} is allowed for {self.dtype}{explained}"

    def severity(self) -> tuple[bool, float]:
        """Return a sort key: errors beyond their tolerance last, then by size."""
        return not self.within, self.relative


Values = Mapping[str, Any]

_GATHERING = frozenset({"GatherND", "Compress", "Cast", "TopK", "Identity"})
_SEEDS = (1, 2)
SHARE = 1 / 8
"""The share of the results of each layer that is moved, half of them up and half of them down."""

NEAR_TIE = 1 / 1000
"""The distance from the middle between two integers, in units, within which either is right."""

LARGEST_SHARE = 1 / 2
"""The largest share of a right layer's results that are a unit off.

An error of at most half a unit before rounding, up as often as down, leaves each result within one unit,
and moves at most every second one.
"""

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
    `share` is that of a layer's results which is moved.
    """

    model: ModelProto
    folder: Path | None
    inputs: Values
    casts: bool = False
    share: float = SHARE

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
        move = _move_last_places if self.casts else partial(_move_by_units, share=self.share)
        for number, node in enumerate(graph.nodes):
            replace_names(node.input, readers)
            for name in filter(moved.__contains__, node.output):
                made = move(graph, name, readers[name], moved[name], seed + number)
                graph.insert_after(number, *made)
        graph.write_to(result.graph)
        graph.write_stored(result.graph)
        return result


@dataclass(frozen=True, eq=False)
class TieNoise:
    """Runs a model without functions with what it quantizes moved by a thousandth of a unit.

    So what lies that near to the middle between two integers is rounded to the other one: sums of floats
    in another order decide those. `folder` holds the external data of the model.
    """

    model: ModelProto
    folder: Path | None
    inputs: Values

    @cached_property
    def runs(self) -> tuple[Values, ...]:
        """The outputs by name, all moved down and all moved up; none where nothing is quantized."""
        index = GraphIndex(self.model, {})
        rounded = [
            number
            for number, node in enumerate(index.nodes)
            if is_quantize(node) and number not in index.constant_nodes
        ]
        if not rounded:
            return ()
        try:
            with without_optimizations():
                return tuple(
                    run_session(
                        open_session(self._make_moved_model(index, rounded, share), self.folder),
                        self.inputs,
                    )
                    for share in (-NEAR_TIE, NEAR_TIE)
                )
        except (InputError, EncodeError, ValueError):
            return ()

    def measure(self, expected: Any, name: str, most: float) -> Difference:
        """Return by how much right results of an output lie apart, where `expected` is one of them.

        The largest is at most `most`, or the least step that there is, such as a unit of an integer.
        """
        if not self.runs:
            return Difference()
        wanted = np.asarray(expected).astype(np.float64)
        moved = [np.abs(np.asarray(run[name]).astype(np.float64) - wanted) for run in self.runs]
        apart = np.nan_to_num(sum(moved), nan=0.0, posinf=0.0)
        steps = apart[apart > 0]
        if not steps.size:
            return Difference()
        largest = min(float(np.max(steps)), max(most, float(np.min(steps))))
        return Difference(largest, float(np.mean(apart**2)))

    def _make_moved_model(self, index: GraphIndex, rounded: list[int], share: float) -> ModelProto:
        result = copy_without(self.model, "value_info")
        graph = EditableGraph(result.graph)
        nodes = graph.nodes
        for number in rounded:
            node = nodes[number]
            scale = find_constant_value(index, node.input[1], self.folder)
            if scale is not None and scale.size > 1:
                continue  # by channel or block, which activations seldom are
            dtype = np.float32 if scale is None else scale.dtype
            stored = graph.store(np.array(share, dtype), f"{node.output[0]}_share")
            step = graph.names.new_tensor(f"{node.output[0]}_step")
            moved = graph.names.new_tensor(f"{node.output[0]}_moved")
            graph.insert_before(
                number,
                build_node("Mul", [node.input[1], stored], [step]),
                build_node("Add", [node.input[0], step], [moved]),
            )
            node.input[0] = moved
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


def _move_by_units(  # noqa: PLR0913, PLR0917 - as `_move_last_places`, and the share
    graph: EditableGraph, name: str, made: str, point: Any, seed: int, share: float
) -> Iterator[NodeProto]:
    """Yield nodes that move a share of the elements of a tensor of integers by one, up or down.

    `point` is a number of their dtype.
    """
    dtype = point.dtype
    names = (graph.names.new_tensor(f"{made}_{i}") for i in range(7))
    real, drawn, step, wide, sum_, low, high = names
    limits = (np.iinfo(dtype).min, np.iinfo(dtype).max)
    bounds = [graph.store(np.array(limit, np.int32), f"{made}_limit") for limit in limits]
    most = 1 / (1 - share)  # numbers beyond 1 are truncated to 1, all others to 0
    yield build_node("Cast", [name], [real], to=TensorProto.FLOAT)
    yield build_node("RandomUniformLike", [real], [drawn], low=-most, high=most, seed=float(seed))
    yield build_node("Cast", [drawn], [step], to=TensorProto.INT32)
    yield build_node("Cast", [name], [wide], to=TensorProto.INT32)
    yield build_node("Add", [wide, step], [sum_])
    yield build_node("Max", [sum_, bounds[0]], [low])
    yield build_node("Min", [low, bounds[1]], [high])
    yield build_node("Cast", [high], [made], to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
