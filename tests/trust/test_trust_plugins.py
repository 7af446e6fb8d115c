"""Plug-ins are found where packages are installed, and never in the folder that byoc is called in."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from helpers.support import Ran, parse
from input_box import MODEL, add_decoys

MARK = "open('ran', 'w').close()\n"
PARTITION = "byoc.partition('zoo:squeezenet', rules='dla', strategy='odd')"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of a stranger's: a distribution with a strategy, and modules with names of libraries."""
    information = tmp_path / "odd-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[byoc.strategies]\nodd = odd:Odd\n")
    for name in ("odd", "yaml", "numpy"):
        (tmp_path / f"{name}.py").write_text(MARK)
    return tmp_path


def call(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_finds_none_in_the_working_directory(folder: Path) -> None:
    words = ["partition", "zoo:squeezenet", "--rules", "dla", "--strategy", "odd"]

    ran = call(folder, "-m", "byoc", *words)

    assert (ran.returncode, "odd: no such strategy" in ran.stderr) == (1, True)
    assert not (folder / "ran").exists()


def test_an_interactive_python_finds_none_there(folder: Path) -> None:
    for name in ("yaml", "numpy"):
        (folder / f"{name}.py").unlink()  # which any import of Python's would find

    ran = call(folder, "-c", f"import byoc; {PARTITION}")

    assert "odd: no such strategy" in ran.stderr
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("library", "rules"),
    [("iree", "iree-cpu"), ("openvino", "openvino-cpu"), ("tvm", "tvm-cpu")],
)
def test_the_processes_of_a_codegen_import_nothing_from_there(
    library: str,
    rules: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    byoc: Callable[..., Ran],
) -> None:
    pytest.importorskip(library)
    onnx.save(parse(MODEL), tmp_path / "model.onnx")
    (tmp_path / "cwd").mkdir()
    add_decoys(tmp_path / "cwd", tmp_path / "mark")
    monkeypatch.chdir(tmp_path / "cwd")

    ran = byoc("rules", "ask", rules, tmp_path / "model.onnx")

    assert ran.code == 0, ran
    assert not (tmp_path / "mark").exists()
