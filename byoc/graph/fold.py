"""Constant folding with ONNX's reference implementation."""

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from byoc.graph.copying import copy_without
from byoc.graph.index import GraphIndex, get_stated_types

# The reference implementation has DequantizeLinear from this version on.
_DEQUANTIZE_OPSET = 19


class _EarlyDequantizeLinear(OpRun):
    """DequantizeLinear of operator sets 10 and 13: one scale, or one for each element of an axis."""

    op_domain = ""

    def _run(
        self,
        x: NDArray[np.generic],
        x_scale: NDArray[np.generic],
        x_zero_point: NDArray[np.generic] | None = None,
        axis: int | None = None,
        **later: object,
    ) -> tuple[NDArray[np.generic]]:
        shape = [1] * x.ndim
        if x_scale.size > 1:
            shape[1 if axis is None else axis] = x_scale.size
        scale = x_scale.reshape(shape if x_scale.size > 1 else ())
        values = x.astype(np.int64)
        if x_zero_point is not None:
            values = values - x_zero_point.astype(np.int64).reshape(scale.shape)
        return (values.astype(scale.dtype) * scale,)


_EarlyDequantizeLinear.__name__ = "DequantizeLinear"  # the evaluator goes by the name


def fold_constants(model: ModelProto) -> ModelProto:
    """Return the model with its constant nodes replaced by initializers.

    The data that these nodes read must be embedded; other data may be external.
    """
    index = GraphIndex(model, get_stated_types(model))
    constant = sorted(index.constant_nodes)
    if not constant:
        return model
    read = {name for i in constant for name in index.reads[i]}
    made = [name for i in constant for name in index.nodes[i].output if index.is_used(name)]
    graph = onnx.helper.make_graph(
        [index.nodes[i] for i in constant],
        "constants",
        [],
        [onnx.ValueInfoProto(name=name) for name in made],
        [tensor for name, tensor in index.initializers.items() if name in read],
    )
    constants = onnx.helper.make_model(
        graph, opset_imports=model.opset_import, ir_version=model.ir_version
    )
    early = index.opsets.get("", 1) < _DEQUANTIZE_OPSET
    values = ReferenceEvaluator(constants, new_ops=[_EarlyDequantizeLinear] if early else []).run(None, {})
    result = copy_without(model, "node")
    result.graph.node.extend(n for i, n in enumerate(index.nodes) if i not in index.constant_nodes)
    result.graph.initializer.extend(map(numpy_helper.from_array, values, made))
    return result
