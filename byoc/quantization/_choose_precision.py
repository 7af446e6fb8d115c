"""The precision of regions, and the problem of where units run in which type at the least cost.

A unit is on the host, in floating point, or on an accelerator, there in floats, in integers of the type
that was asked for, or in integers of 16 bits. These three precisions are the levels. A choice gives each
unit a level and a device.

The cost of a choice is the sum of
- the execution of each unit on its device in its type,
- transfers: a tensor that the host and an accelerator share crosses once in each direction and type,
- conversions: where units on one accelerator share a tensor in two types, once for each pair of types,
- a launch for each region,
less what fusions save. The noise of a choice, for each output, is expected to be the sum of
- the noise of each unit in integers in its type,
- the noise of each tensor that a unit in the type that was asked for makes or reads: it is rounded to
  that type, and a reader in 16 bits cannot undo that.

A target with a floating-point mode runs a float model in that unless told otherwise; one that computes
in integers alone gets a quantized model as soon as there is something to conclude scales from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from byoc import quantization
from byoc._dataclasses import dataclass, field, replace
from byoc.errors import InputError
from byoc.model import TENSOR_KEY, GraphIndex, get_metadata, get_node_name, is_inserted, is_quantize
from byoc.placement import Fusion, Problem
from byoc.planning import WIDE, GraphPlan, QuantizedWeight
from byoc.quantization._calibrators import EIGHT_BITS
from byoc.quantization._precision import FLOATS, WEIGHTS, Precision
from byoc.rules import Target, require_dtype
from byoc.support import Note

if TYPE_CHECKING:
    from byoc.model import Model
    from byoc.quantization._calibrators import Ranges
    from byoc.quantization._quantize_model import QuantizedModel, WideUnits


Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Level(IntEnum):
    """The precision of a unit: floating point, integers of the type that was asked for, or 16 bits."""

    floating = 0
    narrow = 1
    wide = 2


@dataclass(frozen=True)
class UnitPrecisions:
    """The units of a plan that are in floating point, and those in 16 bits.

    All others are in the type that was asked for.
    """

    in_float: frozenset[str] = frozenset()
    wide: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class BoundaryCosts:
    """Costs of tensors in each type: transfers, and conversions from one type to another.

    Devices are the accelerators, levels those of `Level`, of which there are two or three. `to_device`
    and `to_host` are float64 `[levels, tensors, devices]`, transfers of a tensor in the type of a level.
    `conversions` is float64 `[levels, levels, tensors, devices]`, from the type of the first level to
    that of the second on an accelerator; infinite where the accelerator cannot do it, so that the tensor
    goes by the host. `joint` is bool `[devices]`: units in floats and in integers may share a region.
    """

    to_device: Floats
    to_host: Floats
    conversions: Floats
    joint: Bools


@dataclass(frozen=True, eq=False)
class PrecisionProblem:
    """Units with their costs and noises at each level; the statement is that of the module.

    `placement` is the placement problem of the float model; what it calls units are called rows here, as
    they are rows of its arrays. `units` are the names of what may be quantized, in topological order;
    `rows` has the rows of each, which are in integers together. Types are the levels from
    `Level.narrow` on, one or two. `costs` is float64 `[types, units, devices]` of execution on
    accelerators. Noises are powers of the error of each output over that of its signal: `noise`, of
    units, is float64 `[types, units, outputs]`, `rounding`, of tensors, is float64 `[tensors, outputs]`.
    `fusions` are those of rows in the type that was asked for; those of rows in floats are the
    placement problem's own.
    """

    placement: Problem
    units: Sequence[str]
    rows: Sequence[Sequence[int]]
    costs: Floats
    noise: Floats
    rounding: Floats
    boundary: BoundaryCosts
    fusions: Sequence[Fusion] = ()

    @cached_property
    def unit_of_row(self) -> Ints:
        """The number of the unit of each row, -1 for none; int64 `[rows]`."""
        found = np.full(self.placement.units, -1, np.int64)
        for unit, rows in enumerate(self.rows):
            found[list(rows)] = unit
        return found

    @cached_property
    def tensor_ends(self) -> tuple[Ints, Ints]:
        """The pairs of a tensor and a unit that makes or reads it: two int64 `[pairs]` of numbers."""
        placement = self.placement
        tensors = np.concatenate([placement.consumed, np.arange(placement.tensors)])
        rows = np.concatenate([placement.consumers, placement.producer])
        units = np.where(rows >= 0, self.unit_of_row[rows], -1)
        pairs = np.unique(np.stack([tensors, units], axis=1)[units >= 0], axis=0)
        return pairs[:, 0], pairs[:, 1]

    def sum_noise(self, levels: Ints) -> Floats:
        """Return the expected noise, float64 `[outputs]`, with units at `levels`, int64 `[units]`."""
        by_level = np.concatenate([np.zeros_like(self.noise[:1]), self.noise])
        tensors, units = self.tensor_ends
        rounded = np.unique(tensors[levels[units] == Level.narrow])
        of_units = by_level[levels, np.arange(len(levels))].sum(axis=0)
        return np.asarray(of_units + self.rounding[rounded].sum(axis=0), np.float64)

    def find_levels(self, precisions: UnitPrecisions) -> Ints:
        """Return the levels of units in some precisions, int64 `[units]`."""
        levels = [
            Level.floating
            if name in precisions.in_float
            else Level.wide
            if name in precisions.wide
            else Level.narrow
            for name in self.units
        ]
        return np.asarray(levels, np.int64)

    def name_precisions(self, levels: Ints) -> UnitPrecisions:
        """Return the precisions of units at `levels`, int64 `[units]`."""
        named = [*zip(self.units, levels.tolist(), strict=True)]
        return UnitPrecisions(
            frozenset(name for name, level in named if level == Level.floating),
            frozenset(name for name, level in named if level == Level.wide),
        )


# The problem of precisions of a model, built from its plans with all units in one precision each.

UnitNodes = Mapping[str, Sequence[str]]
"""The names of units, with those of their nodes."""

Direction = Literal["to_device", "to_host"]
"""The two fields of a placement problem that have the costs of transfers."""


@dataclass(frozen=True, eq=False)
class QuantizedPlan:
    """A plan with some units in integers of a type, `dtype`.

    `units` are these, `noise` is that of each alone, float64 `[outputs]`. Rows are the numbers of units
    in the placement problem of the plan.
    """

    plan: GraphPlan
    units: UnitNodes
    noise: Mapping[str, Floats]
    dtype: str

    @cached_property
    def rows(self) -> Mapping[str, int]:
        """The row of each node of the plan, by its name or first output; without byoc's own nodes."""
        return _map_nodes(self.plan)

    def find_costs(self, name: str) -> Floats | None:
        """Return the cost of a unit on accelerators, `[devices]`, None where it is not one row."""
        rows = self.rows
        own = {rows[node] for node in self.units.get(name, ()) if node in rows}
        if len(own) != 1:
            return None
        (row,) = own
        return np.asarray(self.plan.graph_problem.problem.seconds[row, 1:])


