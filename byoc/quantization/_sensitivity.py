"""Sensitivity of quantized units: the noise at the outputs when one unit alone is quantized.

Where errors are small they hardly depend on one another, and the noise powers of units add up to about
that of all of them. The noise of a unit is that of its weights and of the tensors that it reads.
Quantizing its result counts for the quantized units that read it, and for the unit itself if something
in floating point reads it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper

from byoc.model import (
    TENSOR_KEY,
    WEIGHT_KEY,
    Model,
    copy_without,
    get_metadata,
    get_node_name,
    is_dequantize,
    is_inserted,
    is_quantize,
    list_reads,
)
from byoc.numerics import compute_powers, compute_same_class_share, convert_to_db
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.support import report_step

SampleValues = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class KeptAccuracy:
    """The accuracy that a variant of a model keeps, over some samples.

    `signal_to_noise` (dB) is that of the worst output, with the powers of all samples added up;
    `same_class` the share of rows (all axes but the last), of the worst output, whose largest element is
    where it was. `noises` has the power of the error of each output over that of its signal.
    """

    signal_to_noise: float
    same_class: float
    noises: tuple[float, ...] = field(default=(), compare=False)

    @property
    def noise(self) -> float:
        """The power of the error over that of the signal."""
        return float(10 ** (-self.signal_to_noise / 10))


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


def measure_sensitivities(
    quantized: Model,
    units: Mapping[str, Sequence[str]],
    expected: Sequence[SampleValues],
    samples: Sequence[SampleValues],
) -> dict[str, KeptAccuracy]:
    """Return for each unit the accuracy with it alone quantized.

    `units` have the names of their nodes; `expected` is what the float model gives for the samples.
    """
    found = {}
    every = {node for nodes in units.values() for node in nodes}
    for number, (name, nodes) in enumerate(units.items(), 1):
        report_step(f"sensitivity of unit {number} of {len(units)}")
        variant = quantize_only(quantized.proto, set(nodes), every)
        found[name] = measure_accuracy(expected, run_samples(variant, quantized, samples))
    return found


def measure_roundings(
    quantized: Model,
    units: Mapping[str, Sequence[str]],
    expected: Sequence[SampleValues],
    samples: Sequence[SampleValues],
) -> dict[str, KeptAccuracy]:
    """Return for each quantized tensor of activations the accuracy with it alone rounded.

    Arguments are those of `measure_sensitivities`.
    """
    every = {node for nodes in units.values() for node in nodes}
    pairs = (node for node in quantized.proto.graph.node if is_quantize(node) and is_inserted(node))
    names = dict.fromkeys(get_metadata(node, TENSOR_KEY) for node in pairs)
    found = {}
    for number, name in enumerate(names, 1):
        report_step(f"sensitivity of tensor {number} of {len(names)}")
        variant = quantize_only(quantized.proto, (), every, name)
        found[name] = measure_accuracy(expected, run_samples(variant, quantized, samples))
    return found


def quantize_only(
    proto: ModelProto, nodes: Collection[str], every: Collection[str], tensor: str | None = None
) -> ModelProto:
    """Return a quantized model in which all nodes but those named compute in floating point again.

    `every` names the nodes of all quantized units. A node without a name goes by its first output.
    `tensor` is rounded for all that read it.
    """
    makers = {name: node for node in proto.graph.node for name in node.output}
    read = {
        name for node in proto.graph.node if _name_node(node) not in every for name in list_reads(node)
    }
    read.update(value.name for value in proto.graph.output)
    result = copy_without(proto, "node")
    rewritten: list[NodeProto] = []
    for node in proto.graph.node:
        if is_inserted(node) and is_quantize(node):
            continue
        if is_inserted(node) and is_dequantize(node):
            if get_metadata(node, WEIGHT_KEY):
                continue  # who reads it gets the weight itself: kernels differ for what is constant
            source = makers[node.input[0]].input[0]
            made = node.output[0] in read and source in makers and _name_node(makers[source]) in nodes
            if made or get_metadata(node, TENSOR_KEY) == tensor:
                rewritten += (makers[node.input[0]], node)
            else:
                rewritten.append(helper.make_node("Identity", [source], [node.output[0]]))
            continue
        changed = deepcopy(node)
        for position, name in enumerate(node.input):
            maker = makers.get(name)
            if maker is None or not is_inserted(maker) or not is_dequantize(maker):
                continue
            if _name_node(node) in nodes:
                rewritten += _copy_pair(maker, makers, f"{node.output[0]}_{position}")
                changed.input[position] = rewritten[-1].output[0]
            elif get_metadata(maker, WEIGHT_KEY):
                changed.input[position] = get_metadata(maker, WEIGHT_KEY)
        rewritten.append(changed)
    result.graph.node.extend(rewritten)
    return result


def _name_node(node: NodeProto) -> str:
    """Return the name of a node among units; empty for a node put in by byoc, which is in none."""
    return "" if is_inserted(node) else get_node_name(node)


def _copy_pair(node: NodeProto, makers: Mapping[str, NodeProto], name: str) -> Iterable[NodeProto]:
    """Yield copies of a DequantizeLinear of ours and the QuantizeLinear before it, for one reader."""
    copy = deepcopy(node)
    copy.name = copy.output[0] = f"{name}_only"
    before = makers.get(node.input[0])
    if before is not None:
        first = deepcopy(before)
        first.name = first.output[0] = copy.input[0] = f"{name}_only_q"
        yield first
    yield copy


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
