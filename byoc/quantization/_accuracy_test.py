"""The test of an accuracy budget: the samples, the original's outputs, the accuracy measured on them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
from onnx import ModelProto

from byoc.errors import InputError
from byoc.model import Model
from byoc.placement.strategies import LaunchAware
from byoc.planning import GraphPlan
from byoc.quantization._accuracy_budget import Budget
from byoc.quantization._precision import ChosenPrecision, Precision
from byoc.quantization._precision_problem import PrecisionProblem, build_precision_problem
from byoc.quantization._sensitivity import (
    KeptAccuracy,
    SampleValues,
    measure_accuracy,
    measure_sensitivities,
    run_samples,
)
from byoc.samples import NO_PREPROCESSING, find_samples
from byoc.support import report_step

# Accuracy is held to this many samples, and units are ranked by this many: one run of the model each.
_MEASURED = 32
_RANKED = 4
_MOST_NOISE = 1e6  # the power of an error over that of the signal, instead of infinity


@dataclass(frozen=True, eq=False)
class AccuracyTest:
    """An accuracy budget, with the samples to measure on and what the original gives for them.

    `source` names the data; `precision` is the model with everything quantized.
    """

    budget: Budget
    source: str
    samples: Sequence[SampleValues]
    expected: Sequence[SampleValues]
    precision: ChosenPrecision

    def measure(self, proto: ModelProto, model: Model) -> KeptAccuracy:
        """Return the accuracy of a partitioned model, whose external data is that of `model`."""
        return measure_accuracy(self.expected, run_samples(proto, model, self.samples))

    def is_met(self, accuracy: KeptAccuracy) -> bool:
        """Return whether an accuracy is within the budget."""
        return self.budget.is_met(accuracy)

    def build_problem(self, integer: GraphPlan, floating: GraphPlan) -> PrecisionProblem:
        """Build the problem which units are in integers, from the plans with all and with none."""
        noise = {
            name: np.nan_to_num(
                np.asarray(each.noises or [each.noise]), nan=_MOST_NOISE, posinf=_MOST_NOISE
            )
            for name, each in self.ranking.items()
        }
        units = self.precision.units
        return build_precision_problem(integer, floating, units, noise, LaunchAware())

    @cached_property
    def ranking(self) -> Mapping[str, KeptAccuracy]:
        """The accuracy with one unit alone quantized, for each unit by name."""
        few = slice(_RANKED)
        model, units = self.precision.model, self.precision.units
        return measure_sensitivities(model, units, self.expected[few], self.samples[few])


def prepare_accuracy_test(
    model: Model, concluded: ChosenPrecision, precision: Precision
) -> AccuracyTest:
    """Run the original model on the samples that its accuracy budget is measured on.

    Raises InputError when there are no samples.
    """
    budget, data = precision.budget, precision.data
    assert budget is not None
    if data is None:
        raise InputError(f"accuracy budget {budget}: it is measured on samples (--data FOLDER)")
    source = find_samples(data, model, precision.images or NO_PREPROCESSING, _MEASURED)
    samples = [sample.inputs for sample in islice(source.read_from(0), _MEASURED)]
    if not samples:
        raise InputError(f"{source.name}: there are no samples to measure the accuracy on")
    report_step("run the original")
    expected = run_samples(model.proto, model, samples)
    return AccuracyTest(budget, source.name, samples, expected, concluded)
