"""Counting the work of a node: floating-point operations and bytes, from the real shapes.

A multiplication and an addition are two operations. Counts follow the operators' definitions in the
ONNX operator documentation; transcendental functions (Exp, a power) count as one each, as is usual
in roofline models (Williams, Waterman, Patterson 2009).
"""

from collections.abc import Collection, Mapping, Sequence

from onnx import NodeProto

from byoc._dataclasses import dataclass
from byoc.costs._work_attention import count_bytes_read, count_bytes_written
from byoc.costs._work_node import CountedNode, Sizes
from byoc.costs._work_table import CONTRIB, STANDARD, OperationCount
from byoc.model import (
    GraphIndex,
    TensorType,
    count_vendor_bytes,
    count_vendor_operations,
    find_vendor_operator,
    get_constant_value,
    get_operator_name,
    is_dequantize,
    is_onnx,
    is_qdq_node,
)

# These operators reinterpret the same bytes with another shape, so they cost nothing on either side.
VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"})
# The bodies of these are counted in graphs of their own.
BODY_OPERATORS = frozenset({"If", "Loop", "Scan", "SequenceMap"})
# onnxruntime's internal domains have ONNX's operators on other layouts.
_LAYOUT_DOMAINS = ("com.ms.internal.nhwc.", "com.microsoft.nchwc.")

COUNTS: Mapping[str, OperationCount] = {
    name: row for row in (*STANDARD, *CONTRIB) for name in row.operators
}
"""The rows of the table by operator, spelled as in rule files."""


@dataclass(frozen=True, slots=True)
class Work:
    """Operations and bytes; `estimated` if the operator or a shape was not known exactly.

    `constants` are those of the bytes that are weights and other constants, as they are stored.
    """

    operations: float
    bytes: float
    estimated: bool = False
    constants: float = 0.0


def is_view(index: GraphIndex, node: NodeProto) -> bool:
    """Return whether a node returns the bytes that it reads, and so costs nothing on any device."""
    if node.op_type not in VIEWS or not is_onnx(node):
        return False
    if node.op_type != "Dropout":
        return True
    masked = len(node.output) > 1 and index.is_used(node.output[1])
    if masked or len(node.input) < 3 or not node.input[2]:
        return not masked
    training = get_constant_value(index, node.input[2])
    return training is not None and not training.any()


def find_entering_and_leaving(index: GraphIndex, nodes: Collection[int]) -> tuple[list[str], list[str]]:
    """Return the tensors that enter and leave nodes run as one, constants included, in order."""
    made = {name for i in nodes for name in index.nodes[i].output if index.is_used(name)}
    entering = dict.fromkeys(name for i in nodes for name in index.reads[i] if name not in made)
    inside = set(nodes)
    leaving = [
        name
        for i in nodes
        for name in index.nodes[i].output
        if name in made
        and (name in index.outputs or not inside.issuperset(index.consumers.get(name, ())))
    ]
    return list(entering), leaving


def count_work(index: GraphIndex, sizes: Sizes, nodes: tuple[int, ...]) -> Work:
    """Return the work of nodes that run as one.

    Operations add up. Bytes are those of the tensors that enter and leave, since tensors inside never
    reach memory. The input of a lookup (Gather, Slice) counts as the part that is taken from it.
    Constants that a QDQ group dequantizes count as stored, with their scales and zero points.
    """
    entering, leaving = find_entering_and_leaving(index, nodes)
    made = [name for i in nodes for name in index.nodes[i].output if index.is_used(name)]
    operations, estimated = 0, not all(map(sizes.is_known, (*entering, *made)))
    working = [i for i in nodes if not is_view(index, index.nodes[i])]
    for i in working:
        count, exact = _count_operations(CountedNode(index, index.nodes[i], sizes))
        operations += count
        estimated |= not exact
    moved_bytes = constant_bytes = 0
    if working:
        read, written = _count_bytes(index, sizes, nodes)
        read |= _count_stored_bytes(index, sizes, nodes, entering)
        moved_bytes = sum(read[name] for name in entering) + sum(written[name] for name in leaving)
        constant_bytes = sum(read[name] for name in entering if index.is_constant(name))
    moved, constant = _limit_to_float(moved_bytes), _limit_to_float(constant_bytes)
    return Work(_limit_to_float(operations), moved, estimated, constant)


