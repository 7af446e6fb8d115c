"""Measurement of costs on this machine, and of the error of predictions."""

from byoc.profiling._codegen_timing import (
    MeasuredCodegen,
    measure_copies,
    measure_launch,
    time_units,
    time_whole,
)
from byoc.profiling._host_timing import time_nodes
from byoc.profiling._measured_costs import MeasurementRecords, describe_machine, write_costs
from byoc.profiling._prediction_error import (
    WIDE_SPREAD,
    NodePair,
    PredictionComparison,
    TimedRegion,
    compare_host,
    compare_placement,
    mean_error_factor,
    rank_correlation,
    time_regions,
)
from byoc.profiling._profile import HOST, Profile, ProfileOptions, profile
from byoc.profiling._sampling import Clock, Patience, Samples, compare_in_turn, measure_in_turn
