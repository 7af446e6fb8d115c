"""`byoc trust`: the keys whose bundles may run native code here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import byoc.trust
from byoc import bundle
from byoc.cli._common import FormatOption, OutputFormat, print_rows
from byoc.console import print_line
from byoc.errors import InputError

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
    key = who if byoc.trust.is_key(who) else _find_signer(Path(who))
    if remove:
        _remove(key)
    elif key == _get_own_key():
        print_line(f"{key} is the key of this machine, which is always trusted")
    else:
        byoc.trust.add_trusted_key(key, name or ("" if byoc.trust.is_key(who) else Path(who).name))
        print_line(f"Trusted from now on: {key}. Native code in bundles that it signed runs here")


def _list_keys() -> list[dict[str, str]]:
    own = _get_own_key()
    rows = [{"key": own, "name": _OWN}] if own else []
    return rows + [{"key": key, "name": name} for key, name in byoc.trust.read_trusted_keys().items()]


def _get_own_key() -> str:
    own = byoc.trust.read_key()
    return "" if own is None else own.public


def _find_signer(path: Path) -> str:
    """Return the key that signed a bundle. Raises InputError where there is no valid signature."""
    if not path.exists():
        raise InputError(f"{path}: no such bundle, and no key, which is 64 digits 0 to 9 and a to f")
    judged = bundle.judge_path(path)
    if not judged.key:
        raise InputError(f"{path}: there is no key to trust: {judged.reason}")
    return judged.key


def _remove(key: str) -> None:
    if key == _get_own_key():
        raise InputError(f"{key} is the key of this machine: remove its file if it is not to be used")
    if not byoc.trust.remove_trusted_key(key):
        raise InputError(f"{key} is not among the keys that you trust (byoc trust lists them)")
    print_line(f"Not trusted any more: {key}")
