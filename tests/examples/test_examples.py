"""The examples do what they say: packages pass their own tests, scripts print facts and golden text."""

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from installing import install
from support import Ran, region_names

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_script(name: str, *arguments: str | Path) -> None:
    sys.argv = [name, *map(str, arguments)]
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


HAS_ZIGZAG = find_spec("zigzag") is not None


@pytest.mark.parametrize(
    "name",
    [
        "strategy",
        "cost_model",
        "pass",
        pytest.param(
            "cost_model_zigzag", marks=pytest.mark.skipif(not HAS_ZIGZAG, reason="needs ZigZag")
        ),
    ],
)
def test_a_package_passes_its_own_tests(name: str, tmp_path: Path) -> None:
    install(EXAMPLES / name, tmp_path)
    paths = [EXAMPLES / name, tmp_path, EXAMPLES.parent]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLES / name)],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_strategy_is_found_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, byoc: Callable[..., Ran]
) -> None:
    install(EXAMPLES / "strategy", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES / "strategy")
    ran = byoc("partition", "zoo:squeezenet", "--rules", "dla", "--strategy", "split-point")
    assert ran.code == 0, ran.err
    assert "65 of 66 nodes" in ran.out
    assert "predicted 3.59 ms" in ran.out


def test_the_study_prints_its_table(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    golden: Callable[[str, str], None],
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    run_script("study.py", "zoo:squeezenet", "zoo:shufflenet")
    golden("example_study.txt", capsys.readouterr().out)


def test_the_library_is_used_from_model_to_verified_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    folder = tmp_path / "not" / "yet"
    run_script("library.py", folder)
    *printed, verified = capsys.readouterr().out.splitlines()
    (name,) = region_names(folder / "net.byoc")
    assert printed == [
        f"regions: ['{name}']",
        "predicted: 848 us, host alone 1409 us",
        f"nodes: Transpose, {name}, Transpose, Erf, GlobalAveragePool",
        "scores: (1, 32, 1, 1), largest is number 4",
    ]
    assert verified.startswith("verified: True, largest error ")
    assert (folder / "net.byoc" / "manifest.json").is_file()


def test_the_library_example_says_how_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [])
    with pytest.raises(SystemExit, match=r"^usage: python examples/library\.py FOLDER$"):
        run_script("library.py")
