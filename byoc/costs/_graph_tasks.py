"""The tasks of a graph's nodes, which equal ones share, and cost models that wrap others."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from math import nan
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto, NodeProto

from byoc._dataclasses import dataclass, replace
from byoc.costs._cost_model import (
    Attributes,
    CostFile,
    CostModel,
    EstimatingCosts,
    Price,
    Task,
    Unknown,
    find_occupancy,
    includes_conversions,
)
from byoc.costs._work import count_work, find_entering_and_leaving, is_view
from byoc.costs._work_node import VALUE_INPUTS, CountedNode, Sizes
from byoc.errors import InputError
from byoc.model import (
    GraphIndex,
    TensorType,
    count_bits,
    fix_type,
    get_constant_value,
    get_input,
    get_operator_name,
    get_stated_attributes,
    is_dequantize,
    is_onnx,
    is_qdq_node,
)
from byoc.patterns import NodeGroup
from byoc.placement import Occupancy
from byoc.support import validate_content

# Cost models made of others: with a fallback, another link, other values of single parameters.


@dataclass(frozen=True)
class Fallback:
    """Asks `first`, and `second` for tasks unknown to it; launch and link are the first one's."""

    first: CostModel
    second: CostModel

    @property
    def name(self) -> str:
        """Name of the first model."""
        return self.first.name

    def execution(self, task: Task) -> Price | Unknown:
        """Return the first model's price, else the second's, else the first's reason."""
        return self.first.execution(task) or self.second.execution(task) or self.first.execution(task)

    def estimate(self, task: Task) -> Price:
        """Return an estimate of the second model, else of the first."""
        for model in (self.second, self.first):
            if isinstance(model, EstimatingCosts):
                return model.estimate(task)
        raise NotImplementedError(f"{self.name} makes no estimates")

    def transfer(self, size: int, converted: int = 0) -> Price:
        """Return the first model's price."""
        return self.first.transfer(size, converted)

    def converting(self) -> bool:
        """Return whether the first model's transfers include conversions."""
        return includes_conversions(self.first)

    def occupies(self) -> Occupancy:
        """Return the occupancy of the first model's transfers."""
        return find_occupancy(self.first)

    def launching(self) -> Price:
        """Return the first model's price."""
        return self.first.launching()


def with_seconds(model: CostModel, seconds: Mapping[tuple[str, str, str], float]) -> CostModel:
    """Return a cost model with other seconds for some tasks, by their keys, instead of earlier ones."""
    base = model.model if isinstance(model, Priced) else model
    return (_EstimatingPriced if isinstance(base, EstimatingCosts) else Priced)(base, seconds)


@dataclass(frozen=True, eq=False)
class _Wrapper:
    """A cost model with the answers of another one."""

    model: CostModel

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.model.name

    def execution(self, task: Task) -> Price | Unknown:
        """Return the model's price."""
        return self.model.execution(task)

    def transfer(self, size: int, converted: int = 0) -> Price:
        """Return the model's price."""
        return self.model.transfer(size, converted)

    def converting(self) -> bool:
        """Return whether the model's transfers include conversions."""
        return includes_conversions(self.model)

    def occupies(self) -> Occupancy:
        """Return the occupancy of the model's transfers."""
        return find_occupancy(self.model)

    def launching(self) -> Price:
        """Return the model's price."""
        return self.model.launching()


class _EstimatingWrapper(_Wrapper):
    """A `_Wrapper` of a model that makes estimates."""

    def estimate(self, task: Task) -> Price:
        """Return the model's estimate."""
        if not isinstance(self.model, EstimatingCosts):
            raise NotImplementedError(f"{self.name} makes no estimates")
        return self.model.estimate(task)


@dataclass(frozen=True, eq=False)
class Priced(_Wrapper):
    """A cost model with other seconds for some tasks, by their keys."""

    seconds: Mapping[tuple[str, str, str], float]

    def execution(self, task: Task) -> Price | Unknown:
        """Return the given seconds with the model's joules, else the model's price."""
        found = self.model.execution(task)
        if task.key not in self.seconds:
            return found
        return Price(self.seconds[task.key], found.joules if isinstance(found, Price) else nan)


