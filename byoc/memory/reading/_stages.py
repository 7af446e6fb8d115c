"""The steps of a model: its nodes, grouped and in an executable order."""

from collections.abc import Iterable, Sequence

from byoc.memory.reading._in_place import pointwise_inputs
from byoc.model import GraphIndex, describe_node, is_dequantize, is_qdq_node, is_quantize, may_be_float
from byoc.numerics import find_cycle, sort_topologically


def build_stages(
    index: GraphIndex, left_out: frozenset[int], groups: Iterable[Sequence[int]]
) -> list[tuple[int, ...]]:
    """Return the nodes of each step: the given groups, and every other node on its own.

    The nodes in `left_out` are in no step. Steps are in the order of the nodes, except that a group
    waits for its operands. Raises ValueError for a node in two groups, and for a group that depends on
    itself.
    """
    stages: list[tuple[int, ...]] = []
    taken: set[int] = set()
    for group in groups:
        nodes = tuple(sorted(set(group) - left_out))
        if taken.intersection(nodes):
            raise ValueError(f"{describe_node(index.nodes[nodes[0]])} is in two groups")
        taken.update(nodes)
        if nodes:
            stages.append(nodes)
    stages += [(n,) for n in range(len(index.nodes)) if n not in taken and n not in left_out]
    return _sort_stages(index, stages)


def _sort_stages(index: GraphIndex, stages: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Sort steps topologically, by the position of their last node where there is a choice."""
    of = {node: number for number, nodes in enumerate(stages) for node in nodes}
    before = [
        {
            of[maker]
            for node in nodes
            for name in index.reads[node]
            if (maker := index.producers.get(name)) in of and of[maker] != number
        }
        for number, nodes in enumerate(stages)
    ]
    for number in find_cycle(before):
        if len(stages[number]) > 1:
            raise ValueError(
                f"the group of {describe_node(index.nodes[stages[number][0]])} waits for itself"
            )
    return [stages[number] for number in sort_topologically(before, [nodes[-1] for nodes in stages])]


# They read no element of what they are given.
_NO_DATA = frozenset({"Shape", "Size"})


def find_quantized_groups(index: GraphIndex) -> tuple[tuple[int, ...], ...]:
    """Return the nodes of each QDQ group of a graph, which an integer accelerator computes as one step.

    A group is an operator with the elementwise operators that alone read its results (an activation, the
    addition of a residual), the DequantizeLinear of each of its activations and the QuantizeLinear of
    its results. There is none if a floating-point tensor would enter or leave. A DequantizeLinear that
    several groups would need is in none; `byoc.model._quantized_tensors` makes copies.
    """
    together: dict[int, list[int]] = {}
    for number, root in _find_roots(index).items():
        together.setdefault(root, []).append(number)
    found = (_complete_group(index, nodes) for _, nodes in sorted(together.items()))
    return tuple(group for group in found if group)


def _find_roots(index: GraphIndex) -> dict[int, int]:
    """Return for each computing node the last one computed together with it.

    Only the last one's results leave these nodes, so no path can leave them and come back.
    """
    roots: dict[int, int] = {}
    for number in reversed(range(len(index.nodes))):
        node = index.nodes[number]
        if number in index.constant_nodes or node.op_type in _NO_DATA:
            continue
        if is_qdq_node(node):
            continue
        behind = {roots.get(r) for name in node.output for r in index.consumers.get(name, ())}
        joins = len(behind) == 1 and all(_is_followed(index, n) for n in node.output if n)
        root = next(iter(behind)) if joins else None
        roots[number] = number if root is None else root
    return roots


def _is_followed(index: GraphIndex, name: str) -> bool:
    """Tell whether a tensor is read element by element only, and not by a caller."""
    if name in index.outputs or not may_be_float(index, name):
        return False
    for reader in index.consumers.get(name, ()):
        node = index.nodes[reader]
        places = [place for place, given in enumerate(node.input) if given == name]
        if not places or not set(places) <= set(pointwise_inputs(node)):
            return False
    return True


def _complete_group(index: GraphIndex, nodes: Sequence[int]) -> tuple[int, ...]:
    """Return some nodes with the quantization around them, empty if it is incomplete."""
    inside = set(nodes)
    made = {name for number in nodes for name in index.nodes[number].output if name}
    around: set[int] = set()
    for name in {name for number in nodes for name in index.reads[number]} - made:
        if index.is_constant(name) or not may_be_float(index, name):
            continue
        maker = index.producers.get(name)
        if maker is None or not is_dequantize(index.nodes[maker]) or name in index.outputs:
            return ()
        if not inside.issuperset(index.consumers[name]):
            return ()
        around.add(maker)
    for name in made:
        readers = set(index.consumers.get(name, ())) - inside
        if not may_be_float(index, name) or not (readers or name in index.outputs):
            continue
        if name in index.outputs or not all(is_quantize(index.nodes[r]) for r in readers):
            return ()
        around |= readers
    return tuple(sorted(inside | around)) if around else ()
