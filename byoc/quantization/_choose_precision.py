"""The precision of regions: that of the model, integers with concluded scales, or 16-bit floats.

A target with a floating-point mode runs a float model in that unless told otherwise; one that computes
in integers alone gets a quantized model as soon as there is something to conclude scales from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from byoc import quantization
from byoc.errors import InputError
from byoc.planning import WIDE, QuantizedWeight
from byoc.quantization._calibrators import EIGHT_BITS
from byoc.quantization._precision import FLOATS, WEIGHTS, Precision
from byoc.rules import Target, require_dtype
from byoc.support import Note

if TYPE_CHECKING:
    from byoc.model import Model
    from byoc.quantization._calibrators import Ranges
    from byoc.quantization._precision_problem import UnitPrecisions
    from byoc.quantization._quantize_model import QuantizedModel, WideUnits

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
        """The type of activations; that of the first target's file unless one was asked for."""
        index = self.model.index
        nodes = (node for node in index.nodes if node.op_type == "QuantizeLinear")
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
        return quantization.QuantizedModel(found.model, found.floats, units, ()) if units else None

    def set_precisions(self, precisions: UnitPrecisions) -> Model:
        """Return the float model quantized anew, with some of its `units` in other precisions."""
        if precisions == quantization.UnitPrecisions():
            return self.model
        assert self.float_model is not None
        assert self.ranges is not None
        in_float = (*self.in_float, *precisions.in_float)
        names = precisions.wide | (self.kept_wide.names if self.kept_wide else frozenset())
        wide = quantization.WideUnits(names, self._wide_ranges) if names else None
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
        return quantization.quantize_chosen_weights(model, targets, wanted)
    integer = find_integer_targets(targets, wanted.quantize)
    if wanted.quantize is not None and not integer:
        names = " and ".join(target.source for target in targets)
        raise InputError(f"{names}: no rule has `quantized: true`, so nothing can be quantized")
    if not integer:
        return ChosenPrecision(model, tuple(targets), notes=note_unused(wanted))
    if wanted.calibration is None and wanted.data is None:
        return _leave_unquantized(model, targets, integer, wanted)
    if wanted.calibration is None:
        return quantization.quantize_on_data(model, targets, integer, wanted, predict)
    return quantization.quantize_in_ranges(model, targets, integer, wanted.calibration, wanted.quantize)


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
