"""The cases of a study file: every combination of its axes, names resolved, contents digested."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from byoc.comparison._case_solver import REFUSED, CaseSolver, Outcome, make_failure
from byoc.comparison._content_digests import digest_model, digest_settings
from byoc.comparison._study_case import StudyCase, format_value
from byoc.comparison._study_file import StudiedCosts, StudiedStrategy, StudyFile
from byoc.costs import parse_objective
from byoc.errors import InputError
from byoc.planning import choose_clean_passes
from byoc.stages import load_targets
from byoc.support import report_step
from byoc.zoo import ZOO, list_entries

_PATTERN = "*?["
_MOST_CASES = 1_000_000


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
                digests[key] = digest_settings(solver.load_settings(case))
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
    found: dict[str, None] = {}
    for number, name in enumerate(given):
        try:
            matches = list(_match_models(name, folder))
        except (ValueError, NotImplementedError) as error:  # pathlib's, of patterns
            raise InputError(f"{source}: models[{number}]: '{name}': {error}") from None
        if not matches:
            where = f"no file in {folder}"
            if name.startswith(ZOO):
                where = "no model of the zoo that is here"
            raise InputError(f"{source}: models[{number}]: {where} matches '{name}'")
        found |= dict.fromkeys(matches)
    return list(found)


def _match_models(name: str, folder: Path) -> Iterator[str]:
    """Yield the models that a name or a pattern stands for; patterns match no model to be fetched."""
    if name.startswith(ZOO):
        pattern = name.removeprefix(ZOO)
        if not any(mark in pattern for mark in _PATTERN):
            yield name
            return
        here = (entry.name for entry in list_entries() if entry.present)
        yield from (f"{ZOO}{each}" for each in here if fnmatchcase(each, pattern))
    elif (folder / name).is_file() or not any(mark in name for mark in _PATTERN):
        yield name
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
                    case = replace(first, **point, rules=tuple(rules))
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
