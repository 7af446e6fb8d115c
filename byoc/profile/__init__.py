"""Measuring: what operators and regions take on this machine, and how good predictions are."""
