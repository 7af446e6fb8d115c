"""Choosing by the clock: a model cut in several ways, each run here in turn, the fastest kept.

Predictions add up what parts take alone, and whole networks are faster or slower than that: libraries
fuse across operators, and caches are warm or not. What is measured needs no such sum.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from byoc.bundle.read import Bundle, open_bundle
from byoc.bundle.staging import check_destination, staged
from byoc.errors import InputError
from byoc.graph.load import Model
from byoc.loading import DEFAULT_STRATEGY
from byoc.pipeline import Result, load_model, partition
from byoc.plan import Plan
from byoc.profile.sampling import Clock, Patience, Samples, in_turn
from byoc.runtime.samples import samples_for
from byoc.runtime.session import load_bundle

WHOLES = ("host-only", "all-supported")
"""The strategies that are tried besides the one asked for: everything here, all that can be there."""

PATIENCE = Patience(warmup=2, least=9, most=200, seconds=10.0, settled=0.005)


@dataclass(frozen=True)
class Candidate:
    """A way to cut a model, by its strategy: what was predicted of a run, and what runs took.

    `seconds` is the median and `spread` lies between the quartiles, of `samples` runs. Where it did not
    come to a run, `problem` says why.
    """

    strategy: str
    regions: int = 0
    predicted: float | None = None
    seconds: float | None = None
    spread: float | None = None
    samples: int = 0
    problem: str = ""


@dataclass(frozen=True, eq=False)
class _Cut:
    candidate: Candidate
    result: Result
    bundle: Bundle


def fastest(  # noqa: PLR0913 - as `partition`
    model: Any,
    rules: str | Path | Sequence[str | Path],
    *,
    output: str | Path,
    strategy: str = DEFAULT_STRATEGY,
    others: Sequence[str] = WHOLES,
    patience: Patience = PATIENCE,
    clock: Clock = perf_counter,
    progress: Callable[[str], None] = lambda stage: None,
    **options: Any,
) -> Result:
    """Cut a model by a strategy and by `others`, run all bundles in turn, and keep the fastest.

    The inputs are those that the model is verified with. `options` are the further ones of `partition`,
    which writes and verifies each bundle; `patience` is for each of those that differ. Returns what
    `partition` returns for the fastest, which is at `output`, with all of them in its report as
    `measured`, as dictionaries of `Candidate`. The bundle itself tells no times, and is as `partition`
    writes it by that strategy.

    Raises InputError as `partition` does for the first strategy, and where a bundle cannot be run here;
    what goes wrong with another is told in its candidate.
    """
    check_destination(Path(output))
    destination = Path(output).absolute()  # a codegen's code may change the working directory
    with TemporaryDirectory(prefix="byoc-") as place:
        cuts: dict[Any, _Cut] = {}
        failed = []
        names = tuple(dict.fromkeys((strategy, *others)))
        for number, name in enumerate(names):
            progress(f"{name}: cut")
            folder = Path(place) / str(number)
            try:
                result = partition(
                    model, rules, output=folder, strategy=name, progress=progress, **options
                )
            except InputError as error:
                if name == strategy:
                    raise
                failed.append(Candidate(name, problem=str(error)))
                continue
            predicted = result.report["predicted"]["seconds"]
            found = Candidate(name, len(result.plan.regions), predicted)
            cuts.setdefault(_regions(result.plan), _Cut(found, result, open_bundle(folder)))
        measured = _timed(
            list(cuts.values()), _inputs(model, options.get("dims")), patience, clock, progress
        )
        best = min(measured, key=lambda cut: cut.candidate.seconds or 0.0)
        with staged(destination) as folder:
            shutil.copytree(best.bundle.folder, folder, dirs_exist_ok=True)
    candidates = [asdict(each) for each in (*(cut.candidate for cut in measured), *failed)]
    told = {"bundle": str(output), "measured": candidates}
    return replace(best.result, report={**best.result.report, **told}, bundle=Path(output))


def _timed(
    cuts: Sequence[_Cut],
    inputs: Mapping[str, Any],
    patience: Patience,
    clock: Clock,
    progress: Callable[[str], None],
) -> list[_Cut]:
    progress(f"run {', '.join(cut.candidate.strategy for cut in cuts)} in turn")
    sessions = [load_bundle(cut.bundle) for cut in cuts]
    runs = [lambda session=session: session(inputs) for session in sessions]
    timed = []
    for cut, seconds in zip(cuts, in_turn(runs, patience, clock), strict=True):
        found = Samples.of(seconds)
        candidate = replace(
            cut.candidate, seconds=found.median, spread=found.spread, samples=found.count
        )
        timed.append(replace(cut, candidate=candidate))
    return timed


def _inputs(model: Any, dims: Mapping[str, int] | None) -> Mapping[str, Any]:
    loaded: Model = load_model(model, dims)
    return samples_for(loaded)


def _regions(plan: Plan) -> frozenset[tuple[str, int, tuple[int, ...]]]:
    """Return what tells cuts apart: which nodes of which graph are together, and where."""
    graphs = {id(graph.index): number for number, graph in enumerate(plan.root.walk())}
    return frozenset(
        (region.target.name, graphs[id(region.index)], tuple(region.nodes)) for region in plan.regions
    )
