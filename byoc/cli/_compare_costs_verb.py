"""`byoc compare-costs`: predictions of a cost model against measurements on this machine."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from byoc.bundle import Bundle, is_bundle, open_bundle
from byoc.cli._common import FormatOption, OutputFormat, reserve_stdout, show_status
from byoc.cli._compare_costs_text import print_comparison
from byoc.cli._flag_values import read_pairs
from byoc.cli._option_flags import LoadOptions, take_options
from byoc.codegen import CompileError
from byoc.comparison import OptimalityLoss, compare_decisions, measure_loss
from byoc.costs import load_cost_model
from byoc.errors import InputError
from byoc.model import prepare_model
from byoc.options import PlanOptions
from byoc.pipeline import partition
from byoc.profiling import (
    Patience,
    PredictionComparison,
    TimedRegion,
    compare_host,
    compare_placement,
    time_regions,
)
from byoc.runtime import load_bundle
from byoc.samples import model_samples
from byoc.verification import make_reference_executor
from byoc.zoo import load_model

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
        asked = PlanOptions(rules, cost_model=costs, host_cost_model=host_costs, cost_options=pairs)
        judge = PlanOptions(
            rules,
            cost_model=measured,
            host_cost_model=measured_host or host_costs,
            cost_options=read_pairs(measured_option or [], "--measured-option"),
        )
        with show_status(), reserve_stdout():
            found_losses = [compare_decisions(name, asked, judge) for name in models]
        print_comparison([], [], found_losses, form)
        return
    patience = Patience(seconds=seconds, most=repeats, least=min(repeats, 5))
    found: list[PredictionComparison] = []
    regions: list[tuple[str, TimedRegion]] = []
    losses: list[OptimalityLoss] = []
    with show_status() as show, reserve_stdout():
        for name in models:
            show(name)
            if is_bundle(Path(name)):
                for bundle in options.open_bundle(Path(name)).variants:
                    label = f"{name}, {bundle.variant.name}" if bundle.variant.name else name
                    timed = _find_regions(label, bundle)
                    found.append(_compare_bundle(label, bundle, None, patience, timed))
                    regions += [(label, each) for each in timed]
            elif rules is not None:
                with TemporaryDirectory(prefix="byoc-") as folder:
                    output = Path(folder) / "bundle"
                    made = partition(
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
                    bundle = open_bundle(output, trust=True)
                    timed = _find_regions(name, bundle)
                    found.append(_compare_bundle(name, bundle, unknown, patience, timed))
                    regions += [(name, each) for each in timed]
                if loss:
                    show(f"{name}: measure units")
                    asked = PlanOptions(
                        rules, cost_model=costs, host_cost_model=host_costs, cost_options=pairs
                    )
                    losses.append(measure_loss(name, asked, seconds, repeats))
            else:
                model = load_cost_model(costs or host_costs, pairs)
                found.append(compare_host(load_model(name), model, patience))
    print_comparison(found, regions, losses, form)


def _refuse_bundles(models: Sequence[str], loss: bool, costs: bool) -> None:
    """Raise InputError for a bundle whose loss is asked for, or bundles alone with costs for models."""
    bundles = [name for name in models if is_bundle(Path(name))]
    if bundles and loss:
        raise InputError(f"{bundles[0]}: a bundle's placement is decided: the loss is told of models")
    if costs and len(bundles) == len(models):
        raise InputError(
            f"{bundles[0]}: a bundle is compared with the costs that it was placed by: --rules, --costs"
            " and --cost-option are for models"
        )


def _compare_bundle(
    name: str,
    bundle: Bundle,
    unknown: int | None,
    patience: Patience,
    timed: Sequence[TimedRegion],
) -> PredictionComparison:
    """Compare a bundle; where compilers estimate all regions, nothing but the host is measured."""
    predicted = bundle.variant.report.predicted.seconds
    asked = str(bundle.manifest.asked.get("model", ""))
    if asked.startswith(_ZOO) and not (bundle.manifest.asked.get("dims") or bundle.variant.dims):
        inputs = model_samples(load_model(asked))
    else:
        inputs = model_samples(prepare_model(bundle.model(), name, bundle.folder))
    estimates = {each.region: each.codegen_seconds for each in timed if each.is_estimate}
    if all(region.name in estimates and not region.graph for region in bundle.variant.report.regions):
        runs = {region.name: make_reference_executor(region) for _, region, _ in bundle.regions()}
        session = load_bundle(bundle, runs)
    else:
        estimates, session = {}, load_bundle(bundle)
    placed = bundle.variant.report.regions
    where = " and ".join(dict.fromkeys(region.device for region in placed)) or "host"
    regions = {region.name: region.seconds for region in placed}
    return compare_placement(
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


def _find_regions(name: str, bundle: Bundle) -> list[TimedRegion]:
    """Return the regions that their codegens can time."""
    try:
        return time_regions(bundle)
    except (InputError, CompileError) as error:
        raise InputError(f"{name}: {error}") from None
