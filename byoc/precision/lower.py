"""Planning in the precision that was asked for: what is concluded goes before, what it cost is kept."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

from byoc.calibrate.door import data_of
from byoc.calibrate.samples import Data
from byoc.errors import InputError
from byoc.graph.load import Model
from byoc.plan import Facts, InFloat, Lowered, Plan, Settings, make_plan
from byoc.precision.budget import Budget, Met, Trial, within
from byoc.precision.conclude import FLOATS, Concluded, Precision, conclude, requantize
from byoc.precision.sensitivity import Kept, kept, outputs, sensitivities

Progress = Callable[[str], None]

# Accuracy is held to this many samples, and units are ranked by this many: one run of the model each.
_MEASURED = 32
_RANKED = 4

NO_FACTS = Facts()


class Lowering:
    """A model whose regions compute as is asked for, which can be planned again when more is known."""

    def __init__(
        self,
        model: Model,
        settings: Settings,
        precision: Precision,
        asked: Mapping[str, Any],
        progress: Progress,
    ) -> None:
        """Conclude the precision. Raises InputError as `conclude`."""
        self._found = conclude(model, settings.targets, precision, progress)
        self._settings = replace(settings, targets=self._found.targets)
        self._model, self._precision = model, precision
        self._asked, self._progress = asked, progress
        self._met: Met[Plan] | None = None
        self._trials: _Trials | None = None
        if self._found.ranges is None and precision.budget is not None:
            raise InputError(f"accuracy budget {precision.budget}: nothing is quantized")

    def plan(self, facts: Facts = NO_FACTS) -> Plan:
        """Return the plan for what is known of the targets.

        With an accuracy budget the units that are left in floating point are those of the first plan,
        unless that no longer does. Raises InputError as `make_plan` does, and when a budget cannot be
        met.
        """
        settings = replace(self._settings, refused=facts.refused, split=facts.split)
        found, precision = self._found, self._precision
        if precision.budget is not None:
            return self._within(settings, precision.budget)
        plan = make_plan(found.model, settings, self._asked, self._progress)
        plan = replace(plan, notes=found.notes)
        if found.ranges is not None:
            return replace(plan, lowered=_lowered(self._model, found, precision))
        if precision.quantize in FLOATS:
            return replace(plan, lowered=Lowered(self._model, precision.quantize))
        return plan

    def _within(self, settings: Settings, budget: Budget) -> Plan:
        found, precision, progress = self._found, self._precision, self._progress
        if self._trials is None:
            self._trials = _Trials(self._model, settings, found, precision, self._asked, progress)
        trials = self._trials
        trials.settings = settings
        met = self._met
        if met is not None:
            met = replace(met, trial=trials.without(list(met.left)))
        if met is None or not budget.met(met.trial.kept):
            met = within(budget, trials.without, trials.rank)
        self._met = met
        plan = met.trial.result
        units = {name for name in found.units if name not in met.left}
        lowered = _lowered(self._model, found, precision)
        lowered = replace(
            lowered,
            units=len(units),
            measured=len(trials.samples),
            measured_on=trials.source.name,
            **_told(budget, met, plan, found),
        )
        return replace(plan, notes=found.notes, lowered=lowered)


@dataclass(eq=False)
class _Trials:
    """Plans in which some units are left in floating point, measured on the partitioned model whole."""

    model: Model
    settings: Settings
    found: Concluded
    precision: Precision
    asked: Mapping[str, Any]
    progress: Progress

    @cached_property
    def source(self) -> Data:
        """The data to measure on."""
        data, budget = self.precision.data, self.precision.budget
        if data is None:
            raise InputError(f"accuracy budget {budget}: it is measured on samples (--data FOLDER)")
        return data_of(data, self.model, self.precision.images, _MEASURED)

    @cached_property
    def samples(self) -> list[Mapping[str, Any]]:
        """The inputs to measure on."""
        source = self.source
        samples = [sample.inputs for sample in islice(source.start(0), _MEASURED)]
        if not samples:
            raise InputError(f"{source.name}: there are no samples to measure the accuracy on")
        return samples

    @cached_property
    def expected(self) -> Any:
        """What the original gives."""
        samples = self.samples
        self.progress("run the original")
        return outputs(self.model.proto, self.model, samples)

    def without(self, names: Sequence[str]) -> Trial[Plan]:
        """Return the plan with some units left in floating point, and what it keeps."""
        expected, done = self.expected, self.found.model
        if names:
            assert self.found.ranges is not None
            targets = self.settings.targets
            done = requantize(self.model, targets, self.found.ranges, self.precision, names).model
        plan = make_plan(done, self.settings, self.asked, self.progress)
        self.progress("measure the accuracy")
        return Trial(plan, kept(expected, outputs(plan.proto, done, self.samples)))

    def rank(self) -> Mapping[str, Kept]:
        """Return what quantizing each unit alone keeps."""
        few = slice(_RANKED)
        found, samples = self.found, self.samples
        return sensitivities(found.model, found.units, self.expected[few], samples[few], self.progress)


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
