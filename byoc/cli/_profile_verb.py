"""`byoc profile`: measure operators on this machine, and write a cost model."""

from typing import Annotated

import typer

from byoc.cli._common import reserve_stdout, show_status
from byoc.cli._option_flags import take_options
from byoc.console import print_errors, print_line
from byoc.profiling import HOST, ProfileOptions
from byoc.profiling import profile as run
from byoc.support import keywords_of


@take_options(ProfileOptions)
def profile(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="ONNX files, or zoo:NAME.")],
    options: ProfileOptions,
) -> None:
    """Measure operators on this machine, and write a cost model."""
    if options.device == HOST and (options.rules is not None or options.codegen_options):
        raise typer.BadParameter("--rules and --codegen-option are for a codegen", param_hint="--device")
    with show_status(), reserve_stdout():
        found = run(models, **keywords_of(options, ProfileOptions))
    print_errors(found.notes)
    what = "lines fitted to measurements" if options.fit else "measurements"
    print_line(f"{options.output}: {what} of {found.operators} operators, each on tensors of its types")
