"""The stages of planning: from a prepared model to its plan, with the partitioned model and gains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from onnx import ModelProto

from byoc import bundle, verification
from byoc._dataclasses import dataclass, field, replace
from byoc.codegen import Refusal, RefusedError, Region
from byoc.console import format_count
from byoc.costs import check_trips
from byoc.errors import InputError, PluginFailedError
from byoc.model import (
    Model,
    check_domains_unused,
    copy_without,
    embed_external_data,
    prepare_model,
    unshare_dequantize,
    walk_tensors,
)
from byoc.passes import (
    LoadedPass,
    PassEffect,
    PassFailedError,
    PassProcess,
    apply_pass,
    count_operators,
    find_interface_change,
    is_changed,
    merge_effects,
)
from byoc.pipeline._outlining import (
    computes_otherwise,
    convert_boundaries,
    name_regions,
    outline_regions,
)
from byoc.pipeline._state import (
    Annotated,
    ChosenPasses,
    Grouped,
    Loaded,
    Outlined,
    Placed,
    Planned,
    Prepared,
    Rewritten,
    take,
)
from byoc.planning import (
    GraphPlan,
    LoweredPrecision,
    PartitionedModel,
    Plan,
    annotate_graphs,
    clean_for_targets,
    find_unknown_names,
    find_unmatched_annotations,
    group_graphs,
    plan_graphs,
    predict_at_ends,
    read_annotations,
    read_weight_layout,
    split_pinned_units,
)
from byoc.quantization import Range
from byoc.rules import Target, find_unmatched_names
from byoc.samples import Sample
from byoc.support import report_step
from byoc.verification import RewriteComparison

if TYPE_CHECKING:
    from byoc.boundary.convert import ConvertedModel
    from byoc.quantization import ChosenPrecision, Precision


# Rewriting by passes: of a model before it is annotated, of regions before they are compiled.

_UNCHANGED = RewriteComparison(equal=True)
_NOT_ASKED = RewriteComparison(not_compared="only bundles that are verified are compared")


@dataclass(frozen=True)
class Rewrite:
    """Rewrite the model by the passes that were asked for, then clean it.

    After a pass that was asked for the model is compared with the original where a bundle is verified;
    clean-up is compared with it as part of the bundle. Raises InputError and PluginFailedError as
    `rewrite_model` does.
    """

    def run(self, state: Loaded) -> Rewritten:
        """Return the state with the rewritten model, and the effects of the passes."""
        passes, loaded, options = state.setup.passes, state.loaded, state.request.options
        compare = options.output is not None and options.verify
        rewritten, effects = rewrite_model(
            loaded.original, passes.model, loaded.samples, passes.process, compare
        )
        return clean_rewritten(state, (rewritten, effects))


def clean_rewritten(
    state: Loaded,
    asked: tuple[Model, tuple[PassEffect, ...]],
    unwanted: frozenset[str] = frozenset(),
) -> Rewritten:
    """Return the state with a model, as the passes that were asked for left it, cleaned for its targets.

    `unwanted` names nodes that keep their form, by their first output. Raises InputError as
    `clean_for_targets` does.
    """
    options, (model, effects) = state.request.options, asked
    cleaned = clean_for_targets(
        model,
        state.settings.targets,
        options.no_passes,
        unwanted,
        quantizing=options.precision.may_quantize,
    )
    return Rewritten(
        **take(Loaded, state),
        rewritten=cleaned.model,
        pass_effects=(*effects, *cleaned.effects),
        asked=asked,
        unwanted=unwanted,
    )


def rewrite_model(
    model: Model,
    passes: Sequence[LoadedPass],
    samples: Sequence[Sample] = (),
    process: PassProcess | None = None,
    compare: bool = True,
) -> tuple[Model, tuple[PassEffect, ...]]:
    """Rewrite a model by passes, one after the other; return it with the effect of each.

    Each result is checked, and unless `compare` is False compared with the original on the samples, or
    on made ones. Raises InputError when a pass makes a model that is not valid, has other inputs or
    outputs, or computes something else; PluginFailedError when a pass fails.
    """
    effects, original = [], model
    for asked in passes:
        report_step(f"pass {asked.name}")
        rewritten = _apply_to_model(asked, model, process)
        models = model.proto, rewritten.proto
        compared = _UNCHANGED
        if is_changed(*models):
            compared = (
                verification.compare_models(original, rewritten, samples) if compare else _NOT_ASKED
            )
        if compared.problem:
            raise InputError(f"pass {asked.name} changes {model.source}: {compared.problem}")
        effects.append(_describe_effect(asked, "", models, compared))
        model = rewritten
    return model, tuple(effects)


def _apply_to_model(asked: LoadedPass, model: Model, process: PassProcess | None) -> Model:
    given = copy_without(model.proto)
    embed_external_data(walk_tensors(given), model.folder)
    try:
        made = apply_pass(asked, given, process)
    except PassFailedError as error:
        raise PluginFailedError(f"{model.source}: pass {asked.name} {error}") from error
    problem = find_interface_change(model.proto, made)
    if problem:
        raise InputError(f"pass {asked.name} changes {model.source}: {problem}")
    try:
        checked = prepare_model(made, f"pass {asked.name}: its result for {model.source}")
    except InputError as error:
        raise InputError(error.lines[0]) from None
    return replace(checked, source=model.source, make_samples=model.make_samples, planned=model.planned)


@dataclass(frozen=True, eq=False)
class RegionRewriter:
    """Rewrites the regions that are written to a bundle, before they are compiled.

    `effects` gathers what each pass did to each region; new weights go to `weights`.
    """

    passes: ChosenPasses
    targets: Sequence[Target]
    weights: bundle.WeightFile
    compare: bool = True
    _found: list[PassEffect] = field(default_factory=list)

    def rewrite(self, regions: Sequence[Region]) -> list[Region]:
        """Rewrite regions; return them in the same order.

        Raises RefusedError for all at which a pass fails; InputError when a pass makes a model that is
        not valid, or another region.
        """
        refusals: list[Refusal] = []
        rewritten = []
        for region in regions:
            try:
                rewritten.append(self._rewrite_one(region))
            except RefusedError as error:
                refusals += error.refusals
        if refusals:
            raise RefusedError(refusals)
        return rewritten

    @property
    def effects(self) -> tuple[PassEffect, ...]:
        """The effects by pass and target, those of a target's regions added up."""
        return merge_effects(self._found)

    def _rewrite_one(self, region: Region) -> Region:
        original, target = region, self._find_target(region)
        for asked in self.passes.regions.get(region.target, ()):
            report_step(f"pass {asked.name} on {region.name}")
            before = region.load()
            try:
                made = apply_pass(asked, region.load(), self.passes.process)
            except PassFailedError as error:
                reason = f"pass {asked.name} {error}"
                refusal = Refusal(region.target, target.rules.codegen, region.name, reason, failed=True)
                raise RefusedError([refusal]) from error
            if not is_changed(before, made):
                self._found.append(_describe_effect(asked, region.target, (before, made), _UNCHANGED))
                continue
            path = region.path.with_name(f"{region.name}.rewritten.onnx")
            try:
                rewritten = bundle.write_rewritten(
                    region, made, path, read_weight_layout(target), self.weights
                )
            except InputError as error:
                raise InputError(f"pass {asked.name} changes {region.name}: {error}") from None
            compared = verification.compare_regions(original, rewritten) if self.compare else _NOT_ASKED
            if compared.problem:
                raise InputError(f"pass {asked.name} changes {region.name}: {compared.problem}")
            self._found.append(_describe_effect(asked, region.target, (before, made), compared))
            region = rewritten
        return region if region is original else _replace_file(original, region)

    def _find_target(self, region: Region) -> Target:
        return next(target for target in self.targets if target.name == region.target)


