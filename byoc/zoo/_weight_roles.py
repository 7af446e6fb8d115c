"""The role of each weight, derived from the graph around it, and a distribution for that role.

The aim is a network whose signal keeps about unit variance from the image to the logits, however
deep it is, so that an error anywhere shows in the output. Names decide nothing here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod, sqrt

import onnx
from onnx import numpy_helper

from byoc.errors import InputError
from byoc.zoo._seeded_weights import UniformSpread

_NEAR_ZERO = UniformSpread(0.0, 0.1)
_NEAR_ONE = UniformSpread(1.0, 0.2)
_BY_USE = {
    ("Conv", 2): _NEAR_ZERO,
    ("Gemm", 2): _NEAR_ZERO,
    ("BatchNormalization", 1): _NEAR_ONE,
    ("BatchNormalization", 2): _NEAR_ZERO,
    ("BatchNormalization", 3): _NEAR_ZERO,
    ("BatchNormalization", 4): _NEAR_ONE,
    ("Mul", 0): _NEAR_ONE,
    ("Mul", 1): _NEAR_ONE,
    ("Add", 0): _NEAR_ZERO,
    ("Add", 1): _NEAR_ZERO,
}
_KERNELS = {("Conv", 1), ("Gemm", 1)}

_RESHAPING = {"Reshape", "Unsqueeze"}
_NORMALIZING = {"Add", "BatchNormalization", "Mul"}
# Ops whose output resembles their first input in scale.
_CARRIERS = _NORMALIZING | {
    "AveragePool",
    "Concat",
    "Dropout",
    "GlobalAveragePool",
    "LRN",
    "Reshape",
    "Transpose",
}

# Second moment of what comes out, for a unit normal distribution before the ReLU. Half of it is
# lost to the ReLU (He et al., "Delving deep into rectifiers", 2015); a MaxPool behind it takes most
# of that back, the more the less neighbours resemble each other: 0.9 suits these nine networks.
_POWERS = {"Relu": 0.5, "MaxPool": 0.9}
# Of a residual branch's power, what is added to the shortcut's: sixteen blocks in a row then
# multiply the power by less than ten, where branches of full power would make that thousands.
_BRANCH = 0.15


@dataclass(frozen=True)
class WeightGraph:
    """A graph as maps from tensor names to producers, consumers and integer values."""

    producer: Mapping[str, onnx.NodeProto]
    uses: Mapping[str, tuple[tuple[onnx.NodeProto, int], ...]]
    integers: Mapping[str, tuple[int, ...]]

    @classmethod
    def from_graph(cls, graph: onnx.GraphProto) -> "WeightGraph":
        """Index `graph`; `integers` holds its int64 initializers, the shapes to reshape to."""
        uses: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
        for node in graph.node:
            for position, name in enumerate(node.input):
                uses.setdefault(name, []).append((node, position))
        return cls(
            producer={name: node for node in graph.node for name in node.output if name},
            uses={name: tuple(found) for name, found in uses.items()},
            integers={
                tensor.name: tuple(numpy_helper.to_array(tensor).tolist())
                for tensor in graph.initializer
                if tensor.data_type == onnx.TensorProto.INT64
            },
        )


def choose_spread(weight: str, shape: tuple[int, ...], wiring: WeightGraph) -> UniformSpread:
    """Choose the distribution of the weight called `weight`.

    Raises `InputError` when the weight is used in a way for which no distribution is known.
    """
    node, position = wiring.uses[weight][0]
    while node.op_type in _RESHAPING and position == 0:
        if node.op_type == "Reshape":
            shape = wiring.integers[node.input[1]]
        node, position = wiring.uses[node.output[0]][0]
    use = (node.op_type, position)
    if use in _KERNELS:
        return UniformSpread(0.0, sqrt(3.0 * _compute_gain(node, wiring) / _count_fan_in(node, shape)))
    if use not in _BY_USE:
        raise InputError(f"zoo: {weight} is input {position} of {node.op_type}: no rule for its values")
    return _BY_USE[use]


def _count_fan_in(node: onnx.NodeProto, shape: tuple[int, ...]) -> int:
    """Count the products in one output value; a Conv kernel holds those of one group."""
    flags = {attribute.name: attribute.i for attribute in node.attribute}
    outputs = shape[1] if node.op_type == "Gemm" and not flags.get("transB", 0) else shape[0]
    return prod(shape) // outputs


def _compute_gain(node: onnx.NodeProto, wiring: WeightGraph) -> float:
    """Return the variance times fan-in of a kernel's values that suits its input and output."""
    return _compute_share(node.output[0], wiring) / _estimate_power(node.input[0], wiring)


def _estimate_power(tensor: str, wiring: WeightGraph) -> float:
    """Estimate the second moment of a tensor's values, given that kernels give a unit variance."""
    source = _find_source(tensor, wiring, _CARRIERS)
    if source is None or source.op_type not in _POWERS:
        return 1.0
    before = wiring.producer.get(source.input[0])
    if before is not None and before.op_type == "Sum":
        return 1.0  # a shortcut is positive already: the ReLU behind it takes little
    return _POWERS[source.op_type]


def _compute_share(tensor: str, wiring: WeightGraph) -> float:
    """Return the target variance of a kernel's output: below 1 where a Sum adds it to others."""
    users = wiring.uses.get(tensor, ())
    while len(users) == 1 and users[0][0].op_type in _NORMALIZING:
        users = wiring.uses.get(users[0][0].output[0], ())
    for user, _ in users:
        if user.op_type == "Sum":
            addends = [_find_source(name, wiring, _NORMALIZING) for name in user.input]
            fresh = all(addend is not None and addend.op_type == "Conv" for addend in addends)
            return 1.0 / len(addends) if fresh else _BRANCH
    return 1.0


def _find_source(tensor: str, wiring: WeightGraph, through: set[str]) -> onnx.NodeProto | None:
    """Return the producer of `tensor`, looking through the given operators; None at a graph input."""
    while (node := wiring.producer.get(tensor)) is not None and node.op_type in through:
        tensor = node.input[0]
    return node
