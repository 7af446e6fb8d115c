"""`byoc make-driver`: make the driver of a bundle's regions as a shared library."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, cast

import typer

import byoc
from byoc.cli._common import check_outside, reserve_stdout, show_status
from byoc.cli._option_flags import DEFAULT_LOAD_OPTIONS, LoadOptions, flag_field, take_options
from byoc.console import print_line
from byoc.support import Flag, Syntax, check_output


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
    check_outside(output, bundle, "it would change the bundle")
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
