"""An empty cache, and an installed codegen."""

import sys
from collections.abc import Iterator
from pathlib import Path

import installing
import pytest
from noting_vendor import Vendor

from byoc.cache import Cache, open_cache


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


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """Return an empty cache."""
    return open_cache(tmp_path / "cache")
