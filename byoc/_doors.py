"""Search for the parts of byoc: names behind doors, and folders that stand beside the package.

Names are imported from the module that defines them when they are first asked for. So a program loads
what it uses, and not all that its rooms could do. A door lists its names once, as imports under
`if TYPE_CHECKING:`; type checkers, linters and documentation read them there, and so does `open_door`.

In a checkout `annotations/`, `cost_models/` and `codegens/` stand beside `byoc/`, not in it; the wheel
has them inside. `find_beside` makes an editable install import them by the same names, and nothing else
of the checkout: neither `byoc.tests` nor `byoc.tools`.
"""

import ast
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_HELPERS = {"TYPE_CHECKING", "open_door"}
"""What a door has besides its names, and nobody looks for there."""


def open_door(room: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package, for the names that its source lists.

    The first two follow PEP 562. The error for a name that is not listed has the nearest one that is.
    """
    package = sys.modules[room]
    homes = _list_homes(package.__file__ or "")

    def get_name(name: str) -> object:
        if name not in homes:
            # Another project's modules in our folder ask ours for what is theirs, and its `byoc.errors`
            # may have replaced ours.
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


# Folders beside the package, and a folder that another project shares.

_FOLDERS = ("annotations", "cost_models", "codegens")


class _CheckoutFinder(MetaPathFinder):
    """A finder of the three packages that stand beside `byoc`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names = {f"byoc.{folder}" for folder in _FOLDERS}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find one of the three packages; every other name gives None."""
        if fullname not in self.names:
            return None
        return PathFinder.find_spec(fullname, [str(self.root)], target)


def refuse_mixture(package: Path) -> None:
    """Raise ImportError where `package`, the folder of byoc, has files of another project as well.

    `byoc` on the package index, a loader of configurations, installs a module of the same name: in one
    folder its files and ours overwrite each other. What is looked for is a file that it alone has.
    """
    if (package / "getters.py").exists():
        raise ImportError(
            f"{package}: two projects are installed in this folder, ours (onnx-byoc) and another one "
            "called byoc, and each has overwritten files of the other: uninstall both, then install ours"
        )


def find_beside(package: Path) -> None:
    """Make the three folders importable as `byoc.NAME` unless they are in `package` itself."""
    if not (package / "codegens").is_dir():
        sys.meta_path.append(_CheckoutFinder(package.parent))
