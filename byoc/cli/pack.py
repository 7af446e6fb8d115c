"""`byoc pack`: write a bundle as one file."""

from pathlib import Path
from typing import Annotated

import typer

from byoc.bundle.manifest import describe_file
from byoc.bundle.pack import pack_folder
from byoc.bundle.read import open_bundle
from byoc.bundle.staging import stage_packed_file
from byoc.cli.common import OutputFormat, FormatOption, print_json, show_status
from byoc.report.units import format_quantity


def pack(
    bundle: Annotated[Path, typer.Argument(help="What `byoc partition -o` wrote.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Write the zip here, such as m.byoc.zip.")
    ],
    form: FormatOption = OutputFormat.text,
) -> None:
    """Pack a bundle into one file that every verb opens."""
    with show_status() as show:
        show("check")
        opened = open_bundle(bundle)
        show("pack")
        with stage_packed_file(output) as file:
            pack_folder(opened.folder, opened.manifest.files, file)
        written = describe_file(output)
    if form is OutputFormat.json:
        print_json({"bundle": str(output), **written.model_dump()})
    else:
        typer.echo(f"{output}: {format_quantity(written.bytes, 'B')}, sha256 {written.sha256}")
