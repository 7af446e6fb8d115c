"""Quantization as it was chosen: in ranges that are given or measured on data, or of weights alone."""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from onnx import NodeProto

from byoc._dataclasses import dataclass, replace
from byoc.console import format_count
from byoc.model import GraphIndex, Model, copy_without, get_node_name, set_metadata
from byoc.passes import find_twins
from byoc.patterns import Match, find_matches
from byoc.quantization._accuracy_measures import run_with_logits
from byoc.quantization._calibration_file import read_ranges
from byoc.quantization._calibrators import CHANNELS, EIGHT_BIT_STEPS, Range, Ranges
from byoc.quantization._candidates import FINER_KEY
from byoc.quantization._channel_classes import measure_channels
from byoc.quantization._channel_groups import GroupedModel, find_channel_groups
from byoc.quantization._choose_precision import ChosenPrecision, find_wide_targets, note_unused
from byoc.quantization._equalization import describe_coarse_outputs, find_coarse_concats
from byoc.quantization._feature_scaling import find_rescaled_sums, find_wide_sums
from byoc.quantization._precision import DEFAULT_BLOCK, WEIGHTS, Precision
from byoc.quantization._prepare_model import find_activations, find_tail_units
from byoc.quantization._quantization_trials import (
    TIME_PRICE,
    QuantizationTrials,
    QuantizedOnData,
    TrialClock,
)
from byoc.quantization._quantization_variants import (
    METHODS,
    QUICK,
    THOROUGH,
    DataRequest,
    QuantizationVariant,
    VariantMaker,
)
from byoc.quantization._quantize_model import QuantizedModel, prepare_floats, quantize
from byoc.quantization._quantize_weights import quantize_weights
from byoc.rules import Target
from byoc.samples import NO_PREPROCESSING, find_samples
from byoc.support import Note, report_step

_SAMPLES = 16  # that channels are measured on, and variants of the model compared
_WEIGHT_SAMPLES = 64  # that weights in blocks are rounded on
_LEAST_SAMPLES = 8  # of a network with large tensors, of which a sample has more values
_VALUES = 1 << 27  # of float tensors in all these samples, unless these are the fewest
_SUM_PRICE = 0.05
"""The share of the predicted seconds that Muls behind sums may add: a transformer has nothing else.

Where the worst output lacks more than a decibel to 10, they may add as much for each that is missing.
"""
_WIDE_MOST = 3.0
"""The decibels at that price for which sums in 16 bits may take longer, if no more than 10 dB are left.

All sums of a transformer together take 4 to 12 % of its seconds, for twice the bytes and a conversion.
"""
_EQUALIZED = "channels are equalized, which lowers the noise on the samples"
_ROUNDED = "weights are rounded by the errors of what they make on the samples, not by their own"
_GROUPED = "channels of {} are in groups with scales of their own"
_RESCALED = "{} {} in integers with features divided by factors, which a Mul undoes"
_WIDENED = "{} before normalizations {} in 16 bits, for {:.1f} % more predicted time"
_FINER = "{} of sums {} computed before these are rounded to 8 bits"


