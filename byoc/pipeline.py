"""The whole program: prepare a model, plan it, write the verified bundle.

A stage takes the state of the model and returns the next one. Two loops run over the stages: planning
is repeated while codegens refuse regions, and to find the precisions of units that meet an accuracy
budget. A bundle of several variants has a state for each; their regions are compiled together.
"""

import os
import traceback
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from byoc import bundle, quantization, stages
from byoc.codegen import Codegens, RefusedError
from byoc.errors import InputError
from byoc.model import Model
from byoc.options import Options
from byoc.planning import GraphPlan, Plan, PlanSettings, TradePoint
from byoc.stages import (
    Annotate,
    Ask,
    Convert,
    EstimateGains,
    Group,
    JointStage,
    Load,
    Outline,
    Place,
    Quantize,
    Resolve,
    Result,
    Rewrite,
    SetPrecisions,
    Stage,
    State,
    VariantResult,
    find_precisions,
    make_result,
    record_accuracy,
    run_stages,
    run_stages_jointly,
)
from byoc.support import collect_rarely, report_step, resolve_path, show_progress, take_keywords
from byoc.zoo import Source, choose_pipeline

__all__ = [
    "PLANNING",
    "PREPARATION",
    "Result",
    "VariantResult",
    "emit",
    "list_emission",
    "make_plan",
    "partition",
]

PREPARATION: tuple[Stage, ...] = (Resolve(), Load(), Rewrite(), Quantize())
PLANNING: tuple[Stage, ...] = (Annotate(), Group(), Ask(), Place(), Outline(), Convert())


def list_emission() -> tuple[Stage | JointStage, ...]:
    """Return the stages that write a bundle; a plan alone needs none of what they import."""
    return (
        stages.Write(),
        stages.Compile(),
        stages.Estimate(),
        stages.Verify(),
        stages.FindPadding(),
        EstimateGains(),
        stages.Pack(),
    )


@take_keywords(Options)
def partition(model: Source, options: Options) -> Result:
    """Partition a model between the host and the accelerators that rule files describe.

    `model` is a path, `zoo:NAME`, or a protobuf, which is never changed.

    Raises InputError when the model, the rules, an option, a codegen or the outcome of the verification
    is at fault; nothing has been written.
    """
    codegens = Codegens(options.isolation)
    with show_progress(options.progress), closing(codegens):
        with collect_rarely():
            states = prepare_variants(State(model, options, codegens))
        while True:
            with collect_rarely():
                states = [state if state.is_planned else plan_variant(state) for state in states]
                if states[0].output is None:
                    return make_result([EstimateGains().run(state) for state in states])
            try:
                return make_result(emit(states))
            except RefusedError as error:
                if options.strict:
                    raise
                _print_cause(error)
                before = states
                states = [state.heed_refusals(error.refusals) for state in before]
                if all(new is old for new, old in zip(states, before, strict=True)):
                    raise  # they are of none of these regions
                report_step(f"place again: {error.refusals[0]}")


def prepare_variants(state: State) -> list[State]:
    """Return the prepared state of each variant; what the options name is loaded once.

    Raises InputError as the stages do, when two variants take inputs of the same types, when caches are
    to have a fixed length, but no variant has a past, and for variants that onnxruntime-genai, of whose
    folder the model is, cannot run.
    """
    resolve, *others = PREPARATION
    state = run_stages((resolve,), state)
    variants = state.options.list_variants()
    states = [run_stages(others, replace(state, variant=variant)) for variant in variants]
    if state.options.static_cache and all(each.static_rule is None for each in states):
        raise InputError("--static-cache: no variant has a past, so no cache gets a fixed length")
    known: dict[str, str] = {}
    for each in states:
        types, name = _describe_inputs(each.original), each.variant.name
        if known.setdefault(types, name) != name:
            raise InputError(
                f"{each.original.source}: variants {known[types]} and {name} take inputs of the same "
                "types, so that nothing tells which of them a call is for"
            )
    genai = states[0].genai
    if genai is not None and states[0].variant.name:
        choose_pipeline(genai, {each.variant.name: each.original for each in states})
    return states


def _describe_inputs(model: Model) -> str:
    return ", ".join(f"{name} {model.index.types.get(name)}" for name in model.index.inputs)


def plan_variant(state: State) -> State:
    """Plan a prepared variant, with the limits that are known by now."""
    budget = state.accuracy_test is not None
    state = meet_accuracy_budget(state) if budget else run_stages(PLANNING, state)
    return replace(state, plan=replace(state.plan, refusals=state.history.refused))