@dataclass(frozen=True, eq=False)
class TensorFigures:
    """Figures of the float model's tensors, by name, and of accelerators.

    `rounding` is the measured noise of each tensor alone in the type that was asked for, float64
    `[outputs]`; `conversions` are its costs from one type to another, float64
    `[levels, levels, devices]`. `joint` is that of `BoundaryCosts`.
    """

    rounding: Mapping[str, Floats]
    conversions: Mapping[str, Floats]
    joint: Bools


def build_precision_problem(
    types: Sequence[QuantizedPlan], floating: GraphPlan, figures: TensorFigures
) -> PrecisionProblem:
    """Build the problem of a model from its plans with units in integers, and with none.

    The first of the `types` has all units that may be quantized, a second one those that may have 16
    bits. Costs are in the unit of the objective.
    """
    narrow = types[0]
    rows = _find_float_rows(narrow, floating)
    names = sorted(rows, key=lambda name: rows[name][-1])
    outputs = max((len(value) for value in narrow.noise.values()), default=1)
    none = np.zeros(outputs)
    noise = np.array([[each.noise.get(name, none) for name in names] for each in types])
    tensors = floating.graph_problem.tensors
    rounding = np.array([figures.rounding.get(name, none) for name in tensors])
    built = PrecisionProblem(
        floating.graph_problem.problem,
        names,
        [rows[name] for name in names],
        _stack_costs(types, names, floating.graph_problem.problem.devices),
        noise.reshape(len(types), len(names), outputs),
        rounding.reshape(len(tensors), outputs),
        _price_boundary(types, floating, figures),
        _list_fusions(narrow, rows),
    )
    return replace(built, noise=_count_weights_alone(built))


