"""Small test models: a named model with inputs, and a notation of models in one line."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from byoc.model import DTYPE_NUMBERS, to_numpy_dtype

CaseArray = NDArray[Any]
CaseShape = Sequence[int | str]

DEFAULT_OPSET = 17
IR_VERSION = 8
_WINDOWS = frozenset(
    (
        *("AveragePool", "Conv", "ConvInteger", "ConvTranspose", "DeformConv", "GlobalAveragePool"),
        *("GlobalLpPool", "GlobalMaxPool", "LpPool", "MaxPool", "MaxUnpool", "QLinearConv"),
    )
)
_WEIGHTS = {"QLinearConv": 3}  # which input they are, where it is not the second
_OPERAND = re.compile(r"([A-Za-z]\w*)([=!])([^\s,()]*)")


@dataclass(frozen=True, eq=False)
class Case:
    """A named model, and inputs to run it on; by default seeded random ones."""

    name: str
    model: ModelProto
    inputs: Mapping[str, Any] | None = None


def random_array(dtype: str, shape: Sequence[int], generator: np.random.Generator) -> CaseArray:
    """Return random values: floats around zero, integers from 1 to 5, either truth value."""
    kind = to_numpy_dtype(dtype)
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(kind)
    if "int" in dtype:
        return generator.integers(1, 6, shape).astype(kind)
    return generator.uniform(-1, 1, shape).astype(kind)


@dataclass(eq=False)
class GraphSketch:
    """A builder of graphs. Nodes are added as text that also defines their constants.

    In `Conv<group=2>(x, w=4x4x1x1, s!1x2)` `x` is an existing tensor, `w` a random constant of that
    shape, above 1 where its name starts with `var`, and `s` an int64 constant of those values; `=` and
    `!` alone mean a scalar and no values. Each use of a constant gets a new name, except for names in
    `shared`. Another `seed` gives other constants.
    """

    dtype: str = "float32"
    opset: int = DEFAULT_OPSET
    shared: Sequence[str] = ()
    seed: int = 0
    nodes: list[NodeProto] = field(default_factory=list)
    constants: dict[str, CaseArray] = field(default_factory=dict)
    inputs: dict[str, tuple[str, tuple[int | str, ...]]] = field(default_factory=dict)

    def add_input(self, name: str, shape: CaseShape, dtype: str = "") -> str:
        """Add an input, and return its name."""
        self.inputs[name] = (dtype or self.dtype, tuple(shape))
        return name

    def add_node(self, text: str, makes: str, **renamed: str) -> str:
        """Add a node with one output or several (`y, z`), and return their names."""
        constants: dict[str, str] = {}

        def replace_constant(match: re.Match[str]) -> str:
            name, mark, extents = match.groups()
            own = name if name in self.shared else f"{name}_{len(self.constants)}"
            constants[name] = own
            if own not in self.constants:
                self.constants[own] = self._random_constant(mark, extents, name.startswith("var"))
            return name

        before, mark, operands = text.rpartition("(")
        plain = f"{before}{mark}{_OPERAND.sub(replace_constant, operands)}"
        node = onnx.parser.parse_node(f"{makes} = {plain}")
        names = {**constants, **renamed}
        node.input[:] = [names.get(name, name) for name in node.input]
        self.nodes.append(node)
        return makes

    def _random_constant(self, mark: str, extents: str, positive: bool) -> CaseArray:
        numbers = [int(part) for part in extents.split("x") if part]
        if mark == "!":
            return np.array(numbers, np.int64)
        salt = [self.seed] if self.seed else []
        generator = np.random.default_rng([len(self.constants), *salt])
        drawn = random_array(self.dtype, numbers, generator)
        return np.abs(drawn) + np.ones((), drawn.dtype) if positive else drawn

    def build_model(self, outputs: Sequence[str]) -> ModelProto:
        """Return the model with inferred output types. Raises ONNX's exceptions when it is invalid."""
        graph = helper.make_graph(
            self.nodes,
            "case",
            [helper.make_tensor_value_info(n, DTYPE_NUMBERS[d], s) for n, (d, s) in self.inputs.items()],
            [onnx.ValueInfoProto(name=name) for name in outputs],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", self.opset)]
        model = helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets)
        found = _infer_types(model)
        _require_types(found)
        return found

    def build_case(self, name: str, outputs: Sequence[str], batch: int = 2) -> Case:
        """Return the graph as a case; symbolic extents are `batch` in its inputs."""
        generator = np.random.default_rng(len(name))
        inputs = {
            name: random_array(
                dtype, [dim if isinstance(dim, int) else batch for dim in shape], generator
            )
            for name, (dtype, shape) in self.inputs.items()
        }
        return Case(name, self.build_model(outputs), inputs)


