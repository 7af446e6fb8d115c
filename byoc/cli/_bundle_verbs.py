"""`byoc inspect`, `byoc report` and `byoc pack`: show the content of a bundle, write it as one file."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

import byoc
import byoc.bundle
import byoc.runtime
from byoc import planning, reporting
from byoc.cli._common import (
    FormatOption,
    OutputFormat,
    TrustOption,
    VerboseOption,
    check_outside,
    print_json,
    print_rows,
    show_status,
)
from byoc.cli._option_flags import (
    REQUIREMENT_MISSED,
    JUnitFile,
    JUnitOption,
    leave_if_missed,
    take_options,
)
from byoc.console import format_count, format_quantity, make_console, print_line, print_lines
from byoc.errors import InputError
from byoc.support import check_output, make_folder, open_workspace, replace_path, write_text

# `byoc report`: draw a bundle's report for a browser.


class ReportForm(StrEnum):
    """A form of the report: a page, or files for Model Explorer."""

    html = "html"
    explorer = "model-explorer"


def report(  # noqa: PLR0913, PLR0917 - typer gives each
    bundle: Annotated[Path, typer.Argument(help="What `byoc partition -o` wrote, or `byoc pack`.")],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Write the page here, such as report.html, or the folder."),
    ],
    form: Annotated[
        ReportForm,
        typer.Option("--format", help="A page, or a folder of files for the viewer Model Explorer."),
    ] = ReportForm.html,
    trace: Annotated[
        Path | None,
        typer.Option(help="A timeline that `byoc run --trace` wrote, to be drawn and compared."),
    ] = None,
    overlay: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help="Numbers of nodes (node,TITLE in its first row), as colours."),
    ] = None,
    variant: Annotated[
        str | None, typer.Option(metavar="NAME", help="The variant to draw, of a bundle with several.")
    ] = None,
    trust: TrustOption = False,
) -> None:
    """Draw a bundle's report for a browser: one file, no network.

    With --format model-explorer it is a folder for that tool.
    """
    if form is ReportForm.html or not output.is_dir():
        check_output(output)
    whole, _ = byoc.bundle.split_path(bundle)
    check_outside(output, whole, "it would change the bundle that is shown")
    if form is ReportForm.explorer and trace is not None:
        raise InputError("--trace: the page alone has a timeline, --format model-explorer has none")
    with show_status() as show:
        show("read the bundle")
        opened = byoc.open_bundle(bundle, variant=variant, trust=trust)
        if form is ReportForm.explorer:
            files = byoc.make_explorer_files(opened, overlay)
            _write_explorer_files(output, files)
            return
        page = byoc.make_page(opened, trace, overlay)
    write_text(output, page)
    print_line(f"Written to {output} ({format_quantity(len(page.encode()), 'B')})")


def _write_explorer_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write the files of Model Explorer, and print the command that opens them.

    A new folder is there with all of them or not at all; in one that is there each file is replaced.
    """
    if folder.exists():
        make_folder(folder)
        for name, text in files.items():
            write_text(folder / name, text)
    else:
        with open_workspace(folder.absolute().parent) as workspace:
            fresh = workspace / "new"
            make_folder(fresh)
            for name, text in files.items():
                write_text(fresh / name, text)
            replace_path(fresh, folder)
    graph, *overlays = (shlex.quote(str(folder / name)) for name in files)
    print_line(f"Written to {folder}; pip install ai-edge-model-explorer, and then")
    print_line(f"model-explorer {graph} --node_data_paths {','.join(overlays)}")


# `byoc inspect`: the content of a bundle.

_LEVELS = {"good": "good", "warn": "fair", "bad": "POOR"}  # of accuracy
_WIDTH = 11  # of the column of labels
_OWN_LINES = ("model", "variants", "buckets")  # of what was asked for
# How many rows of tables are printed unless all are wanted, and the lines around those of a table.
_ROWS = 16
_FRAME = 5  # lines of a table beside its rows


def _show_schema(wanted: bool) -> None:
    if wanted:
        print_json(byoc.bundle.manifest_schema())
        raise typer.Exit


