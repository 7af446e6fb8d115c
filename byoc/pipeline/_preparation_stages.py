"""The stages of preparation: from options and files to a model that is ready to be planned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import byoc.samples
from byoc import bundle, codegen, padding, quantization
from byoc._dataclasses import dataclass, replace
from byoc.errors import InputError
from byoc.model import (
    add_dims,
    choose_state_pairs,
    find_state_pairs,
    freeze_initializers,
    list_default_inputs,
    make_variable,
    match_state_patterns,
    substitute_dim,
)
from byoc.passes import (
    FORM_NAMES,
    MODEL_SCOPE,
    MOVING_FORM_NAMES,
    REGION_SCOPE,
    PassProcess,
    find_forms,
    load_passes,
    load_region_pass,
)
from byoc.pipeline._partition_options import record_options
from byoc.pipeline._plan_options import list_files, list_names
from byoc.pipeline._planning_stages import Annotate, Group, Place, clean_rewritten
from byoc.pipeline._settings_loader import choose_by_target, load_settings, load_targets
from byoc.pipeline._state import (
    ChosenPasses,
    Loaded,
    LoadedModel,
    Placed,
    Prepared,
    Request,
    Resolved,
    Rewritten,
    Setup,
    take,
)
from byoc.placement import LAUNCH
from byoc.planning import find_graphs
from byoc.support import report_step
from byoc.zoo import find_genai_folder, load_model, name_source

if TYPE_CHECKING:
    from byoc.bundle import RegionCompiler
    from byoc.codegen import Codegens, Isolation
    from byoc.model import Model
    from byoc.passes import LoadedPass
    from byoc.pipeline._partition_options import Options
    from byoc.planning import PlanSettings
    from byoc.rules import Target
    from byoc.zoo import GenaiFolder


# Variants whose caches get a fixed length, where the model makes them longer by a Concat.


def load_original(request: Request, dims: Mapping[str, int | str], without_heavy: bool = False) -> Model:
    """Load the model that the options name at some dimensions, its variable constants as inputs.

    A note says where weights are inputs, unless they are to be constants. `without_heavy` is as in
    `byoc.zoo.load_model`. Raises InputError as that and `make_variable` do.
    """
    model = load_model(request.source, dims, request.options.shapes, without_heavy)
    if request.options.freeze_initializers:
        model = freeze_initializers(model)
    elif defaults := list_default_inputs(model):
        note = (
            f"{len(defaults)} weights are inputs with a default, so that accelerators cannot take them "
            f"as constants: --freeze-initializers makes them constants (the first is '{defaults[0]}')"
        )
        model = replace(model, inference=replace(model.inference, notes=(*model.notes, note)))
    if request.options.static_cache:
        model = padding.gather_rows_by_place(model)
    return make_variable(model, list_names(request.options.variable))


def unite_lengths(request: Request) -> Request:
    """Return a request for caches of one length in which each length is said once.

    Exporters name the length of each cache. Caches that are empty at first and grow by the same tokens
    are equally long, so that the others become the one that variants give, and the length of a mask
    that sum of past and new tokens which operators require. What the user gave stays. Where the caches
    cannot get a fixed length the request stays, and `load_static` says why.

    Raises InputError for a variant that gives caches several lengths.
    """
    options = request.options
    common = options.dims or {}
    try:
        whole = load_original(request, common, without_heavy=True)
        lengths = padding.list_cache_lengths(whole)
    except InputError:
        return request
    given = {name for each in options.list_variants() for name in each.dims}
    past, *others = sorted(lengths, key=lambda name: name not in given)  # a stable order
    relations = dict.fromkeys(others, past)
    relations |= {
        name: meaning
        for name, meaning in _find_totals(whole, past, others)
        if name not in given and name not in common
    }
    variants = {
        name: _drop_repeated(name, own, past, others) for name, own in (options.variants or {}).items()
    }
    dims = {**common, **relations}
    return replace(request, options=replace(options, dims=dims, variants=variants or options.variants))


def _find_totals(model: Model, past: str, others: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield dimensions of inputs that operators require to be the past and new tokens, and their sum."""
    try:
        decoder = byoc.samples.find_decoder_inputs(model)
    except InputError:
        return
    united = dict.fromkeys(others, past)
    total = add_dims(past, decoder.sequence)
    for name, meaning in decoder.maker.sizes.relations.meanings.items():
        if name not in united and isinstance(total, str) and substitute_dim(meaning, united) == total:
            yield name, total


