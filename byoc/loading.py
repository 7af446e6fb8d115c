"""What a caller asks for by name, as values: accelerators, costs, the strategy, what is let pass."""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from pathlib import Path

from byoc.codegen.isolate import Isolation
from byoc.costs.load import load_device_costs, load_host_costs
from byoc.costs.model import Policy
from byoc.costs.objective import read_objective
from byoc.errors import InputError, nearest
from byoc.plan import Settings, read_saved
from byoc.plugins import STRATEGIES
from byoc.plugins import load as load_plugin
from byoc.rules.load import Target, load_rules
from byoc.verify.thresholds import DEFAULT, QUANTIZED, TOLERANCE, Thresholds

DEFAULT_STRATEGY = "launch-aware"


def load_settings(  # noqa: PLR0913 - as `partition`
    rules: Sequence[str | Path],
    *,
    strategy: str = DEFAULT_STRATEGY,
    objective: str = "latency",
    cost_model: str | Mapping[str, str] | None = None,
    host_cost_model: str = "host",
    unknown_costs: str = "estimate",
    trips: Mapping[str, float] | None = None,
    placement: str | Path | None = None,
) -> Settings:
    """Return how models are to be cut, from the names of files and plug-ins; as `partition` takes them.

    Raises InputError when one cannot be loaded.
    """
    targets = load_targets(rules)
    costs = for_each(targets, cost_model, "cost model", lambda target: target.cost_model)
    return Settings(
        targets=targets,
        costs=tuple(load_device_costs(costs[target.name]) for target in targets),
        host=load_host_costs(host_cost_model),
        strategy=load_plugin(STRATEGIES, strategy),
        objective=read_objective(objective),
        unknown=_policy(unknown_costs),
        trips=trips or {},
        saved=None if placement is None else read_saved(Path(placement)),
    )


def load_targets(files: Sequence[str | Path]) -> tuple[Target, ...]:
    """Return the accelerators that rule files describe.

    Raises InputError as `load_rules` does, when there is none, and when two have one name.
    """
    targets = tuple(load_rules(str(name)) for name in files)
    if not targets:
        raise InputError("no rule file was given")
    for position, target in enumerate(targets):
        for other in targets[:position]:
            if other.name == target.name:
                raise InputError(
                    f"{target.source}: its target is called {target.name}, as that of {other.source} is"
                )
    return targets


def for_each(
    targets: Sequence[Target],
    given: str | Mapping[str, str] | None,
    what: str,
    default: Callable[[Target], str],
) -> dict[str, str]:
    """Return a choice for each target: that given for it, for all of them, or its own."""
    if isinstance(given, str):
        return {target.name: given for target in targets}
    names = [target.name for target in targets]
    for name in given or {}:
        if name not in names:
            raise InputError(f"{what} for {name}: no such target{nearest(name, names)}")
    return {target.name: (given or {}).get(target.name) or default(target) for target in targets}


def read_isolation(isolate: bool, timeout: float | None) -> Isolation | None:
    """Return how regions are compiled. Raises InputError when the timeout is no time."""
    if timeout is not None and not (timeout > 0 and isfinite(timeout)):
        raise InputError(f"compile timeout {timeout:g}: not a number of seconds above 0")
    return Isolation(timeout) if isolate or timeout is not None else None


def read_gate(asked: bool | float | Thresholds) -> Thresholds | None:
    """Return how far off a region may be alone, None for any. Raises InputError for less than 0."""
    if isinstance(asked, Thresholds):
        return asked
    if isinstance(asked, bool):
        return DEFAULT if asked else None
    if not asked >= 0:
        raise InputError(f"gate {asked:g}: not an error of at least 0")
    return Thresholds(dict.fromkeys(TOLERANCE, asked), asked=frozenset(TOLERANCE))


def told_gate(allowed: Thresholds | None) -> dict[str, float | None] | None:
    """Return a gate as the manifest tells of it."""
    if allowed is None:
        return None
    return {
        **allowed.relative,
        QUANTIZED: allowed.units,
        "signal_to_noise": allowed.signal_to_noise,
    }


def _policy(name: str) -> Policy:
    try:
        return Policy(name)
    except ValueError:
        known = ", ".join(Policy)
        raise InputError(f"{name}: no such policy for unknown costs; there are {known}") from None
