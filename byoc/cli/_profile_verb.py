"""`byoc profile`: measure operators on this machine, and write a cost model."""

from __future__ import annotations

from typing import Annotated

import typer

import byoc
from byoc import profiling
from byoc.cli._common import reserve_stdout, show_status
from byoc.cli._option_flags import take_options
from byoc.console import print_errors, print_line
from byoc.profiling import HOST
from byoc.support import keywords_of


@take_options(profiling.ProfileOptions)
def profile(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="ONNX files, or zoo:NAME.")],
    options: profiling.ProfileOptions,
) -> None:
    """Measure operators on this machine, and write a cost model."""
    if options.device == HOST and (options.rules is not None or options.codegen_options):
        raise typer.BadParameter("--rules and --codegen-option are for a codegen", param_hint="--device")
    with show_status(), reserve_stdout():
        found = byoc.profile(models, **keywords_of(options, profiling.ProfileOptions))
    print_errors(found.notes)
    what = "lines fitted to measurements" if options.fit else "measurements"
    print_line(f"{options.output}: {what} of {found.operators} operators, each on tensors of its types")
