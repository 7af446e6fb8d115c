"""Planning in the precision that was asked for: what is concluded goes before, what it cost is kept."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from byoc.calibrate.precision import FLOATS, Concluded, Precision, conclude
from byoc.graph.load import Model
from byoc.plan import Lowered, Plan, Settings, make_plan


def lowered_plan(
    model: Model,
    settings: Settings,
    precision: Precision,
    asked: Mapping[str, Any],
    progress: Callable[[str], None],
) -> Plan:
    """Return the plan for a model whose regions compute as is asked for.

    Raises InputError as `conclude` and `make_plan` do.
    """
    found = conclude(model, settings.targets, precision, progress)
    plan = make_plan(found.model, replace(settings, targets=found.targets), asked, progress)
    plan = replace(plan, notes=found.notes)
    if found.floats is None and precision.quantize not in FLOATS:
        return plan
    return replace(plan, lowered=_lowered(model, found, precision))


def _lowered(model: Model, found: Concluded, precision: Precision) -> Lowered:
    if found.ranges is None:
        return Lowered(model, precision.quantize)
    return Lowered(
        original=model,
        dtype=precision.quantize,
        source=found.ranges.source,
        method=found.ranges.method,
        samples=found.ranges.samples,
        random=found.ranges.random,
        units=len(found.units),
    )
