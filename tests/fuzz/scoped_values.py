"""Values of random models, and scopes in which nodes are run as they are added: `ScopeBuilder`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from evaluators import run_plain
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

DOMAIN = "acme"
OPSETS = (13, 14, 16, 17, 18, 19, 20, 21, 22)
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)
_LARGEST = 1e4
_MOST_ELEMENTS = 400


class CannotStepError(Exception):
    """Nothing that is visible fits a step, or onnxruntime does not run it."""


@dataclass(frozen=True)
class Value:
    """A tensor, or a sequence of tensors, with what it holds on the inputs of the model."""

    name: str
    dtype: int
    held: Any
    is_sequence: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents on these inputs; of a sequence none."""
        return () if self.is_sequence else tuple(self.held.shape)

    def describe(self, shape: Sequence[int | str | None] | None = None) -> onnx.ValueInfoProto:
        """Return what a graph says of it, with the extents that are given, or none."""
        kind = helper.make_tensor_type_proto(self.dtype, shape)
        if self.is_sequence:
            kind = helper.make_sequence_type_proto(kind)
        return helper.make_value_info(self.name, kind)


@dataclass
class Scope:
    """A graph that is being made: its nodes, and what is visible in it."""

    visible: list[Value]
    depth: int = 0
    is_function: bool = False
    nodes: list[NodeProto] = field(default_factory=list)
    made: list[Value] = field(default_factory=list)


class ScopeBuilder:
    """Nodes in scopes, each run as it is added: names, constants, values and what is visible."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.opset = int(self.random.choice(OPSETS))
        self._constants: dict[str, onnx.TensorProto] = {}
        self._values: dict[str, Value] = {}
        self._functions: dict[str, onnx.FunctionProto] = {}
        self._calls: dict[str, list[Value]] = {}
        self._names = 0
        self._style = self.pick(("t{}", "t{}", "layer/{}:0", "é {}", "dla_{}", "{}"))
        self._repeats_names = self.chance(0.15)
        self._scope = Scope([])

    # What is drawn

    def chance(self, share: float) -> bool:
        """Return True so often."""
        return bool(self.random.random() < share)

    def pick(self, things: Sequence[Any]) -> Any:
        """Return one of some things, which may be of any kind. Raises CannotStepError."""
        if not things:
            raise CannotStepError
        return things[int(self.random.integers(len(things)))]

    def below(self, number: int) -> int:
        """Return a whole number from 0 to below `number`."""
        return int(self.random.integers(number))

    def extents(self, rank: int) -> tuple[int, ...]:
        """Return small extents, seldom 0."""
        return tuple(0 if self.chance(0.01) else 1 + self.below(4) for _ in range(rank))

    def draw(self, dtype: int, shape: Sequence[int]) -> NDArray[Any]:
        """Return an array of quarters between -4 and 4, or of what the type has instead."""
        numbers = self.random.integers(-16, 17, shape)
        if dtype == TensorProto.STRING:
            words = np.array(["a", "b", "", "é", "10"], object)
            return words[np.asarray(numbers % 5).ravel()].reshape(shape)
        kind = helper.tensor_dtype_to_np_dtype(dtype)
        if dtype == TensorProto.BOOL:
            return np.asarray(numbers > 0)
        if dtype in FLOATS:
            return np.asarray(numbers / 4).astype(kind)
        low = 0 if np.iinfo(kind).min == 0 else -16
        return np.asarray(np.maximum(numbers, low)).astype(kind)

    # Names and constants

    def fresh(self) -> str:
        """Return a name that no tensor of the model has."""
        self._names += 1
        return str(self._style.format(self._names))

    def store(self, array: NDArray[Any], dtype: int | None = None) -> Value:
        """Return a constant: an initializer of the main graph, or a node where one stands."""
        dtype = dtype or helper.np_dtype_to_tensor_dtype(array.dtype)
        name = self.fresh()
        tensor = numpy_helper.from_array(array, name)
        value = Value(name, dtype, array)
        if self._scope.is_function or self.chance(0.2):
            self._scope.nodes.append(self._constant_node(name, array, tensor))
        else:
            self._constants[name] = tensor
        self._values[name] = value
        return value

    def _constant_node(self, name: str, array: NDArray[Any], tensor: onnx.TensorProto) -> NodeProto:
        plain = (
            array.dtype in (np.float32, np.int64) and array.ndim < 2 and array.size and self.chance(0.5)
        )
        if not plain:
            return helper.make_node("Constant", [], [name], self.node_name(), value=tensor)
        kind = "float" if array.dtype == np.float32 else "int"
        key = f"value_{kind}" + ("s" if array.ndim else "")
        return helper.make_node("Constant", [], [name], self.node_name(), **{key: array.tolist()})

    def integers(self, *numbers: int) -> str:
        """Return the name of a constant of int64."""
        return self.store(np.array(numbers, np.int64)).name

    def node_name(self) -> str:
        """Return a name for a node, that of others in some models, or none."""
        if self._repeats_names:
            return str(self.pick(("same", "", "other")))
        return f"n{self.fresh()}"

    # What is visible

    def find(self, *dtypes: int, rank: int | None = None, least: int = 0) -> Value:
        """Return a tensor of a type, one of the latest rather. Raises CannotStepError."""
        fitting = [
            value
            for value in self._scope.visible
            if not value.is_sequence
            and (not dtypes or value.dtype in dtypes)
            and (rank is None or len(value.shape) == rank)
            and len(value.shape) >= least
        ]
        return self.pick(fitting[-5:] if self.chance(0.7) else fitting)  # type: ignore[no-any-return]

    def partner(self, value: Value) -> Value:
        """Return a tensor that is broadcast with another, of its type, or a constant that is."""
        fitting = [
            each
            for each in self._scope.visible
            if not each.is_sequence and each.dtype == value.dtype and fits(each.shape, value.shape)
        ]
        if fitting and self.chance(0.6):
            return self.pick(fitting)  # type: ignore[no-any-return]
        keep = self.below(len(value.shape) + 1)
        shape = [1 if self.chance(0.3) else extent for extent in value.shape[keep:]]
        return self.store(self.draw(value.dtype, shape), value.dtype)

    # Nodes, tried as they are added

    def add(self, op: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any) -> list[Value]:
        """Add a node to the scope and return what it makes. Raises CannotStepError."""
        domain, _, op = op.rpartition(".")
        if not domain and not onnx.defs.has(op, self.opset):
            raise CannotStepError  # onnxruntime crashes where a function has such a node in a body
        names = [self.fresh() for _ in range(outputs)]
        node = helper.make_node(op, inputs, names, self.node_name(), domain=domain, **attributes)
        return self.keep(node)

    def keep(self, node: NodeProto) -> list[Value]:
        """Add a node that an evaluator runs. Raises CannotStepError."""
        made = self._evaluate(node)
        self._scope.nodes.append(node)
        for value in made:
            self._values[value.name] = value
            self._scope.made.append(value)
            self._scope.visible.append(value)
        return made

    def _evaluate(self, node: NodeProto) -> list[Value]:
        read = sorted(_free_names(node))
        feeds, stored, inputs = {}, [], []
        for name in read:
            if name in self._constants:
                stored.append(self._constants[name])
                continue
            value = self._values.get(name)
            if value is None:
                raise CannotStepError
            feeds[name] = value.held
            inputs.append(value.describe(None if value.is_sequence else value.shape))
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = helper.make_graph([node], "step", inputs, outputs, stored)
        model = self._model(graph)
        found = _run(model, feeds)
        made = []
        for name, held in zip((name for name in node.output if name), found, strict=True):
            parts = held if isinstance(held, list) else [held]
            if not parts or any(part is None for part in parts):
                raise CannotStepError
            parts = [np.asarray(part) for part in parts]
            for part in parts:
                _require_sane(part)
            dtype = _dtype_of(parts[0])
            made.append(
                Value(name, dtype, parts if isinstance(held, list) else parts[0], isinstance(held, list))
            )
        return made

    def _model(self, graph: onnx.GraphProto) -> onnx.ModelProto:
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid(DOMAIN, 1)]
        functions = list(self._functions.values())
        return helper.make_model(graph, ir_version=10, opset_imports=imports, functions=functions)


def fits(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Say whether two shapes are broadcast to one that is no larger than the largest of both."""
    try:
        made = np.broadcast_shapes(tuple(shape), tuple(other))
    except ValueError:
        return False
    return int(np.prod(made)) <= _MOST_ELEMENTS


