"""The explanation as data: the output of `byoc explain --format json`, from which the text is made."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field
from rich.console import Console

from byoc._dataclasses import asdict, dataclass, replace
from byoc.bundle import ReportModel, ValueCondition, ValuePromise
from byoc.console import format_count, format_share, print_lines
from byoc.model import GraphIndex, get_node_name, get_operator_name
from byoc.patterns import NearMiss, find_near_misses
from byoc.planning import LEAST_TAKEN
from byoc.reporting._estimates import (
    find_promises,
    find_value_conditions,
    format_conditions,
    format_promises,
)
from byoc.reporting._explain import (
    Explanation,
    GraphExplanation,
    NodeInParts,
    RefusedNode,
    compute_gains,
)
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
class PartsRow:
    """Refused nodes of an operator as the parts that its function body has.

    `parts` counts those of one node, `taken` those of them that the target takes; `refused` are the
    reasons against the others, each once.
    """

    operator: str
    nodes: int
    parts: int
    taken: int
    refused: tuple[Reason, ...]


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
    in_parts: tuple[PartsRow, ...] = ()
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
        names = ("in_parts", "promises", "conditions", "chosen_sizes")
        optional |= {name: not data[name] for name in names}
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
        in_parts=tuple(_group_parts(explanation.in_parts)),
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


def _group_parts(found: Iterable[NodeInParts]) -> Iterator[PartsRow]:
    """Yield a row for all nodes of an operator whose parts are refused for the same reasons."""
    rows: dict[tuple[object, ...], PartsRow] = {}
    for each in found:
        reasons = {
            reason.text: reason
            for part in each.refused
            for reason in (_name_operator(part.op, objection) for objection in part.reasons)
        }
        key = each.op, each.parts, len(each.refused), *reasons
        known = rows.get(key)
        taken = each.parts - len(each.refused)
        row = (
            PartsRow(each.op, 0, each.parts, taken, tuple(reasons.values())) if known is None else known
        )
        rows[key] = replace(row, nodes=row.nodes + 1)
    yield from sorted(rows.values(), key=lambda row: (-row.nodes, row.operator))


def _name_operator(op: str, objection: Objection) -> Reason:
    """Return a reason against a part, with its operator, and without the names of byoc's tensors."""
    cause = objection.make_cause(op)
    text = cause.general_text
    return replace(_make_reason(objection), text=text if text.startswith(op) else f"{op}: {text}")


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


# The explanation as text: a summary line, grouped reasons, and the gains of relaxing rules.

_MAX_OPERATORS = 4  # in a line


@dataclass(frozen=True)
class _Size:
    """The most rows of each section, None for all."""

    refused: int | None
    reasons: int | None
    parts: int | None
    gains: int | None
    composites: int | None
    near_misses: int | None


_SCREEN = _Size(6, 2, 4, 4, 6, 1)
"""What fits a screen of 50 lines of 100 characters."""
_WHOLE = _Size(None, None, None, None, None, None)
# A smaller share would be shown as 0.0 %.
_LEAST_ESTIMATE = 5e-4


def print_explanation(document: ExplanationDocument, console: Console, *, verbose: bool = False) -> None:
    """Print the data made by `make_explanation_document`: what matters most, or all if `verbose`."""
    print_lines(_explanation_lines(document, _WHOLE if verbose else _SCREEN), console)


def _explanation_lines(found: ExplanationDocument, size: _Size) -> Iterable[str]:
    nodes, compute = found.nodes, found.compute
    if found.details is None and nodes.asked and not nodes.taken and found.refused:
        yield f"Nothing is taken: {_describe_first(found)}"
    refused = f"{nodes.refused} refused"
    if nodes.refused:
        refused += f" ({_format_share(compute.refused, compute.estimated)} of the compute)"
    yield (
        f"{found.model} with {found.rules}: {nodes.taken} of "
        f"{format_count(nodes.asked, 'node')} "
        f"taken, {refused}{_format_estimate(compute.estimated)}"
    )
    if found.chosen_sizes:
        sizes = ", ".join(f"{name} = {size}" for name, size in found.chosen_sizes.items())
        yield f"At {sizes}, as it is planned (--dim chooses others, --keep-open leaves it open)"
    if found.details is not None:
        for row in found.details:
            yield from _node_lines(row, compute.estimated)
    else:
        yield from _refused_lines(found.refused, compute.estimated, size)
    yield from _parts_lines(found.in_parts, size)
    yield from _gain_lines(found.relax, compute.estimated, size.gains)
    if found.details is None:
        yield from _composite_lines(found.composites, size)
    promised = [*format_promises(found.promises), *format_conditions(found.conditions)]
    yield from ("", *promised) if promised else ()


def _describe_first(found: ExplanationDocument) -> str:
    """Return the reasons that refuse the most compute, and how much of it."""
    first = found.refused[0]
    share = _format_share(first.compute, found.compute.estimated)
    operators = _format_operators(first.operators)
    reasons = "; ".join(_format_reason(reason) for reason in first.reasons)
    return f"for {share} of the compute ({operators}) the reason is: {reasons}"


def _format_estimate(estimated: float) -> str:
    return (
        "" if estimated < _LEAST_ESTIMATE else f"; {format_share(estimated)} of the work is an estimate"
    )


