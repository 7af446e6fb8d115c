"""The components of a program, and the texts of their licences."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

from byoc.codegen import DriverSources
from byoc.support import CODEGENS, list_installed, read_name_and_version

_FOLDER = "licences"
_TEXT_NAME = re.compile(r"(LICEN[CS]E|COPYING|NOTICE)([.-].*)?", re.IGNORECASE)
_EMITTER = "emx-onnx-cgen"
_EXPRESSIONS = {_EMITTER: "Apache-2.0"}
"""Licences of distributions that state none in their metadata; read in the texts they come with."""


@dataclass(frozen=True)
class Component:
    """A library whose source is in a program: `files` in the program's folder are of it.

    `expression` is an SPDX expression, empty if none is stated; `texts` are licences and notices by the
    names of their files.
    """

    name: str
    version: str
    expression: str
    texts: Mapping[str, bytes]
    files: str

    def list_texts(self) -> Iterator[tuple[str, bytes]]:
        """Yield the path of each text from the program's folder, and the text."""
        for name, content in self.texts.items():
            yield f"{_FOLDER}/{self.name}/{name}", content

    def describe(self) -> dict[str, Any]:
        """Return the entry of a CycloneDX document."""
        found: dict[str, Any] = {"type": "library", "name": self.name}
        if self.version:
            found["version"] = self.version
        if self.expression:
            found["licenses"] = [{"expression": self.expression}]
        if self.texts:
            paths = [path for path, _ in self.list_texts()]
            found["externalReferences"] = [{"type": "license", "url": path} for path in paths]
        return found

    def format_line(self) -> str:
        """Return the line of the program's README."""
        paths = ", ".join(f"`{path}`" for path, _ in self.list_texts())
        text = f"the text is in {paths}" if paths else "no text came with it: ask its maker"
        named = " ".join(filter(None, (self.name, self.version)))
        return f"- {self.files}: {named}; {self.expression or 'no licence is stated'}; {text}.\n"


def list_components(has_nodes: bool, drivers: Sequence[DriverSources]) -> list[Component]:
    """Return the components of a program with functions of emx-onnx-cgen, and with drivers."""
    own = "`kernels.*`, `windows.c`, `main.c`, `byoc_driver.h` and what byoc writes"
    found = [_describe_distribution(distribution("onnx-byoc"), own)]
    if has_nodes:
        found.append(_describe_distribution(distribution(_EMITTER), "`nodes.*`, as emitted"))
    return [*found, *map(_describe_driver, drivers)]


def _describe_distribution(found: Distribution, files: str) -> Component:
    name, version = read_name_and_version(found)
    return Component(name, version, _find_expression(found), _read_texts(found), files)


def _describe_driver(driver: DriverSources) -> Component:
    """Return a driver's component: texts beside its sources go before those of its distribution."""
    point = list_installed(CODEGENS).get(driver.name)
    found = point.dist if point is not None else None
    beside = {
        file.name: file.read_bytes()
        for folder in sorted({file.parent for file in driver.files})
        for file in sorted(folder.iterdir())
        if _TEXT_NAME.fullmatch(file.name) and file.is_file()
    }
    name, files = f"driver-{driver.name}", f"`drivers/{driver.name}/`"
    if beside or found is None:
        return Component(name, "", "", beside, files)
    version = read_name_and_version(found)[1]
    return Component(name, version, _find_expression(found), _read_texts(found), files)


def _find_expression(found: Distribution) -> str:
    stated = found.metadata.get_all("License-Expression")
    return str(stated[0]) if stated else _EXPRESSIONS.get(read_name_and_version(found)[0], "")


def _read_texts(found: Distribution) -> dict[str, bytes]:
    """Return the licences and notices of a whole distribution, not those of parts of it in folders."""
    texts = {}
    for file in found.files or ():
        folders = file.parts[:-1]
        inside = len(folders) in (1, 2) and folders[0].endswith(".dist-info")
        if inside and folders[1:] in ((), ("licenses",)) and _TEXT_NAME.fullmatch(file.name):
            texts[file.name] = Path(str(file.locate())).read_bytes()
    return dict(sorted(texts.items()))