def _find_float_rows(narrow: QuantizedPlan, floating: GraphPlan) -> dict[str, list[int]]:
    """Return the rows of units in the float plan, in rising order.

    A unit that is not one row of the quantized plan, or has none in the float plan, is left out: its
    precision is not a choice of the problem.
    """
    row_of_node = _map_nodes(floating)
    found = {}
    for name, nodes in narrow.units.items():
        own = sorted({row_of_node[node] for node in nodes if node in row_of_node})
        if own and narrow.find_costs(name) is not None:
            found[name] = own
    return found


def _stack_costs(types: Sequence[QuantizedPlan], names: Sequence[str], devices: int) -> Floats:
    """Return the costs of units in each type on accelerators, `[types, units, devices]`.

    They are infinite where a type is not taken. A device has 16 bits for those units alone that it takes
    in the type that was asked for.
    """
    nothing = np.full(devices, np.inf)
    costs = np.array(
        [
            [nothing if (known := each.find_costs(name)) is None else known for name in names]
            for each in types
        ]
    ).reshape(len(types), len(names), devices)
    costs[1:, ~np.isfinite(costs[0])] = np.inf
    return costs


def _count_weights_alone(problem: PrecisionProblem) -> Floats:
    """Return the noise of units without that of tensors, which the problem counts by itself.

    What was measured of a unit alone in the type that was asked for has the rounding of each tensor that
    it reads, and of what it makes where something in floating point reads that. Without these its
    weights are left, which are as noisy in 16 bits: the result is not below the noise there.
    """
    noise, placement = problem.noise.copy(), problem.placement
    readers = problem.unit_of_row[placement.consumers]
    is_read_in_float = placement.is_output.copy()
    is_read_in_float[placement.consumed[readers < 0]] = True
    is_read_in_float &= placement.producer >= 0
    tensors = np.concatenate([placement.consumed, np.flatnonzero(is_read_in_float)])
    units = np.concatenate([readers, problem.unit_of_row[placement.producer[is_read_in_float]]])
    tensors, units = np.unique(np.stack([tensors, units])[:, units >= 0], axis=1)
    np.subtract.at(noise[0], units, problem.rounding[tensors])
    noise[0] = noise.max(axis=0, initial=0.0)
    return noise


def _price_boundary(
    types: Sequence[QuantizedPlan], floating: GraphPlan, figures: TensorFigures
) -> BoundaryCosts:
    """Return the costs of transfers and conversions of the float plan's tensors, in each type.

    Tensors with several scales are not converted to floats or from them on accelerators.
    """
    problem = floating.graph_problem.problem
    levels, devices = 1 + len(types), problem.devices
    unknown = np.full((levels, levels, devices), np.inf)
    tensors = floating.graph_problem.tensors
    conversions = np.array([figures.conversions.get(name, unknown) for name in tensors])
    conversions = conversions.reshape(len(tensors), levels, levels, devices)
    for level, each in enumerate(types, 1):
        names = _find_channel_scaled(each)
        scaled = [number for number, name in enumerate(tensors) if name in names]
        conversions[scaled, Level.floating, level] = conversions[scaled, level, Level.floating] = np.inf
    to_device = [problem.to_device, *(_find_transfers(floating, each, "to_device") for each in types)]
    to_host = [problem.to_host, *(_find_transfers(floating, each, "to_host") for each in types)]
    return BoundaryCosts(
        np.stack(to_device), np.stack(to_host), conversions.transpose(1, 2, 0, 3), figures.joint
    )


def _list_fusions(narrow: QuantizedPlan, rows: Mapping[str, Sequence[int]]) -> list[Fusion]:
    """Return the fusions of units in integers; each unit stands for itself by its first float row."""
    first = {narrow.rows[node]: own[0] for name, own in rows.items() for node in narrow.units[name]}
    return [
        Fusion(tuple(sorted(first[row] for row in each.members)), each.device, each.saving)
        for each in narrow.plan.graph_problem.problem.fusions
        if all(row in first for row in each.members)
    ]


def _find_transfers(floating: GraphPlan, quantized: QuantizedPlan, direction: Direction) -> Floats:
    """Return the transfers of the float plan's tensors in the type of a quantized one.

    They are float64 `[tensors, devices]`, the field `direction` of placement problems. Tensors that are
    not quantized there cost as floats.
    """
    floats: Floats = getattr(floating.graph_problem.problem, direction)
    integers: Floats = getattr(quantized.plan.graph_problem.problem, direction)
    numbers = _map_quantized_tensors(quantized)
    found = [
        integers[numbers[name]] if name in numbers else floats[number]
        for number, name in enumerate(floating.graph_problem.tensors)
    ]
    return np.asarray(found, np.float64).reshape(floats.shape)


