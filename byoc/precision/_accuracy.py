"""Measuring whether a partitioned model keeps within its accuracy budget, and recording the outcome."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

from onnx import ModelProto

from byoc.calibrate.door import data_of
from byoc.errors import InputError
from byoc.graph.load import Model
from byoc.plan import InFloat, Lowered, Plan
from byoc.precision.budget import Budget
from byoc.precision.conclude import Concluded, Precision
from byoc.precision.sensitivity import Kept, Values, kept, outputs, sensitivities
from byoc.support import report_step

# Accuracy is held to this many samples, and units are ranked by this many: one run of the model each.
_MEASURED = 32
_RANKED = 4


@dataclass(frozen=True, eq=False)
class AccuracyTest:
    """An accuracy budget, with the samples to measure on and what the original gives for them.

    `source` names the data; `concluded` is the model with everything quantized.
    """

    budget: Budget
    source: str
    samples: Sequence[Values]
    expected: Sequence[Values]
    concluded: Concluded

    def measure(self, proto: ModelProto, model: Model) -> Kept:
        """Return the accuracy of a partitioned model, whose external data is that of `model`."""
        report_step("measure the accuracy")
        return kept(self.expected, outputs(proto, model, self.samples))

    def is_met(self, accuracy: Kept) -> bool:
        """Return whether an accuracy is within the budget."""
        return self.budget.met(accuracy)

    @cached_property
    def ranking(self) -> Mapping[str, Kept]:
        """What is kept when a unit alone is quantized, for each unit by name."""
        few = slice(_RANKED)
        model, units = self.concluded.model, self.concluded.units
        return sensitivities(model, units, self.expected[few], self.samples[few], report_step)


def prepare_accuracy_test(model: Model, concluded: Concluded, precision: Precision) -> AccuracyTest:
    """Run the original model on the samples that its accuracy budget is measured on.

    Raises InputError when there are no samples.
    """
    budget, data = precision.budget, precision.data
    assert budget is not None
    if data is None:
        raise InputError(f"accuracy budget {budget}: it is measured on samples (--data FOLDER)")
    source = data_of(data, model, precision.images, _MEASURED)
    samples = [sample.inputs for sample in islice(source.start(0), _MEASURED)]
    if not samples:
        raise InputError(f"{source.name}: there are no samples to measure the accuracy on")
    report_step("run the original")
    expected = outputs(model.proto, model, samples)
    return AccuracyTest(budget, source.name, samples, expected, concluded)


def record_accuracy(
    plan: Plan, test: AccuracyTest, in_float: Sequence[str], accuracy: Kept, all_quantized: Kept
) -> Plan:
    """Return a plan that says what its accuracy budget came to.

    `in_float` are the units left in floating point, the most sensitive first; `all_quantized` is the
    accuracy without any.
    """
    assert plan.lowered is not None
    units, budget = test.concluded.units, test.budget
    devices = _devices_of_nodes(plan) if in_float else {}
    lowered: Lowered = replace(
        plan.lowered,
        units=len(units) - len(in_float),
        measured=len(test.samples),
        measured_on=test.source,
        budget=str(budget),
        reached=budget.of(accuracy),
        all_quantized=budget.of(all_quantized),
        in_float=tuple(
            InFloat(name, devices.get(units[name][0], "host"), budget.of(test.ranking[name]))
            for name in in_float
        ),
    )
    return replace(plan, lowered=lowered)


def _devices_of_nodes(plan: Plan) -> dict[str, str]:
    """Return the device of each node, by its name or first output."""
    return {
        node: graph.targets[label - 1].name if label else "host"
        for graph in plan.root.walk()
        for unit, label in zip(graph.units, graph.placement.labels.tolist(), strict=True)
        for node in (graph.index.nodes[n].name or graph.index.nodes[n].output[0] for n in unit.nodes)
    }
