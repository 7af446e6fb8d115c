"""QDQ groups as steps: an accelerator that computes in integers reads and writes integers alone."""

from collections.abc import Sequence

from byoc.graph.index import GraphIndex
from byoc.graph.unshare import is_dequantize, is_float, is_quantize
from byoc.memory.model.operators import pointwise_inputs

# They read no element of what they are given.
_NO_DATA = frozenset({"Shape", "Size"})


def quantized_groups(index: GraphIndex) -> tuple[tuple[int, ...], ...]:
    """Return the nodes of each QDQ group of a graph.

    A group is an operator with those behind it that work element by element on what only they read (an
    activation, the addition of a residual), the DequantizeLinear of each of its activations, and the
    QuantizeLinear of what it makes. There is none where a floating-point tensor would enter or leave.
    A DequantizeLinear that several groups would need is in none; `byoc.graph.unshare` makes copies.
    """
    together: dict[int, list[int]] = {}
    for number, root in _roots(index).items():
        together.setdefault(root, []).append(number)
    found = (_group(index, nodes) for _, nodes in sorted(together.items()))
    return tuple(group for group in found if group)


def _roots(index: GraphIndex) -> dict[int, int]:
    """Return for each node that computes the last one of those that are computed with it.

    Nothing leaves such nodes but from the last one, so no path can leave them and come back.
    """
    roots: dict[int, int] = {}
    for number in reversed(range(len(index.nodes))):
        node = index.nodes[number]
        if number in index.constant_nodes or node.op_type in _NO_DATA:
            continue
        if is_dequantize(node) or is_quantize(node):
            continue
        behind = {roots.get(r) for name in node.output for r in index.consumers.get(name, ())}
        joins = len(behind) == 1 and all(_is_followed(index, n) for n in node.output if n)
        root = next(iter(behind)) if joins else None
        roots[number] = number if root is None else root
    return roots


def _is_followed(index: GraphIndex, name: str) -> bool:
    """Return whether whoever reads a tensor does so element by element, and none is outside."""
    if name in index.outputs or not is_float(index, name):
        return False
    for reader in index.consumers.get(name, ()):
        node = index.nodes[reader]
        places = [place for place, given in enumerate(node.input) if given == name]
        if not places or not set(places) <= set(pointwise_inputs(node)):
            return False
    return True


def _group(index: GraphIndex, nodes: Sequence[int]) -> tuple[int, ...]:
    """Return some nodes with what is quantized around them, nothing where that is not all."""
    inside = set(nodes)
    made = {name for number in nodes for name in index.nodes[number].output if name}
    around: set[int] = set()
    for name in {name for number in nodes for name in index.reads[number]} - made:
        if index.is_constant(name) or not is_float(index, name):
            continue
        maker = index.producer.get(name)
        if maker is None or not is_dequantize(index.nodes[maker]) or name in index.outputs:
            return ()
        if not inside.issuperset(index.consumers[name]):
            return ()
        around.add(maker)
    for name in made:
        readers = set(index.consumers.get(name, ())) - inside
        if not is_float(index, name) or not (readers or name in index.outputs):
            continue
        if name in index.outputs or not all(is_quantize(index.nodes[r]) for r in readers):
            return ()
        around |= readers
    return tuple(sorted(inside | around)) if around else ()
