"""`byoc plan-memory`: the bytes that a model's activations need, planned in several ways."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from byoc.bundle.read import is_bundle, open_bundle
from byoc.cli.common import (
    DimOption,
    Format,
    FormatOption,
    own_stdout,
    print_json,
    print_rows,
    progress,
    sizes,
)
from byoc.graph.dims import symbols
from byoc.graph.load import Model, prepare, read_file
from byoc.graph.unshare import unshared
from byoc.memory.model import CONVENTIONS, convention_named, quantized_groups
from byoc.memory.report import (
    Asked,
    MemoryReport,
    Row,
    conventions_document,
    memory_document,
    memory_report,
    picture,
    svg,
)
from byoc.pipeline import load_model
from byoc.report.units import count, quantity
from byoc.textfile import write_text

_SIZE = re.compile(r"([0-9]{1,18})\s*(|B|KiB|MiB|GiB|kB|MB|GB)")
_UNITS = {
    **{"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30},
    **{"kB": 10**3, "MB": 10**6, "GB": 10**9},
}
_PROOFS = {
    "cut": "a minimum cut at one step",
    "search": "a search of all orders",
    "total": "there is nothing to share",
}


def plan_memory(  # noqa: PLR0913, PLR0917 - the options of the verb
    model: Annotated[
        str, typer.Argument(metavar="MODEL|BUNDLE", help="An ONNX file, zoo:NAME, or a bundle.")
    ],
    size: Annotated[
        str | None, typer.Option(metavar="BYTES", help="The memory there is, such as 512KiB.")
    ] = None,
    alignment: Annotated[int, typer.Option(min=1, help="Sizes are rounded up to this many bytes.")] = 1,
    convention: Annotated[
        str, typer.Option(help=f"What counts in the plan told in full: {', '.join(CONVENTIONS)}.")
    ] = "C",
    method: Annotated[
        str, typer.Option(help="How that plan is made: no-reuse, best-fit, by-size, reordered or exact.")
    ] = "exact",
    time_limit: Annotated[
        float, typer.Option(min=0.0, help="Seconds for each plan; then the best that was found.")
    ] = 10.0,
    fused: Annotated[
        bool,
        typer.Option(
            "--fused", help="An operator between DequantizeLinear and QuantizeLinear is a step."
        ),
    ] = False,
    dim: DimOption = None,
    picture_file: Annotated[
        Path | None,
        typer.Option(
            "--svg", metavar="FILE", help="Write a picture of that plan; of a bundle, several."
        ),
    ] = None,
    form: FormatOption = Format.text,
) -> None:
    """Plan the memory of a model's activations: with and without reuse, and the least there can be.

    A bundle gets a plan for its model as a whole, in which each region is one step, and one for each
    region.
    """
    there = None if size is None else _bytes(size)
    asked = Asked(convention_named(convention), method, alignment, time_limit)
    with progress() as show, own_stdout():
        reports = []
        for loaded in _models(model, sizes(dim, "--dim")):
            show(f"plan {loaded.source}")
            index = unshared(loaded).index if fused else loaded.index
            groups = quantized_groups(index) if fused else ()
            reports.append(memory_report(index, loaded.source, asked, groups))
        if picture_file is not None:
            _draw(picture_file, reports)
    if form is Format.json:
        print_json(
            {
                "model": model,
                "size": there,
                "conventions": conventions_document(),
                "plans": [memory_document(report, there) for report in reports],
            }
        )
        return
    for report in reports:
        _print(report, there)
    typer.echo("Weights are not counted.")
    for letter, counts in conventions_document().items():
        typer.echo(f"{letter}: {counts}")


def _models(name: str, dims: Mapping[str, int]) -> Iterator[Model]:
    """Yield what is to be planned: a model, or of a bundle the whole and each region."""
    if not is_bundle(Path(name)):
        yield load_model(name, dims)
        return
    bundle = open_bundle(Path(name))
    yield prepare(bundle.model(), f"{name}: the whole", bundle.folder, dims)
    for _, region, _ in bundle.regions():
        proto = read_file(region.path)
        inside = {key: dims[key] for key in symbols(proto) if key in dims}
        yield prepare(proto, f"{name}: {region.name}", region.path.parent, inside)


def _bytes(text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    if found is None or not int(found[1]):
        what = f"'{text}': bytes are expected, such as 512KiB or 2MiB"
        raise typer.BadParameter(what, param_hint="--size")
    return int(found[1]) * _UNITS[found[2]]


def _draw(path: Path, reports: list[MemoryReport]) -> None:
    for report in reports:
        part = report.name.rpartition(": ")[2].rpartition(" ")[2] if len(reports) > 1 else ""
        name = re.sub(r"[^A-Za-z0-9_-]", "_", part)
        place = path.with_name(f"{path.stem}.{name}{path.suffix}") if name else path
        title = f"{report.name}: {quantity(report.plan.size, 'B')}, {_told(report)}"
        write_text(place, svg(picture(report.plan, title)))


def _told(report: MemoryReport) -> str:
    return f"convention {report.model.convention.name} ({report.model.convention})"


def _print(report: MemoryReport, size: int | None) -> None:
    problem = report.plan.problem
    made = f"{count(len(problem.steps), 'step')}, {count(len(problem.sizes), 'buffer')}"
    rounded = f", rounded up to {problem.alignment} B" if problem.alignment > 1 else ""
    typer.echo(f"{report.name}: {made} in {_told(report)}{rounded}")
    print_rows([_shown(row, size) for row in report.rows], Format.text)
    for note in report.notes:
        typer.echo(f"note: {note}")


def _shown(row: Row, size: int | None) -> dict[str, Any]:
    return {
        "plan": row.name,
        "counts": row.convention,
        "bytes": row.size,
        "": quantity(row.size, "B"),
        "lower_bound": row.bound,
        "ratio": "" if row.ratio is None else f"{row.ratio:.3f}",
        "bound_by": _PROOFS.get(row.proof, row.proof),
        "fits": "" if size is None else row.size <= size,
    }
