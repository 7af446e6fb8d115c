"""`byoc report`: draw a bundle's report for a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import byoc
from byoc.cli._common import TrustOption, check_outside, show_status
from byoc.console import print_line
from byoc.reporting import format_quantity
from byoc.support import check_output, write_text


def report(
    bundle: Annotated[Path, typer.Argument(help="What `byoc partition -o` wrote, or `byoc pack`.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Write the page here, such as report.html.")
    ],
    trace: Annotated[
        Path | None,
        typer.Option(help="A timeline that `byoc run --trace` wrote, to be drawn and compared."),
    ] = None,
    variant: Annotated[
        str | None, typer.Option(metavar="NAME", help="The variant to draw, of a bundle with several.")
    ] = None,
    trust: TrustOption = False,
) -> None:
    """Draw a bundle's report for a browser: one file, no network."""
    check_output(output)
    check_outside(output, bundle, "it would change the bundle that is shown")
    with show_status() as show:
        show("read the bundle")
        page = byoc.make_page(byoc.open_bundle(bundle, variant=variant, trust=trust), trace)
    write_text(output, page)
    print_line(f"Written to {output} ({format_quantity(len(page.encode()), 'B')})")
