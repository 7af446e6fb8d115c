"""The explanation as text: a summary line, grouped reasons, and the gains of relaxing rules."""

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console

from byoc.console import print_lines
from byoc.reporting._explanation_document import (
    CompositeRow,
    ExplanationDocument,
    GainRow,
    NodeRow,
    Reason,
    RefusedGroup,
    SharedReason,
)
from byoc.reporting._quantities import format_count, format_share

_MAX_OPERATORS = 4
_MAX_GAINS = 10
_MAX_NEAR_MISSES = 3
# A smaller share would be shown as 0.0 %.
_LEAST_ESTIMATE = 5e-4


def print_explanation(document: ExplanationDocument, console: Console) -> None:
    """Print the data made by `make_explanation_document`."""
    print_lines(_explanation_lines(document), console)


def _explanation_lines(found: ExplanationDocument) -> Iterable[str]:
    nodes, compute = found.nodes, found.compute
    refused = f"{nodes.refused} refused"
    if nodes.refused:
        refused += f" ({_format_share(compute.refused, compute.estimated)} of the compute)"
    yield (
        f"{found.model} with {found.rules}: {nodes.taken} of "
        f"{format_count(nodes.asked, 'node')} "
        f"taken, {refused}{_format_estimate(compute.estimated)}"
    )
    if found.details is not None:
        for row in found.details:
            yield from _node_lines(row, compute.estimated)
    else:
        yield from _refused_lines(found.refused, compute.estimated)
    yield from _gain_lines(found.relax, compute.estimated)
    if found.details is None:
        yield from _composite_lines(found.composites)


def _format_estimate(estimated: float) -> str:
    return (
        "" if estimated < _LEAST_ESTIMATE else f"; {format_share(estimated)} of the work is an estimate"
    )


def _format_share(part: float, estimated: float) -> str:
    """Format a share of the compute, `unknown` if more than that is an estimate."""
    if 0 < part < estimated:
        return "unknown"
    return "under 0.1 %" if 0 < part < 0.0005 else format_share(part)


def _refused_lines(rows: Iterable[RefusedGroup], estimated: float) -> Iterable[str]:
    for position, row in enumerate(rows):
        if not position:
            yield from ("", "Refused, and why:")
            yield "  nodes  compute      operators"
        share = _format_share(row.compute, estimated)
        yield f"  {row.nodes:>5}  {share:<11}  {_format_operators(row.operators)}"
        for reason in row.reasons:
            yield f"                      - {_format_reason(reason)}{_format_location(reason)}"


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


def _gain_lines(rows: Sequence[GainRow], estimated: float) -> Iterable[str]:
    if not rows:
        return
    yield from ("", "If one constraint were relaxed:")
    for row in rows[:_MAX_GAINS]:
        nodes, compute = format_count(row.nodes, "node"), _format_share(row.compute, estimated)
        yield f"  +{nodes:<10}  +{compute:<11}  {_format_operators(row.operators)}  [{row.place}]"
    if len(rows) > _MAX_GAINS:
        yield f"  and {len(rows) - _MAX_GAINS} more (--format json)"


def _composite_lines(rows: Sequence[CompositeRow]) -> Iterable[str]:
    if rows:
        yield from ("", "Composites:")
    for row in rows:
        yield f"  {row.found:>5}  {row.name}"
        for miss in row.nearly[:_MAX_NEAR_MISSES]:
            alike = f" (and {miss.nodes - 1} like it)" if miss.nodes > 1 else ""
            yield f"         nearly: {miss.reason}{alike}"
        rest = sum(miss.nodes for miss in row.nearly[_MAX_NEAR_MISSES:])
        if rest:
            yield f"         nearly: {format_count(rest, 'other')} (--format json)"


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
