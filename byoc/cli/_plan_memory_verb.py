"""`byoc plan-memory`: plan the memory of activations in several ways."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Annotated

import typer
from onnx.inliner import inline_local_functions

from byoc.bundle import is_bundle, open_bundle
from byoc.cli._common import (
    DimOption,
    FormatOption,
    OutputFormat,
    print_json,
    read_sizes,
    reserve_stdout,
    show_status,
)
from byoc.cli._plan_memory_text import describe_convention, explain_conventions, print_report
from byoc.codegen import SIZE_UNITS, parse_size
from byoc.errors import InputError, suggest_nearest
from byoc.memory.arena import METHODS
from byoc.memory.reading import CONVENTIONS, find_quantized_groups
from byoc.memory.report import (
    STRIPED,
    MemoryOptions,
    MemoryReport,
    build_memory_document,
    describe_conventions,
    draw_plan,
    draw_striped,
    plan_report,
    render_svg,
)
from byoc.model import Model, list_symbolic_dims, prepare_model, read_model_file, unshare_dequantize
from byoc.reporting import format_quantity
from byoc.support import write_text
from byoc.zoo import load_model


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
        typer.Option(help=f"How that plan is made: {', '.join(METHODS)}, or {STRIPED} for the picture."),
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
    form: FormatOption = OutputFormat.text,
) -> None:
    """Plan the memory of a model's activations.

    The rows compare plans with and without reuse with the proven lower bound. A bundle gets a plan for
    its model as a whole, in which each region is one step, and one for each region.
    """
    there = None if size is None else _read_bytes(size)
    _check_choice(convention, CONVENTIONS, "convention")
    _check_choice(method, (*METHODS, STRIPED), "method")
    if method == STRIPED and not striped:
        raise typer.BadParameter("--method striped asks for it", param_hint="--no-striped")
    asked = MemoryOptions(
        convention=CONVENTIONS[convention],
        method="exact" if method == STRIPED else method,
        alignment=alignment,
        time_limit=time_limit,
        size=there,
        striped=striped,
    )
    with show_status() as show, reserve_stdout():
        reports = {}
        for part, loaded, flat in _read_models(model, read_sizes(dim, "--dim")):
            show(f"plan {loaded.source}")
            index = unshare_dequantize(loaded).index if fused else loaded.index
            groups = find_quantized_groups(index) if fused else ()
            inlined = None if flat is None else flat.index
            reports[part] = plan_report(index, loaded.source, asked, groups, inlined)
        if method == STRIPED and not any(report.striped for report in reports.values()):
            why = next(report.striping_refusal for report in reports.values())
            raise InputError(f"{model}: {why}")
        if picture_file is not None:
            _write_pictures(picture_file, reports, method == STRIPED)
    if form is OutputFormat.json:
        print_json(
            {
                "model": model,
                "size": there,
                "conventions": describe_conventions(),
                "plans": [build_memory_document(report, there) for report in reports.values()],
            }
        )
        return
    for report in reports.values():
        print_report(report, there)
    for line in explain_conventions(any(report.striped for report in reports.values())):
        typer.echo(line)


def _read_models(name: str, dims: Mapping[str, int]) -> Iterator[tuple[str, Model, Model | None]]:
    """Yield the models to plan, each with a name: a model (""), or a bundle's whole model and regions.

    The third value of a region is its model with composites inlined; None for a whole model.
    """
    if not is_bundle(Path(name)):
        yield "", load_model(name, dims), None
        return
    bundle = open_bundle(Path(name))
    yield "whole", prepare_model(bundle.model(), f"{name}: the whole", bundle.folder, dims), None
    for _, region, _ in bundle.regions():
        proto = read_model_file(region.path)
        called, folder = f"{name}: {region.name}", region.path.parent
        inside = {key: dims[key] for key in list_symbolic_dims(proto) if key in dims}
        flat = inline_local_functions(proto) if proto.functions else proto
        yield (
            region.name,
            prepare_model(proto, called, folder, inside),
            prepare_model(flat, called, folder, inside),
        )


def _check_choice(name: str, known: Collection[str], what: str) -> None:
    if name not in known:
        wrong = (
            f"no {what} is named '{name}'{suggest_nearest(name, known)}: there are {', '.join(known)}"
        )
        raise typer.BadParameter(wrong, param_hint=f"--{what}")


def _read_bytes(text: str) -> int:
    try:
        found = parse_size(text)
    except ValueError:
        found = 0
    if not found:
        units = f"with {', '.join(SIZE_UNITS)} or no unit behind it"
        what = f"'{text}': a whole number above 0 is expected, {units}, such as 512KiB"
        raise typer.BadParameter(what, param_hint="--size")
    return found


def _write_pictures(path: Path, reports: Mapping[str, MemoryReport], as_striped: bool) -> None:
    """Write a picture of each plan; with `as_striped` only of parts that have a striped plan."""
    for report, place in zip(reports.values(), _name_files(path, list(reports)), strict=True):
        if not as_striped:
            title = (
                f"{report.name}: {format_quantity(report.plan.size, 'B')}, {describe_convention(report)}"
            )
            write_text(place, render_svg(draw_plan(report.plan, title)))
        elif report.striped is not None:
            row = next(row for row in report.rows if row.method == STRIPED)
            whole = f"whole tensors: {format_quantity(row.bound_of_c or 0, 'B')} at least"
            title = f"{report.name}: {format_quantity(row.size, 'B')}, striped ({whole})"
            write_text(place, render_svg(draw_striped(report.striped, title)))


def _name_files(path: Path, parts: Sequence[str]) -> list[Path]:
    """Return a file for each part of a bundle; for a model the given path.

    Characters other than letters and digits become `_`. Names that would then be the same file, also on
    a file system that ignores case, are numbered.
    """
    places: dict[str, Path] = {}
    for part in parts:
        name = re.sub(r"[^A-Za-z0-9._-]", "_", part)
        for number in count(1):
            tried = name if number == 1 else f"{name}-{number}"
            if tried.casefold() not in places:
                break
        place = path.with_name(f"{path.stem}.{tried}{path.suffix}") if tried else path
        places[tried.casefold()] = place
    return list(places.values())
