"""Several models placed together: one problem of all their units, solved for a round of all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from byoc._dataclasses import dataclass, fields, replace
from byoc.costs import LATENCY, find_conditions, parse_amount
from byoc.errors import InputError, suggest_nearest
from byoc.pipeline._package import (
    list_packaged_models,
    name_failed_model,
    package,
)
from byoc.pipeline._partition_options import Options, PackageOptions, RoundOptions
from byoc.pipeline._plan_options import DEFAULT_STRATEGY
from byoc.pipeline._program import partition_request
from byoc.pipeline._results import Result
from byoc.pipeline._settings_loader import load_settings
from byoc.pipeline._state import Request
from byoc.placement import (
    Conditions,
    Ints,
    ListScheduler,
    Measure,
    PlacedNetwork,
    Placement,
    Problem,
    fix_reloads,
    limit_time,
    solve_problem,
)
from byoc.placement.strategies import Makespan, measure_placement
from byoc.planning import save_placement
from byoc.support import describe_failure, take_keywords

if TYPE_CHECKING:
    from byoc.planning import Plan, PlanSettings
    from byoc.zoo import Source


@dataclass(frozen=True, kw_only=True)
class TogetherOptions(RoundOptions, Options):
    """The choices of models that are placed together, the same for all of them."""


@dataclass(frozen=True, eq=False)
class PlacedTogether:
    """Models that are placed together, and the schedule of one round, as their costs predict it."""

    results: Mapping[str, Result]
    """The result of each model, by its name."""
    makespan: float
    """Seconds of one round, in which each model runs once; the end of a model counts by its weight."""
    bound: float | None
    """No placement of all models has a shorter round; None where the strategy proves nothing."""
    apart: float
    """Seconds of a round in which all models run side by side, each where it would be placed alone."""
    in_turn: float
    """Seconds of the models one after the other, each placed alone."""
    ends: Mapping[str, float]
    """Seconds from the start of the round to the last output of each model on the host."""
    responses: Mapping[str, float]
    """Seconds from the release to the end of each model's slowest inference; empty without rates."""
    utilization: Mapping[str, float]
    """The share of its time for which each device computes at the rates; empty without rates."""
    missed: str = ""
    """The rate or deadline that is missed with the regions that form in each model alone; empty where
    all are kept."""
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the document of `byoc partition --together --format json`."""
        return {
            "makespan_seconds": self.makespan,
            "bound_seconds": self.bound,
            "apart_seconds": self.apart,
            "in_turn_seconds": self.in_turn,
            "ends_seconds": dict(self.ends),
            "response_seconds": dict(self.responses),
            "utilization": dict(self.utilization),
            "missed": self.missed,
            "notes": list(self.notes),
            "models": {name: result.to_json() for name, result in self.results.items()},
        }


@take_keywords(TogetherOptions)
def partition_together(
    models: Sequence[str | Path] | Mapping[str, Any], options: TogetherOptions
) -> PlacedTogether:
    """Place several models on the same host and accelerators, and write them as one package.

    `models` is a sequence of sources, each a path or `zoo:NAME`, also as `NAME=PATH`, or a mapping of
    names to sources, or to mappings with the source under `model` and `dims` of its own. They are
    planned one by one first; then all their units are placed as one problem, by `makespan` unless
    another strategy is named, and each model is planned again with its units where that problem has
    them. With `output` they are compiled and written as `package` does. Regions are those that form in
    each model alone, and the times of the result are of a schedule with these.

    Raises InputError as `partition` does, for other options of one model, for rates of some models
    alone, and where no placement is found that keeps all rates and deadlines; nothing has been written.
    Where one is missed with the regions of the result, `missed` says so, and the package is written.
    """
    own = {each.name: getattr(options, each.name) for each in fields(Options)}
    alone = Options(**{**own, "output": None, "keep_open": True})
    if alone.objective != str(LATENCY) or alone.within is not None:
        raise InputError(
            "models are placed together for the time of a round: objective (--objective) and within "
            "(--within) are of a single model"
        )
    if alone.perturb is not None:
        raise InputError("costs are perturbed (--perturb) for a single model, not for several")
    if alone.placement is not None:
        raise InputError("a placement (--placement) is of a single model, not of several")
    settings = load_settings(alone, alone.strategy)
    packaged = list_packaged_models(models, PackageOptions(**own))
    for name, each in packaged.items():
        _require_common_options(name, each.options, alone)
    sources = {name: each.source for name, each in packaged.items()}
    each_alone = {name: replace(alone, dims=each.options.dims) for name, each in packaged.items()}
    networks = _describe_networks(options, list(sources))
    plans = {name: _plan(name, source, each_alone[name]).plan for name, source in sources.items()}
    joint = _join(plans, networks, settings)
    placement = _solve(joint, plans, alone, settings)
    with TemporaryDirectory(prefix="byoc-") as folder:
        pinned = _save_placements(plans, placement.labels, Path(folder))
        if options.output is None:
            given = {
                name: replace(each, placement=pinned.get(name)) for name, each in each_alone.items()
            }
            results = {name: _plan(name, sources[name], each) for name, each in given.items()}
        else:
            described = {
                name: {"model": source, "keep_open": True, "dims": each_alone[name].dims}
                | ({"placement": str(pinned[name])} if name in pinned else {})
                for name, source in sources.items()
            }
            results = package(described, **own)
    return _describe(joint, placement, plans, results, settings)


def _require_common_options(name: str, options: Options, common: Options) -> None:
    """Raise InputError for a model with an option of its own; sizes alone may differ."""
    for each in fields(Options):
        if each.name in ("dims", "output", "keep_open"):
            continue
        if getattr(options, each.name) != getattr(common, each.name):
            raise InputError(
                f"model {name}: no option '{each.name}' of its own: models that are placed together "
                "have all options but dims in common"
            )


def _plan(name: str, source: Source, options: Options) -> Result:
    """Return the result of a model that is only planned; raises InputError with its name."""
    with name_failed_model(name):
        return partition_request(Request(source, options))


def _describe_networks(options: TogetherOptions, names: Sequence[str]) -> tuple[PlacedNetwork, ...]:
    """Return the models as networks. Raises InputError for names of others, and numbers below 0."""
    rates = _read_numbers("rate", options.rates or {}, names)
    deadlines = _read_numbers("deadline", options.deadlines or {}, names)
    weights = _read_numbers("model weight", options.model_weights or {}, names)
    missing = [name for name in names if name not in rates]
    if missing and (rates or deadlines):
        raise InputError(
            f"model {missing[0]} has no rate: rates and deadlines need one of each model (--rate)"
        )
    return tuple(
        PlacedNetwork(
            name,
            1 / rates[name] if rates else math.inf,
            deadlines.get(name, math.inf),
            weights.get(name, 1.0),
        )
        for name in names
    )


def _read_numbers(what: str, given: Mapping[str, str | float], names: Sequence[str]) -> dict[str, float]:
    """Return the numbers of models; deadlines as texts have units. Raises InputError."""
    found = {}
    for name, value in given.items():
        if name not in names:
            known = f"{suggest_nearest(name, names)}; there are {', '.join(names)}"
            raise InputError(f"{what} {name}: there is no such model{known}")
        if what == "deadline" and isinstance(value, str):
            found[name] = parse_amount(value, "latency", f"{what} {name}={value}")
            continue
        try:
            found[name] = float(value)
        except ValueError:
            found[name] = 0.0
        if not _LEAST <= found[name] <= _MOST:
            raise InputError(f"{what} {name}: {value} is not a number from {_LEAST:g} to {_MOST:g}")
    return found


# Rates, deadlines and weights beyond these are mistakes.
_LEAST, _MOST = 1e-6, 1e9


def _join(
    plans: Mapping[str, Plan], networks: tuple[PlacedNetwork, ...], settings: PlanSettings
) -> Problem:
    """Return one problem of the units of all plans. Raises InputError where the rates fit none."""
    parts = [plan.root.graph_problem.latency for plan in plans.values()]
    conditions = find_conditions(settings.names, settings.costs) or Conditions()
    network_of = np.repeat(np.arange(len(parts)), [part.units for part in parts])
    try:
        return Problem.join(
            parts, replace(conditions, networks=networks, network_of=network_of.astype(np.int64))
        )
    except ValueError as error:
        raise InputError(str(error)) from None


def _solve(
    joint: Problem, plans: Mapping[str, Plan], options: Options, settings: PlanSettings
) -> Placement:
    strategy = settings.strategy
    if options.strategy == DEFAULT_STRATEGY:
        strategy = limit_time(Makespan(), options.time_limit)
    names = [f"{name}/{row}" for name, plan in plans.items() for row in range(len(plan.root.units))]
    return solve_problem(joint, strategy, names, describe_failure)


def _save_placements(plans: Mapping[str, Plan], labels: Ints, folder: Path) -> dict[str, Path]:
    """Write the placement of each model to a file in a folder; return the files by model.

    A model without units has none, and needs none.
    """
    found, first = {}, 0
    for name, plan in plans.items():
        root = plan.root
        last = first + len(root.units)
        own = labels[first:last]
        on_host = {
            node for unit, label in zip(root.units, own, strict=True) if not label for node in unit.nodes
        }
        bodies = {node: inner for node, inner in root.bodies.items() if node in on_host}
        moved = replace(root, placement=replace(root.placement, labels=own), bodies=bodies)
        if root.units:
            found[name] = folder / f"{name}.yaml"
            save_placement(replace(plan, root=moved), found[name])
        first = last
    return found


def _describe(
    joint: Problem,
    placement: Placement,
    before: Mapping[str, Plan],
    results: Mapping[str, Result],
    settings: PlanSettings,
) -> PlacedTogether:
    """Return the result with the schedule of the regions that the models' plans have."""
    after = {name: result.plan for name, result in results.items()}
    assert joint.conditions is not None
    labels, regions = _join_placements(after)
    final = fix_reloads(_join(after, joint.conditions.networks, settings), labels)
    scheduler = ListScheduler(final)
    schedule = scheduler.schedule(labels.tolist(), regions.tolist())
    assert (
        schedule is not None
    )  # each plan's regions are acyclic, and models do not depend on each other
    assert final.conditions is not None
    missed = ""
    responses: dict[str, float] = {}
    utilization: dict[str, float] = {}
    if final.conditions.has_rates:
        rates = scheduler.check_rates(labels.tolist(), regions.tolist())
        assert rates is not None
        responses = dict(zip(results, rates.responses, strict=True))
        utilization = _name_engines(final, rates.utilization, settings)
        missed = rates.describe_miss()
    alone = Placement.from_labels(joint, _join_placements(before)[0])
    return PlacedTogether(
        results=results,
        makespan=schedule.makespan,
        bound=None if placement.measure is not Measure.makespan else placement.bound,
        apart=measure_placement(joint, alone, Measure.makespan).value,
        in_turn=math.fsum(plan.root.placement.cost.total for plan in before.values()),
        ends={name: schedule.ends.get(number, 0.0) for number, name in enumerate(results)},
        responses=responses,
        utilization=utilization,
        missed=missed,
        notes=placement.notes,
    )


def _join_placements(plans: Mapping[str, Plan]) -> tuple[Ints, Ints]:
    """Return the labels and regions of all units, regions numbered through all plans."""
    labels, regions, count = [], [], 0
    for plan in plans.values():
        placement = plan.root.placement
        labels.append(placement.labels)
        regions.append(np.where(placement.regions >= 0, placement.regions + count, -1))
        count += int(placement.regions.max(initial=-1)) + 1
    return np.concatenate(labels), np.concatenate(regions)


def _name_engines(
    problem: Problem, utilization: Mapping[int, float], settings: PlanSettings
) -> dict[str, float]:
    """Return the utilization of engines by the names of the devices on them."""
    names = ("host", *settings.names)
    shares = problem.engines
    found = {}
    for engine, share in sorted(utilization.items()):
        if engine < shares.shape[1]:
            own = [name for name, row in zip(names, shares, strict=True) if row[engine] > 0]
            found[" and ".join(own)] = share
        else:
            found[f"the link of {names[engine - shares.shape[1]]}"] = share
    return found
