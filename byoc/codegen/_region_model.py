"""Forms of a region's model: what `Region` answers from, and what importers of ONNX want."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from byoc._dataclasses import dataclass
from byoc.boundary.contracts import TensorContract
from byoc.codegen._interface import CompileError
from byoc.codegen._operations import find_composite, find_conversions, instantiate_body
from byoc.errors import InputError, suggest_nearest
from byoc.memory import arena, reading
from byoc.model import (
    DTYPE_NUMBERS,
    Dim,
    EditableGraph,
    GraphIndex,
    NameAllocator,
    TensorType,
    copy_without,
    drop_named,
    embed_external_data,
    fold_constants,
    get_node_name,
    get_stated_attributes,
    get_stated_types,
    infer_types,
    is_dequantize,
    is_onnx,
    list_folded_reads,
    read_tensor_types,
    replace_weights,
    to_numpy_dtype,
    walk_graphs,
    write_type,
)

if TYPE_CHECKING:
    from onnx import GraphProto

    from byoc.memory.arena import ArenaPlan
    from byoc.memory.reading import MemoryModel


# The activation memory of a region: an order of its operations, and an offset for each tensor.


@dataclass(frozen=True)
class ArenaSlot:
    """A tensor's slot in the arena: its offset and its size in bytes, rounded up to the alignment."""

    offset: int
    bytes: int


@dataclass(frozen=True)
class Arena:
    """A memory plan for a region's activations, without constants.

    `order` lists the operations by name; `places` is valid for this order only. A tensor inside a unit
    of computation (a composite, an operator between DequantizeLinear and QuantizeLinear) has no slot. A
    view shares the slot of its operand, and an output may reuse that of an operand that is not read
    again. `size` is the arena's size in bytes, `bound` a proven lower bound in bytes, and `proof` names
    the argument (`byoc.memory.arena.ArenaPlan`).
    """

    order: tuple[str, ...]
    places: Mapping[str, ArenaSlot]
    size: int
    bound: int
    proof: str

    @property
    def is_minimal(self) -> bool:
        """Whether the arena is proven to be the smallest possible."""
        return self.size == self.bound


def plan_arena(
    model: ModelProto,
    inputs: Sequence[TensorContract],
    outputs: Sequence[TensorContract],
    name: str,
    alignment: int,
) -> Arena:
    """Plan the arena of a region's model with folded constants (see `Region.arena`)."""
    bare = _without_conversions(model, inputs, outputs)
    index = GraphIndex.of_model(bare)
    read = reading.read_memory_model(
        index, reading.CONVENTIONS["C"], alignment, reading.find_quantized_groups(index), name
    )
    found = arena.plan_buffers(read.problem)
    places = dict(_slots(read, found))
    places |= {each.name: places[each.inner] for each in (*inputs, *outputs) if each.inner in places}
    names = tuple(get_node_name(index.nodes[number]) for number in _node_order(index, read, found))
    return Arena(names, places, found.size, found.bound, found.proof)


def _slots(read: MemoryModel, found: ArenaPlan) -> Iterator[tuple[str, ArenaSlot]]:
    for tensor, row in read.buffers_of.items():
        yield tensor, ArenaSlot(found.offsets[row[0]], sum(read.problem.sizes[buffer] for buffer in row))


def _node_order(index: GraphIndex, read: MemoryModel, found: ArenaPlan) -> list[int]:
    """Return all nodes in the order of the plan; a view, which has no step, follows its operand."""
    at = {node: place for place, step in enumerate(found.order) for node in read.nodes[step]}
    for number in range(len(index.nodes)):
        if number not in at:
            makers = (index.producers.get(name) for name in index.reads[number])
            at[number] = max((at[maker] for maker in makers if maker is not None), default=-1)
    return sorted(at, key=lambda number: (at[number], number))


def _without_conversions(
    model: ModelProto, inputs: Sequence[TensorContract], outputs: Sequence[TensorContract]
) -> ModelProto:
    """Return the model without byoc's own conversions at the boundary, which a target absorbs."""
    dropped = set(find_conversions(GraphIndex(model, {}), inputs, outputs))
    result = copy_without(model, "node", "input", "output")
    graph = result.graph
    graph.node.extend(node for i, node in enumerate(model.graph.node) if i not in dropped)
    types = get_stated_types(model)
    for contracts, values in ((inputs, graph.input), (outputs, graph.output)):
        for each in contracts:
            values.add(name=each.inner, type=types.get(each.inner, write_type(each.type)))
    return result


TypeFinder = Callable[[str], TensorType | None]

_RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity")
_SELECTIONS = ("Slice", "Gather", "Expand", "Tile")


def fold_region_model(
    model: ModelProto, folder: Path, find_type: TypeFinder | None = None
) -> ModelProto:
    """Return a region's model with nodes of only constant inputs folded; unused constants are dropped.

    Other large constants stay in `folder`. With `find_type`, which gives the types of tensors, the
    DequantizeLinear of a constant stays, and a node that only moves the elements of such a constant
    moves its integers instead.
    """
    if find_type is not None:
        model = _move_integers(model, find_type)
    index = GraphIndex.of_model(model)
    kept = _find_kept(index) if find_type is not None else frozenset()
    if index.constant_nodes <= kept:
        return model
    read = list_folded_reads(index, kept)
    loaded = ModelProto()
    loaded.CopyFrom(model)
    embed_external_data((each for each in loaded.graph.initializer if each.name in read), folder)
    folded = fold_constants(loaded, kept)
    unread = EditableGraph.of_index(GraphIndex(folded, {})).list_unread_stored()
    drop_named(folded.graph.initializer, unread)
    return folded


