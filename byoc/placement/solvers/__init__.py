"""Bring your own codegen: cut an ONNX model between a host CPU and accelerators."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.placement.solvers._branch_and_cut import (
        OPTIMALITY_GAP,
        build_incumbent,
        find_incumbent,
        find_nearest_placement,
        select_best,
        solve_exactly,
    )
    from byoc.placement.solvers._chain_split import (
        find_device_classes,
        iterate_chain_splits,
        split_chain,
    )
    from byoc.placement.solvers._host_device_cut import (
        HostDeviceCuts,
        LabelExpansion,
        find_persistent_sides,
    )
    from byoc.placement.solvers._list_scheduling import (
        EarliestFinish,
        InferenceSchedule,
        ListScheduler,
        renumber_regions,
    )
    from byoc.placement.solvers._load_covering import CoverSearch
    from byoc.placement.solvers._load_frontier import LoadFrontier, find_device_edges, order_narrowly
    from byoc.placement.solvers._load_search import Cooling, LoadAnnealer, LoadState, PairSearch, coarsen
    from byoc.placement.solvers._lower_bounds import (
        LagrangianRelaxation,
        bound_by_paths,
        has_multipliers,
    )
    from byoc.placement.solvers._makespan_search import (
        SearchState,
        find_least_makespan,
        improve_state,
        keeps_limits,
        least_load,
        makespan_lower_bound,
    )
    from byoc.placement.solvers._placement_enumeration import (
        SpentBudgetError,
        count_labels,
        do_regions_matter,
        enumerate_labels,
        find_best_regions,
        find_least_load,
        sum_execution,
        sum_transfers,
    )
    from byoc.placement.solvers._placement_milp import solve_within
    from byoc.placement.solvers._unit_groups import (
        ForestSolver,
        Neighbours,
        UnitGroups,
        build_induced_forest,
        build_spanning_forest,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
