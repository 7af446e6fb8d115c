"""Models extended to output the tensors, or their extremes, that calibration observes.

Tensors inside the bodies of If, Loop and Scan cannot be outputs of a model, and are left out.
"""

from collections.abc import Collection, Iterator, Sequence

import onnx
from onnx import ModelProto, NodeProto, helper

from byoc.errors import InputError, suggest_nearest
from byoc.model import GraphIndex, build_node, copy_without
from byoc.quantization._arithmetic import is_depthwise
from byoc.quantization._channel_statistics import CHANNELS, add_channel_reductions
from byoc.quantization._coarse_tensors import has_fixed_range

FLOATS = ("float32", "float16")
EXTREMES = ("low", "high", "check", "size")
"""What is given out of each tensor in the first pass: `check` is 0 when all is finite, else NaN."""

_OPSET = 17  # of the operators added to a model that uses none of ONNX's own


def find_activations(index: GraphIndex) -> list[str]:
    """Return the tensors of the main graph that can be calibrated: floats that are not constant."""
    names_of = (name for node in index.nodes for name in node.output if name)
    return [name for name in (*index.inputs, *names_of) if not _find_obstacle(index, name)]


def check_tensors(index: GraphIndex, names: Sequence[str]) -> None:
    """Raise InputError for a tensor that cannot be calibrated, with the reason."""
    for name in names:
        objection = _find_obstacle(index, name)
        if objection:
            raise InputError(f"'{name}' cannot be calibrated: {objection}")


def _find_obstacle(index: GraphIndex, name: str) -> str:
    if name not in index.producers and name not in index.inputs and name not in index.initializers:
        inner = (graph for graph in index.walk() if graph is not index)
        if any(name in graph.producers or name in graph.inputs for graph in inner):
            return "it is inside the body of a node"
        return f"the model has no such tensor{suggest_nearest(name, [*index.inputs, *index.producers])}"
    if index.is_constant(name):
        return "it is a constant"
    kind = index.types.get(name)
    if kind is None:
        return "it is not a tensor, or its type is unknown"
    return "" if kind.dtype in FLOATS else f"it is of {kind.dtype}, not of {' or '.join(FLOATS)}"


def find_free_outputs(index: GraphIndex, tensors: Collection[str]) -> list[str]:
    """Return those tensors that are outputs of the model, and whose range no operator fixes."""
    return [
        name
        for name in index.outputs
        if name in tensors and name in index.producers and not has_fixed_range(index, name)
    ]


def count_channels(index: GraphIndex, tensors: Sequence[str]) -> dict[str, int]:
    """Return the number of channels of those tensors that a depthwise convolution reads.

    That is where a scale for each channel helps: no other channel makes up for one that is inexact.
    Channels whose number is not known are left out.
    """
    found = {}
    for name in tensors:
        readers = (index.nodes[number] for number in index.consumers.get(name, ()))
        for channels in (index.get_shape(name) or ())[CHANNELS : CHANNELS + 1]:
            if isinstance(channels, int) and any(is_depthwise(index, node) for node in readers):
                found[name] = channels
    return found


def add_extremes(
    index: GraphIndex,
    tensors: Sequence[str],
    by_channel: Collection[str] = (),
    whole: Sequence[str] = (),
) -> ModelProto:
    """Return a model that outputs the `EXTREMES` of each tensor, tensor after tensor.

    Behind these it outputs the least and the greatest values of the channels, `[C]` each, of the tensors
    `by_channel`, in the order of `tensors`. They are computed inside the model, so that it outputs only
    a few numbers and its memory use stays the same. The `whole` tensors come last, as they are.
    """
    result = _copy_without_outputs(index)
    prefix = _free_prefix(index)
    outputs_of_channels: list[str] = []
    for number, name in enumerate(tensors):
        names_of = {what: f"{prefix}{number}.{what}" for what in ("value", "zero", *EXTREMES)}
        # onnxruntime has no reductions of float16.
        cast = build_node("Cast", [name], [names_of["value"]], to=onnx.TensorProto.FLOAT)
        half = index.types[name].dtype == "float16"
        result.graph.node.extend([cast] if half else [])
        result.graph.node.extend(_make_reductions(names_of["value"] if half else name, names_of))
        result.graph.output.extend(onnx.ValueInfoProto(name=names_of[what]) for what in EXTREMES)
        if name in by_channel:
            value = names_of["value"] if half else name
            steps = [("ReduceMin", value), ("ReduceMax", value)]
            outputs_of_channels += add_channel_reductions(
                result, steps, index.get_rank(name) or 0, f"{prefix}{number}.channels"
            )
    last = (*outputs_of_channels, *whole)
    result.graph.output.extend(onnx.ValueInfoProto(name=name) for name in last)
    return result


def _make_reductions(value: str, names_of: dict[str, str]) -> Iterator[NodeProto]:
    yield build_node("ReduceMin", [value], [names_of["low"]], keepdims=0)
    yield build_node("ReduceMax", [value], [names_of["high"]], keepdims=0)
    # Neither of these says that there is a NaN; the difference is zero but for infinities and NaN.
    yield build_node("Sub", [value, value], [names_of["zero"]])
    yield build_node("ReduceSum", [names_of["zero"]], [names_of["check"]], keepdims=0)
    yield build_node("Size", [value], [names_of["size"]])


def add_outputs(index: GraphIndex, tensors: Sequence[str]) -> ModelProto:
    """Return a model that outputs the given tensors in that order."""
    result = _copy_without_outputs(index)
    prefix = _free_prefix(index)
    for number, name in enumerate(tensors):
        output = name
        if name not in index.producers:  # an input that is also an output is no good everywhere
            output = f"{prefix}{number}"
            result.graph.node.append(build_node("Identity", [name], [output]))
        result.graph.output.append(onnx.ValueInfoProto(name=output))
    return result


def _copy_without_outputs(index: GraphIndex) -> ModelProto:
    result = copy_without(index.proto, "output")
    if "" not in index.opsets:
        result.opset_import.append(helper.make_opsetid("", _OPSET))
    return result


def _free_prefix(index: GraphIndex) -> str:
    """Return a prefix that no name in the main graph begins with."""
    prefix = "byoc.calibrate."
    while any(
        name.startswith(prefix) for name in (*index.inputs, *index.producers, *index.stored_tensors)
    ):
        prefix += "_"
    return prefix
