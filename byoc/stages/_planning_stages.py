"""The stages of planning: from a prepared model to its plan, with the partitioned model and gains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from onnx import ModelProto

from byoc.costs import check_trips
from byoc.errors import InputError
from byoc.model import check_domains_unused, unshare_dequantize
from byoc.planning import (
    LoweredPrecision,
    PartitionedModel,
    Plan,
    annotate_graphs,
    computes_otherwise,
    convert_boundaries,
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
from byoc.quantization import FLOATS, WEIGHTS
from byoc.rules import find_unmatched_names
from byoc.stages._state import Annotated, Grouped, Outlined, Placed, Planned, Prepared, take
from byoc.support import report_step

if TYPE_CHECKING:
    from byoc.boundary.convert import ConvertedModel
    from byoc.model import Model
    from byoc.quantization import ChosenPrecision, Precision


@dataclass(frozen=True)
class Annotate:
    """Ask each target's rules about each node.

    Raises InputError when the model has no such Loop or Scan as the options speak of, or uses a
    target's domain.
    """

    def run(self, state: Prepared) -> Annotated:
        """Return the state with the index that is planned on, and the marks of its nodes."""
        settings = state.settings
        with _naming(state.model):
            check_domains_unused(state.model.index, [target.domain for target in settings.targets])
            check_trips(state.model.index, settings.trips)
        report_step("place")
        quantized = any(target.has_quantized_rules for target in settings.targets)
        index = (unshare_dequantize(state.model) if quantized else state.model).index
        marks = annotate_graphs(index, settings.targets)
        return Annotated(**take(Prepared, state), index=index, marks=marks)


@dataclass(frozen=True)
class Group:
    """Gather nodes into the units that are placed: composites, QDQ groups, single nodes."""

    def run(self, state: Annotated) -> Grouped:
        """Return the state with the units of each graph."""
        units = group_graphs(state.index, state.settings.targets, state.marks)
        return Grouped(**take(Annotated, state), units=units)


@dataclass(frozen=True)
class Place:
    """Have the strategy place the units of every graph, and name the regions that form.

    Raises InputError when a cost that is needed is not known, the strategy fails, or a unit that has to
    be on an accelerator cannot.
    """

    def run(self, state: Grouped) -> Placed:
        """Return the state with the placement; units that are given several devices are split."""
        settings = state.settings
        names = [target.name for target in settings.targets]
        pins = read_annotations(state.index, settings.targets, state.request.options.annotations)
        if settings.placement is not None:
            saved = settings.placement.resolve(state.index, names, state.model.lost)
            pins = saved.override(pins)
        units = split_pinned_units(state.index, state.units, state.marks, pins)
        root = name_regions(plan_graphs(state.index, settings, units, pins), state.request.variant)
        predictions = predict_at_ends(root, settings, units)
        notes = [
            note
            for target in settings.targets
            for find_unmatched in (find_unmatched_names, find_unmatched_annotations)
            for note in find_unmatched(state.index, target)
        ]
        answers = state.findings.answers
        notes += () if answers is None else answers.notes
        notes += [*pins.notes, *find_unknown_names(settings)]
        root = replace(root, notes=(*root.notes, *notes))
        found = Placed(**take(Grouped, state), root=root, predictions=predictions)
        return replace(found, units=units)


@dataclass(frozen=True)
class Outline:
    """Make each region a function of the model, and each composite inside it, too.

    Where a plan is all that is asked for, and its regions compute as the model says, this is left to
    whoever asks for the partitioned model. Of a protobuf that the caller may edit afterwards it is not.
    """

    def run(self, state: Placed) -> Outlined:
        """Return the state with the partitioned model."""
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
        return Outlined(**take(Placed, state), partitioned=partitioned)


def _is_made_at_once(state: Placed) -> bool:
    held = state.root.index.proto is state.request.source
    return held or state.setup.output is not None or computes_otherwise(state.root.targets)


@dataclass(frozen=True)
class Convert:
    """Convert layouts, types and quantization where tensors cross between host and regions.

    Where the model is not outlined yet, this is left to whoever asks for the partitioned model.
    """

    def run(self, state: Outlined) -> Planned:
        """Return the state with the plan; the outlined model is edited in place."""
        root = state.root
        if _is_made_at_once(state):
            report_step("convert")
            root = replace(root, notes=(*root.notes, *state.partitioned.converted.notes))
        plan = Plan(
            asked=state.setup.record,
            model=state.model,
            targets=state.settings.targets,
            root=root,
            predicted_at=state.predictions,
            partitioned=state.partitioned,
            lowered=_describe_lowering(
                state.loaded.original, state.precision, state.request.options.precision
            ),
            notes=state.precision.notes,
            passes=state.pass_effects,
            refusals=state.findings.history.refused,
            variant=state.request.variant,
            state=state.settings.state or {},
        )
        return Planned(**take(Prepared, state), plan=plan)


@contextmanager
def _naming(model: Model) -> Iterator[None]:
    """Put the model's name in front of the message of an InputError."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{model.source}: {error}") from None


def _describe_lowering(
    original: Model, chosen: ChosenPrecision, precision: Precision
) -> LoweredPrecision | None:
    """Return the lowered precision, None where regions compute as the model says."""
    ranges = chosen.ranges
    if ranges is not None:
        return LoweredPrecision(
            original=original,
            dtype=precision.quantize,
            source=ranges.source,
            method=ranges.method,
            samples=ranges.samples,
            random=ranges.random,
            units=len(chosen.units),
        )
    if precision.quantize not in (*FLOATS, WEIGHTS):
        return None
    return LoweredPrecision(
        original, precision.quantize, units=len(chosen.weights), weights=chosen.weights
    )
