"""Strategies side by side: a small study of models, links and strategies under one set of rules."""

import json
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from io import BytesIO
from math import exp, fsum, isfinite, log
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from byoc._dataclasses import dataclass, replace
from byoc.comparison._case_schedulers import Scheduler, solve_here, solve_in_processes
from byoc.comparison._case_solver import check_joules
from byoc.comparison._comparison_options import (
    FAST_STRATEGIES,
    ONE_ACCELERATOR,
    SEVERAL_ACCELERATORS,
    ComparisonOptions,
)
from byoc.comparison._profile import profile
from byoc.comparison._study_file import StudyCase, format_value
from byoc.comparison._study_run import StoppedStudyError, run_cases
from byoc.errors import InputError, escape_unprintable
from byoc.model import Model, get_operator_name, name_nodes
from byoc.pipeline import DEFAULT_STRATEGY, PlanOptions, list_files, load_settings, load_strategy
from byoc.placement import Ints, Placement, Problem, Strategy, solve_problem
from byoc.planning import (
    build_main_problem,
    format_problem,
    load_units,
    name_units,
    plan_graphs,
    price_placement,
)
from byoc.rules import load_rules
from byoc.support import (
    allow_named,
    check_minimum,
    describe_failure,
    install_command,
    is_file,
    keywords_of,
    select_options,
    take_keywords,
    write_atomically,
    write_text,
)
from byoc.zoo import Source, name_source

# Figures by matplotlib, which is optional: made, labelled, and written whole or not at all.

SUFFIXES = (".svg", ".png", ".pdf")
"""The formats of figures, as suffixes of files."""

# Ids that are the same in every run; fonts as TrueType (42), which journals ask for, not Type 3.
_PARAMETERS: Any = {"svg.hashsalt": "byoc", "pdf.fonttype": 42}
_DOTS_PER_INCH = 200  # sharp in print, for bitmaps


def make_figure(width: float, height: float) -> Any:
    """Return an empty figure of so many inches. Raises InputError where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - optional
    except ImportError:
        raise InputError(f"matplotlib is not installed: {install_command('plots')}") from None
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure in the format of the suffix, without a date: equal figures are equal files.

    Raises InputError for another suffix (`SUFFIXES`), and when the file cannot be written.
    """
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path}: figures are {', '.join(SUFFIXES)}")
    write_atomically(path, lambda file: _write_figure(figure, path.suffix.removeprefix("."), file))


def render_figure(figure: Any, form: str) -> bytes:
    """Return a figure in a format, `svg`, `png` or `pdf`, as it would be in a file."""
    written = BytesIO()
    _write_figure(figure, form, written)
    return written.getvalue()


def _write_figure(figure: Any, form: str, file: Any) -> None:
    from matplotlib import rc_context  # noqa: PLC0415 - optional, and here once there is a figure

    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    with rc_context(_PARAMETERS):
        figure.savefig(file, format=form, metadata=dates[form], dpi=_DOTS_PER_INCH)


def escape_label(text: str) -> str:
    """Return a name as matplotlib writes it: `$` begins no formula, `_` hides nothing in legends."""
    shown = escape_unprintable(text).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


StrategyRow = dict[str, Any]


TOTAL = "total"

ROW_KEYS = (
    *("model", "link", "strategy", "measure", "objective", "bound", "gap", "regions", "offloaded"),
    *("bytes_moved", "regret_mean", "regret_worst", "seconds", "notes", "error"),
)
"""The keys of a row.

`link` in GB/s, null for the cost model's own; `measure` is `total` where all costs are added up, and
`makespan` where the strategy has host and accelerators work at once; `objective` and `bound` are by that
measure, in seconds, joules or a weighted sum; `gap` is the distance to the best bound that any of the
strategies proved, as a share of the objective; `offloaded` as a share of the compute; `regret_mean` and
`regret_worst` what the placement costs over the best one at perturbed costs (`perturb`), null without;
`seconds` that the strategy took; `notes` a list of sentences: what the strategy said, what it leaves
out, guessed costs; `error` a sentence where there was one. A row that was not solved has nothing but
null and no notes beside its error.

A makespan is that of the main graph: everything in the bodies of If, Loop and Scan is added up.
"""

