"""`byoc new-codegen`: a complete package to start a codegen from."""

from pathlib import Path
from typing import Annotated

import typer

from byoc.codegen.scaffold import new_codegen as write


def new_codegen(
    name: Annotated[str, typer.Argument(help="What users will call it, such as acme or my-npu.")],
    into: Annotated[
        Path | None,
        typer.Option("--into", metavar="DIR", help="Write to this new folder instead of ./NAME."),
    ] = None,
) -> None:
    """Write a complete package for a codegen of your own.

    It has a codegen, a rule file, a cost model and tests, and works as it is."""
    folder = Path(name) if into is None else into
    for path in write(name, folder):
        typer.echo(folder / path)
    place = folder if folder.is_absolute() else f"./{folder}"  # else pip takes it for a project's name
    typer.echo(
        f"\nNext:\n  pip install -e '{place}[test]'\n  pytest {folder}\n"
        f"  byoc partition zoo:squeezenet --rules {name}.yaml -o squeezenet.byoc"
    )