class _EstimatingPriced(Priced, _EstimatingWrapper):
    """A `Priced` of a model that makes estimates."""


def with_link(model: CostModel, bandwidth: float) -> CostModel:
    """Return a cost model whose link has a bandwidth in bytes per second; its latency is kept."""
    if isinstance(model, Fallback):
        return replace(model, first=with_link(model.first, bandwidth))
    if isinstance(model, Priced):
        return replace(model, model=with_link(model.model, bandwidth))
    if isinstance(model, CostFile) and model.link is not None:
        link = model.link.model_copy(update={"bandwidth": bandwidth})
        return model.model_copy(update={"link": link})
    return (
        _EstimatingWithBandwidth(model, bandwidth)
        if isinstance(model, EstimatingCosts)
        else _WithBandwidth(model, bandwidth)
    )


@dataclass(frozen=True)
class _WithBandwidth(_Wrapper):
    """A plug-in's cost model with other transfer costs."""

    bandwidth: float

    def transfer(self, size: int, converted: int = 0) -> Price:
        """Return the latency of an empty transfer, the bytes at the new bandwidth, and conversions."""
        before, empty = self.model.transfer(size, converted), self.model.transfer(0)
        more = before.seconds - self.model.transfer(size).seconds if converted else 0.0
        return Price(empty.seconds + size / self.bandwidth + more, before.joules)


class _EstimatingWithBandwidth(_WithBandwidth, _EstimatingWrapper):
    """A `_WithBandwidth` of a model that makes estimates."""


# Cost models with other values of single parameters, such as `launch` or `link.latency`.


def with_parameters(model: CostModel, parameters: Mapping[str, Any]) -> CostModel:
    """Return the cost model of a file with other values at some keys.

    `parameters` has the new values by the keys of the file, with dots between those of nested mappings:
    `launch`, `link.latency`, `peak.int8`. Of a file with a fallback (`else`) they are the file's own.
    Raises InputError with a line for each mistake, and for a model that is a plug-in.
    """
    if not parameters:
        return model
    if isinstance(model, Fallback):
        return replace(model, first=with_parameters(model.first, parameters))
    if not isinstance(model, CostFile):
        raise InputError(
            f"cost model {model.name} is a plug-in, which has options and no parameters:"
            f" {', '.join(parameters)}"
        )
    fixed = [path for path in parameters if path.split(".")[0] in ("extends", "groups")]
    if fixed:
        raise InputError(f"cost model {model.name}: {fixed[0]}: can be stated in its file alone")
    content = model.model_dump(by_alias=True, exclude_unset=True)
    for path, value in parameters.items():
        _set_value(content, path.split("."), value)
    changed, problems = validate_content(content, type(model))
    if changed is None:
        raise InputError(*(f"cost model {model.name}: {problem}" for problem in problems))
    return cast("CostModel", changed)


def _set_value(content: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        inner = content.get(key)
        content[key] = dict(inner) if isinstance(inner, Mapping) else {}
        content = content[key]
    content[keys[-1]] = value


# Operators that compute each element of the output by itself, as libraries fuse them into others.
_ELEMENTWISE = frozenset(
    [
        *("Abs", "Add", "BatchNormalization", "Cast", "Clip", "Div", "Elu", "Erf", "Exp", "Gelu"),
        *("HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Mul", "Neg", "PRelu", "Pow", "Reciprocal"),
        *("Relu", "Sigmoid", "Softplus", "Sqrt", "Sub", "Sum", "Tanh", "Where"),
    ]
)

_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})

# Their tasks differ by more than types and attributes.
_MARKED = frozenset({"Dropout", *(name.rpartition(".")[2] for name in VALUE_INPUTS)})


