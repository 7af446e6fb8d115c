"""Random models with bodies, functions, sequences, optionals and every element type, all in one graph.

What `GraphMaker` makes of tensors of one shape is continued: each step takes some of these tensors
through something odd and ends in another of them, so steps follow each other in any order.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper
from typed_graphs import TypedGraphMaker

DOMAIN = "acme"
_Steps = Sequence[tuple[str, list[str]]]
"""A chain of operators with their inputs, where `@` is the result of the one before."""
_FUNCTIONS: Mapping[tuple[str, str], _Steps] = {
    ("half", ""): [("Mul", ["p", "p"]), ("Sigmoid", ["@"])],
    ("mix", ""): [("Neg", ["p"]), ("Add", ["@", "q"])],
    ("mix", "other"): [("half", ["q"]), ("Sub", ["@", "p"])],
}


class MixedGraphMaker(TypedGraphMaker):
    """Builds a random model of operator set 25; the same seed gives the same model."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._functions: dict[tuple[str, str], onnx.FunctionProto] = {}
        self._sparse: list[onnx.SparseTensorProto] = []
        self._batch = 1
        if seed % 2:
            self._batch = 1 + seed % 3
            self.shape = ("N", 4, 3, 3)

    def model(self, size: int) -> onnx.ModelProto:
        """Return a model of about `size` nodes."""
        model = super().model(size)
        model.functions.extend(self._functions.values())
        model.graph.sparse_initializer.extend(self._sparse)
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
        return model

    def inputs(self) -> Mapping[str, NDArray[np.float32]]:
        """Return values for the inputs of the model."""
        shape = (self._batch, 4, 3, 3)
        return {name: self._random.standard_normal(shape).astype(np.float32) for name in ("x0", "x1")}

    def _step(self) -> None:
        if self._random.random() < 0.45:
            super()._step()
            return
        steps = [self._cast, self._cast, self._condition, self._empty, self._scalar, self._loop]
        steps += [
            self._function,
            self._function,
            self._shared,
            self._nested,
            self._shape_of,
            self._codes,
        ]
        if self._has_kernels:
            steps += [self._sequence, self._optional, self._scan, self._text, self._sparse_weight]
        else:
            steps.append(self._complex)
        steps[int(self._random.integers(len(steps)))]()

    def _sequence(self) -> None:
        a, b = self._pick(), self._pick()
        if self._random.random() < 0.4:
            sequence = self._add("SplitToSequence", [a, self._integers_scalar(2)], axis=1)
            self._finish(self._add("ConcatFromSequence", [sequence], axis=1))
            return
        sequence = self._add("SequenceConstruct", [a, b])
        if self._random.random() < 0.5:
            sequence = self._add("SequenceInsert", [sequence, self._pick(), self._integers_scalar(1)])
        if self._random.random() < 0.3:
            sequence = self._add("SequenceErase", [sequence, self._integers_scalar(0)])
        kind = helper.make_tensor_type_proto(TensorProto.FLOAT, self.shape)
        self._odd[sequence] = helper.make_sequence_type_proto(kind)
        position = self._integers_scalar(int(self._random.integers(-1, 1)))
        self._tensors.append(self._add("SequenceAt", [sequence, position]))
        if self._random.random() < 0.3:
            count = self._add("SequenceLength", [sequence])
            self._finish(self._add("Cast", [count], to=TensorProto.FLOAT))

    def _optional(self) -> None:
        a, b = self._pick(), self._pick()
        optional = self._add("Optional", [a])
        if self._random.random() < 0.5:
            self._tensors.append(self._add("OptionalGetElement", [optional]))
            return
        given = self._add("OptionalHasElement", [optional])
        bodies = [self._body([("OptionalGetElement", [optional])]), self._body([("Neg", [b])])]
        self._tensors.append(self._add("If", [given], then_branch=bodies[0], else_branch=bodies[1]))

    def _body(self, steps: _Steps) -> onnx.GraphProto:
        """Return a body without inputs, a chain whose later steps read the one before as `@`."""
        nodes: list[NodeProto] = []
        for number, (op, inputs) in enumerate(steps):
            name = f"b{len(self._nodes)}_{len(self._constants)}_{op}_{number}"
            before = nodes[-1].output[0] if nodes else ""
            read = [before if each == "@" else each for each in inputs]
            nodes.append(helper.make_node(op, read, [name], name))
        result = self._value(nodes[-1].output[0])
        return helper.make_graph(nodes, f"body_{len(self._nodes)}", [], [result])

    def _nested(self) -> None:
        """An If in an If, on a condition that only the inputs decide."""
        a, b = self._pick(), self._pick()
        sign = self._add("ReduceSum", [a], keepdims=0)
        positive = self._add("Greater", [sign, self._store(np.array(0, np.float32))])
        then = self._body([("Relu", [a]), ("Add", ["@", b])])
        other = self._body([("Abs", [b]), ("Mul", ["@", a])])
        name = f"inner_{len(self._nodes)}"
        inner = helper.make_node("If", [positive], [name], name, then_branch=then, else_branch=other)
        outer = helper.make_graph([inner], f"outer_{len(self._nodes)}", [], [self._value(name)])
        other = self._body([("Sub", [a, b]), ("Relu", ["@"]), ("Add", ["@", "@"])])
        self._tensors.append(self._add("If", [positive], then_branch=outer, else_branch=other))

    def _loop(self) -> None:
        """A loop that carries one tensor, reads another from outside, and stacks a scalar a trip."""
        a, b, number = self._pick(), self._pick(), len(self._nodes)
        names = {key: f"{key}{number}" for key in ("i", "go", "was", "on", "sum", "next", "mean")}
        nodes = [
            helper.make_node("Identity", [names["go"]], [names["on"]]),
            helper.make_node("Add", [names["was"], b], [names["sum"]]),
            helper.make_node(self._choose(("Relu", "Tanh", "Neg")), [names["sum"]], [names["next"]]),
            helper.make_node("ReduceMean", [names["sum"]], [names["mean"]], keepdims=0),
        ]
        trip = _scalar_value(names["i"], TensorProto.INT64)
        flags = [_scalar_value(names[key], TensorProto.BOOL) for key in ("go", "on")]
        results = [flags[1], self._value(names["next"]), _scalar_value(names["mean"], TensorProto.FLOAT)]
        read = [trip, flags[0], self._value(names["was"])]
        body = helper.make_graph(nodes, f"loop_{number}", read, results)
        trips = self._integers_scalar(int(self._random.integers(0 if self._has_kernels else 1, 4)))
        outputs = [f"t{number}", f"each{number}"]
        go = "" if self._has_kernels else self._store(np.array(True))
        node = helper.make_node("Loop", [trips, go, a], outputs, f"Loop_{number}", body=body)
        self._nodes.append(node)
        self._tensors.append(outputs[0])
        self._finish(self._add("ReduceSum", [outputs[1]], keepdims=0))

    def _scan(self) -> None:
        """A scan over the channels of a tensor, with a running sum."""
        a = self._pick()
        first, number = self._add("ReduceSum", [a, self._integers(1)], keepdims=0), len(self._nodes)
        names = {key: f"{key}{number}" for key in ("state", "row", "sum", "out")}
        batch = self.shape[0]
        row = [
            helper.make_tensor_value_info(names[key], TensorProto.FLOAT, [batch, 3, 3]) for key in names
        ]
        nodes = [
            helper.make_node("Add", [names["state"], names["row"]], [names["sum"]]),
            helper.make_node(self._choose(("Sigmoid", "Abs")), [names["sum"]], [names["out"]]),
        ]
        body = helper.make_graph(nodes, f"scan_{number}", row[:2], row[2:])
        axes = {"scan_input_axes": [1], "scan_output_axes": [1]}
        outputs = [f"last{number}", f"t{number}"]
        node = helper.make_node(
            "Scan", [first, a], outputs, f"Scan_{number}", body=body, num_scan_inputs=1, **axes
        )
        self._nodes.append(node)
        self._tensors.append(outputs[1])

    def _function(self) -> None:
        """A call of one of a function's two overloads, of which one calls another function."""
        overload = self._choose(("", "other"))
        for key in (("half", ""), ("mix", overload)):
            self._functions.setdefault(key, _make_function(*key))
        name = f"t{len(self._nodes)}"
        node = helper.make_node("mix", [self._pick(), self._pick()], [name], name, domain=DOMAIN)
        node.overload = overload
        self._nodes.append(node)
        self._tensors.append(name)

    def _sparse_weight(self) -> None:
        name = f"sparse{len(self._sparse)}"
        places = np.sort(self._random.choice(36, 5, replace=False)).astype(np.int64)
        values = numpy_helper.from_array(self._random.standard_normal(5).astype(np.float32), name)
        indices = numpy_helper.from_array(places, f"{name}_indices")
        self._sparse.append(helper.make_sparse_tensor(values, indices, [4, 3, 3]))
        self._finish(name)

    def _shared(self) -> None:
        """A weight that several nodes read, one of them in a body."""
        weight, condition = self._weight(4, 1, 1), self._store(np.array(self._random.random() < 0.5))
        a = self._pick()
        bodies = [self._body([(op, [a, weight])]) for op in ("Mul", "Add")]
        self._tensors.append(self._add("If", [condition], then_branch=bodies[0], else_branch=bodies[1]))
        self._finish(self._add("Relu", [weight]))


def _scalar_value(name: str, dtype: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, [])


def _make_function(name: str, overload: str) -> onnx.FunctionProto:
    nodes: list[NodeProto] = []
    steps = _FUNCTIONS[name, overload]
    for number, (op, inputs) in enumerate(steps):
        made = "r" if number == len(steps) - 1 else f"m{number}"
        read = [nodes[-1].output[0] if each == "@" else each for each in inputs]
        nodes.append(helper.make_node(op, read, [made], domain=DOMAIN if op == "half" else ""))
    imports = [helper.make_opsetid("", MixedGraphMaker.opset), helper.make_opsetid(DOMAIN, 1)]
    names = ["p", "q"] if name == "mix" else ["p"]
    function = helper.make_function(DOMAIN, name, names, ["r"], nodes, imports)
    function.overload = overload
    return function
