"""A bundle is there whole or not at all, and nothing but a bundle is ever replaced."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import vendors
from helpers.cutting import CHAIN, DEVICE_ONLY, UNLIKE, cut, files, ramp, same_as_original
from helpers.support import VANILLA, Ran, parse

from byoc.codegen import Artifact, Region
from byoc.errors import InputError


def test_a_bundle_is_replaced_whole(tmp_path: Path) -> None:
    cut(parse(CHAIN), tmp_path / "b")
    cut(parse(DEVICE_ONLY), tmp_path / "b")
    found = files(tmp_path / "b").keys() - {"signature.json"}
    assert sorted(found) == [
        *("decisions.json.gz", "dla_0.onnx", "manifest.json", "model.onnx", "weights.bin")
    ]
    same_as_original(parse(DEVICE_ONLY), tmp_path / "b", {"x": ramp(1, 4)})
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


@pytest.mark.parametrize("name", ["notes.txt", "artifacts/notes.txt"])
def test_what_a_user_put_into_a_bundle_is_not_lost(name: str, tmp_path: Path) -> None:
    cut(parse(CHAIN), tmp_path / "b")
    (tmp_path / "b" / name).parent.mkdir(exist_ok=True)
    (tmp_path / "b" / name).write_text("mine")
    with pytest.raises(InputError, match=rf"b: is a bundle, but '{name}' is not part of it"):
        cut(parse(DEVICE_ONLY), tmp_path / "b")
    assert (tmp_path / "b" / name).read_text() == "mine"


def test_from_inside_the_bundle_that_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(parse(CHAIN), tmp_path / "b")
    monkeypatch.chdir(tmp_path / "b")
    cut(parse(DEVICE_ONLY), Path("../b"))
    same_as_original(parse(DEVICE_ONLY), tmp_path / "b", {"x": ramp(1, 4)})
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_link_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "b").symlink_to("nowhere")
    with pytest.raises(InputError, match="b: cannot be written: it is a link to nothing"):
        cut(parse(CHAIN), tmp_path / "b")
    (tmp_path / "c").symlink_to("c")
    with pytest.raises(InputError, match="c: cannot be written: it is a link to itself"):
        cut(parse(CHAIN), tmp_path / "c")


def test_the_longest_name_there_is(tmp_path: Path) -> None:
    cut(parse(CHAIN), tmp_path / ("n" * 255))
    same_as_original(parse(CHAIN), tmp_path / ("n" * 255), {"x": ramp(1, 4)})
    with pytest.raises(InputError, match="cannot be written: File name too long"):
        cut(parse(CHAIN), tmp_path / ("n" * 256))


def test_a_bundle_of_another_format_is_replaced(tmp_path: Path) -> None:
    cut(parse(CHAIN), tmp_path / "b")
    manifest = json.loads((tmp_path / "b/manifest.json").read_text())
    (tmp_path / "b/manifest.json").write_text(json.dumps(manifest | {"format": 7}))
    cut(parse(CHAIN), tmp_path / "b")
    assert json.loads((tmp_path / "b/manifest.json").read_text())["format"] == 4


def test_a_link_to_a_bundle_is_followed(tmp_path: Path) -> None:
    cut(parse(CHAIN), tmp_path / "real")
    (tmp_path / "b").symlink_to("real")
    cut(parse(DEVICE_ONLY), tmp_path / "b")
    assert (tmp_path / "b").is_symlink()
    same_as_original(parse(DEVICE_ONLY), tmp_path / "real", {"x": ramp(1, 4)})


def _empty(path: Path) -> None:
    path.mkdir()


def _photos(path: Path) -> None:
    path.mkdir()
    (path / "photo.jpg").write_bytes(b"jpg")


def _file(path: Path) -> None:
    path.write_text("a diary")


def _web_page(path: Path) -> None:
    path.mkdir()
    (path / "manifest.json").write_text('{"name": "a browser extension", "version": "1.0"}')
    (path / "years_of_work.js").write_text("...")


def _not_json(path: Path) -> None:
    path.mkdir()
    (path / "manifest.json").write_text("a list of passengers")


def _list(path: Path) -> None:
    path.mkdir()
    (path / "manifest.json").write_text("[]")


@pytest.mark.parametrize("there", [_empty, _photos, _file, _web_page, _not_json, _list])
def test_what_is_no_bundle_is_left_alone(
    there: Callable[[Path], None], tmp_path: Path, byoc: Callable[..., Ran]
) -> None:
    there(tmp_path / "b")
    before = files(tmp_path)
    ran = byoc("partition", "zoo:squeezenet", "--rules", VANILLA, "-o", tmp_path / "b")
    assert ran.code == 1
    assert ran.err == f"byoc: {tmp_path / 'b'}: exists and is not a bundle, so it is not replaced\n"
    assert ran.out == ""
    assert files(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def _raises(error: BaseException) -> Any:
    def compile_(region: Region) -> Artifact:
        if region.name == "dla_1":
            raise error
        return Artifact({"code.bin": b"1"})

    return vendors.compiles(compile_)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("half way"), InputError),
        (OSError(28, "No space left on device"), InputError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (SystemExit(5), InputError),
        (SystemExit(128 + 15), SystemExit),
    ],
)
@pytest.mark.parametrize("existing", [False, True])
def test_a_failure_half_way_leaves_everything_as_it_was(
    existing: bool,
    error: BaseException,
    told: type[BaseException],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if existing:
        cut(parse(DEVICE_ONLY), tmp_path / "b")
    before, names = files(tmp_path), list(tmp_path.iterdir())
    vendors.install(monkeypatch, odd=_raises(error))
    with pytest.raises(told):
        cut(parse(UNLIKE), tmp_path / "b", codegen="odd")
    assert files(tmp_path) == before
    assert list(tmp_path.iterdir()) == names


def test_the_command_line_stops_at_an_interrupt_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, byoc: Callable[..., Ran]
) -> None:
    vendors.install(monkeypatch, odd=vendors.compiles(lambda region: _interrupt()))
    ran = byoc(
        "partition", "zoo:squeezenet", "--rules", VANILLA, "--codegen", "odd", "-o", tmp_path / "b"
    )
    assert (ran.code, ran.out) == (130, "")
    assert "Traceback" not in ran.err
    assert list(tmp_path.iterdir()) == []


def _interrupt() -> Artifact:
    raise KeyboardInterrupt


def test_a_failed_verification_keeps_the_old_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(parse(DEVICE_ONLY), tmp_path / "b")
    before = files(tmp_path)
    vendors.install(monkeypatch, odd=vendors.gives(lambda inputs, name: {name: inputs["x"]}))
    with pytest.raises(InputError, match="verification failed"):
        cut(parse("g (float[1, 4] x) => (float[1, 4] y) { y = Relu(x) }"), tmp_path / "b", codegen="odd")
    assert files(tmp_path) == before


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyboardInterrupt()])
@pytest.mark.parametrize("in_one_step", [True, False])
def test_a_swap_that_fails_brings_the_old_bundle_back(
    in_one_step: bool, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(parse(CHAIN), tmp_path / "b")
    before, rename = files(tmp_path), Path.rename

    def exchange(one: Path, other: Path) -> bool:
        assert (one / "manifest.json").is_file()
        assert other == tmp_path / "b"
        if in_one_step:
            raise error
        return False

    def rename_old_only(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise error
        return rename(self, target)

    monkeypatch.setattr("byoc.support._workspace._exchange_folders", exchange)
    monkeypatch.setattr(Path, "rename", rename_old_only)
    with pytest.raises((InputError, KeyboardInterrupt)) as caught:
        cut(parse(DEVICE_ONLY), tmp_path / "b")
    if isinstance(error, OSError):
        assert str(caught.value) == f"{tmp_path / 'b'}: cannot be written: Input/output error"
    assert files(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("no/such/b", "{0}/no/such/b: cannot be written: there is no folder '{0}/no/such'"),
        ("file/b", "{0}/file/b: cannot be written: '{0}/file' is a file, no folder"),
    ],
)
def test_a_place_that_cannot_be_written(place: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError) as caught:
        cut("zoo:squeezenet", tmp_path / place)
    assert str(caught.value) == sentence.format(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_destination_is_checked_before_the_model_is_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        cut(tmp_path / "no.onnx", tmp_path / "no" / "b")


def test_planning_alone_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = cut(parse(CHAIN))
    assert result.bundle is None
    assert list(tmp_path.iterdir()) == []
