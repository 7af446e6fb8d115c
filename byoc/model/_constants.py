"""The values of small constants, and constant folding with ONNX's reference implementation."""

from collections.abc import Collection
from copy import deepcopy
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from byoc.errors import InputError
from byoc.model._graph_index import GraphIndex
from byoc.model._tensor_data import read_array, read_type
from byoc.model._walk import copy_without

_MAX_ELEMENTS = 1024  # of a value that is followed: shapes, indices, axes; weights are not
_MAX_NODES = 16  # nodes that are evaluated for one constant
_MAX_INNER_ELEMENTS = 65_536  # of each value on the way to a constant
# Operators that exporters leave for the loader to compute. Their work is bounded by the size of inputs
# and outputs, and shape inference gives the size of outputs in advance.
_EVALUATED_OPERATORS = """
    Abs Add And Cast CastLike Ceil Clip Concat Constant ConstantOfShape Cos CumSum DequantizeLinear
    Div Equal Erf Exp Expand EyeLike Flatten Floor Gather GatherElements GatherND Greater
    GreaterOrEqual Identity Less LessOrEqual Log MatMul Max Mean Min Mod Mul Neg NonZero Not OneHot
    Or Pad Pow QuantizeLinear Range Reciprocal ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
    Relu Reshape Round ScatterElements ScatterND Shape Sigmoid Sign Sin Size Slice Split Sqrt
    Squeeze Sub Sum Tanh Tile Transpose Trilu Unsqueeze Where Xor
"""
_BOUNDED_BY_INPUT = frozenset(
    {"NonZero"}
)  # its output has an index for each element and axis of its input
# The attributes of Constant beside a tensor (ONNX's documentation of Constant), and their dtypes.
_CONSTANT_DTYPES: dict[str, type] = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}


def get_constant_value(index: GraphIndex, tensor: str) -> NDArray[Any] | None:
    """Return the value of a constant of at most 1,024 elements, None if it is larger or not known.

    It may be stored, in a Constant node, or computed from such by a few operators (with ONNX's reference
    implementation). The array must not be written to.
    """
    if tensor not in index.constant_values:
        index.constant_values[tensor] = _find_value(index, tensor)
    return index.constant_values[tensor]


def find_constant_value(
    index: GraphIndex, tensor: str, folder: Path | None = None
) -> NDArray[Any] | None:
    """Return the value of a constant as `get_constant_value`, that of a stored one of any size.

    `folder` is the directory of external data; its tensors are not known without it, nor are those
    whose data do not have their shape.
    """
    stored = index.stored_tensors.get(tensor)
    if stored is None:
        return get_constant_value(index, tensor)
    try:
        return read_array(stored, folder)
    except (InputError, ValueError, TypeError):  # external data, and nobody said where; or broken
        return None


def _find_value(index: GraphIndex, tensor: str) -> NDArray[Any] | None:
    stored = index.stored_tensors.get(tensor)
    if stored is not None:
        return _read_small(stored)
    number = index.producers.get(tensor)
    if number is None:
        return get_constant_value(index.outer, tensor) if index.outer is not None else None
    if number not in index.constant_nodes:
        return None
    node = index.nodes[number]
    if _is_numeric_constant(node):
        return _read_constant_node(node)
    return _compute_tensor(index, tensor)


def _is_numeric_constant(node: NodeProto) -> bool:
    if node.op_type != "Constant" or not node.attribute:
        return False
    return not node.attribute[0].name.startswith("value_string")


def _read_constant_node(node: NodeProto) -> NDArray[Any] | None:
    """Return the value of a Constant node, None for a large or sparse one."""
    for attribute in node.attribute:
        if attribute.name == "value":
            return _read_small(attribute.t)
        kind = _CONSTANT_DTYPES.get(attribute.name)
        if kind is not None:
            value: NDArray[Any] = np.array(helper.get_attribute_value(attribute), kind)
            return value if value.size <= _MAX_ELEMENTS else None
    return None


def _compute_tensor(index: GraphIndex, tensor: str) -> NDArray[Any] | None:
    known = index.types.get(tensor)
    if known is not None and (known.elements or 0) > _MAX_ELEMENTS:
        return None
    numbers = index.find_constant_nodes([tensor])
    if len(numbers) > _MAX_NODES:
        return None
    values: dict[str, NDArray[Any]] = {}
    for number in numbers:
        node = index.nodes[number]
        for name in node.input:
            if name in index.stored_tensors and name not in values:
                stored = _read_small(index.stored_tensors[name])
                if stored is None:
                    return None
                values[name] = stored
        made = _compute_node(index, node, [values[name] for name in node.input if name])
        if made is None:
            return None
        values.update(zip(node.output, made, strict=False))
    value = values.get(tensor)
    return value if value is not None and value.size <= _MAX_ELEMENTS else None


