"""The stages of preparation: from options and files to a model that is ready to be planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import byoc.samples
from byoc import bundle, codegen, quantization
from byoc.errors import InputError
from byoc.model import (
    choose_state_pairs,
    find_state_pairs,
    match_state_patterns,
)
from byoc.options import record_options
from byoc.planning import LoweredPrecision
from byoc.stages._chosen_passes import choose_passes
from byoc.stages._planning_stages import Annotate, Group, Place
from byoc.stages._settings_loader import choose_by_target, load_settings
from byoc.stages._state import run_stages
from byoc.stages._static_caches import load_original, load_static
from byoc.support import report_step
from byoc.zoo import find_genai_folder

if TYPE_CHECKING:
    from byoc.bundle import RegionCompiler
    from byoc.codegen import Codegens
    from byoc.model import Model
    from byoc.options import Options
    from byoc.planning import PlanSettings
    from byoc.quantization import (
        ChosenPrecision,
        Precision,
        UnitPrecisions,
    )
    from byoc.stages._state import State
    from byoc.zoo import GenaiFolder


@dataclass(frozen=True)
class Resolve:
    """Load what the options name: targets, cost models, strategy, codegens.

    Raises InputError when one cannot be loaded, or no bundle can be written where it is to be.
    """

    def run(self, state: State) -> State:
        """Fill in `record`, `settings`, `compilers`, `output` and `passes`."""
        options = state.options
        output = None if options.output is None else Path(options.output)
        if output is not None:
            bundle.check_destination(output)
        settings = load_settings(options, options.strategy, options.placement, robust=options.robust)
        compilers = _load_compilers(options, settings, state.codegens)
        if options.share_blocks:
            settings = replace(settings, share_blocks=_find_sharing(settings, compilers))
        if options.emit is not None:
            _check_emit(options, compilers)
        _check_weights(options)
        return replace(
            state,
            record=record_options(state.source, options),
            settings=settings,
            compilers=compilers,
            passes=choose_passes(options, settings.targets),
            # Absolute: a codegen's code may change the working directory.
            output=None if output is None else output.absolute(),
        )


def _load_compilers(
    options: Options, settings: PlanSettings, codegens: Codegens
) -> dict[str, RegionCompiler]:
    """Return the compiler of each target; none where a plan is all that is asked for."""
    if options.output is None and options.codegen is None and not options.codegen_options:
        return {}  # a plan can be made before there is a codegen
    targets = settings.targets
    names = choose_by_target(targets, options.codegen, "codegen", lambda target: target.rules.codegen)
    cache = None if options.output is None else options.open_cache()
    return bundle.load_compilers(targets, names, options.codegen_options or {}, codegens, cache)


def _find_sharing(settings: PlanSettings, compilers: Mapping[str, RegionCompiler]) -> frozenset[str]:
    """Return the targets whose repeated blocks are compiled once; all where there is no codegen yet.

    Raises InputError when no codegen takes weights.
    """
    if not compilers:
        return frozenset(target.name for target in settings.targets)
    found = [name for name, each in compilers.items() if isinstance(each.codegen, codegen.TakesWeights)]
    if not found:
        names = ", ".join(dict.fromkeys(each.codegen.name for each in compilers.values()))
        raise InputError(
            f"--share-blocks: {names} takes no weights (`take_weights`), so each block would be compiled"
        )
    return frozenset(found)


def _check_emit(options: Options, compilers: Mapping[str, RegionCompiler]) -> None:
    """Raise InputError when what is to be written besides the bundle is not known, or cannot be."""
    if options.emit != "epcontext":
        raise InputError(f"emit is '{options.emit}', but must be 'epcontext'")
    if options.output is None:
        raise InputError("--emit epcontext writes into the bundle: say where that is to be (-o)")
    bundle.require_contexts({name: compiler.codegen for name, compiler in compilers.items()})


def _check_weights(options: Options) -> None:
    """Raise InputError where weights cannot be shared with the user's files in what is written."""
    if options.weights == "copy":
        return
    what = f"--weights {options.weights}"
    if options.output is None:
        raise InputError(f"{what} is about the bundle: say where that is to be written (-o)")
    if bundle.is_packed_name(Path(options.output)):
        raise InputError(f"{what}: a packed bundle holds its weights: write a folder")
    if options.weights == "reference" and options.emit is not None:
        raise InputError(
            f"{what}: applications load what --emit {options.emit} writes, and ONNX Runtime follows "
            "no path out of the bundle: take --weights link or copy"
        )


