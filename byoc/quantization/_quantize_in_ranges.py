"""Quantization as it was chosen: in ranges that are given or measured on data, or of weights alone."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from onnx import NodeProto

from byoc.model import GraphIndex, Model, get_node_name
from byoc.passes import find_twins
from byoc.quantization._calibration_file import read_ranges
from byoc.quantization._calibrators import Ranges
from byoc.quantization._choose_precision import ChosenPrecision, find_wide_targets, note_unused
from byoc.quantization._equalization import describe_coarse_outputs, find_coarse_concats
from byoc.quantization._precision import DEFAULT_BLOCK, Precision
from byoc.quantization._prepare_model import find_tail_units
from byoc.quantization._quantize_model import QuantizedModel, quantize
from byoc.quantization._quantize_weights import quantize_weights
from byoc.rules import Target
from byoc.samples import NO_PREPROCESSING
from byoc.support import Note, report_step

_MAX_NAMES = 3  # in a sentence
_FEW_SAMPLES = 4  # seldom have the largest values that a network meets
_RANDOM_WARNING = Note(
    "warning", "the scales are concluded from random data, and mean nothing for real inputs"
)


def quantize_in_ranges(
    model: Model,
    targets: Sequence[Target],
    integer: Sequence[Target],
    given: str | Path | Ranges,
    dtype: str | None,
) -> ChosenPrecision:
    """Quantize a model with ranges, or those of a file. Raises InputError as `read_ranges` does.

    Outputs that 8 bits are too coarse for are named in warnings. Where a Concat at the network's end
    leaves few steps to an operand, as one of boxes does to scores, it stays in floating point: a scale
    for both would cost the scores, and no product follows.
    """
    ranges = _read_ranges(model, given)
    report_step("quantize")
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


def quantize_chosen_weights(
    model: Model, targets: Sequence[Target], wanted: Precision
) -> ChosenPrecision:
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
        done.model, tuple(targets), notes=(*notes, *note_unused(wanted)), weights=done.weights
    )


def quantize_on_data(
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


def _shorten(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"{', '.join(names[:_MAX_NAMES])}{more}"


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
