"""Installation of the codegen `wrecker`, so that a new process finds it."""

from collections.abc import Callable

import pytest

from helpers.installing import register

VARIABLE = "WRECK"

Wreck = Callable[[str], None]
"""Says what the codegen does next: `load segv`, or nothing where it is empty."""


@pytest.fixture
def wreck(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Wreck:
    """Install the codegen, and give the function that says what it wrecks."""
    site = tmp_path_factory.mktemp("site")
    classes = {"wrecker": "Wrecker", "wrecker-together": "WreckerTogether"}
    points = {name: f"helpers.wrecker:{kind}" for name, kind in classes.items()}
    register(site, "wrecker", "1.0", {"byoc.codegens": points})
    monkeypatch.syspath_prepend(site)
    asked = site / "asked"
    asked.touch()
    monkeypatch.setenv(VARIABLE, str(asked))

    def ask(what: str) -> None:
        asked.write_text(what)

    return ask