def _dtype_of(array: NDArray[Any]) -> int:
    return (
        TensorProto.STRING if array.dtype.kind in "OUS" else helper.np_dtype_to_tensor_dtype(array.dtype)
    )


def _require_sane(array: NDArray[Any]) -> None:
    if array.size > _MOST_ELEMENTS:
        raise CannotStepError
    if array.dtype.kind in "OUSb" or not array.size:
        return
    if array.dtype.kind in "iu":
        # Wrapped numbers follow, and so do those that float32 does not hold.
        if np.abs(array.astype(np.float64)).max() > _LARGEST * _LARGEST:
            raise CannotStepError
        return
    numbers = array.astype(np.float64)
    if not np.isfinite(numbers).all() or np.abs(numbers).max() > _LARGEST:
        raise CannotStepError


def _free_names(node: NodeProto) -> set[str]:
    """Return what a node and its bodies read from outside."""
    found = {name for name in node.input if name}
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            found |= _free_names_of_graph(attribute.g)
    return found


def _free_names_of_graph(graph: onnx.GraphProto) -> set[str]:
    known = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    found = set()
    for node in graph.node:
        found |= _free_names(node) - known
        known |= set(node.output)
    return found | {value.name for value in graph.output} - known


def _run(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    """Return what onnxruntime gives. Raises CannotStepError."""
    try:
        return run_plain(model, feeds)
    except Exception:  # whatever it says: it does not run it
        raise CannotStepError from None
