"""Borders of quantized groups: the nodes that an accelerator with `convert: device` runs of its own."""

from collections.abc import Callable, Iterator

from byoc.graph.index import GraphIndex
from byoc.graph.marks import is_ours
from byoc.graph.unshare import is_dequantize, is_quantize


def converts(index: GraphIndex, number: int, quantized: Callable[[int], bool]) -> bool:
    """Return whether a node quantizes what a group reads, or dequantizes what one makes.

    `quantized` says of an operator whether a rule takes it between DequantizeLinear and QuantizeLinear.
    Scale and zero point must be constants: an accelerator is built for these. Those that byoc put in are
    no units of their own: they go where the tensor crosses (`byoc.boundary.quantized`).
    """
    node = index.nodes[number]
    if is_ours(node) or not all(index.is_constant(name) for name in node.input[1:] if name):
        return False
    if is_quantize(node):
        return any(quantized(reader) for reader in _behind(index, number))
    return is_dequantize(node) and any(quantized(maker) for maker in _before(index, number))


def _behind(index: GraphIndex, number: int) -> Iterator[int]:
    """Yield what reads a quantized tensor by way of a DequantizeLinear."""
    for name in index.nodes[number].output[:1]:
        for reader in index.consumers.get(name, ()):
            node = index.nodes[reader]
            if is_dequantize(node) and node.input[0] == name:
                yield from index.consumers.get(node.output[0], ())


def _before(index: GraphIndex, number: int) -> Iterator[int]:
    """Yield what makes the tensor that a DequantizeLinear reads, by way of a QuantizeLinear."""
    maker = index.producer.get(index.nodes[number].input[0], -1)
    if maker >= 0 and is_quantize(index.nodes[maker]):
        source = index.producer.get(index.nodes[maker].input[0], -1)
        if source >= 0:
            yield source