_KEY_OF = {"objective": "value", "seconds": "solver_seconds"}


@take_keywords(ComparisonOptions)
def compare(models: str | Path | Sequence[str | Path], options: ComparisonOptions) -> list[StrategyRow]:
    """Place models by several strategies, over several bandwidths of the link.

    `models` are paths, or `zoo:NAME`, one or several. The rows are in the order of models, links and
    strategies; the keys, and the units of their values, are those of `byoc.comparison.ROW_KEYS`. A model
    or strategy that fails has rows with the reason as `error`, and the others go on. With one job
    everything runs in this process.

    Raises InputError when the rules, costs or strategies cannot be loaded, and for a bandwidth or a
    number of processes that is none. An interrupt is raised as KeyboardInterrupt,
    with a StoppedStudyError that has what is done as its cause.
    """
    check_minimum("jobs", options.jobs, 1)
    if not options.strategies:
        several = len(list_files(options.rules)) > 1
        names = tuple(
            SEVERAL_ACCELERATORS if several and name == ONE_ACCELERATOR else name
            for name in FAST_STRATEGIES
        )
        options = replace(options, strategies=names)
    check_comparison(options)
    cases = make_cases(list(dict.fromkeys(map(str, list_files(models)))), options)
    solve: Scheduler = solve_here
    if options.jobs != 1:
        solve = partial(solve_in_processes, jobs=options.jobs)
    try:
        return make_strategy_rows(run_cases(cases, solve, {}).rows)
    except StoppedStudyError as stop:
        raise stop.cause from stop


def check_comparison(options: ComparisonOptions) -> None:
    """Raise InputError for a comparison that cannot be carried out for any model."""
    for link in options.links:
        if link is not None and not (isfinite(link) and link > 0):
            raise InputError(f"links: {link:g} is not a number of GB/s above 0")
    for strategy in options.strategies:
        check_joules(load_settings(options, strategy, among=options.strategies))


def make_cases(models: Iterable[str], options: ComparisonOptions) -> list[StudyCase]:
    """Return the cases of a comparison, in the order of models, links and strategies."""
    own = {
        name: select_options(
            options.strategy_options or {}, name, options.strategies, "strategy option", "strategy"
        )
        for name in options.strategies
    }
    costs, host = options.cost_model, str(options.host_cost_model)
    named = {
        *("rules", "cost_model", "host_cost_model", "cost_options", "strategy_options"),
        *("objective", "time_limit"),
    }
    return [
        StudyCase(
            model=model,
            rules=tuple(map(str, list_files(options.rules))),
            cost_model=_name_costs(costs),
            host_cost_model=host,
            cost_options=dict(options.cost_options or {}),
            link=link,
            strategy=strategy,
            strategy_options=own[strategy],
            time_limit=options.time_limit,
            objective=options.objective,
            planning={
                name: value
                for name, value in keywords_of(options, PlanOptions).items()
                if name not in named
            },
        )
        for model in models
        for link in options.links
        for strategy in options.strategies
    ]


def _name_costs(costs: Any) -> Any:
    if costs is None or isinstance(costs, (str, Path)):
        return None if costs is None else str(costs)
    return {target: str(name) for target, name in costs.items()}


def make_strategy_rows(rows: Iterable[dict[str, Any]]) -> list[StrategyRow]:
    """Return the rows of a comparison for those of a study."""
    return [
        {key: row[_KEY_OF.get(key, key)] for key in ROW_KEYS if key != "error"}
        | {"error": row["reason"] or None}
        for row in rows
    ]


# Summary of a comparison: for each strategy the geometric mean of its ratios to the best.

_CaseKey = tuple[str, float | None, str]


