"""Samples: inputs that a model runs with, made from what its inputs are, or read from files."""

from byoc.samples._input_sizes import suggest_sizes
from byoc.samples._input_values import sample_inputs
from byoc.samples._sample_search import ModelSample, NoSampleError, list_samples, model_samples
