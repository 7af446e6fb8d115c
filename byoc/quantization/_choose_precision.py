"""The precision of regions: that of the model, integers with concluded scales, or 16-bit floats.

A target with a floating-point mode runs a float model in that unless told otherwise; one that computes
in integers alone gets a quantized model as soon as there is something to conclude scales from.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from onnx import NodeProto

from byoc.errors import InputError
from byoc.model import GraphIndex, Model, get_node_name
from byoc.passes import find_twins
from byoc.planning import WIDE, QuantizedWeight
from byoc.quantization._calibration_file import read_ranges
from byoc.quantization._calibrators import EIGHT_BITS, Ranges
from byoc.quantization._equalization import describe_coarse_outputs, find_coarse_concats
from byoc.quantization._precision import DEFAULT_BLOCK, FLOATS, WEIGHTS, Precision
from byoc.quantization._precision_problem import UnitPrecisions
from byoc.quantization._prepare_model import find_tail_units
from byoc.quantization._quantize_model import QuantizedModel, WideUnits, quantize
from byoc.quantization._quantize_weights import quantize_weights
from byoc.rules import Target, require_dtype
from byoc.samples import NO_PREPROCESSING
from byoc.support import Note, report_step

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


_MAX_NAMES = 3  # in a sentence
_FEW_SAMPLES = 4  # seldom have the largest values that a network meets
_RANDOM_WARNING = Note(
    "warning", "the scales are concluded from random data, and mean nothing for real inputs"
)


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
        return ChosenPrecision(model, computing, notes=_note_unused(wanted))
    if wanted.quantize == WEIGHTS:
        return _quantize_weights(model, targets, wanted)
    integer = find_integer_targets(targets, wanted.quantize)
    if wanted.quantize is not None and not integer:
        names = " and ".join(target.source for target in targets)
        raise InputError(f"{names}: no rule has `quantized: true`, so nothing can be quantized")
    if not integer:
        return ChosenPrecision(model, tuple(targets), notes=_note_unused(wanted))
    if wanted.calibration is None and wanted.data is None:
        return _leave_unquantized(model, targets, integer, wanted)
    if wanted.calibration is None:
        return _quantize_on_data(model, targets, integer, wanted, predict)
    ranges = _read_ranges(model, wanted.calibration)
    report_step("quantize")
    return _quantize_in_ranges(model, targets, integer, ranges, wanted.quantize)


def _quantize_in_ranges(
    model: Model, targets: Sequence[Target], integer: Sequence[Target], ranges: Ranges, dtype: str | None
) -> ChosenPrecision:
    """Quantize a model with given ranges.

    Outputs that 8 bits are too coarse for are named in warnings. Where a Concat at the network's end
    leaves few steps to an operand, as one of boxes does to scores, it stays in floating point: a scale
    for both would cost the scores, and no product follows.
    """
    done = quantize(model, integer, ranges, dtype)
    tail = find_tail_units(done.floats.index, done.units)
    coarse = find_coarse_concats(done.floats.index, tail, ranges)
    in_float = tuple(each.unit for each in coarse)
    if coarse:
        done = quantize(model, integer, ranges, dtype, in_float)
    steps = [f"{each}, and is left in floating point" for each in coarse]
    found = replace(_describe_quantized(targets, done, ranges, steps), dtype=dtype, in_float=in_float)
    warnings = [Note("warning", text) for text in describe_coarse_outputs(done.model.index, ranges)]
    return replace(found, notes=(*found.notes, *warnings))


def _quantize_weights(model: Model, targets: Sequence[Target], wanted: Precision) -> ChosenPrecision:
    """Quantize the weights of a model's matrix products, with notes on what was left."""
    report_step("quantize weights")
    done = quantize_weights(model, targets, wanted.block or DEFAULT_BLOCK)
    by_reason: dict[str, list[str]] = {}
    for name, reason in done.left.items():
        by_reason.setdefault(reason, []).append(f"'{name}'")
    notes = [
        Note("note", f"weights left as they are: {_shorten(names)}: {reason}")
        for reason, names in by_reason.items()
    ]
    if not done.weights:
        notes.append(Note("note", "nothing is quantized"))
    return ChosenPrecision(
        done.model, tuple(targets), notes=(*notes, *_note_unused(wanted)), weights=done.weights
    )


