"""Planning: from an annotated model to regions, and all that is known of them."""

from byoc.plan._graph_placement import plan_graphs
from byoc.plan._graph_units import GraphUnits, annotate_graphs, group_graphs
from byoc.plan._outlining import convert_boundaries, name_regions, outline_regions
from byoc.plan._refusals import KnownLimits, RefusalHistory
from byoc.plan.data import GraphPlan, FloatUnit, LoweredPrecision, Plan, PlannedRegion, RefusedRegion
from byoc.plan.saved import read_placement, format_placement
from byoc.plan.settings import PlanSettings
from byoc.plan.whatif import estimate_gains

__all__ = [
    "GraphPlan",
    "GraphUnits",
    "FloatUnit",
    "KnownLimits",
    "LoweredPrecision",
    "Plan",
    "PlannedRegion",
    "RefusalHistory",
    "RefusedRegion",
    "PlanSettings",
    "annotate_graphs",
    "convert_boundaries",
    "group_graphs",
    "name_regions",
    "outline_regions",
    "plan_graphs",
    "read_placement",
    "format_placement",
    "estimate_gains",
]
