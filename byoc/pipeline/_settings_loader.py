"""Loading what the options name: accelerators, cost models, the strategy, a saved placement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from byoc._dataclasses import dataclass, replace
from byoc.costs import (
    Policy,
    find_host_beside,
    find_margin,
    load_device_costs,
    load_host_costs,
    parse_objective,
    parse_within,
    with_parameters,
)
from byoc.errors import InputError, list_causes, suggest_nearest
from byoc.onnxrt import has_runtime, open_session, run_session, without_optimizations
from byoc.pipeline._partition_options import Options
from byoc.pipeline._plan_options import DEFAULT_HOST_COSTS, DEFAULT_STRATEGY, list_files
from byoc.pipeline._state import Planned, Prepared, Resolved, take
from byoc.placement import CHEAPER_ON_HOST, Perturbation, Robust, limit_time
from byoc.planning import CostDoubt, PlanSettings, apply_rule_parameters, find_sizes, read_placement
from byoc.reporting import count_offloaded, describe_chosen_sizes
from byoc.rules import is_for_want_of_sizes, load_rules
from byoc.samples import fits_types, model_samples
from byoc.support import (
    STRATEGIES,
    Note,
    list_installed,
    load_plugin,
    make_with_options,
    report_step,
    select_options,
)

if TYPE_CHECKING:
    from byoc.costs import CostModel, Within
    from byoc.model import Model
    from byoc.pipeline._plan_options import PlanOptions
    from byoc.pipeline._results import Stage
    from byoc.placement import Strategy
    from byoc.planning import GraphPlan
    from byoc.rules import Target


# The stage that chooses sizes for a model with open dimensions where accelerators need some.

FIXED, OPEN = "fixed", "open"
"""The names of the variants: one has the sizes that byoc chose, and the other takes every size."""


@dataclass(frozen=True)
class ChooseSizes:
    """Make two variants of a model that rules refuse for its open dimensions, where that pays.

    The first has the sizes that plans count with, and the second stays open, for all other sizes. There
    is one open plan as before where nodes are refused for other reasons, where sizes are not worth it,
    and where the model cannot have these. `prepare` and `plan` are the stages that a variant
    goes through; `resolved` is the state that the model was prepared from.
    """

    resolved: Resolved
    prepare: Stage[Resolved, Prepared]
    plan: Stage[Prepared, Planned]

    def run(self, state: Prepared) -> list[Prepared]:
        """Return the states of the variants, planned where they had to be; raises as `plan` does."""
        if not state.request.options.may_choose_sizes or not _can_have_sizes(state):
            return [state]
        opened = self.plan.run(state)
        if not wants_sizes(opened.plan.root):
            return [opened]
        report_step("choose sizes")
        try:
            fixed = self._plan_fixed(opened)
        except InputError as error:
            sizes = ", ".join(f"{name} = {size}" for name, size in _get_sizes(state).items())
            note = Note("note", f"it stays open, since it cannot be planned for {sizes}: {error}")
            return [replace(opened, plan=replace(opened.plan, notes=(*opened.plan.notes, note)))]
        if not is_worth_sizes(fixed.plan.root, opened.plan.root):
            return [opened]
        return [fixed, _name_open(opened)]

    def _plan_fixed(self, opened: Planned) -> Planned:
        """Return the variant with sizes, verified on those of the user's samples that have them."""
        own = self.resolved.request.variant
        variant = replace(own, name=FIXED, dims=_get_sizes(opened), automatic=True)
        request = replace(self.resolved.request, variant=variant)
        prepared = self.prepare.run(replace(self.resolved, request=request))
        if request.options.output is not None and request.options.verify:
            _require_run(prepared.loaded.original)
        types = prepared.loaded.original.index.types
        samples = [each for each in opened.loaded.samples if fits_types(each.inputs, types)]
        loaded = replace(prepared.loaded, samples=samples)
        return self.plan.run(replace(prepared, loaded=loaded))


def _require_run(model: Model) -> None:
    """Raise InputError where plain onnxruntime, if it is there, does not run a model."""
    if not has_runtime():
        return
    with without_optimizations():
        session = open_session(model.proto, model.folder)
    run_session(session, model_samples(model))


def _get_sizes(state: Prepared) -> dict[str, int]:
    return find_sizes(state.loaded.original, state.settings.state)


