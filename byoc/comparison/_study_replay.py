"""Replaying: the placements that a study saved, priced over another link or by other costs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from byoc.comparison._case_schedulers import solve_in_processes
from byoc.comparison._study_file import SAVED, SavedCase, StudyCase
from byoc.comparison._study_results import StudyRow, check_results_path, format_pairs, write_results
from byoc.comparison._study_run import StoppedStudyError, StudyResult, run_cases
from byoc.errors import InputError
from byoc.placement import Measure
from byoc.stages import load_settings
from byoc.stages.options import DEFAULT_STRATEGY
from byoc.support import check_minimum, is_file, read_yaml

# Strategies that take a placement as it is given, and count it by a measure.
_STRATEGIES = {
    Measure.total: DEFAULT_STRATEGY,
    Measure.makespan: "makespan",
    Measure.load: "throughput",
}


def replay_study(  # noqa: PLR0913 - the options of the verb
    saved: str | Path,
    output: str | Path | None = None,
    *,
    links: Sequence[float] = (),
    cost_model: str | Path | None = None,
    host_cost_model: str | Path | None = None,
    jobs: int | None = None,
) -> StudyResult:
    """Price the placements that a study saved over another link or by other costs.

    Args:
        saved: the folder that `byoc.study` was given as `save`.
        output: where to write the results, as of `byoc.study`; there is no journal.
        links: bandwidths in GB/s, over each of which every placement is priced; the link of its own case
            if empty.
        cost_model: the accelerator's cost model, by path or name, in place of that of each case.
        host_cost_model: the same for the host.
        jobs: processes at a time, as many as there are processors by default.

    Returns:
        A row for each placement at each link, as of `byoc.study`. Its `options` say under what the
        placement was chosen, of what is replaced here: `saved_link=0.1`, null for the cost model's own.
        Nothing is searched, so that
        `bound`, `gap` and `solver_seconds` are None.

    Raises InputError where the folder has no cases, a file in it or a cost model is wrong, and where the
    results cannot be written. A case whose model or rule file has changed since is a row that says so.
    """
    check_minimum("jobs", jobs, 1)
    path = None if output is None else Path(output)
    if path is not None:
        check_results_path(path)
    given = {"cost_model": cost_model, "host_cost_model": host_cost_model}
    costs: dict[str, Any] = {
        name: _find_costs(value) for name, value in given.items() if value is not None
    }
    before: dict[str, StudyCase] = {}
    cases: dict[str, StudyCase] = {}
    for file, content in sorted(_read_saved(Path(saved)), key=_sort_saved):
        for link in links or (content.case.link,):
            case = _make_case(file, content, costs, link)
            before[case.key], cases[case.key] = content.case, case
    load_settings(next(iter(cases.values())).options)  # a wrong cost model is an error, not many rows
    try:
        result = run_cases([*cases.values()], partial(solve_in_processes, jobs=jobs), {})
    except StoppedStudyError as stop:
        raise stop.cause from None
    names: dict[str, Any] = {name: str(value) for name, value in given.items() if value is not None}
    replaced = [*(["link"] if links else []), *names]
    rows = [_name_row(row, before[row["key"]], replaced) | names for row in result.rows]
    if path is not None:
        write_results(path, rows)
    return replace(result, rows=rows)


def _find_costs(given: str | Path) -> str:
    """Return a cost model's absolute path, since cases have folders of their own, or its name."""
    return str(Path(given).absolute()) if is_file(Path(given)) else str(given)


def _read_saved(folder: Path) -> Iterator[tuple[Path, SavedCase]]:
    """Yield the placement file and the case of each saved case, by name."""
    ending = f".{SAVED['case']}"
    files = sorted(folder.glob(f"*{ending}"))
    if not files:
        raise InputError(f"{folder}: no case that `byoc study --save` wrote is in it")
    for file in files:
        content = read_yaml(file, SavedCase)
        placement = file.with_name(f"{file.name.removesuffix(ending)}.{SAVED['placement']}")
        if not is_file(placement):
            raise InputError(f"{placement}: no such file, which {file.name} belongs to")
        yield placement.absolute(), content


def _sort_saved(saved: tuple[Path, SavedCase]) -> tuple[Any, ...]:
    """Return what saved cases are sorted by: as in a study, models first."""
    case = saved[1].case
    options = sorted(case.strategy_options.items())
    return case.model, case.rules, case.strategy, options, case.link or 0.0, case.seed or 0, saved[0]


def _make_case(
    placement: Path, saved: SavedCase, costs: Mapping[str, Any], link: float | None
) -> StudyCase:
    """Return the case that prices a placement; the digests of what is replaced are left out."""
    kept = {what: saved.case.digests[what] for what in ("model", "rules") if what in saved.case.digests}
    return replace(
        saved.case,
        **costs,
        cost_options=_drop_replaced(saved.case.cost_options, costs),
        parameters=_drop_replaced(saved.case.parameters, costs),
        link=link,
        strategy=_STRATEGIES[saved.measure],
        strategy_options={},
        seed=None,
        digests=kept,
        save="",
        placement=str(placement),
    )


def _drop_replaced(given: Mapping[str, Any], costs: Mapping[str, str]) -> dict[str, Any]:
    """Return options or parameters of cost models without those of models that are replaced."""
    models = {name: "host_cost_model" if name.startswith("host:") else "cost_model" for name in given}
    return {name: value for name, value in given.items() if models[name] not in costs}


def _name_row(row: StudyRow, before: StudyCase, replaced: Sequence[str]) -> StudyRow:
    """Return a row with the strategy that chose the placement, and under what, of what is replaced.

    That is there where it is the same, too, so that each link has the same variants of a strategy.
    """
    under = {f"saved_{name}": getattr(before, name) for name in replaced}
    options = format_pairs({**before.strategy_options, **under})
    return row | {"strategy": before.strategy, "options": options, "seed": before.seed}
