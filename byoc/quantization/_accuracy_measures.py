"""Runs of a model on samples, and the accuracy of its outputs against those expected."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, ValueInfoProto

from byoc.model import VIEW_OPERATORS, GraphIndex, Model, copy_without, get_stated_attributes, is_onnx
from byoc.numerics import compute_powers, compute_same_class_share, convert_to_db
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.quantization._precision import KeptAccuracy

SampleValues = Mapping[str, Any]
"""The inputs or the outputs of a sample, by name."""


def run_samples(proto: ModelProto, model: Model, samples: Iterable[SampleValues]) -> list[SampleValues]:
    """Run a model, or one made of it, on some samples, without optimizations; return the outputs."""
    with without_optimizations():
        session = open_session(proto, model.folder)
    return [run_session(session, sample) for sample in samples]


def measure_accuracy(expected: Sequence[SampleValues], actual: Sequence[SampleValues]) -> KeptAccuracy:
    """Return the accuracy of outputs against those expected, sample by sample; only floats count."""
    ratios, classes = [np.inf], [1.0]
    for name in find_float_outputs(expected):
        pairs = [(one[name], other[name]) for one, other in zip(expected, actual, strict=True)]
        signal, noise = np.sum([compute_powers(*pair) for pair in pairs], axis=0)
        ratios.append(convert_to_db(float(signal), float(noise)))
        classes.append(float(np.mean([compute_same_class_share(*pair) for pair in pairs])))
    known = [share for share in classes if not np.isnan(share)]
    noises = tuple(float(10 ** (-ratio / 10)) for ratio in ratios[1:])
    return KeptAccuracy(float(np.min(ratios)), min(known), noises)


def find_float_outputs(expected: Sequence[SampleValues]) -> tuple[str, ...]:
    """Return the outputs that are tensors of floats."""
    return tuple(
        name
        for name, value in (expected[0] if expected else {}).items()
        if isinstance(value, np.ndarray) and value.dtype.kind == "f"
    )


def measure_noise_by_sample(
    expected: Sequence[SampleValues], actual: Sequence[SampleValues]
) -> NDArray[np.float64]:
    """Return the noise of each float output in each sample, `[samples, outputs]`.

    It is the power of the error, as a share of the mean power of the output's signal in a sample.
    """
    if not expected:
        return np.zeros((0, 0))
    names = find_float_outputs(expected)
    powers = np.asarray(
        [
            [compute_powers(one[name], other[name]) for name in names]
            for one, other in zip(expected, actual, strict=True)
        ]
    ).reshape(len(expected), -1, 2)
    signals = powers[..., 0].sum(axis=0) / len(expected)
    return np.asarray(powers[..., 1] / np.maximum(signals, 1e-30))


# Logits of class probabilities: what a Softmax at the end of a network reads.
#
# Where one class is sure, its probability hides the noise before it: two variants that are equally
# right on a few samples may be far apart on one whose class is less sure. The logits show that on
# any sample.

# Operators behind a Softmax that leave its classes as they are.
_PASSED = (VIEW_OPERATORS | {"QuantizeLinear", "DequantizeLinear"}) - {"Concat"}
_LAST_AXIS = -1  # of a Softmax, from operator set 13 on


def find_logits(index: GraphIndex) -> dict[str, tuple[str, int]]:
    """Return the logits of each output that a Softmax makes: the tensor, and the axis of its classes.

    Views, and a rounding to integers, may stand between the Softmax and the output.
    """
    found = {}
    for output in index.outputs:
        name = output
        while (number := index.producers.get(name)) is not None and is_onnx(index.nodes[number]):
            node = index.nodes[number]
            if node.op_type == "Softmax":
                found[output] = node.input[0], get_stated_attributes(node).get("axis", _LAST_AXIS)
            if node.op_type not in _PASSED:
                break
            name = node.input[0]
    return found


def run_with_logits(model: Model, samples: Sequence[SampleValues]) -> list[SampleValues]:
    """Run a model on samples; return its outputs, and the logits of those that a Softmax makes.

    Those of an output `y` are called `logits of y`; the mean of the classes is taken off, which a
    Softmax does not see.
    """
    logits = find_logits(model.index)
    proto = copy_without(model.proto)
    new = {name for name, _ in logits.values()}.difference(model.index.outputs)
    proto.graph.output.extend(ValueInfoProto(name=name) for name in sorted(new))
    found: list[SampleValues] = []
    for values in run_samples(proto, model, samples):
        outputs = {name: value for name, value in values.items() if name not in new}
        for output, (name, axis) in logits.items():
            value = np.asarray(values[name])
            outputs[f"logits of {output}"] = value - value.mean(axis=axis, keepdims=True)
        found.append(outputs)
    return found
