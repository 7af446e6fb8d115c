"""Sensitivity of quantized units: the noise at the outputs when one unit alone is quantized.

Where errors are small they hardly depend on one another, and the noise powers of units add up to about
that of all of them. The noise of a unit is that of its weights and of the tensors that it reads.
Quantizing its result counts for the quantized units that read it, and for the unit itself if something
in floating point reads it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy

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
from byoc.quantization._accuracy_measures import (
    KeptAccuracy,
    SampleValues,
    measure_accuracy,
    run_samples,
)
from byoc.support import report_step


def measure_sensitivities(
    quantized: Model,
    units: Mapping[str, Sequence[str]],
    expected: Sequence[SampleValues],
    samples: Sequence[SampleValues],
) -> dict[str, KeptAccuracy]:
    """Return for each unit the accuracy with it alone quantized.

    `units` have the names of their nodes; `expected` are the float model's outputs of the samples.
    """
    every = {node for nodes in units.values() for node in nodes}
    found = {}
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
    inserted = (node for node in quantized.proto.graph.node if is_quantize(node) and is_inserted(node))
    names = dict.fromkeys(get_metadata(node, TENSOR_KEY) for node in inserted)
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
