"""What tests of quantization share: ranges by running, small models, and the way to a tidy one."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml
from helpers.cutting import planned
from helpers.ruling import make_target
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper, numpy_helper
from onnx.helper import make_node

from byoc.model import Model, copy_without, get_purpose, prepare_model, unshare_dequantize
from byoc.onnxrt import open_session, without_optimizations
from byoc.patterns import group_units
from byoc.placement import Strategy
from byoc.planning import Plan
from byoc.quantization import (
    ChosenPrecision,
    GivenQuantization,
    Precision,
    QuantizedModel,
    Range,
    Ranges,
    choose_precision,
    quantize,
)
from byoc.rules import Target, annotate_graph
from byoc.verification import run_plain

SCHEME: dict[str, Any] = {
    "activations": {"dtype": ["int8", "uint8", "int16", "uint16"], "symmetric": False},
    "weights": {"dtype": "int8", "symmetric": True, "per_channel": True},
    "bias": {"dtype": "int32"},
}
OPS = ["Conv", "ConvTranspose", "Gemm", "MatMul", "Relu", "Add", "Mul", "Concat", "MaxPool", "Flatten"]
COMPOSITES = [
    {"name": "conv_add_relu", "pattern": "c = Conv(x, w, b?)\na = Add(c, z)\ny = Relu(a)"},
    {"name": "conv_relu", "pattern": "c = Conv(x, w, b?)\ny = Relu(c)"},
]


def target(text: str = "", ops: Sequence[Any] = OPS, **scheme: Any) -> Target:
    """Return a target that takes some operators in integers alone; `text` has more keys in YAML."""
    rules = [{"op": op, "quantized": True} if isinstance(op, str) else op for op in ops]
    content = {
        "target": "t",
        "cost_model": "dla",
        "dtype": "int8",
        "quantization": {**SCHEME, **scheme},
        "ops": rules,
        "composites": COMPOSITES,
        **(yaml.safe_load(text) or {}),
    }
    return make_target(content, "t.yaml")


def weights(seed: int, *shape: int) -> NDArray[np.float32]:
    """Return standard normal weights, scaled so that signals keep their size."""
    made = np.random.default_rng(seed).standard_normal(shape)
    return (made / np.sqrt(max(1, np.prod(shape[1:])))).astype(np.float32)


def built(  # noqa: PLR0917
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Sequence[int]],
    outputs: Mapping[str, Sequence[int]],
    stored: Mapping[str, NDArray[Any]],
    opset: int = 17,
    ir: int = 8,
) -> Model:
    """Return the checked float32 model of some nodes."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, 1, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, 1, s) for n, s in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in stored.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)
    return prepare_model(proto, "test")


def samples(model: Model, count: int = 4) -> list[dict[str, NDArray[np.float32]]]:
    """Return standard normal inputs."""
    made = []
    for seed in range(count):
        generator = np.random.default_rng(seed)
        made.append(
            {
                name: generator.standard_normal(model.index.types[name].shape).astype(np.float32)
                for name in model.index.inputs
            }
        )
    return made