def _can_have_sizes(state: Prepared) -> bool:
    """Return whether sizes may be chosen; of onnxruntime-genai's folders and variants see `byoc.zoo`."""
    return bool(_get_sizes(state)) and state.loaded.genai is None


def wants_sizes(root: GraphPlan) -> bool:
    """Return whether a plan has nodes on the host since something is open or unknown."""
    causes = (
        cause
        for graph in root.walk()
        for _, verdict in graph.host_units
        for cause in list_causes(verdict)
    )
    return any(map(is_for_want_of_sizes, causes))


def is_worth_sizes(fixed: GraphPlan, opened: GraphPlan) -> bool:
    """Return whether a plan with chosen sizes is better than the open one at the same sizes.

    Where the strategy weighs costs, and no shape of the open model is unknown, the predicted costs of
    both decide, and else the number of nodes on accelerators.
    """
    one, other = fixed.placement, opened.placement
    is_known = not any(graph.host_seconds[0] for graph in opened.walk())
    if one.why_host == other.why_host == CHEAPER_ON_HOST and one.measure is other.measure and is_known:
        return one.value < other.value * (1 - _ROUNDING)
    return count_offloaded(fixed) > count_offloaded(opened)


# More than the rounding errors of a few sums.
_ROUNDING = 2.0**-40


def _name_open(state: Planned) -> Prepared:
    """Return the open state as a variant; it is planned again where regions are to have its name."""
    variant = replace(state.request.variant, name=OPEN, automatic=True)
    named = replace(state, request=replace(state.request, variant=variant))
    if state.plan.regions:
        return Prepared(**take(Prepared, named)).restore_whole()
    return replace(named, plan=replace(named.plan, variant=variant))


def add_size_notes(states: Sequence[Planned]) -> Sequence[Planned]:
    """Return the states with a note in each plan on the sizes that byoc chose, if it did."""
    if not states[0].request.variant.automatic:
        return states
    fixed, opened = (state.plan for state in states)
    notes = describe_chosen_sizes(fixed, opened, states[1].loaded.original.planned)
    return [
        replace(state, plan=replace(state.plan, notes=(note, *state.plan.notes)))
        for state, note in zip(states, notes, strict=True)
    ]


HOST = "host"
"""What options for the host's cost model are given to."""

_THREADS = "threads"  # the option of codegens

ChoiceT = TypeVar("ChoiceT", bound=str | Path)
ValueT = TypeVar("ValueT")


