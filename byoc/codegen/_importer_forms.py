"""Forms of a model that importers of ONNX want: what the standard lets a model leave out is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from byoc.codegen._interface import CompileError
from byoc.errors import InputError, suggest_nearest
from byoc.model import (
    DTYPE_NUMBERS,
    EditableGraph,
    get_node_name,
    get_stated_attributes,
    get_stated_types,
    infer_types,
    read_tensor_types,
    replace_weights,
    to_numpy_dtype,
    walk_graphs,
)

if TYPE_CHECKING:
    from onnx import GraphProto

    from byoc.model import TensorType

Types = Mapping[str, "TensorType"]
Want = Literal["zero_points", "inputs", "constants", "identity"]
"""A form that an importer wants: no zero point, no input in front of another is left out, constants are
initializers, there is no Identity."""

# By operator: the operand that gives the dtype, that which gives the shape (None: one number), and the
# place of the zero point, whose absence means zero (ONNX, and onnxruntime's com.microsoft).
_ZERO_POINTS: Mapping[str, Sequence[tuple[int, int | None, int]]] = {
    "DequantizeLinear": ((0, 1, 2),),
    "QuantizeLinear": ((0, 1, 2),),
    "MatMulInteger": ((0, None, 2), (1, None, 3)),
    "ConvInteger": ((0, None, 2), (1, None, 3)),
}
_DOMAINS = {"", "ai.onnx", "com.microsoft"}
_QUANTIZED_DTYPE = "uint8"  # what QuantizeLinear makes unless it says otherwise
_FIRST_IR_WITHOUT_INPUTS = 4  # before, an initializer is an input as well (onnx/docs/IR.md)
_OPEN_ENDED = "where ONNX has no number that means the same"


def write_wanted_forms(model: ModelProto, wants: Sequence[Want]) -> None:
    """Bring a model without functions into the forms that are wanted, in place.

    Raises InputError for a want that there is not, and CompileError, with the node, for a node that
    cannot be written so: a dtype or a shape is not known.
    """
    for want in (wants,) if isinstance(wants, str) else wants:
        if want not in get_args(Want):
            known = ", ".join(get_args(Want))
            hint = suggest_nearest(want, get_args(Want))
            raise InputError(f"a region has no form '{want}'{hint}; it has: {known}")
    if "constants" in wants:
        for graph in walk_graphs(model.graph):
            _edit(graph, model, _store_constant)
    if "identity" in wants:
        for graph in walk_graphs(model.graph):
            _drop_identities(graph, model)
    if {"zero_points", "inputs"}.intersection(wants):
        types = _find_types(model)
        for graph in walk_graphs(model.graph):
            if "zero_points" in wants:
                _edit(graph, model, lambda edit, node: _write_zero_points(edit, node, types))
            if "inputs" in wants:
                _edit(graph, model, lambda edit, node: _fill_inputs(edit, node, types))


def _edit(
    graph: GraphProto, model: ModelProto, change: Callable[[EditableGraph, NodeProto], None]
) -> None:
    """Change each node of a graph by a function, which may store tensors and remove the node."""
    edited = EditableGraph(graph, functions=model.functions)
    for body in walk_graphs(model.graph):  # new names are to be free in the graphs around, too
        if body is not graph:
            for name in _list_names(body):
                edited.names.new_tensor(name)
    for node in list(edited.nodes):
        change(edited, node)
    edited.write_to(graph)
    edited.write_stored(graph)
    if (
        model.ir_version < _FIRST_IR_WITHOUT_INPUTS and graph is model.graph
    ):  # initializers are inputs, too
        for tensor in edited.stored:
            kind = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
            graph.input.append(helper.make_value_info(tensor.name, kind))


def _list_names(graph: GraphProto) -> Iterator[str]:
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield from filter(None, node.output)


def _find_types(model: ModelProto) -> Types:
    """Return the types of all tensors, those of bodies included: names are unique in a region."""
    stated = get_stated_types(model)
    found = infer_types(replace_weights(model), stated).type_protos
    return read_tensor_types({**found, **stated})


def _store_constant(edited: EditableGraph, node: NodeProto) -> None:
    """Make an initializer of a Constant node; one that gives an output of the graph stays."""
    if node.op_type != "Constant" or node.domain not in _DOMAINS or node.output[0] in edited.outputs:
        return
    tensor = _read_constant(node.attribute[0])
    if tensor is not None:
        tensor.name = node.output[0]  # which bodies may read, too
        edited.stored.append(tensor)
        edited.remove(node)


def _read_constant(attribute: AttributeProto) -> TensorProto | None:
    """Return the tensor of a Constant, None for a sparse one."""
    value = helper.get_attribute_value(attribute)
    if attribute.name == "value":
        copied = TensorProto()
        copied.CopyFrom(value)
        return copied
    dtypes: dict[str, type] = {"value_float": np.float32, "value_floats": np.float32}
    dtypes |= {"value_int": np.int64, "value_ints": np.int64}
    dtypes |= {"value_string": np.object_, "value_strings": np.object_}
    if attribute.name not in dtypes:
        return None
    return numpy_helper.from_array(np.array(value, dtypes[attribute.name]))


def _drop_identities(graph: GraphProto, model: ModelProto) -> None:
    """Let readers of an Identity read its input; one that gives an output of the graph stays."""
    read_inside = {name for node in graph.node for name in _list_captures(node)}

    def drop(edited: EditableGraph, node: NodeProto) -> None:
        is_identity = node.op_type == "Identity" and node.domain in _DOMAINS
        if is_identity and node.output[0] not in {*edited.outputs, *read_inside}:
            edited.link(node.output[0], node.input[0])
            edited.remove(node)

    _edit(graph, model, drop)


def _list_captures(node: NodeProto) -> Iterator[str]:
    """Yield the names that the bodies of a node read."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            for body in walk_graphs(attribute.g):
                for inner in body.node:
                    yield from inner.input
                yield from (value.name for value in body.output)


