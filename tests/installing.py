"""Installation of a package for one test, without pip: its entry points are registered."""

import tomllib
from pathlib import Path


def install(project: Path, site: Path) -> None:
    """Register what a pyproject.toml says, as `pip install -e` does, in a folder of the import path."""
    about = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    record = site / f"{about['name']}-{about['version']}.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n"
    )
    points = [
        "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())])
        for group, entries in about["entry-points"].items()
    ]
    (record / "entry_points.txt").write_text("\n".join(points), encoding="utf-8")
