"""Measurement of costs on this machine, and of the error of predictions."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.comparison.profiling._codegen_timing import (
        MeasuredCodegen,
        measure_copies,
        measure_launch,
        time_units,
        time_whole,
    )
    from byoc.comparison.profiling._measured_costs import (
        Clock,
        MeasurementRecords,
        Patience,
        Samples,
        compare_in_turn,
        describe_machine,
        measure_in_turn,
        time_nodes,
        write_costs,
    )
    from byoc.comparison.profiling._prediction_error import (
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
    from byoc.comparison.profiling._profile import Profile, profile
    from byoc.comparison.profiling._profile_options import HOST, ProfileOptions
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
