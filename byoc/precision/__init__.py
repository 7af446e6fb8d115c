"""The precision of regions: asked for, concluded from ranges, held to an accuracy budget."""

from byoc.precision._accuracy import AccuracyTest, prepare_accuracy_test
from byoc.precision.budget import Budget, read_budget, search_float_units
from byoc.precision.conclude import FLOATS, NATIVE, ChosenPrecision, Precision, choose_precision, quantize_for_targets
from byoc.precision.sensitivity import KeptAccuracy

__all__ = [
    "FLOATS",
    "NATIVE",
    "AccuracyTest",
    "Budget",
    "ChosenPrecision",
    "KeptAccuracy",
    "Precision",
    "choose_precision",
    "prepare_accuracy_test",
    "read_budget",
    "quantize_for_targets",
    "search_float_units",
]