def _drop_repeated(
    variant: str, own: Mapping[str, Any], past: str, others: Sequence[str]
) -> dict[str, Any]:
    """Return the dimensions of a variant with the length of its caches once.

    Raises InputError where it gives several.
    """
    for name in others:
        if name in own and own[name] != own.get(past):
            raise InputError(
                f"variant {variant}: {name} is {own[name]} and {past} is {own.get(past, 'not given')}, "
                "but both are the length of the caches"
            )
    return {name: said for name, said in own.items() if name not in others}


def load_static(request: Request, settings: PlanSettings) -> tuple[PlanSettings, LoadedModel | None]:
    """Return settings with the caches as state, and the model with caches of one length.

    That is their length before and after a call; the model is None for a variant whose past has none.
    Raises InputError for a model that cannot be brought into that form, with the reason.
    """
    report_step("give caches a fixed length")
    common, own = request.options.dims or {}, request.variant.dims
    try:
        whole = load_original(request, common, without_heavy=True)
        past, total, rows = padding.find_growing_dims(whole)
        pairs = {pair.past: pair.present for pair in find_state_pairs(whole.structure)}
        settings = replace(settings, state=settings.state or pairs)
        length = _read_length(own, past, total)
        if not length:
            return settings, None
        others = {name: said for name, said in own.items() if name not in {past, total}}
        relation = {total: f"{past} + {rows}"} if total and total not in common else {}
        opened = load_original(request, {**common, **others, **relation})
        static = padding.make_static(opened, past, total, length)
        decision = padding.decide_padding(static.load, {padding.CACHE_LENGTH: length})
        if decision.rule is None:
            raise InputError("; ".join(decision.refusals.values()))
    except InputError as error:
        what = f"{name_source(request.source)}: its caches cannot have a fixed length"
        raise InputError(f"{what}: {error}") from error
    original = static.load({padding.CACHE_LENGTH: length})
    return settings, LoadedModel(original, static.complete_rule(decision.rule))


def _read_length(dims: Mapping[str, int | str], past: str, total: str) -> int:
    """Return the length of the cache of a variant, 0 for no past. Raises InputError for none."""
    found = {name: str(dims[name]).strip() for name in (past, total) if name in dims}
    if not found.get(past, "").isdecimal():
        raise InputError(f"the variant does not say how long they are: {past}=LENGTH")
    length = int(found[past])
    if length and total in found and found[total] != found[past]:
        raise InputError(
            f"{past} is {length} and {total} is {found[total]}, but both are the length of the cache"
        )
    return length


@dataclass(frozen=True)
class Resolve:
    """Load what the options name: targets, cost models, strategy, codegens.

    Raises InputError when one cannot be loaded, or no bundle can be written where it is to be.
    """

    def run(self, state: Request) -> list[Resolved]:
        """Return the state of each variant; those with the same rule files have the same settings."""
        if state.options.output is not None:
            bundle.check_destination(Path(state.options.output))
        elif state.options.refit is not None:
            raise InputError("--refit makes a bundle: say where that is to be (-o)")
        if state.options.static_cache:
            state = unite_lengths(state)
        variants = state.options.list_variants()
        has_own = any(variant.rules for variant in variants)
        found: dict[tuple[str, ...], Resolved] = {}
        for rules in dict.fromkeys(variant.rules for variant in variants):
            options = _choose_rules(state.options, rules) if has_own else state.options
            found[rules] = self._resolve(replace(state, options=options), state.options)
        if state.options.refit is not None:
            compilers = [each for one in found.values() for each in one.setup.compilers.values()]
            bundle.require_earlier_regions(compilers, Path(state.options.refit))
        return [
            replace(each, request=replace(each.request, variant=named, options=own))
            for variant in variants
            for each in [found[variant.rules]]
            for named in [replace(variant, component=state.variant.component)]
            for own in [
                replace(each.request.options, precision=state.options.get_precision(variant.name))
            ]
        ]

    def _resolve(self, state: Request, asked: Options) -> Resolved:
        """Return the state of the variants with the rule files of a request; `asked` is recorded."""
        options = state.options
        output = None if options.output is None else Path(options.output)
        settings = load_settings(options, options.strategy, options.placement, robust=options.robust)
        compilers = _load_compilers(options, settings, state.codegens)
        if options.refit is not None:
            compilers = bundle.add_earlier_regions(compilers, Path(options.refit))
        if options.share_blocks:
            settings = replace(settings, share_blocks=_find_sharing(settings, compilers))
        if options.emit is not None:
            _check_emit(options, compilers)
        _check_weights(options)
        setup = Setup(
            record=record_options(state.source, asked),
            passes=_choose_passes(options, settings.targets),
            compilers=compilers,
            # Absolute: a codegen's code may change the working directory.
            output=None if output is None else output.absolute(),
        )
        return Resolved(request=state, setup=setup, settings=settings)


