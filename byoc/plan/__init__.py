"""Deciding: every stage from the model to the partitioned model, and what each of them gave."""

from byoc.plan.data import GraphPlan, InFloat, Lowered, Plan, PlannedRegion, Refused
from byoc.plan.facts import EVERYTHING, Facts, Split, nodes_at_fault
from byoc.plan.make import make_plan
from byoc.plan.saved import read_saved, saved_text
from byoc.plan.settings import Settings

__all__ = [
    "EVERYTHING",
    "Facts",
    "GraphPlan",
    "InFloat",
    "Lowered",
    "Plan",
    "PlannedRegion",
    "Refused",
    "Settings",
    "Split",
    "make_plan",
    "nodes_at_fault",
    "read_saved",
    "saved_text",
]
