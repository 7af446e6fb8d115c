"""Tensors of the user's model that are transposed forms of one another by the user's own Transposes."""

from collections.abc import Mapping

from byoc.boundary import axes
from byoc.boundary.way import find_producer
from byoc.graph.attributes import get_stated_attributes
from byoc.graph.index import GraphIndex
from byoc.graph.marks import TENSOR_KEY, is_inserted, get_metadata


def find_origin(users: GraphIndex | None, name: str) -> str:
    """Return the user's tensor before byoc's own quantization of the planned model."""
    while users is not None:
        users, node = find_producer(users, name)
        if node is None or not is_inserted(node):
            return name
        name = node.input[0]
    return name


def find_user_name(users: GraphIndex | None, name: str) -> str:
    """Return the user's name of a tensor that byoc's own QuantizeLinear of the planned model reads."""
    index = users
    while index is not None:
        readers = (index.nodes[number] for number in index.consumers.get(name, ()))
        user_name = next((get_metadata(node, TENSOR_KEY) for node in readers if is_inserted(node)), "")
        if user_name:
            return user_name
        index = index.outer
    return name


def relate_layouts(users: GraphIndex | None, one: str, other: str) -> axes.AxisTerms | None:
    """Return the layout of the second tensor in the axes of the first, or None if they are unrelated.

    Two tensors are related if both are made of one tensor by Transposes alone.
    """
    if users is None:
        return None
    first_chain, second_chain = _transpose_chain(users, find_origin(users, one)), _transpose_chain(users, find_origin(users, other))
    common = next((name for name in second_chain if name in first_chain), None)
    if common is None:
        return None
    from_one, from_other = first_chain[common], second_chain[common]
    # Dimension i of a tensor is dimension order[i] of the common one.
    if len(from_one) != len(from_other):
        return None
    return tuple(axes.AxisTerm(from_one.index(dim)) for dim in from_other)


def _transpose_chain(users: GraphIndex, name: str) -> Mapping[str, tuple[int, ...]]:
    """Return the tensors that a tensor is a transposed form of, with its order of dimensions in each."""
    kind = users.types.get(name)
    if kind is None or kind.shape is None:
        return {}
    order = tuple(range(len(kind.shape)))
    found = {name: order}
    index, node = find_producer(users, name)
    while node is not None and node.op_type == "Transpose":
        turn = get_stated_attributes(node).get("perm", list(reversed(range(len(order)))))
        order = tuple(turn[dim] for dim in order)
        name = find_origin(users, node.input[0])
        found[name] = order
        index, node = find_producer(index, name)
    return found