def _count_bytes(
    index: GraphIndex, sizes: Sizes, nodes: Collection[int]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the bytes of each tensor that the nodes read, the largest read of each, and write."""
    read: dict[str, int] = {}
    written: dict[str, int] = {}
    for i in nodes:
        node = CountedNode(index, index.nodes[i], sizes)
        for name in index.reads[i]:
            if name not in node.proto.input:  # captured by a body
                read[name] = max(read.get(name, 0), sizes.get_bytes(name))
        stated = _count_vendor_bytes(node)
        for number, name in enumerate(node.proto.input):
            if name:
                taken = count_bytes_read(node, number) if stated is None else stated[number]
                read[name] = max(read.get(name, 0), taken)
        for number, name in enumerate(node.proto.output):
            if name:
                written[name] = count_bytes_written(node, number)
    return read, written


def _count_vendor_bytes(node: CountedNode) -> Sequence[int] | None:
    """Return the bytes that a vendor's operator reads of each input, None where nobody says that."""
    name = get_operator_name(node.proto)
    return None if name in COUNTS else count_vendor_bytes(name, *_list_types(node), node.attributes)


def _count_stored_bytes(
    index: GraphIndex, sizes: Sizes, nodes: Collection[int], entering: Collection[str]
) -> dict[str, int]:
    """Return the stored bytes of dequantized constants that a QDQ group reads; empty for other nodes."""
    if not any(is_qdq_node(index.nodes[i]) for i in nodes):
        return {}
    result: dict[str, int] = {}
    for name in entering:
        behind = [index.nodes[i] for i in index.find_constant_nodes([name])]
        read = {each for node in behind if is_dequantize(node) for each in node.input if each}
        if read:
            result[name] = sum(map(sizes.get_bytes, read))
    return result


def _limit_to_float(count: int) -> float:
    return float(min(count, 10**30))  # shapes can state numbers beyond the range of a float


def find_count(node: NodeProto) -> OperationCount | None:
    """Return the row of the table for a node's operator, None if it is not counted."""
    name = get_operator_name(node)
    for domain in _LAYOUT_DOMAINS:
        name = name.removeprefix(domain)
    return COUNTS.get(name) or _find_vendor_count(name)


def _find_vendor_count(name: str) -> OperationCount | None:
    """Return a row that asks the package installed for a vendor's operator, None without one."""
    if find_vendor_operator(name) is None:
        return None

    def count(node: CountedNode) -> int:
        return count_vendor_operations(name, *_list_types(node), node.attributes)

    return OperationCount((name,), "as its package says", count)


def _list_types(node: CountedNode) -> tuple[list[TensorType | None], list[TensorType | None]]:
    """Return the types of a node's inputs and outputs with an int for each extent."""

    def find(name: str) -> TensorType | None:
        known = node.sizes.types.get(name) if name else None
        if known is None or known.shape is None:
            return None
        return TensorType(known.dtype, node.sizes.get_shape(name))

    return list(map(find, node.proto.input)), list(map(find, node.proto.output))


def is_counted(node: NodeProto) -> bool:
    """Return whether the operations of a node's operator are counted; those of its bodies are."""
    return find_count(node) is not None or (is_onnx(node) and node.op_type in BODY_OPERATORS)


def _count_operations(node: CountedNode) -> tuple[int, bool]:
    """Return a node's operations, and whether its operator is counted exactly."""
    row = find_count(node.proto)
    if row is None:
        return node.count_output(), False
    return max(row.count(node), 0), True
