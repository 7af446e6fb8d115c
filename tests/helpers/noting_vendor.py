"""A codegen of a distribution, as a vendor's is installed, that writes down each compile."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from byoc.pipeline import Result
from helpers import installing
from helpers.cutting import cut, files, without_what_ifs

SOURCE = """
import os
from dataclasses import dataclass
from byoc.codegen import Artifact, CompileError, find_codegen

VERSION = "{version}"

@dataclass(frozen=True)
class Options:
    speed: int = 3

class Noting:
    name = "noting"
    Options = Options
    libraries = ("noting-compiler",)

    def compile(self, region, options):
        with open(os.environ["COMPILED"], "a") as file:
            file.write(region.name + "\\n")
        unwanted = os.environ.get("REFUSED", "").split()
        refused = [node.name for node in region.nodes if node.op_type in unwanted]
        if refused:
            raise CompileError("this one is not taken", refused, lasting="FOR_NOW" not in os.environ)
        code = VERSION.encode() + bytes(options.speed)
        return Artifact({{"code.bin": code}}, {{"note": os.environ.get("NOTE", "")}})

    def load(self, region, artifact):
        assert artifact.files["code.bin"].startswith(VERSION.encode())
        return find_codegen("reference").load(region, artifact)
{more}
"""


@dataclass
class Vendor:
    """The installed package `noting`, whose codegen compiles into a log."""

    site: Path
    log: Path

    def write(self, version: str = "1", more: str = "") -> None:
        """Write the package's source, and forget the module that was imported."""
        text = SOURCE.format(version=version, more=more)
        (self.site / "noting_package.py").write_text(text)
        self.forget()

    def forget(self) -> None:
        """Forget the module, as a new process does."""
        sys.modules.pop("noting_package", None)

    def release(self, version: str) -> None:
        """Install another version of the distribution, with the same source."""
        for record in self.site.glob("noting-*.dist-info"):
            record.rename(self.site / f"noting-{version}.dist-info")
        (record,) = self.site.glob("noting-*.dist-info")
        text = (record / "METADATA").read_text().splitlines()
        (record / "METADATA").write_text("\n".join([*text[:2], f"Version: {version}", ""]))

    def cut(self, model: Any, output: Path, **options: Any) -> tuple[Result, list[str]]:
        """Partition a model, and return the regions that were compiled for it."""
        self.forget()
        self.log.write_text("")
        with without_what_ifs():
            result = cut(model, output, **{"codegen": "noting", "verify": False, **options})
        return result, self.log.read_text().split()


def read_bundle(folder: Path) -> dict[str, bytes]:
    """Return all files of a bundle by name."""
    return files(folder)


@pytest.fixture
def vendor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Vendor]:
    """Install the package for one test."""
    site, log = tmp_path / "site", tmp_path / "compiled.txt"
    site.mkdir()
    installing.register(site, "noting", "1.0", {"byoc.codegens": {"noting": "noting_package:Noting"}})
    installing.register(site, "noting_compiler", "4.2", {})
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("COMPILED", str(log))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    found = Vendor(site, log)
    found.write()
    yield found
    found.forget()
