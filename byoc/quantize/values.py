"""The values of constants, which are read or computed on demand and not kept."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ValueInfoProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from byoc.graph.index import GraphIndex
from byoc.graph.tensors import read_array


def read_constant(index: GraphIndex, name: str, folder: Path | None) -> NDArray[Any]:
    """Return the value of a constant: the stored one, or computed by ONNX's reference implementation."""
    if name in index.stored_tensors:
        return read_array(index.stored_tensors[name], folder)
    numbers = index.find_constant_nodes([name])
    nodes = [index.nodes[number] for number in numbers]
    read = {other for node in nodes for other in node.input if other in index.stored_tensors}
    graph = helper.make_graph(
        nodes,
        "constant",
        [],
        [ValueInfoProto(name=name)],
        [
            numpy_helper.from_array(read_array(index.stored_tensors[other], folder), other)
            for other in sorted(read)
        ],
    )
    imports = index.proto.opset_import
    model = helper.make_model(graph, opset_imports=imports, ir_version=index.proto.ir_version)
    made: Sequence[Any] = ReferenceEvaluator(model).run(None, {})  # type: ignore[assignment]
    return np.asarray(made[0])
