"""Random models of what clean-up edits: Identity, Dropout, Flatten, shapes, in bodies, too."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Maker:
    """Builds random models of what clean-up edits; the same numbers give the same model."""

    def __init__(self, draw: Callable[[int], int], batch: int | str) -> None:
        self.draw = draw
        self.batch = batch
        self.nodes: list[onnx.NodeProto] = []
        self.floats = ["x"]
        self.sizes: list[str] = []
        self.count = 0
        self.depth = 0

    def add(self, op: str, inputs: list[str], **attributes: Any) -> str:
        self.count += 1
        name = f"t{self.count}"
        self.nodes.append(helper.make_node(op, inputs, [name], f"n{self.count}", **attributes))
        return name

    def constant(self, value: Any) -> str:
        return self.add("Constant", [], value=numpy_helper.from_array(np.array(value)))

    def pick(self, names: list[str]) -> str:
        return names[self.draw(len(names) - 1)]

    def step(self) -> None:
        (
            self.identity, self.identity, self.dropout, self.arithmetic, self.shape, self.shape,
            self.size, self.reshape, self.flatten, self.condition, self.loop, self.call,
        )[self.draw(11)]()  # fmt: skip

    def identity(self) -> None:
        self.floats.append(self.add("Identity", [self.pick(self.floats)]))

    def dropout(self) -> None:
        training = [[], [self.constant(np.float32(0.3))]][self.draw(1)]
        if training and self.draw(1):
            training.append(self.constant(False))
        name = self.add("Dropout", [self.pick(self.floats), *training])
        self.floats.append(name)
        if not self.draw(3):
            self.nodes[-1].output.append(f"{name}_mask")
            kept = self.add("Cast", [f"{name}_mask"], to=TensorProto.FLOAT)
            self.floats.append(self.add("Mul", [kept, name]))

    def arithmetic(self) -> None:
        self.floats.append(self.add("Tanh", [self.pick(self.floats)]))
        self.floats.append(self.add("Sub", [self.pick(self.floats), self.pick(self.floats)]))

    def shape(self) -> None:
        self.sizes.append(self.add("Shape", [self.pick(self.floats)]))

    def size(self) -> None:
        if not self.sizes:
            self.shape()
        at = self.add("Gather", [self.pick(self.sizes), self.constant([self.draw(3)])], axis=0)
        other = self.constant([1 + self.draw(4)])
        one = self.add(("Add", "Mul", "Div", "Mod", "Max", "Sub")[self.draw(5)], [at, other])
        rest = [self.constant([1 + self.draw(2)]) for _ in range(3)]
        self.sizes.append(self.add("Concat", [one, *rest], axis=0))
        real = self.add("Cast", [one], to=TensorProto.FLOAT)
        self.floats.append(self.add("Add", [self.pick(self.floats), real]))

    def reshape(self) -> None:
        source = self.pick(self.floats)
        flat = self.add("Reshape", [source, self.constant([-1])])
        self.floats.append(self.add("Reshape", [flat, self.add("Shape", [source])]))

    def flatten(self) -> None:
        source = self.pick(self.floats)
        flat = self.add("Flatten", [source], axis=self.draw(8) - 4)
        self.floats.append(self.add("Reshape", [self.add("Relu", [flat]), self.add("Shape", [source])]))

    def body(self, steps: int, inputs: list[onnx.ValueInfoProto], also: list[str]) -> onnx.GraphProto:
        """Return a body that reads what is around it; its last output is a float tensor."""
        around = self.nodes, self.floats, self.sizes
        self.nodes, self.floats, self.sizes = [], list(self.floats), list(self.sizes)
        self.depth += 1
        extra = [self.add("Identity", [name]) for name in also]
        for _ in range(steps):
            self.step()
        last = self.add("Identity", [self.add("Neg", [self.pick(self.floats)])])
        outputs = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in extra]
        outputs.append(helper.make_tensor_value_info(last, TensorProto.FLOAT, ["A", "B", "C", "D"]))
        graph = helper.make_graph(self.nodes, "body", inputs, outputs)
        self.depth -= 1
        self.nodes, self.floats, self.sizes = around
        return graph

    def condition(self) -> None:
        if self.depth > 1:
            return
        branches = [self.body(self.draw(3), [], []) for _ in range(2)]
        made = self.add("If", ["c"], then_branch=branches[0], else_branch=branches[1])
        self.keep(made)

    def loop(self) -> None:
        if self.depth > 1:
            return
        self.count += 1
        number = self.count
        inputs = [
            helper.make_tensor_value_info(f"i{number}", TensorProto.INT64, []),
            helper.make_tensor_value_info(f"c{number}", TensorProto.BOOL, []),
            helper.make_tensor_value_info(f"s{number}", TensorProto.FLOAT, ["A", "B", "C", "D"]),
        ]
        start = self.pick(self.floats)
        self.floats.append(f"s{number}")
        body = self.body(self.draw(3), inputs, [f"c{number}"])
        self.floats.remove(f"s{number}")
        self.keep(self.add("Loop", [self.constant(2), "", start], body=body))

    def keep(self, made: str) -> None:
        """Bring what a body made, of any extents, into the shape of the input."""
        total = self.add("ReduceSum", [made, self.constant([0, 1, 2, 3])])
        self.floats.append(self.add("Add", ["x", total]))

    def call(self) -> None:
        name = self.pick(self.floats)
        self.floats.append(self.add("twice", [name], domain="acme"))

    def model(self, steps: int) -> onnx.ModelProto:
        for _ in range(steps):
            self.step()
        made = [name for name in self.floats if name != "x"]
        outputs = list(dict.fromkeys([*made[-2:], *(made[:1] if self.draw(1) else [])])) or [
            self.add("Identity", ["x"])
        ]
        shape = [self.batch, 2, 3, 4]
        graph = helper.make_graph(
            self.nodes,
            "random",
            [
                helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
                helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            ],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        )
        twice = helper.make_function(
            "acme", "twice", ["p"], ["r"],
            [helper.make_node("Identity", ["p"], ["q"]), helper.make_node("Add", ["q", "p"], ["r"])],
            [helper.make_opsetid("", 17)],
        )  # fmt: skip
        return helper.make_model(
            graph,
            ir_version=8,
            functions=[twice],
            opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)],
        )
