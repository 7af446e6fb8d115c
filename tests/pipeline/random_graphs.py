"""Random models for properties: convolutions, residuals, splits, constant chains, branches."""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_SHAPE = [1, 4, 3, 3]
_UNARY = ("Relu", "Sigmoid", "Abs", "Identity")
_BINARY = ("Add", "Mul", "Sub", "Sum")


class GraphMaker:
    """Builds a random DAG over tensors of one shape; the same seed gives the same model."""

    ir = 8
    opset = 17
    shape: Sequence[int | str] = _SHAPE

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._tensors = ["x0", "x1"]

    def model(self, size: int) -> onnx.ModelProto:
        """Return a model of about `size` nodes and one to four outputs."""
        while len(self._nodes) < size:
            self._step()
        made = [name for node in self._nodes for name in node.output if name in self._tensors]
        count = min(len(made), int(self._random.integers(1, 5)))
        outputs = [str(name) for name in self._random.choice(made, count, replace=False)]
        graph = helper.make_graph(
            self._nodes,
            "random",
            [self._value(name) for name in ("x0", "x1")],
            [self._value(name) for name in outputs],
            self._constants,
        )
        opset = helper.make_opsetid("", self.opset)
        return helper.make_model(graph, ir_version=self.ir, opset_imports=[opset])

    def _step(self) -> None:
        """Add what gives one tensor more."""
        self._random.choice(
            [self._unary, self._binary, self._conv, self._split, self._constant, self._branch],
            p=[0.2, 0.25, 0.3, 0.1, 0.1, 0.05],
        )()

    def _value(self, name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, self.shape)

    def _pick(self) -> str:
        return str(self._random.choice(self._tensors[-6:]))

    def _add(self, op: str, inputs: list[str], **attributes: object) -> str:
        output = f"t{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, inputs, [output], f"{op}_{output}", **attributes))
        return output

    def _weight(self, *shape: int) -> str:
        name = f"w{len(self._constants)}"
        values = self._random.standard_normal(shape).astype(np.float32) * 0.3
        self._constants.append(numpy_helper.from_array(values, name))
        return name

    def _unary(self) -> None:
        self._tensors.append(self._add(str(self._random.choice(_UNARY)), [self._pick()]))

    def _binary(self) -> None:
        op = str(self._random.choice(_BINARY))
        self._tensors.append(self._add(op, [self._pick(), self._pick()]))

    def _conv(self) -> None:
        kernel = int(self._random.choice([1, 3]))
        inputs = [self._pick(), self._weight(4, 4, kernel, kernel)]
        if self._random.random() < 0.5:
            inputs.append(self._weight(4))
        pad = kernel // 2
        tensor = self._add("Conv", inputs, kernel_shape=[kernel] * 2, pads=[pad] * 4)
        if self._random.random() < 0.5:
            variance = f"v{len(self._constants)}"
            self._constants.append(numpy_helper.from_array(np.ones(4, np.float32), variance))
            statistics = [self._weight(4), self._weight(4), self._weight(4), variance]
            tensor = self._add("BatchNormalization", [tensor, *statistics])
        if self._random.random() < 0.3:
            tensor = self._add("Add", [self._pick(), tensor])
        if self._random.random() < 0.6:
            tensor = self._add("Relu", [tensor])
        self._tensors.append(tensor)

    def _split(self) -> None:
        parts = [f"s{len(self._nodes)}_{i}" for i in range(2)]
        count = {"num_outputs": 2} if self.opset >= 18 else {}
        inputs, name = [self._pick()], f"Split_{parts[0]}"
        self._nodes.append(helper.make_node("Split", inputs, parts, name, axis=1, **count))
        self._tensors.append(self._add("Concat", parts[::-1], axis=1))

    def _constant(self) -> None:
        product = self._add("Mul", [self._weight(4, 1, 1), self._weight(1)])
        self._tensors.append(self._add("Add", [self._pick(), product]))

    def _branch(self) -> None:
        condition = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.array(self._random.random() < 0.5), condition))
        captured = self._pick()

        def body(op: str) -> onnx.GraphProto:
            name = f"{op}_{len(self._nodes)}"
            node = helper.make_node(op, [captured], [name])
            return helper.make_graph([node], op, [], [self._value(name)])

        self._tensors.append(
            self._add("If", [condition], then_branch=body("Neg"), else_branch=body("Exp"))
        )
