"""Keys on disk: created once, the user's alone, and never a reason to fail."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.cutting import DEVICE_ONLY, cut
from helpers.support import VANILLA, Ran, parse
from helpers.warm_processes import WarmProcesses
from native_codegen import Native

import byoc
from byoc.bundle import judge_trust, open_bundle
from byoc.errors import InputError
from byoc.support.trust import (
    Trust,
    add_trusted_key,
    get_key_file,
    get_trusted_keys_file,
    judge_signature,
    open_or_create_key,
    read_key,
    read_trusted_keys,
    remove_trusted_key,
)

KEY = "cd" * 32
OTHER = "ef" * 32


def _write_garbage(path: Path) -> str:
    path.write_bytes(os.urandom(40))
    return "not a key of byoc"


def _cut_it_short(path: Path) -> str:
    path.write_bytes(path.read_bytes()[:-2])
    return "not a key of byoc"


def _empty_it(path: Path) -> str:
    path.write_bytes(b"")
    return "not a key of byoc"


def _link_it(path: Path) -> str:
    path.symlink_to(path.rename(path.with_name("moved")))
    return "is not used: it is a link"


def _let_others_read(path: Path) -> str:
    path.chmod(0o640)
    return f"is not used: others may read or write it (its mode is 640): chmod 600 {path}"


def _let_others_write(path: Path) -> str:
    path.chmod(0o602)
    return f"is not used: others may read or write it (its mode is 602): chmod 600 {path}"


def _make_a_folder(path: Path) -> str:
    path.unlink()
    path.mkdir()
    return "is not used: it is not a regular file"


def _make_a_pipe(path: Path) -> str:
    path.unlink()
    os.mkfifo(path, 0o600)
    return "is not used: it is not a regular file"


@pytest.mark.parametrize(
    "spoil",
    [
        *(_write_garbage, _cut_it_short, _empty_it, _link_it, _let_others_read, _let_others_write),
        *(_make_a_folder, _make_a_pipe),
    ],
)
def test_a_key_that_is_not_the_users_alone_is_not_used(
    spoil: Callable[[Path], str], native: type[Native], tmp_path: Path
) -> None:
    made = open_or_create_key()
    path = get_key_file()
    reason = spoil(path)

    for ask in (read_key, open_or_create_key):
        with pytest.raises(InputError) as caught:
            ask()
        assert str(caught.value) == f"{path}: {reason}"
        assert made.secret.hex() not in str(caught.value)

    result = cut(parse(DEVICE_ONLY), tmp_path / "b", codegen="native")

    assert result.not_signed == f"the bundle is not signed: {path}: {reason}"
    assert not (tmp_path / "b" / "signature.json").exists()
    assert byoc.load(tmp_path / "b").stages  # this process wrote it


def test_a_spoilt_key_makes_no_bundle_ones_own(bundle: Path) -> None:
    path = get_key_file()
    path.chmod(0o644)
    found = judge_trust(open_bundle(bundle))
    assert not found.trusted
    assert found.reason.startswith(f"it is signed by a key that you do not trust, {found.key}; {path}: ")
    path.chmod(0o600)
    assert judge_trust(open_bundle(bundle)).trusted


def test_where_nothing_can_be_written_a_bundle_is_not_signed(
    native: type[Native],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    become: Callable[[str], Path],
    byoc: Callable[..., Ran],
) -> None:
    (tmp_path / "no folder").write_text("")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "no folder"))
    model = tmp_path / "m.onnx"
    model.write_bytes(parse(DEVICE_ONLY).SerializeToString())
    ran = byoc(
        *("partition", model, "--rules", VANILLA),
        *("--strategy", "all-supported", "--codegen", "native", "-o", tmp_path / "b"),
    )
    assert ran.code == 0
    assert ran.err.startswith("byoc: the bundle is not signed: ")
    run = ("run", tmp_path / "b", "--inputs", "random", "--no-isolate")
    assert byoc(*run).code == 0
    become("maker")  # in another process
    refused = byoc(*run)
    assert (refused.code, native.loaded[1:]) == (1, native.loaded[1:2])
    assert "is native code for codegen native, and not loaded: it is not signed. " in refused.err
    assert byoc(*run, "--trust").code == 0
    assert byoc(*run, "--trust", "--codegens", "dla,reference").code == 1


def test_without_a_home_folder_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_none() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", find_none)
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, "relative/is/ignored")
    assert judge_signature(None, b"") == Trust(False, "it is not signed")
    with pytest.raises(InputError, match="there is no home folder here; set XDG_DATA_HOME"):
        open_or_create_key()


CREATE = "from byoc.support.trust import open_or_create_key; print(open_or_create_key().secret.hex())"


def test_processes_that_create_the_key_at_once_agree(
    tmp_path: Path, warm_processes: WarmProcesses
) -> None:
    started = [
        warm_processes.Popen(
            [sys.executable, "-c", CREATE],
            stdout=subprocess.PIPE,
            env={**os.environ, "XDG_DATA_HOME": str(tmp_path)},
        )
        for _ in range(4)
    ]
    found = [process.communicate(timeout=1200)[0] for process in started]
    assert all(process.returncode == 0 for process in started)
    assert len(set(found)) == 1
    assert [path.name for path in (tmp_path / "byoc").iterdir()] == ["signing_key"]


def test_keys_are_trusted_and_removed(become: Callable[[str], Path]) -> None:
    become("somebody")
    assert read_trusted_keys() == {}
    add_trusted_key(KEY, "Anna's\nlaptop\x1b[2J")
    add_trusted_key(OTHER)
    path = get_trusted_keys_file()
    assert read_trusted_keys() == {KEY: "Anna's laptop\\x1b[2J", OTHER: ""}
    path.write_text(f"# of the group\n\n{path.read_text()}")
    assert list(read_trusted_keys()) == [KEY, OTHER]
    assert (remove_trusted_key(KEY), remove_trusted_key(KEY)) == (True, False)
    assert list(read_trusted_keys()) == [OTHER]


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        (KEY[:-1], 0o600, "line 1: not a key of 64 hex digits"),
        (f"{KEY}\n{KEY.upper()} x", 0o600, "line 2: not a key of 64 hex digits"),
        (KEY, 0o666, "is not used: others may write it (its mode is 666): chmod 644 "),
        ("#" * (1 << 21), 0o600, "is not used: it has more than 1048576 bytes"),
    ],
)
def test_a_list_that_is_wrong_trusts_nobody(
    content: str, mode: int, reason: str, become: Callable[[str], Path]
) -> None:
    become("somebody")
    path = get_trusted_keys_file()
    path.parent.mkdir(parents=True)
    path.write_text(content)
    path.chmod(mode)
    with pytest.raises(InputError) as caught:
        read_trusted_keys()
    assert str(caught.value).startswith(f"{path}: {reason}")


def test_a_list_may_be_a_link(become: Callable[[str], Path], tmp_path: Path) -> None:
    become("somebody")
    path = get_trusted_keys_file()
    path.parent.mkdir(parents=True)
    (tmp_path / "dotfiles").write_text(f"{KEY} x\n")
    path.symlink_to(tmp_path / "dotfiles")
    assert read_trusted_keys() == {KEY: "x"}


def test_the_secret_is_not_shown() -> None:
    assert "secret" not in repr(open_or_create_key())