def summarize_strategies(rows: Sequence[StrategyRow]) -> list[dict[str, Any]]:
    """Return a row for each strategy: cases, errors, mean and worst ratio, largest gap, seconds.

    A case is a model at a link. Ratios are to the best objective that any strategy found for the case by
    the same measure. They are over the `common` cases, those that every strategy solved which solved
    any: else one that fails on hard cases would look better. `measure` names what its objectives are,
    null where it solved none.
    """
    best: dict[_CaseKey, float] = {}
    solved: dict[tuple[str, float | None], set[str]] = {}
    for row in rows:
        if row["objective"] is not None:
            case = _key_case(row)
            best[case] = min(best.get(case, row["objective"]), row["objective"])
            solved.setdefault(case[:2], set()).add(row["strategy"])
    solving = {strategy for strategies in solved.values() for strategy in strategies}
    common = {case for case, strategies in solved.items() if strategies == solving}
    names = dict.fromkeys(row["strategy"] for row in rows)
    return [_summarize(name, rows, best, common) for name in names]


def _key_case(row: StrategyRow) -> _CaseKey:
    return row["model"], row["link"], row["measure"]


def _summarize(
    strategy: str,
    rows: Sequence[StrategyRow],
    best: dict[_CaseKey, float],
    common: Collection[tuple[str, float | None]],
) -> dict[str, Any]:
    own = [row for row in rows if row["strategy"] == strategy]
    solved = [row for row in own if row["objective"] is not None]
    kept = [row for row in solved if _key_case(row)[:2] in common]
    pairs = [(row["objective"], best[_key_case(row)]) for row in kept]
    ratios = [value / least if least else 1.0 for value, least in pairs]
    gaps = [row["gap"] for row in kept if row["gap"] is not None]
    return {
        "strategy": strategy,
        "measure": " and ".join(dict.fromkeys(row["measure"] for row in solved)) or None,
        "cases": len(solved),
        "errors": sum(row["error"] is not None for row in own),
        "common": len(kept),
        "mean_ratio": exp(fsum(map(log, ratios)) / len(ratios)) if ratios else None,
        "worst_ratio": max(ratios, default=None),
        "largest_gap": max(gaps, default=None),
        "seconds": fsum(row["seconds"] for row in kept),
    }


# The placement problem of a model as data: arrays, names, a table, a file, a picture.

# Optimality loss: what a placement chosen by some costs loses to the one chosen by others.
#
# Both are priced by the others, as a rule measured ones. A cost model may be off by a factor of
# three and still choose well, and one that is off by a tenth may choose badly; this is what counts.


@dataclass(frozen=True, slots=True)
class OptimalityLoss:
    """Seconds of placements of a model.

    `predicted` is what the costs in question say of the placement that they choose; `chosen` what the
    other costs say of it, `best` what these say of the placement that they choose, `host_only` of
    everything on the host. `estimated` units of how many (`units`) have no measured cost. `proven` says
    that `best` is the optimum.
    """

    model: str
    predicted: float
    chosen: float
    best: float
    host_only: float
    units: int
    estimated: int
    proven: bool

    @property
    def loss(self) -> float:
        """The share of the best seconds that the chosen placement takes more; 0 where it is the best."""
        return self.chosen / self.best - 1 if self.best > 0 else 0.0


def compare_decisions(model: str, asked: PlanOptions, judge: PlanOptions) -> OptimalityLoss:
    """Compare the placements that two sets of costs choose, both priced by the costs in `judge`.

    `model` is a path or zoo:NAME. The rule files of both are the same; the strategy is the default one.
    Raises InputError when a model, a rule file or a cost model is at fault.
    """
    own, other = load_settings(asked), load_settings(judge)
    given = asked.dims, asked.shapes, asked.trips, asked.no_passes
    loaded, units = load_units(model, own.targets, *given)
    index = loaded.index
    chosen = plan_graphs(index, own, units)
    priced, best = price_placement(chosen, other, units), plan_graphs(index, other, units)
    bound = best.placement.bound
    least = min(priced.cost.total, best.cost.total)
    return OptimalityLoss(
        model=model,
        predicted=chosen.cost.total,
        chosen=priced.cost.total,
        best=least,
        host_only=best.host_only,
        units=sum(len(graph.units) for graph in best.walk()),
        estimated=sum(graph.graph_problem.estimated for graph in best.walk()),
        proven=bound is not None and bound >= least * (1 - _TOLERANCE),
    )


_TOLERANCE = 1e-6  # relative: rounding of sums of costs in float64


