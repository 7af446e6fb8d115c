"""Rounding noise: how far two right results lie apart, of the last operators and of long sums.

The last operators are evaluated in float64, as ONNX's reference implementation has them, on what
onnxruntime computed before them. Noise is the sum of two distances from that result: of onnxruntime's
own, and of one in which every tensor on the way is moved by a few units in its last place at random
(Monte Carlo arithmetic: D. S. Parker, Monte Carlo Arithmetic, UCLA CSD-970002, 1997).
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import EncodeError
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from byoc._dataclasses import dataclass, field
from byoc.codegen import Executor
from byoc.errors import InputError
from byoc.model import (
    GraphIndex,
    build_node,
    copy_without,
    find_constant_value,
    get_stated_attributes,
    is_onnx,
)
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.verification._quantization_noise import EPSILON

Array = NDArray[Any]
Values = Mapping[str, Any]

_UNITS = 2.0  # in the last place, by which a tensor on the way is moved
_DRAWS = 4  # of random movements
_MAX_NODES = 16  # of a tail, which the reference implementation runs
_MAX_ELEMENTS = 1 << 22  # of a tensor; the reference implementation is slow

MOVING = frozenset(
    [
        *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Slice", "Split"),
        *("Concat", "Expand", "Tile", "Gather", "GatherElements", "DepthToSpace", "SpaceToDepth"),
        *("Where", "Pad"),
    ]
)
_COMPUTING = frozenset(
    [
        *("Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Reciprocal", "Neg", "Abs", "Sum", "Mean"),
        *("Min", "Max", "Clip", "Relu", "LeakyRelu", "PRelu", "Elu", "Selu", "Celu", "ThresholdedRelu"),
        *("Exp", "Log", "Sin", "Cos", "Tan", "Sinh", "Cosh", "Tanh", "Erf", "Sigmoid", "HardSigmoid"),
        *("HardSwish", "Softplus", "Softsign", "Mish", "Gelu", "Softmax", "LogSoftmax", "Atan"),
        *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceLogSum"),
        *("ReduceLogSumExp", "ReduceSumSquare", "LayerNormalization", "InstanceNormalization"),
        *("GlobalAveragePool", "GlobalMaxPool"),
    ]
)
# ONNX's reference implementation has these as of opset 13; before, axes from `axis` on were one, and
# its default was 1.
_FLAT_BEFORE_13 = frozenset({"Softmax", "LogSoftmax"})
CONTRACTIONS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose"})

# Usual implementations compute these through numbers of magnitude 1, such as 1/2 + p(x)/q(x) or
# exp(2x) - 1, so that a small result is no more exact than 1 is.
_THROUGH_ONE = frozenset({"Sigmoid", "Tanh", "Erf", "Softplus", "HardSigmoid"})


@dataclass(frozen=True, eq=False)
class RoundingNoise:
    """Measures the rounding noise of tensors of a model without functions, for given inputs.

    `folder` holds the external data of the model.
    """

    model: ModelProto
    folder: Path | None
    inputs: Values
    _generator: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def measure(self, name: str) -> float:
        """Return the largest difference of two right results of a tensor, 0 where it is not known.

        It is not known where the tensor has no last operators that the reference implementation
        computes, onnxruntime cannot run the model, or a tensor is too large.
        """
        return sum(self._measure(name, find_tail(self._index, name), _DRAWS))

    def measure_runtime(self, name: str) -> float:
        """Return the distance of onnxruntime from the exact result of a tensor's operator.

        It is 0 where that is not known.
        """
        return self._measure(name, find_tail(self._index, name, is_last=True), 0)[0]

    def _measure(self, name: str, tail: Sequence[int], draws: int) -> tuple[float, float]:
        """Return the distances of onnxruntime, and the largest of so many moved runs, from the exact."""
        if not tail:
            return 0.0, 0.0
        try:
            reads = {read for i in tail for read in self._index.nodes[i].input if read}
            values = self._compute({*reads, name} | self._operands_of(reads))
            if any(np.size(value) > _MAX_ELEMENTS for value in values.values()):
                return 0.0, 0.0
            return self._measure_tail(tail, name, values, draws)
        except (InputError, ArithmeticError, LookupError, TypeError, ValueError, RuntimeError):
            return 0.0, 0.0  # the reference implementation lacks a case

    @cached_property
    def _index(self) -> GraphIndex:
        return GraphIndex(self.model, {})

    def _operands_of(self, names: set[str]) -> set[str]:
        """Return the inputs of the contractions that make some of the tensors."""
        makers = {i for name in names if (i := self._contraction_of(name)) is not None}
        return {read for i in makers for read in self._index.nodes[i].input if read}

    def _contraction_of(self, name: str) -> int | None:
        number = self._index.producers.get(name)
        if number is None or number in self._index.constant_nodes:
            return None
        node = self._index.nodes[number]
        return number if is_onnx(node) and node.op_type in CONTRACTIONS else None

    def _compute(self, names: set[str]) -> dict[str, Array]:
        """Return the values of tensors, as plain onnxruntime computes them without optimizations."""
        found = {name: np.asarray(self.inputs[name]) for name in names if name in self.inputs}
        for name in names & self._index.stored_tensors.keys() - found.keys():
            value = find_constant_value(self._index, name, self.folder)
            if value is not None:
                found[name] = value
        exposed = expose_tensors(self.model, sorted(names - found.keys()))
        with without_optimizations():
            session = open_session(exposed, self.folder)
        made = run_session(session, self.inputs)
        return found | {name: np.asarray(made[name]) for name in names - found.keys()}

    def _measure_tail(
        self, tail: Sequence[int], name: str, values: Mapping[str, Array], draws: int
    ) -> tuple[float, float]:
        steps = [(self._index.nodes[i], make_evaluator(self._index, i)) for i in tail]
        made = {output for node, _ in steps for output in node.output}
        free = {
            read: self._unit_of(read, value)
            for read, value in values.items()
            if read not in made and EPSILON.get(str(value.dtype)) and self._is_computed(read)
        }
        epsilon = max(EPSILON.get(str(value.dtype), 0.0) for value in values.values())

        def evaluate(noise: Callable[[Array], Array]) -> Array:
            found = {
                read: _widen(value) + noise(free[read]) if read in free else _widen(value)
                for read, value in values.items()
                if read not in made
            }
            for node, run in steps:
                outputs = run({read: found[read] for read in node.input if read})
                for output, result in outputs.items():
                    found[output] = result + noise(_resolution(node, result, epsilon))
            return found[name]

        exact = evaluate(np.zeros_like)
        finite = np.isfinite(exact)

        def distance(other: Array) -> float:
            return float(np.max(np.abs(other - exact)[finite], initial=0.0))

        own = distance(values[name].astype(np.float64))
        moved = max((distance(evaluate(self._draw)) for _ in range(draws)), default=0.0)
        return (own, moved) if np.isfinite(own + moved) else (0.0, 0.0)

    def _is_computed(self, name: str) -> bool:
        """Return whether a tensor is neither an input, which both sides read exactly, nor constant."""
        return name in self._index.producers and not self._index.is_constant(name)

    def _unit_of(self, name: str, value: Array) -> Array:
        """Return by how much each element is moved: units in the last place of what was added up."""
        magnitude = np.abs(_widen(value))
        number = self._contraction_of(name)
        if number is not None:
            magnitude = np.maximum(magnitude, self._sum_magnitudes(self._index.nodes[number]))
        return _UNITS * EPSILON[str(value.dtype)] * magnitude

    def _sum_magnitudes(self, node: NodeProto) -> Array:
        """Return the sums of the magnitudes of the terms that a contraction adds up."""
        reads = [name for name in node.input if name]
        operands = {name: np.abs(value) for name, value in self._compute({*reads}).items()}
        given = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
            )
            for name, value in operands.items()
        ]
        graph = helper.make_graph([node], "sums", given, [ValueInfoProto(name=node.output[0])])
        model = helper.make_model(
            graph, opset_imports=self.model.opset_import, ir_version=self.model.ir_version
        )
        with without_optimizations():
            made = run_session(open_session(model), operands)
        return np.asarray(made[node.output[0]], np.float64)

    def _draw(self, units: Array) -> Array:
        return np.where(self._generator.random(np.shape(units)) < 0.5, -units, units)


def find_tail(index: GraphIndex, name: str, is_last: bool = False) -> list[int]:
    """Return the last operators that compute a tensor, in order; those before them are not in it.

    With `is_last` the first one on the way back that computes, and what moves its numbers, is all.

    It ends at contractions, at operators that the reference implementation does not compute in float64
    as in float32, such as Cast, and at 16 operators.
    """
    found: set[int] = set()
    pending = deque([name])
    while pending and len(found) < _MAX_NODES:
        number = index.producers.get(pending.popleft())
        if number is None or number in index.constant_nodes:
            continue
        node = index.nodes[number]
        if is_onnx(node) and node.op_type in MOVING | _COMPUTING:
            found.add(number)
            if node.op_type in MOVING or not is_last:
                pending.extend(index.reads[number])
    return sorted(found)


def make_evaluator(index: GraphIndex, number: int) -> Callable[[Values], dict[str, Array]]:
    """Return a function that evaluates one node with ONNX's reference implementation."""
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415 - slow to import, seldom needed

    node = index.nodes[number]
    opset = index.opsets.get("", 1)
    is_flat = node.op_type in _FLAT_BEFORE_13 and opset < 13
    axis = int(get_stated_attributes(node).get("axis", 1)) if is_flat else 0
    if is_flat:
        node = build_node(node.op_type, node.input, node.output, axis=-1)
    graph = helper.make_graph(
        [node],
        "step",
        [ValueInfoProto(name=name) for name in dict.fromkeys(filter(None, node.input))],
        [ValueInfoProto(name=name) for name in node.output if name],
    )
    imports = [helper.make_opsetid("", opset)]
    evaluator = ReferenceEvaluator(helper.make_model(graph, opset_imports=imports))
    names = [name for name in node.output if name]

    def run(values: Values) -> dict[str, Array]:
        with np.errstate(all="ignore"):
            return dict(zip(names, map(np.asarray, evaluator.run(None, dict(values))), strict=True))

    def run_flat(values: Values) -> dict[str, Array]:
        """Run on a matrix, whose rows are all that is before the axis."""
        ((name, value),) = values.items()
        rows = prod(value.shape[: axis % max(value.ndim, 1)])
        made = run({name: value.reshape(rows, -1)})
        return {output: result.reshape(value.shape) for output, result in made.items()}

    return run_flat if is_flat else run


