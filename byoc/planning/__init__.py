"""The plan of a model: units, placement and regions of each graph, and outlining them."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.planning._benchmark_solution import place, solve_instance
    from byoc.planning._boundary_traffic import SentTensor, find_sent_tensors
    from byoc.planning._break_evens import find_break_evens
    from byoc.planning._clean_models import choose_clean_passes, clean_for_targets
    from byoc.planning._cost_model_check import find_unknown_names
    from byoc.planning._graph_placement import build_main_problem, name_units, plan_graphs
    from byoc.planning._graph_plan import GraphPlan, PlannedRegion
    from byoc.planning._graph_units import (
        GraphUnits,
        annotate_graphs,
        find_graphs,
        group_graphs,
        load_units,
        split_pinned_units,
    )
    from byoc.planning._node_annotations import find_unmatched_annotations, read_annotations
    from byoc.planning._outlining import (
        computes_otherwise,
        convert_boundaries,
        cut_regions,
        outline_regions,
    )
    from byoc.planning._perturbed_plan import CostDoubt, DoubtfulUnit, PerturbedPlan
    from byoc.planning._plan_data import (
        WIDE,
        BreakEven,
        LoweredPrecision,
        PartitionedModel,
        Plan,
        PreciseUnit,
        PredictionAtSizes,
        QuantizedWeight,
        RefusedRegion,
        TradePoint,
        WhatIf,
    )
    from byoc.planning._plan_settings import PlanSettings, apply_rule_parameters, read_weight_layout
    from byoc.planning._problem_file import format_problem
    from byoc.planning._refusals import RefusalHistory
    from byoc.planning._region_names import name_regions
    from byoc.planning._region_neighbours import RegionNeighbour, find_neighbours
    from byoc.planning._saved_placement import SavedPlacement, read_placement, save_placement
    from byoc.planning._size_predictions import predict_at_ends, price_placement
    from byoc.planning._what_ifs import estimate_gains
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