def _map_nodes(plan: GraphPlan) -> dict[str, int]:
    """Return the row of each node of a plan, by its name or first output; without byoc's own nodes."""
    return {
        get_node_name(plan.index.nodes[number]): row
        for number, row in plan.row_of_node.items()
        if not is_inserted(plan.index.nodes[number])
    }


def _find_channel_scaled(quantized: QuantizedPlan) -> set[str]:
    """Return the tensors, by their names in the float model, that some unit has several scales for."""
    index: GraphIndex = quantized.plan.index
    found = set()
    for node in index.nodes:
        if is_quantize(node) and is_inserted(node):
            scale = index.types.get(node.input[1])
            if scale is None or scale.elements != 1:
                found.add(get_metadata(node, TENSOR_KEY))
    return found


def _map_quantized_tensors(quantized: QuantizedPlan) -> dict[str, int]:
    """Return the numbers of quantized tensors of a type by their names in the float model."""
    index: GraphIndex = quantized.plan.index
    found = {}
    for number, name in enumerate(quantized.plan.graph_problem.tensors):
        maker = index.producers.get(name)
        if maker is None or index.get_dtype(name) != quantized.dtype:
            continue
        if is_quantize(index.nodes[maker]) and is_inserted(index.nodes[maker]):
            found[get_metadata(index.nodes[maker], TENSOR_KEY)] = number
    return found


# A model in the precision that was asked for, and its variants with units in other precisions.

_FLOAT_MODES = frozenset({"float16", "bfloat16", "float32", "float64", "any"})


@dataclass(frozen=True, eq=False)
class ChosenPrecision:
    """A model in the precision that was asked for, and the targets as they then compute.

    `float_model` is the model before it was quantized, None where it was not; `units` what was
    quantized, by name, each with its nodes; `ranges` what the scales are from, `wide_ranges` those of
    units in 16 bits. `in_float` are units that were left in floating point, `kept_wide` those that have
    16 bits in any case, `weights` those that have 4. `dtype` is the type of activations that was asked
    for.
    """

    model: Model
    targets: tuple[Target, ...]
    float_model: Model | None = None
    ranges: Ranges | None = None
    units: Mapping[str, Sequence[str]] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    in_float: tuple[str, ...] = ()
    weights: tuple[QuantizedWeight, ...] = ()
    dtype: str | None = None
    wide_ranges: Ranges | None = None
    kept_wide: WideUnits | None = None

    @cached_property
    def narrow_dtype(self) -> str:
        """The 8-bit type that QuantizeLinear nodes make; else the type that was asked for."""
        index = self.model.index
        nodes = (node for node in index.nodes if is_quantize(node))
        found = {index.get_dtype(node.output[0]) for node in nodes}
        return next((dtype for dtype in EIGHT_BITS if dtype in found), self.dtype or "")

    @cached_property
    def wide_model(self) -> QuantizedModel | None:
        """The model with all units in 16 bits that some target takes so; None where there are none."""
        targets = find_wide_targets(self._integer_targets, self.narrow_dtype)
        if not targets:
            return None
        assert self.float_model is not None
        found = quantization.quantize(self.float_model, targets, self._wide_ranges, WIDE, self.in_float)
        units = {name: nodes for name, nodes in found.units.items() if self.units.get(name) == nodes}
        return replace(found, units=units, notes=()) if units else None

    def set_precisions(self, precisions: UnitPrecisions) -> Model:
        """Return the float model quantized anew, with some of its `units` in other precisions."""
        if precisions == UnitPrecisions():
            return self.model
        assert self.float_model is not None
        assert self.ranges is not None
        in_float = (*self.in_float, *precisions.in_float)
        kept = self.kept_wide or quantization.WideUnits(frozenset(), self._wide_ranges)
        names = precisions.wide | kept.names
        wide = quantization.WideUnits(names, self._wide_ranges, kept.tensors) if names else None
        targets = self._integer_targets
        return quantization.quantize(
            self.float_model, targets, self.ranges, self.dtype, in_float, wide
        ).model

    @property
    def _wide_ranges(self) -> Ranges:
        assert self.ranges is not None
        return self.wide_ranges or (self.kept_wide.ranges if self.kept_wide else self.ranges)

    @property
    def _integer_targets(self) -> list[Target]:
        return find_integer_targets(self.targets, self.dtype)


