"""The nine classic networks of the `onnx` package, made into models whose numeric errors show.

The `onnx` package carries nine well-known networks without their weights: one node per weight makes
a tensor filled with one constant. Equal weights hide errors (swap two channels: nothing changes),
so each gets random values; and what is odd about files from 2018 goes, if it is not structure.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from byoc.errors import InputError, suggest_nearest
from byoc.zoo._provider import ZooEntry
from byoc.zoo._sample_inputs import make_photo
from byoc.zoo._seeded_weights import derive_seed, draw_uniform
from byoc.zoo._weight_roles import WeightGraph, choose_spread

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