def measure_loss(model: str, asked: PlanOptions, seconds: float, repeats: int) -> OptimalityLoss:
    """Measure the units of a model here, on the host and by its target's codegen, and judge by that.

    Each is measured for at most so many `seconds` and `repeats`. What cannot be measured has the costs
    in question. Raises InputError as `profile` and `compare_decisions`, and for several rule files.
    """
    rules = [asked.rules] if isinstance(asked.rules, (str, Path)) else list(asked.rules)
    if len(rules) != 1:
        raise InputError("units are measured for one accelerator at a time: give one rule file")
    target = load_rules(rules[0])
    costs = asked.cost_model if isinstance(asked.cost_model, (str, Path)) else target.cost_model
    named = [Path(each) for each in (costs, asked.host_cost_model) if is_file(Path(each))]
    with TemporaryDirectory(prefix="byoc-") as folder, allow_named(*named):
        host, device = str(Path(folder, "host.yaml")), str(Path(folder, "device.yaml"))
        measure = partial(profile, model, seconds=seconds, repeats=repeats, dims=asked.dims)
        measure(output=host, otherwise=_find_path(asked.host_cost_model))
        codegen = target.rules.codegen
        measure(output=device, device=codegen, rules=rules[0], otherwise=_find_path(costs))
        judge = replace(asked, cost_model=device, host_cost_model=host, cost_options=None)
        return compare_decisions(model, asked, judge)


def _find_path(name: str | Path) -> str:
    """Return a cost model's absolute path, or the name of an installed one."""
    return str(Path(name).absolute()) if Path(name).is_file() else str(name)


_COLOURS = ("#9aa0a6", "#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756")
_MOST_NAMED = 40  # units whose names are legible in a picture


@dataclass(frozen=True, eq=False)
class ModelProblem:
    """The placement problem of a model's main graph, and the names of what is in it.

    `problem` has the arrays (`byoc.placement.Problem`), in units of the objective: seconds, joules or a
    weighted sum. Its rows are `units`, with the names of their `nodes` and the `operators` of these,
    and `tensors`; its columns are `devices`, the host first. `margin` is the share that a placement on
    several devices has to save for `launch-aware` to choose it, as the cost models have it.
    """

    problem: Problem
    units: tuple[str, ...]
    nodes: tuple[tuple[str, ...], ...]
    operators: tuple[tuple[str, ...], ...]
    tensors: tuple[str, ...]
    devices: tuple[str, ...]
    model: str
    objective: str
    margin: float = 0.0

    def solve(self, strategy: str | Strategy = DEFAULT_STRATEGY, **options: object) -> Placement:
        """Return a strategy's placement: `labels` are the positions of units' devices in `devices`.

        A strategy is a name with `options`, or an object with `solve`; `launch-aware` has the `margin`
        unless it is given. Raises InputError for a strategy that there is not, fails, or breaks a limit.
        """
        if isinstance(strategy, str):
            if strategy == DEFAULT_STRATEGY and self.margin:
                options = {"margin": self.margin, **options}
            texts = {name: format_value(value) for name, value in options.items()}
            strategy = load_strategy(strategy, texts, (strategy,))
        return solve_problem(self.problem, strategy, self.units, describe_failure)

    def to_frame(self, labels: Ints | None = None) -> Any:
        """Return a pandas DataFrame with a row for each unit: names, operators, and costs by device.

        A cost is infinite where the device refuses the unit. `labels` of a placement are a column more.
        Raises InputError where pandas is not installed.
        """
        try:
            import pandas  # noqa: PLC0415 - optional
        except ImportError:
            raise InputError(f"pandas is not installed: {install_command('study')}") from None
        columns: dict[str, Any] = {
            "unit": self.units,
            "nodes": [len(names) for names in self.nodes],
            "operators": [" ".join(dict.fromkeys(names)) for names in self.operators],
        }
        for number, device in enumerate(self.devices):
            columns[device] = self.problem.seconds[:, number]
        if labels is not None:
            columns["placed"] = [self.devices[label] for label in labels]
        return pandas.DataFrame(columns)

    def save(self, path: str | Path) -> None:
        """Write the problem as JSON with all that it has; `byoc place` and `byoc.place` solve it.

        Raises InputError where it cannot be written.
        """
        document = format_problem(
            self.problem,
            self.model,
            self.objective,
            self.devices[1:],
            self.units,
            self.nodes,
            self.tensors,
            self.margin,
        )
        write_text(Path(path), json.dumps(document, indent=1, allow_nan=False) + "\n")

    def draw(self, path: str | Path | None = None, labels: Ints | None = None) -> Any:
        """Draw the units from the first to the last, coloured by device, and return the figure.

        The device is that of `labels`, else the one that alone takes least. A circle's area grows with
        the cost on the host. `path` is where to write it, as SVG, PNG or PDF. Raises InputError where
        matplotlib is not installed, or the file cannot be written.
        """
        problem = self.problem
        depth = find_depths(problem)
        across = _spread(depth)
        chosen = np.argmin(problem.costs, axis=1) if labels is None else labels
        height = min(3 + 0.2 * (int(depth.max(initial=0)) + 1), 40)
        figure = make_figure(8, height)
        axes = figure.subplots()
        for one, other in zip(*problem.edges, strict=True):
            x, y = [across[one], across[other]], [depth[one], depth[other]]
            axes.plot(x, y, color="#cccccc", linewidth=0.7, zorder=1)
        host = problem.seconds[:, 0]
        area = 20 + 200 * host / max(float(host.max(initial=0.0)), 1e-30)
        for number, device in enumerate(self.devices):
            here = chosen == number
            colour = _COLOURS[number % len(_COLOURS)]
            axes.scatter(
                across[here], depth[here], area[here], color=colour, label=escape_label(device), zorder=2
            )
        if problem.units <= _MOST_NAMED:
            for row, names in enumerate(self.operators):
                text = escape_label("+".join(dict.fromkeys(names)))
                axes.annotate(
                    text, (across[row], depth[row]), (6, 0), textcoords="offset points", fontsize=7
                )
        axes.invert_yaxis()
        axes.set_axis_off()
        axes.set_title(escape_label(f"{self.model}: {problem.units} units"), fontsize=10)
        axes.legend(loc="upper left", fontsize=8)
        if path is not None:
            save_figure(figure, Path(path))
        return figure


