"""The plan of a model: units, placement and regions of each graph, what-ifs, and benchmark instances."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.planning._benchmark_instance import PlacementInstance, parse_instance, read_instance
    from byoc.planning._benchmark_solution import place, solve_instance
    from byoc.planning._break_evens import (
        ActionFinder,
        SentTensor,
        edit_targets,
        find_break_evens,
        find_sent_tensors,
        get_integer_dtype,
        is_float_for_integers,
        shorten_search,
        takes_integers_alone,
        takes_quantized,
    )
    from byoc.planning._cleaned_graphs import (
        GraphUnits,
        annotate_graphs,
        choose_clean_passes,
        clean_for_targets,
        find_graphs,
        find_sizes,
        group_graphs,
        load_units,
        split_pinned_units,
    )
    from byoc.planning._graph_placement import build_main_problem, name_units, plan_graphs
    from byoc.planning._graph_plan import (
        CostDoubt,
        GraphPlan,
        PlannedRegion,
        RegionMemory,
        explain_form_change,
        find_neighbours,
    )
    from byoc.planning._memory_fit import measure_memory
    from byoc.planning._node_parts import (
        LEAST_TAKEN,
        NodeSplitter,
        WholePrice,
        find_parts,
        find_unmatched_annotations,
        read_annotations,
        takes_float,
    )
    from byoc.planning._plan_data import (
        WIDE,
        Action,
        ActionKind,
        BreakEven,
        DoubtfulUnit,
        LoweredPrecision,
        PartitionedModel,
        PerturbedPlan,
        Plan,
        PreciseUnit,
        PredictionAtSizes,
        QuantizedWeight,
        RefusedRegion,
        RegionNeighbour,
        TradePoint,
        WhatIf,
    )
    from byoc.planning._plan_settings import (
        PlanSettings,
        RefusalHistory,
        apply_rule_parameters,
        find_unknown_names,
        read_requirements,
        read_weight_layout,
    )
    from byoc.planning._problem_file import format_problem
    from byoc.planning._saved_placement import (
        SavedPlacement,
        format_placement,
        read_placement,
        save_placement,
    )
    from byoc.planning._what_ifs import (
        LEAST_GAIN,
        estimate_gains,
        predict_at,
        predict_at_ends,
        price_placement,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
