"""Quantization: ranges measured on data, scales, low-precision regions, accuracy budgets."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.quantization._accuracy_measures import KeptAccuracy
    from byoc.quantization._accuracy_test import AccuracyTest, prepare_accuracy_test
    from byoc.quantization._calibrate import calibrate
    from byoc.quantization._calibration_file import CalibrationOptions
    from byoc.quantization._calibrators import Range, Ranges
    from byoc.quantization._choose_precision import (
        ChosenPrecision,
        UnitPrecisions,
        choose_precision,
        has_float_mode,
    )
    from byoc.quantization._precision import (
        FLOATS,
        NATIVE,
        WEIGHTS,
        Budget,
        Precision,
        choose_front,
        choose_plan,
        list_cheap_plans,
        read_budget,
        update_taken,
    )
    from byoc.quantization._quantize_in_ranges import (
        quantize_chosen_weights,
        quantize_in_ranges,
        quantize_on_data,
    )
    from byoc.quantization._quantize_model import QuantizedModel, WideUnits, quantize
    from byoc.quantization._trade_search import PlanTrial, TradeSearch
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