@take_keywords(PlanOptions)
def build_problem(model: Source | Model, options: PlanOptions) -> ModelProblem:
    """Return the placement problem of a model as data: what strategies are given, and its names.

    `model` is as `partition` takes it. Bodies of If, Loop and Scan are placed by the default strategy,
    since their cost is that of their node on the host. Raises InputError when the model, a rule file, a
    cost model or an option is at fault.
    """
    settings = load_settings(options)
    given = options.dims, options.shapes, options.trips, options.no_passes
    loaded, units = load_units(model, settings.targets, *given)
    index = loaded.index
    found = build_main_problem(index, settings, units)
    own = units[id(index)].units
    names = name_nodes(index, "")
    return ModelProblem(
        problem=found.problem,
        units=tuple(name_units(index, own)),
        nodes=tuple(tuple(names.get(node, "") for node in unit.nodes) for unit in own),
        operators=tuple(
            tuple(get_operator_name(index.nodes[node]) for node in unit.nodes) for unit in own
        ),
        tensors=found.tensors,
        devices=("host", *(target.name for target in settings.targets)),
        model=loaded.source if isinstance(model, Model) else name_source(model),
        objective=str(settings.objective),
        margin=getattr(settings.strategy, "margin", 0.0),
    )


def find_depths(problem: Problem) -> Ints:
    """Return the length of the longest path to each unit, int64 (units,)."""
    depth = np.zeros(problem.units, np.int64)
    for one, other in zip(*problem.listed_edges, strict=True):  # sorted by producer
        depth[other] = max(depth[other], depth[one] + 1)
    return depth


def _spread(depth: Ints) -> Any:
    """Return a place across for each unit: those of one depth side by side, around 0."""
    across = np.zeros(len(depth))
    for level in np.unique(depth):
        here = np.flatnonzero(depth == level)
        across[here] = np.arange(len(here)) - (len(here) - 1) / 2
    return across
