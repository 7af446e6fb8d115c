"""Numerical helpers that several rooms share: measures of accuracy, sorting."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.numerics._accuracy_measures import (
        compute_cosine,
        compute_powers,
        compute_same_class_share,
        compute_signal_to_noise,
        convert_to_db,
    )
    from byoc.numerics._search_budget import (
        SearchBudget,
        find_cycle,
        merge_groups,
        round_up,
        sort_topologically,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
