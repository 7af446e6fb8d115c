"""The nodes of a graph that an accelerator refuses, and the reasons."""

from collections.abc import Iterator

from byoc.model import GraphIndex, describe_node, is_dequantize, is_qdq_node
from byoc.patterns import Unit
from byoc.reporting._explanation import GraphExplanation, RefusedNode
from byoc.rules import Annotator, Attempt, Objection


def find_refused_nodes(graph: GraphExplanation, annotator: Annotator) -> Iterator[RefusedNode]:
    """Yield the nodes of a graph that the accelerator does not support, with the reasons."""
    for unit in graph.units:
        if unit.verdict:
            continue
        neighbour = _refused_neighbour(graph, unit)
        for number in unit.nodes:
            attempts: tuple[Attempt, ...] = ()
            if neighbour is not None:
                name = describe_node(graph.index.nodes[neighbour])
                reasons: tuple[Objection, ...] = (
                    Objection("", f"it goes with {name}, which is refused"),
                )
            elif (
                is_qdq_node(graph.index.nodes[number])
                and not graph.marks[number].verdict
                and (unit.verdict.reasons != graph.marks[number].verdict.reasons)
            ):
                reasons = tuple(Objection("", reason) for reason in unit.verdict.reasons)
            else:
                attempts = _attempts_against(graph, unit, number, annotator)
                reasons = attempts[0].objections
            yield RefusedNode(
                graph.graph_path, graph.index, number, attempts, reasons, graph.operations[number]
            )


def _attempts_against(
    graph: GraphExplanation, unit: Unit, number: int, annotator: Annotator
) -> tuple[Attempt, ...]:
    """Return the rules that refuse a node, and the grouper's reasons if one accepts it."""
    tried = [attempt for attempt in annotator.list_attempts(number) if attempt.objections]
    mark = graph.marks[number]
    if not mark.verdict:
        return tuple(tried)
    key = "standalone" if mark.accepts_plain and not mark.standalone else "quantized"
    reasons = (Objection(f"{mark.rule}.{key}", reason) for reason in unit.verdict.reasons)
    own = Attempt(mark.rule, tuple(reasons))
    if mark.accepts_quantized and not mark.accepts_plain and not _is_near_qdq_node(graph.index, unit):
        return (*tried, own)  # the model is not quantized here, so the rule is not the nearest
    return (own, *tried)


def _is_near_qdq_node(index: GraphIndex, unit: Unit) -> bool:
    """Return whether a DequantizeLinear or QuantizeLinear is in a unit or next to it."""
    return any(
        is_qdq_node(index.nodes[near])
        for number in unit.nodes
        for near in (number, *_producers(index, number), *_consumers(index, number))
        if near not in index.constant_nodes
    )


def _producers(index: GraphIndex, number: int) -> Iterator[int]:
    yield from (index.producers[name] for name in index.nodes[number].input if name in index.producers)


def _consumers(index: GraphIndex, number: int) -> Iterator[int]:
    for name in index.nodes[number].output:
        yield from index.consumers.get(name, ())


def _refused_neighbour(graph: GraphExplanation, unit: Unit) -> int | None:
    """Return the refused operator that a DequantizeLinear or QuantizeLinear belongs to, if any."""
    index, number = graph.index, unit.nodes[0]
    node = index.nodes[number]
    if len(unit.nodes) > 1 or not is_qdq_node(node) or not graph.quantized:
        return None
    neighbours = _consumers(index, number) if is_dequantize(node) else _producers(index, number)
    for other in neighbours:
        if (
            not is_qdq_node(index.nodes[other])
            and other in graph.unit_of
            and other not in graph.supported_nodes
        ):
            return other
    return None