def expose_tensors(model: ModelProto, names: Sequence[str]) -> ModelProto:
    """Return a model without functions whose outputs are the given tensors of its main graph."""
    exposed = copy_without(model, "output")
    stated = {value.name: value for value in model.graph.output}
    exposed.graph.output.extend(stated.get(name, ValueInfoProto(name=name)) for name in names)
    return exposed


def _widen(value: Array) -> Array:
    return value.astype(np.float64) if str(value.dtype) in EPSILON else value


def _resolution(node: NodeProto, result: Array, epsilon: float) -> Array:
    """Return by how much the result of an operator is moved; not at all where it only moves numbers."""
    if node.op_type in MOVING or result.dtype != np.float64:
        return np.zeros_like(result)
    magnitude = np.abs(result)
    if node.op_type in _THROUGH_ONE:
        magnitude = np.maximum(magnitude, 1.0)
    return _UNITS * epsilon * magnitude


# The noise of long sums: how far results move when every contraction of a network adds up
# otherwise.
#
# A sum of K products in floating point is the exact sum of products whose factors are off by about
# sqrt(K) units of roundoff (N. J. Higham and T. Mary, A New Approach to Probabilistic Rounding
# Error Analysis, SIAM Journal on Scientific Computing 41, 2019). So the weights of all contractions
# are moved by as much at random, and onnxruntime computes the network again. The results of two
# right implementations lie about as far apart, in a deep network as in a flat one.