def values(model: Model, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return every float tensor that a model computes, its inputs too."""
    index = model.index
    proto = copy_without(model.proto)
    for name in index.producers:
        known = index.types.get(name)
        if known and known.dtype == "float32" and name not in index.outputs:
            proto.graph.output.append(helper.make_value_info(name, index.type_protos[name]))
    return {**inputs, **run_plain(proto, model, inputs)}


def ranges(
    model: Model, given: Iterable[Mapping[str, Any]] | None = None, **more: GivenQuantization
) -> Ranges:
    """Return the least and greatest value of every tensor over some samples."""
    found: dict[str, Range | GivenQuantization] = {}
    for inputs in given if given is not None else samples(model):
        for name, value in values(model, inputs).items():
            if value.dtype == np.float32:
                old = found.get(name, Range(np.inf, -np.inf))
                assert isinstance(old, Range)
                found[name] = Range(min(old.low, float(value.min())), max(old.high, float(value.max())))
    return Ranges("min-max", 4, "normal", {**found, **more})


def quantize_on_data(
    model: Model, to: Target, data: Path | str, method: str | None = None, **more: Any
) -> ChosenPrecision:
    """Quantize a model on a folder of samples; `predict` returns the seconds of a model."""
    predict = more.pop("predict", None)
    return choose_precision(model, [to], Precision(data=data, method=method, **more), predict)


def texts(found: ChosenPrecision) -> list[str]:
    """Return what was done, in the notes on it."""
    return [note.text for note in found.notes]


def save(given: Sequence[Mapping[str, Any]], folder: Path) -> Path:
    """Write samples to a folder, and return it."""
    for number, sample in enumerate(given):
        np.savez(folder / f"{number}.npz", **sample)
    return folder


def snr(expected: NDArray[Any], actual: NDArray[Any]) -> float:
    """Return the signal-to-noise ratio in dB."""
    noise = float(((expected.astype(np.float64) - actual) ** 2).sum())
    signal = float((expected.astype(np.float64) ** 2).sum())
    return float(10 * np.log10(signal / noise)) if noise else np.inf


def node(model: Model, output: str) -> NodeProto:
    """Return the node that makes a tensor."""
    return model.index.nodes[model.index.producers[output]]


def stored(model: Model, name: str) -> NDArray[Any]:
    """Return an initializer's value."""
    return numpy_helper.to_array(model.index.initializers[name])


def form(model: Model, name: str) -> tuple[float, int, str]:
    """Return scale, zero point and dtype of an activation that is quantized, by its own name."""
    for one in model.index.nodes:
        told = {entry.key: entry.value for entry in one.metadata_props}
        if one.op_type == "QuantizeLinear" and told.get("byoc.tensor") == name:
            scale, point = (stored(model, read) for read in one.input[1:])
            return float(scale), int(point), point.dtype.name
    raise KeyError(name)


def groups(model: Model, to: Target) -> dict[str, set[str]]:
    """Return the QDQ groups of a model: the name, and what is inside but borders."""
    index = unshare_dequantize(model).index
    found = {}
    for unit in group_units(index, to.patterns, annotate_graph(index, to)):
        if unit.kind == "qdq" and unit.verdict:
            inside = [index.nodes[i] for i in unit.nodes]
            found[unit.name] = {n.name for n in inside if not get_purpose(n)}
    return found


def tidied(model: Model, to: Target, strategy: Strategy) -> Plan:
    """Return a quantized model planned, outlined and bound, which is checked."""
    plan = planned(model, to, strategy)
    onnx.checker.check_model(plan.proto, full_check=True)
    return plan


def host(proto: ModelProto) -> list[str]:
    """Return the operators of the main graph."""
    return [n.op_type for n in proto.graph.node]


def call(proto: ModelProto, name: str = "t_0") -> NodeProto:
    """Return the node that calls a region."""
    return next(n for n in proto.graph.node if n.op_type == name)


def inside(proto: ModelProto, name: str = "t_0") -> list[str]:
    """Return the operators of a region, those of its composites by their names."""
    return [n.op_type for f in proto.functions if f.name == name for n in f.node]


def dtypes(proto: ModelProto, names: Iterable[str]) -> list[str]:
    """Return what onnxruntime finds to be the types of tensors of the main graph."""
    whole = copy_without(proto)
    given = {v.name for v in whole.graph.output}
    names = list(names)
    for name in names:
        if name not in given:
            whole.graph.output.append(onnx.ValueInfoProto(name=name))
    with without_optimizations():
        session = open_session(whole)
    found = {o.name: o.type for o in session.get_outputs()}
    return [found[name] for name in names]


__all__ = ["QuantizedModel", "quantize"]


def network(opset: int = 17, ir: int = 8) -> Model:
    """Return a small residual network: 7 convolutions, one depthwise, a pool, a Gemm."""
    nodes = [
        make_node("Conv", ["x", "w0", "b0"], ["c0"], "conv0", pads=[1, 1, 1, 1]),
        make_node("Relu", ["c0"], ["r0"], "relu0"),
        make_node("Conv", ["r0", "w1", "b1"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        make_node("Relu", ["c1"], ["r1"], "relu1"),
        make_node("Conv", ["r1", "w2"], ["c2"], "conv2", pads=[1, 1, 1, 1]),
        make_node("Add", ["c2", "r0"], ["a2"], "add2"),
        make_node("Relu", ["a2"], ["r2"], "relu2"),
        make_node("Conv", ["r2", "w3"], ["c3"], "conv3", group=16, pads=[1, 1, 1, 1]),
        make_node("Conv", ["r2", "w4", "b1"], ["c4"], "conv4"),
        make_node("Concat", ["c3", "c4"], ["k"], "concat", axis=1),
        make_node("MaxPool", ["k"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        make_node("Flatten", ["p"], ["f"], "flatten"),
        make_node("Gemm", ["f", "w5", "b5"], ["y"], "gemm", transB=1),
    ]
    tensors = {
        "w0": weights(0, 16, 3, 3, 3),
        "b0": weights(1, 16),
        "w1": weights(2, 16, 16, 3, 3),
        "b1": weights(3, 16),
        "w2": weights(4, 16, 16, 3, 3),
        "w3": weights(5, 16, 1, 3, 3),
        "w4": weights(6, 16, 16, 1, 1),
        "w5": weights(7, 10, 32 * 16),
        "b5": weights(8, 10),
    }
    return built(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 10]}, tensors, opset, ir)
