"""Find the folders of the package, and refuse to share one with another project.

In a checkout `annotations/`, `cost_models/` and `codegens/` stand beside `byoc/`, not in it.

The wheel has them inside the package. `find_beside` makes an editable install import them by the same
names, and nothing else of the checkout: neither `byoc.tests` nor `byoc.tools`.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

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
