"""A bundle of native code, and folders of users."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import pytest
from helpers import vendors
from helpers.cutting import DEVICE_ONLY, cut
from helpers.support import parse
from native_codegen import Native

from byoc.codegen import Artifact, Region
from byoc.support import trust


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """Go on as another user, in another process: return the folder of the user's files."""

    def go_on(name: str) -> Path:
        home = tmp_path / "users" / name
        monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
        monkeypatch.setattr(trust, "_WRITTEN", set())
        return home

    return go_on


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch, become: Callable[[str], Path]) -> Iterator[type[Native]]:
    """Install the codegen, and go on as the user `maker`."""

    class Installed(Native):
        loaded: ClassVar[list[bytes]] = []

        def compile(self, region: Region, options: Mapping[str, str]) -> Artifact:
            return super().compile(region, {})

    vendors.install(monkeypatch, native=Installed)
    become("maker")
    yield Installed


@pytest.fixture
def bundle(native: type[Native], tmp_path: Path) -> Path:
    """Return a bundle of native code that the user `maker` wrote in another process."""
    cut(parse(DEVICE_ONLY), tmp_path / "b", codegen="native")
    native.loaded.clear()
    trust._WRITTEN.clear()
    return tmp_path / "b"
