"""Strategies side by side: a small study of models, links and strategies under one set of rules."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from io import BytesIO
from math import exp, fsum, isfinite, log
from pathlib import Path
from typing import Any

from byoc.comparison._case_schedulers import Scheduler, solve_here, solve_in_processes
from byoc.comparison._case_solver import check_joules
from byoc.comparison._comparison_options import FAST_STRATEGIES, ONE_ACCELERATOR, ComparisonOptions
from byoc.comparison._study_file import StudyCase
from byoc.comparison._study_run import StoppedStudyError, run_cases
from byoc.errors import InputError, escape_unprintable
from byoc.options import PlanOptions, list_files
from byoc.stages import load_settings
from byoc.support import check_minimum, keywords_of, select_options, take_keywords, write_atomically

# Figures by matplotlib, which is optional: made, labelled, and written whole or not at all.

SUFFIXES = (".svg", ".png", ".pdf")
"""The formats of figures, as suffixes of files."""

# Ids that are the same in every run.
_PARAMETERS: Any = {"svg.hashsalt": "byoc"}
_DOTS_PER_INCH = 200  # sharp in print, for bitmaps


def make_figure(width: float, height: float) -> Any:
    """Return an empty figure of so many inches. Raises InputError where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - optional
    except ImportError:
        raise InputError("matplotlib is not installed: pip install 'onnx-byoc[plots]'") from None
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
        names = tuple(name for name in FAST_STRATEGIES if not several or name != ONE_ACCELERATOR)
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
    the same measure; a strategy counts the cases that it solved. `measure` names what its objectives
    are, null where it solved none.
    """
    best: dict[_CaseKey, float] = {}
    for row in rows:
        if row["objective"] is not None:
            case = _key_case(row)
            best[case] = min(best.get(case, row["objective"]), row["objective"])
    return [_summarize(name, rows, best) for name in dict.fromkeys(row["strategy"] for row in rows)]


def _key_case(row: StrategyRow) -> _CaseKey:
    return row["model"], row["link"], row["measure"]


def _summarize(
    strategy: str, rows: Sequence[StrategyRow], best: dict[_CaseKey, float]
) -> dict[str, Any]:
    own = [row for row in rows if row["strategy"] == strategy]
    solved = [row for row in own if row["objective"] is not None]
    pairs = [(row["objective"], best[_key_case(row)]) for row in solved]
    ratios = [value / least if least else 1.0 for value, least in pairs]
    gaps = [row["gap"] for row in solved if row["gap"] is not None]
    return {
        "strategy": strategy,
        "measure": " and ".join(dict.fromkeys(row["measure"] for row in solved)) or None,
        "cases": len(solved),
        "errors": sum(row["error"] is not None for row in own),
        "mean_ratio": exp(fsum(map(log, ratios)) / len(ratios)) if ratios else None,
        "worst_ratio": max(ratios, default=None),
        "largest_gap": max(gaps, default=None),
        "seconds": fsum(row["seconds"] for row in solved),
    }