_SUM_DRAWS = 2  # of moved weights, each a run of the model
_MAX_PRODUCTS = 1 << 28  # of all moved weights: 1 GiB in float32


@dataclass(frozen=True, eq=False)
class AccumulationNoise:
    """Runs a model without functions with its weights moved, for given inputs.

    `folder` holds the external data of the model.
    """

    model: ModelProto
    folder: Path | None
    inputs: Values

    @cached_property
    def runs(self) -> tuple[Values, ...]:
        """The outputs of each run by name, without optimizations; none where the model has no such run.

        It has none without stored floating-point weights of a contraction in its main graph, with more
        than 2^28 elements of these, or where onnxruntime cannot run it with weights that are inputs.
        """
        try:
            return tuple(dict(run(self.inputs)) for run in self.executors)
        except (InputError, EncodeError, ValueError):
            return ()

    @cached_property
    def executors(self) -> tuple[Executor, ...]:
        """The model with its weights moved, once for each draw, to run on any inputs; none as `runs`."""
        lengths = self._list_lengths()
        if not lengths or sum(math.prod(t.dims) for t in self._find_tensors(lengths)) > _MAX_PRODUCTS:
            return ()
        generator = np.random.default_rng(0)
        try:
            with without_optimizations():
                session = open_session(self._make_open_model(lengths), self.folder)
            drawn = [self._move_weights(lengths, generator) for _ in range(_SUM_DRAWS)]
        except (InputError, EncodeError, ValueError):
            return ()
        return tuple(
            lambda inputs, moved=moved: run_session(session, {**inputs, **moved}) for moved in drawn
        )

    def _list_lengths(self) -> dict[str, int]:
        """Return for each weight how many products a contraction adds up with it, at most."""
        stored = {tensor.name: tensor for tensor in self.model.graph.initializer}
        lengths: dict[str, int] = {}
        for node in self.model.graph.node:
            if not is_onnx(node) or node.op_type not in CONTRACTIONS:
                continue
            tensor = stored.get(node.input[1])
            if tensor is not None and EPSILON.get(_name_dtype(tensor)):
                length = _count_products(node, tuple(tensor.dims))
                lengths[tensor.name] = max(length, lengths.get(tensor.name, 0))
        return lengths

    def _find_tensors(self, lengths: Mapping[str, int]) -> list[TensorProto]:
        return [tensor for tensor in self.model.graph.initializer if tensor.name in lengths]

    def _make_open_model(self, lengths: Mapping[str, int]) -> ModelProto:
        """Return the model with the moved weights as inputs."""
        result = copy_without(self.model, "initializer")
        stated = {value.name for value in result.graph.input}
        for tensor in self.model.graph.initializer:
            if tensor.name not in lengths:
                result.graph.initializer.append(tensor)
            elif tensor.name not in stated:
                result.graph.input.append(
                    helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
                )
        return result

    def _move_weights(
        self, lengths: Mapping[str, int], generator: np.random.Generator
    ) -> dict[str, Array]:
        index = GraphIndex(self.model, {})
        moved: dict[str, Array] = {}
        for name, length in lengths.items():
            value = find_constant_value(index, name, self.folder)
            if value is None:
                raise InputError(f"the weight '{name}' cannot be read")
            unit = math.sqrt(length) * EPSILON[str(value.dtype)] / 2
            signs = generator.choice((-unit, unit), size=value.shape)
            moved[name] = (value.astype(np.float64) * (1 + signs)).astype(value.dtype)
        return moved


def _name_dtype(tensor: TensorProto) -> str:
    return str(helper.tensor_dtype_to_np_dtype(tensor.data_type))


def _count_products(node: NodeProto, shape: tuple[int, ...]) -> int:
    """Count the products that each result of a contraction with a weight of this shape adds up."""
    match node.op_type:
        case "Conv":
            return math.prod(shape[1:])
        case "ConvTranspose":
            group = int(get_stated_attributes(node).get("group", 1))
            return shape[0] // max(group, 1) * math.prod(shape[2:])
        case "Gemm":
            return shape[-1] if get_stated_attributes(node).get("transB") else shape[0]
        case _:
            return shape[-2] if len(shape) > 1 else shape[0]
