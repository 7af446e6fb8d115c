"""The whole program: prepare a model, plan it, write the verified bundle.

A stage takes the state of the model and returns a later one; the type of a state says what is made by
then. Planning is repeated while codegens refuse regions. A bundle of several variants has a state for
each; their regions are compiled together.
"""

import os
import traceback
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from byoc import bundle, quantization
from byoc._dataclasses import dataclass, replace
from byoc.codegen import Codegens, RefusedError
from byoc.errors import InputError
from byoc.model import Model
from byoc.pipeline._ask_stage import Ask
from byoc.pipeline._partition_options import Options
from byoc.pipeline._planning_stages import Annotate, Convert, Group, Outline, Place, Rewrite
from byoc.pipeline._preparation_stages import Load, Quantize, Resolve
from byoc.pipeline._results import Chain, Each, Result, make_plan_result, make_result
from byoc.pipeline._settings_loader import ChooseSizes, add_size_notes
from byoc.pipeline._state import (
    ChosenPasses,
    Emitting,
    LoadedModel,
    Packed,
    Planned,
    Prepared,
    Request,
    Resolved,
    Rewritten,
    Setup,
    take,
)
from byoc.pipeline._trial_stages import EstimateGains, MeetBudget, PlaceParts
from byoc.planning import Plan, PlanSettings
from byoc.support import collect_rarely, report_step, resolve_path, show_progress, take_keywords
from byoc.zoo import Source, choose_pipeline

_PREPARING: Chain[Resolved, Prepared] = Chain.of(Load()) >> Rewrite() >> Quantize()
PREPARATION: Chain[Request, list[Prepared]] = Chain.of(Resolve()) >> Each(_PREPARING)
PLANNING: Chain[Prepared, Planned] = (
    Chain.of(Annotate()) >> Group() >> Ask() >> Place() >> PlaceParts() >> Outline() >> Convert()
)


def list_emission() -> Chain[Sequence[Emitting], list[Packed]]:
    """Return the stages that write a bundle; a plan alone needs none of what they import."""
    from byoc.pipeline._compile_stages import Compile, Write  # noqa: PLC0415 - see above
    from byoc.pipeline._emission_stages import Estimate, FindPadding, Pack  # noqa: PLC0415
    from byoc.pipeline._verify_stage import Verify  # noqa: PLC0415

    return (
        Chain.of(Each(Write()))
        >> Compile()
        >> Each(Estimate())
        >> Each(Verify())
        >> FindPadding()
        >> Each(EstimateGains())
        >> Pack()
    )


def list_stages() -> list[str]:
    """Return the names of all stages, in the order in which they run when a bundle is written."""
    return [type(stage).__name__ for stage in (*PREPARATION, *PLANNING, *list_emission())]


@take_keywords(Options)
def partition(model: Source, options: Options) -> Result:
    """Partition a model between the host and the accelerators that rule files describe.

    `model` is a path, `zoo:NAME`, or a protobuf, which is never changed.

    Raises InputError when the model, the rules, an option, a codegen or the outcome of the verification
    is at fault; nothing has been written.
    """
    return partition_request(Request(model, options))


def partition_request(asked: Request) -> Result:
    """Partition what a request asks for, which may be a model of a package; raises as `partition`."""
    options, codegens = asked.options, Codegens(asked.options.isolation)
    with show_progress(options.progress), closing(codegens):
        with collect_rarely():
            prepared: Sequence[Prepared] = prepare_variants(replace(asked, codegens=codegens))
        while True:
            with collect_rarely():
                planned = Each(PlanVariant()).run(prepared)
                told = add_size_notes(planned)
                if options.output is None:
                    return make_plan_result(Each[Planned, Planned](EstimateGains()).run(told))
            try:
                return make_result(emit(told))
            except RefusedError as error:
                if options.strict:
                    raise
                _print_cause(error)
                prepared = [state.heed_refusals(error.refusals) for state in planned]
                if all(new is old for new, old in zip(prepared, planned, strict=True)):
                    raise  # they are of none of these regions
                report_step(f"place again: {error.refusals[0]}")
            except InputError as error:
                if options.strict or all(state.findings.whole is None for state in planned):
                    raise
                prepared = [state.forgo_parts(error.lines[0]) for state in planned]
                report_step(f"place again, with all nodes whole: {error.lines[0]}")


