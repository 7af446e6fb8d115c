"""Installation of the codegen `wrecker`, so that a new process finds it."""

from collections.abc import Callable

import pytest

VARIABLE = "WRECK"

Wreck = Callable[[str], None]
"""Says what the codegen does next: `load segv`, or nothing where it is empty."""


@pytest.fixture
def wreck(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Wreck:
    """Install the codegen, and give the function that says what it wrecks."""
    site = tmp_path_factory.mktemp("site")
    info = site / "wrecker-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wrecker\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[byoc.codegens]\nwrecker = wrecker:Wrecker\nwrecker-together = wrecker:WreckerTogether\n"
    )
    monkeypatch.syspath_prepend(site)
    asked = site / "asked"
    asked.touch()
    monkeypatch.setenv(VARIABLE, str(asked))

    def ask(what: str) -> None:
        asked.write_text(what)

    return ask
