"""What docs/stability.md promises of names: those of `byoc`, and their parameters, stay.

tests/golden/public_names.json has them. A new one is entered by `pytest --regenerate`; one that goes,
or whose parameter goes, fails here whatever is regenerated, until its deprecation has run its course and
its line is taken out by hand.
"""

import inspect
import json
from importlib import import_module
from pathlib import Path

import pytest

import byoc

ROOT = Path(byoc.__file__).parents[1]
KEPT = ROOT / "tests" / "golden" / "public_names.json"


def list_promised() -> dict[str, list[str]]:
    """Return the names of byoc, each with its parameters if it is a function."""
    return {f"byoc.{name}": list_parameters(f"byoc.{name}") for name in sorted(byoc.__all__)}


def list_parameters(path: str) -> list[str]:
    """Return the names of a function's parameters, none of what is no function."""
    room, _, name = path.rpartition(".")
    value = getattr(import_module(room), name)
    return list(inspect.signature(value).parameters) if inspect.isfunction(value) else []


def test_no_name_and_no_parameter_goes(request: pytest.FixtureRequest) -> None:
    found, kept = list_promised(), json.loads(KEPT.read_text(encoding="utf-8"))
    gone = [name for name in kept if name not in found]
    gone += [
        f"{name}({parameter})"
        for name, parameters in kept.items()
        for parameter in parameters
        if parameter not in found.get(name, parameters)
    ]
    assert not gone
    if request.config.getoption("--regenerate"):
        kept = found
        KEPT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    new = [name for name in found if name not in kept]
    assert not new, "enter them: pytest --regenerate tests/face/test_stable_names.py"
