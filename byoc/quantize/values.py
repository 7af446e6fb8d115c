"""The values of constants, however large: read or computed one at a time, and not kept."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from byoc.graph.index import GraphIndex
from byoc.graph.tensors import raw_bytes


def array_of(tensor: TensorProto, folder: Path | None) -> NDArray[Any]:
    """Return a stored tensor as an array, wherever its bytes lie. Raises as `raw_bytes` does."""
    if tensor.data_location != TensorProto.EXTERNAL:
        return numpy_helper.to_array(tensor)
    whole = TensorProto(data_type=tensor.data_type, dims=tensor.dims)
    whole.raw_data = raw_bytes(tensor, folder)
    return numpy_helper.to_array(whole)


def value_of(index: GraphIndex, name: str, folder: Path | None) -> NDArray[Any]:
    """Return the value of a constant: what is stored, or what ONNX's reference makes of what is."""
    if name in index.stored:
        return array_of(index.stored[name], folder)
    numbers = index.constants_behind([name])
    nodes = [index.nodes[number] for number in numbers]
    read = {other for node in nodes for other in node.input if other in index.stored}
    graph = helper.make_graph(
        nodes,
        "constant",
        [],
        [ValueInfoProto(name=name)],
        [
            numpy_helper.from_array(array_of(index.stored[other], folder), other)
            for other in sorted(read)
        ],
    )
    imports = index.proto.opset_import
    model = helper.make_model(graph, opset_imports=imports, ir_version=index.proto.ir_version)
    made: Sequence[Any] = ReferenceEvaluator(model).run(None, {})  # type: ignore[assignment]
    return np.asarray(made[0])