def _replace_file(original: Region, rewritten: Region) -> Region:
    rewritten.path.replace(original.path)
    return replace(rewritten, path=original.path)


def _describe_effect(
    asked: LoadedPass,
    target: str,
    models: tuple[ModelProto, ModelProto],
    compared: RewriteComparison,
) -> PassEffect:
    """Return the effect of a pass on a model, given before and after it, or on a region of a target."""
    before, after = models
    return PassEffect(
        name=asked.name,
        distribution=asked.distribution,
        scope=asked.scope,
        target=target,
        options=asked.options,
        nodes_before=count_operators(before),
        nodes_after=count_operators(after),
        changed=int(is_changed(before, after)),
        compared=compared.samples,
        equal=compared.equal,
        largest_error=compared.largest_error,
        not_compared=compared.not_compared,
    )


@dataclass(frozen=True)
class Annotate:
    """Ask each target's rules about each node.

    Raises InputError when the model has no such Loop or Scan as the options speak of, or uses a
    target's domain.
    """

    def run(self, state: Prepared) -> Annotated:
        """Return the state with the index that is planned on, and the marks of its nodes."""
        settings = state.settings
        with _naming(state.model):
            check_domains_unused(state.model.index, [target.domain for target in settings.targets])
            check_trips(state.model.index, settings.trips)
        report_step(f"annotate for {', '.join(target.name for target in settings.targets)}")
        quantized = any(target.has_quantized_rules for target in settings.targets)
        index = (unshare_dequantize(state.model) if quantized else state.model).index
        marks = annotate_graphs(index, settings.targets)
        return Annotated(**take(Prepared, state), index=index, marks=marks)


