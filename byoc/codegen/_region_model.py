"""Forms of a region's model that `Region` answers from: constants folded, types inferred."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx import ModelProto, NodeProto, helper

from byoc.boundary.contracts import TensorContract
from byoc.codegen._operations import find_composite, find_conversions, instantiate_body
from byoc.memory import arena, reading
from byoc.model import (
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
    get_stated_types,
    infer_types,
    is_dequantize,
    is_onnx,
    list_folded_reads,
    read_tensor_types,
    write_type,
)

if TYPE_CHECKING:
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


def _slots(read: "MemoryModel", found: "ArenaPlan") -> Iterator[tuple[str, ArenaSlot]]:
    for tensor, row in read.buffers_of.items():
        yield tensor, ArenaSlot(found.offsets[row[0]], sum(read.problem.sizes[buffer] for buffer in row))


def _node_order(index: GraphIndex, read: "MemoryModel", found: "ArenaPlan") -> list[int]:
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
