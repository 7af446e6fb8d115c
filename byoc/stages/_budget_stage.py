"""Planning within an accuracy budget: the search for the precisions of units, as a stage of its own."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from byoc.model import get_node_name
from byoc.planning import PreciseUnit, TradePoint
from byoc.quantization import (
    PlanTrial,
    TradeSearch,
    UnitPrecisions,
    choose_front,
    choose_plan,
    list_cheap_plans,
    update_taken,
)
from byoc.stages._state import MetBudget, Planned
from byoc.support import report_step

if TYPE_CHECKING:
    from byoc.planning import GraphPlan, Plan
    from byoc.quantization import AccuracyTest, KeptAccuracy
    from byoc.stages._results import Stage
    from byoc.stages._state import Prepared


@dataclass(frozen=True, eq=False)
class Trial:
    """A model planned with units in some precisions, those on the host in floats, and its accuracy."""

    planned: Planned
    precisions: UnitPrecisions
    accuracy: KeptAccuracy


@dataclass(frozen=True, eq=False)
class MeetBudget:
    """Plan with units in the precisions that keep the model within its accuracy budget.

    `planning` plans a model whose units have some precisions. Of the plans that are tried, `choose_plan`
    takes one. After a codegen refused something, the precisions that were chosen before are tried first.
    Raises InputError when the budget cannot be met.
    """

    test: AccuracyTest
    planning: Stage[Prepared, Planned]

    def run(self, state: Prepared) -> Planned:
        """Return the state with the plan, which says how the budget was met."""
        known = state.findings.budget
        if known is not None:
            trial = self.try_precisions(state, known.precisions)
            if self.test.is_met(trial.accuracy):
                trade = update_taken(known.trade, self._describe(trial))
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
                kept = {point: kept[point] for point in list_cheap_plans([*kept])}
            proposal = proposals.send(PlanTrial(trial.accuracy, points[-1].cost))
        taken = choose_plan([*kept])
        best, trade = kept[taken], choose_front(points, taken)
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
