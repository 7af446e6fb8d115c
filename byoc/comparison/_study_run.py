"""Running a study: each combination of its axes is a case; pricing placements that one saved."""

import json
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from fnmatch import fnmatchcase
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from byoc._dataclasses import dataclass, replace
from byoc.comparison._case_schedulers import Scheduler, solve_in_processes, solve_on_cluster
from byoc.comparison._case_solver import (
    OK,
    REFUSED,
    CaseSolver,
    Outcome,
    digest_model,
    digest_settings,
    digest_versions,
    make_failure,
)
from byoc.comparison._study_file import (
    SAVED,
    SavedCase,
    StudiedCosts,
    StudiedStrategy,
    StudyCase,
    StudyFile,
    format_value,
    read_study,
)
from byoc.comparison._study_results import (
    StudyJournal,
    StudyRow,
    check_results_path,
    format_pairs,
    is_failure,
    make_rows,
    write_results,
)
from byoc.costs import parse_objective
from byoc.errors import InputError, escape_unprintable, suggest_nearest
from byoc.pipeline import DEFAULT_STRATEGY, load_settings, load_targets
from byoc.placement import Measure
from byoc.planning import choose_clean_passes, read_instance
from byoc.support import (
    check_minimum,
    describe_missing_file,
    is_file,
    make_file_error,
    make_folder,
    read_yaml,
    report_step,
    validate_content,
)
from byoc.zoo import ZOO, list_entries

# The cases of a study file: every combination of its axes, names resolved, contents digested.

_PATTERN = "*?["
_MOST_CASES = 1_000_000  # of one study: the list of cases is in memory


def expand_cases(study: StudyFile, folder: Path, source: str) -> list[StudyCase]:
    """Return the cases of a study, those of one model together, without digests.

    `folder` is what paths are relative to, and `source` the study's name for messages. Raises InputError
    for a pattern that matches no model, for unknown names, options and parameters, each with its
    location, and for more than a million cases.
    """
    models = _find_models(study.models, folder, source)
    values = [("strategies", [*each.options.values()]) for each in study.strategies]
    values += [("costs", [*each.options.values(), *each.parameters.values()]) for each in study.costs]
    for what, lists in values:
        if prod(map(len, lists)) > _MOST_CASES:
            raise InputError(f"{source}: {what}: options of one make more than {_MOST_CASES} cases")
    strategies = list(_expand_strategies(study.strategies))
    costs = list(_expand_costs(study.costs))
    axes: Sequence[Sequence[Any]] = (
        *(models, study.rules, costs, study.no_passes, study.objectives, study.links, study.limits),
        strategies,
        range(study.repetitions),
    )
    count = study.repetitions * prod(map(len, axes[:-1]))
    if count > _MOST_CASES:
        raise InputError(f"{source}: it has {count} cases, and at most {_MOST_CASES} are possible")
    planning: dict[str, Any] = {"unknown_costs": study.unknown_costs}
    planning |= {name: dict(getattr(study, name)) for name in ("dims", "trips") if getattr(study, name)}
    cases = []
    for model, rules, cost, left_out, objective, link, limits, strategy, repetition in product(*axes):
        given = limits.model_dump(exclude_none=True)
        cases.append(
            StudyCase(
                model=model,
                rules=tuple(rules),
                folder=str(folder.absolute()),
                **cost,
                **strategy,
                link=link,
                time_limit=given.pop("time", None),
                limits=given,
                objective=objective,
                repetition=repetition,
                planning={**planning, "no_passes": left_out} if left_out else planning,
                case_seconds=study.case_seconds,
            )
        )
    _check_axes(study, cases, source)
    return list({case.key: case for case in cases}.values())


