"""Stages that plan again: within an accuracy budget, and with changes that a user could make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from byoc import quantization
from byoc._dataclasses import dataclass, field, replace
from byoc.errors import InputError, MissingRuntimeError
from byoc.model import FLOAT_DTYPES, GraphIndex, get_node_name, get_operator_name, name_nodes
from byoc.pipeline._ask_stage import Ask
from byoc.pipeline._planning_stages import Annotate, Group, Place, Rewrite
from byoc.pipeline._preparation_stages import Load, Quantize
from byoc.pipeline._state import MetBudget, Placed, Planned, Prepared, Resolved, take
from byoc.planning import (
    NodeSplitter,
    PreciseUnit,
    TradePoint,
    edit_targets,
    estimate_gains,
    find_break_evens,
    find_parts,
    shorten_search,
)
from byoc.quantization import (
    PlanTrial,
    TradeSearch,
    UnitPrecisions,
)
from byoc.support import collect_rarely, hide_steps, report_step

if TYPE_CHECKING:
    from byoc.pipeline._partition_options import Options
    from byoc.pipeline._results import Stage
    from byoc.planning import Action, GraphPlan, Plan, WholePrice
    from byoc.quantization import AccuracyTest, KeptAccuracy


@dataclass(frozen=True, eq=False)
class Trial:
    """A model planned with units in some precisions, those on the host in floats, and its accuracy."""

    planned: Planned
    precisions: UnitPrecisions
    accuracy: KeptAccuracy


@dataclass(frozen=True, eq=False)
class MeetBudget:
    """Plan with units in the precisions that keep the model within its accuracy budget.

    `planning` plans a model whose units have some precisions. Of the plans that are tried, `TradeSearch`
    chooses one. After a codegen refused something, the precisions that were chosen before are tried
    first. Raises InputError when the budget cannot be met.
    """

    test: AccuracyTest
    planning: Stage[Prepared, Planned]

    def run(self, state: Prepared) -> Planned:
        """Return the state with the plan, which says how the budget was met."""
        known = state.findings.budget
        if known is not None:
            trial = self.try_precisions(state, known.precisions)
            if self.test.is_met(trial.accuracy):
                trade = TradeSearch.update_front(known.trade, self._describe(trial))
                met = replace(known, precisions=trial.precisions, accuracy=trial.accuracy, trade=trade)
                return self._record(trial.planned, met)
        return self._search(state)

    def _search(self, state: Prepared) -> Planned:
        test, wide = self.test, self.test.precision.wide_model
        ends: dict[UnitPrecisions, GraphPlan] = {}
        search = TradeSearch(
            test.budget,
            [*test.precision.units],
            lambda: test.build_problem(state.settings, [ends[each] for each in search.ends]),
            () if wide is None else [*wide.units],
        )
        proposals = search.propose()
        proposal = next(proposals)
        points: list[TradePoint] = []
        kept: dict[TradePoint, Trial] = {}
        all_quantized = None
        while proposal is not None:
            trial = self.try_precisions(state, proposal, len(points) + 1)
            if proposal in search.ends:
                ends[proposal] = trial.planned.plan.root
            if proposal == UnitPrecisions():
                all_quantized = trial.accuracy
            points.append(self._describe(trial))
            if test.is_met(trial.accuracy):
                kept[points[-1]] = trial
                kept = {point: kept[point] for point in search.list_cheap([*kept])}
            proposal = proposals.send(PlanTrial(trial.accuracy, points[-1].cost))
        taken = search.choose([*kept])
        best, trade = kept[taken], search.list_front(points, taken)
        assert all_quantized is not None  # the first of the ends
        met = MetBudget(best.precisions, best.accuracy, all_quantized, trade, search.gap)
        return self._record(best.planned, met)

    def try_precisions(self, state: Prepared, precisions: UnitPrecisions, number: int = 1) -> Trial:
        """Plan a model with units in some precisions, and measure its accuracy.

        `number` is that of the plan, for the step that is reported.
        """
        whole = self.test.precision
        model = whole.set_precisions(precisions)
        planned = self.planning.run(replace(state, precision=replace(whole, model=model)))
        left = f"{len(precisions.in_float)} of {len(whole.units)} units in floating point"
        wide = f", {len(precisions.wide)} in 16 bits" if precisions.wide else ""
        report_step(f"accuracy of plan {number} for the budget, {left}{wide}")
        accuracy = self.test.measure(planned.plan.proto, model)
        return Trial(planned, _find_precisions(planned, precisions), accuracy)

    def _describe(self, trial: Trial) -> TradePoint:
        """Describe a plan by its accuracy, its cost, and the precisions of units."""
        plan, precisions, units = trial.planned.plan, trial.precisions, self.test.precision.units
        objective = trial.planned.settings.objective
        return TradePoint(
            self.test.budget.measure_of(trial.accuracy),
            float(objective.combine(plan.cost.total, plan.root.joules)),
            plan.cost.total,
            tuple(name for name in units if name in precisions.in_float),
            tuple(name for name in units if name in precisions.wide),
        )

    def _record(self, state: Planned, met: MetBudget) -> Planned:
        """Record in the plan how its accuracy budget was met, and which units are in which precision."""
        test, plan, budget = self.test, state.plan, self.test.budget
        assert plan.lowered is not None
        lowered = replace(
            plan.lowered,
            units=len(test.precision.units) - len(met.precisions.in_float),
            measured=len(test.samples),
            measured_on=test.source,
            budget=str(budget),
            reached=budget.measure_of(met.accuracy),
            all_quantized=budget.measure_of(met.all_quantized),
            trade=met.trade,
            trade_gap=met.trade_gap,
            in_float=_list_units(test, plan, met.precisions.in_float),
            wide=_list_units(test, plan, met.precisions.wide),
        )
        findings = replace(state.findings, budget=met)
        return replace(state, plan=replace(plan, lowered=lowered), findings=findings)


def _find_precisions(state: Planned, asked: UnitPrecisions) -> UnitPrecisions:
    """Return the precisions of units in the plan: what is on the host computes in floating point."""
    devices = _map_node_devices(state.plan)
    units, kept = state.precision.units, state.precision.kept_wide
    on_host = frozenset(name for name, nodes in units.items() if devices.get(nodes[0], "host") == "host")
    wide = asked.wide | (kept.names if kept else frozenset())
    return UnitPrecisions(asked.in_float | on_host, wide - asked.in_float - on_host)


def _list_units(test: AccuracyTest, plan: Plan, names: Collection[str]) -> tuple[PreciseUnit, ...]:
    """Return units with their devices and noise, those of the most noise first."""
    if not names:
        return ()  # the accuracies of units are not measured for nothing
    units, budget, accuracies = test.precision.units, test.budget, test.unit_accuracies
    devices = _map_node_devices(plan)
    return tuple(
        PreciseUnit(name, devices.get(units[name][0], "host"), budget.measure_of(accuracies[name]))
        for name in sorted(names, key=lambda name: (accuracies[name].signal_to_noise, name))
    )


def _map_node_devices(plan: Plan) -> dict[str, str]:
    """Return the device of each node, by its name or first output."""
    return {
        get_node_name(graph.index.nodes[node]): device
        for graph in plan.root.walk()
        for node, device in graph.device_of_node.items()
    }


# The stage that estimates gains: plans with what a user could do done, by rule files and by flags.


# The stage that places nodes in parts, where accelerators refuse them whole and take the parts.

_LEAST_GAIN = 1e-9  # of the objective, relative: what is less is rounding, and nodes stay whole
_MAX_NAMES = 4  # of nodes in the note


@dataclass(frozen=True)
class PlaceParts:
    """Place again with the refused nodes that have a function body in parts, where that pays.

    A trial prices the parts of a node on the host as the whole node. Nodes of which it offloads nothing
    stay whole, and the others are placed at what their parts cost: all of them, and those alone of which
    everything is offloaded. The cheapest of these plans and of the one without parts is kept.
    """

    def run(self, state: Placed) -> Placed:
        """Return the state with the better placement: its own where no such node pays in parts."""
        settings, failed = state.settings, state.findings.not_in_parts
        if failed:
            note = f"nodes stay whole, since the bundle with some in parts failed: {failed}"
            return replace(state, root=replace(state.root, notes=(*state.root.notes, note)))
        splitter = NodeSplitter(state.model, settings.targets, state.request.options.no_passes)
        candidates = splitter.find_candidates(state.root)
        if not candidates:
            return state
        report_step(f"place {len(candidates)} nodes in parts")
        try:
            plans = [state, *_place_in_parts(state, splitter, candidates)]
        except (
            InputError
        ) as error:  # as where the cost of a part is not known, and none may be estimated
            what = _name_nodes(state.root, [*candidates])
            note = f"nodes stay whole, since they cannot be placed in parts: {what}: {error.lines[0]}"
            return replace(state, root=replace(state.root, notes=(*state.root.notes, note)))
        best = min(plans, key=lambda each: each.root.placement.cost.total)
        least = (1 - _LEAST_GAIN) * state.root.placement.cost.total
        if best.root.placement.cost.total >= least:
            return state
        root = replace(best.root, host_only=state.root.host_only)  # whole nodes, as the model has them
        return replace(best, root=_add_note(root, state.root))


def _place_in_parts(
    state: Placed, splitter: NodeSplitter, candidates: Mapping[str, WholePrice]
) -> Iterator[Placed]:
    """Yield placements with nodes in parts, each with another choice of them."""
    trial = find_parts(_place_trial(state, splitter, candidates, candidates).root)
    tried: list[Collection[str]] = []
    for wanted in (any, all):
        chosen = [name for name, offloaded in trial.items() if wanted(offloaded)]
        while chosen and chosen not in tried:
            tried.append(chosen)
            placed = _place_trial(state, splitter, chosen, {})
            parts = find_parts(placed.root)
            left = [name for name in chosen if any(parts.get(name, ()))]
            if left == chosen:
                yield placed
            chosen = left


def _place_trial(
    state: Placed,
    splitter: NodeSplitter,
    names: Collection[str],
    prices: Mapping[str, WholePrice],
) -> Placed:
    """Place the model with some nodes in parts."""
    prepared = replace(
        Prepared(**take(Prepared, state)),
        precision=replace(state.precision, model=splitter.split(names)),
        settings=replace(state.settings, whole_prices=prices),
        findings=replace(state.findings, whole=state.model),
    )
    placed = Place().run(Ask().run(Group().run(Annotate().run(prepared))))
    return replace(placed, settings=replace(placed.settings, whole_prices={}))


def _add_note(root: GraphPlan, before: GraphPlan) -> GraphPlan:
    """Return a plan with a note on the nodes that are in parts, whose operators `before` has."""
    what = _name_nodes(before, [*find_parts(root)])
    note = f"placed in parts, since no accelerator takes them whole: {what}"
    return replace(root, notes=(*root.notes, note))


def _name_nodes(root: GraphPlan, names: Sequence[str]) -> str:
    """Return some nodes of a plan for a note: how many of each operator, and the first names."""
    operators = _count_operators(root, names)
    listed = ", ".join(f"'{name}'" for name in names[:_MAX_NAMES])
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    what = ", ".join(f"{operator} ({count})" for operator, count in operators.items())
    return f"{what}: {listed}{more}"


def _count_operators(root: GraphPlan, names: Collection[str]) -> Counter[str]:
    """Count some nodes of a plan by operator."""
    wanted = {*names}
    return Counter(
        get_operator_name(graph.index.nodes[number])
        for graph in root.walk()
        for number, name in name_nodes(graph.index, graph.path).items()
        if name in wanted
    )


PlannedT = TypeVar("PlannedT", bound=Planned)


@dataclass(frozen=True)
class EstimateGains:
    """Estimate what the placement would gain if accelerators took more."""

    def run(self, state: PlannedT) -> PlannedT:
        """Fill in the plan's `what_ifs`, `untried`, `futile` and `break_evens`.

        Not of an open variant that byoc made beside one with sizes: a user asks of the latter.
        """
        variant = state.request.variant
        is_limited = state.settings.within is not None  # a gain may be beyond the limit
        asks = state.request.options.what_if and not is_limited
        if not asks or (variant.automatic and not variant.dims):
            return state
        report_step("estimate gains")
        root, devices = state.plan.root, state.settings.devices
        with collect_rarely():
            trials = GainTrials(state)
            gains, untried = estimate_gains(root, trials.plan_with)
            found = tuple(find_break_evens(root, devices))
        plan = replace(
            state.plan,
            what_ifs=tuple(gains),
            untried=untried,
            futile=tuple(trials.list_futile()),
            break_evens=found,
        )
        return replace(state, plan=plan)


@dataclass(frozen=True, eq=False)
class GainTrials:
    """Makes plans of a planned model with actions done; nothing is asked, compiled or measured."""

    state: Planned
    _costs: dict[frozenset[Action], float] = field(default_factory=dict)
    """the objective of the plans that were made, by the actions"""

    def plan_with(self, actions: Sequence[Action]) -> GraphPlan | None:
        """Return the plan with some actions done, None where it cannot be made."""
        try:
            with hide_steps():
                prepared = self._prepare(actions)
                plan = None if prepared is None else _place(prepared)
        except (InputError, MissingRuntimeError):  # edited rules or flags do not go with the model
            return None
        if plan is not None:
            self._costs[frozenset(actions)] = plan.placement.cost.total
        return plan

    def list_futile(self) -> Iterator[tuple[Action, ...]]:
        """Yield the actions whose plan costs no less than that of the state."""
        least = (1 - _LEAST_GAIN) * self.state.plan.placement.cost.total
        return (tuple(sorted(actions)) for actions, cost in self._costs.items() if cost >= least)

    def _prepare(self, actions: Sequence[Action]) -> Prepared | None:
        """Return the model to be planned with actions done, None where they cannot be."""
        state, flags = self.state, _read_flags(actions)
        targets = edit_targets(state.settings.targets, actions)
        if targets is None:
            return None
        strategy = shorten_search(state.settings.strategy)
        settings = replace(
            state.settings, targets=targets, strategy=strategy, doubt=None, names_limits=False
        )
        ranges = state.precision.ranges
        # What a codegen answered is in the settings, and it is not asked of what is only thought of.
        options = replace(state.request.options, output=None, inputs=None, ask=None)
        if not flags and ranges is None:
            request = replace(state.request, options=options)
            return Prepared(**{**take(Prepared, state), "settings": settings, "request": request})
        if options.passes or options.precision.budget is not None:
            return None  # what others' passes and a budget would do takes longer than a plan
        if ranges is None and "--quantize" in flags:
            ranges = _make_up_ranges(state.loaded.original.index)
        if ranges is not None:
            dtype = flags.get("--quantize", [options.precision.quantize])[0]
            precision = quantization.Precision(quantize=dtype, calibration=ranges)
            options = replace(options, precision=precision)
        options = _give_sizes(options, flags)
        resolved = Resolved(
            request=replace(state.request, options=options), setup=state.setup, settings=settings
        )
        return Quantize().run(Rewrite().run(Load().run(resolved)))


def _place(prepared: Prepared) -> GraphPlan:
    """Return the plan of a prepared model, in parts where that pays, without regions' names."""
    placed = Place().run(Group().run(Annotate().run(prepared.restore_whole())))
    return PlaceParts().run(placed).root


def _read_flags(actions: Sequence[Action]) -> dict[str, list[str]]:
    """Return the values of each flag that actions give, but for `--values`, which edits targets."""
    found: dict[str, list[str]] = {}
    for action in actions:
        for name, value in zip(action.flags[::2], action.flags[1::2], strict=True):
            if name != "--values":
                found.setdefault(name, []).append(value)
    return found


def _give_sizes(options: Options, flags: Mapping[str, Sequence[str]]) -> Options:
    """Return options with the sizes that `--dim` gives."""
    given = dict(each.rsplit("=", 1) for each in flags.get("--dim", ()))
    return replace(options, dims={**(options.dims or {}), **given}) if given else options


def _make_up_ranges(index: GraphIndex) -> quantization.Ranges:
    """Return a range for each tensor in floating point: what a plan costs does not depend on ranges."""
    unit = quantization.Range(-1.0, 1.0)
    names = (
        name
        for graph in index.walk()
        for name in (*graph.inputs, *graph.producers)
        if graph.get_dtype(name) in FLOAT_DTYPES
    )
    return quantization.Ranges("made up", 0, "", dict.fromkeys(names, unit))
