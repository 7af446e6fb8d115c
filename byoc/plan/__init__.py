"""Planning: from an annotated model to regions, and all that is known of them."""

from byoc.plan._graph_placement import plan_graphs
from byoc.plan._graph_units import GraphUnits, annotate_graphs, group_graphs
from byoc.plan._outlining import convert_boundaries, name_regions, outline_regions
from byoc.plan._refusals import KnownLimits, RefusalHistory
from byoc.plan.data import GraphPlan, InFloat, Lowered, Plan, PlannedRegion, Refused
from byoc.plan.saved import read_saved, saved_text
from byoc.plan.settings import Settings
from byoc.plan.whatif import what_ifs

__all__ = [
    "GraphPlan",
    "GraphUnits",
    "InFloat",
    "KnownLimits",
    "Lowered",
    "Plan",
    "PlannedRegion",
    "RefusalHistory",
    "Refused",
    "Settings",
    "annotate_graphs",
    "convert_boundaries",
    "group_graphs",
    "name_regions",
    "outline_regions",
    "plan_graphs",
    "read_saved",
    "saved_text",
    "what_ifs",
]