def _write_zero_points(edited: EditableGraph, node: NodeProto, types: Types) -> None:
    if node.domain not in _DOMAINS:
        return
    for data, scale, place in _ZERO_POINTS.get(node.op_type, ()):
        if len(node.input) > place and node.input[place]:
            continue
        if node.op_type == "QuantizeLinear":
            number = get_stated_attributes(node).get("output_dtype", 0)
            dtype = _QUANTIZED_DTYPE if not number else _name_dtype(number)
        else:
            dtype = _require_type(node, node.input[data], types).dtype
        shape: tuple[int, ...] = ()
        if scale is not None:
            shape = _require_shape(node, node.input[scale], types)
        values = np.zeros(shape, to_numpy_dtype(dtype))
        _set_input(node, place, edited.store(values, f"{node.output[0]}_zero_point"))


def _name_dtype(number: int) -> str:
    return next(name for name, each in DTYPE_NUMBERS.items() if each == number)


def _fill_inputs(edited: EditableGraph, node: NodeProto, types: Types) -> None:
    """Leave out empty inputs at the end, and give those in front of others what their absence means."""
    while node.input and not node.input[-1]:
        del node.input[-1]
    for place, name in enumerate(node.input):
        if name:
            continue
        values = _make_default(node, place, types)
        if values is None:
            raise CompileError(
                f"{node.op_type} leaves out its input {place}, {_OPEN_ENDED}", [get_node_name(node)]
            )
        node.input[place] = edited.store(values, f"{node.output[0]}_input_{place}")


def _make_default(node: NodeProto, place: int, types: Types) -> np.ndarray | None:
    """Return the array that an omitted input stands for, None where there is none."""
    find = _DEFAULTS.get((node.op_type, place)) if node.domain in _DOMAINS else None
    return None if find is None else find(node, place, types)


def _make_lowest(node: NodeProto, _: int, types: Types) -> np.ndarray:
    dtype = to_numpy_dtype(_require_type(node, node.input[0], types).dtype)
    return np.array(np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf, dtype)


def _make_zero(node: NodeProto, _: int, types: Types) -> np.ndarray:
    dtype = _require_type(node, node.input[0], types).dtype
    return np.array("" if dtype == "string" else 0, to_numpy_dtype(dtype))


def _count_axes(node: NodeProto, _: int, types: Types) -> np.ndarray:
    return np.arange(*_require_shape(node, node.input[1], types), dtype=np.int64)


def _make_recurrent_default(node: NodeProto, place: int, types: Types) -> np.ndarray | None:
    """Return the bias, lengths, first state or peepholes of a recurrent operator that has none."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[node.op_type]
    directions, rows, _ = _require_shape(node, node.input[1], types)
    kind = _require_type(node, node.input[0], types)
    dtype, hidden = to_numpy_dtype(kind.dtype), rows // gates
    layout = get_stated_attributes(node).get("layout", 0)
    length, batch = _require_shape(node, node.input[0], types)[:2][:: -1 if layout else 1]
    state = (batch, directions, hidden) if layout else (directions, batch, hidden)
    if place == 4:
        return np.full(batch, length, np.int32)
    shapes = {3: (directions, 2 * rows), 5: state, 6: state, 7: (directions, 3 * hidden)}
    return np.zeros(shapes[place], dtype) if place in shapes else None


def _set_input(node: NodeProto, place: int, name: str) -> None:
    node.input.extend([""] * (place + 1 - len(node.input)))
    node.input[place] = name


def _require_type(node: NodeProto, name: str, types: Types) -> TensorType:
    if name not in types:
        raise CompileError(f"the dtype of '{name}' is not known", [get_node_name(node)])
    return types[name]


def _require_shape(node: NodeProto, name: str, types: Types) -> tuple[int, ...]:
    shape = _require_type(node, name, types).shape
    if shape is None or not all(isinstance(dim, int) for dim in shape):
        raise CompileError(f"the shape of '{name}' is not fixed", [get_node_name(node)])
    return tuple(int(dim) for dim in shape)  # type: ignore[arg-type]


# By operator and place of the input: what its absence means, for each that may stand in front of others.
_DEFAULTS: Mapping[tuple[str, int], Callable[[NodeProto, int, Types], np.ndarray | None]] = {
    ("Clip", 1): _make_lowest,
    ("Pad", 2): _make_zero,
    ("Slice", 3): _count_axes,
    ("Dropout", 1): lambda *_: np.array(0.5, np.float32),
    ("Resize", 1): lambda *_: np.zeros(0, np.float32),
    ("ConvInteger", 2): _make_zero,
    ("MatMulInteger", 2): _make_zero,
    **{
        (operator, place): _make_recurrent_default
        for operator in ("LSTM", "GRU", "RNN")
        for place in range(3, 7)
    },
}
