"""The explanation as data: the output of `byoc explain --format json`, from which the text is made."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import Field

from byoc.bundle import ReportModel, ValueCondition, ValuePromise
from byoc.model import GraphIndex, get_node_name, get_operator_name
from byoc.patterns import NearMiss, find_near_misses
from byoc.reporting._estimates import find_promises, find_value_conditions
from byoc.reporting._explain import Explanation, GraphExplanation, RefusedNode
from byoc.reporting._relaxation_gains import compute_gains
from byoc.rules import Objection

_EXAMPLES = 3  # nodes named for a group of refusals


@dataclass(frozen=True)
class Reason:
    """A sentence, and the location in the rule file of the constraint that it is about, if any.

    `kind` is that of the cause, `value` what the node has there and `allowed` what is supported, `flags`
    are those that settle it; empty where that is not known.
    """

    place: str
    text: str
    kind: str = ""
    value: str = ""
    allowed: str = ""
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class SharedReason(Reason):
    """A reason in its commonest wording; it has `others` for other nodes of the group."""

    others: int = 0


@dataclass(frozen=True)
class RefusedGroup:
    """The nodes that are refused for the same reasons, the first few of them by name."""

    nodes: int
    compute: float
    operators: dict[str, int]
    reasons: tuple[SharedReason, ...]
    examples: tuple[str, ...]


@dataclass(frozen=True)
class GainRow:
    """The gain of dropping the constraint at `place`."""

    place: str
    operators: dict[str, int]
    nodes: int
    compute: float


@dataclass(frozen=True)
class MissedNodes:
    """The number of places where a composite nearly matched for the same reason."""

    nodes: int
    reason: str


@dataclass(frozen=True)
class CompositeRow:
    """A composite of the target: how often it was found, and where it nearly was."""

    name: str
    found: int
    nearly: tuple[MissedNodes, ...]


@dataclass(frozen=True)
class TriedRule:
    """A rule that was tried on a node, and why it refuses it."""

    rule: str
    objections: tuple[Reason, ...]


@dataclass(frozen=True)
class MissedComposite:
    """A composite that nearly matched at a node."""

    composite: str
    reason: str


@dataclass(frozen=True)
class NodeRow:
    """A node asked about: its types, and the rules that accept or refuse it."""

    node: str
    graph: str
    operator: str
    compute: float
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    taken: bool
    rule: str
    composite: str | None
    tried: tuple[TriedRule, ...]
    reasons: tuple[Reason, ...]
    nearly: tuple[MissedComposite, ...]


@dataclass(frozen=True)
class ExplainedNodes:
    """The number of nodes asked about, and of those that the target takes and refuses."""

    asked: int
    taken: int
    refused: int


@dataclass(frozen=True)
class ExplainedCompute:
    """The operations of the model, and the share of them that is refused.

    `estimated` is the share of the work, in seconds on the built-in host, that is an estimate: of nodes
    with a shape or an operator that is not known. A smaller share of the compute says nothing.
    """

    operations: float
    refused: float
    estimated: float


class ExplanationDocument(ReportModel):
    """An explanation as data; compute is a share of all operations of the model.

    `details` has a row for every node asked about, None unless it was asked for. `chosen_sizes` are
    those of open dimensions that byoc chose, `promises` and `conditions` are as in a report, of the
    nodes asked about that the target takes.
    """

    model: str
    target: str
    rules: str
    nodes: ExplainedNodes
    compute: ExplainedCompute
    refused: tuple[RefusedGroup, ...]
    relax: tuple[GainRow, ...]
    composites: tuple[CompositeRow, ...]
    details: tuple[NodeRow, ...] | None
    promises: tuple[ValuePromise, ...] = ()
    conditions: tuple[ValueCondition, ...] = ()
    chosen_sizes: dict[str, int] = Field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the data that JSON can represent, without `details` and promises if there are none."""
        data = super().to_json()
        optional = {"details": self.details is None}
        optional |= {name: not data[name] for name in ("promises", "conditions", "chosen_sizes")}
        return {key: value for key, value in data.items() if not optional.get(key)}


def make_explanation_document(explanation: Explanation, details: bool = False) -> ExplanationDocument:
    """Convert an explanation to data, with `details` if wanted."""
    total = explanation.operations
    asked, refused = len(explanation.asked), len(explanation.refusals)
    taken = [(graph.index, n) for graph, n in explanation.asked if n in graph.supported_nodes]
    return ExplanationDocument(
        model=explanation.model.source,
        target=explanation.target.name,
        rules=explanation.target.source,
        nodes=ExplainedNodes(asked, asked - refused, refused),
        compute=ExplainedCompute(
            total, _fraction(explanation.refused_operations, total), explanation.estimated
        ),
        refused=_group_refusals(explanation.refusals, total),
        relax=tuple(
            GainRow(gain.location, dict(gain.operators), gain.nodes, _fraction(gain.operations, total))
            for gain in compute_gains(explanation)
        ),
        composites=_list_composites(explanation),
        details=_describe_nodes(explanation) if details else None,
        promises=find_promises(explanation.target, taken),
        conditions=find_value_conditions(explanation.target, taken),
        chosen_sizes=dict(explanation.sizes),
    )


