"""`byoc export-c` and `make-driver`: write a model or a bundle as a C program, and a driver in C."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal, cast

import typer

import byoc
import byoc.bundle
from byoc import standalone
from byoc._dataclasses import asdict, dataclass
from byoc.cli._common import (
    FormatOption,
    OutputFormat,
    check_outside,
    print_json,
    reserve_stdout,
    show_status,
)
from byoc.cli._option_flags import DEFAULT_LOAD_OPTIONS, LoadOptions, flag_field, take_options
from byoc.console import format_count, format_quantity, print_line
from byoc.support import Flag, Syntax, check_output, keywords_of

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