def _format_share(part: float, estimated: float) -> str:
    """Format a share of the compute, `unknown` if more than that is an estimate."""
    if 0 < part < estimated:
        return "unknown"
    return "under 0.1 %" if 0 < part < 0.0005 else format_share(part)


def _refused_lines(rows: Sequence[RefusedGroup], estimated: float, size: _Size) -> Iterable[str]:
    for position, row in enumerate(rows[: size.refused]):
        if not position:
            yield from ("", "Refused, and why:")
            yield "  nodes  compute      operators"
        share = _format_share(row.compute, estimated)
        yield f"  {row.nodes:>5}  {share:<11}  {_format_operators(row.operators)}"
        for reason in row.reasons[: size.reasons]:
            yield f"                      - {_format_reason(reason)}{_format_location(reason)}"
        if size.reasons is not None and (more := len(row.reasons[size.reasons :])):
            yield f"                      - and {format_count(more, 'other reason')} (--verbose)"
    if size.refused is not None and (rest := rows[size.refused :]):
        nodes, compute = sum(row.nodes for row in rest), sum(row.compute for row in rest)
        others = format_count(len(rest), "other reason")
        yield f"  {nodes:>5}  {_format_share(compute, estimated):<11}  for {others} (--verbose)"


def _format_location(reason: Reason) -> str:
    """Format the location of a reason in the rule file; empty if no rule is the reason."""
    return f"  [{reason.place}]" if reason.place else ""


def _format_operators(counts: Mapping[str, int]) -> str:
    shown = list(counts.items())[:_MAX_OPERATORS]
    several = len(counts) > 1
    text = ", ".join(f"{name} x{number}" if several else name for name, number in shown)
    rest = len(counts) - len(shown)
    return f"{text} and {rest} more" if rest else text


def _format_reason(reason: SharedReason) -> str:
    others = reason.others
    return f"{reason.text} (and {others} like it)" if others else reason.text


def _parts_lines(rows: Sequence[PartsRow], size: _Size) -> Iterable[str]:
    if rows:
        yield from ("", "Refused whole; partition places their parts where that pays:")
    for row in rows[: size.parts]:
        nodes = f" ({format_count(row.nodes, 'node')})" if row.nodes > 1 else ""
        few = ", too few to be placed apart" if row.taken < LEAST_TAKEN * row.parts else ""
        told = f"{few}; refused are:" if row.refused else ""
        yield f"  {row.operator}{nodes}: {row.taken} of {format_count(row.parts, 'part')} taken{told}"
        for reason in row.refused[: size.reasons]:
            yield f"    - {reason.text}{_format_location(reason)}"
        if size.reasons is not None and (more := len(row.refused[size.reasons :])):
            yield f"    - and {format_count(more, 'other reason')} (--verbose)"
    if size.parts is not None and len(rows) > size.parts:
        yield f"  and {len(rows) - size.parts} more (--verbose)"


def _gain_lines(rows: Sequence[GainRow], estimated: float, most: int | None) -> Iterable[str]:
    if not rows:
        return
    yield from ("", "If one constraint were relaxed:")
    for row in rows[:most]:
        nodes, compute = format_count(row.nodes, "node"), _format_share(row.compute, estimated)
        yield f"  +{nodes:<10}  +{compute:<11}  {_format_operators(row.operators)}  [{row.place}]"
    if most is not None and len(rows) > most:
        yield f"  and {len(rows) - most} more (--verbose)"


def _composite_lines(rows: Sequence[CompositeRow], size: _Size) -> Iterable[str]:
    if rows:
        yield from ("", "Composites:")
    if size.composites is not None and len(rows) > size.composites:
        rows = sorted(rows, key=lambda row: -row.found)
    for row in rows[: size.composites]:
        yield f"  {row.found:>5}  {row.name}"
        for miss in row.nearly[: size.near_misses]:
            alike = f" (and {miss.nodes - 1} like it)" if miss.nodes > 1 else ""
            yield f"         nearly: {miss.reason}{alike}"
        left = () if size.near_misses is None else row.nearly[size.near_misses :]
        if left:
            rest = format_count(sum(miss.nodes for miss in left), "other")
            yield f"         nearly: {rest} (--verbose)"
    if size.composites is not None and (others := rows[size.composites :]):
        found = sum(row.found for row in others)
        yield f"  {found:>5}  of {format_count(len(others), 'other composite')} (--verbose)"


def _node_lines(row: NodeRow, estimated: float) -> Iterable[str]:
    inside = f" in {row.graph}" if row.graph else ""
    share = _format_share(row.compute, estimated)
    share = "an unknown share" if share == "unknown" else share
    yield ""
    yield f"{row.operator} '{row.node}'{inside}, {share} of the compute"
    yield f"  reads  {', '.join(row.inputs) or 'nothing'}"
    yield f"  makes  {', '.join(row.outputs)}"
    if row.taken:
        composite = f", in a {row.composite}" if row.composite else ""
        yield f"  taken by {row.rule}{composite}"
    for attempt in row.tried:
        yield f"  refused by {attempt.rule}:" if attempt.rule else "  refused:"
        for objection in attempt.objections:
            yield f"    - {objection.text}{_format_location(objection)}"
    if not row.tried:
        for reason in row.reasons:
            yield f"  refused: {reason.text}{_format_location(reason)}"
    for miss in row.nearly:
        yield f"  nearly {miss.composite}: {miss.reason}"
