"""The explanation as text: a summary line, grouped reasons, and the gains of relaxing rules."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from byoc.console import print_lines
from byoc.reporting._estimates import format_conditions, format_promises
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

_MAX_OPERATORS = 4  # in a line


@dataclass(frozen=True)
class _Size:
    """The most rows of each section, None for all."""

    refused: int | None
    reasons: int | None
    gains: int | None
    composites: int | None
    near_misses: int | None


_SCREEN = _Size(6, 2, 4, 6, 1)
"""What fits a screen of 50 lines of 100 characters."""
_WHOLE = _Size(None, None, None, None, None)
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