def add_digests(cases: Sequence[StudyCase]) -> tuple[list[StudyCase], dict[str, Outcome]]:
    """Return the cases with digests of their contents, and the outcomes of those that cannot be read.

    A case whose model or files cannot be read has no digests; its outcome, by its key, is the refusal.
    """
    solver, models = CaseSolver(), dict[str, str | InputError]()
    digested: list[StudyCase] = []
    failures: dict[str, Outcome] = {}
    digests: dict[str, dict[str, str]] = {}
    for case in cases:
        if case.model not in models:
            report_step(f"{case.model}: reading")
            models[case.model] = _try_digest(case.model_path)
        model = models[case.model]
        try:
            if isinstance(model, InputError):
                raise model
            key = json.dumps([repr(case.options), case.strategy, dict(case.parameters)])
            if key not in digests:
                digests[key] = {
                    **digest_settings(solver.load_settings(case)),
                    "versions": digest_versions(),
                }
            digested.append(replace(case, digests={"model": model, **digests[key]}))
        except InputError as error:
            digested.append(case)
            failures[case.key] = make_failure(REFUSED, " ".join(str(error).split()))
    return digested, failures


def _try_digest(source: str) -> str | InputError:
    try:
        return digest_model(source)
    except InputError as error:
        return error


def _find_models(given: Iterable[str], folder: Path, source: str) -> list[str]:
    """Return the models; raise InputError with a line for each name that stands for none."""
    found: dict[str, None] = {}
    missing: list[str] = []
    for number, name in enumerate(given):
        try:
            matches = list(_match_models(name, folder))
        except (ValueError, NotImplementedError) as error:  # pathlib's, of patterns
            raise InputError(f"{source}: models[{number}]: '{name}': {error}") from None
        if not matches:
            missing.append(f"{source}: models[{number}]: {_describe_missing_model(name, folder)}")
        found |= dict.fromkeys(matches)
    if missing:
        raise InputError(*missing)
    return list(found)


def _describe_missing_model(name: str, folder: Path) -> str:
    """Return why a name or a pattern stands for no model."""
    in_zoo = name.startswith(ZOO)
    if any(mark in name for mark in _PATTERN):
        where = "no model of the zoo that is here" if in_zoo else f"no file in {folder}"
        return f"{where} matches '{name}'"
    if not in_zoo:
        return describe_missing_file(folder / name)
    near = suggest_nearest(name.removeprefix(ZOO), [each.name for each in list_entries()])
    return f"the zoo has no '{name.removeprefix(ZOO)}'{near}; `byoc zoo` lists its models"


def _match_models(name: str, folder: Path) -> Iterator[str]:
    """Yield the models that a name or a pattern stands for; patterns match no model to be fetched."""
    if name.startswith(ZOO):
        pattern = name.removeprefix(ZOO)
        if not any(mark in pattern for mark in _PATTERN):
            yield from (name for each in list_entries() if each.name == pattern)
            return
        here = (entry.name for entry in list_entries() if entry.present)
        yield from (f"{ZOO}{each}" for each in here if fnmatchcase(each, pattern))
    elif (folder / name).exists():
        yield name
    elif not any(mark in name for mark in _PATTERN):
        return
    elif Path(name).is_absolute():
        root = Path(Path(name).anchor)
        yield from sorted(map(str, root.glob(str(Path(name).relative_to(root)))))
    else:
        yield from sorted(str(path.relative_to(folder)) for path in folder.glob(name))


def _expand_strategies(strategies: Iterable[StudiedStrategy]) -> Iterator[dict[str, Any]]:
    for each in strategies:
        for options in _expand_values(each.options):
            texts = {name: format_value(value) for name, value in options.items()}
            for seed in each.seeds or (None,):
                yield {"strategy": each.name, "strategy_options": texts, "seed": seed}


def _expand_costs(costs: Iterable[StudiedCosts]) -> Iterator[dict[str, Any]]:
    for each in costs:
        for options, parameters in product(
            _expand_values(each.options), _expand_values(each.parameters)
        ):
            yield {
                "cost_model": each.accelerator,
                "host_cost_model": each.host,
                "cost_options": {name: format_value(value) for name, value in options.items()},
                "parameters": parameters,
            }


