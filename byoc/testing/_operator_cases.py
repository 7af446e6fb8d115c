"""Models of one node: byoc's own in many shapes and types, and those of ONNX's operator tests."""

import importlib
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, zip_longest
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from byoc._dataclasses import dataclass, field
from byoc.errors import InputError
from byoc.model import DTYPE_NUMBERS, to_numpy_dtype

# Small test models: a named model with inputs, and a notation of models in one line.

CaseArray = NDArray[Any]
CaseShape = Sequence[int | str]

DEFAULT_OPSET = 17  # ONNX opset of a case that names none
IR_VERSION = 8  # ONNX IR version of opset 17
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


def parse_one_node(text: str, dtype: str) -> Case | None:
    """Return a case of one node; None when ONNX does not define that node.

    The text is `INPUTS | NODE` or `INPUTS | NODE | OUTPUTS`, such as `x:1x4x8x8 i:3:int64 | Gather(x,
    i)`; the default output is `y`.
    """
    inputs, node, *rest = (part.strip() for part in text.split("|"))
    sketch = GraphSketch(dtype)
    for declaration in inputs.split():
        name, shape, *kind = declaration.split(":")
        sketch.add_input(name, [int(part) for part in shape.split("x") if part], *kind)
    outputs = rest[0].split(", ") if rest else ["y"]
    try:
        sketch.add_node(node, ", ".join(outputs))
        return sketch.build_case(f"{node} in {dtype}" + (f" on {inputs}" if inputs else ""), outputs)
    except Exception:  # an unsupported type, for which onnx raises various exceptions
        return None


