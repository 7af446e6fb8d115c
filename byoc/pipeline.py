"""The whole program: prepare a model, plan it, write the verified bundle.

A stage takes the state of the model and returns the next one. Two loops run over the stages: planning
is repeated while codegens refuse regions, and to find the units that an accuracy budget leaves in
floating point.
"""

import os
import traceback
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from byoc.bundle import Report, stage_bundle
from byoc.codegen import Codegens, RefusedError
from byoc.model import Model
from byoc.options import Options
from byoc.planning import Plan, PlanSettings, RefusalHistory, format_placement
from byoc.quantization import NATIVE, Precision, search_float_units
from byoc.reporting import Requirements, check_requirements, make_report
from byoc.stages import (
    Annotate,
    Ask,
    Compile,
    Convert,
    Estimate,
    EstimateGains,
    Group,
    LeaveInFloat,
    Load,
    Outline,
    Pack,
    Place,
    Quantize,
    Resolve,
    Rewrite,
    Stage,
    State,
    Verify,
    record_accuracy,
    run_stages,
)
from byoc.support import collect_rarely, report_step, show_progress, take_keywords, write_text
from byoc.verification import NotVerified, Verification
from byoc.zoo import Source, name_source

__all__ = [
    "EMISSION",
    "PLANNING",
    "PREPARATION",
    "Result",
    "emit",
    "make_plan",
    "partition",
    "save_placement",
]

PREPARATION: tuple[Stage, ...] = (Resolve(), Load(), Rewrite(), Quantize())
PLANNING: tuple[Stage, ...] = (Annotate(), Group(), Ask(), Place(), Outline(), Convert())
EMISSION: tuple[Stage, ...] = (Compile(), Estimate(), Verify(), EstimateGains(), Pack())


@dataclass(frozen=True, eq=False)
class Result:
    """The outcome of `partition`.

    `bundle` is where it was written (None without an output), `verification` the comparison with the
    original (None when there was none); `report.to_json()` is the JSON document of the command line.
    `not_signed` is why the bundle is not signed, empty where it is or was not to be.
    """

    plan: Plan
    report: Report
    bundle: Path | None = None
    verification: Verification | None = None
    not_signed: str = ""

    def check(self, requirements: Requirements) -> None:
        """Raise RequirementError, with a line for each of the `requirements` that this misses."""
        check_requirements(self.report, requirements)

    @property
    def model(self) -> onnx.ModelProto:
        """The partitioned model: plain ONNX, regions as functions."""
        return self.plan.proto

    def make_page(self) -> str:
        """Return the report as one HTML file with the graph: of the bundle, or of the plan alone."""
        from byoc.page import make_page, make_plan_page  # noqa: PLC0415 - few results get a page

        return make_plan_page(self.plan, self.report) if self.bundle is None else make_page(self.bundle)


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
            state = run_stages(PREPARATION, State(model, options, codegens))
        history = RefusalHistory()
        while True:
            with collect_rarely():
                if state.accuracy_test is None:
                    state = run_stages(PLANNING, state)
                else:
                    state = meet_accuracy_budget(state)
                state = replace(state, plan=replace(state.plan, refusals=history.told))
                if state.output is None:
                    plan = EstimateGains().run(state).plan
                    reason = "nothing was compiled, since no output was given (-o)"
                    return Result(plan, make_report(plan, NotVerified(reason)))
            try:
                return _make_result(emit(state))
            except RefusedError as error:
                if options.strict:
                    raise
                _print_cause(error)
                history = history.add(state.plan, error.refusals)
                state = replace(state, settings=replace(state.settings, known_limits=history.known))
                report_step(f"place again: {error.refusals[0]}")


def meet_accuracy_budget(state: State) -> State:
    """Plan with as few units in floating point as keep the model within its accuracy budget.

    After a codegen refused something, the units that were chosen before are tried first. Raises
    InputError when the budget cannot be met.
    """
    test = state.accuracy_test
    assert test is not None
    if state.in_float is not None:
        state = plan_with_floats(state, tuple(state.in_float))
        if test.is_met(state.accuracy):
            return record_accuracy(state)
    search = search_float_units(test.budget, lambda: test.ranking)
    proposal = next(search)
    best = state
    while proposal is not None:
        trial = plan_with_floats(state, proposal)
        if not proposal:
            state = replace(state, all_quantized=trial.accuracy)
        if test.is_met(trial.accuracy):
            best = trial
        proposal = search.send(trial.accuracy)
    return record_accuracy(replace(best, all_quantized=state.all_quantized))


def plan_with_floats(state: State, units: tuple[str, ...]) -> State:
    """Plan a model with some units left in floating point, and measure its accuracy."""
    test = state.accuracy_test
    assert test is not None
    state = run_stages((LeaveInFloat(units), *PLANNING), state)
    return replace(state, accuracy=test.measure(state.plan.proto, state.model))


def emit(state: State) -> State:
    """Write the bundle of a planned state to its output, which is left as it is if anything fails.

    Raises RefusedError when regions are not compiled, loaded or run, or are off by more than the gate
    lets pass; with `strict`, CompileError for the first that is not compiled. Raises InputError when an
    output is off, or a region cannot be run here and there is a gate.
    """
    assert state.output is not None
    with stage_bundle(state.output) as folder:
        try:
            return run_stages(EMISSION, replace(state, folder=folder))
        except RefusedError:
            for compiler in () if state.options.strict else state.compilers.values():
                compiler.cache.index_added()  # what was compiled is not compiled again in the next round
            raise


def _make_result(state: State) -> Result:
    output = Path(state.options.output or "")
    report = make_report(state.plan, state.verification, output, state.estimates)
    verified = state.verification if isinstance(state.verification, Verification) else None
    return Result(state.plan, report, output, verified, state.not_signed)


def _print_cause(error: RefusedError) -> None:
    """Print the traceback of what a codegen raised, for those who debug one."""
    if error.__cause__ is not None and os.environ.get("BYOC_DEBUG"):
        traceback.print_exception(error.__cause__)


def make_plan(
    model: Model,
    settings: PlanSettings,
    record: Mapping[str, Any] | None = None,
    precision: Precision = NATIVE,
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


def save_placement(plan: Plan, path: str | Path) -> None:
    """Write where each node of a `plan` runs to a file at `path`, for `partition(placement=...)`.

    Raises InputError when the file cannot be written.
    """
    graphs = []
    for graph in plan.root.walk():
        names = ("host", *(target.name for target in plan.targets))
        labels = graph.placement.labels.tolist()
        devices = {
            node: names[label]
            for unit, label in zip(graph.units, labels, strict=True)
            for node in unit.nodes
        }
        graphs.append((graph.index, graph.path, devices))
    write_text(Path(path), format_placement(name_source(plan.model.source), graphs))
