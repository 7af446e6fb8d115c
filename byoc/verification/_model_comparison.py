"""The comparison of a rewritten model or region with what it was before, on plain onnxruntime."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from byoc.codegen import Region
from byoc.errors import InputError
from byoc.model import RANDOM_OPERATORS, Model, is_onnx, walk_nodes
from byoc.onnxrt import INSTALL_HINT, has_runtime
from byoc.samples import Sample, list_samples
from byoc.verification._bundle_runs import Values
from byoc.verification._noise import NoiseGauge
from byoc.verification._output_error import OutputError
from byoc.verification._plain_models import open_original, open_region
from byoc.verification._quantization_noise import find_quantized_tensors, quantized_tensors_of
from byoc.verification._reaching import run_alone
from byoc.verification._region_verification import worst_errors
from byoc.verification._thresholds import DEFAULT_THRESHOLDS, Thresholds
from byoc.verification._verification_result import RewriteComparison

# Of the values made for a region so many are compared.
_REGION_SAMPLES = 2
_RANDOM = "the model is random: its outputs differ from one run to the next"


def compare_models(
    before: Model,
    after: Model,
    given: Sequence[Sample] = (),
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
) -> RewriteComparison:
    """Compare a model with its rewritten form on samples, the user's (`given`) or made ones.

    A rewritten model that does not run has an error of its first output.
    """
    if not has_runtime():
        return RewriteComparison(not_compared=INSTALL_HINT)
    try:
        samples = [sample.inputs for sample in given or list_samples(before)]
        plain = open_original(before.proto, before)
        expected = [(inputs, plain.run(inputs)) for inputs in samples]
        if _draws(before) and not _are_equal((wanted, plain.run(inputs)) for inputs, wanted in expected):
            return RewriteComparison(not_compared=_RANDOM)
    except InputError as error:
        return RewriteComparison(not_compared=f"the model does not run: {error}")
    quantized = find_quantized_tensors(before.proto)
    try:
        rewritten = open_original(after.proto, after)
        actual = [rewritten.run(inputs) for inputs in samples]
    except InputError as error:
        return _make_failure(before.proto.graph.output[0].name, len(samples), error)
    errors = [
        NoiseGauge(before.proto, before.folder, inputs, wanted).compare(got, thresholds, quantized)
        for (inputs, wanted), got in zip(expected, actual, strict=True)
    ]
    pairs = zip((wanted for _, wanted in expected), actual, strict=True)
    return RewriteComparison(worst_errors(errors), len(samples), _are_equal(pairs))


def _draws(model: Model) -> bool:
    """Return whether a model has random nodes."""
    functions = (each.node for each in model.proto.functions)
    scopes = (model.proto.graph.node, *functions)
    return any(
        is_onnx(node) and node.op_type in RANDOM_OPERATORS
        for scope in scopes
        for node in walk_nodes(scope)
    )


def compare_regions(
    before: Region, after: Region, thresholds: Thresholds = DEFAULT_THRESHOLDS
) -> RewriteComparison:
    """Compare a region with its rewritten form on random values of the types of its inputs."""
    if not has_runtime():
        return RewriteComparison(not_compared=INSTALL_HINT)
    samples = list(islice(run_alone(before), _REGION_SAMPLES))
    if not samples:
        return RewriteComparison(not_compared="the region runs on no random values")
    quantized = quantized_tensors_of(before)
    try:
        rewritten = open_region(after)
        actual = [rewritten.run(inputs) for inputs, _ in samples]
    except InputError as error:
        return _make_failure(before.model.graph.output[0].name, len(samples), error)
    folder = before.path.parent
    errors = [
        NoiseGauge(before.open_model, folder, inputs, wanted).compare(got, thresholds, quantized)
        for (inputs, wanted), got in zip(samples, actual, strict=True)
    ]
    pairs = zip((wanted for _, wanted in samples), actual, strict=True)
    return RewriteComparison(worst_errors(errors), len(samples), _are_equal(pairs))


def _make_failure(output: str, samples: int, error: InputError) -> RewriteComparison:
    infinite = float("inf")
    failed = OutputError(output, "", infinite, infinite, 0.0, f"cannot be computed: {error}")
    return RewriteComparison((failed,), samples)


def _are_equal(pairs: Iterable[tuple[Values, Values]]) -> bool:
    """Return whether all outputs have the same types, shapes and bits."""
    return all(_has_same_bits(wanted[name], got.get(name)) for wanted, got in pairs for name in wanted)


def _has_same_bits(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    if isinstance(one, list) or isinstance(other, list):
        same_kind = isinstance(one, list) and isinstance(other, list) and len(one) == len(other)
        return same_kind and all(map(_has_same_bits, one, other))
    first, second = np.asarray(one), np.asarray(other)
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    return (
        first.tolist() == second.tolist()
        if first.dtype.kind in "OUS"
        else first.tobytes() == second.tobytes()
    )