# Operators whose constants are of several types, as models; `DTYPE` stands for the type of floats.
_MODELS = {
    "QuantizeLinear": [
        f"""(DTYPE[2, 3, 4] x) => ({kind}[2, 3, 4] y)
        <DTYPE s = {{0.0078125}}, {kind} z = {{{zero}}}> {{ y = QuantizeLinear(x, s, z) }}"""
        for kind, zero in (("uint8", 128), ("int8", 3))
    ]
    + [
        """(DTYPE[1, 3, 4, 4] x) => (int8[1, 3, 4, 4] y)
        <DTYPE[3] s = {0.0078125, 0.015625, 0.03125}, int8[3] z = {0, 0, 0}>
        { y = QuantizeLinear<axis = 1>(x, s, z) }"""
    ],
    "DequantizeLinear": [
        f"""({kind}[2, 3, 4] x) => (DTYPE[2, 3, 4] y)
        <DTYPE s = {{0.03125}}, {kind} z = {{{zero}}}> {{ y = DequantizeLinear(x, s, z) }}"""
        for kind, zero in (("uint8", 3), ("int8", -2))
    ]
    + [
        """(int8[1, 3, 4, 4] x) => (DTYPE[1, 3, 4, 4] y)
        <DTYPE[3] s = {0.0078125, 0.015625, 0.03125}, int8[3] z = {0, 0, 0}>
        { y = DequantizeLinear<axis = 1>(x, s, z) }"""
    ],
}
_KNOWN_IR_VERSION = 10  # to every onnxruntime that byoc runs with
_SHAPES = ("1x4x6x6", "3x4", "2x3x4", "5", "")
_UNARY = (
    *("Abs", "Acos", "Asin", "Atan", "Ceil", "Celu", "Cos", "Elu", "Erf", "Exp", "Floor", "HardSigmoid"),
    *("HardSwish", "Identity", "LeakyRelu", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu"),
    *("Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Tanh", "ThresholdedRelu", "Dropout"),
    *("IsNaN", "Log", "Cosh", "Sinh"),
)
_BINARY = (
    *("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean"),
    *("Min", "Mod", "Mul", "Or", "Pow", "PRelu", "Sub", "Sum", "Xor"),
)
_REDUCE = ("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin")
_IMAGE = "x:1x4x8x8 | "

# Operators with attributes, constants or several outputs, in the notation of `parse_one_node`.
_ONE_NODE_TEXTS = {
    "ArgMax": ["x:2x6 | ArgMax<axis=1, keepdims=0>(x)"],
    "AveragePool": [
        _IMAGE + "AveragePool<kernel_shape=[2,2], strides=[2,2]>(x)",
        _IMAGE + "AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>(x)",
        _IMAGE + "AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1>(x)",
    ],
    "BatchNormalization": [_IMAGE + "BatchNormalization(x, scale=4, b=4, mean=4, var=4)"],
    "Cast": ["x:2x3 | Cast<to=1>(x)", "x:2x3 | Cast<to=10>(x)", "x:2x3 | Cast<to=7>(x)"],
    "Clip": [_IMAGE + "Clip(x, lo=, hi=)", "x:3x4 | Clip(x)"],
    "Concat": [
        "x:1x4x5x5 z:1x4x5x5 | Concat<axis=1>(x, z)",
        "x:1x4x5x5 | Concat<axis=1>(x, c=1x2x5x5)",
        "x:2x3 z:4x3 | Concat<axis=0>(x, z)",
    ],
    "Conv": [
        _IMAGE + "Conv(x, w=8x4x1x1, b=8)",
        _IMAGE + "Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w=4x4x3x3, b=4)",
        _IMAGE + "Conv<kernel_shape=[3,3], strides=[2,2], pads=[0,0,1,1]>(x, w=4x4x3x3)",
        _IMAGE + "Conv<kernel_shape=[2,3], pads=[1,0,0,1]>(x, w=5x4x2x3, b=5)",
        _IMAGE + "Conv<group=4, kernel_shape=[3,3]>(x, w=4x1x3x3, b=4)",
        _IMAGE + "Conv<group=2>(x, w=4x2x3x3)",
        _IMAGE + "Conv<dilations=[2,2], pads=[2,2,2,2]>(x, w=4x4x3x3)",
        "x:2x4x9 | Conv<pads=[1,1]>(x, w=4x4x3, b=4)",
    ],
    "ConvTranspose": [
        _IMAGE + "ConvTranspose<strides=[2,2]>(x, w=4x3x2x2, b=3)",
        _IMAGE + "ConvTranspose<pads=[1,1,1,1]>(x, w=4x3x3x3)",
    ],
    "DepthToSpace": [_IMAGE + "DepthToSpace<blocksize=2>(x)"],
    "Expand": ["x:3x1 | Expand(x, s!2x3x4)"],
    "Flatten": ["x:1x4x3x3 | Flatten(x)", "x:2x3x4 | Flatten<axis=2>(x)"],
    "Gather": [
        "x:5x3 | Gather(x, i!4x0x2)",
        "x:2x5 i:3:int64 | Gather<axis=0>(x, i)",
        "x:5x3 | Gather<axis=1>(x, i!2)",
    ],
    "Gemm": [
        "x:2x16 | Gemm(x, w=16x5, b=5)",
        "x:2x16 | Gemm<transB=1>(x, w=5x16, b=5)",
        "x:2x16 | Gemm<alpha=0.5, beta=2.0>(x, w=16x5, b=2x5)",
        "x:1x16 | Gemm<transB=1>(x, w=5x16)",
        "x:16x2 | Gemm<transA=1>(x, w=16x5)",
    ],
    "GlobalAveragePool": [_IMAGE + "GlobalAveragePool(x)", "x:2x3x5x7 | GlobalAveragePool(x)"],
    "GlobalMaxPool": [_IMAGE + "GlobalMaxPool(x)"],
    "InstanceNormalization": [_IMAGE + "InstanceNormalization(x, s=4, b=4)"],
    "LRN": [_IMAGE + "LRN<size=3>(x)"],
    "LayerNormalization": ["x:2x3x8 | LayerNormalization(x, s=8, b=8)"],
    "LogSoftmax": ["x:2x6 | LogSoftmax<axis=1>(x)"],
    "MatMul": [
        "x:3x8 | MatMul(x, w=8x5)",
        "x:2x3x8 | MatMul(x, w=8x5)",
        "x:1x2x3x8 z:1x2x8x5 | MatMul(x, z)",
        "x:3x8 z:8x5 | MatMul(x, z)",
    ],
    "MaxPool": [
        _IMAGE + "MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)",
        _IMAGE + "MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x)",
        _IMAGE + "MaxPool<kernel_shape=[3,2], pads=[0,0,1,1]>(x)",
    ],
    "Pad": ["x:1x2x3x3 | Pad(x, p!0x0x1x1x0x0x1x1)"],
    # Few factors: a product of 36 numbers below 1 is 0 in float16, whatever computes it.
    "ReduceProd": [
        "x:1x4x2x3 | ReduceProd<axes=[2,3]>(x)",
        "x:2x3x4 | ReduceProd<axes=[-1], keepdims=0>(x)",
    ],
    "ReduceSum": ["x:2x3x4 | ReduceSum(x, a!1)"],
    "Reshape": [_IMAGE + "Reshape(x, s!1x4x64)", "x:2x6 | Reshape(x, s!3x4)"],
    "Resize": [_IMAGE + 'Resize<mode="nearest">(x, , , s!1x4x16x16)'],
    "Slice": [_IMAGE + "Slice(x, s!1x2, e!3x8, a!2x3)"],
    "Softmax": ["x:2x6 | Softmax<axis=1>(x)", "x:1x4x3x3 | Softmax<axis=1>(x)"],
    "SpaceToDepth": [_IMAGE + "SpaceToDepth<blocksize=2>(x)"],
    "Split": ["x:4x6 | Split<axis=1>(x, s!2x4) | y, z"],
    "Squeeze": ["x:1x4x1x3 | Squeeze(x, a!0x2)"],
    "Tile": ["x:2x3 | Tile(x, r!2x1)"],
    "TopK": ["x:2x8 | TopK(x, k!3) | y, z"],
    "Transpose": [_IMAGE + "Transpose<perm=[0,2,3,1]>(x)", "x:3x5 | Transpose(x)"],
    "Unsqueeze": ["x:4x3 | Unsqueeze(x, a!0x3)"],
    "Where": ["p:2x3:bool x:2x3 z:2x3 | Where(p, x, z)"],
}


def operator_cases(operator: str, dtypes: Sequence[str]) -> Iterator[Case]:
    """Yield models of one node of an operator, regardless of any target's rules.

    byoc's own models, in the given types, alternate with ONNX's tests, so that the first cover all
    kinds.
    """
    own = chain(
        (
            case
            for text in _own_models(operator)
            for case in (parse_one_node(text, d) for d in dtypes)
            if case
        ),
        _parse_models(operator, dtypes),
    )
    for pair in zip_longest(own, _onnx_test_cases(operator)):
        yield from (case for case in pair if case is not None)


def read_own_cases(own: Sequence[str | ModelProto], dtypes: Sequence[str]) -> Iterator[Case]:
    """Yield a vendor's models: models, and texts in the notation of `parse_one_node` in each dtype.

    Raises InputError for a text that ONNX makes no model of in any of them.
    """
    for given in own:
        if isinstance(given, ModelProto):
            yield Case(given.graph.name or "a model", given)
            continue
        found = [case for case in (parse_one_node(given, dtype) for dtype in dtypes) if case]
        if not found:
            raise InputError(f"cases: '{given}' is no model in {', '.join(dtypes)}")
        yield from found


def _parse_models(operator: str, dtypes: Sequence[str]) -> Iterator[Case]:
    """Yield the models of an operator whose constants are of several types, in each floating type."""
    for number, text in enumerate(_MODELS.get(operator, ())):
        for dtype in dtypes:
            if "float" not in dtype:
                continue
            known = {"float32": "float", "float64": "double"}.get(dtype, dtype)
            header = (
                f'<ir_version: 9, opset_import: ["" : {21 if "16" in dtype else DEFAULT_OPSET}]> case'
            )
            model = onnx.parser.parse_model(f"{header} {text.replace('DTYPE', known)}")
            yield Case(f"{operator} {number + 1} in {dtype}", model)


def _own_models(operator: str) -> Iterator[str]:
    yield from _ONE_NODE_TEXTS.get(operator, ())
    if operator in _UNARY:
        yield from (f"x:{shape} | {operator}(x)" for shape in _SHAPES)
    if operator in _BINARY:
        yield from (f"x:{shape} z:{shape} | {operator}(x, z)" for shape in _SHAPES)
        others = ("1x4x1x1", "", "4x1x1", "1x4x6x6")
        yield from (f"x:1x4x6x6 | {operator}(x, c={shape})" for shape in others)
        yield from (f"x:3x4 | {operator}(x, c={shape})" for shape in ("4", "3x4", ""))
    if operator in _REDUCE:
        yield f"x:1x4x6x6 | {operator}<axes=[2,3]>(x)"
        yield f"x:2x3x4 | {operator}<axes=[-1], keepdims=0>(x)"


def _onnx_test_cases(operator: str) -> Iterator[Case]:
    """Yield ONNX's tests of an operator: unchanged, and with all inputs but one as constants."""
    for test in _onnx_tests(operator):
        model, sets = _lower_opset(test.model), test.data_sets
        if model.functions or not sets:
            continue
        names = [value.name for value in model.graph.input]
        given = dict(zip(names, map(_to_array, sets[0][0]), strict=False))
        if any(value is None for value in given.values()):
            continue
        yield Case(test.name, model, given)
        if len(given) > 1:
            yield _with_constants(test.name, model, given)


def _lower_opset(model: ModelProto) -> ModelProto:
    """Return a test's model in the oldest opset, from ours on, that has its node as it is.

    The tests are in the newest opset, which an older onnxruntime refuses whatever is in the model.
    """
    (entry,), node = model.opset_import, model.graph.node[0]
    since = onnx.defs.get_schema(node.op_type, entry.version).since_version
    lowered = ModelProto()
    lowered.CopyFrom(model)
    lowered.opset_import[0].version = min(entry.version, max(since, DEFAULT_OPSET))
    lowered.ir_version = min(model.ir_version, _KNOWN_IR_VERSION)
    return lowered


def _to_array(value: Any) -> Any:
    """Return a test's value as an array; None for a sequence or an optional."""
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    return None if value is None or isinstance(value, list) else np.asarray(value)


def _with_constants(name: str, original: ModelProto, given: dict[str, Any]) -> Case:
    model = ModelProto()
    model.CopyFrom(original)
    model.ir_version = max(model.ir_version, 4)
    first, *others = given
    del model.graph.input[1:]
    model.graph.initializer.extend(numpy_helper.from_array(given[other], other) for other in others)
    return Case(f"{name}, constants", model, {first: given[first]})


@cache
def _onnx_tests(operator: str) -> tuple[Any, ...]:
    """Return ONNX's tests of an operator.

    Generating all tests takes ten seconds; importing one of their modules generates only its own.
    """
    package = "onnx.backend.test.case.node"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they overflow and divide by zero on purpose
        try:
            importlib.import_module(f"{package}.{operator.lower()}")
        except ImportError:
            return ()
    made = getattr(sys.modules[package], "_NodeTestCases", ())
    return tuple(test for test in made if test.model and _single_operator(test.model) == operator)


def _single_operator(model: ModelProto) -> str:
    """Return the operator of a model with one node of ONNX's domain; "" for any other model."""
    nodes = model.graph.node
    return nodes[0].op_type if len(nodes) == 1 and nodes[0].domain in ("", "ai.onnx") else ""


def list_onnx_operators() -> list[str]:
    """Return the names of all operators of ONNX's domain that are not deprecated."""
    schemas = (schema for schema in onnx.defs.get_all_schemas() if schema.domain == "")
    return sorted({schema.name for schema in schemas if not schema.deprecated})
