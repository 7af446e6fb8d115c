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
    from byoc.placement._branch_and_cut import build_incumbent
    from byoc.placement._chain_split import find_device_classes, iterate_chain_splits, split_chain
    from byoc.placement._conditions import (
        Conditions,
        PlacedNetwork,
        add_split,
        describe_reloads,
        find_loaded_bytes,
        fix_reloads,
    )
    from byoc.placement._form_regions import (
        choose_fusions,
        find_components,
        form_regions,
        is_contraction_acyclic,
        schedule_launches,
    )
    from byoc.placement._hard_limits import (
        Cost,
        count_transferred_bytes,
        evaluate,
        find_broken_limit,
        measure_loads,
        repair_labels,
    )
    from byoc.placement._host_device_cut import HostDeviceCuts, LabelExpansion, find_persistent_sides
    from byoc.placement._list_scheduling import InferenceSchedule, ListScheduler
    from byoc.placement._load_covering import CoverSearch
    from byoc.placement._load_frontier import LoadFrontier, find_device_edges
    from byoc.placement._load_search import Cooling, LoadAnnealer, LoadState, PairSearch, coarsen
    from byoc.placement._lower_bounds import LagrangianRelaxation, bound_by_paths
    from byoc.placement._makespan_search import (
        SearchState,
        find_least_makespan,
        improve_state,
        least_load,
        makespan_lower_bound,
    )
    from byoc.placement._perturbation import (
        CostSamples,
        Perturbation,
        PerturbedDecision,
        Sensitivity,
        perturb_costs,
    )
    from byoc.placement._placement_enumeration import SpentBudgetError
    from byoc.placement._problem import UNLIMITED, Fusion, Ints, Occupancy, Problem, Regret
    from byoc.placement._solve import (
        find_violation,
        normalize_placement,
        order_canonically,
        reorder_placement,
        restore_order,
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
    from byoc.placement._unit_groups import UnitGroups
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
