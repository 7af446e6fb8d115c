"""Costs in seconds: work counted from shapes, and cost models that convert it to time."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.costs._cost_model import (
        FAMILIES,
        CostFile,
        CostModel,
        EstimatingCosts,
        HostLink,
        MeasuredMachine,
        Price,
        Task,
        Unknown,
    )
    from byoc.costs._graph_tasks import (
        Fallback,
        GraphTasks,
        Priced,
        build_tasks,
        with_link,
        with_parameters,
        with_seconds,
    )
    from byoc.costs._load_cost_model import (
        check_fallback,
        find_conditions,
        find_host_beside,
        find_margin,
        load_cost_model,
        load_device_costs,
        load_host_costs,
        price_reload,
        read_cost_file,
    )
    from byoc.costs._measured_costs import (
        CostTable,
        Linear,
        MeasuredWhole,
        Measurement,
        UnseenPrediction,
        fit_linear_model,
        fit_wholes,
        mean_factor,
        predict_unseen,
    )
    from byoc.costs._objective import (
        LATENCY,
        Objective,
        Policy,
        Within,
        objective_unit,
        parse_amount,
        parse_objective,
        parse_within,
    )
    from byoc.costs._price_query import (
        TripCount,
        can_partition_bodies,
        check_trips,
        count_trips,
        find_device_tasks,
        price_bodies,
        price_each_node,
        price_graph,
        price_launch,
        price_task,
        sum_host_seconds,
        transfer_prices,
    )
    from byoc.costs._roofline import Roofline
    from byoc.costs._unit_prices import (
        AlternativeComposite,
        BodyCost,
        CostSettings,
        GraphProblem,
        PlacementDevice,
        build_problem,
    )
    from byoc.costs._work import Work, is_counted
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
