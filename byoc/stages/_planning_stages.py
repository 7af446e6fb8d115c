"""The stages of planning: from a prepared model to its plan, with the partitioned model and gains."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from onnx import ModelProto

from byoc.costs import check_trips
from byoc.errors import InputError
from byoc.model import check_domains_unused, get_node_name, unshare_dequantize
from byoc.planning import (
    PartitionedModel,
    Plan,
    PreciseUnit,
    annotate_graphs,
    computes_otherwise,
    convert_boundaries,
    estimate_gains,
    find_break_evens,
    find_unknown_names,
    find_unmatched_annotations,
    group_graphs,
    name_regions,
    outline_regions,
    plan_graphs,
    predict_at_ends,
    read_annotations,
    split_pinned_units,
)
from byoc.quantization import UnitPrecisions
from byoc.rules import find_unmatched_names
from byoc.support import collect_rarely, report_step

if TYPE_CHECKING:
    from byoc.boundary.convert import ConvertedModel
    from byoc.model import Model
    from byoc.quantization import AccuracyTest
    from byoc.stages._state import State


@dataclass(frozen=True)
class Annotate:
    """Ask each target's rules about each node.

    Raises InputError when the model has no such Loop or Scan as the options speak of, or uses a
    target's domain.
    """

    def run(self, state: State) -> State:
        """Fill in `index` and `marks`."""
        settings = state.settings
        with _naming(state.model):
            check_domains_unused(state.model.index, [target.domain for target in settings.targets])
            check_trips(state.model.index, settings.trips)
        report_step("place")
        quantized = any(target.has_quantized_rules for target in settings.targets)
        index = (unshare_dequantize(state.model) if quantized else state.model).index
        return replace(state, index=index, marks=annotate_graphs(index, settings.targets))


@dataclass(frozen=True)
class Group:
    """Gather nodes into the units that are placed: composites, QDQ groups, single nodes."""

    def run(self, state: State) -> State:
        """Fill in `units`."""
        return replace(state, units=group_graphs(state.index, state.settings.targets, state.marks))


@dataclass(frozen=True)
class Place:
    """Have the strategy place the units of every graph, and name the regions that form.

    Raises InputError when a cost that is needed is not known, the strategy fails, or a unit that has to
    be on an accelerator cannot.
    """

    def run(self, state: State) -> State:
        """Fill in `root` and `predictions`; split the `units` that are given several devices."""
        settings = state.settings
        names = [target.name for target in settings.targets]
        pins = read_annotations(state.index, settings.targets, state.options.annotations)
        if settings.placement is not None:
            saved = settings.placement.resolve(state.index, names, state.model.lost)
            pins = saved.override(pins)
        units = split_pinned_units(state.index, state.units, state.marks, pins)
        root = name_regions(plan_graphs(state.index, settings, units, pins), state.variant)
        predictions = predict_at_ends(root, settings, units)
        notes = [
            note
            for target in settings.targets
            for find_unmatched in (find_unmatched_names, find_unmatched_annotations)
            for note in find_unmatched(state.index, target)
        ]
        notes += () if state.answers is None else state.answers.notes
        notes += [*pins.notes, *find_unknown_names(settings)]
        root = replace(root, notes=(*root.notes, *notes))
        return replace(state, units=units, root=root, predictions=predictions)


@dataclass(frozen=True)
class Outline:
    """Make each region a function of the model, and each composite inside it, too.

    Where a plan is all that is asked for, and its regions compute as the model says, this is left to
    whoever asks for the partitioned model. Of a protobuf that the caller may edit afterwards it is not.
    """

    def run(self, state: State) -> State:
        """Fill in `partitioned`."""
        root, model = state.root, state.model

        def outline() -> ModelProto:
            with _naming(model):
                return outline_regions(root, model.heavy)

        def convert(outlined: ModelProto) -> ConvertedModel:
            with _naming(model):
                return convert_boundaries(root, outlined, model.folder)

        partitioned = PartitionedModel(outline, convert)
        if _is_made_at_once(state):
            report_step("outline")
            _ = partitioned.outlined
        return replace(state, partitioned=partitioned)


def _is_made_at_once(state: State) -> bool:
    held = state.root.index.proto is state.source
    return held or state.output is not None or computes_otherwise(state.root.targets)


@dataclass(frozen=True)
class Convert:
    """Convert layouts, types and quantization where tensors cross between host and regions.

    Where the model is not outlined yet, this is left to whoever asks for the partitioned model.
    """

    def run(self, state: State) -> State:
        """Fill in `plan`; the outlined model is edited in place."""
        root = state.root
        if _is_made_at_once(state):
            report_step("convert")
            root = replace(root, notes=(*root.notes, *state.partitioned.converted.notes))
        plan = Plan(
            asked=state.record,
            model=state.model,
            targets=state.settings.targets,
            root=root,
            predicted_at=state.predictions,
            partitioned=state.partitioned,
            lowered=state.lowered,
            notes=state.precision.notes,
            passes=state.pass_effects,
            variant=state.variant,
            state=state.settings.state or {},
        )
        return replace(state, plan=plan)


@contextmanager
def _naming(model: Model) -> Iterator[None]:
    """Put the model's name in front of the message of an InputError."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{model.source}: {error}") from None


def find_precisions(state: State) -> UnitPrecisions:
    """Return the precisions of units in the plan: what is on the host computes in floating point."""
    assert state.precisions is not None
    devices = _map_node_devices(state.plan)
    units = state.precision.units
    on_host = frozenset(name for name, nodes in units.items() if devices.get(nodes[0], "host") == "host")
    asked = state.precisions
    kept = state.precision.kept_wide
    wide = asked.wide | (kept.names if kept else frozenset())
    return UnitPrecisions(asked.in_float | on_host, wide - asked.in_float - on_host)


def record_accuracy(state: State) -> State:
    """Record in the plan how its accuracy budget was met, and which units are in which precision."""
    test, plan, precisions = state.accuracy_test, state.plan, state.precisions
    assert test is not None
    assert plan.lowered is not None
    assert precisions is not None
    budget = test.budget
    lowered = replace(
        plan.lowered,
        units=len(test.precision.units) - len(precisions.in_float),
        measured=len(test.samples),
        measured_on=test.source,
        budget=str(budget),
        reached=budget.measure_of(state.accuracy),
        all_quantized=budget.measure_of(state.all_quantized),
        trade=state.trade,
        trade_gap=state.trade_gap,
        in_float=_list_units(test, plan, precisions.in_float),
        wide=_list_units(test, plan, precisions.wide),
    )
    return replace(state, plan=replace(plan, lowered=lowered))


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


@dataclass(frozen=True)
class EstimateGains:
    """Estimate what the placement would gain if accelerators took more."""

    def run(self, state: State) -> State:
        """Fill in the plan's `what_ifs`, `untried` and `break_evens`."""
        if not state.options.what_if:
            return state
        report_step("estimate gains")
        root, devices = state.plan.root, state.settings.devices
        with collect_rarely():
            gains, untried = estimate_gains(root)
            found = tuple(find_break_evens(root, devices))
        plan = replace(state.plan, what_ifs=tuple(gains), untried=untried, break_evens=found)
        return replace(state, plan=plan)