def meet_accuracy_budget(state: State) -> State:
    """Plan with units in the precisions that keep the model within its accuracy budget.

    Of the plans that are tried, `choose_plan` takes one. After a codegen refused something, the
    precisions that were chosen before are tried first. Raises InputError when the budget cannot be met.
    """
    test = state.accuracy_test
    assert test is not None
    if state.precisions is not None:
        state = plan_with_precisions(state, state.precisions)
        if test.is_met(state.accuracy):
            trade = quantization.update_taken(state.trade, _describe_plan(state))
            return record_accuracy(replace(state, trade=trade))
    wide = test.precision.wide_model
    units, ends = test.precision.units, dict[quantization.UnitPrecisions, GraphPlan]()
    settings = state.settings
    search = quantization.TradeSearch(
        test.budget,
        [*units],
        lambda: test.build_problem(settings, [ends[each] for each in search.ends]),
        () if wide is None else [*wide.units],
    )
    proposals = search.propose()
    proposal = next(proposals)
    points: list[TradePoint] = []
    kept: dict[TradePoint, State] = {}
    while proposal is not None:
        trial = plan_with_precisions(state, proposal, len(points) + 1)
        if proposal in search.ends:
            ends[proposal] = trial.plan.root
        if proposal == quantization.UnitPrecisions():
            state = replace(state, all_quantized=trial.accuracy)
        points.append(_describe_plan(trial))
        if test.is_met(trial.accuracy):
            kept[points[-1]] = trial
            kept = {point: kept[point] for point in quantization.list_cheap_plans([*kept])}
        proposal = proposals.send(quantization.PlanTrial(trial.accuracy, points[-1].cost))
    taken = quantization.choose_plan([*kept])
    best = replace(kept[taken], all_quantized=state.all_quantized, trade_gap=search.gap)
    return record_accuracy(replace(best, trade=quantization.choose_front(points, taken)))


def _describe_plan(state: State) -> TradePoint:
    """Describe a plan by its accuracy, its cost, and the precisions of units."""
    test, plan, precisions = state.accuracy_test, state.plan, state.precisions
    assert test is not None
    assert precisions is not None
    cost = float(state.settings.objective.combine(plan.cost.total, plan.root.joules))
    units = test.precision.units
    return TradePoint(
        test.budget.measure_of(state.accuracy),
        cost,
        plan.cost.total,
        tuple(name for name in units if name in precisions.in_float),
        tuple(name for name in units if name in precisions.wide),
    )


def plan_with_precisions(
    state: State, precisions: quantization.UnitPrecisions, number: int = 1
) -> State:
    """Plan a model with units in some precisions, and measure its accuracy.

    `number` is that of the plan, for the step that is reported.
    """
    test = state.accuracy_test
    assert test is not None
    state = run_stages((SetPrecisions(precisions), *PLANNING), state)
    left = f"{len(precisions.in_float)} of {len(test.precision.units)} units in floating point"
    wide = f", {len(precisions.wide)} in 16 bits" if precisions.wide else ""
    report_step(f"accuracy of plan {number} for the budget, {left}{wide}")
    accuracy = test.measure(state.plan.proto, state.model)
    return replace(state, accuracy=accuracy, precisions=find_precisions(state))


def emit(states: Sequence[State]) -> list[State]:
    """Write the bundle of the planned variants to its output, which is left as it is if anything fails.

    Raises RefusedError when regions are not compiled, loaded or run, or are off by more than the gate
    lets pass; with `strict`, CompileError for the first that is not compiled. Raises InputError when an
    output is off, or a region cannot be run here and there is a gate.
    """
    first = states[0]
    assert first.output is not None
    with bundle.stage_bundle(first.output) as folder:
        originals = bundle.OriginalFiles(folder, resolve_path(first.output), first.options.weights)
        for state in states:
            originals.add_model(state.original)
        weights = bundle.WeightFile(folder, originals)
        try:
            return run_stages_jointly(
                list_emission(), [replace(state, folder=folder, weights=weights) for state in states]
            )
        except RefusedError:
            for compiler in () if first.options.strict else first.compilers.values():
                compiler.index_added()  # what was compiled is not compiled again in the next round
            raise


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
    state = State(
        model.source,
        Options((), precision=precision),
        record=record or {},
        settings=settings,
        original=model,
        rewritten=model,
    )
    with collect_rarely():
        return run_stages((Quantize(), *PLANNING, EstimateGains()), state).plan
