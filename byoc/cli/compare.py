"""`byoc compare`: strategies side by side, over models and links."""

import csv
import sys
from enum import StrEnum
from math import isfinite
from typing import Annotated, Any

import typer

from byoc.cli.common import Format, by_target, own_stdout, print_json, print_rows, progress, sizes
from byoc.compare import Study, geometric_means
from byoc.compare import compare as run
from byoc.compare.rows import KEYS, Row
from byoc.costs.model import Policy
from byoc.pipeline import load_settings
from byoc.report.units import quantity

_CHEAP = "host-only,all-supported,faster-ops,faster-ops-transfer,tree-dp,min-cut,launch-aware"


class Table(StrEnum):
    """How rows are printed."""

    text = "text"
    csv = "csv"
    json = "json"


def compare(  # noqa: PLR0913, PLR0917 - the options of the verb
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="ONNX files, or zoo:NAME.")],
    rules: Annotated[
        list[str],
        typer.Option(help="A rule file, or one of byoc rules; once for each of several accelerators."),
    ],
    strategies: Annotated[
        str, typer.Option(help="Names, with commas between: see byoc strategies.")
    ] = _CHEAP,
    link: Annotated[
        str | None, typer.Option(help="Bandwidths of the link in GB/s, with commas between.")
    ] = None,
    objective: Annotated[
        str, typer.Option(help="latency, energy, or weights of both: latency=1,energy=0.5.")
    ] = "latency",
    cost_model: Annotated[
        list[str] | None, typer.Option(metavar="[TARGET=]NAME", help="The accelerator's costs.")
    ] = None,
    host_cost_model: Annotated[str, typer.Option(help="The host's costs.")] = "host",
    unknown_costs: Annotated[
        Policy, typer.Option(help="Where a cost is not known: stop, leave it on the host, or guess.")
    ] = Policy.estimate,
    dim: Annotated[
        list[str] | None, typer.Option(metavar="NAME=SIZE", help="Fix a symbolic dimension.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes at a time; as many as processors unless given.")
    ] = None,
    form: Annotated[
        Table, typer.Option("--format", help="text, csv, or json: a list of rows.")
    ] = Table.text,
) -> None:
    """Place models by several strategies, and show what each comes to.

    A model that fails is a row with the reason, and the rest goes on; the exit code is then 1.
    """
    study = Study(
        rules=tuple(rules),
        strategies=_names(strategies),
        links=_links(link),
        objective=objective,
        cost_model=by_target(cost_model, "--cost-model"),
        host_cost_model=host_cost_model,
        unknown_costs=unknown_costs,
        dims=sizes(dim, "--dim"),
    )
    with progress() as show, own_stdout():
        for strategy in study.strategies:  # what holds for no model is told once, and at once
            load_settings(
                study.rules,
                strategy=strategy,
                objective=objective,
                cost_model=study.cost_model,
                host_cost_model=host_cost_model,
                unknown_costs=unknown_costs,
            )
        rows = run(list(dict.fromkeys(models)), study, jobs, show)
    _print(rows, form)
    if any(row["error"] for row in rows):
        raise typer.Exit(1)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise typer.BadParameter("give at least one name", param_hint="--strategies")
    return names


def _links(text: str | None) -> tuple[float | None, ...]:
    if text is None:
        return (None,)
    links = []
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            value = 0.0
        if not (isfinite(value) and value > 0):
            raise typer.BadParameter(f"'{part}': a number of GB/s is expected", param_hint="--link")
        links.append(value)
    return tuple(dict.fromkeys(links))


def _print(rows: list[Row], form: Table) -> None:
    if form is Table.json:
        print_json(rows)
    elif form is Table.csv:
        writer = csv.DictWriter(sys.stdout, KEYS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        print_rows([_shown(row) for row in rows], Format.text)
        means = [_mean(row) for row in geometric_means(rows)]
        typer.echo("Over all, as ratios to the best that was found for a model at a link:\n")
        print_rows(means, Format.text)


def _shown(row: Row) -> dict[str, Any]:
    known = row["objective"] is not None
    return {
        "model": row["model"],
        "link": f"{row['link']:g} GB/s" if row["link"] is not None else "",
        "strategy": row["strategy"],
        "objective": quantity(row["objective"], "s") if known else "",
        "gap": _percent(row["gap"]),
        "regions": row["regions"],
        "offloaded": f"{row['offloaded']:.1%}" if known else "",
        "moved": quantity(row["bytes_moved"], "B") if known else "",
        "took": quantity(row["seconds"], "s") if known else "",
        "error": row["error"] or "",
    }


def _mean(row: dict[str, Any]) -> dict[str, Any]:
    known = row["mean_ratio"] is not None
    return {
        "strategy": row["strategy"],
        "cases": row["cases"],
        "errors": row["errors"] or "",
        "mean": f"{row['mean_ratio']:.4f}" if known else "",
        "worst": f"{row['worst_ratio']:.4f}" if known else "",
        "largest_gap": _percent(row["largest_gap"]),
        "took": quantity(row["seconds"], "s"),
    }


def _percent(gap: float | None) -> str:
    return "" if gap is None else f"{gap:.4%}"
