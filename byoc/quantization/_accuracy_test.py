"""The test of an accuracy budget: the samples, the original's outputs, the accuracy measured on them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from byoc.errors import InputError
from byoc.model import Model
from byoc.planning import WIDE, GraphPlan, PlanSettings
from byoc.quantization._accuracy_budget import Budget
from byoc.quantization._accuracy_measures import (
    KeptAccuracy,
    SampleValues,
    measure_accuracy,
    run_samples,
)
from byoc.quantization._build_precision_problem import (
    QuantizedPlan,
    TensorFigures,
    build_precision_problem,
)
from byoc.quantization._chosen_precision import ChosenPrecision
from byoc.quantization._conversion_costs import price_conversions
from byoc.quantization._precision import Precision
from byoc.quantization._precision_problem import PrecisionProblem
from byoc.quantization._sensitivity import measure_roundings, measure_sensitivities
from byoc.samples import NO_PREPROCESSING, find_samples
from byoc.support import report_step

_MOST_SAMPLES = 32  # that the accuracy of a plan is measured on
# Samples that the accuracy with a unit or tensor alone quantized is measured on, and the runs of the
# model for that in each type: with many units, on fewer samples.
_SAMPLES_ALONE, _MOST_RUNS_ALONE = 4, 200
_MOST_NOISE = 1e6  # the power of an error over that of the signal, instead of infinity

PartMeasurement = Callable[
    [Model, Mapping[str, Sequence[str]], Sequence[SampleValues], Sequence[SampleValues]],
    dict[str, KeptAccuracy],
]
"""A measurement of parts of a quantized model, each alone: of units, or of tensors."""


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

    def build_problem(self, settings: PlanSettings, plans: Sequence[GraphPlan]) -> PrecisionProblem:
        """Build the problem of units' precisions, from the plans with all units in each of them.

        They are in integers, perhaps in 16 bits where units may be, and in floating point.
        """
        narrow, *others, floating = plans
        precision, dtype = self.precision, self.precision.narrow_dtype
        types = [QuantizedPlan(narrow, precision.units, _list_noises(self.unit_accuracies), dtype)]
        for plan in others:
            assert precision.wide_model is not None
            types.append(
                QuantizedPlan(
                    plan, precision.wide_model.units, _list_noises(self.wide_unit_accuracies), WIDE
                )
            )
        tensors = [name for name in floating.graph_problem.tensors if ":" not in name]
        dtypes = [each.dtype for each in types]
        figures = TensorFigures(
            _list_noises(self._measure_alone(measure_roundings, precision.model, precision.units)),
            price_conversions(floating.index, tensors, settings, dtypes),
            np.array([each.rules.quantization.convert == "between" for each in settings.targets]),
        )
        return build_precision_problem(types, floating, figures)

    @cached_property
    def unit_accuracies(self) -> Mapping[str, KeptAccuracy]:
        """The accuracy with one unit alone quantized, for each unit by name."""
        return self._measure_alone(measure_sensitivities, self.precision.model, self.precision.units)

    @cached_property
    def wide_unit_accuracies(self) -> Mapping[str, KeptAccuracy]:
        """The accuracy with one unit alone in 16 bits, for each that may be."""
        wide = self.precision.wide_model
        return {} if wide is None else self._measure_alone(measure_sensitivities, wide.model, wide.units)

    def _measure_alone(
        self, measure: PartMeasurement, model: Model, units: Mapping[str, Sequence[str]]
    ) -> Mapping[str, KeptAccuracy]:
        few = slice(max(1, min(_SAMPLES_ALONE, _MOST_RUNS_ALONE // max(len(units), 1))))
        return measure(model, units, self.expected[few], self.samples[few])


def _list_noises(accuracies: Mapping[str, KeptAccuracy]) -> dict[str, NDArray[np.float64]]:
    """Return the noise of each unit or tensor, float64 `[outputs]`, finite."""
    return {
        name: np.nan_to_num(np.asarray(each.noises or [each.noise]), nan=_MOST_NOISE, posinf=_MOST_NOISE)
        for name, each in accuracies.items()
    }


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
    source = find_samples(data, model, precision.images or NO_PREPROCESSING, _MOST_SAMPLES)
    samples = [sample.inputs for sample in islice(source.read_from(0), _MOST_SAMPLES)]
    if not samples:
        raise InputError(f"{source.name}: there are no samples to measure the accuracy on")
    report_step("run the original")
    expected = run_samples(model.proto, model, samples)
    return AccuracyTest(budget, source.name, samples, expected, concluded)
