"""The verbs that measure costs, and compare predicted costs with measured ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

import byoc
import byoc.bundle
import byoc.costs
import byoc.model
import byoc.pipeline
from byoc import codegen, comparison, runtime, samples, verification
from byoc.cli._common import (
    FormatOption,
    OutputFormat,
    print_json,
    print_rows,
    reserve_stdout,
    show_status,
)
from byoc.cli._option_flags import LoadOptions, read_pairs, take_options
from byoc.console import format_count, format_quantity, print_errors, print_line, print_lines
from byoc.errors import InputError
from byoc.support import keywords_of


@take_options(comparison.ProfileOptions)
def profile(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="ONNX files, or zoo:NAME.")],
    options: comparison.ProfileOptions,
) -> None:
    """Measure operators on this machine, and write a cost model."""
    if options.device == comparison.HOST and (options.rules is not None or options.codegen_options):
        raise typer.BadParameter("--rules and --codegen-option are for a codegen", param_hint="--device")
    with show_status(), reserve_stdout():
        found = byoc.profile(models, **keywords_of(options, comparison.ProfileOptions))
    print_errors(found.notes)
    what = "lines fitted to measurements" if options.fit else "measurements"
    print_line(f"{options.output}: {what} of {found.operators} operators, each on tensors of its types")


# `byoc compare-costs`: predictions of a cost model against measurements on this machine.

_ZOO = "zoo:"
_STRATEGY = "min-cut"


@take_options(LoadOptions)
def compare_costs(  # noqa: PLR0913 - the options of the verb
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="ONNX files, zoo:NAME, or bundles.")
    ],
    options: LoadOptions,
    *,
    costs: Annotated[
        str | None,
        typer.Option(help="The cost model: the accelerator's with --rules, else the host's."),
    ] = None,
    host_costs: Annotated[str, typer.Option(help="The host's, with --rules.")] = "host",
    rules: Annotated[
        str | None, typer.Option(help="Cut the models by a rule file, and compare the placements.")
    ] = None,
    strategy: Annotated[
        str | None, typer.Option(help="How to place, with --rules.", show_default="min-cut")
    ] = None,
    cost_option: Annotated[
        list[str] | None,
        typer.Option(metavar="[TARGET:]NAME=VALUE", help="An option of a cost model that is a plug-in."),
    ] = None,
    loss: Annotated[
        bool,
        typer.Option(
            "--loss",
            help="Tell what the placement by these costs loses to the one by measured costs: measures "
            "every unit, with --rules.",
        ),
    ] = False,
    measured: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The accelerator's measured costs, for --loss; then nothing is measured.",
        ),
    ] = None,
    measured_host: Annotated[
        str | None, typer.Option(metavar="NAME", help="The host's, with --measured.")
    ] = None,
    measured_option: Annotated[
        list[str] | None,
        typer.Option(metavar="[TARGET:]NAME=VALUE", help="An option of --measured, if a plug-in."),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.0, help="Measure each for at most so many seconds.")
    ] = 5.0,
    repeats: Annotated[int, typer.Option(min=1, help="Run each at most so often.")] = 100,
    form: FormatOption = OutputFormat.text,
) -> None:
    """Compare predicted seconds with measured ones.

    With --measured nothing runs: placements by the costs in question are priced by the measured ones.
    """
    pairs = read_pairs(cost_option or [], "--cost-option")
    if (loss or measured or measured_host) and rules is None:
        raise typer.BadParameter("it is about placements: give --rules, too", param_hint="--loss")
    if (measured_host or measured_option) and not measured:
        raise typer.BadParameter("give --measured, too", param_hint="--measured-host")
    if (loss or measured) and strategy is not None:
        raise typer.BadParameter("the loss is that of the default strategy", param_hint="--strategy")
    _refuse_bundles(models, loss or bool(measured), bool(rules or costs or pairs))
    if measured and rules:
        asked = byoc.pipeline.PlanOptions(
            rules, cost_model=costs, host_cost_model=host_costs, cost_options=pairs
        )
        judge = byoc.pipeline.PlanOptions(
            rules,
            cost_model=measured,
            host_cost_model=measured_host or host_costs,
            cost_options=read_pairs(measured_option or [], "--measured-option"),
        )
        with show_status(), reserve_stdout():
            found_losses = [comparison.compare_decisions(name, asked, judge) for name in models]
        print_comparison([], [], found_losses, form)
        return
    patience = comparison.Patience(seconds=seconds, most=repeats, least=min(repeats, 5))
    found: list[comparison.PredictionComparison] = []
    regions: list[tuple[str, comparison.TimedRegion]] = []
    losses: list[comparison.OptimalityLoss] = []
    with show_status() as show, reserve_stdout():
        for name in models:
            show(name)
            if byoc.bundle.is_bundle(Path(name)):
                for bundle in options.open_bundle(Path(name)).variants:
                    label = f"{name}, {bundle.variant.name}" if bundle.variant.name else name
                    timed = _find_regions(label, bundle)
                    found.append(_compare_bundle(label, bundle, None, patience, timed))
                    regions += [(label, each) for each in timed]
            elif rules is not None:
                with TemporaryDirectory(prefix="byoc-") as folder:
                    output = Path(folder) / "bundle"
                    made = byoc.partition(
                        name,
                        rules,
                        output=output,
                        strategy=strategy or _STRATEGY,
                        cost_model=costs,
                        host_cost_model=host_costs,
                        cost_options=pairs,
                        verify=False,
                    )
                    unknown = sum(graph.graph_problem.estimated for graph in made.plan.root.walk())
                    bundle = byoc.open_bundle(output, trust=True)
                    timed = _find_regions(name, bundle)
                    found.append(_compare_bundle(name, bundle, unknown, patience, timed))
                    regions += [(name, each) for each in timed]
                if loss:
                    show(f"{name}: measure units")
                    asked = byoc.pipeline.PlanOptions(
                        rules, cost_model=costs, host_cost_model=host_costs, cost_options=pairs
                    )
                    losses.append(comparison.measure_loss(name, asked, seconds, repeats))
            else:
                model = byoc.costs.load_cost_model(costs or host_costs, pairs)
                found.append(comparison.compare_host(byoc.load_model(name), model, patience))
    print_comparison(found, regions, losses, form)


def _refuse_bundles(models: Sequence[str], loss: bool, costs: bool) -> None:
    """Raise InputError for a bundle whose loss is asked for, or bundles alone with costs for models."""
    bundles = [name for name in models if byoc.bundle.is_bundle(Path(name))]
    if bundles and loss:
        raise InputError(f"{bundles[0]}: a bundle's placement is decided: the loss is told of models")
    if costs and len(bundles) == len(models):
        raise InputError(
            f"{bundles[0]}: a bundle is compared with the costs that it was placed by: --rules, --costs"
            " and --cost-option are for models"
        )


def _compare_bundle(
    name: str,
    bundle: byoc.Bundle,
    unknown: int | None,
    patience: comparison.Patience,
    timed: Sequence[comparison.TimedRegion],
) -> comparison.PredictionComparison:
    """Compare a bundle; where compilers estimate all regions, nothing but the host is measured."""
    predicted = bundle.variant.report.predicted.seconds
    asked = str(bundle.manifest.asked.get("model", ""))
    if asked.startswith(_ZOO) and not (bundle.manifest.asked.get("dims") or bundle.variant.dims):
        inputs = samples.model_samples(byoc.load_model(asked))
    else:
        inputs = samples.model_samples(byoc.model.prepare_model(bundle.model(), name, bundle.folder))
    estimates = {each.region: each.codegen_seconds for each in timed if each.is_estimate}
    if all(region.name in estimates and not region.graph for region in bundle.variant.report.regions):
        runs = {
            region.name: verification.make_reference_executor(region)
            for _, region, _ in bundle.regions()
        }
        session = runtime.load_bundle(bundle, runs)
    else:
        estimates, session = {}, runtime.load_bundle(bundle)
    placed = bundle.variant.report.regions
    where = " and ".join(dict.fromkeys(region.device for region in placed)) or "host"
    regions = {region.name: region.seconds for region in placed}
    return comparison.compare_placement(
        name,
        where,
        session,
        inputs,
        predicted,
        unknown or 0,
        patience,
        regions=regions,
        estimates=estimates,
    )


def _find_regions(name: str, bundle: byoc.Bundle) -> list[comparison.TimedRegion]:
    """Return the regions that their codegens can time."""
    try:
        return comparison.time_regions(bundle)
    except (InputError, codegen.CompileError) as error:
        raise InputError(f"{name}: {error}") from None


# The tables of `byoc compare-costs`, and its JSON.

# With fewer models almost any order looks like a good one.
_LEAST_RANKED = 5
_SHOWN = 10  # rows of the worst predictions; all are in the JSON


def print_comparison(
    found: Sequence[comparison.PredictionComparison],
    regions: Sequence[tuple[str, comparison.TimedRegion]],
    losses: Sequence[comparison.OptimalityLoss],
    form: OutputFormat,
) -> None:
    """Print what was predicted and measured of models, regions and decisions."""
    rank = None
    if len(found) >= _LEAST_RANKED:
        rank = comparison.rank_correlation(
            [c.predicted for c in found], [c.measured.median for c in found]
        )
    if form is OutputFormat.json:
        rows = [_make_node_row(each) for each in found]
        print_json(
            {
                "rows": rows,
                "rank_correlation": rank,
                "mean_factor": comparison.mean_error_factor(found) if found else None,
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


def _describe_uncertainty(each: comparison.PredictionComparison) -> str:
    spread, median = (
        format_quantity(each.measured.spread, "s"),
        format_quantity(each.measured.median, "s"),
    )
    return f"the runs spread over {spread} around {median}; measure again on a machine that is idle"


def _print_models(found: Sequence[comparison.PredictionComparison], rank: float | None) -> None:
    print_rows([_format_node_row(each) for each in found], OutputFormat.text)
    for each in found:
        if each.measured.is_wide:
            print_line(f"warning: {each.model}: {_describe_uncertainty(each)}")
    if rank is not None:
        print_line(f"rank correlation over the models: {rank:.3f}")
    print_line(
        f"predictions are off by a factor of {comparison.mean_error_factor(found):.3g} (geometric mean)"
    )
    for each in found:
        _print_pairs(each)


def _print_pairs(found: comparison.PredictionComparison) -> None:
    """Print the pairs whose predictions are off by most seconds, and how far pairs can be relied on."""
    if not found.pairs or found.noise is None:
        return
    wide = sum(pair.measured.is_wide for pair in found.pairs)
    worst = sorted(found.pairs, key=lambda pair: -abs(pair.predicted - pair.measured.median))[:_SHOWN]
    what = "nodes" if found.where == "host" else "regions"
    print_lines(["", f"{found.model}, the {what} that are off by most seconds:"])
    print_rows([_format_pair(pair) for pair in worst], OutputFormat.text)
    noise = f"noise: runs spread over {found.noise:.0%} of their median as a rule"
    if wide:
        pairs = f"{wide} of {len(found.pairs)} {what}"
        noise += f"; those of {pairs} spread over more than half, and are not to be relied on"
    print_line(noise)


def _format_pair(pair: comparison.NodePair) -> dict[str, Any]:
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


def _make_node_row(each: comparison.PredictionComparison) -> dict[str, Any]:
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


def _format_node_row(each: comparison.PredictionComparison) -> dict[str, Any]:
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


def _make_region_row(model: str, each: comparison.TimedRegion) -> dict[str, Any]:
    return {
        "model": model,
        "region": each.region,
        "where": each.where,
        "predicted": each.predicted,
        "codegen": each.codegen_seconds,
        "estimated": each.is_estimate,
        "error": each.error,
    }


def _format_region_row(model: str, each: comparison.TimedRegion) -> dict[str, Any]:
    return {
        **_make_region_row(model, each),
        "predicted": format_quantity(each.predicted, "s"),
        "codegen": format_quantity(each.codegen_seconds, "s"),
        "estimated": "yes" if each.is_estimate else "",
        "error": f"{each.error:+.0%}",
    }
