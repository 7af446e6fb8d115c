"""The stage that estimates gains: plans with what a user could do done, by rule files and by flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from byoc import quantization
from byoc.errors import InputError, MissingRuntimeError
from byoc.model import FLOAT_DTYPES, GraphIndex
from byoc.planning import edit_targets, estimate_gains, find_break_evens, shorten_search
from byoc.stages._parts_stage import PlaceParts
from byoc.stages._planning_stages import Annotate, Group, Place
from byoc.stages._preparation_stages import Load, Quantize
from byoc.stages._rewriting import Rewrite
from byoc.stages._state import Planned, Prepared, Resolved, take
from byoc.support import collect_rarely, hide_steps, report_step

if TYPE_CHECKING:
    from byoc.options import Options
    from byoc.planning import Action, GraphPlan


PlannedT = TypeVar("PlannedT", bound=Planned)


@dataclass(frozen=True)
class EstimateGains:
    """Estimate what the placement would gain if accelerators took more."""

    def run(self, state: PlannedT) -> PlannedT:
        """Fill in the plan's `what_ifs`, `untried` and `break_evens`."""
        if not state.request.options.what_if:
            return state
        report_step("estimate gains")
        root, devices = state.plan.root, state.settings.devices
        with collect_rarely():
            gains, untried = estimate_gains(root, GainTrials(state).plan_with)
            found = tuple(find_break_evens(root, devices))
        plan = replace(state.plan, what_ifs=tuple(gains), untried=untried, break_evens=found)
        return replace(state, plan=plan)


@dataclass(frozen=True, eq=False)
class GainTrials:
    """Makes plans of a planned model with actions done; nothing is asked, compiled or measured."""

    state: Planned

    def plan_with(self, actions: Sequence[Action]) -> GraphPlan | None:
        """Return the plan with some actions done, None where it cannot be made."""
        try:
            with hide_steps():
                prepared = self._prepare(actions)
                return None if prepared is None else _place(prepared)
        except (InputError, MissingRuntimeError):  # edited rules or flags do not go with the model
            return None

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
        if not flags and ranges is None:
            return Prepared(**{**take(Prepared, state), "settings": settings})
        options = replace(state.request.options, output=None, inputs=None)
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
