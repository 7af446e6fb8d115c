"""`byoc plan-memory`: the bytes that a model's activations need, planned in several ways."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from onnx.inliner import inline_local_functions

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
from byoc.memory.plan import METHODS
from byoc.memory.report import (
    Asked,
    MemoryReport,
    Row,
    conventions_document,
    memory_document,
    memory_report,
    picture,
    striped_picture,
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
_STRIPED = "striped"
_MOVED = ("moved", "bound", "loaded", "stored", "streamed", "unkept", "arena")
_PROOFS = {
    "cut": "minimum cut",
    "search": "all orders searched",
    "total": "inputs together",
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
        str,
        typer.Option(
            help=f"How that plan is made: {', '.join(METHODS)}, or {_STRIPED} for the picture."
        ),
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
    striped: Annotated[
        bool, typer.Option("--striped/--no-striped", help="Plan striped execution, too.")
    ] = True,
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
    asked = Asked(
        convention=convention_named(convention),
        method="exact" if method == _STRIPED else method,
        alignment=alignment,
        time_limit=time_limit,
        size=there,
        striped=striped or method == _STRIPED,
    )
    with progress() as show, own_stdout():
        reports = []
        for loaded, flat in _models(model, sizes(dim, "--dim")):
            show(f"plan {loaded.source}")
            index = unshared(loaded).index if fused else loaded.index
            groups = quantized_groups(index) if fused else ()
            inlined = None if flat is None else flat.index
            reports.append(memory_report(index, loaded.source, asked, groups, inlined))
        if picture_file is not None:
            _draw(picture_file, reports, method == _STRIPED)
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


def _models(name: str, dims: Mapping[str, int]) -> Iterator[tuple[Model, Model | None]]:
    """Yield what is to be planned: a model, or of a bundle the whole and each region.

    A region comes with what it is without composites.
    """
    if not is_bundle(Path(name)):
        yield load_model(name, dims), None
        return
    bundle = open_bundle(Path(name))
    yield prepare(bundle.model(), f"{name}: the whole", bundle.folder, dims), None
    for _, region, _ in bundle.regions():
        proto = read_file(region.path)
        called, folder = f"{name}: {region.name}", region.path.parent
        inside = {key: dims[key] for key in symbols(proto) if key in dims}
        flat = inline_local_functions(proto) if proto.functions else proto
        yield prepare(proto, called, folder, inside), prepare(flat, called, folder, inside)


def _bytes(text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    if found is None or not int(found[1]):
        what = f"'{text}': bytes are expected, such as 512KiB or 2MiB"
        raise typer.BadParameter(what, param_hint="--size")
    return int(found[1]) * _UNITS[found[2]]


def _draw(path: Path, reports: list[MemoryReport], as_striped: bool) -> None:
    for report in reports:
        part = report.name.rpartition(": ")[2].rpartition(" ")[2] if len(reports) > 1 else ""
        name = re.sub(r"[^A-Za-z0-9_-]", "_", part)
        place = path.with_name(f"{path.stem}.{name}{path.suffix}") if name else path
        if as_striped and report.striped is not None:
            row = next(row for row in report.rows if row.method == _STRIPED)
            made = f"{quantity(row.size, 'B')}, striped (whole tensors: {quantity(row.bound, 'B')})"
            found = striped_picture(report.striped, f"{report.name}: {made}")
        else:
            title = f"{report.name}: {quantity(report.plan.size, 'B')}, {_told(report)}"
            found = picture(report.plan, title)
        write_text(place, svg(found))


def _told(report: MemoryReport) -> str:
    return f"convention {report.model.convention.name} ({report.model.convention})"


def _print(report: MemoryReport, size: int | None) -> None:
    problem = report.plan.problem
    made = f"{count(len(problem.steps), 'step')}, {count(len(problem.sizes), 'buffer')}"
    rounded = f", rounded up to {problem.alignment} B" if problem.alignment > 1 else ""
    typer.echo(f"{report.name}: {made} in {_told(report)}{rounded}")
    print_rows([_shown(row, size) for row in report.rows], Format.text)
    levels = memory_document(report)["levels"]
    if levels is not None:
        moved = {key: quantity(levels[key], "B") for key in _MOVED}  # type: ignore[literal-required]
        typer.echo(f"scratchpad of {quantity(levels['size'], 'B')} and system memory, bytes moved:")
        print_rows([moved | {"loads": levels["loads"], "stores": levels["stores"]}], Format.text)
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
        "proof": _PROOFS.get(row.proof, row.proof),
        "fits": "" if size is None else row.size <= size,
    }
