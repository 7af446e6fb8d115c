"""The activation memory of a region: an order of its operations, and an offset for each tensor."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from onnx import ModelProto

from byoc.boundary.contracts import TensorContract
from byoc.codegen._operations import find_conversions
from byoc.memory.arena import ArenaPlan, plan_buffers
from byoc.memory.reading import CONVENTIONS, MemoryModel, find_quantized_groups, read_memory_model
from byoc.model import GraphIndex, copy_without, get_node_name, get_stated_types, write_type


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
    read = read_memory_model(index, CONVENTIONS["C"], alignment, find_quantized_groups(index), name)
    found = plan_buffers(read.problem)
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
