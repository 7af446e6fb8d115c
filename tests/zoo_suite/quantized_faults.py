"""Planted faults in trained quantized networks against the noise of their outputs.

`python tests/zoo_suite/quantized_faults.py [MODEL ...]` plants faults in copies of each network, in its
first, its middle and its last quantized layer: a quarter of the rows and of the columns of the weights
are zero, the scale of the weights is off by a tenth, one channel's bias is dropped (that of the largest
magnitude). Outputs of each copy on plain onnxruntime are compared with those of the network as
`byoc verify` compares the outputs of a bundle, noise included. Printed are the error as a share of the
range (in units for integers), what is allowed, and whether the fault is found. With `--rules RULES` a
bundle of the right network is made and verified as well, and the same faults are planted in its regions,
each of which is then compared alone on what reaches it. The exit code is 1 where the right bundle does
not pass.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper

import byoc
from byoc.bundle import Bundle, open_bundle
from byoc.model import Model
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.samples import model_samples
from byoc.verification import (
    DEFAULT_THRESHOLDS,
    NoiseGauge,
    OutputError,
    RecordedRuns,
    compare_tensors,
    find_quantized_tensors,
    record_reference_runs,
    run_plain,
)
from byoc.verification._region_verification import compare_recorded

MODELS = ("khmercut_int8", "smart_turn_v3_qdq", "eff_word_net_qint8")
Array = np.ndarray[Any, Any]
Change = Callable[[Array], Array]

_WRONG_SCALE = np.float32(1.1)


@dataclass(frozen=True)
class Layer:
    """The initializers of a quantized layer: its weights, their scale, its bias where it has one."""

    weights: str
    scale: str
    bias: str


def find_layers(model: ModelProto) -> list[Layer]:
    """Return the layers whose 8-bit weights are stored, in order of execution."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    readers = {read: node for node in reversed(model.graph.node) for read in node.input}
    names = dict.fromkeys(
        name
        for node in model.graph.node
        for name in node.input
        if name in stored
        and stored[name].data_type in (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)
        and len(stored[name].dims) > 1
    )
    layers = []
    for name in names:
        node = readers[name]
        scale = (
            node.input[1] if node.op_type == "DequantizeLinear" else name.replace("_quantized", "_scale")
        )
        if scale in stored:
            layers.append(Layer(name, scale, _find_bias(model, readers, node)))
    return layers


def _find_bias(model: ModelProto, readers: dict[str, Any], node: Any) -> str:
    """Return the initializer of a layer's bias: the third input, or what is added to the product."""
    stored = {tensor.name for tensor in model.graph.initializer}
    makers = {made: maker for maker in model.graph.node for made in maker.output}
    for _ in range(5):
        follower = readers.get(node.output[0])
        if follower is None:
            return ""
        reads = follower.input[2:3] if follower.op_type in ("Conv", "Gemm") else follower.input
        for name in reads if follower.op_type in ("Conv", "Gemm", "Add") else ():
            source = makers[name].input[0] if name in makers and makers[name].input else name
            if source in stored and source != node.input[0]:
                return str(source)
        if follower.op_type == "Add":
            return ""
        node = follower
    return ""


def list_faults(model: ModelProto) -> Iterator[tuple[str, str, Change]]:
    """Yield faults: what each is, the initializer that it changes, and how."""
    layers = find_layers(model)
    chosen = {"first": layers[0], "middle": layers[len(layers) // 2], "last": layers[-1]}
    for place, layer in chosen.items():
        yield f"{place} | zeroed block", layer.weights, zero_block
        yield f"{place} | scale off by 10 %", layer.scale, enlarge
        if layer.bias:
            yield f"{place} | bias dropped", layer.bias, drop_largest


def enlarge(scale: Array) -> Array:
    """Return a scale that is larger by a tenth."""
    return scale * _WRONG_SCALE


def zero_block(weights: Array) -> Array:
    """Return weights of which a quarter of the first two extents is zero."""
    changed = weights.copy()
    rows, columns = (max(1, size // 4) for size in weights.shape[:2])
    changed[:rows, :columns] = 0
    return changed


def drop_largest(bias: Array) -> Array:
    """Return a bias whose element of the largest magnitude is zero."""
    changed = bias.copy()
    changed.reshape(-1)[np.argmax(np.abs(bias.astype(np.float64)))] = 0
    return changed


def change_tensor(model: ModelProto, name: str, change: Change) -> ModelProto:
    """Return a copy of a model with another initializer."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    tensor = next(each for each in copy.graph.initializer if each.name == name)
    array = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(change(array)).astype(array.dtype), name))
    return copy


def measure_outputs(model: Model) -> Iterator[str]:
    """Yield a line of the table for each fault, by the outputs of the network."""
    inputs = model_samples(model)
    expected = run_plain(model.proto, model, inputs)
    quantized = find_quantized_tensors(model.proto)
    gauge = NoiseGauge(model.proto, model.folder, inputs, expected)
    for fault, tensor, change in list_faults(model.proto):
        made = run_plain(change_tensor(model.proto, tensor, change), model, inputs)
        errors = compare_tensors(expected, made, DEFAULT_THRESHOLDS, quantized)
        found = gauge.allow(errors, made, DEFAULT_THRESHOLDS)
        worst = max(found, key=lambda error: (not error.within, error.relative))
        yield f"{fault} | outputs | {describe_error(worst)}"


def measure_regions(model: Model, bundle: Bundle) -> Iterator[str]:
    """Yield a line of the table for each fault in a region, by the region alone."""
    reached = record_reference_runs(bundle, model_samples(model))
    for _, region, _ in bundle.regions():
        proto = region.load(inline=True)
        stored = {tensor.name for tensor in proto.graph.initializer}
        for fault, tensor, change in list_faults(model.proto):
            if tensor not in stored or not reached[region.name].values:
                continue
            with without_optimizations():
                session = open_session(change_tensor(proto, tensor, change))
            given = reached[region.name].values[0][0]
            runs = RecordedRuns(1, [(given, run_session(session, given))])
            found = compare_recorded(region, runs, DEFAULT_THRESHOLDS).outputs
            worst = max(found, key=lambda error: (not error.within, error.relative))
            yield f"{fault} | {region.name} | {describe_error(worst)}"


def describe_error(error: OutputError) -> str:
    """Return the last columns of the table: the error, what is allowed and why, the verdict."""
    noise = (error.noise if error.measure == "units" else error.relative_noise) or 0.0
    size = error.absolute if error.measure == "units" else error.relative
    source = error.noise_source if noise > error.tolerance else "tolerance"
    verdict = "passes" if error.within else "found"
    return f"{size:.2g} | {max(error.tolerance, noise):.2g} | {source} | {verdict}"


def main() -> int:
    """Print the table, and return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--rules", action="append", default=[])
    asked = parser.parse_intermixed_args()
    failed = 0
    for name in asked.models:
        model = byoc.load_model(f"zoo:{name}")
        for line in measure_outputs(model):
            sys.stdout.write(f"| {name} | {line} |\n")
            sys.stdout.flush()
        for rules in asked.rules:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "b"
                result = byoc.partition(model, rules, output=path, strategy="all-supported", cache=False)
                for line in measure_regions(model, open_bundle(path)):
                    sys.stdout.write(f"| {name} | {line} |\n")
            passed = result.verification is not None and result.verification.passed
            failed += not passed
            regions = len(result.plan.regions)
            sys.stdout.write(f"{name} {rules}: {regions} regions, {'passes' if passed else 'FAILS'}\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
