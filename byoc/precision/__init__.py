"""The precision of regions: asked for, concluded from ranges, held to an accuracy budget."""

from byoc.precision._accuracy import AccuracyTest, prepare_accuracy_test
from byoc.precision.budget import Budget, read_budget, search_float_units
from byoc.precision.conclude import FLOATS, NATIVE, Concluded, Precision, conclude, requantize
from byoc.precision.sensitivity import Kept

__all__ = [
    "FLOATS",
    "NATIVE",
    "AccuracyTest",
    "Budget",
    "Concluded",
    "Kept",
    "Precision",
    "conclude",
    "prepare_accuracy_test",
    "read_budget",
    "requantize",
    "search_float_units",
]
