"""Installation of a package for one test, without pip: its entry points are registered."""

import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import byoc
from byoc.support import _plugins


def install(project: Path, site: Path) -> None:
    """Register what a pyproject.toml says, as `pip install -e` does, in a folder of the import path."""
    about = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    register(site, about["name"], about["version"], about["entry-points"])


def register(site: Path, package: str, version: str, groups: Mapping[str, Mapping[str, str]]) -> None:
    """Register the entry points of a package, by group and name, in a folder of the import path."""
    record = site / f"{package}-{version}.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    points = [
        "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())])
        for group, entries in groups.items()
    ]
    (record / "entry_points.txt").write_text("\n".join(points), encoding="utf-8")


def install_strategies(site: Path, module: str, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the classes of a module as strategies, for this process and those that it starts.

    Each is named as its class is, in small letters; `source` is the module's text.
    """
    site.mkdir()
    (site / f"{module}.py").write_text(source, encoding="utf-8")
    classes = re.findall(r"^class (\w+)", source, re.MULTILINE)
    entries = {name.lower(): f"{module}:{name}" for name in classes}
    register(site, module, "1.0", {"byoc.strategies": entries})
    monkeypatch.syspath_prepend(site)
    root = Path(byoc.__file__).parents[1]
    paths = (str(site), str(root), os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


def add_entry_points(monkeypatch: pytest.MonkeyPatch, points: Iterable[EntryPoint]) -> None:
    """Add entry points to those that are installed, without any file."""
    before, added = _plugins.find_entry_points, tuple(points)

    def find(group: str) -> Sequence[EntryPoint]:
        return [*before(group), *(point for point in added if point.group == group)]

    monkeypatch.setattr(_plugins, "find_entry_points", find)
