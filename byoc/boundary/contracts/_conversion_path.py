"""Paths on the host from a boundary tensor to the user's tensor that it is a form of.

The user's own Transposes make further forms of a tensor, which are related here as well. Both need what
is known of the user's model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from onnx import NodeProto, TypeProto

from byoc.boundary.contracts import _axis_terms as axes
from byoc.boundary.contracts._boundary_nodes import Scales, find_producer
from byoc.model import (
    TENSOR_KEY,
    BoundaryNames,
    GraphIndex,
    TensorLayout,
    TensorType,
    get_metadata,
    get_stated_attributes,
    is_inserted,
    read_tensor_types,
)


@dataclass(frozen=True, eq=False)
class RegionContext:
    """Facts about a region that the partitioned model does not contain.

    `user_index` is that of the graph that the region was cut from, and `interface` names the tensors
    that crossed the boundary there. `added` gives the types of tensors that the boundary stage inserted,
    and `origins` the user's tensors whose content they hold (see `byoc.boundary.convert`). `weights` is
    the weight layout of the region's target.
    """

    user_index: GraphIndex | None = None
    interface: BoundaryNames | None = None
    added: Mapping[str, TypeProto] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    weights: TensorLayout | None = None

    @property
    def user_types(self) -> Mapping[str, TypeProto]:
        """The types of the user's tensors by name; empty if they are not known."""
        return self.user_index.type_protos if self.user_index is not None else {}

    @property
    def stated_types(self) -> Mapping[str, TypeProto]:
        """The types that conversions rely on, including those that only the user's model states."""
        return {**self.added, **self.user_types}

    @cached_property
    def known_types(self) -> Mapping[str, TensorType]:
        """The types of `stated_types`, without sequences, maps and optionals."""
        return read_tensor_types(self.stated_types)


@dataclass(frozen=True)
class ConversionPath:
    """The path on the host from a boundary tensor, which the region knows as `inner`.

    `tensors` are those on the path, the boundary tensor first; `steps` the conversions in the order of
    execution; `outer_steps` those of them between the scales that were found and the boundary.
    `seeks_scales` is whether scales that are found still apply to the boundary tensor, that is, no node
    on the path has changed them.
    """

    inner: str
    tensors: tuple[str, ...]
    steps: tuple[NodeProto, ...] = ()
    scales: Scales | None = None
    outer_steps: tuple[NodeProto, ...] = ()
    seeks_scales: bool = True

    @property
    def end(self) -> str:
        """The tensor at the current end of the path."""
        return self.tensors[-1]

    @property
    def is_backward(self) -> bool:
        """Whether the path leads against the order of execution; False if it has no step."""
        if not self.steps:
            return False
        reads, makes = self.steps[0].input[0], self.steps[0].output[0]
        return self.tensors.index(makes) < self.tensors.index(reads)

    def extend(self, name: str) -> "ConversionPath":
        """Return the path extended to a tensor."""
        return replace(self, tensors=(*self.tensors, name))


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
    first_chain = _transpose_chain(users, find_origin(users, one))
    second_chain = _transpose_chain(users, find_origin(users, other))
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
    rank = users.get_rank(name)
    if rank is None:
        return {}
    order = tuple(range(rank))
    found = {name: order}
    index, node = find_producer(users, name)
    while node is not None and node.op_type == "Transpose":
        turn = get_stated_attributes(node).get("perm", list(reversed(range(len(order)))))
        order = tuple(turn[dim] for dim in order)
        name = find_origin(users, node.input[0])
        found[name] = order
        index, node = find_producer(index, name)
    return found
