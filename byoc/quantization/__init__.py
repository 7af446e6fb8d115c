"""Quantization: ranges measured on data, scales, low-precision regions, accuracy budgets."""

from byoc.quantization._accuracy_budget import (
    Budget,
    FloatTrial,
    TradeSearch,
    choose_front,
    read_budget,
)
from byoc.quantization._accuracy_test import AccuracyTest, prepare_accuracy_test
from byoc.quantization._calibrate import calibrate
from byoc.quantization._calibration_options import CalibrationOptions
from byoc.quantization._precision import (
    FLOATS,
    NATIVE,
    WEIGHTS,
    ChosenPrecision,
    Precision,
    choose_precision,
    has_float_mode,
)
from byoc.quantization._ranges import Range, Ranges
from byoc.quantization._sensitivity import KeptAccuracy
