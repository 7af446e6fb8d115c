"""Boundary conversions on the device: the nodes that an accelerator with `convert: device` runs."""

from collections.abc import Callable, Iterator

from byoc.graph.index import GraphIndex
from byoc.graph.marks import is_inserted
from byoc.graph.unshare import is_dequantize, is_quantize


def converts_at_boundary(index: GraphIndex, number: int, quantized: Callable[[int], bool]) -> bool:
    """Return whether a node quantizes an input or dequantizes an output of a quantized group.

    `quantized` tells whether a rule accepts a node between DequantizeLinear and QuantizeLinear. Scale
    and zero point must be constants. Nodes that byoc inserted are not units of their own: the boundary
    stage places them (`byoc.boundary.quantized`).
    """
    node = index.nodes[number]
    if is_inserted(node) or not all(index.is_constant(name) for name in node.input[1:] if name):
        return False
    if is_quantize(node):
        return any(quantized(reader) for reader in _find_readers(index, number))
    return is_dequantize(node) and any(quantized(maker) for maker in _find_makers(index, number))


def _find_readers(index: GraphIndex, number: int) -> Iterator[int]:
    """Yield the nodes that read a quantized tensor through a DequantizeLinear."""
    for name in index.nodes[number].output[:1]:
        for reader in index.consumers.get(name, ()):
            node = index.nodes[reader]
            if is_dequantize(node) and node.input[0] == name:
                yield from index.consumers.get(node.output[0], ())


def _find_makers(index: GraphIndex, number: int) -> Iterator[int]:
    """Yield the node behind the QuantizeLinear whose output a DequantizeLinear reads."""
    maker = index.producers.get(index.nodes[number].input[0], -1)
    if maker >= 0 and is_quantize(index.nodes[maker]):
        source = index.producers.get(index.nodes[maker].input[0], -1)
        if source >= 0:
            yield source
