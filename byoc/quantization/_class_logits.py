"""Logits of class probabilities: what a Softmax at the end of a network reads.

Where one class is sure, its probability hides the noise before it: two variants that are equally right
on a few samples may be far apart on one whose class is less sure. The logits show that on any sample.
"""

from collections.abc import Sequence

import numpy as np
from onnx import ValueInfoProto

from byoc.model import VIEW_OPERATORS, GraphIndex, Model, copy_without, get_stated_attributes, is_onnx
from byoc.quantization._accuracy_measures import SampleValues, run_samples

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