@dataclass(frozen=True, eq=False)
class GraphTasks:
    """The tasks of a graph's nodes, where equal nodes share one task.
    `types` are the types that tensors are computed in; `distinct` are the tasks; `task_of_node` (int64,
    one per node) is the number of each node's task, -1 for a constant node, which does not run.
    """

    index: GraphIndex
    types: Mapping[str, TensorType]
    sizes: Sizes
    distinct: Sequence[Task]
    task_of_node: NDArray[np.int64]

    def __getitem__(self, node: int) -> Task:
        """Return the task of a node that is not constant."""
        return self.distinct[int(self.task_of_node[node])]

    @cached_property
    def operations(self) -> NDArray[np.float64]:
        """float64 (nodes,): the operations of each node, 0 for constant nodes."""
        each = np.array([*(task.work.operations for task in self.distinct), 0.0])
        return each[self.task_of_node]

    @cached_property
    def bytes(self) -> NDArray[np.float64]:
        """float64 (nodes,): the bytes that each node reads and writes, 0 for constant nodes."""
        return np.array([*(task.work.bytes for task in self.distinct), 0.0])[self.task_of_node]

    @cached_property
    def estimated(self) -> NDArray[np.bool_]:
        """bool (nodes,): a shape of the node or its operator is not known exactly."""
        return np.array([*(task.work.estimated for task in self.distinct), False])[self.task_of_node]

    @cached_property
    def once_read(self) -> frozenset[str]:
        """The tensors that one node makes and one other reads alone."""
        return _find_once_read(self.index)

    def sum_unit_operations(
        self, units: Sequence[NodeGroup], free: Collection[int] = ()
    ) -> NDArray[np.float64]:
        """float64 (units,): the operations of each unit, without the nodes in `free`."""
        nodes = np.array([node for unit in units for node in unit.nodes], np.int64)
        row = np.repeat(np.arange(len(units)), [len(unit.nodes) for unit in units])
        each = self.operations.copy()
        each[list(free)] = 0
        return np.bincount(row, each[nodes], len(units)).astype(np.float64)

    def make_composite_task(self, op: str, nodes: tuple[int, ...]) -> Task:
        """Return the task of nodes that run as one under a name."""
        entering, leaving = find_entering_and_leaving(self.index, nodes)
        parts = tuple(self[i] for i in nodes)
        fused = False
        if any(is_qdq_node(self.index.nodes[i]) for i in nodes):
            fused = not self.once_read.isdisjoint(entering)
            parts = tuple(replace(part, fused=fused) if part.fused else part for part in parts)
        return Task(
            op=op,
            work=count_work(self.index, self.sizes, nodes),
            dtype=self._find_compute_type(nodes) or parts[-1].dtype,
            inputs=tuple(map(self.types.get, entering)),
            outputs=tuple(map(self.types.get, leaving)),
            attributes={
                f"{i}.{key}": value
                for i, part in enumerate(parts)
                for key, value in part.attributes.items()
            },
            sized=all(map(self.sizes.is_known, (*entering, *leaving))) and all(p.sized for p in parts),
            view=all(part.view for part in parts),
            parts=parts,
            fused=fused and any(part.fused for part in parts),
        )

    def _find_compute_type(self, nodes: tuple[int, ...]) -> str:
        """Return the type of the integers that a group multiplies, empty where it adds up no products.

        What it makes may have another type: only the sums are rounded to that.
        """
        index, inside = self.index, set(nodes)
        for number in nodes:
            node = index.nodes[number]
            if not is_onnx(node) or node.op_type not in _PRODUCTS:
                continue
            # A weight may be the first operand, and of two activations one may have more bits.
            operands = [name for name in node.input[:2] if not index.is_constant(name)]
            makers = [index.producers.get(name, -1) for name in operands]
            if all(maker in inside and is_dequantize(index.nodes[maker]) for maker in makers):
                kinds = [self.types.get(index.nodes[maker].input[0]) for maker in makers]
                return max((kind.dtype for kind in kinds if kind), key=count_bits, default="")
        return ""


