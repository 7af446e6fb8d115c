"""Trials of placements, of which `fastest` keeps the best, and sizes of buckets: `choose_buckets`."""

import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from math import erf, inf, log, sqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np

from byoc._dataclasses import dataclass, field, fields, replace
from byoc.bundle import Bundle, TrialCandidate, check_destination, open_bundle, stage_bundle
from byoc.comparison._comparison_options import BucketOptions, Clock, Patience
from byoc.comparison._measured_costs import Samples, compare_in_turn, measure_in_turn
from byoc.errors import InputError
from byoc.model import Model
from byoc.onnxrt import with_threads
from byoc.pipeline import (
    DEFAULT_STRATEGY,
    Options,
    PlanOptions,
    Result,
    find_threads,
    list_files,
    load_targets,
    partition,
)
from byoc.planning import Plan
from byoc.runtime import load_bundle
from byoc.samples import model_samples, read_samples
from byoc.support import (
    declare,
    declare_field,
    keywords_of,
    read_limited,
    report_step,
    show_progress,
    take_keywords,
)
from byoc.zoo import Source, load_model

# Autotuning: a model partitioned in several ways, each bundle run here in turn, the best kept.
#
# Predictions add up what parts take alone, and whole networks are faster or slower than that:
# libraries fuse across operators, and caches are warm or not. A measurement needs no such sum.

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


# The best sizes of buckets for a distribution of lengths: an exact dynamic program.
#
# An input of a length runs in the smallest bucket that holds it. With buckets b(1) < ... < b(k) the
# expected seconds of a call are the sum over them of seconds(b(i)) times the share of lengths that
# are above b(i - 1) and at most b(i). The terms depend on neighbours alone, so that the best k
# buckets up to a size are found from the best k - 1 up to each smaller one, in O(k n^2) steps for n
# sizes.


@dataclass(frozen=True)
class BucketRow:
    """The best buckets of a number: their sizes, and the seconds that a call is expected to take.

    `padded` is the share of the elements along the dimension that is padding, and `saved` what it saves
    against the row before, which has fewer buckets.
    """

    sizes: tuple[int, ...]
    seconds: float
    padded: float
    saved: float | None = None


def choose_sizes(
    seconds: Mapping[int, float], lengths: Mapping[int, float], max_buckets: int = 8
) -> list[BucketRow]:
    """Return the best buckets of 1, 2, ... up to `max_buckets` sizes, as many as save anything.

    `seconds` has the sizes that a bucket may have, and what a run of that size takes; `lengths` has the
    lengths with their weights. Of equally good choices the one of the smaller sizes is returned. Raises
    InputError where no size holds the longest length, and without lengths.
    """
    sizes = np.array(sorted(seconds))
    costs = np.array([seconds[size] for size in sizes.tolist()])
    known = np.array(sorted(lengths))
    weights = np.array([lengths[length] for length in known.tolist()], np.float64)
    if not known.size or not weights.sum() > 0:
        raise InputError("there are no lengths")
    if not sizes.size or sizes[-1] < known[-1]:
        raise InputError(f"no bucket holds the length {known[-1]}")
    shares = weights / weights.sum()
    below = np.concatenate([[0.0], np.cumsum(shares)])[np.searchsorted(known, sizes, "right")]
    last = int(np.searchsorted(sizes, known[-1]))
    before = np.concatenate([[0.0], below])
    # [i, j]: the bucket of size j behind the one of size i - 1, or behind none where i is 0.
    terms = costs[None, :] * (below[None, :] - before[:, None])
    terms[np.arange(len(sizes) + 1)[:, None] > np.arange(len(sizes))[None, :]] = np.inf
    best = terms[0]
    rows: list[BucketRow] = []
    froms: list[np.ndarray[tuple[int], np.dtype[np.intp]]] = []
    for _ in range(max_buckets):
        end = last + int(np.argmin(best[last:]))
        chosen = _follow(froms, end)
        row = _make_row(sizes[chosen], float(best[end]), known, shares)
        if not rows or row.seconds < rows[-1].seconds:
            saved = rows[-1].seconds - row.seconds if rows else None
            rows.append(replace(row, saved=saved))
        sums = best[:, None] + terms[1:]
        froms.append(np.argmin(sums, axis=0))
        best = sums.min(axis=0)
    return rows