def load_settings(  # noqa: PLR0913 - what the options do not have
    options: PlanOptions,
    strategy: str = DEFAULT_STRATEGY,
    placement: str | Path | None = None,
    *,
    among: Sequence[str] = (),
    robust: str | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> PlanSettings:
    """Return the settings of planning. Raises InputError when something named cannot be loaded.

    `among` are all strategies that options may be given to, if there are others than this one; `robust`
    is as in `partition`. `parameters` are values that take the place of those in cost files, by key
    (`launch`, `link.latency`) for all accelerators, by `target:key` for one, by `host:key` for the host.
    """
    beyond = isinstance(options, Options) and options.ask == "everything"
    targets = tuple(
        replace(target, values=options.values, asks_beyond=beyond)
        for target in load_targets(list_files(options.rules))
    )
    costs = choose_by_target(targets, options.cost_model, "cost model", lambda each: each.cost_model)
    threads = find_threads(options, targets)
    given = _split_by_owner(targets, options.cost_options or {}, "cost option")
    changed = _split_by_owner(targets, parameters or {}, "parameter")
    devices = tuple(
        _apply_parameters(
            target,
            load_device_costs(str(costs[target.name]), given[target.name], threads),
            changed[target.name],
            options.cost_model,
        )
        for target in targets
    )
    written = isinstance(options, Options) and options.output is not None  # for sessions
    if options.state and not written and not any(each.rules.state == "kept" for each in targets):
        raise InputError("state is given, and no accelerator keeps it (`state: kept` in a rule file)")
    host = str(options.host_cost_model)
    if host == DEFAULT_HOST_COSTS:
        host = find_host_beside(devices) or host
    return PlanSettings(
        targets=targets,
        costs=devices,
        host=with_parameters(load_host_costs(host, given[HOST], threads), changed[HOST]),
        strategy=limit_time(
            _load_with_margin(strategy, options, among, find_margin(devices)),
            options.time_limit,
        ),
        objective=parse_objective(options.objective),
        within=_read_within(options),
        unknown_costs=_read_policy(options.unknown_costs),
        trips=options.trips or {},
        state=options.state or None,
        placement=None if placement is None else read_placement(Path(placement)),
        doubt=_read_doubt(options, robust),
    )


def find_threads(options: PlanOptions, targets: Sequence[Target]) -> int | None:
    """Return the number of threads of a run, on the host too: what the codegens' options `threads` say.

    Of several the most; None for all cores, where none says a number above 0.
    """
    given = options.codegen_options or {} if isinstance(options, Options) else {}
    asked = [str(text) for name, text in given.items() if name.rpartition(":")[2] == _THREADS]
    if not asked:
        asked = [str(target.rules.codegen_options.get(_THREADS, "")) for target in targets]
    return max((int(text) for text in asked if text.isdecimal()), default=0) or None


def _apply_parameters(
    target: Target,
    costs: CostModel,
    changed: Mapping[str, Any],
    asked: str | Path | Mapping[str, str | Path] | None,
) -> CostModel:
    """Return a target's costs with the parameters of its rule file, if that names them, and others.

    `asked` are the cost models that the user names. Raises InputError for parameters that do not fit.
    """
    own = not (asked.get(target.name) if isinstance(asked, Mapping) else asked)
    return with_parameters(apply_rule_parameters(costs, target) if own else costs, changed)


def _split_by_owner(
    targets: Sequence[Target], given: Mapping[str, ValueT], what: str
) -> dict[str, dict[str, ValueT]]:
    """Return the values for each target's cost model, and for the host's, which has to be named.

    `what` names it in messages. Raises InputError for a target that is not there.
    """
    names = [target.name for target in targets]
    owners = (*names, HOST)
    split = {name: select_options(given, name, owners, what, "target") for name in owners}
    split[HOST] = {name: split[HOST][name] for name in split[HOST] if f"{HOST}:{name}" in given}
    return split


def _load_with_margin(name: str, options: PlanOptions, among: Sequence[str], margin: float) -> Strategy:
    """Return a strategy with its options; launch-aware has the cost models' margin by default."""
    given = dict(options.strategy_options or {})
    if name == DEFAULT_STRATEGY and margin and not {"margin", f"{name}:margin"} & given.keys():
        given[f"{name}:margin"] = f"{margin:g}"
    return load_strategy(name, given, among or (name,))


def load_strategy(name: str, given: Mapping[str, str], among: Sequence[str]) -> Strategy:
    """Return a strategy with its options: those given by `name`, and by `strategy:name`.

    `among` are the strategies that options may be given to. Raises InputError when it cannot be loaded
    or does not take an option.
    """
    installed = list_installed(STRATEGIES)
    own = select_options(given, name, among, "strategy option", "strategy", unused=installed)
    made: Strategy = load_plugin(STRATEGIES, name, lambda kind: make_with_options(kind, own))
    return made


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


def _read_doubt(options: PlanOptions, robust: str | None) -> CostDoubt | None:
    """Return the way in which costs are perturbed, None if they are not. Raises InputError."""
    given = {"samples": options.perturb_samples, "seed": options.perturb_seed}
    if options.perturb is None:
        asked = {
            "perturb_samples (--samples)": options.perturb_samples,
            "perturb_seed (--perturb-seed)": options.perturb_seed,
            "robust (--robust)": robust,
        }
        for name, value in asked.items():
            if value is not None:
                raise InputError(f"{name}: costs are not perturbed: give perturb (--perturb), too")
        return None
    numbers = {name: value for name, value in given.items() if value is not None}
    if robust is not None and robust not in tuple(Robust):
        raise InputError(f"robust is '{robust}', but must be {' or '.join(Robust)}")
    aim = None if robust is None else Robust(robust)
    return CostDoubt(Perturbation(options.perturb, **numbers), aim)


def _read_within(options: PlanOptions) -> Within | None:
    """Return the limit on the other cost, None without one. Raises InputError."""
    if options.within is None:
        return None
    if options.perturb is not None:
        raise InputError("within (--within): costs that are perturbed (--perturb) have no limit")
    return parse_within(options.within)


def _read_policy(name: str) -> Policy:
    try:
        return Policy(name)
    except ValueError:
        known = ", ".join(Policy)
        raise InputError(f"{name}: no such policy for unknown costs; there are {known}") from None
