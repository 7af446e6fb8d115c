"""A stranger's bundle runs in worker processes unless the user says otherwise, and others do not."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forging import edit_manifest
from helpers import vendors
from helpers.cutting import DEVICE_ONLY, cut, ramp
from helpers.support import Ran, parse
from helpers.wrecking import VARIABLE, Wreck

import byoc as library
from byoc.bundle import open_bundle, pack_folder
from byoc.codegen import Isolation, choose_isolation
from byoc.errors import InputError
from byoc.support.trust import add_trusted_key, read_key
from byoc.verification import bisect_region, rerun_fault, write_fault

Become = Callable[[str], Path]

pytestmark = pytest.mark.usefixtures("numbered_regions")

SEGV = "its process was killed by SIGSEGV in"


@pytest.fixture
def made(wreck: Wreck, become: Become, tmp_path: Path) -> Path:
    """Return a bundle without native code that the user `maker` wrote in another process."""
    become("maker")
    cut(parse(DEVICE_ONLY), tmp_path / "b", codegen="wrecker")
    become("maker")
    return tmp_path / "b"


@pytest.fixture
def strange(made: Path, become: Become) -> Path:
    """Return the same to another user, who does not trust its maker."""
    become("stranger")
    return made


def _is_loaded_here(wreck: Wreck, load: Callable[[], object]) -> bool:
    """Return whether the codegen is loaded in this process."""
    wreck("load pid")
    load()
    return int(Path(os.environ[VARIABLE]).read_text()) == os.getpid()


def test_a_strangers_bundle_is_loaded_in_a_process_of_its_own(wreck: Wreck, strange: Path) -> None:
    given = {"x": ramp(1, 4)}
    assert not _is_loaded_here(wreck, lambda: library.load(strange))
    wreck("")
    there, here = library.load(strange)(given), library.load(strange, isolate=False)(given)
    np.testing.assert_array_equal(there["y"], here["y"])
    np.testing.assert_array_equal(here["y"], np.maximum(2 * given["x"], 0))


@pytest.mark.parametrize("options", [{"isolate": False}, {"trust": True}])
def test_a_user_may_say_otherwise(options: Mapping[str, Any], wreck: Wreck, strange: Path) -> None:
    assert _is_loaded_here(wreck, lambda: library.load(strange, **options))


def test_trust_and_processes_of_their_own_go_together(wreck: Wreck, strange: Path) -> None:
    assert not _is_loaded_here(wreck, lambda: library.load(strange, trust=True, isolate=True))
    assert not _is_loaded_here(wreck, lambda: library.load(strange, trust=True, call_timeout=60.0))


def test_what_a_trusted_maker_made_is_loaded_here(wreck: Wreck, made: Path, become: Become) -> None:
    assert _is_loaded_here(wreck, lambda: library.load(made))
    key = read_key()
    assert key is not None
    become("friend")
    assert not _is_loaded_here(wreck, lambda: library.load(made))
    add_trusted_key(key.public, "the maker")
    assert _is_loaded_here(wreck, lambda: library.load(made))
    edit_manifest(made, lambda manifest: manifest["versions"].update(byoc="9"))
    assert not _is_loaded_here(wreck, lambda: library.load(made))


def test_packed_bundles_and_opened_ones_are_no_exception(
    wreck: Wreck, strange: Path, tmp_path: Path
) -> None:
    packed = tmp_path / "b.zip"
    pack_folder(strange, open_bundle(strange).manifest.files, packed)
    assert not _is_loaded_here(wreck, lambda: library.load(packed))
    assert not _is_loaded_here(wreck, lambda: library.verify(packed))
    assert not _is_loaded_here(wreck, lambda: library.verify(library.open_bundle(strange)))
    assert _is_loaded_here(wreck, lambda: library.verify(library.open_bundle(strange, trust=True)))


def test_where_there_are_no_worker_processes_it_is_loaded_here(
    wreck: Wreck, strange: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.forbid_processes(monkeypatch)
    assert _is_loaded_here(wreck, lambda: library.load(strange))
    with pytest.raises(InputError, match="processes of their own on this system"):
        library.load(strange, isolate=True)


def test_what_options_ask_for() -> None:
    assert choose_isolation(None) == Isolation(unless_trusted=True)
    assert choose_isolation(True) == Isolation()
    assert choose_isolation(None, 2.0) == Isolation(call_timeout=2.0)
    assert choose_isolation(False) is choose_isolation(False, 2.0) is None


@pytest.mark.parametrize("method", ["import", "compatible", "load", "run"])
def test_a_strangers_bundle_does_not_take_a_verb_along(
    method: str, wreck: Wreck, strange: Path, byoc: Callable[..., Ran]
) -> None:
    sentences = {
        "import": f"codegen wrecker cannot be loaded: {SEGV} import",
        "run": f"dla_0: codegen wrecker: {SEGV} run",
    }
    sentence = sentences.get(method, f"codegen wrecker: dla_0: {SEGV} {method}")
    wreck(f"{method} segv")
    ran = byoc("run", strange, "--inputs", "random")
    assert (ran.code, ran.out, ran.err) == (1, "", f"byoc: {sentence}\n")
    for verb in (("verify", strange, "--bisect"), ("compare-costs", strange)):
        ran = byoc(*verb)
        assert (ran.code, ran.out) == (1, "")
        assert sentence in ran.err
        assert ran.err.count("\n") == 1


def test_bisecting_and_timing_a_strangers_bundle(
    wreck: Wreck, strange: Path, byoc: Callable[..., Ran]
) -> None:
    wreck("compile segv wrong")
    ran = byoc("verify", strange, "--bisect")
    assert ran.code == 1
    assert f"region dla_0 cannot be tried again: {SEGV} compile" in ran.out.splitlines()
    wreck("cost segv")
    ran = byoc("compare-costs", strange)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"byoc: {strange}: {SEGV} cost\n"


def test_a_fault_is_tried_again_in_a_process_of_its_own(
    wreck: Wreck, made: Path, tmp_path: Path, byoc: Callable[..., Ran]
) -> None:
    wreck("no method wrong")
    folder = tmp_path / "fault"
    write_fault(bisect_region(open_bundle(made), "dla_0"), folder)
    assert not _is_loaded_here(wreck, lambda: rerun_fault(folder))
    assert _is_loaded_here(wreck, lambda: rerun_fault(folder, trust=True))
    assert _is_loaded_here(wreck, lambda: byoc("verify", folder, "--trust"))
    assert _is_loaded_here(wreck, lambda: byoc("verify", folder, "--no-isolate"))
    for method in ("import", "compile", "load", "run"):
        wreck(f"{method} segv")
        ran = byoc("verify", folder)
        assert (ran.code, ran.out) == (1, "")
        assert ran.err.startswith("byoc: ")
        assert ran.err.endswith(f"{SEGV} {method}\n")
        assert ran.err.count("\n") == 1


def test_a_fault_is_for_a_codegen_that_may_be_used(
    wreck: Wreck, made: Path, tmp_path: Path, byoc: Callable[..., Ran]
) -> None:
    wreck("no method wrong")
    folder = tmp_path / "fault"
    write_fault(bisect_region(open_bundle(made), "dla_0"), folder)
    ran = byoc("verify", folder, "--codegens", "dla,reference")
    sentence = (
        f"{folder}/fault.json: the fault is for codegen 'wrecker', but only these may be used "
        "(--codegens): dla, reference"
    )
    assert (ran.code, ran.out, ran.err) == (1, "", f"byoc: {sentence}\n")
    wreck("")
    assert byoc("verify", folder, "--codegens", "wrecker").code == 0
