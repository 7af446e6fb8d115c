"""`byoc trust` and what `byoc inspect` says of a maker, as users see them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forging import edit_manifest
from helpers import vendors
from helpers.support import Ran
from native_codegen import Native

import byoc as library
from byoc.codegen import Codegens, Isolation
from byoc.errors import InputError
from byoc.support.trust import read_key

KEY = "cd" * 32


def _own_key() -> str:
    found = read_key()
    assert found is not None
    return found.public


def _listed(byoc: Callable[..., Ran]) -> dict[str, str]:
    return {row["key"]: row["name"] for row in json.loads(byoc("trust", "--format", "json").out)}


def test_a_maker_is_trusted_and_forgotten(
    bundle: Path, native: type[Native], become: Callable[[str], Path], byoc: Callable[..., Ran]
) -> None:
    key = _own_key()
    become("stranger")
    run = ("run", bundle, "--inputs", "random", "--no-isolate")
    refused = byoc(*run)
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.endswith("give --trust (in Python trust=True), or run byoc trust on it once\n")
    assert byoc(*run, "--trust").code == 0
    assert byoc("verify", bundle, "--no-isolate").code == 1
    assert byoc("verify", bundle, "--trust").code == 0
    assert byoc("compare-costs", bundle, "--no-isolate").code == 1
    assert byoc(*run).code == 1  # --trust is for one time

    told = byoc("trust", bundle).out
    assert told == f"Trusted from now on: {key}. Native code in bundles that it signed runs here\n"
    assert _listed(byoc) == {key: "b"}
    assert byoc(*run).code == 0

    assert byoc("trust", "--remove", bundle).out == f"Not trusted any more: {key}\n"
    assert byoc(*run).code == 1
    assert byoc("trust", key, "--name", "the maker").code == 0
    assert _listed(byoc) == {key: "the maker"}
    assert byoc(*run).code == 0


def test_the_key_of_this_machine_is_listed_and_stays(bundle: Path, byoc: Callable[..., Ran]) -> None:
    own = _own_key()
    assert _listed(byoc) == {own: "this machine"}
    assert "this machine" in byoc("trust").out
    assert byoc("trust", bundle).out == f"{own} is the key of this machine, which is always trusted\n"
    assert _listed(byoc) == {own: "this machine"}
    ran = byoc("trust", own, "--remove")
    assert ran.err == (
        f"byoc: {own} is the key of this machine: remove its file if it is not to be used\n"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("trust", KEY, "--remove"), f"{KEY} is not among the keys that you trust (byoc trust lists"),
        (("trust", KEY.upper()), f"{KEY.upper()}: no such bundle"),
        (("trust", "nothing.byoc"), "nothing.byoc: no such bundle"),
        (("trust", "0" * 64), f"{'0' * 64}: not a key that can sign anything: no maker has it"),
    ],
)
def test_what_is_not_there(
    arguments: tuple[str, ...], sentence: str, native: type[Native], byoc: Callable[..., Ran]
) -> None:
    ran = byoc(*arguments)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"byoc: {sentence}")
    assert byoc("trust", "--remove").code == 2
    assert byoc("trust", "--name", "x").code == 2


def test_a_bundle_without_a_valid_signature_has_no_key(bundle: Path, byoc: Callable[..., Ran]) -> None:
    edit_manifest(bundle, lambda manifest: manifest["versions"].update(byoc="9"))
    changed = byoc("trust", bundle)
    (bundle / "signature.json").unlink()
    bare = byoc("trust", bundle)
    assert (changed.code, bare.code) == (1, 1)
    assert changed.err == (
        f"byoc: {bundle}: there is no key to trust: its signature is of another manifest: this one was "
        "changed after it was signed\n"
    )
    assert bare.err == f"byoc: {bundle}: there is no key to trust: it is not signed\n"


def _inspected(byoc: Callable[..., Ran], bundle: Path) -> tuple[str, str]:
    told = byoc("inspect", bundle).out.splitlines()
    lines = dict(line.split(":", 1) for line in told if ":" in line)
    return lines["signed by"].strip(), lines["trusted"].strip()


def test_inspect_says_who_signed_and_whether_that_counts(
    bundle: Path, become: Callable[[str], Path], byoc: Callable[..., Ran]
) -> None:
    key = _own_key()
    assert _inspected(byoc, bundle) == (key, "yes, it was made here")
    shown = json.loads(byoc("inspect", bundle, "--format", "json").out)
    assert shown["trust"] == {"trusted": True, "reason": "it was made here", "key": key}
    assert library.inspect(bundle) == shown
    become("stranger")
    reason = f"it is signed by a key that you do not trust, {key}"
    assert _inspected(byoc, bundle) == (key, f"no, {reason}")
    edit_manifest(bundle, lambda manifest: manifest["versions"].update(byoc="9"))
    changed = "no, its signature is of another manifest: this one was changed after it was signed"
    assert _inspected(byoc, bundle) == ("nobody", changed)
    (bundle / "signature.json").unlink()
    assert _inspected(byoc, bundle) == ("nobody", "no, it is not signed")


@pytest.mark.parametrize("form", ["text", "json"])
def test_inspect_does_not_show_a_contract_that_was_changed(
    form: str, bundle: Path, byoc: Callable[..., Ran]
) -> None:
    def change(manifest: dict[str, list[dict[str, list[dict[str, object]]]]]) -> None:
        manifest["variants"][0]["regions"][0]["inputs"][0] |= {"scale": [0.5], "zero_point": [0]}

    edit_manifest(bundle, change)
    ran = byoc("inspect", bundle, "--format", form)
    sentence = f"{bundle}/manifest.json: regions: dla_0: 'x' is not as the region's model has it"
    assert (ran.code, ran.out, ran.err) == (1, "", f"byoc: {sentence}\n")
    with pytest.raises(InputError, match="is not as the region's model has it"):
        library.inspect(bundle)


def test_a_codegen_is_shown_as_native(
    native: type[Native], byoc: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.forbid_processes(monkeypatch)
    assert json.loads(byoc("codegens", "native", "--format", "json").out)["native"] is True
    assert json.loads(byoc("codegens", "dla", "--format", "json").out)["native"] is False
    assert "native: yes, it executes what is in a bundle" in byoc("codegens", "native").out
    natives = {
        name: json.loads(byoc("codegens", name, "--format", "json").out)["native"]
        for name in ("c", "dla", "iree", "openvino", "ort_ep", "qnn", "reference", "rknn", "tvm")
    }
    assert natives == {
        "c": True,
        "dla": False,
        "iree": True,
        "openvino": True,
        "ort_ep": True,
        "qnn": True,
        "reference": False,
        "rknn": True,
        "tvm": True,
    }


def test_a_codegen_in_a_process_of_its_own_is_native_too() -> None:
    codegens = Codegens(Isolation())
    found: dict[str, Any] = {name: codegens.find(name) for name in ("c", "dla")}
    assert (found["c"].native, found["dla"].native) == (True, False)
    codegens.close()
