"""Comparison of many models at once: one process each, so that a failure costs one row only."""

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path

from byoc.comparison._study import StrategyRow, Study, check_study, make_error_rows, make_rows
from byoc.errors import describe_error
from byoc.options import list_files
from byoc.support import check_minimum, declare_field, keywords_of, report_step, take_keywords

FAST_STRATEGIES = (
    *("host-only", "all-supported", "faster-ops", "faster-ops-transfer", "tree-dp", "min-cut"),
    "launch-aware",
)
_ONE_ACCELERATOR = "min-cut"


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions(Study):
    """All choices of a comparison."""

    jobs: int | None = declare_field(
        None, "processes at a time, as many as there are processors by default."
    )


@take_keywords(ComparisonOptions)
def compare(models: str | Path | Sequence[str | Path], options: ComparisonOptions) -> list[StrategyRow]:
    """Place models by several strategies, over several bandwidths of the link.

    `models` are paths, or `zoo:NAME`, one or several. The rows are in the order of models, links and
    strategies; the keys, and the units of their values, are those of `byoc.comparison.ROW_KEYS`. A model
    or strategy that fails has rows with the reason as `error`, and the others go on.

    Raises InputError when the rules, costs or strategies cannot be loaded, and for a bandwidth or a
    number of processes that is none.
    """
    check_minimum("jobs", options.jobs, 1)
    study = Study(**keywords_of(options, Study))
    if not study.strategies:
        several = len(list_files(study.rules)) > 1
        names = tuple(name for name in FAST_STRATEGIES if not several or name != _ONE_ACCELERATOR)
        study = replace(study, strategies=names)
    check_study(study)
    return run_study(list(dict.fromkeys(map(str, list_files(models)))), study, options.jobs)


def run_study(
    models: Sequence[str],
    study: Study,
    workers: int | None = None,
) -> list[StrategyRow]:
    """Return the rows of all models, in the order of models, links and strategies.

    `workers` is how many processes run at a time, as many as there are processors unless given; with 1
    everything runs in this one. A model whose process dies is tried again by itself, unless it was, then
    strategy by strategy; one whose process dies then, too, is an error.
    """
    count = workers or os.cpu_count() or 1
    if count == 1:
        found = {}
        for done, name in enumerate(models):
            report_step(f"{name} ({done} of {len(models)} done)")
            found[name] = _make_rows(name, study)
        return [row for name in models for row in found[name]]
    found, lost = _compare_in_pool(models, study, min(count, len(models)))
    for name in lost:
        again = _compare_in_pool([name], study, 1)[0] if len(models) > 1 else {}
        found |= again or {name: _compare_one_by_one(name, study)}
    return [row for name in models for row in found[name]]


def _compare_one_by_one(name: str, study: Study) -> list[StrategyRow]:
    """Return the rows of a model that takes its process along, each strategy tried in one of its own."""
    found = []
    for strategy in study.strategies:
        alone = replace(study, strategies=(strategy,))
        rows = {} if alone == study else _compare_in_pool([name], alone, 1, quiet=True)[0]
        found.append(rows.get(name) or make_error_rows(name, alone, "the process that placed it died"))
    return [rows[place] for place in range(len(study.links)) for rows in found]


def _compare_in_pool(
    models: Sequence[str], study: Study, workers: int, *, quiet: bool = False
) -> tuple[dict[str, list[StrategyRow]], list[str]]:
    """Return the rows of each model, and the models that were lost when a process died."""
    found: dict[str, list[StrategyRow]] = {}
    # Not forked: a child of a process with threads may hang in a lock that another thread held.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        asked = {pool.submit(_make_rows, name, study): name for name in models}
        for future in as_completed(asked):
            try:
                found[asked[future]] = future.result()
            except BrokenProcessPool:
                continue
            if not quiet:
                report_step(f"{asked[future]} ({len(found)} of {len(models)} done)")
    return found, [name for name in models if name not in found]


def _make_rows(name: str, study: Study) -> list[StrategyRow]:
    try:
        return make_rows(name, study)
    except Exception as error:  # a defect must not take the other models' rows with it
        return make_error_rows(name, study, f"failed with {describe_error(error)}")
