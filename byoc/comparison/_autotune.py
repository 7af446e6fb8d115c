"""Autotuning: a model partitioned by several strategies, each bundle run here in turn, the fastest kept.

Predictions add up what parts take alone, and whole networks are faster or slower than that: libraries
fuse across operators, and caches are warm or not. A measurement needs no such sum.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from byoc.bundle import Bundle, TrialCandidate, check_destination, open_bundle, stage_bundle
from byoc.errors import InputError
from byoc.model import Model
from byoc.options import Options
from byoc.pipeline import Result, partition
from byoc.planning import Plan
from byoc.profiling import Clock, Patience, Samples, measure_in_turn
from byoc.runtime import load_bundle
from byoc.samples import model_samples, read_samples
from byoc.support import declare, declare_field, keywords_of, report_step, show_progress, take_keywords
from byoc.zoo import Source, load_model

BASELINES = ("host-only", "all-supported")
"""The strategies tried besides the one asked for: all on the host, all that can be on accelerators."""

PATIENCE = Patience(warmup=2, least=9, most=200, seconds=10.0, settled=0.005)


@dataclass(frozen=True, eq=False)
class _Trial:
    candidate: TrialCandidate
    result: Result
    bundle: Bundle


@dataclass(frozen=True, kw_only=True)
class TrialOptions(Options):
    """The choices of a partitioning run in which several strategies are tried."""

    output: str | Path = field(metadata=declare("where to write the bundle of the fastest."))
    others: Sequence[str] = declare_field(
        BASELINES, "the strategies that are tried besides the one asked for."
    )
    patience: Patience = declare_field(PATIENCE, "how long to measure each bundle that differs.")
    clock: Clock = declare_field(perf_counter, "what gives the seconds.")


def _make_inputs(model: Model, options: TrialOptions) -> Mapping[str, Any]:
    """Return the first of the user's samples, or a made one."""
    if options.inputs is None:
        return model_samples(model)
    return read_samples(options.inputs, model, 1)[0].inputs


@take_keywords(TrialOptions)
def fastest(model: Source, options: TrialOptions) -> Result:
    """Partition a model by a strategy and by `others`, run all bundles in turn, and keep the fastest.

    `model` is as `partition` takes it, and the inputs are those that it is verified with. Returns what
    `partition` returns for the fastest, with all candidates in its report as `measured`. The bundle
    itself tells no times, and is as `partition` writes it by that strategy.

    Raises InputError as `partition` does for the first strategy, and where a bundle cannot be run here;
    what goes wrong with another is told in its candidate.
    """
    check_destination(Path(options.output))
    destination = Path(options.output).absolute()  # a codegen's code may change the working directory
    with TemporaryDirectory(prefix="byoc-") as place, show_progress(options.progress):
        trials, failed = _try_strategies(model, options, Path(place))
        loaded = load_model(model, options.dims, options.shapes)
        measured = _measure(trials, _make_inputs(loaded, options), options)
        best = min(measured, key=lambda trial: trial.candidate.seconds or 0.0)
        with stage_bundle(destination) as folder:
            shutil.copytree(best.bundle.folder, folder, dirs_exist_ok=True)
    candidates = (*(trial.candidate for trial in measured), *failed)
    told = {"bundle": str(options.output), "measured": candidates}
    report = best.result.report.model_copy(update=told)
    return replace(best.result, report=report, bundle=Path(options.output))


def _try_strategies(
    model: Source, options: TrialOptions, place: Path
) -> tuple[list[_Trial], list[TrialCandidate]]:
    """Return the partitioned models that differ, and candidates of the strategies that failed."""
    trials: dict[Any, _Trial] = {}
    failed = []
    names = tuple(dict.fromkeys((options.strategy, *options.others)))
    for number, name in enumerate(names):
        report_step(f"{name}: cut")
        folder = place / str(number)
        asked = options.strategy_options if name == options.strategy else None
        own = replace(options, output=folder, strategy=name, strategy_options=asked, progress=None)
        try:
            result = partition(model, **keywords_of(own, Options))
        except InputError as error:
            if name == options.strategy:
                raise
            failed.append(TrialCandidate(name, problem=str(error)))
            continue
        found = TrialCandidate(name, len(result.plan.regions), result.report.predicted.seconds)
        bundle = open_bundle(folder, options.isolation, trust=True)  # what was just written
        trials.setdefault(_key_regions(result.plan), _Trial(found, result, bundle))
    return list(trials.values()), failed


def _measure(trials: Sequence[_Trial], inputs: Mapping[str, Any], options: TrialOptions) -> list[_Trial]:
    """Return the partitioned models with the seconds that they take, run in turn."""
    report_step(f"run {', '.join(trial.candidate.strategy for trial in trials)} in turn")
    sessions = [load_bundle(trial.bundle) for trial in trials]
    runs = [lambda session=session: session(inputs) for session in sessions]
    measured = []
    for trial, seconds in zip(
        trials, measure_in_turn(runs, options.patience, options.clock), strict=True
    ):
        found = Samples.of(seconds)
        candidate = replace(
            trial.candidate, seconds=found.median, spread=found.spread, samples=found.count
        )
        measured.append(replace(trial, candidate=candidate))
    return measured


def _key_regions(plan: Plan) -> frozenset[tuple[str, int, tuple[int, ...]]]:
    """Return a key of a plan: the nodes of each region, with their graph and target."""
    graphs = {id(graph.index): number for number, graph in enumerate(plan.root.walk())}
    return frozenset(
        (region.target.name, graphs[id(region.index)], tuple(region.nodes)) for region in plan.regions
    )