def find_integer_targets(targets: Sequence[Target], dtype: str | None) -> list[Target]:
    """Return the targets that compute in integers: those that must, or all that can if asked to."""
    integer = [target for target in targets if target.has_quantized_rules]
    return [target for target in integer if dtype is not None or not has_float_mode(target)]


def has_float_mode(target: Target) -> bool:
    """Return whether some rule of a target takes operators on floating-point numbers."""
    return any(
        not rule.quantized and not _FLOAT_MODES.isdisjoint(rule.dtype or target.rules.dtype)
        for rule in target.rules.ops
    )


def find_wide_targets(targets: Sequence[Target], dtype: str | None) -> list[Target]:
    """Return the targets whose files allow activations of 16 bits; none where all have them anyway."""
    if dtype is not None and dtype not in EIGHT_BITS:
        return []
    found = []
    for target in targets:
        part = target.rules.quantization.activations
        if WIDE in ((part.dtype if part else None) or target.rules.dtype):
            found.append(target)
    return found


def choose_precision(
    model: Model,
    targets: Sequence[Target],
    wanted: Precision,
    predict: Callable[[Model], float] | None = None,
) -> ChosenPrecision:
    """Return a model ready to be annotated in the precision that is wanted.

    `predict` returns the predicted seconds of a quantized model, where they are to count.

    Raises InputError when no target can compute so, when there is nothing to conclude scales from, and
    as `calibrate` and `quantize` do.
    """
    if wanted.quantize in FLOATS:
        computing = _choose_float_targets(targets, wanted.quantize)
        return ChosenPrecision(model, computing, notes=note_unused(wanted))
    if wanted.quantize == WEIGHTS:
        return quantization.quantize_as_chosen(model, targets, (), wanted)
    integer = find_integer_targets(targets, wanted.quantize)
    if wanted.quantize is not None and not integer:
        names = " and ".join(target.source for target in targets)
        raise InputError(
            f"{names}: no rule has `quantized: true`, so nothing can be quantized: leave --quantize "
            f"{wanted.quantize} out, or name rules for integers, such as dla or ethos-u55"
        )
    if not integer:
        return ChosenPrecision(model, tuple(targets), notes=note_unused(wanted))
    if wanted.calibration is None and wanted.data is None:
        return _leave_unquantized(model, targets, integer, wanted)
    return quantization.quantize_as_chosen(model, targets, integer, wanted, predict)


def _choose_float_targets(targets: Sequence[Target], dtype: str) -> tuple[Target, ...]:
    """Return targets of which those that can compute in 16-bit floats; InputError when none can."""
    found = []
    errors = []
    for target in targets:
        try:
            require_dtype(target, dtype)
            found.append(replace(target, compute_dtype=dtype))
        except InputError as error:
            found.append(target)
            errors.append(error)
    if len(errors) == len(targets):
        raise errors[0]
    return tuple(found)


def _leave_unquantized(
    model: Model, targets: Sequence[Target], integer: Sequence[Target], wanted: Precision
) -> ChosenPrecision:
    names = " and ".join(target.name for target in integer)
    how = "the ranges of tensors (--calibration FILE, or --data FOLDER to measure them)"
    if wanted.quantize is not None:
        raise InputError(f"quantize {wanted.quantize}: {names} needs {how}")
    if _is_quantized(model):
        return ChosenPrecision(model, tuple(targets))
    note = f"{names} computes in integers alone, and floating point stays on the host: give {how}"
    return ChosenPrecision(model, tuple(targets), notes=(Note("note", note),))


def note_unused(wanted: Precision) -> tuple[Note, ...]:
    """Return a note where ranges or data were given that nothing is quantized with."""
    if wanted.calibration is None and wanted.data is None:
        return ()
    given = "--data" if wanted.calibration is None else "--calibration"
    if wanted.quantize is not None:
        return (Note("note", f"{given} is not used: {wanted.quantize} needs no scales"),)
    why = "all targets compute in floating point (--quantize int8)"
    return (Note("note", f"{given} is not used: {why}"),)


def _is_quantized(model: Model) -> bool:
    return any(
        node.op_type in ("DequantizeLinear", "QuantizeLinear") or node.op_type.startswith("QLinear")
        for index in model.index.walk()
        for node in index.nodes
    )
