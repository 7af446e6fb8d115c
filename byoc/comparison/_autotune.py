"""Autotuning: a model partitioned in several ways, each bundle run here in turn, the best kept.

Predictions add up what parts take alone, and whole networks are faster or slower than that: libraries
fuse across operators, and caches are warm or not. A measurement needs no such sum.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from byoc.bundle import Bundle, TrialCandidate, check_destination, open_bundle, stage_bundle
from byoc.errors import InputError
from byoc.model import Model
from byoc.onnxrt import with_threads
from byoc.options import DEFAULT_STRATEGY, Options, list_files
from byoc.pipeline import Result, partition
from byoc.planning import Plan
from byoc.profiling import Clock, Patience, Samples, compare_in_turn, measure_in_turn
from byoc.runtime import load_bundle
from byoc.samples import model_samples, read_samples
from byoc.stages import find_threads, load_targets
from byoc.support import declare, declare_field, keywords_of, report_step, show_progress, take_keywords
from byoc.zoo import Source, load_model

BASELINES = ("host-only", "all-supported")
"""The strategies tried besides the one asked for: all on the host, all that can be on accelerators."""

BOUNDARIES = (1.0, 4.0, 0.25)
"""Factors on the prices of launches and transfers, for cuts between the one asked for and others."""

PATIENCE = Patience(warmup=2, least=9, most=200, seconds=10.0, settled=0.005)

_BEYOND = 2.0  # times the noise of a ratio: a difference that is no coincidence
_WORTH = 0.01  # what a cut must save at least to be kept instead of a single device


@dataclass(frozen=True)
class _Way:
    """A way to place: a strategy with options, as the candidate is called."""

    name: str
    strategy: str
    options: Mapping[str, str] | None = None


@dataclass(frozen=True, eq=False)
class _TimedBundle:
    candidate: TrialCandidate
    result: Result
    bundle: Bundle
    seconds: Sequence[float] = ()

    @property
    def single(self) -> bool:
        """Whether one device runs the whole model: there is no region, or one without a host node."""
        plan = self.result.plan
        if len(plan.regions) != 1:
            return not plan.regions
        return all((graph.placement.labels != 0).all() for graph in plan.root.walk())


@dataclass(frozen=True, kw_only=True)
class TrialOptions(Options):
    """The choices of a partitioning run in which several placements are tried."""

    output: str | Path = field(metadata=declare("where to write the bundle of the best."))
    others: Sequence[str] = declare_field(
        BASELINES, "the strategies that are tried besides the one asked for."
    )
    boundaries: Sequence[float] = declare_field(
        BOUNDARIES,
        "factors on the prices of launches and transfers; launch-aware is tried with each.",
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
    """Partition a model in several ways, run all bundles in turn, and keep the best.

    The ways are the strategy asked for, `others`, and launch-aware with each factor in `boundaries`.
    `model` is as `partition` takes it, and the inputs are those that it is verified with. All bundles
    run on the same number of threads: where the codegen's option `threads` says how many, on the host,
    too. The best is that of the fastest single device, unless a cut is faster beyond the noise. Returns
    what `partition` returns for it, with all candidates in its report as `measured`. The bundle itself
    tells no times, and is as `partition` writes it by that strategy.

    Raises InputError as `partition` does for the first strategy, and where a bundle cannot be run here;
    what goes wrong with another is told in its candidate.
    """
    if options.variants or options.buckets:
        raise InputError("what is measured is one model: variants and buckets are for `partition` alone")
    if options.weights != "copy":
        raise InputError(f"--weights {options.weights}: a bundle that is chosen by the clock is a copy")
    check_destination(Path(options.output))
    destination = Path(options.output).absolute()  # a codegen's code may change the working directory
    with TemporaryDirectory(prefix="byoc-") as place, show_progress(options.progress):
        trials, failed = _try_ways(model, options, Path(place))
        loaded = load_model(model, options.dims, options.shapes)
        measured = _measure(trials, _make_inputs(loaded, options), options)
        best = _choose(measured)
        with stage_bundle(destination) as folder:
            shutil.copytree(best.bundle.folder, folder, dirs_exist_ok=True)
    candidates = (*(_describe(trial, best) for trial in measured), *failed)
    told = {"bundle": str(options.output), "measured": candidates}
    own = best.result.only
    timed = replace(own, report=own.report.model_copy(update=told))
    return replace(best.result, variants=(timed,), bundle=Path(options.output))


def _list_ways(options: TrialOptions) -> Iterator[_Way]:
    """Yield the strategy asked for, and the others."""
    yield _Way(options.strategy, options.strategy, options.strategy_options)
    for name in dict.fromkeys(options.others):
        if name != options.strategy:
            yield _Way(name, name)
    for factor in options.boundaries:
        own = {"boundary": f"{factor:g}", "margin": "0"}  # the clock knows what a mixture saves
        yield _Way(f"{DEFAULT_STRATEGY} boundary={factor:g}", DEFAULT_STRATEGY, own)


def _try_ways(
    model: Source, options: TrialOptions, place: Path
) -> tuple[list[_TimedBundle], list[TrialCandidate]]:
    """Return the partitioned models that differ, and candidates of the ways that failed.

    Plans that are the same are compiled once.
    """
    trials: dict[Any, _TimedBundle] = {}
    failed = []
    planned = set()
    for number, way in enumerate(_list_ways(options)):
        report_step(f"{way.name}: cut")
        folder = place / str(number)
        own = replace(
            options,
            strategy=way.strategy,
            strategy_options=way.options,
            progress=None,
            keep_open=True,  # what is measured is one plan
        )
        arguments = {**keywords_of(own, Options), "output": folder}
        try:
            key = _key_regions(partition(model, **{**arguments, "output": None, "what_if": False}).plan)
            if key in planned:
                continue
            planned.add(key)
            result = partition(model, **arguments)
        except InputError as error:
            if not number:
                raise
            failed.append(TrialCandidate(way.name, problem=str(error)))
            continue
        found = TrialCandidate(way.name, len(result.plan.regions), result.report.predicted.seconds)
        bundle = open_bundle(folder, options.isolation, trust=True)  # what was just written
        trials.setdefault(_key_regions(result.plan), _TimedBundle(found, result, bundle))
    return list(trials.values()), failed


def _measure(
    trials: Sequence[_TimedBundle], inputs: Mapping[str, Any], options: TrialOptions
) -> list[_TimedBundle]:
    """Return the partitioned models with the seconds that they take, run in turn."""
    report_step(f"run {', '.join(trial.candidate.strategy for trial in trials)} in turn")
    threads = find_threads(options, load_targets(list_files(options.rules)))
    with nullcontext() if threads is None else with_threads(threads):
        sessions = [load_bundle(trial.bundle) for trial in trials]
    runs = [lambda session=session: session(inputs) for session in sessions]
    seconds = measure_in_turn(runs, options.patience, options.clock, drop_slow=True)
    return [replace(trial, seconds=found) for trial, found in zip(trials, seconds, strict=True)]


def _choose(trials: Sequence[_TimedBundle]) -> _TimedBundle:
    """Return the fastest on a single device, unless another is faster by more than the noise."""

    def median(trial: _TimedBundle) -> float:
        return Samples.of(trial.seconds).median

    singles = [trial for trial in trials if trial.single]
    cuts = sorted((trial for trial in trials if not trial.single), key=median)
    if not singles:
        return cuts[0]
    best = min(singles, key=median)
    for cut in cuts:
        ratio = compare_in_turn(cut.seconds, best.seconds)
        if ratio.median + max(_BEYOND * ratio.noise, _WORTH) < 1:
            return cut
    return best


def _describe(trial: _TimedBundle, best: _TimedBundle) -> TrialCandidate:
    """Return a candidate with what was measured."""
    found = Samples.of(trial.seconds)
    return replace(
        trial.candidate,
        seconds=found.median,
        spread=found.spread,
        samples=found.count,
        ratio=compare_in_turn(trial.seconds, best.seconds).median,
    )


def _key_regions(plan: Plan) -> frozenset[tuple[str, int, tuple[int, ...]]]:
    """Return a key of a plan: the nodes of each region, with their graph and target."""
    graphs = {id(graph.index): number for number, graph in enumerate(plan.root.walk())}
    return frozenset(
        (region.target.name, graphs[id(region.index)], tuple(region.nodes)) for region in plan.regions
    )
