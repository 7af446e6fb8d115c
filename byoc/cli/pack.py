"""`byoc pack`: write a bundle as one file."""

from pathlib import Path
from typing import Annotated

import typer

from byoc.bundle.manifest import describe_file
from byoc.bundle.pack import write_packed
from byoc.bundle.read import open_bundle
from byoc.bundle.staging import staged_file
from byoc.cli.common import Format, FormatOption, print_json, progress
from byoc.report.units import quantity


def pack(
    bundle: Annotated[Path, typer.Argument(help="What `byoc partition -o` wrote.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Write the zip here, such as m.byoc.zip.")
    ],
    form: FormatOption = Format.text,
) -> None:
    """Pack a bundle into one file that every verb opens."""
    with progress() as show:
        show("check")
        opened = open_bundle(bundle)
        show("pack")
        with staged_file(output) as file:
            write_packed(opened.folder, opened.manifest.files, file)
        written = describe_file(output)
    if form is Format.json:
        print_json({"bundle": str(output), **written.model_dump()})
    else:
        typer.echo(f"{output}: {quantity(written.bytes, 'B')}, sha256 {written.sha256}")