@dataclass(frozen=True, eq=False)
class DataQuantizer(DataRequest):
    """Quantizes models with ranges that are measured on data, as is asked for."""

    def quantize(self, model: Model) -> QuantizedOnData:
        """Return the variant of the least noise that is measured on samples.

        What is tried, in this order: channels and features equalized, ranges by several methods, sums
        rescaled or in 16 bits before they are normalized, channels in groups, finer composites, units
        behind the inputs in floating point, units before outputs there or in 16 bits, and weights
        rounded by the errors of what they make. What takes longer is kept where that is worth the
        seconds that `predict` returns. Biases are corrected in each variant. Data that is made up
        chooses and corrects nothing. Raises InputError as `calibrate` and `quantize` do.
        """
        floats = prepare_floats(model, self.targets, self.dtype)
        source = find_samples(self.data, floats, self.images, None)
        count = _SAMPLES if self.effort == THOROUGH else _count_samples(floats.index)
        read = [] if source.random else islice(source.read_from(0), count)
        samples = [each.inputs for each in read]
        methods = [self.method] if self.method else METHODS
        maker = VariantMaker(self, floats, samples)
        expected = run_with_logits(floats, maker.measured_samples) if samples else []
        trials = QuantizationTrials(maker, expected, TrialClock(self.effort))
        plain = trials.add(QuantizationVariant(methods[0]))
        if not samples or not plain.quantized.units:
            return trials.finish()
        if maker.equalize(None) is not floats:
            equalized = replace(plain.variant, equalized=True)
            trials.add(equalized.extend(steps=[_EQUALIZED]))
        clipped = {QUICK: [], THOROUGH: trials.trials}.get(self.effort, [trials.best])
        for each in clipped[:] if len(methods) > 1 else ():  # those that change less come first
            trials.add(replace(each.variant, method=methods[-1]))
        trials = self._refine_sums(trials)
        if self.effort == QUICK:
            return trials.finish()
        trials = self._group_channels(trials, methods)
        trials = self._compute_functions_finer(trials, plain.quantized.model)
        trials.leave_head_in_float()
        trials.refine_outputs()
        best = trials.best
        trials.add(replace(best.variant.extend(steps=[_ROUNDED]), rounded=True))
        return trials.finish()

    def _refine_sums(self, trials: QuantizationTrials) -> QuantizationTrials:
        """Return trials with sums before normalizations rescaled, or in 16 bits, as is worth more."""
        best = trials.best
        rescaled, widened = self._rescale_sums(trials), self._widen_sums(trials)

        def rate(one: QuantizationTrials) -> float:
            """Return the decibels that are gained, less those that the time is the price of."""
            if one is trials:
                return 0.0
            return one.best.score - best.score - one.predict_longer(one.best, best) / _SUM_PRICE

        return max(trials, rescaled, widened, key=rate)

    def _widen_sums(self, trials: QuantizationTrials) -> QuantizationTrials:
        """Return trials of a variant with sums in 16 bits, where that is worth its time."""
        best, maker = trials.best, trials.maker
        units = best.quantized.units
        targets = self.wide_targets
        found = find_wide_sums(maker.floats, units, maker.fitted_samples) if targets else []
        if not found or not trials.has_wide:
            return trials
        report_step("choose sums in 16 bits")
        most = max(_WIDE_MOST, best.accuracies.missing)

        def vary(count: int) -> QuantizationVariant:
            sums = found[:count]
            products = tuple(name for each in sums for name in each.products)
            varied = best.variant.extend(wide=[each.unit for each in sums])
            return replace(varied, wide_tensors=products)

        def predict(count: int) -> float:
            return self.predict(maker.quantize_plainly(vary(count))) if self.predict else 0.0

        limit = (1 + _SUM_PRICE * most) * predict(0)
        count = len(found)
        if predict(count) > limit:
            count = bisect_right(range(1, count), limit, key=predict)
        if not count:
            return trials
        wide = QuantizationTrials(maker, trials.expected, trials.clock)
        tried = wide.add(vary(count))
        if not units.keys() <= tried.quantized.units.keys():  # which a target refuses so
            return trials
        if not wide.is_worth_its_time(tried, best, _SUM_PRICE, most):
            return trials
        step = _WIDENED.format(*_count(count, "sum"), 100 * wide.predict_longer(tried, best))
        return replace(wide, trials=[replace(tried, variant=tried.variant.extend(steps=[step]))])

    def _rescale_sums(self, trials: QuantizationTrials) -> QuantizationTrials:
        """Return trials of a model with sums rescaled before they are normalized, where that pays."""
        best, maker = trials.best, trials.maker
        found = find_rescaled_sums(maker.floats, maker.fitted_samples)
        if not found.sums:
            return trials
        report_step("choose sums to rescale")
        ranges = maker.measure_ranges(best.variant, None)
        predict = partial(self._predict_floats, ranges=ranges)
        most = max(1.0, best.accuracies.missing)
        limit = (1 + _SUM_PRICE * most) * predict(maker.floats)
        count = bisect_right(
            range(1, len(found.sums) + 1), limit, key=lambda each: predict(found.take(each))
        )
        if not count:
            return trials
        step = [_EQUALIZED] if not best.variant.equalized else []
        sums = sum(map(len, found.sums[:count]))
        variant = best.variant.extend(steps=[*step, _RESCALED.format(*_count(sums, "sum"))])
        rescaled = QuantizationTrials(
            VariantMaker(self, found.take(count), maker.samples), trials.expected, trials.clock
        )
        tried = rescaled.add(replace(variant, equalized=True))
        return rescaled if rescaled.is_worth_its_time(tried, best, _SUM_PRICE, most) else trials

    def _group_channels(self, trials: QuantizationTrials, methods: Sequence[str]) -> QuantizationTrials:
        """Return trials of a model with channels in groups instead, where that is worth its time."""
        best, maker = trials.best, trials.maker
        groups = find_channel_groups(maker.floats, maker.fitted_samples, maker.channel_tensors or ())
        if not groups.chains:
            return trials
        report_step("choose groups of channels")
        ranges = maker.measure_ranges(best.variant, None)
        known = ranges.tensors

        def predict(grouped: GroupedModel) -> float:
            parts = {made: known[name] for made, name in grouped.sources.items() if name in known}
            return self._predict_floats(grouped.model, replace(ranges, tensors={**known, **parts}))

        chosen = groups.choose(predict, TIME_PRICE)
        if not chosen.count:
            return trials
        convolutions = format_count(chosen.count, "depthwise convolution")
        variant = best.variant.extend(steps=[_GROUPED.format(convolutions)])
        grouped = QuantizationTrials(
            VariantMaker(self, chosen.model, maker.samples), trials.expected, trials.clock
        )
        for method in methods:
            grouped.add(replace(variant, method=method))
        return grouped if grouped.is_worth_its_time(grouped.best, best) else trials

    def _compute_functions_finer(self, trials: QuantizationTrials, plain: Model) -> QuantizationTrials:
        """Return trials of a model with finer composites instead, where those are worth their time.

        With groups of channels, it may take as much longer than the `plain` one as either alone.
        """
        if self.predict is None:
            return trials
        best, maker = trials.best, trials.maker
        places = find_finer_composites(maker.floats, self.targets, maker.fitted_samples)
        if not places:
            return trials
        report_step("choose finer composites")
        ranges = maker.measure_ranges(best.variant, None)
        seconds = self.predict(best.quantized.model)  # 0 by a cost model that counts nothing
        most = (1 + TIME_PRICE) * self.predict(plain) / seconds - 1 if seconds else TIME_PRICE
        predict = partial(self._predict_floats, ranges=ranges)
        marked, count = choose_finer(maker.floats, places, predict, most)
        if not count:
            return trials
        finer = QuantizationTrials(
            VariantMaker(self, marked, maker.samples), trials.expected, trials.clock
        )
        tried = finer.add(best.variant.extend(steps=[_FINER.format(*_count(count, "function"))]))
        return finer if tried.is_better(best) else trials

    def _predict_floats(self, floats: Model, ranges: Ranges) -> float:
        """Return the predicted seconds of a float model as quantized, 0 where time does not count."""
        if self.predict is None:
            return 0.0
        return self.predict(quantize(floats, self.targets, ranges, self.dtype).model)