def _shorten(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"{', '.join(names[:_MAX_NAMES])}{more}"


def _quantize_on_data(
    model: Model,
    targets: Sequence[Target],
    integer: Sequence[Target],
    wanted: Precision,
    predict: Callable[[Model], float] | None,
) -> ChosenPrecision:
    """Quantize a model with ranges that are measured on data."""
    # Imports half the room, and few plans are quantized.
    from byoc.quantization._quantize_on_data import DataQuantizer  # noqa: PLC0415

    assert wanted.data is not None
    images = wanted.images or NO_PREPROCESSING
    dtype, wide = wanted.quantize, find_wide_targets(integer, wanted.quantize)
    quantizer = DataQuantizer(
        integer,
        wanted.data,
        images,
        wanted.method,
        dtype,
        predict,
        wide,
        any_wide=wanted.budget is not None,
    )
    found = quantizer.quantize(model)
    return replace(
        _describe_quantized(targets, found.quantized, found.ranges, found.steps),
        dtype=dtype,
        in_float=found.in_float,
        kept_wide=found.wide_units,
        wide_ranges=found.wide_ranges,
    )


def _describe_quantized(
    targets: Sequence[Target],
    quantized: QuantizedModel,
    ranges: Ranges,
    steps: Sequence[str] = (),
) -> ChosenPrecision:
    """Return a quantized model with notes on what was done."""
    notes = [_RANDOM_WARNING] if ranges.random else _warn_of_few_samples(ranges.samples)
    notes += [Note("note", text) for text in (*steps, *quantized.notes)]
    if not quantized.units:
        notes.append(Note("note", "nothing is quantized"))
    for machines, refused in find_refused_convolutions(quantized.model.index).items():
        advice = "applications that open the model themselves set session.disable_quant_qdq to 1"
        notes.append(
            Note(
                "warning",
                f"{_shorten(refused)}: scales by channel and no bias, which onnxruntime's optimizations "
                f"cannot run{machines}: {advice}",
            )
        )
    return ChosenPrecision(
        quantized.model,
        tuple(targets),
        quantized.floats,
        ranges,
        quantized.units,
        tuple(notes),
    )


def _warn_of_few_samples(count: int) -> list[Note]:
    """Return a warning where ranges are of few samples; a count of 0 is not known."""
    if not 0 < count < _FEW_SAMPLES:
        return []
    said = "1 sample" if count == 1 else f"{count} samples"
    text = f"the scales are concluded from {said}: values beyond theirs are clipped"
    return [Note("warning", text)]


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


def _note_unused(wanted: Precision) -> tuple[Note, ...]:
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


def _read_ranges(model: Model, given: str | Path | Ranges) -> Ranges:
    twins = {twin: name for graph in model.index.walk() for twin, name in find_twins(graph).items()}
    if isinstance(given, Ranges):
        return given.add_twins(twins)
    file = Path(given)
    found = read_ranges(file)
    found.check_names(model, file)
    return found.add_twins(twins)


# Quantized nodes that onnxruntime's optimizations replace by some that do not run.

_SIGNED, _UNSIGNED = "int", "uint"
_MACHINES = {_UNSIGNED: "", _SIGNED: " on Arm"}


def find_refused_convolutions(index: GraphIndex) -> dict[str, list[str]]:
    """Return the convolutions that onnxruntime's QLinearConv, which it fuses them to, refuses to run.

    They have a zero point for each channel of what they read or make, and no bias; with one they stay as
    they are (onnxruntime 1.32). Those in uint8 are by the key "", those in int8 by " on Arm": elsewhere
    onnxruntime fuses int8 only where `session.qdqisint8allowed` is set.
    """

    def find_sign(node: NodeProto, op: str) -> str:
        """Return the sign of the zero points that a node has for channels, empty where it has none."""
        if node.op_type != op or (index.get_rank(node.input[1]) or 0) == 0:
            return ""
        zero_points = [*node.input, ""][2]
        dtype = index.get_dtype(zero_points) if zero_points else "uint8"
        return next((sign for sign in _MACHINES if (dtype or "").startswith(sign)), "")

    found: dict[str, list[str]] = {}
    for node in index.nodes:
        if node.op_type != "Conv" or len([*filter(None, node.input)]) > 2:
            continue
        maker = index.producers.get(node.input[0])
        signs = [] if maker is None else [find_sign(index.nodes[maker], "DequantizeLinear")]
        readers = index.consumers.get(node.output[0], ())
        signs += [find_sign(index.nodes[reader], "QuantizeLinear") for reader in readers]
        for sign, machines in _MACHINES.items():
            if sign in signs:
                found.setdefault(machines, []).append(f"'{get_node_name(node)}'")
                break
    return found
