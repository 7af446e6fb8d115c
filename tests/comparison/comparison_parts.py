"""Parts of studies, bucket choices and measurements; no other room uses them."""

from byoc.comparison._buckets import (
    choose_row,
    choose_sizes,
    make_log_normal,
    pick_candidates,
    read_lengths,
)
from byoc.comparison._case_solver import (
    CaseSolver,
)
from byoc.comparison._codegen_timing import (
    MeasuredCodegen,
    measure_copies,
    measure_launch,
    time_units,
    time_whole,
)
from byoc.comparison._measured_costs import (
    MeasurementRecords,
    describe_machine,
)
from byoc.comparison._profile import (
    measure_slowdown,
    time_pair,
)
from byoc.comparison._study_results import (
    make_rows,
)

__all__ = [
    "CaseSolver",
    "MeasuredCodegen",
    "MeasurementRecords",
    "choose_row",
    "choose_sizes",
    "describe_machine",
    "make_log_normal",
    "make_rows",
    "measure_copies",
    "measure_launch",
    "measure_slowdown",
    "pick_candidates",
    "read_lengths",
    "time_pair",
    "time_units",
    "time_whole",
]
