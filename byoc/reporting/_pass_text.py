"""The effect of a pass as a line of text."""

from byoc.passes import REGION_SCOPE, PassEffect
from byoc.reporting._quantities import format_count

_OPERATORS = 4


def format_effect(effect: PassEffect) -> str:
    """Format the effect of a pass in a line: nodes before and after, by operator where they differ."""
    before, after = effect.nodes_before, effect.nodes_after
    where = f" on {effect.target}" if effect.target else ""
    if not effect.changed:
        return f"Pass {effect.name}{where}: nothing changed"
    kinds = sorted({*before, *after}, key=lambda op: (-abs(after.get(op, 0) - before.get(op, 0)), op))
    moves = [
        f"{op} {before.get(op, 0):,} to {after.get(op, 0):,}"
        for op in kinds
        if before.get(op, 0) != after.get(op, 0)
    ]
    more = f", {len(moves) - _OPERATORS} more" if len(moves) > _OPERATORS else ""
    shown = f" ({', '.join(moves[:_OPERATORS])}{more})" if moves else ""
    many = effect.scope == REGION_SCOPE
    regions = f" in {effect.changed} of {format_count(effect.applied, 'region')}" if many else ""
    total = sum(after.values())
    nodes = f"{sum(before.values()):,} to {total:,} nodes"
    if effect.rewritten and not moves:
        nodes = f"{effect.rewritten:,} of {total:,} nodes changed"
    return f"Pass {effect.name}{where}: {nodes}{regions}{shown}{_format_comparison(effect)}"


def _format_comparison(effect: PassEffect) -> str:
    if not effect.compared:
        return f"; not compared: {effect.not_compared}" if effect.not_compared else ""
    if effect.equal:
        return "; outputs equal, bit by bit"
    return f"; largest error {effect.largest_error:.1e} of the output's range"
