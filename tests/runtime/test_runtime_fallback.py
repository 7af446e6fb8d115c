"""A bundle on a machine that cannot run its regions: an error, or the host if that is asked for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import vendors
from helpers.cutting import UNLIKE, cut, ramp
from helpers.support import Ran, parse

import byoc
from byoc.codegen import CompileError, NotHereError
from byoc.errors import InputError, MissingRuntimeError


def _absent(error: BaseException) -> type[vendors.Tables]:
    class Absent(vendors.Tables):
        def load(self, *_: Any) -> Any:
            raise error

    return Absent


FAILURES = {
    "device": (NotHereError("there is no device"), "there is no device"),
    "runtime": (MissingRuntimeError("its runtime is not installed"), "its runtime is not installed"),
    "defect": (ZeroDivisionError("by 0"), "loading failed with ZeroDivisionError: by 0"),
    "refusal": (CompileError("too large"), "too large"),
}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[str, Any]]:
    """Return a bundle of two regions, and its outputs where they run."""
    vendors.install(monkeypatch, tables=vendors.Tables)
    cut(parse(UNLIKE), tmp_path / "b", codegen="tables")
    expected = byoc.load(tmp_path / "b", isolate=False)({"x": ramp(1, 4)})
    return tmp_path / "b", expected


@pytest.mark.parametrize("case", FAILURES)
def test_regions_run_on_the_host_where_that_is_asked_for(
    case: str, made: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    error, reason = FAILURES[case]
    vendors.install(monkeypatch, tables=_absent(error))
    with pytest.raises((InputError, MissingRuntimeError)):
        byoc.load(made[0], isolate=False)
    with pytest.warns(RuntimeWarning, match=r"region dla_\d runs on the host: ") as told:
        session = byoc.load(made[0], isolate=False, fallback="host")
    assert len(told) == 2
    assert {name: why.partition(" (")[0] for name, why in session.fallbacks.items()} == {
        "dla_0": reason,
        "dla_1": reason,
    }
    assert isinstance(session, byoc.Session)
    assert {stage.device for stage in session.stages} == {"host"}
    found = session({"x": ramp(1, 4)})
    np.testing.assert_array_equal(found["y"], made[1]["y"])


def test_a_codegen_that_is_not_installed(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        vendors.install(patch, tables=vendors.Tables)
        cut(parse(UNLIKE), tmp_path / "b", codegen="tables")
        expected = byoc.load(tmp_path / "b", isolate=False)({"x": ramp(1, 4)})
    with pytest.raises(InputError, match=r"^tables: no such codegen"):
        byoc.load(tmp_path / "b", isolate=False)
    with pytest.warns(RuntimeWarning, match="runs on the host: tables: no such codegen"):
        session = byoc.load(tmp_path / "b", isolate=False, fallback="host")
    np.testing.assert_array_equal(session({"x": ramp(1, 4)})["y"], expected["y"])


def test_where_all_regions_load_nothing_falls_back(made: tuple[Path, dict[str, Any]]) -> None:
    session = byoc.load(made[0], isolate=False, fallback="host")
    assert not session.fallbacks
    assert isinstance(session, byoc.Session)
    assert [stage.device for stage in session.stages] == ["dla", "host", "dla"]
    with pytest.raises(InputError, match=r"^fallback is 'gpu', and may be 'host' or None$"):
        byoc.load(made[0], fallback="gpu")  # type: ignore[arg-type]


def test_the_command_line_says_what_runs_on_the_host(
    made: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, byoc: Any
) -> None:
    vendors.install(monkeypatch, tables=_absent(NotHereError("there is no device")))
    command = ("run", made[0], "--inputs", "random", "--no-isolate")
    ran: Ran = byoc(*command)
    assert ran.code == 1
    assert (
        "cannot run on this machine: there is no device; --fallback host runs it on the host" in ran.err
    )
    ran = byoc(*command, "--fallback", "host")
    assert ran.code == 0
    assert "note: region dla_0 runs on the host: there is no device" in ran.out
