"""`byoc cache` and `byoc trust`: what byoc keeps in the user's own folders, results and keys."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

import byoc.support.cache
import byoc.support.trust
from byoc import bundle
from byoc.cli._common import FormatOption, OutputFormat, PanelCommand, print_json, print_rows
from byoc.codegen import parse_size
from byoc.console import format_count, format_quantity, print_line, print_table
from byoc.errors import InputError, suggest_nearest
from byoc.support import CODEGENS, list_installed

app = typer.Typer(add_completion=False, rich_markup_mode=None)

FolderOption = Annotated[
    Path | None,
    typer.Option("--cache-dir", metavar="FOLDER", help="This cache; by default the user's own."),
]


@app.callback(invoke_without_command=True)
def cache(
    context: typer.Context, folder: FolderOption = None, form: FormatOption = OutputFormat.text
) -> None:
    """Show what is kept of earlier compiles, clear it, or limit it."""
    if context.invoked_subcommand:
        if form is not OutputFormat.text:
            raise typer.BadParameter(f"{context.invoked_subcommand} prints text", param_hint="--format")
        context.obj = folder
        return
    opened = byoc.support.cache.open_cache(folder)
    usage, rows = opened.measure(), _list_codegens(opened)
    if form is OutputFormat.json:
        counts = {"entries": usage.entries, "bytes": usage.size, "limit": usage.limit}
        print_json({"folder": str(usage.folder), **counts, "codegens": rows})
        return
    size, most = format_quantity(usage.size, "B"), format_quantity(usage.limit, "B")
    print_line(f"{usage.folder}: {format_count(usage.entries, 'result')}, {size} of at most {most}")
    if rows:
        print_line()
        print_table(
            [{**row, "bytes": format_quantity(row["bytes"], "B")} for row in rows],
            right=("entries", "bytes"),
        )


@app.command("clear", cls=PanelCommand)
def clear(
    context: typer.Context,
    folder: FolderOption = None,
    codegen: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only what this codegen compiled.")
    ] = None,
) -> None:
    """Remove what is kept; the next run compiles it again."""
    opened = byoc.support.cache.open_cache(_choose_folder(context, folder))
    kept = [row["codegen"] for row in _list_codegens(opened)]
    if codegen is not None and codegen not in {*kept, *list_installed(CODEGENS)}:
        known = sorted({*kept, *list_installed(CODEGENS)})
        raise InputError(
            f"{codegen}: no codegen of this name is installed or has results in {opened.folder}"
            + suggest_nearest(codegen, known)
        )
    removed = opened.clear(None if codegen is None else lambda facts: facts.get("codegen") == codegen)
    print_line(f"{opened.folder}: {format_count(removed, 'result')} removed")


@app.command("limit", cls=PanelCommand)
def limit(
    size: Annotated[str, typer.Argument(metavar="SIZE", help="The most bytes, such as 500MiB or 8GiB.")],
    context: typer.Context,
    folder: FolderOption = None,
) -> None:
    """Set how much is kept; what was used longest ago goes first."""
    try:
        most = parse_size(size)
    except ValueError as error:
        raise typer.BadParameter(f"{error}, such as 500MiB", param_hint="SIZE") from None
    opened = byoc.support.cache.open_cache(_choose_folder(context, folder))
    opened.set_limit(most)
    print_line(f"{opened.folder}: at most {format_quantity(most, 'B')} from now on")


def _choose_folder(context: typer.Context, folder: Path | None) -> Path | None:
    """Return the folder that was given after `clear` or `limit`, else the one before."""
    before: Path | None = context.obj
    return before if folder is None else folder


def _list_codegens(opened: byoc.support.cache.Cache) -> list[dict[str, Any]]:
    """Return a row for each codegen: its entries, their bytes, and when one was last used."""
    rows: dict[str, dict[str, Any]] = {}
    for entry in opened.list_entries():
        facts = opened.read_facts(entry)
        name = "(not of this machine)" if facts is None else str(facts.get("codegen", ""))
        row = rows.setdefault(name, {"codegen": name, "entries": 0, "bytes": 0, "last used": ""})
        row["entries"] += 1
        row["bytes"] += entry.size
        row["last used"] = _format_time(entry.used)
    return sorted(rows.values(), key=lambda row: str(row["codegen"]))


def _format_time(seconds: float) -> str:
    """Return a local time, of POSIX seconds; "" for a year that no calendar of Python has."""
    try:
        return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")
    except (OverflowError, ValueError, OSError):
        return ""


# `byoc trust`: the keys whose bundles may run native code here.

_OWN = "this machine"


def trust(
    who: Annotated[
        str | None,
        typer.Argument(metavar="BUNDLE|KEY", help="A signed bundle, or the 64 hex digits of a key."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The name to list the key under; by default the bundle's.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Trust that key no longer.")] = False,
    form: FormatOption = OutputFormat.text,
) -> None:
    """Trust whoever signed a bundle, or list whom you trust.

    Bundles that are signed by a trusted key, or by the key of this machine, may run native code.
    """
    if who is None:
        if remove or name is not None:
            raise typer.BadParameter("give a bundle or a key, too", param_hint="BUNDLE|KEY")
        print_rows(_list_keys(), form)
        return
    key = who if byoc.support.trust.is_key(who) else _find_signer(Path(who))
    if remove:
        _remove(key)
    elif key == _get_own_key():
        print_line(f"{key} is the key of this machine, which is always trusted")
    else:
        byoc.support.trust.add_trusted_key(
            key, name or ("" if byoc.support.trust.is_key(who) else Path(who).name)
        )
        print_line(f"Trusted from now on: {key}. Native code in bundles that it signed runs here")


def _list_keys() -> list[dict[str, str]]:
    own = _get_own_key()
    rows = [{"key": own, "name": _OWN}] if own else []
    return rows + [
        {"key": key, "name": name} for key, name in byoc.support.trust.read_trusted_keys().items()
    ]


def _get_own_key() -> str:
    own = byoc.support.trust.read_key()
    return "" if own is None else own.public


def _find_signer(path: Path) -> str:
    """Return the key that signed a bundle. Raises InputError where there is no valid signature."""
    whole, name = bundle.split_path(path)
    if name is not None:
        raise InputError(f"{path}: a model has no signature of its own, its package has: trust {whole}")
    if not path.exists():
        raise InputError(f"{path}: no such bundle, and no key, which is 64 digits 0 to 9 and a to f")
    judged = bundle.judge_path(path)
    if not judged.key:
        raise InputError(f"{path}: there is no key to trust: {judged.reason}")
    return judged.key


def _remove(key: str) -> None:
    if key == _get_own_key():
        raise InputError(f"{key} is the key of this machine: remove its file if it is not to be used")
    if not byoc.support.trust.remove_trusted_key(key):
        raise InputError(f"{key} is not among the keys that you trust (byoc trust lists them)")
    print_line(f"Not trusted any more: {key}")
