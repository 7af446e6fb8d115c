"""`byoc compare-costs`: predictions of a cost model against measurements on this machine."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from byoc.bundle import Bundle, is_bundle, open_bundle
from byoc.cli._common import (
    FormatOption,
    OutputFormat,
    print_json,
    print_rows,
    reserve_stdout,
    show_status,
)
from byoc.cli._option_flags import LoadOptions, take_options
from byoc.codegen import CompileError
from byoc.console import print_line, print_lines
from byoc.costs import load_cost_model
from byoc.errors import InputError
from byoc.model import prepare_model
from byoc.pipeline import partition
from byoc.profiling import (
    Patience,
    PredictionComparison,
    TimedRegion,
    compare_host,
    compare_placement,
    mean_error_factor,
    rank_correlation,
    time_regions,
)
from byoc.reporting import format_quantity
from byoc.runtime import load_bundle
from byoc.samples import model_samples
from byoc.zoo import load_model

_ZOO = "zoo:"
# With fewer models almost any order looks like a good one.
_LEAST_RANKED = 5
# A spread beyond this share of the median says little of the model's own time.
_WIDE = 0.5


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
    strategy: Annotated[str, typer.Option(help="How to place, with --rules.")] = "min-cut",
    seconds: Annotated[
        float, typer.Option(min=0.0, help="Measure each for at most so many seconds.")
    ] = 5.0,
    repeats: Annotated[int, typer.Option(min=1, help="Run each at most so often.")] = 100,
    form: FormatOption = OutputFormat.text,
) -> None:
    """Compare predicted seconds with measured ones."""
    patience = Patience(seconds=seconds, most=repeats, least=min(repeats, 5))
    found: list[PredictionComparison] = []
    regions: list[tuple[str, TimedRegion]] = []
    with show_status() as show, reserve_stdout():
        for name in models:
            show(name)
            if is_bundle(Path(name)):
                bundle = options.open_bundle(Path(name))
                found.append(_compare_bundle(name, bundle, None, patience))
                regions += _find_regions(name, bundle)
            elif rules is not None:
                with TemporaryDirectory(prefix="byoc-") as folder:
                    output = Path(folder) / "bundle"
                    made = partition(
                        name,
                        rules,
                        output=output,
                        strategy=strategy,
                        cost_model=costs,
                        host_cost_model=host_costs,
                        verify=False,
                    )
                    unknown = sum(graph.graph_problem.estimated for graph in made.plan.root.walk())
                    bundle = open_bundle(output, trust=True)
                    found.append(_compare_bundle(name, bundle, unknown, patience))
                    regions += _find_regions(name, bundle)
            else:
                model = load_cost_model(costs or host_costs)
                found.append(compare_host(load_model(name), model, patience))
    _print_comparison(found, regions, form)


def _compare_bundle(
    name: str, bundle: Bundle, unknown: int | None, patience: Patience
) -> PredictionComparison:
    predicted = bundle.manifest.report.predicted.seconds
    asked = str(bundle.manifest.asked.get("model", ""))
    if asked.startswith(_ZOO) and not bundle.manifest.asked.get("dims"):
        inputs = model_samples(load_model(asked))
    else:
        inputs = model_samples(prepare_model(bundle.model(), name, bundle.folder))
    session = load_bundle(bundle)
    target = " and ".join(bundle.manifest.targets)
    return compare_placement(name, target, session, inputs, predicted, unknown or 0, patience)


def _find_regions(name: str, bundle: Bundle) -> list[tuple[str, TimedRegion]]:
    """Return the regions that their codegens can time, each with the model's name."""
    try:
        return [(name, each) for each in time_regions(bundle)]
    except (InputError, CompileError) as error:
        raise InputError(f"{name}: {error}") from None


def _print_comparison(
    found: list[PredictionComparison], regions: list[tuple[str, TimedRegion]], form: OutputFormat
) -> None:
    rank = None
    if len(found) >= _LEAST_RANKED:
        rank = rank_correlation([c.predicted for c in found], [c.measured.median for c in found])
    if form is OutputFormat.json:
        rows = [_make_node_row(each) for each in found]
        print_json(
            {
                "rows": rows,
                "rank_correlation": rank,
                "mean_factor": mean_error_factor(found),
                "regions": [_make_region_row(name, each) for name, each in regions],
            }
        )
        return
    print_rows([_format_node_row(each) for each in found], form)
    for each in found:
        if each.measured.spread > _WIDE * each.measured.median:
            print_line(f"warning: {each.model}: {_describe_uncertainty(each)}")
    if rank is not None:
        print_line(f"rank correlation over the models: {rank:.3f}")
    print_line(f"predictions are off by a factor of {mean_error_factor(found):.2f} (geometric mean)")
    if regions:
        print_lines(["", "Regions, as their codegens time them:"])
        print_rows([_format_region_row(name, each) for name, each in regions], form)


def _describe_uncertainty(each: PredictionComparison) -> str:
    spread, median = (
        format_quantity(each.measured.spread, "s"),
        format_quantity(each.measured.median, "s"),
    )
    return f"the runs spread over {spread} around {median}; measure again on a machine that is idle"


def _make_node_row(each: PredictionComparison) -> dict[str, Any]:
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
    }


def _format_node_row(each: PredictionComparison) -> dict[str, Any]:
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


def _make_region_row(model: str, each: TimedRegion) -> dict[str, Any]:
    return {
        "model": model,
        "region": each.region,
        "where": each.where,
        "predicted": each.predicted,
        "codegen": each.codegen_seconds,
        "error": each.error,
    }


def _format_region_row(model: str, each: TimedRegion) -> dict[str, Any]:
    return {
        **_make_region_row(model, each),
        "predicted": format_quantity(each.predicted, "s"),
        "codegen": format_quantity(each.codegen_seconds, "s"),
        "error": f"{each.error:+.0%}",
    }
