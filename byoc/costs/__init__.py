"""Costs in seconds: work counted from shapes, and cost models that turn it into time."""
