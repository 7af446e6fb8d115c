"""Numerical helpers that several rooms share: measures of accuracy, sorting."""

from byoc.numerics._accuracy_measures import (
    compute_cosine,
    compute_powers,
    compute_same_class_share,
    compute_signal_to_noise,
    convert_to_db,
)
from byoc.numerics._ordering import find_cycle, merge_groups, round_up, sort_topologically
from byoc.numerics._search_budget import SearchBudget
