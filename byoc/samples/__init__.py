"""Samples: inputs that a model runs with, made from what its inputs are, or read from files."""

from byoc.samples._input_sizes import suggest_sizes
