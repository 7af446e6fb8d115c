"""A model in the precision that was asked for, and its variants with units in other precisions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from byoc.model import Model
from byoc.planning import WIDE, QuantizedWeight
from byoc.quantization._precision_problem import UnitPrecisions
from byoc.quantization._quantize_model import QuantizedModel, WideUnits, quantize
from byoc.quantization._ranges import EIGHT_BITS, Ranges
from byoc.rules import Target
from byoc.support import Note

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
        found = quantize(self.float_model, targets, self._wide_ranges, WIDE, self.in_float)
        units = {name: nodes for name, nodes in found.units.items() if self.units.get(name) == nodes}
        return QuantizedModel(found.model, found.floats, units, ()) if units else None

    def set_precisions(self, precisions: UnitPrecisions) -> Model:
        """Return the float model quantized anew, with some of its `units` in other precisions."""
        if precisions == UnitPrecisions():
            return self.model
        assert self.float_model is not None
        assert self.ranges is not None
        in_float = (*self.in_float, *precisions.in_float)
        names = precisions.wide | (self.kept_wide.names if self.kept_wide else frozenset())
        wide = WideUnits(names, self._wide_ranges) if names else None
        targets = self._integer_targets
        return quantize(self.float_model, targets, self.ranges, self.dtype, in_float, wide).model

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
