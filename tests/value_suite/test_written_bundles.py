"""The program of written bundles: it counts every model, and finds a planted fault."""

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path[:0] = [str(Path(__file__).parent)]

import written_bundles  # noqa: E402 - needs the path


def count(line: str) -> list[int]:
    return [int(each) for each in line.split("|")[1:]]


def test_what_is_right_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert written_bundles.main(["--rules", "dla", "--ops", "Relu", "--every", "1"]) == 0

    _, row, reason = capsys.readouterr().out.splitlines()
    tried, device, right, host, refused, *faults = count(row)
    assert tried == device + host + refused
    assert device == right == 2  # float32, with and without elements
    assert host
    assert reason == f"  {refused} refused | no kernel of onnxruntime"
    assert faults == [0, 0, 0]


def test_what_is_wrong_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: Path) -> dict[str, Any]:
        return {name: value[:1] for name, value in found(path).items()}

    found = written_bundles.read_npz
    monkeypatch.setattr(written_bundles, "read_npz", read)

    assert written_bundles.main(["--ops", "Exp", "--every", "9"]) == 1
    assert "WRONG on the" in capsys.readouterr().out
