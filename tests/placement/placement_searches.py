"""The searches that strategies call; no other room uses them, and tests ask each alone."""

from byoc.placement._branch_and_cut import (
    build_incumbent,
)
from byoc.placement._chain_split import (
    find_device_classes,
    iterate_chain_splits,
    split_chain,
)
from byoc.placement._form_regions import (
    choose_fusions,
    form_regions,
    is_contraction_acyclic,
    schedule_launches,
)
from byoc.placement._hard_limits import (
    find_broken_limit,
    measure_loads,
)
from byoc.placement._host_device_cut import (
    HostDeviceCuts,
    LabelExpansion,
    find_persistent_sides,
)
from byoc.placement._list_scheduling import (
    InferenceSchedule,
)
from byoc.placement._load_covering import (
    CoverSearch,
)
from byoc.placement._load_frontier import (
    LoadFrontier,
    find_device_edges,
)
from byoc.placement._load_search import (
    Cooling,
    LoadAnnealer,
    LoadState,
    PairSearch,
    coarsen,
)
from byoc.placement._lower_bounds import (
    LagrangianRelaxation,
    bound_by_paths,
)
from byoc.placement._makespan_search import (
    SearchState,
    find_least_makespan,
    improve_state,
    least_load,
    makespan_lower_bound,
)
from byoc.placement._perturbation import (
    CostSamples,
)
from byoc.placement._placement_enumeration import (
    SpentBudgetError,
)
from byoc.placement._solve import (
    restore_order,
)
from byoc.placement._unit_groups import (
    UnitGroups,
)

__all__ = [
    "Cooling",
    "CostSamples",
    "CoverSearch",
    "HostDeviceCuts",
    "InferenceSchedule",
    "LabelExpansion",
    "LagrangianRelaxation",
    "LoadAnnealer",
    "LoadFrontier",
    "LoadState",
    "PairSearch",
    "SearchState",
    "SpentBudgetError",
    "UnitGroups",
    "bound_by_paths",
    "build_incumbent",
    "choose_fusions",
    "coarsen",
    "find_broken_limit",
    "find_device_classes",
    "find_device_edges",
    "find_least_makespan",
    "find_persistent_sides",
    "form_regions",
    "improve_state",
    "is_contraction_acyclic",
    "iterate_chain_splits",
    "least_load",
    "makespan_lower_bound",
    "measure_loads",
    "restore_order",
    "schedule_launches",
    "split_chain",
]