def build_tasks(index: GraphIndex, compute: str | None = None) -> GraphTasks:
    """Return the tasks of a graph's nodes, in time linear in its size.

    A node with bodies is a task of its own, whose work excludes the bodies. With `compute` the float32
    tensors are of that type, for regions that compute in float16.
    """
    types: Mapping[str, TensorType] = index.types
    if index.planned.sizes:
        types = {name: fix_type(kind, index.planned.sizes) for name, kind in types.items()}
    if compute is not None:
        types = {name: _replace_float32(kind, compute) for name, kind in types.items()}
    sizes = Sizes(types, index.planned.sizes)
    numbers: dict[Any, int] = {}
    distinct: list[Task] = []
    of = np.full(len(index.nodes), -1, np.int64)
    constant, stored, reads = index.constant_nodes, index.constant_names, index.reads
    used = {*index.consumers, *index.outputs}
    once = _find_once_read(index)
    size = sizes.by_name
    nodes = zip(index.node_kinds, index.node_inputs, index.node_outputs, strict=True)
    for i, (kind, inputs, outputs) in enumerate(nodes):
        if i in constant:
            continue
        marked = kind.has_bodies or kind.op_type in _MARKED
        key = (
            kind,
            tuple(
                [
                    # Inputs of equal types, both or none of them constant, have one number.
                    (-2 - size[name].number if name in stored else size[name].number) if name else -1
                    for name in inputs
                ]
            ),
            len(reads[i]),
            tuple([size[name].number if name in used else -1 for name in outputs]),
            _distinguishing_marks(index, i, index.nodes[i]) if marked else 0,
            kind.op_type in _ELEMENTWISE and not once.isdisjoint(inputs),
        )
        number = numbers.setdefault(key, len(distinct))
        if number == len(distinct):
            distinct.append(_task(index, types, sizes, i, fused=key[-1]))
        of[i] = number
    return GraphTasks(index, types, sizes, distinct, of)


def _find_once_read(index: GraphIndex) -> frozenset[str]:
    """Return the tensors that one other node reads alone; an elementwise reader is fused with the maker.

    Constants and graph outputs are not among them.
    """
    producers, constant = index.producers, index.constant_nodes
    alone = [name for name, readers in index.consumers.items() if len(readers) == 1]
    made = [name for name in alone if producers.get(name, -1) >= 0 and name not in index.outputs]
    return frozenset([name for name in made if producers[name] not in constant])


def _replace_float32(kind: TensorType, dtype: str) -> TensorType:
    return replace(kind, dtype=dtype) if kind.dtype == "float32" else kind


def _distinguishing_marks(index: GraphIndex, number: int, node: NodeProto) -> Any:
    """Return properties that tell a node from others of its kind: constant inputs, bodies."""
    if number in index.bodies:
        return number
    if node.op_type == "Dropout" and get_input(node, 2):
        training = get_constant_value(index, node.input[2])
        return None if training is None else bool(training.any())
    counted = CountedNode(index, node, Sizes({}))
    return tuple(map(counted.get_value, VALUE_INPUTS.get(get_operator_name(node), ())))


def _task(
    index: GraphIndex, types: Mapping[str, TensorType], sizes: Sizes, number: int, *, fused: bool
) -> Task:
    node = index.nodes[number]
    outputs = [name for name in node.output if index.is_used(name)]
    first = types.get(node.output[0]) if node.output else None
    names = [*filter(None, node.input), *outputs]
    return Task(
        op=_name_operator(node),
        work=count_work(index, sizes, (number,)),
        dtype=first.dtype if first else "float32",
        inputs=tuple(map(types.get, node.input)),
        outputs=tuple(types.get(name) if index.is_used(name) else None for name in node.output),
        attributes={} if number in index.bodies else _attributes(index, node),
        sized=number not in index.bodies and all(map(sizes.is_known, names)),
        view=is_view(index, node),
        fused=fused,
    )


def _name_operator(node: NodeProto) -> str:
    """Return a node's operator as cost files name it, `acme::Odd` where its domain is not ONNX's own."""
    return node.op_type if is_onnx(node) else f"{node.domain}::{node.op_type}"


def _attributes(index: GraphIndex, node: NodeProto) -> dict[str, Any]:
    schema = index.get_schema(node)
    usual = {
        name: value
        for name, attribute in (schema.attributes.items() if schema else ())
        if (value := _default_value(attribute.default)) is not None
    }
    found = _plain_attributes(index.get_attributes(node))
    return {name: value for name, value in found if usual.get(name) != value}


def _default_value(default: AttributeProto | None) -> Any:
    if default is None:
        return None
    return get_stated_attributes(NodeProto(attribute=[default])).get(default.name)


def _plain_attributes(attributes: Attributes) -> Iterator[tuple[str, Any]]:
    for name, value in attributes.items():
        items = value if isinstance(value, list) else [value]
        if all(isinstance(item, (int, float, str)) for item in items):
            yield name, value