def _expand_values(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def _check_axes(study: StudyFile, cases: Sequence[StudyCase], source: str) -> None:
    """Raise InputError with a line for each point of an axis that cannot be loaded."""
    problems: dict[str, None] = {}
    solver, first = CaseSolver(), cases[0]
    default = replace(first, strategy=DEFAULT_STRATEGY, strategy_options={}, seed=None)
    for number, text in enumerate(study.objectives):
        _note_problem(problems, f"objectives[{number}]", lambda text=text: parse_objective(text))
    for number, names in enumerate(study.rules):
        found = [first.resolve_rules(name) for name in names]
        _note_problem(problems, f"rules[{number}]", lambda found=found: load_targets(found))
    for number, left_out in enumerate(study.no_passes):
        _note_problem(
            problems, f"no_passes[{number}]", lambda names=left_out: choose_clean_passes((), names)
        )
    if not problems:
        for number, each in enumerate(study.strategies):
            for point in _expand_strategies([each]):
                case = replace(first, **point)
                _note_problem(
                    problems, f"strategies[{number}]", lambda case=case: solver.load_settings(case)
                )
        for number, costs in enumerate(study.costs):
            for point in _expand_costs([costs]):
                for rules in study.rules:
                    case = replace(default, **point, rules=tuple(rules))
                    _note_problem(
                        problems, f"costs[{number}]", lambda case=case: solver.load_settings(case)
                    )
    if problems:
        raise InputError(*(f"{source}: {problem}" for problem in problems))


def _note_problem(problems: dict[str, None], location: str, load: Any) -> None:
    """Call `load`, and add the lines of its InputError, if it raises one, to the problems."""
    try:
        load()
    except InputError as error:
        problems |= dict.fromkeys(f"{location}: {line}" for line in error.lines)


# Running a study: a scheduler solves its cases, and a journal keeps each that is done.

JOURNAL_SUFFIX = ".cases.jsonl"
"""The journal lies beside the results, and is named like them with this at the end."""


@dataclass(frozen=True)
class StudyResult:
    """The rows of a study: `total` cases, `earlier` of them done by an earlier run."""

    rows: list[StudyRow]
    total: int
    earlier: int

    @property
    def failures(self) -> Mapping[str, int]:
        """The number of cases by status, those that are `ok` left out, the most frequent first."""
        counts = Counter(row["status"] for row in self.rows if is_failure(row))
        return dict(counts.most_common())


class StoppedStudyError(BaseException):
    """Stops a study inside of this module: `result` has what is done, `cause` is what stopped it.

    The caller of `study` gets `cause`, whose own cause (`__cause__`) this is.
    """

    def __init__(self, result: StudyResult, cause: BaseException) -> None:
        """Keep what is done, and what stopped it."""
        super().__init__()
        self.result, self.cause = result, cause


def study(  # noqa: PLR0913 - the options of the verb
    study: str | Path | Mapping[str, Any],
    output: str | Path | None = None,
    *,
    jobs: int | None = None,
    scheduler: str | None = None,
    retry_failures: bool = False,
    save: str | Path | None = None,
) -> StudyResult:
    """Solve every case of a study: each combination of models, rules, costs, links and strategies.

    Args:
        study: path of a study file (docs/study.md), or its content as a mapping, in which paths are
            relative to the working directory.
        output: where to write the results: a `.csv` or `.parquet` file. Beside it lies a journal
            (`.cases.jsonl`) of what is done, so that a study that was stopped goes on where it was:
            what is in it is not computed again. Without it nothing is kept.
        jobs: processes at a time, as many as there are processors by default.
        scheduler: address of a Dask scheduler (`tcp://host:8786`) whose workers solve the cases instead.
        retry_failures: solve cases again that failed in an earlier run.
        save: a folder, made if need be, for three files of each case that is solved, named by the first
            16 digits of its `key`: `.placement.yaml` for `byoc.partition`, `.problem.json` for
            `byoc.place`, and `.case.json` for `byoc study replay`. What an earlier run did not save is
            solved again.

    Returns:
        The rows, in the order of the axes, with the keys of `byoc.comparison.COLUMNS`. A case that
        failed has a `status` other than `ok`, and the `reason`.

    Raises InputError for a study that is wrong, results that cannot be written, and a cluster that is
    not there or is lost. After an interrupt, which is raised as KeyboardInterrupt, and the loss of a
    cluster, `output` has the rows that are done.
    """
    check_minimum("jobs", jobs, 1)
    if jobs is not None and scheduler is not None:
        raise InputError("jobs are processes of this machine, and scheduler is a cluster: give one")
    content, folder, source = _load_study(study)
    path = None if output is None else Path(output)
    if path is not None:
        check_results_path(path)
    cases, failures = add_digests(expand_cases(content, folder, source))
    if save is not None:
        make_folder(Path(save))
        cases = [replace(case, save=str(Path(save).absolute())) for case in cases]
    solve = partial(solve_in_processes, jobs=jobs)
    if scheduler is not None:
        solve = partial(solve_on_cluster, address=scheduler)
    if path is None:
        try:
            return run_cases(cases, solve, failures)
        except StoppedStudyError as stop:
            raise stop.cause from stop
    with StudyJournal(path.with_name(path.name + JOURNAL_SUFFIX)) as journal:
        if retry_failures:
            for key, outcome in list(journal.outcomes.items()):
                if outcome["status"] != OK:
                    del journal.outcomes[key]
        for case in cases if save is not None else ():
            known = journal.outcomes.get(case.key, {})
            if known.get("status") == OK and not case.find_saved("case").exists():
                del journal.outcomes[case.key]
        try:
            result = run_cases(cases, solve, failures, journal)
        except StoppedStudyError as stop:
            write_results(path, stop.result.rows)
            raise stop.cause from stop
        write_results(path, result.rows)
        return result


def _load_study(study: str | Path | Mapping[str, Any]) -> tuple[StudyFile, Path, str]:
    if isinstance(study, (str, Path)):
        path = Path(study)
        return read_study(path), path.parent, str(path)
    content, problems = validate_content(study, StudyFile)
    if content is None:
        raise make_file_error(Path("the study"), problems)
    return content, Path(), "the study"


def run_cases(
    cases: Sequence[StudyCase],
    solve: Scheduler,
    failures: Mapping[str, Outcome],
    journal: StudyJournal | None = None,
) -> StudyResult:
    """Return the rows of cases, solved by a scheduler; what the journal has is not solved again.

    `failures` are outcomes that are known already. Raises StoppedStudyError with what is done
    when the program is stopped, by an interrupt, a signal, or a cluster that is lost.
    """
    kept = {} if journal is None else journal.outcomes
    outcomes = {case.key: kept[case.key] for case in cases if case.key in kept} | dict(failures)
    waiting = [case for case in cases if case.key not in outcomes]
    earlier = len(cases) - len(waiting) - len(failures)
    try:
        if waiting:
            with closing(solve(waiting)) as solved:  # type: ignore[type-var]
                _collect(solved, len(cases), outcomes, journal)
    except (KeyboardInterrupt, SystemExit, InputError) as error:
        result = StudyResult(make_rows(cases, outcomes), len(cases), earlier)
        raise StoppedStudyError(result, error) from None
    return StudyResult(make_rows(cases, outcomes), len(cases), earlier)


def _describe_command() -> str:
    """Return the command line of the program that this runs in, without the folder of the program."""
    path = Path(sys.argv[0])
    name = path.parent.name if path.name == "__main__.py" else path.name  # as `python -m byoc`
    return escape_unprintable(shlex.join([name, *sys.argv[1:]]))


def _collect(
    solved: Iterable[tuple[StudyCase, Outcome]],
    total: int,
    outcomes: dict[str, Outcome],
    journal: StudyJournal | None,
) -> None:
    """Put the outcomes of cases into `outcomes` and the journal as they are solved; show progress."""
    failed = sum(outcome["status"] != OK for outcome in outcomes.values())
    for case, given in solved:
        outcome = given | {"command": _describe_command()}
        if journal is not None:
            journal.append(case.key, outcome)
        outcomes[case.key] = outcome
        failed += outcome["status"] != OK
        failures = f", {failed} failed" if failed else ""
        report_step(f"{len(outcomes)} of {total} cases{failures}: {case.model}, {case.strategy}")


# Replaying: the placements that a study saved, priced over another link or by other costs.

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
        placement, problem = (
            file.with_name(f"{file.name.removesuffix(ending)}.{SAVED[what]}")
            for what in ("placement", "problem")
        )
        if not is_file(placement):
            raise InputError(f"{placement}: no such file, which {file.name} belongs to")
        if is_file(problem):  # nothing here needs it, but a damaged folder is not to pass as whole
            read_instance(problem, Measure.total.value)
        yield placement.absolute(), content


def _sort_saved(saved: tuple[Path, SavedCase]) -> tuple[Any, ...]:
    """Return the key of a saved case, by which cases are in the order of a study, models first."""
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
