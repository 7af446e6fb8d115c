"""Native code runs where its maker is trusted, and nowhere else; whatever is done to a signature."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forging import add_file, edit_manifest
from helpers.cutting import CHAIN, DEVICE_ONLY, cut, files, ramp
from helpers.support import parse
from hypothesis import given
from hypothesis import strategies as st
from native_codegen import Native

import byoc
from byoc.bundle import Consent, judge_trust, open_bundle, pack_folder
from byoc.errors import InputError
from byoc.support.trust import (
    add_trusted_key,
    can_sign,
    derive_public_key,
    get_key_file,
    is_signature,
    read_key,
    read_trusted_keys,
)
from byoc.verification import verify_against

Become = Callable[[str], Path]


def _runs(bundle: Path, **consent: Any) -> None:
    found = byoc.load(bundle, **consent)({"x": ramp(1, 4)})
    np.testing.assert_array_equal(found["y"], np.maximum(2 * ramp(1, 4), 0))


def _refusal(bundle: Path, native: type[Native]) -> str:
    """Return why native code is not loaded, by everything that would load it.

    Without worker processes, which do not find this codegen.
    """
    before = list(native.loaded)
    with pytest.raises(InputError) as caught:
        byoc.load(bundle, isolate=False)
    with pytest.raises(InputError) as again:
        verify_against(open_bundle(bundle, None))
    with pytest.raises(InputError) as bisected:
        byoc.bisect(bundle, "dla_0", isolate=False)
    assert str(again.value) == str(bisected.value) == str(caught.value)
    assert native.loaded == before
    start, _, reason = str(caught.value).partition(", and not loaded: ")
    assert start == f"{bundle}: region dla_0 is native code for codegen native"
    return reason.partition(". If you trust its maker, ")[0]


def test_what_was_made_here_runs_without_a_word(bundle: Path) -> None:
    _runs(bundle)
    assert judge_trust(open_bundle(bundle)).reason == "it was made here"
    assert get_key_file().stat().st_mode & 0o777 == 0o600
    assert get_key_file().parent.stat().st_mode & 0o777 == 0o700


def test_a_stranger_does_not_run_it_unless_told_to(
    bundle: Path, native: type[Native], become: Become
) -> None:
    key = judge_trust(open_bundle(bundle)).key
    become("stranger")
    reason = f"it is signed by a key that you do not trust, {key}"
    assert _refusal(bundle, native) == reason
    assert judge_trust(open_bundle(bundle)) == judge_trust(open_bundle(bundle, codegens=["native"]))
    assert not judge_trust(open_bundle(bundle)).trusted
    _runs(bundle, trust=True)
    assert verify_against(open_bundle(bundle, trust=True)).passed
    assert judge_trust(open_bundle(bundle, trust=True)).trusted
    assert not get_key_file().exists()  # reading needs no key

    add_trusted_key(key, "the maker")

    _runs(bundle)
    trusted = judge_trust(open_bundle(bundle)).reason
    assert trusted == f"it is signed by a key that you trust, {key} (the maker)"


def test_a_packed_bundle_keeps_its_signature(
    bundle: Path, native: type[Native], become: Become, tmp_path: Path
) -> None:
    packed = tmp_path / "b.zip"
    pack_folder(bundle, open_bundle(bundle).manifest.files, packed)
    cut(parse(DEVICE_ONLY), tmp_path / "c.zip", codegen="native")
    assert packed.read_bytes() == (tmp_path / "c.zip").read_bytes()
    _runs(packed)
    become("stranger")
    assert _refusal(packed, native).startswith("it is signed by a key that you do not trust")


def test_the_signature_is_all_that_depends_on_the_machine(
    bundle: Path, native: type[Native], become: Become, tmp_path: Path
) -> None:
    for name in ("again", "other", "bare"):
        if name == "other":
            become("other")
        cut(parse(DEVICE_ONLY), tmp_path / name, codegen="native", sign=name != "bare")
    first, again, other, bare = (files(tmp_path / name) for name in ("b", "again", "other", "bare"))
    assert first == again
    assert first.pop("signature.json") != other.pop("signature.json")
    assert first == other == bare
    become("stranger")
    assert _refusal(tmp_path / "bare", native) == "it is not signed"


def _edit_the_report(bundle: Path) -> None:
    edit_manifest(bundle, lambda manifest: manifest["versions"].update(byoc="0.0.0"))


def _swap_the_artifact(bundle: Path) -> None:
    add_file(bundle, "artifacts/dla_0/code.json", b'[["Relu", ["x"], ["y"]]]')


def _point_to_another_file(bundle: Path) -> None:
    add_file(bundle, "artifacts/dla_0/other.json", b'[["Relu", ["x"], ["y"]]]')

    def change(manifest: Any) -> None:
        manifest["variants"][0]["regions"][0]["artifact_files"]["code.json"] = (
            "artifacts/dla_0/other.json"
        )

    edit_manifest(bundle, change)


def _add_a_space(bundle: Path) -> None:
    with (bundle / "manifest.json").open("ab") as file:
        file.write(b" ")


@pytest.mark.parametrize(
    "change", [_edit_the_report, _swap_the_artifact, _point_to_another_file, _add_a_space]
)
def test_a_manifest_that_was_changed_is_not_the_makers(
    change: Callable[[Path], None], bundle: Path, native: type[Native]
) -> None:
    change(bundle)
    assert _refusal(bundle, native) == (
        "its signature is of another manifest: this one was changed after it was signed"
    )


def test_an_artifact_that_was_swapped_behind_the_manifest(bundle: Path, native: type[Native]) -> None:
    (bundle / "artifacts" / "dla_0" / "code.json").write_bytes(b"[]")
    with pytest.raises(InputError, match=r"'artifacts/dla_0/code\.json' is not as it was written"):
        byoc.load(bundle, trust=True)
    assert native.loaded == []


def test_the_signature_of_another_bundle(bundle: Path, native: type[Native], tmp_path: Path) -> None:
    cut(parse(CHAIN), tmp_path / "other", codegen="native")
    shutil.copy(tmp_path / "other" / "signature.json", bundle)
    assert _refusal(bundle, native).startswith("its signature is of another manifest")


def test_the_signature_of_another_key_over_the_same_bundle(
    bundle: Path, native: type[Native], become: Become, tmp_path: Path
) -> None:
    become("other")
    cut(parse(DEVICE_ONLY), tmp_path / "other", codegen="native")
    own = json.loads((bundle / "signature.json").read_text())
    other = json.loads((tmp_path / "other" / "signature.json").read_text())
    mixed = {**other, "key": own["key"]}
    (bundle / "signature.json").write_text(json.dumps(mixed, indent=1, sort_keys=True) + "\n")
    become("maker")
    assert _refusal(bundle, native).startswith("its signature is of another manifest")


def _change_signature(content: bytes, what: str) -> bytes:
    text = content.decode()
    return {
        "truncated": content[:100],
        "empty": b"",
        "garbage": b"\xff\xfe\x00",
        "no object": b"[]",
        "deep": b"[" * 4000,
        "a space more": content + b" ",
        "large": content + b" " * 100_000,
        "a key twice": text.replace('"format": 1,', '"format": 1, "format": 1,').encode(),
        "large letters": text.replace(json.loads(text)["key"], json.loads(text)["key"].upper()).encode(),
        "another algorithm": text.replace("ed25519", "none").encode(),
        "another format": text.replace('"format": 1', '"format": 2').encode(),
        "short": text.replace(json.loads(text)["signature"], "00" * 63).encode(),
    }[what]


@pytest.mark.parametrize(
    "what",
    [
        *("truncated", "empty", "garbage", "no object", "deep", "a space more", "large"),
        *("a key twice", "large letters", "another algorithm", "another format", "short"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_what_is_no_signature(
    what: str, packed: bool, bundle: Path, native: type[Native], tmp_path: Path
) -> None:
    path = bundle / "signature.json"
    content = _change_signature(path.read_bytes(), what)
    assert content != path.read_bytes()
    path.write_bytes(content)
    if packed:
        pack_folder(bundle, open_bundle(bundle).manifest.files, tmp_path / "b.zip")
        bundle = tmp_path / "b.zip"
    assert _refusal(bundle, native) == "its signature.json is not a signature"


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_a_signature_that_is_no_file(kind: str, bundle: Path, native: type[Native]) -> None:
    path = bundle / "signature.json"
    moved = path.rename(bundle.parent / "moved.json")
    if kind == "link":
        path.symlink_to(moved)
    else:
        path.mkdir()
    assert _refusal(bundle, native) == "its signature.json is not a signature"


def test_a_signature_made_of_zeros_signs_nothing(bundle: Path, native: type[Native]) -> None:
    text = (bundle / "signature.json").read_text()
    entry = json.loads(text)
    forged = {**entry, "key": "0" * 64, "signature": "0" * 128}
    (bundle / "signature.json").write_text(json.dumps(forged, indent=1, sort_keys=True) + "\n")
    assert _refusal(bundle, native).startswith("its signature is of another manifest")


def test_keys_of_small_order_sign_nothing() -> None:
    """For a quarter of all messages the equation holds for the key 0 and the signature 0.

    Of edwards25519 `eighth` is the y of points of order 8, a root of d y^4 + 2 y^2 - 1.
    """
    prime = (1 << 255) - 19
    eighth = 0x5FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
    curve = -121665 * pow(121666, -1, prime)
    assert (curve * eighth**4 + 2 * eighth**2 - 1) % prime == 0
    for y in (0, 1, prime - 1, eighth, prime - eighth, prime, prime + 1):
        for sign in (0, 1 << 255):
            key = (y + sign).to_bytes(32, "little")
            assert not can_sign(key)
            for message in range(16):
                for signature in (bytes(64), key + bytes(32), (1).to_bytes(64, "little")):
                    assert not is_signature(key, signature, bytes([message]))


@given(st.binary(min_size=32, max_size=32))
def test_keys_of_makers_can_sign(secret: bytes) -> None:
    assert can_sign(derive_public_key(secret))


def test_what_is_no_point_can_sign_nothing() -> None:
    """Roots as in RFC 8032, 5.1.3: x = (u / v)^((p + 3) / 8), or that times a root of -1."""
    prime = (1 << 255) - 19
    curve = -121665 * pow(121666, -1, prime)
    found = []
    for y in range(2, 100):
        u, v = y * y - 1, curve * y * y + 1
        x = u * v**3 * pow(u * v**7, (prime - 5) // 8, prime) % prime
        is_point = v * x * x % prime in {u % prime, -u % prime}
        assert can_sign(y.to_bytes(32, "little")) == is_point
        found.append(is_point)
    assert {*found} == {False, True}


def test_a_manifest_that_lists_its_own_signature(bundle: Path) -> None:
    add_file(bundle, "signature.json", b"")
    with pytest.raises(InputError, match=r"the file 'signature\.json' is the signature"):
        open_bundle(bundle, trust=True)


def test_the_codegens_that_may_be_used(bundle: Path, native: type[Native]) -> None:
    with pytest.raises(InputError) as caught:
        byoc.load(bundle, trust=True, codegens=["dla", "reference"])
    assert str(caught.value) == (
        f"{bundle}: region dla_0 is for codegen 'native', but only these may be used (--codegens): "
        "dla, reference"
    )
    assert native.loaded == []
    _runs(bundle, codegens="dla, native")
    assert Consent.of(codegens=()).codegens == frozenset()
    with pytest.raises(InputError, match="codegens: a name is missing at a comma"):
        byoc.load(bundle, codegens="dla,,native")


def test_a_bundle_that_replaces_another_takes_its_signature_along(
    bundle: Path, native: type[Native], become: Become
) -> None:
    become("other")
    cut(parse(CHAIN), bundle, codegen="native")
    assert judge_trust(open_bundle(bundle)).reason == "it was made here"
    cut(parse(CHAIN), bundle, codegen="native", sign=False)
    assert not (bundle / "signature.json").exists()
    assert read_key() is not None
    assert read_trusted_keys() == {}
