"""Quantization: ranges measured on data, scales, low-precision regions, accuracy budgets."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.quantization._accuracy_test import AccuracyTest, prepare_accuracy_test
    from byoc.quantization._calibrate import calibrate
    from byoc.quantization._calibration_file import CalibrationOptions, read_ranges, write_ranges
    from byoc.quantization._calibrators import ChannelRange, GivenQuantization, Range, Ranges
    from byoc.quantization._choose_precision import (
        ChosenPrecision,
        UnitPrecisions,
        choose_precision,
        has_float_mode,
    )
    from byoc.quantization._precision import NATIVE, Budget, KeptAccuracy, Precision
    from byoc.quantization._quantize_in_ranges import quantize_as_chosen
    from byoc.quantization._quantize_model import QuantizedModel, WideUnits, quantize
    from byoc.quantization._trade_search import PlanTrial, TradeSearch
    from byoc.quantization._weight_blocks import round_to_blocks
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