@take_options(byoc.Requirements, name="requirements")
def inspect(  # noqa: PLR0913 - each flag has a default
    bundle: Annotated[Path, typer.Argument(help="What `byoc partition -o` wrote, or `byoc pack`.")],
    verbose: VerboseOption = False,
    form: FormatOption = OutputFormat.text,
    *,
    requirements: byoc.Requirements,
    junit: JUnitOption = None,
    trust: TrustOption = False,
    fits: Annotated[
        bool,
        typer.Option(
            "--fits",
            help="Say instead whether it runs on this machine, by which drivers, or why not; "
            "nothing but its manifest and signature is read.",
        ),
    ] = False,
    _: Annotated[
        bool,
        typer.Option(
            "--schema", callback=_show_schema, is_eager=True, help="Print the JSON Schema of manifests."
        ),
    ] = False,
) -> None:
    """Show what is in a bundle: decision, regions, boundary, files.

    With --fits the exit code is 6 where the bundle does not run on this machine.
    """
    if fits:
        if junit is not None or requirements != byoc.Requirements():
            raise typer.BadParameter(
                "it reads no report, so that it goes with no requirement and no --junit",
                param_hint="--fits",
            )
        _print_fits(bundle, trust, form)
        return
    tests = JUnitFile.prepare(junit, "inspect", bundle)
    with tests.record_errors(str(bundle)), show_status() as show:
        show("check")
        paths = byoc.bundle.list_models(bundle)
        opened = [byoc.open_bundle(path, trust=trust) for path in paths]
        for each in opened:
            each.check_regions()
    reports = [[variant.report for variant in each.manifest.variants] for each in opened]
    if form is OutputFormat.json:
        print_json(byoc.bundle.describe_models(bundle, opened))
    elif paths == [bundle]:
        _print_bundle(opened[0], verbose)
    else:
        _print_package(bundle, opened, verbose)
    tests.write(
        [
            reporting.make_report_suite(report, requirements, verb="inspect", compiled=True)
            for each in reports
            for report in reporting.select_required(each)
        ]
    )
    for each_reports in reports:
        leave_if_missed(each_reports, requirements)


def _print_package(path: Path, models: Sequence[byoc.Bundle], verbose: bool) -> None:
    """Print the models of a package with their variants, and who made it; with `verbose` all of each."""
    if verbose:
        for each in models:
            print_line(f"{each.display_path}:")
            _print_bundle(each, verbose)
            print_line()
    print_rows([row for each in models for row in _make_model_rows(each)], OutputFormat.text)
    judged = byoc.bundle.judge_maker(models[0])
    print_line()
    for name, value in {
        "package": byoc.bundle.measure_package(path).describe(),
        "signed by": judged.key or "nobody",
        "trusted": ("yes, " if judged.trusted else "no, ") + judged.reason,
        "one model": f"every verb takes {models[0].display_path}",
    }.items():
        print_line(f"{name + ':':{_WIDTH}}{value}")


def _make_model_rows(bundle: byoc.Bundle) -> Iterator[dict[str, str]]:
    for number, each in enumerate(bundle.manifest.variants):
        sizes = [entry.bytes for entry in bundle.manifest.files.values()]
        yield {
            "model": "" if number else bundle.display_path.name,
            "files": "" if number else format_quantity(sum(sizes), "B"),
            "variant": str(each.variant),
            "regions": str(len(each.regions)),
            "predicted": format_quantity(each.report.predicted.seconds, "s"),
        }


def _print_fits(bundle: Path, trust: bool, form: OutputFormat) -> None:
    """Print whether a bundle, or each model of a package, runs here. Raises typer.Exit where not."""
    paths = byoc.bundle.list_models(bundle)
    found = {path.name: byoc.find_fitting(path, trust=trust) for path in paths}
    if form is OutputFormat.json:
        documents = {name: each.to_json() for name, each in found.items()}
        print_json(documents[bundle.name] if paths == [bundle] else {"models": documents})
    else:
        for name, each in found.items():
            print_lines([f"{name}:"] if paths != [bundle] else [])
            _print_bundle_fit(each, form)
    if not all(found.values()):
        raise typer.Exit(REQUIREMENT_MISSED)


def _print_bundle_fit(found: byoc.runtime.BundleFit, form: OutputFormat) -> None:
    """Print whether a bundle runs here, region by region."""
    for variant in found.variants:
        name = f"variant {variant.name}" if variant.name else "the bundle"
        predicted = f"predicted {format_quantity(variant.seconds, 's')}"
        verdict = "fits" if variant.verdict else f"does not fit: {variant.verdict}"
        print_line(f"{name} ({predicted}) {verdict}")
    rows = [row for variant in found.variants for row in _make_fit_rows(variant)]
    print_lines(["", "What runs its parts:"])
    print_rows(rows, form)
    told = [] if found.choice is None else found.choice.describe()
    print_lines(["", *told] if told else [])


