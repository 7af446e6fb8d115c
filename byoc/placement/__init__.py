"""Placement of units on devices: a `Strategy` turns a `Problem` into a `Placement`.

A problem holds units, tensors and costs as numpy arrays and does not depend on ONNX. A placement
assigns each unit a device (0 = host), groups the units of accelerators into regions that are launched as
one, and states the cost and, if the strategy proves one, a lower bound of it.

Beside these stand the searches, cuts and bounds that the strategies are made of, for strategies of
others.
"""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.placement._conditions import (
        Conditions,
        PlacedNetwork,
        add_split,
        describe_reloads,
        find_loaded_bytes,
        fix_reloads,
    )
    from byoc.placement._form_regions import find_components
    from byoc.placement._hard_limits import Cost, count_transferred_bytes, evaluate, repair_labels
    from byoc.placement._list_scheduling import ListScheduler
    from byoc.placement._perturbation import Perturbation, PerturbedDecision, Sensitivity, perturb_costs
    from byoc.placement._problem import UNLIMITED, Fusion, Ints, Occupancy, Problem, Regret
    from byoc.placement._solve import (
        find_violation,
        normalize_placement,
        order_canonically,
        reorder_placement,
        run_strategy,
        solve_problem,
    )
    from byoc.placement._strategy import (
        ALL_REQUIREMENTS,
        CHEAPER_ON_HOST,
        LAUNCH,
        Measure,
        NoPlacementError,
        Placement,
        Robust,
        Strategy,
        describe_ignored,
        limit_time,
        strategy_display_name,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