def _fraction(operations: float, total: float) -> float:
    return operations / total if total else 0.0


def _group_refusals(refusals: Iterable[RefusedNode], total: float) -> tuple[RefusedGroup, ...]:
    """Group nodes by their reasons, regardless of the values in them, the most compute first.

    What is not known behind one node or input is one reason, whichever constraints ask for it.
    """
    groups: dict[tuple[str, ...], list[RefusedNode]] = {}
    for refusal in refusals:
        key = (
            reason.origin or reason.location or reason.make_cause().general_text
            for reason in _list_distinct(refusal)
        )
        groups.setdefault(tuple(key), []).append(refusal)
    rows = [
        RefusedGroup(
            nodes=len(members),
            compute=_fraction(sum(m.operations for m in members), total),
            operators=dict(Counter(m.op for m in members).most_common()),
            reasons=tuple(_share_reasons(members)),
            examples=tuple(member.name for member in members[:_EXAMPLES]),
        )
        for members in groups.values()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.compute, -row.nodes, str(row.reasons))))


def _without_names(text: str) -> str:
    """Remove the quoted names from a sentence."""
    return re.sub(r"'[^']*'", "''", text)


def _share_reasons(members: Sequence[RefusedNode]) -> Iterator[SharedReason]:
    """Yield the reasons that some nodes share, each in its commonest wording."""
    reasons = [_list_distinct(member) for member in members]
    for position, reason in enumerate(reasons[0]):
        full = [each[position].reason for each in reasons]
        # The row names the operators anyway.
        short = [text.removeprefix(f"{m.op} ") for m, text in zip(members, full, strict=True)]
        several_ops = len({member.op for member in members}) > 1
        texts = Counter(short if several_ops and len(set(short)) == 1 else full)
        text = texts.most_common(1)[0][0]
        own = asdict(_make_reason(reason)) | {"text": text}
        yield SharedReason(**own, others=len(texts) - 1)


def _list_distinct(refusal: RefusedNode) -> list[Objection]:
    """Return the reasons of a refusal, those with one origin once."""
    found = {reason.origin or (reason.location, reason.text): reason for reason in refusal.reasons}
    return list(found.values())


def _list_composites(explanation: Explanation) -> tuple[CompositeRow, ...]:
    misses: dict[str, dict[str, list[NearMiss]]] = {}
    for miss in (miss for graph in explanation.graphs for miss in graph.near_misses):
        alike = misses.setdefault(miss.pattern, {})
        alike.setdefault(re.sub(r"\d+", "0", _without_names(miss.reason)), []).append(miss)
    return tuple(
        CompositeRow(
            name,
            found,
            tuple(
                MissedNodes(len(same), same[0].reason)
                for same in sorted(misses.get(name, {}).values(), key=len, reverse=True)
            ),
        )
        for name, found in explanation.composites.items()
    )


def _describe_nodes(explanation: Explanation) -> tuple[NodeRow, ...]:
    refused = {(id(refusal.index), refusal.number): refusal for refusal in explanation.refusals}
    rows = []
    for graph, number in explanation.asked:
        refusal = refused.get((id(graph.index), number))
        attempts, reasons = (refusal.attempts, refusal.reasons) if refusal else ((), ())
        node = graph.index.nodes[number]
        misses = _near_misses_at(explanation, graph, number)
        rows.append(
            NodeRow(
                node=get_node_name(node),
                graph=graph.graph_path,
                operator=get_operator_name(node),
                compute=_fraction(graph.operations[number], explanation.operations),
                inputs=tuple(_describe_tensor(graph.index, name) for name in node.input),
                outputs=tuple(_describe_tensor(graph.index, name) for name in node.output),
                taken=refusal is None,
                rule="" if refusal else graph.marks[number].rule,
                composite=graph.unit_of[number].composite,
                tried=tuple(TriedRule(a.rule, _list_reasons(a.objections)) for a in attempts),
                reasons=_list_reasons(reasons),
                nearly=tuple(MissedComposite(miss.pattern, miss.reason) for miss in misses),
            )
        )
    return tuple(rows)


def _list_reasons(objections: Iterable[Objection]) -> tuple[Reason, ...]:
    return tuple(
        replace(
            _make_reason(each),
            place=each.location,
            text=f"{each.text}: {each.origin}" if each.origin else each.text,
        )
        for each in objections
    )


def _make_reason(objection: Objection) -> Reason:
    cause = objection.make_cause()
    return Reason(
        cause.constraint, cause.text, cause.kind.value, cause.value, cause.allowed, cause.flags
    )


def _near_misses_at(explanation: Explanation, graph: GraphExplanation, number: int) -> list[NearMiss]:
    """Return the near misses of composites at a node; all of them if only this node was asked about."""
    if len(explanation.asked) == 1:
        return find_near_misses(graph.index, explanation.target.patterns, graph.marks, number)
    return [miss for miss in graph.near_misses if number in miss.nodes]


def _describe_tensor(index: GraphIndex, name: str) -> str:
    """Describe a tensor: for instance `x float32[1, 3, 224, 224]`."""
    if not name:
        return "(left out)"
    constant = " constant" if index.is_constant(name) else ""
    return f"{name} {index.types.get(name) or 'of an unknown type'}{constant}"