def _make_fit_rows(variant: byoc.runtime.VariantFit) -> Iterator[dict[str, str]]:
    """Yield a row for the host and for each region of a variant; columns of no row stay empty."""
    parts = [("host", "", variant.host), *((e.region, e.codegen, e.fit) for e in variant.regions)]
    for name, codegen, fit in parts:
        if name == "host" and not (fit.driver or not fit.verdict):
            continue
        refused = "" if fit.verdict else str(fit.verdict)
        remarks = {"since": refused, "compiled again": fit.again, "not known": fit.unknown}
        yield {
            "variant": variant.name,
            "part": name,
            "codegen": codegen,
            "fits": "yes" if fit.verdict else "no",
            "driver": fit.driver,
            "accepts": fit.accepts,
            "for": fit.machine,
            "memory": "" if fit.memory is None else format_quantity(fit.memory, "B"),
            "remarks": "; ".join(f"{what}: {why}" for what, why in remarks.items() if why),
        }


def _print_bundle(opened: byoc.Bundle, verbose: bool) -> None:
    manifest = opened.manifest
    reports = [variant.report for variant in manifest.variants]
    reporting.print_reports(reports, make_console(), reporting.WHOLE if verbose else reporting.BRIEF)
    print_line()
    for name, value in _make_summary(opened).items():
        if value or name not in {"refers to", "variants", "padding", "accuracy"}:
            print_line(f"{name + ':':{_WIDTH}}{value}")
    sections = {
        "Regions and their artifacts": [_make_row(manifest, region) for region in manifest.regions],
        "Notes of the codegens": _make_note_rows(manifest),
        "Boundary tensors": _make_boundary_rows(manifest),
        "Errors of the outputs when the bundle was written": [
            row for report in reports for row in _make_output_rows(report)
        ],
        "Files": _make_file_rows(manifest),
    }
    room = None if verbose else _ROWS
    for title, rows in sections.items():
        if rows and room is not None and len(rows) > room:
            print_line(f"{title}: {format_count(len(rows), 'row')} (--verbose)")
        elif rows:
            room = None if room is None else room - len(rows) - _FRAME
            print_lines(["", f"{title}:"])
            print_rows(rows, OutputFormat.text)


def _make_summary(bundle: byoc.Bundle) -> dict[str, str]:
    """Return lines that say how the bundle was made."""
    manifest, report = bundle.manifest, bundle.manifest.variants[0].report
    size = format_quantity(sum(entry.bytes for entry in manifest.files.values()), "B")
    form = "folder" if bundle.packed is None else "packed"
    asked = {
        name: _format_option(value) for name, value in manifest.asked.items() if name not in _OWN_LINES
    }
    files = format_count(len(manifest.files), "file")
    judged = byoc.bundle.judge_maker(bundle)
    return {
        "bundle": f"{form}, format {manifest.format}, {files}, {size}",
        "refers to": ", ".join(entry.path for entry in manifest.references.values()),
        "unchanged": f"{files} and the contracts of regions are as the manifest says",
        "signed by": judged.key or "nobody",
        "trusted": ("yes, " if judged.trusted else "no, ") + judged.reason,
        "model": _format_option(manifest.asked.get("model", "")),
        "variants": "; ".join(str(each.variant) for each in manifest.variants),
        "padding": "; ".join(_list_paddings(manifest)),
        "targets": ", ".join(map(report.name_target, manifest.targets)),
        "precision": _describe_precision(report.precision),
        "accuracy": _describe_accuracy(report),
        "asked": ", ".join(f"{name} {value}" for name, value in asked.items() if value),
        "made with": ", ".join(f"{name} {version}" for name, version in manifest.versions.items()),
    }


def _list_paddings(manifest: byoc.bundle.Manifest) -> Iterator[str]:
    """Yield the dimensions of each variant that may be smaller, and why others may not."""
    for each in manifest.variants:
        text = "" if each.padding is None else each.padding.decision.describe()
        if text:
            yield f"{each.name}: {text}"
        if each.split is not None:
            yield f"{each.name}: {each.split.split.describe()}"


def _describe_precision(lowered: byoc.bundle.PrecisionReport | None) -> str:
    if lowered is None:
        return "as in the model"
    left = len(lowered.in_float)
    floats = f"{format_count(left, 'unit')} left in floating point" if left else ""
    wide = f"{format_count(len(lowered.wide), 'unit')} in {planning.WIDE}" if lowered.wide else ""
    return ", ".join(filter(None, (lowered.dtype, lowered.method, lowered.source, floats, wide)))


