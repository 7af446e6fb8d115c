"""`byoc inspect`: what is in a bundle."""

from pathlib import Path
from typing import Annotated

import typer

from byoc.bundle.contracts import as_contract
from byoc.bundle.manifest import Manifest
from byoc.bundle.read import open_bundle
from byoc.cli.common import Format, FormatOption, console, print_json, print_rows
from byoc.errors import InputError
from byoc.report.text import print_report
from byoc.report.units import quantity


def inspect(
    bundle: Annotated[Path, typer.Argument(help="A folder that `byoc partition -o` wrote.")],
    form: FormatOption = Format.text,
) -> None:
    """Show what is in a bundle: the decision, what is converted at borders, and every file."""
    manifest = open_bundle(bundle).manifest
    if form is Format.json:
        print_json(manifest.model_dump(mode="json"))
        return
    try:
        print_report(manifest.report, console())
    except (LookupError, TypeError, ValueError, AttributeError):
        raise InputError(f"{bundle}: the report in the manifest is not one that byoc wrote") from None
    crossing = _crossing(manifest)
    if crossing:
        typer.echo("\nConverted at the borders of regions:")
        print_rows(crossing, form)
    print_rows(
        [
            {"file": name, "size": quantity(entry.bytes, "B"), "sha256": entry.sha256[:16]}
            for name, entry in manifest.files.items()
        ],
        form,
    )
    asked = {name: value for name, value in manifest.asked.items() if value not in (None, {})}
    typer.echo("asked: " + ", ".join(f"{name} {_plain(value)}" for name, value in asked.items()))
    typer.echo("made with: " + ", ".join(f"{n} {v}" for n, v in manifest.versions.items()))


def _crossing(manifest: Manifest) -> list[dict[str, str]]:
    """Return what crosses borders otherwise than it is in the user's model, a row for each tensor."""
    rows = []
    for region in manifest.regions:
        for way, entries in (("in", region.inputs), ("out", region.outputs)):
            for contract in map(as_contract, entries):
                if contract.converts:
                    rows.append(
                        {
                            "region": region.name,
                            "way": way,
                            "tensor": f"{contract.tensor}: {contract.logical}",
                            "crosses as": str(contract),
                            "converts": ", ".join(f"{k} {who}" for k, who in contract.converts.items()),
                        }
                    )
    return rows


def _plain(value: object) -> str:
    """Return what was asked as a person would write it: lists and mappings without their brackets."""
    if isinstance(value, dict):
        return " ".join(f"{name}={inner}" for name, inner in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
