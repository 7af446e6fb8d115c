"""Names that not every system can hold, or holds as one: never written, and refused when read."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from helpers import vendors
from helpers.cutting import CHAIN, cut
from helpers.support import VANILLA, parse
from hypothesis import given
from hypothesis import strategies as st

from byoc.bundle import open_bundle
from byoc.codegen import Artifact, CompileError, find_same_paths, is_plain_name, quote_name
from byoc.errors import InputError
from byoc.pipeline import partition

SAME = [
    ("A", "a"),
    ("a/x", "A/y"),
    ("\xe9", "e\u0301"),
    ("\u212b", "\xc5"),
    ("stra\xdfe", "STRASSE"),
    ("a", "a/b"),
    ("a/b", "a"),
    ("x/a/b", "x/a"),
    ("\u039c\u03ac\u03b9\u03bf\u03c2", "\u039c\u0386\u0399\u039f\u03a3"),
]


@pytest.mark.parametrize("both", SAME)
def test_paths_that_some_systems_take_for_one(both: tuple[str, str]) -> None:
    assert find_same_paths(["other", *both, "last"]) == both
    assert find_same_paths(["one", "other"]) is None


@pytest.mark.parametrize(
    "paths", [["a/b", "a/c", "b/b"], ["a", "b", "ab"], ["a/b/c", "a/c/b"], ["\xe9", "e"], []]
)
def test_paths_that_are_apart(paths: list[str]) -> None:
    assert find_same_paths(paths) is None


@given(st.lists(st.text("abAB\xe9\u0301/", min_size=1, max_size=5), unique=True, max_size=6))
def test_two_paths_are_found_if_any_two_are_the_same(names: list[str]) -> None:
    """What is found in one pass is what comparing each with each finds."""
    paths = [name for name in names if all(name.split("/"))]
    pairs = [
        (one, other)
        for number, other in enumerate(paths)
        for one in paths[:number]
        if find_same_paths([one, other]) is not None
    ]
    found = find_same_paths(paths)
    assert (found is None) == (not pairs)
    assert found is None or found in pairs


def _edit(bundle: Path, change: Callable[[dict[str, dict[str, object]]], object]) -> None:
    path = bundle / "manifest.json"
    content = json.loads(path.read_text("utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize("both", SAME)
@pytest.mark.parametrize("packed", [False, True])
def test_a_bundle_with_such_files_is_refused(
    both: tuple[str, str], packed: bool, tmp_path: Path, cut_once: Callable[..., Path]
) -> None:
    cut_once(CHAIN, tmp_path / "b", verify=False)
    entry = {"sha256": "0" * 64, "bytes": 0}
    _edit(tmp_path / "b", lambda content: content["files"].update(dict.fromkeys(both, entry)))
    manifest = tmp_path / "b/manifest.json"
    if packed:
        import zipfile  # noqa: PLC0415

        with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
            archive.write(manifest, "manifest.json")
        manifest = tmp_path / "b.zip/manifest.json"
    with pytest.raises(InputError) as caught:
        open_bundle(manifest.parent)
    shown = " and ".join(map(quote_name, both))
    assert str(caught.value) == f"{manifest}: the files {shown} cannot be two files on every system"


def test_regions_whose_names_differ_in_case_only(tmp_path: Path, cut_once: Callable[..., Path]) -> None:
    cut_once(CHAIN, tmp_path / "b", verify=False)
    _edit(tmp_path / "b", lambda content: content["variants"][0]["regions"][1].update(name="DLA_0"))  # type: ignore[index]
    with pytest.raises(InputError, match="the regions 'dla_0' and 'DLA_0' cannot be two files on"):
        open_bundle(tmp_path / "b")


@pytest.mark.parametrize("name", ["manife\u017ft.json", "MANIFEST.json"])
def test_no_file_is_the_manifest_in_another_spelling(
    name: str, tmp_path: Path, cut_once: Callable[..., Path]
) -> None:
    cut_once(CHAIN, tmp_path / "b", verify=False)
    entry = {"sha256": "0" * 64, "bytes": 0}
    _edit(tmp_path / "b", lambda content: content["files"].update({name: entry}))
    with pytest.raises(InputError, match=f"the file '{name}' is the manifest itself"):
        open_bundle(tmp_path / "b")


def _install(monkeypatch: pytest.MonkeyPatch, names: Sequence[str]) -> None:
    artifact = Artifact(dict.fromkeys(names, b"1"))
    vendors.install(monkeypatch, odd=vendors.compiles(lambda region: artifact))


@pytest.mark.parametrize("both", [("A", "a"), ("\xe9", "e\u0301")])
def test_an_artifact_with_such_files_is_refused(
    both: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install(monkeypatch, both)
    shown = " and ".join(map(quote_name, both))
    with pytest.raises(CompileError) as caught:
        cut(parse(CHAIN), tmp_path / "b", codegen="odd", verify=False)
    assert f"the files {shown} are one on some systems" in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["COM\xb9", "lpt\xb2.bin", "CONIN$", "conout$.txt", "a\u200f", "\u202eexe.a", "a.", "a ", "com0"],
)
def test_an_artifact_with_a_name_that_windows_cannot_hold_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_plain_name(name)
    _install(monkeypatch, [name])
    with pytest.raises(CompileError, match="is not a plain file name for an artifact"):
        cut(parse(CHAIN), tmp_path / "b", codegen="odd", verify=False)
    assert not (tmp_path / "b").exists()


def test_targets_whose_names_differ_in_case_only(tmp_path: Path) -> None:
    """Their regions would be written to one file: `dla_0.onnx` and `DLA_0.onnx`."""
    other = tmp_path / "other.yaml"
    other.write_text(VANILLA.read_text("utf-8").replace("target: dla", "target: DLA"), encoding="utf-8")
    with pytest.raises(InputError, match=r"other\.yaml: its target is called DLA, as that of .*vanilla"):
        partition(parse(CHAIN), [VANILLA, other])
