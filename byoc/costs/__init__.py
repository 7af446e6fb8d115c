"""Costs in seconds: work counted from shapes, and cost models that convert it to time."""