def _infer_types(model: ModelProto) -> ModelProto:
    """Return a model with inferred types. Raises ONNX's exceptions, and ValueError for a window.

    ONNX 1.21 ends the process when an operator with a window reads a tensor of less than three
    dimensions, or of others than the window has, so this looks before: nodes are inferred one by one as
    far as such an operator follows.
    """
    windows = [place for place, node in enumerate(model.graph.node) if node.op_type in _WINDOWS]
    for place in windows:
        before = ModelProto()
        before.CopyFrom(model)
        del before.graph.node[place:], before.graph.output[:]
        graph = onnx.shape_inference.infer_shapes(before, strict_mode=True).graph
        ranks = {tensor.name: len(tensor.dims) for tensor in graph.initializer}
        for value in (*graph.input, *graph.value_info):
            ranks[value.name] = len(value.type.tensor_type.shape.dim)
        _require_image(model.graph.node[place], ranks)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def _require_image(node: NodeProto, ranks: Mapping[str, int]) -> None:
    """Raise ValueError unless a window and the image that a node reads have the same dimensions."""
    rank = ranks.get(node.input[0], 0)
    if rank < 3:
        raise ValueError(f"'{node.input[0]}' is no image: its rank is below 3")
    if "Conv" in node.op_type and ranks.get(node.input[_WEIGHTS.get(node.op_type, 1)]) != rank:
        raise ValueError(f"the weights of {node.op_type} have another rank than the image")
    for attribute in node.attribute:
        times = {"kernel_shape": 1, "strides": 1, "dilations": 1, "pads": 2}.get(attribute.name)
        if times is not None and len(attribute.ints) != times * (rank - 2):
            raise ValueError(f"{attribute.name} of {node.op_type} is for another rank")


def _require_types(model: ModelProto) -> None:
    """Raise TypeError for operands of unsupported types, which onnx does not check."""
    values = (*model.graph.input, *model.graph.value_info, *model.graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    types |= {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    for node in model.graph.node:
        formals = onnx.defs.get_schema(node.op_type, model.opset_import[0].version).inputs
        for name, formal in zip(node.input, formals, strict=False):
            word = TensorProto.DataType.Name(types[name]).lower() if name else ""
            if name and f"tensor({word})" not in formal.types:
                raise TypeError(f"{node.op_type} does not take {word}")


def parse_one_node(text: str, dtype: str, opset: int = DEFAULT_OPSET) -> Case | None:
    """Return a case of one node; None when ONNX does not define that node.

    The text is `INPUTS | NODE` or `INPUTS | NODE | OUTPUTS`, such as `x:1x4x8x8 i:3:int64 | Gather(x,
    i)`; the default output is `y`.
    """
    inputs, node, *rest = (part.strip() for part in text.split("|"))
    sketch = GraphSketch(dtype, opset)
    for declaration in inputs.split():
        name, shape, *kind = declaration.split(":")
        sketch.add_input(name, [int(part) for part in shape.split("x") if part], *kind)
    outputs = rest[0].split(", ") if rest else ["y"]
    try:
        sketch.add_node(node, ", ".join(outputs))
        return sketch.build_case(f"{node} in {dtype}" + (f" on {inputs}" if inputs else ""), outputs)
    except Exception:  # an unsupported type, for which onnx raises various exceptions
        return None