def prepare_variants(request: Request) -> list[Prepared]:
    """Return the prepared state of each variant; what the options name is loaded once.

    Where none is asked for, and accelerators need sizes that the model leaves open, there are two.

    Raises InputError as the stages do, when two variants take inputs of the same types, when caches are
    to have a fixed length, but no variant has a past, and for variants that onnxruntime-genai, of whose
    folder the model is, cannot run.
    """
    resolved = Chain.of(Resolve()).run(request)
    states = Each(_PREPARING).run(resolved)
    models = {state.request.variant.name: state.loaded for state in states}
    if request.options.static_cache and all(each.static_rule is None for each in models.values()):
        raise InputError("--static-cache: no variant has a past, so no cache gets a fixed length")
    _require_distinct(states)
    genai = states[0].loaded.genai
    if genai is not None and states[0].request.variant.name:
        choose_pipeline(genai, {name: each.original for name, each in models.items()})
    if len(states) > 1:
        return states
    return ChooseSizes(resolved[0], _PREPARING, PlanVariant()).run(states[0])


def _require_distinct(states: Sequence[Prepared]) -> None:
    """Raise InputError for two variants that nothing tells apart: inputs, rule files or precision.

    Those that differ in the last two alone are alternatives, which have to name the same dimensions.
    """
    known: dict[str, list[Prepared]] = {}
    for state in states:
        known.setdefault(_describe_inputs(state.loaded.original), []).append(state)
    for same in known.values():
        for number, state in enumerate(same):
            variant = state.request.variant
            for earlier in same[:number]:
                other = earlier.request.variant
                both = f"{state.loaded.original.source}: variants {other.name} and {variant.name}"
                precisions = [each.request.options.precision for each in (earlier, state)]
                if other.rules == variant.rules and precisions[0] == precisions[1]:
                    raise InputError(
                        f"{both} take inputs of the same types, so that nothing tells which of them a "
                        "call is for"
                    )
                if other.dims != variant.dims:
                    raise InputError(
                        f"{both} take inputs of the same types by dimensions of their own that differ: "
                        "alternatives for other accelerators name the same sizes"
                    )


def _describe_inputs(model: Model) -> str:
    return ", ".join(f"{name} {model.index.types.get(name)}" for name in model.index.inputs)


@dataclass(frozen=True)
class PlanVariant:
    """Plan a variant with the limits that are known by now, unless the plan that it has stays."""

    def run(self, state: Prepared) -> Planned:
        """Return the state with its plan."""
        if isinstance(state, Planned):
            return state
        if state.accuracy_test is not None:
            return MeetBudget(state.accuracy_test, PLANNING).run(state)
        return PLANNING.run(state)


def emit(states: Sequence[Planned]) -> list[Packed]:
    """Write the bundle of the planned variants to its output, which is left as it is if anything fails.

    Raises RefusedError when regions are not compiled, loaded or run, or are off by more than the gate
    lets pass; with `strict`, CompileError for the first that is not compiled. Raises InputError when an
    output is off, or a region cannot be run here and there is a gate.
    """
    setup, options = states[0].setup, states[0].request.options
    assert setup.output is not None
    with bundle.stage_bundle(setup.output) as folder:
        weights = _open_weights(states[0].request, folder, setup.output)
        for state in states:
            weights.originals.add_model(state.loaded.original)
        # In a package each variant has a file of its own, so that a device can be split off.
        files = [
            weights.begin_file(each.request.variant) if each.request.variant.component else weights
            for each in states
        ]
        try:
            return list_emission().run(
                [
                    Emitting(**take(Planned, state), weights=own)
                    for state, own in zip(states, files, strict=True)
                ]
            )
        except RefusedError:
            for state in () if options.strict else states:
                for compiler in state.setup.compilers.values():
                    compiler.index_added()  # what was compiled is not compiled again in the next round
            raise


def _open_weights(request: Request, folder: Path, output: Path) -> "bundle.WeightFile":
    """Return the weight file of a bundle in a folder, which shares those of a package's other models."""
    originals = bundle.OriginalFiles(
        folder, resolve_path(output), request.options.weights, request.variant.component
    )
    if request.package is not None:
        originals.add_package(request.package)
    return bundle.WeightFile(folder, originals)


def _print_cause(error: RefusedError) -> None:
    """Print the traceback of what a codegen raised, for those who debug one."""
    if error.__cause__ is not None and os.environ.get("BYOC_DEBUG"):
        traceback.print_exception(error.__cause__)


def make_plan(
    model: Model,
    settings: PlanSettings,
    record: Mapping[str, Any] | None = None,
    precision: quantization.Precision = quantization.NATIVE,
) -> Plan:
    """Return the plan of a loaded model, for targets and a strategy that need no names.

    `record` is what the manifest will say was asked for. Raises InputError when the model or the
    settings are at fault.
    """
    state = Rewritten(
        request=Request(model.source, Options((), precision=precision)),
        setup=Setup(record or {}, ChosenPasses()),
        settings=settings,
        loaded=LoadedModel(model),
        rewritten=model,
    )
    planning = Chain.of(Quantize()) >> PLANNING
    with collect_rarely():
        return EstimateGains().run(planning.run(state)).plan
