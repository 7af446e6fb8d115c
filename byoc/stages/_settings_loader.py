"""Loading what the options name: accelerators, cost models, the strategy, a saved placement."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from byoc.costs import Policy, load_device_costs, load_host_costs, parse_objective
from byoc.errors import InputError, suggest_nearest
from byoc.options import DEFAULT_STRATEGY, PlanOptions, list_files
from byoc.planning import PlanSettings, read_placement
from byoc.rules import Target, load_rules
from byoc.support import STRATEGIES, load_plugin

ChoiceT = TypeVar("ChoiceT", bound=str | Path)


def load_settings(
    options: PlanOptions,
    strategy: str = DEFAULT_STRATEGY,
    placement: str | Path | None = None,
) -> PlanSettings:
    """Return the settings of planning. Raises InputError when something named cannot be loaded."""
    targets = load_targets(list_files(options.rules))
    costs = choose_by_target(targets, options.cost_model, "cost model", lambda each: each.cost_model)
    return PlanSettings(
        targets=targets,
        costs=tuple(load_device_costs(str(costs[target.name])) for target in targets),
        host=load_host_costs(str(options.host_cost_model)),
        strategy=load_plugin(STRATEGIES, strategy),
        objective=parse_objective(options.objective),
        unknown_costs=_read_policy(options.unknown_costs),
        trips=options.trips or {},
        placement=None if placement is None else read_placement(Path(placement)),
    )


def load_targets(files: Sequence[str | Path]) -> tuple[Target, ...]:
    """Return the accelerators that rule files describe.

    Raises InputError as `load_rules` does, when there is none, and when two have one name.
    """
    targets = tuple(load_rules(name) for name in files)
    if not targets:
        raise InputError("no rule file was given")
    for position, target in enumerate(targets):
        for other in targets[:position]:
            if other.name.lower() == target.name.lower():  # files are named after it
                raise InputError(
                    f"{target.source}: its target is called {target.name}, as that of {other.source} is"
                )
    return targets


def choose_by_target(
    targets: Sequence[Target],
    given: ChoiceT | Mapping[str, ChoiceT] | None,
    what: str,
    default: Callable[[Target], ChoiceT],
) -> dict[str, ChoiceT]:
    """Return a choice for each target: the one given for it, the one given for all, or its own.

    `what` names the choice in messages. Raises InputError for a target that is not there.
    """
    if given is not None and not isinstance(given, Mapping):
        return {target.name: given for target in targets}
    names = [target.name for target in targets]
    for name in given or {}:
        if name not in names:
            raise InputError(f"{what} for {name}: no such target{suggest_nearest(name, names)}")
    return {target.name: (given or {}).get(target.name) or default(target) for target in targets}


def _read_policy(name: str) -> Policy:
    try:
        return Policy(name)
    except ValueError:
        known = ", ".join(Policy)
        raise InputError(f"{name}: no such policy for unknown costs; there are {known}") from None
