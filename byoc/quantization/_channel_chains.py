"""Chains of nodes around depthwise convolutions, which can be computed in groups of channels."""

from collections.abc import Iterator
from dataclasses import dataclass

from onnx import NodeProto

from byoc.model import GraphIndex, get_stated_attributes, is_onnx
from byoc.quantization._arithmetic import is_depthwise
from byoc.quantization._channel_classes import find_channel_classes, list_linear_nodes

_FUNCTIONS = frozenset(
    [
        *("Relu", "LeakyRelu", "Clip", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Elu", "Gelu"),
        *("Mish", "Softplus", "Swish", "Identity"),
    ]
)
_WITH_NUMBERS = frozenset({"Add", "Sub", "Mul", "Div"})


@dataclass(frozen=True, eq=False)
class ChannelChain:
    """Nodes, by number, that are computed in groups of channels.

    The first is a convolution, `depthwise` the one that its channels go through; what stands between and
    behind are functions of each element. `readers` are convolutions that read the `last` tensor.
    """

    nodes: tuple[int, ...]
    depthwise: int
    readers: tuple[int, ...]
    last: str


def find_chains(index: GraphIndex, least: int) -> Iterator[ChannelChain]:
    """Yield the chains around depthwise convolutions that no factors equalize; none shares a node.

    A depthwise convolution has at least `least` channels, of each of which it makes one.
    """
    linear = set(list_linear_nodes(index))
    classes = find_channel_classes(index)
    taken: set[int] = set()
    for number in sorted(linear):
        node = index.nodes[number]
        if not _is_splittable(index, node, least):
            continue
        before = _walk_up(index, node.input[0], linear)
        after, last = _walk_down(index, node.output[0])
        readers = index.consumers.get(last, ())
        fixed = classes.fixed[classes.of_tensor[node.input[0]]].all()
        if before is None or not fixed or not readers or last in index.outputs:
            continue
        if not all(_absorbs_order(index, reader, last, linear) for reader in readers):
            continue
        chain = ChannelChain((*before, number, *after), number, tuple(sorted(set(readers))), last)
        if taken.isdisjoint(chain.nodes):
            taken.update(chain.nodes)
            yield chain


def _is_splittable(index: GraphIndex, node: NodeProto, least: int) -> bool:
    """Return whether a convolution makes one channel of each that it reads, of at least `least`."""
    shape = index.get_shape(node.input[1])
    groups = get_stated_attributes(node).get("group", 1)
    return is_depthwise(index, node) and groups >= least and shape is not None and shape[0] == groups


def _walk_up(index: GraphIndex, name: str, linear: set[int]) -> tuple[int, ...] | None:
    """Return the convolution of all channels and the functions behind it that make a tensor."""
    found: list[int] = []
    while name not in index.outputs and len(index.consumers.get(name, ())) == 1:
        number = index.producers.get(name)
        if number is None:
            return None
        found.append(number)
        node = index.nodes[number]
        if number in linear:
            dense = node.op_type == "Conv" and get_stated_attributes(node).get("group", 1) == 1
            return tuple(reversed(found)) if dense else None
        position = _find_operand(index, number)
        if position is None:
            return None
        name = node.input[position]
    return None


def _walk_down(index: GraphIndex, name: str) -> tuple[tuple[int, ...], str]:
    """Return the functions of each element behind a tensor, and the last tensor that they make."""
    found: list[int] = []
    while name not in index.outputs and len(index.consumers.get(name, ())) == 1:
        (number,) = index.consumers[name]
        if _find_operand(index, number) is None:
            break
        found.append(number)
        name = index.nodes[number].output[0]
    return tuple(found), name


def _find_operand(index: GraphIndex, number: int) -> int | None:
    """Return the input that a node computes a function of each element of, None if it does not."""
    node = index.nodes[number]
    if not is_onnx(node) or number in index.constant_nodes:
        return None
    if node.op_type in _FUNCTIONS:
        return 0
    constants = [position for position, name in enumerate(node.input) if _is_number(index, name)]
    if node.op_type not in _WITH_NUMBERS or len(constants) != 1:
        return None
    return 1 - constants[0]


def _is_number(index: GraphIndex, name: str) -> bool:
    shape = index.get_shape(name)
    return index.is_constant(name) and shape is not None and all(extent == 1 for extent in shape)


def _absorbs_order(index: GraphIndex, number: int, name: str, linear: set[int]) -> bool:
    """Return whether a node reads channels in any order, as a convolution of all channels does."""
    node = index.nodes[number]
    return (
        number in linear
        and node.op_type == "Conv"
        and node.input[0] == name
        and get_stated_attributes(node).get("group", 1) == 1
    )
