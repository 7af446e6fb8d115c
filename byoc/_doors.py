"""Doors of rooms: a name is imported from the module that defines it when it is first asked for.

So a program loads what it uses, and not all that its rooms could do. A door lists its names once, as
imports under `if TYPE_CHECKING:`; type checkers, linters and documentation read them there, and so does
`open_door`.
"""

import ast
from collections.abc import Callable, Mapping
from pathlib import Path
from sys import modules

_HELPERS = {"TYPE_CHECKING", "open_door"}
"""What a door has besides its names, and nobody looks for there."""


def open_door(room: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package, for the names that its source lists.

    The first two follow PEP 562. The error for a name that is not listed has the nearest one that is.
    """
    package = modules[room]
    homes = _list_homes(package.__file__ or "")

    def get_name(name: str) -> object:
        if name not in homes:
            # Only now, since most doors are asked for names that they have. Another project's modules in
            # our folder ask ours for what is theirs, and its `byoc.errors` may have replaced ours.
            from byoc._checkout import refuse_mixture  # noqa: PLC0415

            refuse_mixture(Path(__file__).parent)
            from importlib.util import find_spec  # noqa: PLC0415

            from byoc.errors import suggest_nearest  # noqa: PLC0415

            hint = suggest_nearest(name, homes)
            if find_spec(f"{room}.{name}") is not None:
                hint = f"; `import {room}.{name}` first"
            raise AttributeError(f"module {room!r} has no attribute {name!r}{hint}")
        module, defined = homes[name]
        # fromlist imports what is a module itself, as `arena` of byoc.memory.
        value = getattr(__import__(module, fromlist=[defined]), defined)
        setattr(package, name, value)
        return value

    def list_names() -> list[str]:
        return sorted(({*vars(package), *homes}) - _HELPERS)

    return get_name, list_names, sorted(homes)


def _list_homes(path: str) -> Mapping[str, tuple[str, str]]:
    """Return the module of each name that a door imports for type checkers, and its name there."""
    tree = ast.parse(Path(path).read_bytes())
    blocks = (part for part in tree.body if isinstance(part, ast.If))
    listed = (node for part in blocks if ast.unparse(part.test) == "TYPE_CHECKING" for node in part.body)
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in listed
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