def _compute_node(
    index: GraphIndex, node: NodeProto, given: list[NDArray[Any]]
) -> list[NDArray[Any]] | None:
    """Compute the outputs of a node for some inputs, None if they are not known to be small.

    The size of outputs is checked before they are computed: a few bytes in a file can stand for a tensor
    that does not fit into memory.
    """
    if _is_numeric_constant(node):
        value = _read_constant_node(node)
        return None if value is None else [value]
    if node.op_type not in _EVALUATED_OPERATORS.split():
        return None
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415 - slow to import, seldom needed

    names = [name for name in node.input if name]
    outputs = [name for name in node.output if name]
    try:
        graph = helper.make_graph(
            [node],
            "constant",
            [],
            [onnx.ValueInfoProto(name=name) for name in outputs],
            [
                _rename_tensor(numpy_helper.from_array(a), name)
                for name, a in dict(zip(names, given, strict=True)).items()
            ],
        )
        model = helper.make_model(
            graph, opset_imports=index.proto.opset_import, ir_version=index.proto.ir_version
        )
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=False)
        sizes = {value.name: _count_elements(value.type) for value in inferred.graph.output}
        if node.op_type not in _BOUNDED_BY_INPUT and any(
            size is None or size > _MAX_INNER_ELEMENTS for size in map(sizes.get, outputs)
        ):
            return None
        made = ReferenceEvaluator(model).run(None, {})
    except Exception:  # the reference implementation lacks it, or its attributes are wrong
        return None
    found = dict(zip(outputs, made, strict=True))
    result = [found.get(name) for name in node.output]
    return [np.zeros(0) if value is None else np.asarray(value) for value in result]


def _count_elements(kind: onnx.TypeProto) -> int | None:
    known = read_type(kind)
    return known.elements if known is not None else None


def _read_small(tensor: TensorProto) -> NDArray[Any] | None:
    if prod(tensor.dims) > _MAX_ELEMENTS or tensor.data_location == TensorProto.EXTERNAL:
        return None
    try:
        return numpy_helper.to_array(tensor)
    except Exception:  # types that numpy does not know
        return None


def _rename_tensor(tensor: TensorProto, name: str) -> TensorProto:
    result = deepcopy(tensor)
    result.name = name
    return result


# The reference implementation has DequantizeLinear from this version on.
_DEQUANTIZE_OPSET = 19


@cache
def _define_early_dequantize() -> type:
    """Return DequantizeLinear of operator sets 10 and 13 for ONNX's reference implementation.

    It has one scale, or one for each element of an axis.
    """
    from onnx.reference.op_run import OpRun  # noqa: PLC0415 - slow to import, seldom needed

    class DequantizeLinear(OpRun):  # the evaluator goes by the name
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

    return DequantizeLinear


@cache
def _define_gather_elements() -> type:
    """Return GatherElements for ONNX's reference implementation, whose own is wrong for some shapes.

    It fails where the data has over 64 elements along the axis and the indices have fewer (onnx 1.23).
    """
    from onnx.reference.op_run import OpRun  # noqa: PLC0415 - slow to import, seldom needed

    class GatherElements(OpRun):  # the evaluator goes by the name
        op_domain = ""

        def _run(
            self, data: NDArray[np.generic], indices: NDArray[np.integer], axis: int | None = None
        ) -> tuple[NDArray[np.generic]]:
            places: list[NDArray[np.integer]] = list(np.ogrid[tuple(map(slice, indices.shape))])
            places[axis or 0] = indices
            return (data[tuple(places)],)

    return GatherElements


def evaluate_constants(model: ModelProto) -> list[NDArray[Any]]:
    """Return the outputs of a model without inputs, by ONNX's reference implementation."""
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415 - slow to import, seldom needed

    opset = next((each.version for each in model.opset_import if not each.domain), 1)
    new_operators = [_define_gather_elements()]
    new_operators += [_define_early_dequantize()] if opset < _DEQUANTIZE_OPSET else []
    return [
        np.asarray(value) for value in ReferenceEvaluator(model, new_ops=new_operators).run(None, {})
    ]


def fold_constants(model: ModelProto, kept: Collection[int] = ()) -> ModelProto:
    """Return the model with its constant nodes replaced by initializers, all but those in `kept`.

    The data that these nodes read must be embedded (`list_folded_reads`); other data may be external.
    """
    index = GraphIndex.of_model(model)
    if index.constant_nodes <= set(kept):
        return model
    computed, made = _find_folded(index, kept)
    read = {name for i in computed for name in index.reads[i]}
    graph = onnx.helper.make_graph(
        [index.nodes[i] for i in computed],
        "constants",
        [],
        [onnx.ValueInfoProto(name=name) for name in made],
        [tensor for name, tensor in index.initializers.items() if name in read],
    )
    constants = onnx.helper.make_model(
        graph, opset_imports=model.opset_import, ir_version=model.ir_version
    )
    values = evaluate_constants(constants)
    result = copy_without(model, "node")
    left = [i for i in range(len(index.nodes)) if i in kept or i not in index.constant_nodes]
    result.graph.node.extend(index.nodes[i] for i in left)
    result.graph.initializer.extend(map(numpy_helper.from_array, values, made))
    return result


def list_folded_reads(index: GraphIndex, kept: Collection[int] = ()) -> frozenset[str]:
    """Return the tensors whose values `fold_constants` reads."""
    return frozenset(name for i in _find_folded(index, kept)[0] for name in index.reads[i])


def _find_folded(index: GraphIndex, kept: Collection[int]) -> tuple[list[int], list[str]]:
    """Return the constant nodes that are computed, in order, and the tensors that become stored."""
    folded = [i for i in sorted(index.constant_nodes) if i not in kept]
    made = [
        name
        for i in folded
        for name in index.nodes[i].output
        if name in index.outputs
        or any(j in kept or j not in index.constant_nodes for j in index.consumers.get(name, ()))
    ]
    needed = set(made)
    computed: list[int] = []
    for i in sorted(index.constant_nodes, reverse=True):
        if not needed.isdisjoint(index.nodes[i].output):
            needed.update(index.reads[i])
            computed.insert(0, i)
    return computed, made