def _count(number: int, thing: str) -> tuple[str, str]:
    """Return a number of things, and the verb behind it: `1 sum`, `is` or `2 sums`, `are`."""
    return format_count(number, thing), "is" if number == 1 else "are"


def _count_samples(index: GraphIndex) -> int:
    """Return the number of samples to compare variants on: fewer where tensors are large."""
    shapes = (index.get_shape(name) or () for name in find_activations(index))
    values = sum(math.prod(each for each in shape if isinstance(each, int)) for shape in shapes)
    return max(_LEAST_SAMPLES, min(_SAMPLES, _VALUES // max(values, 1)))


# Composites that round less than their operators one by one, and take longer: where to have them.
#
# An accelerator may compute a function of a convolution's sums before it rounds them, in more time.
# A rule file says so of a composite (`finer`). Those come first that lower the rounding noise most
# for their time.

_TINY = 1e-30  # keeps a quotient finite, also of denormal powers


@dataclass(frozen=True, eq=False)
class FinerComposite:
    """A place where a model could have a finer composite, and the rounding noise that it would spare.

    `noise` is that of 8 bits in what the last node of the match makes, as a share of its signal, and
    `elements` is the number of elements of that tensor.
    """

    match: Match
    noise: float
    elements: int


def find_finer_composites(
    model: Model, targets: Sequence[Target], samples: Sequence[Mapping[str, Any]]
) -> list[FinerComposite]:
    """Return the places where a float model could have finer composites; none shares a node.

    Ranges and signals are measured on the samples.
    """
    index, matches = model.index, _match_finer(model.index, targets)
    if not matches:
        return []
    names = sorted({_find_result(index, match) for match in matches})
    statistics = measure_channels(model, names, samples, "functions")
    places = []
    for match in matches:
        seen = statistics[_find_result(index, match)]
        step = Range(float(seen.low.min()), float(seen.high.max())).width / EIGHT_BIT_STEPS
        signal = max(float((seen.power - seen.mean**2).mean()), _TINY)
        shape = index.get_shape(_find_result(index, match)) or ()
        elements = math.prod(extent for extent in shape if isinstance(extent, int))
        places.append(FinerComposite(match, step**2 / 12 / signal, max(elements, 1)))
    return places


def _match_finer(index: GraphIndex, targets: Sequence[Target]) -> list[Match]:
    """Return the matches of finer composites whose results have channels; none shares a node."""
    patterns = [each for target in targets for each in target.patterns if each.finer]
    free = frozenset(range(len(index.nodes))) - index.constant_nodes
    taken: set[int] = set()
    found: list[Match] = []
    for match in find_matches(index, patterns, free) if patterns else ():
        nodes = set(match.nodes.values())
        if taken.isdisjoint(nodes) and (index.get_rank(_find_result(index, match)) or 0) > CHANNELS:
            taken |= nodes
            found.append(match)
    return found


def choose_finer(
    model: Model, places: Sequence[FinerComposite], predict: Callable[[Model], float], most: float
) -> tuple[Model, int]:
    """Return a model marked with the finer composites that are worth their time most, and their number.

    `predict` returns the seconds of a model so marked. All that are chosen take at most a share `most`
    of the seconds without any. How long one takes grows with the elements that it makes.
    """
    order = sorted(places, key=lambda each: -each.noise / each.elements)
    limit = (1 + most) * predict(model)
    count, too_many = 0, len(order) + 1  # the first `count` are within the limit
    while count + 1 < too_many:
        middle = (count + too_many) // 2
        if predict(mark_finer(model, order[:middle])) <= limit:
            count = middle
        else:
            too_many = middle
    return mark_finer(model, order[:count]), count


def mark_finer(model: Model, places: Sequence[FinerComposite]) -> Model:
    """Return a float model whose last nodes of some finer composites are marked."""
    if not places:
        return model
    proto = copy_without(model.structure)
    for place in places:
        set_metadata(proto.graph.node[place.match.root], FINER_KEY, place.match.pattern.name)
    return replace(model, structure=proto)


def _find_result(index: GraphIndex, match: Match) -> str:
    return index.nodes[match.root].output[0]


# Quantization as it was chosen: in ranges that are given or measured on data, or of weights alone.


_MAX_NAMES = 3  # in a sentence
_FEW_SAMPLES = 4  # seldom have the largest values that a network meets
_RANDOM_WARNING = Note(
    "warning", "the scales are concluded from random data, and mean nothing for real inputs"
)


def quantize_as_chosen(
    model: Model,
    targets: Sequence[Target],
    integer: Sequence[Target],
    wanted: Precision,
    predict: Callable[[Model], float] | None = None,
) -> ChosenPrecision:
    """Quantize a model's weights alone, or all of it for the `integer` ones of its targets.

    Raises InputError as `read_ranges`, `calibrate` and `quantize` do.
    """
    if wanted.quantize == WEIGHTS:
        return _quantize_chosen_weights(model, targets, wanted)
    if wanted.calibration is None:
        return _quantize_on_data(model, targets, integer, wanted, predict)
    return _quantize_in_ranges(model, targets, integer, wanted.calibration, wanted.quantize)


def _quantize_in_ranges(
    model: Model,
    targets: Sequence[Target],
    integer: Sequence[Target],
    given: str | Path | Ranges,
    dtype: str | None,
) -> ChosenPrecision:
    """Quantize a model with ranges, or those of a file.

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


def _quantize_chosen_weights(
    model: Model, targets: Sequence[Target], wanted: Precision
) -> ChosenPrecision:
    """Quantize the weights of a model's matrix products, with notes on what was left."""
    report_step("quantize weights")
    samples, given = _read_weight_samples(model, wanted)
    done = quantize_weights(model, targets, wanted.block or DEFAULT_BLOCK, samples, wanted.weight_bits)
    by_reason: dict[str, list[str]] = {}
    for name, reason in done.left.items():
        by_reason.setdefault(reason, []).append(f"'{name}'")
    notes = [
        Note("note", f"weights left as they are: {_shorten(names)}: {reason}")
        for reason, names in by_reason.items()
    ]
    if done.without_data:
        names = _shorten([f"'{name}'" for name in done.without_data])
        notes.append(
            Note(
                "note",
                f"weights rounded without --data, on which their inputs cannot be measured: {names}",
            )
        )
    if done.choice:
        notes.append(Note("note", done.choice))
    if not done.weights:
        notes.append(Note("note", "nothing is quantized"))
    return ChosenPrecision(done.model, tuple(targets), notes=(*notes, *given), weights=done.weights)


def _read_weight_samples(
    model: Model, wanted: Precision
) -> tuple[list[Mapping[str, Any]], tuple[Note, ...]]:
    """Return the samples to round weights on, and notes on what does not serve."""
    if wanted.data is None or wanted.calibration is not None:
        return [], note_unused(wanted)
    source = find_samples(wanted.data, model, wanted.images or NO_PREPROCESSING, None)
    if source.random:
        text = "--data random is not used: weights would be rounded for made-up inputs"
        return [], (Note("note", text),)
    return [each.inputs for each in islice(source.read_from(0), _WEIGHT_SAMPLES)], ()


def _quantize_on_data(
    model: Model,
    targets: Sequence[Target],
    integer: Sequence[Target],
    wanted: Precision,
    predict: Callable[[Model], float] | None,
) -> ChosenPrecision:
    """Quantize a model with ranges that are measured on data."""
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
        effort=wanted.effort or "normal",
    )
    found = quantizer.quantize(model)
    described = _describe_quantized(targets, found.quantized, found.ranges, found.steps)
    return replace(
        described,
        notes=(*described.notes, *(Note("warning", text) for text in found.warnings)),
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
