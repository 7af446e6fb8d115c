"""The nine classic networks of the `onnx` package, made into models whose numeric errors show.

The `onnx` package carries nine well-known networks without their weights: one node per weight makes
a tensor filled with one constant. Equal weights hide errors (swap two channels: nothing changes),
so each gets random values; and what is odd about files from 2018 goes, if it is not structure.
"""

from collections.abc import Mapping
from functools import lru_cache
from math import prod, sqrt
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from byoc._dataclasses import dataclass
from byoc.errors import InputError, suggest_nearest
from byoc.zoo._sample_inputs import UniformSpread, derive_seed, draw_uniform, make_photo
from byoc.zoo._trained_models import ZooEntry

# The first with everything a partition is written with (overloads of functions, metadata of nodes),
# and read by every onnxruntime since 1.18. From 4 on, initializers need not be inputs.
IR_VERSION = 10


def make_runnable(light: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return a model with the structure of `light`, seeded random weights and a batch of 1.

    Nodes, their attributes and order, tensor names and the opset stay; the ConstantOfShape nodes
    that stood for weights become float32 initializers, and every float initializer gets new values:
    the trained ones that some files hold do not go with random ones around them. Inputs and
    initializers that nothing uses are dropped, and recorded shapes of intermediate tensors, which
    may hold the old batch. `light` is not changed. The weights depend on `name`, the tensors' names
    and shapes, and their use.

    Raises `InputError` when `light` is not built as the light models are.
    """
    shapes = _find_weights(light.graph)
    wiring = WeightGraph.from_graph(light.graph)
    model = onnx.ModelProto(
        ir_version=IR_VERSION,
        opset_import=light.opset_import,
        producer_name=light.producer_name,
        producer_version=light.producer_version,
        doc_string=f"{name}: the structure of light_{name}.onnx with seeded random weights",
    )
    graph = model.graph
    graph.name = light.graph.name
    graph.node.extend(node for node in light.graph.node if not set(node.output) & shapes.keys())
    _name_nodes(graph)
    used = {tensor for node in graph.node for tensor in node.input}
    for weight, shape in shapes.items():
        if weight in used:
            values = draw_uniform(derive_seed(name, weight), shape, choose_spread(weight, shape, wiring))
            # Filled in place: a tensor appended would be copied once more, and some are 400 MB.
            tensor = graph.initializer.add(name=weight, data_type=TensorProto.FLOAT, dims=shape)
            tensor.raw_data = values.astype("<f4", copy=False).tobytes()
    rest = (tensor for tensor in light.graph.initializer if tensor.name not in shapes)
    graph.initializer.extend(tensor for tensor in rest if tensor.name in used)
    graph.input.append(find_data_input(light.graph, name))
    graph.output.extend(light.graph.output)
    _set_batch(graph)
    return model


def _find_weights(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of all weights: float initializers, and constants that a node makes."""
    stored = {tensor.name: tensor for tensor in graph.initializer}
    shapes = {
        tensor.name: tuple(tensor.dims)
        for tensor in graph.initializer
        if tensor.data_type == TensorProto.FLOAT
    }
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in stored:
            shape = numpy_helper.to_array(stored[node.input[0]])
            shapes[node.output[0]] = tuple(int(size) for size in shape)
    return shapes


def find_data_input(graph: onnx.GraphProto, name: str) -> onnx.ValueInfoProto:
    """Return the one input that a node uses and no initializer fills."""
    filled = {tensor.name for tensor in graph.initializer}
    used = {tensor for node in graph.node for tensor in node.input}
    found: list[onnx.ValueInfoProto] = [value for value in graph.input if value.name in used - filled]
    if len(found) != 1:
        raise InputError(f"zoo:{name}: has {len(found)} inputs without a value, expected one image")
    return found[0]


def _name_nodes(graph: onnx.GraphProto) -> None:
    """Name each nameless node after its first output, which is unique and survives regrouping."""
    taken = {node.name for node in graph.node}
    for node in graph.node:
        if not node.name:
            node.name = node.output[0]
            while node.name in taken:
                node.name += "_"
            taken.add(node.name)


def _set_batch(graph: onnx.GraphProto) -> None:
    """Set the batch to 1 in the input, in the outputs and in the shapes that reshape the signal.

    A shape that reshapes a weight may begin with the same number and stays.
    """
    batch = graph.input[0].type.tensor_type.shape.dim[0].dim_value
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    signal = {graph.input[0].name}
    targets = set()
    for node in graph.node:
        if signal.isdisjoint(node.input):
            continue
        signal.update(node.output)
        if node.op_type == "Reshape":
            targets.add(node.input[1])
    for tensor in graph.initializer:
        if tensor.name in targets:
            shape = numpy_helper.to_array(tensor).copy()
            if shape[0] == batch:
                shape[0] = 1
                tensor.CopyFrom(numpy_helper.from_array(shape, tensor.name))


_PREFIX = "light_"
_FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


class ClassicModels:
    """Structures from the `onnx` package, with seeded random weights."""

    def entries(self) -> tuple[ZooEntry, ...]:
        """Return them by name. Raises `InputError` when `onnx` was installed without them."""
        return tuple(
            ZooEntry(
                name=name,
                family="convolutional classifier",
                source=f"onnx package, test data {path.name}",
                licence="Apache-2.0",
                weights="random, seeded",
                nodes=_count_nodes(path),
            )
            for name, path in _find_files().items()
        )

    def load(self, name: str) -> onnx.ModelProto:
        """Make a model: float32, batch 1, seeded random weights, the same on every machine."""
        return make_runnable(load_structure(name), name)

    def sample_inputs(self, name: str, seed: int) -> dict[str, NDArray[Any]]:
        """Return a normalized image, `[1, channels, height, width]`."""
        value = find_data_input(load_structure(name).graph, name)
        _, *shape = (dim.dim_value for dim in value.type.tensor_type.shape.dim)
        return {value.name: make_photo(seed, *shape)}


def load_structure(name: str) -> onnx.ModelProto:
    """Return the light model as the `onnx` package ships it: old format, constants for weights.

    Raises `InputError` for a name that is none of the nine, and when `onnx` was installed without them.
    """
    files = _find_files()
    if name not in files:
        raise InputError(
            f"zoo: no light model named {name!r}{suggest_nearest(name, files)}; "
            f"available: {', '.join(files)}"
        )
    return onnx.load(files[name])


@lru_cache
def _count_nodes(path: Path) -> int:
    """Count the nodes without those that only stand for weights."""
    return sum(node.op_type != "ConstantOfShape" for node in onnx.load(path).graph.node)


def _find_files() -> dict[str, Path]:
    """Return the light files by model name, sorted."""
    files = sorted(_FOLDER.glob(f"{_PREFIX}*.onnx"))
    if not files:
        raise InputError(
            f"the installed onnx {onnx.__version__} carries no light models in {_FOLDER}; "
            "the wheel from the package index does"
        )
    return {path.stem.removeprefix(_PREFIX): path for path in files}


# The role of each weight, derived from the graph around it, and a distribution for that role.
#
# The aim is a network whose signal keeps about unit variance from the image to the logits, however
# deep it is, so that an error anywhere shows in the output. Names decide nothing here.

_NEAR_ZERO = UniformSpread(0.0, 0.1)
_NEAR_ONE = UniformSpread(1.0, 0.2)
_BY_USE = {
    ("Conv", 2): _NEAR_ZERO,
    ("Gemm", 2): _NEAR_ZERO,
    ("BatchNormalization", 1): _NEAR_ONE,
    ("BatchNormalization", 2): _NEAR_ZERO,
    ("BatchNormalization", 3): _NEAR_ZERO,
    ("BatchNormalization", 4): _NEAR_ONE,
    ("Mul", 0): _NEAR_ONE,
    ("Mul", 1): _NEAR_ONE,
    ("Add", 0): _NEAR_ZERO,
    ("Add", 1): _NEAR_ZERO,
}
_KERNELS = {("Conv", 1), ("Gemm", 1)}

_RESHAPING = {"Reshape", "Unsqueeze"}
_NORMALIZING = {"Add", "BatchNormalization", "Mul"}
# Ops whose output resembles their first input in scale.
_CARRIERS = _NORMALIZING | {
    "AveragePool",
    "Concat",
    "Dropout",
    "GlobalAveragePool",
    "LRN",
    "Reshape",
    "Transpose",
}

# Second moment of what comes out, for a unit normal distribution before the ReLU. Half of it is
# lost to the ReLU (He et al., "Delving deep into rectifiers", 2015); a MaxPool behind it takes most
# of that back, the more the less neighbours resemble each other: 0.9 suits these nine networks.
_POWERS = {"Relu": 0.5, "MaxPool": 0.9}
# Of a residual branch's power, what is added to the shortcut's: sixteen blocks in a row then
# multiply the power by less than ten, where branches of full power would make that thousands.
_BRANCH = 0.15


@dataclass(frozen=True)
class WeightGraph:
    """A graph as maps from tensor names to producers, consumers and integer values."""

    producer: Mapping[str, onnx.NodeProto]
    uses: Mapping[str, tuple[tuple[onnx.NodeProto, int], ...]]
    integers: Mapping[str, tuple[int, ...]]

    @classmethod
    def from_graph(cls, graph: onnx.GraphProto) -> "WeightGraph":
        """Index `graph`; `integers` holds its int64 initializers, the shapes to reshape to."""
        uses: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
        for node in graph.node:
            for position, name in enumerate(node.input):
                uses.setdefault(name, []).append((node, position))
        return cls(
            producer={name: node for node in graph.node for name in node.output if name},
            uses={name: tuple(found) for name, found in uses.items()},
            integers={
                tensor.name: tuple(numpy_helper.to_array(tensor).tolist())
                for tensor in graph.initializer
                if tensor.data_type == onnx.TensorProto.INT64
            },
        )


def choose_spread(weight: str, shape: tuple[int, ...], wiring: WeightGraph) -> UniformSpread:
    """Choose the distribution of the weight called `weight`.

    Raises `InputError` when the weight is used in a way for which no distribution is known.
    """
    node, position = wiring.uses[weight][0]
    while node.op_type in _RESHAPING and position == 0:
        if node.op_type == "Reshape":
            shape = wiring.integers[node.input[1]]
        node, position = wiring.uses[node.output[0]][0]
    use = (node.op_type, position)
    if use in _KERNELS:
        return UniformSpread(0.0, sqrt(3.0 * _compute_gain(node, wiring) / _count_fan_in(node, shape)))
    if use not in _BY_USE:
        raise InputError(f"zoo: {weight} is input {position} of {node.op_type}: no rule for its values")
    return _BY_USE[use]


def _count_fan_in(node: onnx.NodeProto, shape: tuple[int, ...]) -> int:
    """Count the products in one output value; a Conv kernel holds those of one group."""
    flags = {attribute.name: attribute.i for attribute in node.attribute}
    outputs = shape[1] if node.op_type == "Gemm" and not flags.get("transB", 0) else shape[0]
    return prod(shape) // outputs


def _compute_gain(node: onnx.NodeProto, wiring: WeightGraph) -> float:
    """Return the variance times fan-in of a kernel's values that suits its input and output."""
    return _compute_share(node.output[0], wiring) / _estimate_power(node.input[0], wiring)


def _estimate_power(tensor: str, wiring: WeightGraph) -> float:
    """Estimate the second moment of a tensor's values, given that kernels give a unit variance."""
    source = _find_source(tensor, wiring, _CARRIERS)
    if source is None or source.op_type not in _POWERS:
        return 1.0
    before = wiring.producer.get(source.input[0])
    if before is not None and before.op_type == "Sum":
        return 1.0  # a shortcut is positive already: the ReLU behind it takes little
    return _POWERS[source.op_type]


def _compute_share(tensor: str, wiring: WeightGraph) -> float:
    """Return the target variance of a kernel's output: below 1 where a Sum adds it to others."""
    users = wiring.uses.get(tensor, ())
    while len(users) == 1 and users[0][0].op_type in _NORMALIZING:
        users = wiring.uses.get(users[0][0].output[0], ())
    for user, _ in users:
        if user.op_type == "Sum":
            addends = [_find_source(name, wiring, _NORMALIZING) for name in user.input]
            fresh = all(addend is not None and addend.op_type == "Conv" for addend in addends)
            return 1.0 / len(addends) if fresh else _BRANCH
    return 1.0


def _find_source(tensor: str, wiring: WeightGraph, through: set[str]) -> onnx.NodeProto | None:
    """Return the producer of `tensor`, looking through the given operators; None at a graph input."""
    while (node := wiring.producer.get(tensor)) is not None and node.op_type in through:
        tensor = node.input[0]
    return node
