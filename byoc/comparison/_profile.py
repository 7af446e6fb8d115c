"""`byoc.profile`: operators and cuts measured on this machine, written as a cost model."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from statistics import geometric_mean
from threading import Event, Thread
from time import perf_counter

import numpy as np
import scipy
from numpy.typing import NDArray

from byoc._dataclasses import dataclass, replace
from byoc.bundle import read_rule_file_options
from byoc.codegen import Codegens, choose_isolation
from byoc.comparison._codegen_timing import (
    MeasuredCodegen,
    RegionCall,
    cut_regions,
    list_units,
    measure_copies,
    measure_launch,
    open_call,
    time_units,
    time_whole,
    without_crossing,
)
from byoc.comparison._comparison_options import HOST, ProfileOptions
from byoc.comparison._measured_costs import (
    MeasurementRecords,
    Patience,
    describe_machine,
    time_nodes,
    write_costs,
)
from byoc.comparison._prediction_error import choose_margin, describe_unseen
from byoc.console import format_count
from byoc.costs import (
    CostTable,
    HostLink,
    Linear,
    MeasuredWhole,
    check_fallback,
    fit_wholes,
    predict_unseen,
)
from byoc.errors import ByocError, InputError
from byoc.model import Model
from byoc.onnxrt import with_threads
from byoc.rules import Target, load_rules
from byoc.support import check_output, report_step, take_keywords
from byoc.zoo import Source, load_model

_RUNTIME = "reference"  # the codegen that runs on the host's runtime
_MAX_SHOWN = 3  # problems in a sentence
# Quartiles of fewer runs say nothing.
_LEAST_SAMPLES = 5
# A spread beyond this share of the median says little of the operator's own time.
_WIDE = 0.5


@dataclass(frozen=True, eq=False)
class Profile:
    """A cost model of `operators` measured operators, and sentences on what was not measured."""

    costs: CostTable | Linear
    operators: int
    notes: tuple[str, ...]


@take_keywords(ProfileOptions)
def profile(models: Source | Model | Sequence[Source | Model], options: ProfileOptions) -> Profile:
    """Measure operators on this machine, and write a cost model that placements can use.

    `models`, one or several, give the operators and the sizes of their tensors; times are in seconds.

    Raises InputError when a model, the codegen, the rules or an option is at fault, when nothing could
    be measured, and for an output that cannot be written; MissingRuntimeError without onnxruntime.
    """
    if isinstance(models, Source | Model):
        models = [models]
    path = Path(options.output)
    check_output(path)
    if options.otherwise is not None:
        check_fallback(path, options.otherwise)
    if options.device != HOST and options.threads is not None:
        raise InputError(
            "threads are for the host; a codegen takes them as an option of its own, if it has one: "
            f"byoc codegens {options.device}"
        )
    if options.pairs and (options.device == HOST or options.seconds_of is not perf_counter):
        raise InputError(
            "pairs are of a codegen and the host, by the clock on the wall: leave out --clock, and "
            "name a codegen with --device"
        )
    wholes: Sequence[MeasuredWhole] = ()
    if options.device != HOST:
        table, notes, wholes = _measure_codegen(models, options)
    elif options.rules is not None or options.codegen_options:
        raise InputError("rules and options are for a codegen, not for the host")
    else:
        with nullcontext() if options.threads is None else with_threads(options.threads):
            if options.fit:
                table, notes, wholes = _measure_host_units(models, options)
            else:
                table, notes = _measure_host(models, options)
    notes += _describe_wide_entries(table)
    costs: CostTable | Linear = table
    if options.fit:
        unseen = predict_unseen(table, wholes)
        notes += describe_unseen(unseen)
        margin = 0.0 if options.device == HOST else choose_margin(unseen)
        kept = {"margin": margin, "interference": table.interference}
        costs = fit_wholes(table, wholes).model_copy(update=kept)
    write_costs(path, costs)
    return Profile(costs, len(table.entries), tuple(notes))


def _measure_host_units(
    models: Sequence[Source | Model], options: ProfileOptions
) -> tuple[CostTable, list[str], list[MeasuredWhole]]:
    """Measure each operator of the host alone, as onnxruntime optimizes it, and the models as wholes.

    A graph that is run as it is written lacks the layouts that convolutions are fast in.
    """
    with closing(Codegens(None)) as codegens:
        device = MeasuredCodegen(codegens.find(_RUNTIME), {}, options.patience, options.seconds_of)
        table, notes, wholes = _measure_units(models, options, device)
    host = {"name": HOST, "launch": 0.0}
    return table.model_copy(update=host), notes, wholes


def _measure_host(
    models: Sequence[Source | Model], options: ProfileOptions
) -> tuple[CostTable, list[str]]:
    records, names, together, notes = MeasurementRecords(), [], [], []
    for source in models:
        model = _load(source, options)
        names.append(model.name)
        report_step(f"{model.source}: measure")
        times = time_nodes(model, options.patience, clock=options.seconds_of)
        lost = times.add_to(records)
        together.append(times.together)
        if lost:
            nodes = format_count(lost, "node")
            notes.append(f"{model.source}: the cost of {nodes} cannot be looked up: open shapes, bodies")
    _require_entries(records, notes)
    table = records.make_table(
        HOST,
        _describe_source(names),
        describe_machine(options.measured_threads),
        together=geometric_mean(together),
        otherwise=options.otherwise,
    )
    return table, notes


def _measure_codegen(
    models: Sequence[Source | Model], options: ProfileOptions
) -> tuple[CostTable, list[str], list[MeasuredWhole]]:
    with closing(Codegens(choose_isolation(options.isolate))) as codegens:
        codegen = codegens.find(options.device)
        target = None if options.rules is None else load_rules(options.rules)
        own = {} if target is None else read_rule_file_options(target, codegen)
        given = {**own, **(options.codegen_options or {})}
        device = MeasuredCodegen(codegen, given, options.patience, options.seconds_of)
        _ = device.compile_options  # a wrong one is an error before anything is measured
        if options.pairs and device.estimates:
            raise InputError(
                f"{device.name}: its compiler estimates what it takes, so nothing runs that the host "
                "could slow (--pairs)"
            )
        table, notes, wholes = _measure_units(models, options, device, target)
        if options.pairs:
            loaded = [_load(source, options) for source in models]
            table = table.model_copy(
                update={"interference": _measure_pairs(loaded, target, device, notes)}
            )
        return table, notes, wholes


def _measure_units(
    models: Sequence[Source | Model],
    options: ProfileOptions,
    device: MeasuredCodegen,
    target: Target | None = None,
) -> tuple[CostTable, list[str], list[MeasuredWhole]]:
    """Measure the units of all models and the launch, and for lines the models as wholes."""
    records, notes = MeasurementRecords(), []
    loaded = [_load(source, options) for source in models]
    for model in loaded:
        problems = time_units(model, target, device, records)
        notes += [
            f"{model.source}: not measured: {' '.join(problem.split())}"
            for problem in problems[:_MAX_SHOWN]
        ]
        if len(problems) > _MAX_SHOWN:
            notes.append(f"{model.source}: not measured: {len(problems) - _MAX_SHOWN} more")
    _require_entries(records, notes)
    if device.estimates:
        notes.append(
            f"seconds are what the compiler of {device.name} estimates: nothing ran, but for copies"
        )
    report_step("launch and copies")
    launch = measure_launch(device, records)
    link = None if options.device == HOST else measure_copies(device.patience, device.clock)
    found: list[tuple[Model, MeasuredWhole]] = []
    cuts: list[MeasuredCut] = []
    for model in loaded if options.fit else ():
        whole = time_whole(model, target, device)
        if isinstance(whole, str):
            notes.append(f"{model.source}: {' '.join(whole.split())}")
            continue
        found.append((model, whole))
        cuts += time_cuts(model, target, device, launch) if link is not None else ()
    if link is not None:
        link = fit_link(cuts, link)
        notes += describe_link(link, len(cuts))
    wholes = [without_crossing(model, whole, launch, link) for model, whole in found]
    table = records.make_table(
        device.name,
        _describe_source([model.name for model in loaded], device.estimates),
        describe_machine(options.measured_threads),
        link=link,
        launch=launch,
        otherwise=options.otherwise,
    )
    return table, notes, wholes


def _load(source: Source | Model, options: ProfileOptions) -> Model:
    if isinstance(source, str):
        report_step(f"{source}: load")
    return load_model(source, options.dims, options.shapes)


def _describe_wide_entries(table: CostTable) -> list[str]:
    """Return a sentence if some measurements spread over more than half of their median."""
    told = [entry for entry in table.entries if entry.samples >= _LEAST_SAMPLES]
    wide = [entry for entry in told if entry.spread > _WIDE * entry.seconds]
    if not wide:
        return []
    entries = format_count(len(table.entries), "measurement")
    worst = max(wide, key=lambda entry: entry.spread)
    return [
        f"{len(wide)} of {entries} spread over more than half of their median, {worst.op} the most: "
        "measure longer, or on a machine that is idle"
    ]


def _describe_source(names: Sequence[str], estimated: bool = False) -> str:
    how = "estimated by its compiler" if estimated else "measured"
    return f"{how} on {', '.join(names)}"


def _require_entries(records: MeasurementRecords, notes: Sequence[str]) -> None:
    if not len(records):
        raise InputError(*notes, "nothing was measured, so there is nothing to write")


# The cost of cuts: models run as two regions instead of one, and a link fitted to the difference.
#
# A library that sees a whole keeps tensors in layouts of its own, and fuses across operators; at a
# cut it loses that, and a tensor is copied. On the host it is the same, so that leaving the device
# and coming back to it, which is what is measured, stands for one crossing between host and device.

_PLACES = (1 / 3, 2 / 3)  # of a model's operations that stand before the cut
_LEAST_CUTS = 4  # for a line of two unknowns, latency and bandwidth
_ROUNDS = 11  # in which all regions are measured in turn
_LEAST_ROUNDS = 3  # also where patience is used up
_RUNS = Patience(warmup=0, least=2, most=2)  # of a region in a round


@dataclass(frozen=True, slots=True)
class MeasuredCut:
    """A model in two regions: what crosses between them, and the seconds more than as one region.

    `whole` has the seconds as one. Noise may make `seconds` negative.
    """

    tensors: int
    size: int
    seconds: float
    whole: float


def time_cuts(
    model: Model, target: Target | None, device: MeasuredCodegen, launch: float
) -> list[MeasuredCut]:
    """Measure a model in two regions, cut after a third and after two thirds of its operations.

    The whole and both parts run in turn, so that load on the machine slows all of them; the medians of
    the rounds count. A cut that cannot be made is left out. The device has to run all of the model.
    """
    units, tasks = list_units(model, target)
    work = np.cumsum([task.work.operations for task in tasks])
    places = {int(np.searchsorted(work, share * work[-1])) + 1 for share in _PLACES}
    found = []
    for place in sorted(places & set(range(1, len(units)))):
        report_step(f"{model.source}: cut at {place} of {len(units)}")
        try:
            (whole,) = cut_regions(model, target, {"whole": units}).values()
            calls = cut_regions(model, target, {"before": units[:place], "after": units[place:]})
            rounds = _measure_rounds(model, target, device, {"whole": whole, **calls})
        except ByocError:
            continue
        crossing = {*calls["before"][1].output} & {*calls["after"][1].input}
        sizes = [kind.bytes or 0 for n in crossing if (kind := model.index.types.get(n)) is not None]
        extra = float(np.median(rounds[:, 1] + rounds[:, 2] - rounds[:, 0])) - launch
        found.append(MeasuredCut(len(sizes), sum(sizes), extra, float(np.median(rounds[:, 0]))))
    return found


def _measure_rounds(
    model: Model, target: Target | None, device: MeasuredCodegen, calls: Mapping[str, RegionCall]
) -> NDArray[np.float64]:
    """Return the seconds of regions that run in turn, float64 (rounds, regions)."""
    with ExitStack() as opened:
        regions = [
            opened.enter_context(open_call(model, target, device, name, call))
            for name, call in calls.items()
        ]
        rounds: list[list[float]] = []
        spent = 0.0
        while len(rounds) < _ROUNDS and (
            len(rounds) < _LEAST_ROUNDS or spent < len(regions) * device.patience.seconds
        ):
            rounds.append([min(region.measure(_RUNS, device.clock)) for region in regions])
            spent += sum(rounds[-1])
        return np.array(rounds)


def fit_link(cuts: Sequence[MeasuredCut], copies: HostLink) -> HostLink:
    """Return the link that explains cuts best; with fewer than four cuts that of copying arrays.

    Non-negative least squares of what is left, as shares of the seconds of wholes. A crossing takes no
    less than a copy.
    """

    if len(cuts) < _LEAST_CUTS:
        return copies
    rows = np.array([[cut.tensors / cut.whole, cut.size / cut.whole] for cut in cuts])
    targets = np.array([cut.seconds / cut.whole for cut in cuts])
    scale = np.maximum(rows.max(axis=0), 1e-300)
    latency, byte = (scipy.optimize.nnls(rows / scale, targets)[0] / scale).tolist()
    byte = max(byte, 1 / copies.bandwidth)
    bandwidth = 1 / byte if byte else float("inf")
    return HostLink(bandwidth=bandwidth, latency=max(latency, copies.latency))


def describe_link(link: HostLink, cuts: int) -> list[str]:
    """Return a sentence that says what crossing takes, if it was fitted to cuts."""
    if cuts < _LEAST_CUTS:
        return []
    byte = f"{1e9 / link.bandwidth:.2g} ns for each byte"
    return [f"{cuts} cuts: what crosses takes {byte} and {link.latency * 1e6:.2g} us for each tensor"]


# Two devices at work at once: how many times as long a region takes while the host computes.

_PAIR_ROUNDS = 3  # in which a device is measured alone and beside the other one
_ONCE = Patience(warmup=0, least=1, most=1)


def _measure_pairs(
    models: Sequence[Model], target: Target | None, device: MeasuredCodegen, notes: list[str]
) -> dict[str, float]:
    """Return the `interference` of a codegen by the host, and add sentences on it to `notes`.

    It is the geometric mean over the models that the codegen runs as one region. Raises InputError where
    there are none.
    """
    found, reasons = [], []
    with closing(Codegens(None)) as codegens:
        host = replace(device, codegen=codegens.find(_RUNTIME), options={})
        for model in models:
            pair = time_pair(model, target, device, host)
            if isinstance(pair, str):
                reasons.append(f"{model.source}: {' '.join(pair.split())}")
            else:
                found.append(pair)
    if not found:
        raise InputError(*reasons, "no pair was measured (--pairs), so there is nothing to write")
    notes += reasons
    slowed, slows = (geometric_mean(side) for side in zip(*found, strict=True))
    notes.append(
        f"{device.name} takes {slowed:.3g} times as long while the host computes, and the host "
        f"{slows:.3g} times while {device.name} does, which the file does not say"
    )
    return {HOST: slowed}


def time_pair(
    model: Model, target: Target | None, device: MeasuredCodegen, host: MeasuredCodegen
) -> tuple[float, float] | str:
    """Measure a model on a device while the host runs the same one, and the reverse.

    Return how many times as long each takes as alone, 1 or more; a sentence where the device does not
    run all of the model as one region.
    """
    units, _ = list_units(model, target)
    if model.index.bodies or not all(unit.verdict for unit in units):
        return f"no pair: {device.name} cannot run all of it as one"
    report_step(f"{model.source}: beside the host")
    patience = replace(device.patience, seconds=device.patience.seconds / _PAIR_ROUNDS)
    own_units, _ = list_units(model, None)
    try:
        (call,) = cut_regions(model, target, {"whole": units}).values()
        (beside,) = cut_regions(model, None, {"beside": own_units}).values()
        with (
            open_call(model, target, device, "whole", call) as own,
            open_call(model, None, host, "beside", beside) as other,
        ):
            measured = (
                lambda: own.measure(patience, device.clock),
                lambda: other.measure(patience, host.clock),
            )
            repeated = (
                lambda: own.measure(_ONCE, device.clock),
                lambda: other.measure(_ONCE, host.clock),
            )
            return measure_slowdown(measured[0], repeated[1]), measure_slowdown(measured[1], repeated[0])
    except InputError as error:
        return f"no pair: {error}"


def measure_slowdown(measure: Callable[[], Sequence[float]], other: Callable[[], object]) -> float:
    """Measure the factor by which a function takes longer while another one runs; at least 1.

    `measure` returns the seconds of some runs. It is called alone and beside the other in turn, so that
    load on the machine slows both; the medians count.
    """
    alone: list[float] = []
    together: list[float] = []
    for _ in range(_PAIR_ROUNDS):
        alone += measure()
        with _running(other):
            together += measure()
    least = float(np.median(alone))
    return max(1.0, float(np.median(together)) / least) if least > 0 else 1.0


@contextmanager
def _running(work: Callable[[], object]) -> Iterator[None]:
    """Repeat some work in a thread as long as the context lasts, which begins after its first run.

    Raises at the end what the work raised.
    """
    has_run, stop = Event(), Event()
    failures: list[Exception] = []

    def repeat() -> None:
        try:
            while not stop.is_set():
                work()
                has_run.set()
        except Exception as error:  # of a codegen, for the thread that waits
            failures.append(error)
        finally:
            has_run.set()

    thread = Thread(target=repeat, daemon=True)
    thread.start()
    try:
        has_run.wait()
        yield
    finally:
        stop.set()
        thread.join()
    if failures:
        raise failures[0]
