"""Deciding: every stage from the model to the partitioned model, and what each of them gave."""

from byoc.plan.data import GraphPlan, Plan, PlannedRegion
from byoc.plan.make import make_plan

__all__ = ["GraphPlan", "Plan", "PlannedRegion", "make_plan"]