def infer_all_types(model: ModelProto, domain: str) -> Mapping[str, TensorType]:
    """Return the types of all tensors of a region's model, those inside composites included.

    `domain` is that of the target's composites. Names are those that `Operation.inner` has.
    """
    flat = copy_without(model)
    del flat.functions[:]
    graph = EditableGraph(flat.graph)
    for node in graph.nodes:
        function = find_composite(model, domain, node)
        if function is not None:
            graph.replace(node, *instantiate_body(function, node))
    graph.write_to(flat.graph)
    stated = get_stated_types(model)
    return read_tensor_types({**stated, **infer_types(flat, stated).type_protos})


def _find_kept(index: GraphIndex) -> frozenset[int]:
    """Return the DequantizeLinears of constants whose results are not only read by constant nodes."""
    return frozenset(
        i
        for i in index.constant_nodes
        if is_dequantize(index.nodes[i])
        and any(j not in index.constant_nodes for j in index.consumers.get(index.nodes[i].output[0], ()))
    )


def _move_integers(model: ModelProto, find_type: TypeFinder) -> ModelProto:
    """Return a model in which constants are moved before they are dequantized, not behind.

    `Transpose(DequantizeLinear(w))` becomes `DequantizeLinear(Transpose(w))`, where the scales allow it.
    """
    index = GraphIndex.of_model(model)
    dequantizers = {
        index.nodes[i].output[0]: index.nodes[i]
        for i in index.constant_nodes
        if is_dequantize(index.nodes[i])
    }
    if not dequantizers:
        return model
    graph = EditableGraph.of_index(index)
    for i in sorted(index.constant_nodes):
        node = index.nodes[i]
        source = dequantizers.get(node.input[0]) if node.input else None
        moved = source and _swap_nodes(find_type, source, node, graph.names)
        if moved:
            graph.replace(i, *moved)
            dequantizers[node.output[0]] = moved[1]
    if not graph.replaced:
        return model
    result = copy_without(model)
    graph.write_to(result.graph)
    return result


def _swap_nodes(
    find_type: TypeFinder, dequantize: NodeProto, move: NodeProto, names: NameAllocator
) -> Sequence[NodeProto]:
    """Return a node that moves integers, and the DequantizeLinear behind it; () where it cannot be."""
    if not is_onnx(move) or len(move.output) != 1:
        return ()
    scale = find_type(dequantize.input[1])
    if scale is None or scale.elements is None:
        return ()
    axis: int | None = None
    attributes = {each.name: each for each in dequantize.attribute}
    if scale.elements != 1:
        if "block_size" in attributes and attributes["block_size"].i:
            return ()
        axis = _find_moved_axis(find_type, move, attributes["axis"].i if "axis" in attributes else 1)
        if axis is None:
            return ()
    elif move.op_type not in {*_RESHAPES, *_SELECTIONS, "Transpose"}:
        return ()
    integers = names.new_tensor(f"{move.output[0]}_quantized")
    first, second = deepcopy(move), deepcopy(dequantize)
    first.input[0], first.output[0] = dequantize.input[0], integers
    second.input[0], second.output[0] = integers, move.output[0]
    if axis is not None:
        del second.attribute[:]
        kept = [each for name, each in attributes.items() if name != "axis"]
        second.attribute.extend([*kept, helper.make_attribute("axis", axis)])
    return first, second


def _find_moved_axis(find_type: TypeFinder, move: NodeProto, axis: int) -> int | None:
    """Return the axis that a node which moves elements makes of one; None if it splits that one."""
    types = (find_type(move.input[0]), find_type(move.output[0]))
    before, after = (None if kind is None else kind.shape for kind in types)
    if before is None:
        return None
    axis += len(before) if axis < 0 else 0
    if move.op_type == "Transpose":
        stated = next((list(each.ints) for each in move.attribute if each.name == "perm"), None)
        return (stated or list(range(len(before)))[::-1]).index(axis)
    known = [dim for dim in (*before, *(after or (None,))) if isinstance(dim, int)]
    if move.op_type not in _RESHAPES or after is None or len(known) < len(before) + len(after):
        return None
    return _find_axis_of(before, after, axis)


def _find_axis_of(before: Sequence[Dim], after: Sequence[Dim], axis: int) -> int | None:
    """Return the axis of a reshaped tensor that has the extent of `axis`, with as much before it."""
    outside = prod(map(_read_int, before[:axis]))
    for i, extent in enumerate(after):
        if extent == before[axis] and prod(map(_read_int, after[:i])) == outside:
            return i
    return None


def _read_int(dim: Any) -> int:
    assert isinstance(dim, int)
    return dim


# Forms of a model that importers of ONNX want: what the standard lets a model leave out is written.


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