@dataclass(frozen=True)
class Load:
    """Read and check the model and the samples. Raises InputError as their readers do."""

    def run(self, state: State) -> State:
        """Fill in `original`, `static_rule`, `samples` and `genai`; update the settings' state."""
        report_step("load model")
        options = state.options
        if options.static_cache:
            state = load_static(state)
        original = state.original
        if state.static_rule is None:
            dims = {**(options.dims or {}), **state.variant.dims}
            original = load_original(state, dims, _reads_no_weights(options))
        samples = (
            ()
            if options.inputs is None
            else byoc.samples.read_samples(options.inputs, original, byoc.samples.MAX_SAMPLES)
        )
        genai = None if options.output is None else find_genai_folder(state.source)
        if genai is not None:
            _check_genai(genai, original, state)
        settings = replace(state.settings, state=_find_state(state.settings, original))
        return replace(state, original=original, samples=samples, genai=genai, settings=settings)


def _find_state(settings: PlanSettings, model: Model) -> dict[str, str] | None:
    """Return the pairs of state that are declared, by the user or by patterns of rule files.

    Those of rule files come before what is found. Returns None where there are none. Raises InputError
    for pairs that cannot be.
    """
    if settings.state is not None:
        return {pair.past: pair.present for pair in choose_state_pairs(model.proto, settings.state)}
    declared: dict[str, str] = {}
    for target in settings.targets:
        if target.rules.state_pairs:  # what reads the whole model, heavy weights, too
            declared = match_state_patterns(target.rules.state_pairs, model.proto) | declared
    if not declared:
        return None
    found = {pair.past: pair.present for pair in find_state_pairs(model.proto)}
    others = {past: made for past, made in found.items() if made not in declared.values()}
    pairs = others | declared
    return {pair.past: pair.present for pair in choose_state_pairs(model.proto, pairs)}


def _check_genai(genai: GenaiFolder, original: Model, state: State) -> None:
    """Raise InputError where a bundle would be no folder that onnxruntime-genai loads."""
    if state.static_rule is not None:
        raise InputError(
            f"{genai.path}: onnxruntime-genai makes caches grow, so --static-cache is not for it"
        )
    if state.options.weights == "reference":
        raise InputError(
            f"{genai.path}: onnxruntime-genai follows no path out of its folder: --weights copy or link"
        )
    if not state.variant.name:  # of variants see `choose_pipeline`
        genai.check_prompt_length(original)


def _reads_no_weights(options: Options) -> bool:
    """Return whether a plan is made by what nodes and tensors are, and no weight is read."""
    computes = options.passes or options.inputs is not None or options.precision.quantize is not None
    return options.output is None and options.ask is None and not computes


@dataclass(frozen=True)
class Quantize:
    """Bring the model to the precision that was asked for; calibrate where ranges are to be measured.

    Raises InputError as `choose_precision` does, and for an accuracy budget where nothing is quantized.
    """

    def run(self, state: State) -> State:
        """Fill in `precision`, `model`, `lowered` and `accuracy_test`; update the settings' targets."""
        precision = state.options.precision

        def predict(model: Model) -> float:
            stages = (Annotate(), Group(), Place())
            return run_stages(stages, replace(state, model=model)).root.whole_cost.total

        targets = state.settings.targets
        chosen = quantization.choose_precision(state.rewritten, targets, precision, predict)
        if chosen.ranges is None and precision.budget is not None:
            asked = precision.quantize
            reason = f"{asked} computes in no integers" if asked else "nothing is quantized (--quantize)"
            raise InputError(f"accuracy budget {precision.budget}: {reason}")
        test = None
        if precision.budget is not None:
            test = quantization.prepare_accuracy_test(state.original, chosen, precision)
        return replace(
            state,
            settings=replace(state.settings, targets=chosen.targets),
            precision=chosen,
            model=chosen.model,
            lowered=_describe_lowering(state.original, chosen, precision),
            accuracy_test=test,
        )


def _describe_lowering(
    original: Model, chosen: ChosenPrecision, precision: Precision
) -> LoweredPrecision | None:
    """Return the lowered precision, None where regions compute as the model says."""
    ranges = chosen.ranges
    if ranges is not None:
        return LoweredPrecision(
            original=original,
            dtype=precision.quantize,
            source=ranges.source,
            method=ranges.method,
            samples=ranges.samples,
            random=ranges.random,
            units=len(chosen.units),
        )
    if precision.quantize not in (*quantization.FLOATS, quantization.WEIGHTS):
        return None
    return LoweredPrecision(
        original, precision.quantize, units=len(chosen.weights), weights=chosen.weights
    )


@dataclass(frozen=True)
class SetPrecisions:
    """Quantize the model anew, with units in other precisions."""

    precisions: UnitPrecisions

    def run(self, state: State) -> State:
        """Fill in `model` and `precisions`."""
        model = state.precision.set_precisions(self.precisions)
        return replace(state, model=model, precisions=self.precisions)