def _follow(froms: Sequence[np.ndarray[tuple[int], np.dtype[np.intp]]], end: int) -> list[int]:
    """Return the places of the sizes that lead to a last one."""
    chosen = [end]
    for each in reversed(froms):
        chosen.append(int(each[chosen[-1]]))
    return chosen[::-1]


def _make_row(
    sizes: np.ndarray[tuple[int], np.dtype[np.int_]],
    seconds: float,
    known: np.ndarray[tuple[int], np.dtype[np.int_]],
    shares: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> BucketRow:
    held = sizes[np.searchsorted(sizes, known)]
    padded = 1 - float((shares * known).sum() / (shares * held).sum())
    return BucketRow(tuple(sizes.tolist()), seconds, padded)


def choose_row(rows: Sequence[BucketRow], seconds_per_bucket: float = 0.0) -> BucketRow:
    """Return the row with the least seconds, each bucket counted with some more; the first of equals."""
    return min(rows, key=lambda row: row.seconds + seconds_per_bucket * len(row.sizes))


# Distributions of lengths: from a file of lengths or a histogram, or log-normal.

MAX_LENGTH = 1 << 24
_MAX_BYTES = 1 << 26
_LINE = re.compile(r"(\d{1,9})(?:[\s,;]+(\d{1,12}))?")
_LOG_NORMAL = re.compile(r"log-normal(?::(\d{1,8}),(\d+(?:\.\d+)?),(\d{1,8}))?")


def read_lengths(text: str | Path) -> dict[int, float]:
    """Return the weights of lengths of a file, or of `log-normal:MEDIAN,SIGMA,MAX`.

    A file has a length on each line, or a length and how often it occurs; empty lines and those that
    begin with `#` are left out. A log-normal distribution has the median 128, sigma 1 and lengths up to
    2048 unless given; what is beyond is left out. Raises InputError for a line that is neither.
    """
    found = _LOG_NORMAL.fullmatch(str(text))
    if found is not None:
        median, sigma, most = found.groups()
        return make_log_normal(int(median or 128), float(sigma or 1), int(most or 2048))
    path = Path(text)
    try:
        with path.open("rb") as file:
            lines = read_limited(file, _MAX_BYTES).decode("utf-8", "replace").splitlines()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    counts: Counter[int] = Counter()
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        read = _LINE.fullmatch(stripped)
        if read is None or not 1 <= int(read[1]) <= MAX_LENGTH:
            raise InputError(f"{path}: line {number}: neither a length nor a length and its count")
        counts[int(read[1])] += int(read[2] or 1)
    if not any(counts.values()):
        raise InputError(f"{path}: there are no lengths")
    return {length: float(count) for length, count in counts.items() if count}


def make_log_normal(median: int, sigma: float, most: int) -> dict[int, float]:
    """Return the weights of the lengths from 1 to `most` whose logarithms are normally distributed.

    A length has the probability of what rounds up to it. `median` is that of the whole distribution,
    `sigma` the standard deviation of the natural logarithm. Raises InputError where one is not above 0,
    for a `most` beyond `MAX_LENGTH`, and where no length up to `most` has a probability.
    """
    name = f"log-normal:{median},{sigma:g},{most}"
    if median < 1 or not sigma > 0 or most < 1:
        raise InputError(f"{name}: each has to be above 0")
    if most > MAX_LENGTH:
        raise InputError(f"{name}: lengths are at most {MAX_LENGTH}")
    ends = [0.5 * (1 + erf(log(n / median) / (sigma * sqrt(2)))) for n in range(1, most + 1)]
    if not ends[-1]:
        raise InputError(f"{name}: no length up to {most} has a probability")
    return {n: end - before for n, (before, end) in enumerate(zip([0.0, *ends], ends, strict=False), 1)}


def pick_candidates(lengths: Mapping[int, float], count: int) -> list[int]:
    """Return at most so many sizes for buckets: all lengths, or those at equal steps of the weights.

    The longest is always among them.
    """
    known = sorted(length for length, weight in lengths.items() if weight > 0)
    if len(known) <= count:
        return known
    total = sum(lengths[length] for length in known)
    picked: list[int] = []
    passed = 0.0
    for length in known:
        passed += lengths[length]
        if passed >= total * (len(picked) + 1) / count:
            picked.append(length)
    return sorted({*picked[: count - 1], known[-1]})


@dataclass(frozen=True)
class BucketChoice:
    """The best buckets of each number, and the best of all.

    `seconds` has the predicted seconds of a run by size, as plans give them, `rows` the best buckets of
    1, 2, ... and `best` the row with the least expected seconds, each bucket's own among them.
    """

    along: str
    seconds: Mapping[int, float]
    rows: tuple[BucketRow, ...]
    best: BucketRow

    @property
    def buckets(self) -> dict[str, list[int]]:
        """The best sizes as `partition` takes them."""
        return {self.along: list(self.best.sizes)}

    def to_json(self) -> dict[str, Any]:
        """Return the choice as plain data."""
        rows = [
            {"sizes": list(r.sizes), "seconds": r.seconds, "padded": r.padded, "saved": r.saved}
            for r in self.rows
        ]
        return {
            "along": self.along,
            "best": list(self.best.sizes),
            "rows": rows,
            "predicted": {str(size): seconds for size, seconds in self.seconds.items()},
        }


@take_keywords(BucketOptions)
def choose_buckets(model: Source, options: BucketOptions) -> BucketChoice:
    """Choose the sizes of buckets for which a call takes least on average, for lengths that inputs have.

    `model` is as `partition` takes it. It is planned at each candidate size; an input counts with the
    smallest bucket that holds it. The choice is exact: no other sizes among the candidates are
    expected to take less.

    Raises InputError as `partition` does, for a file of lengths that is none, and where the longest
    length is beyond all candidates.
    """
    lengths = _gather_lengths(options.lengths)
    candidates = sorted({*(options.candidates or pick_candidates(lengths, 32))})
    seconds = {size: _predict(model, options, size) for size in candidates}
    priced = seconds
    if options.interpolate:
        between = [n for n in sorted(lengths) if candidates[0] <= n <= candidates[-1]]
        found = np.interp(between, candidates, [seconds[size] for size in candidates])
        priced = {**dict(zip(between, found.tolist(), strict=True)), **seconds}
    rows = choose_sizes(priced, lengths, options.max_buckets)
    return BucketChoice(options.along, seconds, tuple(rows), choose_row(rows, options.bucket_seconds))


def _gather_lengths(given: str | Path | Sequence[int] | Mapping[int, float]) -> dict[int, float]:
    """Return the weights of lengths.

    Raises InputError for a length below 1, a weight that is not finite or below 0, and without lengths.
    """
    if isinstance(given, str | Path):
        return read_lengths(given)
    found: dict[int, float] = {}
    pairs = given.items() if isinstance(given, Mapping) else ((length, 1.0) for length in given)
    for length, weight in pairs:
        if length < 1 or not 0 <= weight < inf:
            raise InputError(f"lengths: {length} with the weight {weight:g}")
        found[int(length)] = found.get(int(length), 0.0) + weight
    if not any(found.values()):
        raise InputError("lengths: there are none")
    return found


def _predict(model: Source, options: BucketOptions, size: int) -> float:
    """Return the seconds that the plan of the model at a size is predicted to take."""
    report_step(f"plan {options.along}={size}")
    given = {each.name: getattr(options, each.name) for each in fields(PlanOptions) if each.init}
    given["dims"] = {**(options.dims or {}), options.along: size}
    return float(partition(model, **given, what_if=False).report.predicted.seconds)
