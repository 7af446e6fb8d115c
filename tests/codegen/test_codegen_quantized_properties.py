"""Quantized operations of random graphs say all that these compute, with DequantizeLinear anywhere."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from helpers.quantized import feed
from helpers.support import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import NodeProto, helper, numpy_helper
from rebuilding import make_region, rebuild

from byoc.onnxrt import open_session, run_session, without_optimizations

SHAPE = [2, 3, 4]
UNARY = ("Relu", "Clip", "Sigmoid", "Neg", "Abs", "Identity")
BINARY = ("Add", "Sub", "Max", "Min", "Concat")
SCALES = (2**-6, 0.03, 0.11)


class GraphWriter:
    """Writes a graph of floats in which some tensors are quantized; `floats` are what can be read."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.nodes: list[NodeProto] = []
        self.stored: dict[str, Any] = {"low": np.float32(-0.4), "high": np.float32(0.9)}
        self.floats = ["x"]
        self.integers: list[str] = []

    def add_operation(self) -> None:
        """Add an operator on tensors so far, and perhaps one or two QuantizeLinear behind it."""
        op = self.draw(st.sampled_from(UNARY + BINARY))
        reads = [self.draw(st.sampled_from(self.floats)) for _ in range(2 if op in BINARY else 1)]
        made, result = f"t{len(self.nodes)}", f"u{len(self.nodes)}"
        if op == "Clip":
            reads += [self.draw(st.sampled_from(["", "low", "high"])) for _ in range(2)]
        attributes = {"axis": 1} if op == "Concat" else {}
        self.nodes.append(helper.make_node(op, reads, [made], f"n{made}", **attributes))
        if op == "Concat":  # all tensors have one shape
            self.nodes.append(helper.make_node("Slice", [made, "from", "to", "along"], [result]))
            self.stored |= {
                "from": np.array([1]),
                "to": np.array([1 + SHAPE[1]]),
                "along": np.array([1]),
            }
            made = result
        pairs = self.draw(st.sampled_from([0, 1, 1, 1, 2]))
        for _ in range(pairs):
            self._quantize(made)
        if not pairs or self.draw(st.integers(0, 3)) == 0:
            self.floats.append(made)

    def _quantize(self, name: str) -> None:
        number = len(self.nodes)
        dtype = self.draw(st.sampled_from([np.int8, np.uint8, np.int16]))
        point = self.draw(st.sampled_from([0, 3, 100]))
        per_axis = self.draw(st.integers(0, 4)) == 0
        scale = [self.draw(st.sampled_from(SCALES)) for _ in range(SHAPE[-1] if per_axis else 1)]
        values = np.array(scale, np.float32), np.full(len(scale), point, dtype)
        form = values if per_axis else tuple(each.reshape(()) for each in values)
        self.stored |= dict(zip((f"s{number}", f"z{number}"), form, strict=True))
        operands = [f"s{number}", f"z{number}"]
        quantized, real = f"q{number}", f"d{number}"
        axis = {"axis": -1} if per_axis else {}
        self.nodes += [
            helper.make_node("QuantizeLinear", [name, *operands], [quantized], **axis),
            helper.make_node("DequantizeLinear", [quantized, *operands], [real], **axis),
        ]
        self.floats.append(real)
        self.integers.append(quantized)

    def write(self) -> onnx.ModelProto:
        """Return the model; some floats and some integers are outputs."""
        names = [*self.floats[1:], *self.integers]
        count = min(len(names), 3)
        outputs = self.draw(st.lists(st.sampled_from(names), min_size=1, max_size=count, unique=True))
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, SHAPE)],
            [onnx.ValueInfoProto(name=name) for name in outputs],
            [numpy_helper.from_array(np.asarray(value), name) for name, value in self.stored.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        return onnx.shape_inference.infer_shapes(model)


@given(st.data())
@settings(max_examples=examples(120), deadline=None)
def test_random_graphs(data: st.DataObject) -> None:
    writer = GraphWriter(data.draw)
    for _ in range(data.draw(st.integers(1, 7))):
        writer.add_operation()
    model = writer.write()
    with tempfile.TemporaryDirectory() as folder:
        region = make_region(model, Path(folder))
        inputs = feed(model, 2)
        with without_optimizations():
            expected = run_session(open_session(model), inputs)
            found = run_session(open_session(rebuild(region)), inputs)
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)
        for operation in region.operations(quantized=True):
            named = zip(operation.inputs, operation.input_types, strict=True)
            assert all(kind is not None for name, kind in named if name)
            assert len(operation.input_quantization) == len(operation.inputs)
            assert len(operation.output_quantization) == len(operation.outputs)
            for kind, quantization, limits in zip(
                operation.output_types,
                operation.output_quantization,
                operation.output_limits,
                strict=True,
            ):
                assert (quantization is None) == (limits is None)
                assert quantization is None or (kind is not None and kind.dtype == quantization.dtype)