@dataclass(frozen=True)
class Group:
    """Gather nodes into the units that are placed: composites, QDQ groups, single nodes."""

    def run(self, state: Annotated) -> Grouped:
        """Return the state with the units of each graph."""
        report_step("group")
        units = group_graphs(state.index, state.settings.targets, state.marks)
        return Grouped(**take(Annotated, state), units=units)


@dataclass(frozen=True)
class Place:
    """Have the strategy place the units of every graph, and name the regions that form.

    Raises InputError when a cost that is needed is not known, the strategy fails, or a unit that has to
    be on an accelerator cannot.
    """

    def run(self, state: Grouped) -> Placed:
        """Return the state with the placement; units that are given several devices are split."""
        settings = state.settings
        names = [target.name for target in settings.targets]
        pins = read_annotations(state.index, settings.targets, state.request.options.annotations)
        if settings.placement is not None:
            saved = settings.placement.resolve(state.index, names, state.model.lost)
            pins = saved.override(pins)
        units = split_pinned_units(state.index, state.units, state.marks, pins)
        number = sum(len(each.units) for each in units.values())
        report_step(f"place {format_count(number, 'unit')} by {settings.strategy.name}")
        root = name_regions(plan_graphs(state.index, settings, units, pins), state.request.variant)
        predictions = predict_at_ends(root, settings, units)
        notes = [
            note
            for target in settings.targets
            for find_unmatched in (find_unmatched_names, find_unmatched_annotations)
            for note in find_unmatched(state.index, target)
        ]
        answers = state.findings.answers
        notes += () if answers is None else answers.notes
        notes += [*pins.notes, *find_unknown_names(settings)]
        root = replace(root, notes=(*root.notes, *notes))
        found = Placed(**take(Grouped, state), root=root, predictions=predictions)
        return replace(found, units=units)


@dataclass(frozen=True)
class Outline:
    """Make each region a function of the model, and each composite inside it, too.

    Where a plan is all that is asked for, and its regions compute as the model says, this is left to
    whoever asks for the partitioned model. Of a protobuf that the caller may edit afterwards it is not.
    """

    def run(self, state: Placed) -> Outlined:
        """Return the state with the partitioned model."""
        both = state.root, state.model
        partitioned = PartitionedModel(partial(_outline, *both), partial(_convert, *both))
        if _is_made_at_once(state):
            report_step("outline")
            _ = partitioned.outlined
        return Outlined(**take(Placed, state), partitioned=partitioned)


def _outline(root: GraphPlan, model: Model) -> ModelProto:
    with _naming(model):
        return outline_regions(root, model.heavy)


def _convert(root: GraphPlan, model: Model, outlined: ModelProto) -> ConvertedModel:
    with _naming(model):
        return convert_boundaries(root, outlined, model.folder)


def _is_made_at_once(state: Placed) -> bool:
    held = state.root.index.proto is state.request.source
    return held or state.setup.output is not None or computes_otherwise(state.root.targets)


@dataclass(frozen=True)
class Convert:
    """Convert layouts, types and quantization where tensors cross between host and regions.

    Where the model is not outlined yet, this is left to whoever asks for the partitioned model.
    """

    def run(self, state: Outlined) -> Planned:
        """Return the state with the plan; the outlined model is edited in place."""
        root = state.root
        if _is_made_at_once(state):
            report_step("convert")
            root = replace(root, notes=(*root.notes, *state.partitioned.converted.notes))
        plan = Plan(
            asked=state.setup.record,
            model=state.model,
            targets=state.settings.targets,
            root=root,
            predicted_at=state.predictions,
            partitioned=state.partitioned,
            lowered=_describe_lowering(
                state.loaded.original, state.precision, state.request.options.precision
            ),
            notes=state.precision.notes,
            passes=state.pass_effects,
            refusals=state.findings.history.refused,
            variant=state.request.variant,
            state=state.settings.state or {},
            own_cpu={} if state.findings.answers is None else state.findings.answers.own_cpu,
        )
        return Planned(**take(Prepared, state), plan=plan)


@contextmanager
def _naming(model: Model) -> Iterator[None]:
    """Put the model's name in front of the message of an InputError."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{model.source}: {error}") from None


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
            seen={
                name: (*(each.data or (each.low, each.high)), each.clipped)
                for name, each in ranges.tensors.items()
                if isinstance(each, Range)
            },
        )
    if precision.quantizes_activations:
        return None
    return LoweredPrecision(
        original, precision.quantize, units=len(chosen.weights), weights=chosen.weights
    )