def _choose_rules(options: Options, rules: Sequence[str]) -> Options:
    """Return the options of variants with rule files of their own, or without any with those of all.

    What is given by target for accelerators of other variants alone is left out.
    """
    chosen = list_files(rules) or list_files(options.rules)
    own = {target.name for target in load_targets(chosen)}
    files = [list_files(options.rules), *(each.rules for each in options.list_variants())]
    known = {target.name for each in files if each for target in load_targets(each)}
    others = known - own

    def narrow(given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return {key: value for key, value in given.items() if key.partition(":")[0] not in others}

    names = ("codegen", "cost_model", "codegen_options", "cost_options")
    return replace(options, rules=chosen, **{name: narrow(getattr(options, name)) for name in names})


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


def _choose_passes(options: Options, targets: Sequence[Target]) -> ChosenPasses:
    """Load the passes that the options and the rule files name.

    Those of a target's rule file come before the user's; one that both name has the user's options.
    Raises InputError when a pass cannot be loaded or does not take an option.
    """
    asked = load_passes(list_names(options.passes), options.pass_options or {})
    own = tuple(each for each in asked if each.scope == REGION_SCOPE)
    regions = {target.name: (*_load_of_target(target, own), *own) for target in targets}
    return ChosenPasses(
        tuple(each for each in asked if each.scope == MODEL_SCOPE),
        {name: passes for name, passes in regions.items() if passes},
        _choose_process(options.isolation),
    )


def _load_of_target(target: Target, own: Sequence[LoadedPass]) -> list[LoadedPass]:
    found, names = [], {each.name for each in own}
    for name, given in target.rules.passes.items():
        if name in names:
            continue
        try:
            found.append(load_region_pass(name, given))
        except InputError as error:
            raise InputError(f"{target.source}: {target.locate(f'passes.{name}')}: {error}") from None
    return found


def _choose_process(isolation: Isolation | None) -> PassProcess | None:
    if isolation is None:
        return None
    return PassProcess(isolation.find_limit("compile"), isolation.environment)


@dataclass(frozen=True)
class Load:
    """Read and check the model and the samples. Raises InputError as their readers do."""

    def run(self, state: Resolved) -> Loaded:
        """Return the state with the model; the settings get its state from call to call."""
        report_step("load model")
        request, options, settings = state.request, state.request.options, state.settings
        loaded = None
        if options.static_cache:
            settings, loaded = load_static(request, settings)
        if loaded is None:
            dims = {**(options.dims or {}), **request.variant.dims}
            loaded = LoadedModel(load_original(request, dims, _reads_no_weights(options)))
        original = loaded.original
        if options.inputs is not None and not request.variant.automatic:  # which takes some of them
            given = byoc.samples.read_samples(options.inputs, original, byoc.samples.MAX_SAMPLES)
            loaded = replace(loaded, samples=given)
        genai = None if options.output is None else find_genai_folder(request.source)
        if genai is not None:
            _check_genai(genai, loaded, request)
            loaded = replace(loaded, genai=genai)
        settings = replace(settings, state=_find_state(settings, original))
        return Loaded(request=request, setup=state.setup, settings=settings, loaded=loaded)


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


def _check_genai(genai: GenaiFolder, model: LoadedModel, request: Request) -> None:
    """Raise InputError where a bundle would be no folder that onnxruntime-genai loads."""
    if model.static_rule is not None:
        raise InputError(
            f"{genai.path}: onnxruntime-genai makes caches grow, so --static-cache is not for it"
        )
    if request.options.weights == "reference":
        raise InputError(
            f"{genai.path}: onnxruntime-genai follows no path out of its folder: --weights copy or link"
        )
    if not request.variant.name:  # of variants see `choose_pipeline`
        genai.check_prompt_length(model.original)


def _reads_no_weights(options: Options) -> bool:
    """Return whether a plan is made by what nodes and tensors are, and no weight is read."""
    computes = options.passes or options.inputs is not None or options.precision.quantize is not None
    return options.output is None and options.ask is None and not computes


@dataclass(frozen=True)
class Quantize:
    """Bring the model to the precision that was asked for; calibrate where ranges are to be measured.

    Raises InputError as `choose_precision` does, and for an accuracy budget where nothing is quantized.
    """

    def run(self, state: Rewritten) -> Prepared:
        """Return the state with the model to be planned; the settings get targets that compute so.

        Nodes that would be on the host in a form that only an accelerator wants get back the one that
        they had, until none is left: so each form is a choice of the placement. Where forms move data,
        the cheapest of three plans counts: that one, one found at what the host needs for the forms that
        it had, and one without these forms. A strategy that does not weigh costs gets the first.
        """
        found = self._settle(state)
        moving = not MOVING_FORM_NAMES.isdisjoint(effect.name for effect in found.pass_effects)
        if not moving or LAUNCH not in getattr(state.settings.strategy, "honours", ()):
            return found
        plain = self._settle(state, _list_forms)
        plans = [plain, found, self._settle(state, partial(_find_forms_on_host, free_views=True))]
        return min(plans, key=lambda each: _place(each).root.whole_cost.total)

    def _settle(
        self, state: Rewritten, find_unwanted: Callable[[Prepared], frozenset[str]] | None = None
    ) -> Prepared:
        """Return the model to be planned without unwanted forms, by default those on the host."""
        find = find_unwanted or _find_forms_on_host
        found = self._quantize(state)
        while state.asked is not None and (left := find(found)):
            state = clean_rewritten(state, state.asked, state.unwanted | left)
            found = self._quantize(state)
        return found

    def _quantize(self, state: Rewritten) -> Prepared:
        precision, original = state.request.options.precision, state.loaded.original

        def predict(model: Model) -> float:
            settings = replace(state.settings, names_limits=False)
            known = take(Loaded, state) | {"settings": settings}
            trial = Prepared(**known, precision=quantization.ChosenPrecision(model, targets))
            return Place().run(Group().run(Annotate().run(trial))).root.whole_cost.total

        targets = state.settings.targets
        chosen = quantization.choose_precision(state.rewritten, targets, precision, predict)
        if chosen.ranges is None and precision.budget is not None:
            asked = precision.quantize
            reason = f"{asked} computes in no integers" if asked else "nothing is quantized (--quantize)"
            raise InputError(f"accuracy budget {precision.budget}: {reason}")
        test = None
        if precision.budget is not None:
            test = quantization.prepare_accuracy_test(original, chosen, precision)
        found = Prepared(
            **take(Loaded, state), pass_effects=state.pass_effects, precision=chosen, accuracy_test=test
        )
        return replace(found, settings=replace(state.settings, targets=chosen.targets))


def _place(state: Prepared) -> Placed:
    return Place().run(Group().run(Annotate().run(state)))


def _list_forms(state: Prepared) -> frozenset[str]:
    """Return the nodes in whose form data is moved, or else those in another form on the host."""
    graphs = find_graphs(state.precision.model.index)
    moving = {name for graph in graphs for name in find_forms(graph, moving=True).values()}
    return frozenset(moving) if moving else _find_forms_on_host(state)


def _find_forms_on_host(state: Prepared, *, free_views: bool = False) -> frozenset[str]:
    """Return the nodes in another form that would be on the host, by the first output that they had.

    With `free_views` what moves data for them costs nothing on the host.
    """
    if FORM_NAMES.isdisjoint(effect.name for effect in state.pass_effects):
        return frozenset()
    placed = _place(replace(state, settings=replace(state.settings, free_views=free_views)))
    found: set[str] = set()
    for graph in placed.root.walk():
        forms = find_forms(graph.index)
        for unit, device in zip(graph.units, graph.placement.labels.tolist(), strict=True):
            if not device:
                found.update(forms[node] for node in unit.nodes if node in forms)
    return frozenset(found)
