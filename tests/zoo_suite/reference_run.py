"""What a model does in onnxruntime, node by node: how often each runs, and the shapes of its tensors.

onnxruntime's profile states the shapes of what every kernel read and wrote, in bodies of If, Loop and
Scan, too. Nothing of byoc is asked here, so its shapes and its work can be held to this.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, NodeProto

Shape = tuple[int, ...]
Key = str
"""The path of a node: the graphs around it, and its position, as `3/then_branch/0/7`."""

_PREFIX = "suite:"


@dataclass(frozen=True)
class Execution:
    """One run of a node: the shapes of what it read and wrote, without what was left out.

    `dtypes` are those of the outputs as onnxruntime calls them: `float`, `int64`.
    """

    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    dtypes: tuple[str, ...]


def walk_nodes(graph: GraphProto, path: str = "") -> Iterator[tuple[Key, NodeProto]]:
    """Yield the nodes of a graph and of all bodies inside with their keys."""
    for number, node in enumerate(graph.node):
        key = f"{path}{number}"
        yield key, node
        for name, position, body in list_bodies(node):
            yield from walk_nodes(body, f"{key}/{name}/{position}/")


def list_bodies(node: NodeProto) -> Iterator[tuple[str, int, GraphProto]]:
    """Yield the bodies of a node: the attribute, the position in it, and the graph."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.name, 0, attribute.g
        for position, body in enumerate(attribute.graphs):
            yield attribute.name, position, body


def run_profiled(
    model: onnx.ModelProto, inputs: Mapping[str, NDArray[Any]]
) -> dict[Key, list[Execution]]:
    """Run a model once in onnxruntime, without optimizations, and return what each of its nodes did.

    A node that did not run (the other branch of an If) is left out, and so is one that onnxruntime
    replaces by others because it has no kernel of its own for it.
    """
    renamed = onnx.ModelProto()
    renamed.CopyFrom(model)
    for key, node in walk_nodes(renamed.graph):
        node.name = f"{_PREFIX}{key}"
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.enable_profiling = True
    # Weights that a kernel packs anew vanish, and their shapes with them.
    options.add_session_config_entry("session.disable_prepacking", "1")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        onnx.save(renamed, file, save_as_external_data=True, location="weights")
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = onnxruntime.InferenceSession(os.fspath(file), options, ["CPUExecutionProvider"])
        given = {value.name for value in session.get_inputs()}
        session.run(None, {name: array for name, array in inputs.items() if name in given})
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    found: dict[Key, list[Execution]] = {}
    for event in events:
        name = event.get("name", "").removesuffix("_kernel_time")
        name = name.partition("/duplicated")[0]  # a DequantizeLinear of two readers runs for each
        if event.get("cat") == "Node" and name.startswith(_PREFIX) and "args" in event:
            if "output_type_shape" not in event["args"]:
                continue
            execution = Execution(
                _read_shapes(event["args"]["input_type_shape"]),
                _read_shapes(event["args"]["output_type_shape"]),
                tuple(dtype for each in event["args"]["output_type_shape"] for dtype in each),
            )
            found.setdefault(name.removeprefix(_PREFIX), []).append(execution)
    return found


def _read_shapes(stated: list[dict[str, list[int]]]) -> tuple[Shape, ...]:
    return tuple(tuple(shape) for each in stated for shape in each.values())