def _describe_accuracy(report: byoc.Report) -> str:
    """Describe the accuracy of the worst output against the float model, with warnings; "" for none."""
    outputs = reporting.list_output_qualities(report)
    parts = list(reporting.list_quality_warnings(report))
    if outputs:
        worst = outputs[0]
        same = f", the same class in {worst.same_class}" if worst.same_class else ""
        ratio = "equal to" if worst.ratio == "equal" else f"{worst.ratio} against"
        parts.insert(0, f"{_LEVELS[worst.level]}, {ratio} the float model in {worst.output}{same}")
    return "; ".join(parts)


def _make_row(manifest: byoc.bundle.Manifest, region: byoc.bundle.RegionEntry) -> dict[str, Any]:
    made = [
        f"{name} {format_quantity(manifest.files[path].bytes, 'B')}"
        for name, path in region.artifact_files.items()
    ]
    composites = Counter(region.composites)
    reports = [each for variant in manifest.variants for each in variant.report.regions]
    reported = {each.name: each for each in reports}.get(region.name)
    return {
        "region": region.name,
        "target": region.target,
        "codegen": region.codegen,
        "model": region.model,
        "constants": region.constant_count,
        "composites": ", ".join(f"{n} x {name}" if n > 1 else name for name, n in composites.items()),
        "artifact": f"that of {region.same_as}" if region.same_as else ", ".join(made) or "none",
        "not verified": reported.not_here if reported is not None else "",
    }


def _make_note_rows(manifest: byoc.bundle.Manifest) -> list[dict[str, str]]:
    """Return one row for each note of the artifacts' metadata; the first of a region has its name."""
    return [
        {"region": "" if number else region.name, "note": name, "value": value}
        for region in manifest.regions
        for number, (name, value) in enumerate(region.artifact_metadata.items())
    ]


def _make_boundary_rows(manifest: byoc.bundle.Manifest) -> list[dict[str, str]]:
    """Return one row for each boundary tensor: as the user's model has it, and as it crosses."""
    return [
        {
            "region": region.name,
            "direction": direction,
            "tensor": f"{contract.tensor}: {contract.logical}",
            "crosses as": str(contract) if contract.converts else "",
            "converts": ", ".join(f"{what} {who}" for what, who in contract.converts.items()),
        }
        for region in manifest.regions
        for direction, entries in (("in", region.inputs), ("out", region.outputs))
        for contract in map(byoc.bundle.entry_to_contract, entries)
    ]


def _make_output_rows(report: byoc.Report) -> list[dict[str, str]]:
    """Return the output errors of the verification that was made when the bundle was written."""
    verification = report.verification
    if verification is None:
        return []
    qualities = {each.output: each for each in reporting.list_output_qualities(report)}
    return [
        {
            "variant": report.variant,
            "output": output.name,
            "dtype": output.dtype,
            **_describe_quality(qualities.get(output.name)),
            "against": verification.against,
            "of its range": "not finite" if output.relative is None else f"{output.relative:.1e}",
            "allowed": f"{output.tolerance:g}",
        }
        for output in verification.outputs
    ]


def _describe_quality(quality: reporting.OutputQuality | None) -> dict[str, str]:
    """Return the columns on the accuracy that lower precision left, empty where none was lowered."""
    if quality is None:
        return dict.fromkeys(("of the float model", "same class", ""), "")
    return {
        "of the float model": quality.ratio,
        "same class": quality.same_class,
        "": _LEVELS[quality.level],
    }


def _make_file_rows(manifest: byoc.bundle.Manifest) -> list[dict[str, str]]:
    return [
        {"file": name, "size": format_quantity(entry.bytes, "B"), "sha256": entry.sha256[:16]}
        for name, entry in manifest.files.items()
    ] + [
        {"file": entry.path, "size": format_quantity(entry.bytes, "B"), "sha256": entry.sha256[:16]}
        for entry in manifest.references.values()
    ]


def _format_option(value: object) -> str:
    """Return an option's value as a person would write it; empty if it was not given."""
    if isinstance(value, dict):
        return " ".join(f"{name}={inner}" for name, inner in value.items() if inner is not None)
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is None or value is False else str(value)


# `byoc pack`: a bundle as one file.


def pack(
    bundle: Annotated[Path, typer.Argument(help="What `byoc partition -o` wrote.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Write the zip here, such as m.byoc.zip.")
    ],
    form: FormatOption = OutputFormat.text,
) -> None:
    """Pack a bundle into one file that every verb opens."""
    with show_status() as show:
        show("pack")
        byoc.bundle.pack_bundle(bundle, output)
        written = byoc.bundle.describe_file(output)
    if form is OutputFormat.json:
        print_json({"bundle": str(output), **written.model_dump()})
    else:
        print_line(f"{output}: {format_quantity(written.bytes, 'B')}, sha256 {written.sha256}")
