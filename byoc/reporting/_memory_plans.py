"""`byoc.plan_memory`: the activation memory of a model, or of a bundle as a whole and by region."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path

from onnx.inliner import inline_local_functions

import byoc.bundle
from byoc import zoo
from byoc._dataclasses import replace
from byoc.console import format_quantity
from byoc.errors import InputError
from byoc.memory.reading import find_quantized_groups
from byoc.memory.report import (
    STRIPED,
    MemoryReport,
    draw_plan,
    draw_striped,
    plan_report,
    render_svg,
)
from byoc.model import (
    Dimensions,
    Model,
    list_open_dims,
    prepare_model,
    read_model_file,
    unshare_dequantize,
)
from byoc.planning import find_sizes
from byoc.reporting._requirements import MemoryPlanOptions
from byoc.support import report_step, take_keywords, write_text

_NOT_FUSED = (
    "floating point between DequantizeLinear and QuantizeLinear is counted; --fused counts the integers "
    "that an accelerator has there"
)


@take_keywords(MemoryPlanOptions)
def plan_memory(model: zoo.Source | Model, options: MemoryPlanOptions) -> dict[str, MemoryReport]:
    """Plan the memory of a model's activations, in bytes, in several ways.

    `model` is a path, `zoo:NAME`, a protobuf, what `byoc.load_model` returned, or a bundle's path. The
    result has a report for each part: of a model one by the name "", of a bundle one for its model as a
    whole, in which each region is a step, by the name `whole`, and one for each region by its name.

    Raises InputError when the model or an option is at fault, when a picture of striped execution is
    wanted and there is none, and for a picture that cannot be written.
    """
    settings, reports = options.make_settings(), {}
    given = Dimensions(options.dims or {}, options.shapes or {})
    for part, loaded, flat, note in _read_parts(model, given, options.variant):
        report_step(f"plan {loaded.source}")
        # A region has a model with composites inlined; it is planned as its accelerator computes.
        as_compiled = flat is not None and options.method != STRIPED
        fused = as_compiled if options.fused is None else options.fused
        index = unshare_dequantize(loaded).index
        groups = find_quantized_groups(index)
        notes = [note] if note else []
        if not fused:
            notes += [_NOT_FUSED] if groups else []
            index, groups = loaded.index, ()
        inlined = None if flat is None else flat.index
        report = plan_report(index, loaded.source, settings, groups, inlined)
        reports[part] = replace(report, notes=(*notes, *report.notes))
    if options.method == STRIPED and not any(report.striped for report in reports.values()):
        first = next(iter(reports.values()))
        raise InputError(
            f"{model if isinstance(model, str | Path) else first.name}: {first.striping_refusal}"
        )
    if options.picture is not None:
        _write_pictures(Path(options.picture), reports, options.method == STRIPED)
    return reports


def _read_parts(
    source: zoo.Source | Model, given: Dimensions, variant: str | None
) -> Iterator[tuple[str, Model, Model | None, str]]:
    """Yield the models to plan, each with a name: a model (""), or a bundle's whole model and regions.

    The third value of a region is its model with composites inlined; None for a whole model. The fourth
    is a note on sizes that byoc chose, empty for none.
    """
    if not isinstance(source, str | Path) or not byoc.bundle.is_bundle(Path(source)):
        if variant is not None:
            name = source if isinstance(source, str | Path) else "the model"
            raise InputError(f"{name}: is no bundle, so that it has no variant '{variant}'")
        loaded, sizes = _load_with_sizes(source, given)
        yield "", loaded, None, f"planned for {sizes} (--dim chooses others)" if sizes else ""
        return
    bundle = byoc.bundle.open_bundle(Path(source), variant=variant)
    whole = prepare_model(bundle.model(), f"{source}: the whole", bundle.folder, given)
    yield "whole", whole, None, ""
    for _, region, _ in bundle.regions():
        proto = read_model_file(region.path)
        name, folder = f"{source}: {region.name}", region.path.parent
        inside = Dimensions({key: given.dims[key] for key in list_open_dims(proto) if key in given.dims})
        flat = inline_local_functions(proto) if proto.functions else proto
        yield (
            region.name,
            prepare_model(proto, name, folder, inside),
            prepare_model(flat, name, folder, inside),
            "",
        )


def _load_with_sizes(source: zoo.Source | Model, given: Dimensions) -> tuple[Model, str]:
    """Return a model; where no sizes are given, with those that `partition` chooses, and told."""
    loaded = zoo.load_model(source, given.dims, given.shapes)
    sizes = {} if given else find_sizes(loaded)
    if not sizes:
        return loaded, ""
    return zoo.load_model(source, sizes), ", ".join(f"{name} = {size}" for name, size in sizes.items())


def describe_convention(report: MemoryReport) -> str:
    """Return the convention of the detailed plan, in words."""
    return f"convention {report.model.convention.name} ({report.model.convention})"


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
