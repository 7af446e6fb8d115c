"""`byoc verify`: run a bundle and its original on the same inputs, and compare."""

from pathlib import Path
from typing import Annotated

import typer

from byoc.cli.common import Format, FormatOption, own_stdout, print_json, print_rows, progress
from byoc.pipeline import verify_against
from byoc.report.document import verification_document
from byoc.report.units import share
from byoc.verify.compare import require


def verify(
    bundle: Annotated[Path, typer.Argument(help="What `byoc partition -o` wrote, or `byoc pack`.")],
    against: Annotated[
        str | None,
        typer.Option(help="The original: a file or zoo:NAME. Found by itself for zoo models."),
    ] = None,
    form: FormatOption = Format.text,
) -> None:
    """Check that a bundle computes what its model did."""
    with progress() as show, own_stdout():
        show("verify")
        verification = verify_against(bundle, against)
    if form is Format.json:
        print_json(verification_document(verification))
    else:
        typer.echo(f"{bundle} against {verification.against}:")
        rows = [
            {
                "output": output.name,
                "dtype": output.dtype,
                "largest_error": f"{output.absolute:.1e}",
                "of_its_range": f"{output.relative:.1e}",
                "allowed": f"{output.tolerance:g}",
                "within": "yes" if output.within else "NO",
            }
            for output in verification.outputs
        ]
        print_rows(rows, form)
        for left in verification.accuracy:
            typer.echo(
                f"{left.name}: {left.signal_to_noise:.1f} dB of {verification.original} left, "
                f"{share(left.same_class)} of the largest elements where they were"
            )
    require(verification)
