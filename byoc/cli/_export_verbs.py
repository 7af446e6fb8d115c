"""The verbs that write what is shipped: packages of models, C programs, and drivers in C."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

import byoc
from byoc import bundle, reporting, standalone
from byoc._dataclasses import asdict, dataclass
from byoc.cli._common import (
    AllowUnverifiedOption,
    DefaultGroup,
    FormatOption,
    OutputFormat,
    PanelCommand,
    VerboseOption,
    check_outside,
    leave_by_reports,
    print_json,
    print_rows,
    reserve_stdout,
    show_status,
)
from byoc.cli._option_flags import DEFAULT_LOAD_OPTIONS, LoadOptions, flag_field, take_options
from byoc.console import format_count, format_quantity, make_console, print_errors, print_line
from byoc.pipeline import PackageOptions
from byoc.support import Flag, Syntax, check_output, keywords_of

# `byoc package`: several models for several devices in one package, which grows and shrinks.

ModelsArgument = Annotated[
    list[str],
    typer.Argument(metavar="[NAME=]MODEL...", help="ONNX files or zoo:NAME, or one YAML file with all."),
]
PackageArgument = Annotated[Path, typer.Argument(help="A package: a folder or a packed file.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write the result here, not over the package.")
]
SignOption = Annotated[
    bool, typer.Option("--sign/--no-sign", help="Sign the package with the key of this machine.")
]

app = typer.Typer(cls=DefaultGroup, add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def package() -> None:
    """Put several models, for several devices, into one package.

    The name of `make` may be left out: byoc package -o app.byoc a.onnx b.onnx --for pc=openvino-cpu.
    """


@app.command("make", cls=PanelCommand)
@take_options(PackageOptions, first=("output", "devices"), optional=("rules",))
def make(
    models: ModelsArgument,
    options: PackageOptions,
    verbose: VerboseOption = False,
    form: FormatOption = OutputFormat.text,
    allow_unverified: AllowUnverifiedOption = False,
) -> None:
    """Partition models, each for all devices, and write one package.

    Weights and artifacts that are equal are stored once over all models. Exit codes are those of
    `byoc partition`.
    """
    _write(models, options, verbose, form, allow_unverified)


@app.command("add", cls=PanelCommand)
@take_options(PackageOptions, first=("devices", "output"), optional=("rules", "output"))
def add(  # noqa: PLR0913, PLR0917 - typer gives each
    package: PackageArgument,
    models: ModelsArgument,
    options: PackageOptions,
    verbose: VerboseOption = False,
    form: FormatOption = OutputFormat.text,
    allow_unverified: AllowUnverifiedOption = False,
) -> None:
    """Add models to a package; those that it has are not compiled again."""
    given = {**keywords_of(options, PackageOptions), "base": package}
    given["output"] = options.output or package
    _write(models, PackageOptions(**given), verbose, form, allow_unverified)


def _write(
    models: Sequence[str],
    options: PackageOptions,
    verbose: bool,
    form: OutputFormat,
    allow_unverified: bool,
) -> None:
    files = [each for each in models if each.endswith((".yaml", ".yml"))]
    if files and len(models) > 1:
        raise typer.BadParameter(f"{files[0]} is to be alone: it names all models", param_hint="MODEL")
    with show_status(), reserve_stdout():
        made = byoc.package(files[0] if files else models, **keywords_of(options, PackageOptions))
    reports = [each.report for result in made.values() for each in result.variants]
    print_errors([result.not_signed for result in made.values() if result.not_signed])
    if form is OutputFormat.json:
        print_json({"models": {name: result.to_json() for name, result in made.items()}})
    else:
        _print_results(made, verbose)
        _print_package(Path(str(options.output)))
    leave_by_reports(reports, allow_unverified)


def _print_results(made: Mapping[str, byoc.pipeline.Result], verbose: bool) -> None:
    for result in made.values():
        reports = [each.report for each in result.variants]
        reporting.print_reports(reports, make_console(), reporting.WHOLE if verbose else reporting.BRIEF)


def _print_package(path: Path) -> None:
    """Print what is in a package that was just written, by its manifest."""
    print_line(f"Written to {path}: {bundle.measure_package(path).describe()}")


@app.command("remove", cls=PanelCommand)
def remove(
    package: PackageArgument,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The models to leave out.")],
    output: OutputOption = None,
    sign: SignOption = True,
) -> None:
    """Take models out of a package, and what they alone needed; nothing is compiled."""
    _reduce(package, output, without=names, sign=sign)


@app.command("split", cls=PanelCommand)
def split(
    package: PackageArgument,
    device: Annotated[str, typer.Option("--for", metavar="DEVICE", help="The device to ship for.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Write the smaller package here.")],
    sign: SignOption = True,
) -> None:
    """Write the part of a package that one device needs, to be shipped; nothing is compiled."""
    _reduce(package, output, device=device, sign=sign)


def _reduce(package: Path, output: Path | None, **kept: Any) -> None:
    """Write the part of a package that `kept` names, as `byoc.reduce_package` does, and print it."""
    with show_status() as show:
        show("write")
        not_signed = byoc.reduce_package(package, output, **kept)
    print_errors([not_signed] if not_signed else [])
    _print_package(output or package)


@dataclass(frozen=True)
class ExportFlags:
    """The flags of `byoc package export`."""

    output: Path = flag_field(
        Flag("Write into this new folder.", Syntax.PATH, ("--output", "-o"), required=True)
    )
    variant: str | None = flag_field(
        Flag("Export this variant of bundles with several.", metavar="NAME"), None
    )
    genai: Path | None = flag_field(
        Flag("Write a folder of onnxruntime-genai, like this one.", Syntax.PATH, metavar="FOLDER"), None
    )
    drivers: Mapping[str, str] = flag_field(
        Flag(
            "With --genai: the library of a codegen's driver.",
            Syntax.PAIRS,
            names=("--driver",),
            metavar="CODEGEN=FILE",
        )
    )
    trust: bool = flag_field(Flag("Take weights outside, whoever made it.", Syntax.SWITCH), False)


@app.command("export", cls=PanelCommand)
@take_options(ExportFlags)
def export(
    source: Annotated[Path, typer.Argument(help="A bundle or a package: a folder or a packed file.")],
    options: ExportFlags,
    form: FormatOption = OutputFormat.text,
) -> None:
    """Write a bundle, or a package, as a model package of onnxruntime, or as a folder of its genai.

    onnxruntime chooses a variant by the providers of a session. Those whose regions no provider
    loads are left out, with the reason; one that --variant names is then an error.
    """
    if options.drivers and options.genai is None:
        raise typer.BadParameter("it is for --genai: sessions are given drivers", param_hint="--driver")
    with show_status() as show, reserve_stdout():
        show("write")
        own = "decoder" if options.genai is not None else source.name.partition(".")[0]
        models = {
            own if path == source else path.name: byoc.open_bundle(
                path, trust=options.trust, variant=options.variant
            )
            for path in bundle.list_models(source)
        }
        if options.genai is not None:
            made = byoc.export_genai(models, options.genai, options.output, options.drivers)
        else:
            made = byoc.export_package(models, options.output)
    if made.left_out and all(each.provider == bundle.HOST_PROVIDER for each in made.variants):
        print_errors(["warning: no provider loads any region of it, so that all runs on the host"])
    if form is OutputFormat.json:
        print_json({**asdict(made), "folder": str(made.folder)})
        return
    rows = [
        {"model": each.component, "variant": each.variant, "provider": each.provider}
        for each in made.variants
    ]
    print_rows(rows, OutputFormat.text)
    for name, reason in made.left_out.items():
        print_line(f"note: {name} is left out: {reason}")
    print_line(f"Written to {made.folder}")


# `byoc make-driver`: make the driver of a bundle's regions as a shared library.


@dataclass(frozen=True)
class DriverOptions:
    """The flags of `byoc make-driver`."""

    output: Path = flag_field(
        Flag("The shared library to write.", Syntax.PATH, ("--output", "-o"), required=True)
    )
    codegen: str = flag_field(Flag("Whose driver, of a bundle with several.", metavar="NAME"), "")
    cc: str | None = flag_field(
        Flag("The C compiler and its flags; $BYOC_CC, or cc -O2.", metavar="COMMAND")
    )
    byte_order: str = flag_field(
        Flag("The byte order of the machine that runs it.", choices=("little", "big")), "little"
    )
    load: LoadOptions = DEFAULT_LOAD_OPTIONS


@take_options(DriverOptions)
def make_driver(
    bundle: Annotated[Path, typer.Argument(help="A bundle.")], options: DriverOptions
) -> None:
    """Make the driver in C that runs a bundle's regions.

    It is built of the codegen's sources, or made of the models of the regions.
    """
    output = options.output
    check_output(output)
    check_outside(output, byoc.bundle.split_path(bundle)[0], "it would change the bundle")
    with show_status() as show, reserve_stdout():
        show("build")
        name = byoc.make_driver(
            options.load.open_bundle(bundle),
            output.absolute(),
            codegen=options.codegen,
            compiler=options.cc,
            byte_order=cast("Literal['little', 'big']", options.byte_order),
        )
    driver = shlex.quote(f"{name}={output}")
    print_line(f"Written to {output}; --runtime ort-plugin takes it by --driver {driver}")


@take_options(standalone.ExportOptions, first=("output",))
def export_c(
    model: Annotated[str, typer.Argument(help="An ONNX file, zoo:NAME, or a bundle.")],
    options: standalone.ExportOptions,
    form: FormatOption = OutputFormat.text,
) -> None:
    """Write a model or a bundle as a C program.

    An operator that has no function in C, or one that is wrong when it is run here, is an error that
    names it, and nothing is written.
    """
    with show_status(), reserve_stdout():
        made = byoc.export_c(model, **keywords_of(options, standalone.ExportOptions))
    if form is OutputFormat.json:
        print_json({**asdict(made), "folder": str(made.folder)})
        return
    arena, weights = (format_quantity(size, "B") for size in (made.arena_bytes, made.weight_bytes))
    if made.arena_bytes == made.bound:
        proof = "proven minimal"
    else:
        proof = f"at least {format_quantity(made.bound, 'B')} are needed"
    print_line(f"arena {arena}, {proof}; weights {weights}")
    parts = [f"{format_count(made.kernels, 'step')} on kernels of byoc"]
    parts.append(f"{made.steps - made.kernels - made.regions} by emx-onnx-cgen")
    if made.regions:
        parts.append(f"{format_count(made.regions, 'region')} by drivers")
    if made.combinations > 1:
        parts.append(f"at each of {format_count(made.combinations, 'combination')} of sizes")
    print_line(", ".join(parts))
    for name, why in made.left_out.items():
        print_line(f"note: variant {name} is left out: {why}")
    if made.proven:
        print_line(f"{format_count(made.proven, 'function')} of emx-onnx-cgen run here and found right")
    if made.not_proven:
        print_line(f"note: functions of emx-onnx-cgen are not proven: {made.not_proven}")
    if made.overruled:
        names = ", ".join(made.overruled)
        print_line(
            f"note: of {names} onnxruntime computes something else than ONNX defines, which is what the "
            "program computes: its sample is onnxruntime's, and byoc verify finds that they differ"
        )
    if made.not_signed:
        print_line(f"note: {made.not_signed}; byoc verify builds it with --trust alone")
    print_line(f"Written to {made.folder}; byoc verify {made.folder} builds and runs it")
