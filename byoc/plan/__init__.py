"""Deciding: every stage from the model to the partitioned model, and what each of them gave."""

from byoc.plan.data import GraphPlan, InFloat, Lowered, Plan, PlannedRegion
from byoc.plan.make import make_plan
from byoc.plan.saved import read_saved, saved_text
from byoc.plan.settings import Settings

__all__ = [
    "GraphPlan",
    "InFloat",
    "Lowered",
    "Plan",
    "PlannedRegion",
    "Settings",
    "make_plan",
    "read_saved",
    "saved_text",
]
