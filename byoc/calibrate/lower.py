"""Planning in the precision that was asked for: what is concluded goes before, what it cost is kept."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from byoc.calibrate.budget import Budget, Met, Trial, within
from byoc.calibrate.door import data_of
from byoc.calibrate.precision import FLOATS, Concluded, Precision, conclude, requantize
from byoc.calibrate.sensitivity import Kept, kept, outputs, sensitivities
from byoc.errors import InputError
from byoc.graph.load import Model
from byoc.plan import InFloat, Lowered, Plan, Settings, make_plan

Progress = Callable[[str], None]

# Accuracy is held to this many samples, and units are ranked by this many: one run of the model each.
_MEASURED = 32
_RANKED = 4


def lowered_plan(
    model: Model,
    settings: Settings,
    precision: Precision,
    asked: Mapping[str, Any],
    progress: Progress,
) -> Plan:
    """Return the plan for a model whose regions compute as is asked for.

    Raises InputError as `conclude` and `make_plan` do, and when an accuracy budget cannot be met.
    """
    found = conclude(model, settings.targets, precision, progress)
    settings = replace(settings, targets=found.targets)
    if found.ranges is None:
        if precision.budget is not None:
            raise InputError(f"accuracy budget {precision.budget}: nothing is quantized")
        plan = replace(make_plan(found.model, settings, asked, progress), notes=found.notes)
        if precision.quantize in FLOATS:
            return replace(plan, lowered=Lowered(model, precision.quantize))
        return plan
    if precision.budget is None:
        plan = make_plan(found.model, settings, asked, progress)
        return replace(plan, notes=found.notes, lowered=_lowered(model, found, precision))
    met = _within(model, settings, found, precision, precision.budget, asked, progress)
    plan = met.trial.result
    lowered = _lowered(model, found, precision)
    units = {name for name in found.units if name not in met.left}
    lowered = replace(lowered, units=len(units), **_told(precision.budget, met, plan, found))
    return replace(plan, notes=found.notes, lowered=lowered)


def _within(  # noqa: PLR0913, PLR0917 - all that a plan is made of
    model: Model,
    settings: Settings,
    found: Concluded,
    precision: Precision,
    budget: Budget,
    asked: Mapping[str, Any],
    progress: Progress,
) -> Met[Plan]:
    """Return the plan that keeps within a budget, measured on the partitioned model as a whole."""
    ranges = found.ranges
    assert ranges is not None
    if precision.data is None:
        raise InputError(f"accuracy budget {budget}: it is measured on samples (--data FOLDER)")
    data = data_of(precision.data, model, precision.images, _MEASURED)
    samples = [sample.inputs for sample in islice(data.start(0), _MEASURED)]
    if not samples:
        raise InputError(f"{data.name}: there are no samples to measure the accuracy on")
    progress("run the original")
    expected = outputs(model.proto, model, samples)

    def try_without(names: Sequence[str]) -> Trial[Plan]:
        done = found.model
        if names:
            done = requantize(model, settings.targets, ranges, precision, names).model
        plan = make_plan(done, settings, asked, progress)
        progress("measure the accuracy")
        return Trial(plan, kept(expected, outputs(plan.proto, done, samples)))

    def rank() -> Mapping[str, Kept]:
        few = slice(_RANKED)
        return sensitivities(found.model, found.units, expected[few], samples[few], progress)

    return within(budget, try_without, rank)


def _lowered(model: Model, found: Concluded, precision: Precision) -> Lowered:
    assert found.ranges is not None
    return Lowered(
        original=model,
        dtype=precision.quantize,
        source=found.ranges.source,
        method=found.ranges.method,
        samples=found.ranges.samples,
        random=found.ranges.random,
        units=len(found.units),
    )


def _told(budget: Budget, met: Met[Plan], plan: Plan, found: Concluded) -> dict[str, Any]:
    """Return what is told of a budget: what was left out, where that runs, and what it cost alone."""
    where = {
        node: graph.targets[label - 1].name if label else "host"
        for graph in plan.root.walk()
        for unit, label in zip(graph.units, graph.placement.labels.tolist(), strict=True)
        for node in (graph.index.nodes[n].name or graph.index.nodes[n].output[0] for n in unit.nodes)
    }
    left = tuple(
        InFloat(name, where.get(found.units[name][0], "host"), budget.of(cost))
        for name, cost in met.left.items()
    )
    return {
        "budget": str(budget),
        "reached": budget.of(met.trial.kept),
        "all_quantized": budget.of(met.without),
        "in_float": left,
    }
