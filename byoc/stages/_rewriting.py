"""Rewriting by passes: of a model before it is annotated, of regions before they are compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from onnx import ModelProto

from byoc import bundle, verification
from byoc.codegen import Refusal, RefusedError, Region
from byoc.errors import InputError, PluginFailedError
from byoc.model import Model, copy_without, embed_external_data, prepare_model, walk_tensors
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
from byoc.planning import clean_for_targets, read_weight_layout
from byoc.rules import Target
from byoc.samples import Sample
from byoc.stages._state import ChosenPasses, Loaded, Rewritten, take
from byoc.support import report_step
from byoc.verification import RewriteComparison

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
