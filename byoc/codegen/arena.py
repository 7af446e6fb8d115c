"""A region's activations planned: in which order its operations run, and where each tensor lies."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from onnx import ModelProto

from byoc.boundary.contract import Contract
from byoc.codegen.operations import conversions, name_of
from byoc.graph.copying import copy_without
from byoc.graph.index import GraphIndex, stated_types
from byoc.graph.types import write_type
from byoc.memory.model import CONVENTIONS, MemoryModel, quantized_groups, read_memory
from byoc.memory.plan import plan
from byoc.memory.problem import Plan


@dataclass(frozen=True)
class Place:
    """Where a tensor lies in the arena: bytes from its start, and how many it takes, rounded up."""

    offset: int
    bytes: int


@dataclass(frozen=True)
class Arena:
    """The plan of a region's activations; constants are not among them.

    `order` are the operations by name, as they are to be run: `places` hold for this order. A tensor
    inside of what is computed as one (a composite, an operator between DequantizeLinear and
    QuantizeLinear) has no place. A view has the place of what it views, and an output may have that of
    an operand that dies as it is made. `size` are the bytes of the arena, and `bound` bytes below which
    none can be; `proof` says how that is known (`byoc.memory.problem.Plan`).
    """

    order: tuple[str, ...]
    places: Mapping[str, Place]
    size: int
    bound: int
    proof: str

    @property
    def is_minimal(self) -> bool:
        """Whether no smaller arena is possible, proven."""
        return self.size == self.bound


def plan_arena(
    model: ModelProto,
    inputs: Sequence[Contract],
    outputs: Sequence[Contract],
    name: str,
    alignment: int,
) -> Arena:
    """Return the plan for the model of a region whose constants are folded: `Region.arena`."""
    bare = _without_conversions(model, inputs, outputs)
    index = GraphIndex(bare, stated_types(bare))
    read = read_memory(index, CONVENTIONS["C"], alignment, quantized_groups(index), name)
    found = plan(read.problem)
    places = dict(_places(read, found))
    places |= {each.name: places[each.inner] for each in (*inputs, *outputs) if each.inner in places}
    names = tuple(name_of(index.nodes[number]) for number in _order(index, read, found))
    return Arena(names, places, found.size, found.bound, found.proof)


def _places(read: MemoryModel, found: Plan) -> Iterator[tuple[str, Place]]:
    for tensor, row in read.rows.items():
        yield tensor, Place(found.offsets[row[0]], sum(read.problem.sizes[buffer] for buffer in row))


def _order(index: GraphIndex, read: MemoryModel, found: Plan) -> list[int]:
    """Return all nodes in the order of the plan; a view, which takes no step, behind what it views."""
    at = {node: place for place, step in enumerate(found.order) for node in read.nodes[step]}
    for number in range(len(index.nodes)):
        if number not in at:
            makers = (index.producer.get(name) for name in index.reads[number])
            at[number] = max((at[maker] for maker in makers if maker is not None), default=-1)
    return sorted(at, key=lambda number: (at[number], number))


def _without_conversions(
    model: ModelProto, inputs: Sequence[Contract], outputs: Sequence[Contract]
) -> ModelProto:
    """Return the model between byoc's own conversions at the border, which a target absorbs."""
    dropped = conversions(GraphIndex(model, {}), inputs, outputs)
    result = copy_without(model, "node", "input", "output")
    graph = result.graph
    graph.node.extend(node for i, node in enumerate(model.graph.node) if i not in dropped)
    types = stated_types(model)
    for contracts, values in ((inputs, graph.input), (outputs, graph.output)):
        for each in contracts:
            values.add(name=each.inner, type=types.get(each.inner, write_type(each.type)))
    return result
