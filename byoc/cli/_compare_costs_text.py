"""The tables of `byoc compare-costs`, and its JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from byoc import comparison, profiling
from byoc.cli._common import OutputFormat, print_json, print_rows
from byoc.console import print_line, print_lines
from byoc.reporting import format_count, format_quantity

# With fewer models almost any order looks like a good one.
_LEAST_RANKED = 5
_SHOWN = 10


def print_comparison(
    found: Sequence[profiling.PredictionComparison],
    regions: Sequence[tuple[str, profiling.TimedRegion]],
    losses: Sequence[comparison.OptimalityLoss],
    form: OutputFormat,
) -> None:
    """Print what was predicted and measured of models, regions and decisions."""
    rank = None
    if len(found) >= _LEAST_RANKED:
        rank = profiling.rank_correlation(
            [c.predicted for c in found], [c.measured.median for c in found]
        )
    if form is OutputFormat.json:
        rows = [_make_node_row(each) for each in found]
        print_json(
            {
                "rows": rows,
                "rank_correlation": rank,
                "mean_factor": profiling.mean_error_factor(found) if found else None,
                "regions": [_make_region_row(name, each) for name, each in regions],
                "optimality_loss": [{**asdict(each), "loss": each.loss} for each in losses],
            }
        )
        return
    if found:
        _print_models(found, rank)
    if losses:
        _print_losses(losses)
    if regions:
        print_lines(["", "Regions, as their codegens time or estimate them:"])
        print_rows([_format_region_row(name, each) for name, each in regions], form)


def _describe_uncertainty(each: profiling.PredictionComparison) -> str:
    spread, median = (
        format_quantity(each.measured.spread, "s"),
        format_quantity(each.measured.median, "s"),
    )
    return f"the runs spread over {spread} around {median}; measure again on a machine that is idle"


def _print_models(found: Sequence[profiling.PredictionComparison], rank: float | None) -> None:
    print_rows([_format_node_row(each) for each in found], OutputFormat.text)
    for each in found:
        if each.measured.spread > profiling.WIDE_SPREAD * each.measured.median:
            print_line(f"warning: {each.model}: {_describe_uncertainty(each)}")
    if rank is not None:
        print_line(f"rank correlation over the models: {rank:.3f}")
    print_line(
        f"predictions are off by a factor of {profiling.mean_error_factor(found):.3g} (geometric mean)"
    )
    for each in found:
        _print_pairs(each)


def _print_pairs(found: profiling.PredictionComparison) -> None:
    """Print the pairs whose predictions are off by most seconds, and how far pairs can be relied on."""
    if not found.pairs or found.noise is None:
        return
    wide = sum(pair.is_wide for pair in found.pairs)
    worst = sorted(found.pairs, key=lambda pair: -abs(pair.predicted - pair.measured.median))[:_SHOWN]
    what = "nodes" if found.where == "host" else "regions"
    print_lines(["", f"{found.model}, the {what} that are off by most seconds:"])
    print_rows([_format_pair(pair) for pair in worst], OutputFormat.text)
    noise = f"noise: runs spread over {found.noise:.0%} of their median as a rule"
    if wide:
        pairs = f"{wide} of {len(found.pairs)} {what}"
        noise += f"; those of {pairs} spread over more than half, and are not to be relied on"
    print_line(noise)


def _format_pair(pair: profiling.NodePair) -> dict[str, Any]:
    return {
        "name": pair.name,
        "op": pair.op,
        "predicted": format_quantity(pair.predicted, "s"),
        "measured": format_quantity(pair.measured.median, "s"),
        "spread": format_quantity(pair.measured.spread, "s"),
        "factor": "" if pair.factor is None else f"{pair.factor:.3g}",
        "guessed": "yes" if pair.estimated else "",
    }


def _print_losses(losses: Sequence[comparison.OptimalityLoss]) -> None:
    """Print what placements lose that these costs choose, by the measured ones."""
    print_lines(["", "What the placement by these costs loses, by the measured ones:"])
    print_rows(
        [
            {
                "model": each.model,
                "predicted": format_quantity(each.predicted, "s"),
                "takes": format_quantity(each.chosen, "s"),
                "best": format_quantity(each.best, "s"),
                "loss": f"{each.loss:.1%}",
                "host_alone": format_quantity(each.host_only, "s"),
                "not_measured": f"{each.estimated} of {each.units}" if each.estimated else "",
                "best_is": "proven" if each.proven else "the best found",
            }
            for each in losses
        ],
        OutputFormat.text,
    )
    mean = sum(each.loss for each in losses) / len(losses)
    models = format_count(len(losses), "model")
    worst = max(each.loss for each in losses)
    print_line(f"optimality loss: {mean:.1%} on average over {models}, {worst:.1%} at worst")


def _make_node_row(each: profiling.PredictionComparison) -> dict[str, Any]:
    return {
        "model": each.model,
        "where": each.where,
        "predicted": each.predicted,
        "measured": each.measured.median,
        "spread": each.measured.spread,
        "samples": each.measured.count,
        "error": each.error,
        "parts": each.parts,
        "additive_error": each.additive_error,
        "node_rank_correlation": each.rank,
        "unknown": each.unknown,
        "noise": each.noise,
        "pairs": [
            {
                "name": pair.name,
                "op": pair.op,
                "predicted": pair.predicted,
                "measured": pair.measured.median,
                "spread": pair.measured.spread,
                "samples": pair.measured.count,
                "factor": pair.factor,
                "estimated": pair.estimated,
            }
            for pair in each.pairs
        ],
    }


def _format_node_row(each: profiling.PredictionComparison) -> dict[str, Any]:
    return {
        "model": each.model,
        "where": each.where,
        "predicted": format_quantity(each.predicted, "s"),
        "measured": format_quantity(each.measured.median, "s"),
        "spread": format_quantity(each.measured.spread, "s"),
        "error": f"{each.error:+.0%}",
        "sum_of_parts": format_quantity(each.parts, "s"),
        "additive_error": f"{each.additive_error:+.0%}",
        "rank_of_nodes": "" if each.rank is None else f"{each.rank:.2f}",
        "unknown": each.unknown,
    }


def _make_region_row(model: str, each: profiling.TimedRegion) -> dict[str, Any]:
    return {
        "model": model,
        "region": each.region,
        "where": each.where,
        "predicted": each.predicted,
        "codegen": each.codegen_seconds,
        "estimated": each.is_estimate,
        "error": each.error,
    }


def _format_region_row(model: str, each: profiling.TimedRegion) -> dict[str, Any]:
    return {
        **_make_region_row(model, each),
        "predicted": format_quantity(each.predicted, "s"),
        "codegen": format_quantity(each.codegen_seconds, "s"),
        "estimated": "yes" if each.is_estimate else "",
        "error": f"{each.error:+.0%}",
    }
