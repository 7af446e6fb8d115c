"""A region's quantized operations written as an ONNX model again, from what they say alone."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from byoc.codegen import Operation, Quantization, Region, read_region


def make_region(proto: onnx.ModelProto, folder: Path) -> Region:
    """Return a model as a region whose large constants are in a file beside it."""
    path = folder / "acc_0.onnx"
    stored = deepcopy(proto)  # saving changes it
    onnx.save(stored, path, save_as_external_data=True, location="weights.bin", size_threshold=64)
    return read_region(path, "acc_0", "acc")


def rebuild(region: Region) -> onnx.ModelProto:
    """Return a model of a region's quantized operations; composites as the operations inside.

    Each operation dequantizes its operands by `input_quantization`, is computed, and is quantized by
    `output_quantization`; the integers are then clamped to `output_limits`.
    """
    builder = _Builder(region)
    for operation in region.operations(quantized=True, boundary=True):
        for each in operation.inner or (operation,):
            builder.add(each)
    model = region.model
    graph = helper.make_graph(
        builder.nodes, "rebuilt", model.graph.input, model.graph.output, builder.constants
    )
    known = [each for each in model.opset_import if not each.domain.startswith("byoc.")]
    return helper.make_model(graph, opset_imports=known, ir_version=max(model.ir_version, 8))


class _Builder:
    def __init__(self, region: Region) -> None:
        self.region = region
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.stored: set[str] = set()

    def add(self, operation: Operation) -> None:
        """Add the nodes of an operation."""
        for name in operation.constants:
            if name not in self.stored:
                self.stored.add(name)
                self.constants.append(numpy_helper.from_array(self.region.constant(name, ""), name))
        node = deepcopy(operation.node)
        inputs = self._dequantized(operation)
        if operation.op in ("QuantizeLinear", "DequantizeLinear") and not operation.domain:
            quantization = (*operation.output_quantization, *operation.input_quantization)
            if any(quantization):
                self._add_quantization(operation, inputs)
                return
        node.input[:] = inputs
        ends = list(self._quantized(operation))
        node.output[:] = [start for start, _ in ends]
        self.nodes.append(node)
        self.nodes += [each for _, behind in ends for each in behind]

    def _add_quantization(self, operation: Operation, inputs: list[str]) -> None:
        """Add an operation that only quantizes or only dequantizes, or does one after the other."""
        if operation.op == "DequantizeLinear":
            self.nodes.append(helper.make_node("Identity", inputs, operation.outputs))
            return
        ((start, behind),) = self._quantized(operation)
        self.nodes.append(helper.make_node("Identity", inputs, [start]))
        self.nodes += behind

    def _dequantized(self, operation: Operation) -> list[str]:
        names = []
        for name, quantization in zip(operation.inputs, operation.input_quantization, strict=True):
            if quantization is not None:
                made = f"{name}/real/{len(self.nodes)}"
                self.nodes.append(self._node("DequantizeLinear", name, made, quantization))
                name = made  # noqa: PLW2901
            names.append(name)
        return names

    def _quantized(self, operation: Operation) -> Iterator[tuple[str, list[NodeProto]]]:
        """Yield for each output the tensor that the node makes, and the nodes behind it."""
        for name, quantization, limits in zip(
            operation.outputs, operation.output_quantization, operation.output_limits, strict=True
        ):
            if quantization is None:
                yield name, []
                continue
            nodes = [self._node("QuantizeLinear", f"{name}/real", f"{name}/free", quantization)]
            if limits is None:
                nodes[0].output[0] = name
            else:
                nodes += self._clamp(name, limits, quantization)
            yield f"{name}/real", nodes

    def _clamp(
        self, name: str, limits: tuple[int, int], quantization: Quantization
    ) -> Iterator[NodeProto]:
        """Yield nodes that clamp integers, in int32, which onnxruntime has Max and Min for."""
        kind = helper.np_dtype_to_tensor_dtype(quantization.zero_point.dtype)
        yield helper.make_node("Cast", [f"{name}/free"], [f"{name}/wide"], to=TensorProto.INT32)
        low, high = (self._constant(f"{name}/{limit}", np.int32(limit)) for limit in limits)
        yield helper.make_node("Max", [f"{name}/wide", low], [f"{name}/low"])
        yield helper.make_node("Min", [f"{name}/low", high], [f"{name}/clamped"])
        yield helper.make_node("Cast", [f"{name}/clamped"], [name], to=kind)

    def _node(self, op: str, name: str, made: str, quantization: Quantization) -> NodeProto:
        prefix = f"{made}/{op}"
        scale = self._constant(f"{prefix}/scale", quantization.scale)
        point = self._constant(f"{prefix}/point", quantization.zero_point)
        more: dict[str, Any] = {} if quantization.axis is None else {"axis": quantization.axis}
        if quantization.block_size:
            more["block_size"] = quantization.block_size
        return helper.make_node(op, [name, scale, point], [made], **more)

    def _constant(self, name: str, value: Any) -> str:
        if name not in self.stored:
            self.stored.add(name)
            self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name
