"""Samples of the user: files, folders, ONNX test data and arrays, on which a bundle is verified."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import VANILLA, parse
from onnx import numpy_helper

import byoc
from byoc.errors import InputError
from byoc.samples import read_samples

TWO = """
two (float[N, 4] x, float[4] k) => (float[N, 4] y) {
  a = Add(x, k)
  y = Relu(a)
}
"""
ONE = "one (float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }"


def _sample(rows: int, first: float = 0.0) -> dict[str, Any]:
    x = first + np.arange(4 * rows, dtype=np.float32).reshape(rows, 4)
    return {"x": x, "k": np.arange(4, dtype=np.float32)}


def _write_tests(folder: Path) -> Path:
    for number, rows in enumerate((1, 5)):
        inner = folder / f"test_data_set_{number}"
        inner.mkdir()
        for position, array in enumerate(_sample(rows).values()):
            onnx.save_tensor(numpy_helper.from_array(array), inner / f"input_{position}.pb")
    return folder


def _write_archive(folder: Path) -> Path:
    np.savez(folder / "s.npz", **_sample(5))
    return folder / "s.npz"


def _write_archives(folder: Path) -> Path:
    np.savez(folder / "a.npz", **_sample(1))
    np.savez(folder / "b.npz", **_sample(5))
    return folder


@pytest.mark.parametrize(
    ("write", "rows"), [(_write_archive, [5]), (_write_archives, [1, 5]), (_write_tests, [1, 5])]
)
def test_a_bundle_is_verified_on_files(
    tmp_path: Path, write: Callable[[Path], Path], rows: list[int]
) -> None:
    (tmp_path / "data").mkdir()
    given = write(tmp_path / "data")
    found = read_samples(given, byoc.load_model(parse(TWO)))
    assert [sample.inputs["x"].tolist() for sample in found] == [_sample(n)["x"].tolist() for n in rows]
    result = byoc.partition(parse(TWO), VANILLA, output=tmp_path / "out", inputs=given)
    assert result.verification is not None
    assert result.verification.samples == len(rows)
    asked = byoc.open_bundle(tmp_path / "out").manifest.asked
    assert asked["inputs"] == given.name


def test_arrays_in_memory_are_one_sample_or_several(tmp_path: Path) -> None:
    for given, count in ((_sample(2), 1), ([_sample(2), _sample(3, -5.0)], 2)):
        result = byoc.partition(parse(TWO), VANILLA, output=tmp_path / "out", inputs=given)
        assert result.verification is not None
        assert result.verification.samples == count
        assert byoc.open_bundle(tmp_path / "out").manifest.asked["inputs"] == "samples in memory"


def _wrong_name(folder: Path) -> Path:
    np.savez(folder / "s.npz", x=_sample(1)["x"], kk=_sample(1)["k"])
    return folder / "s.npz"


def _wrong_shape(folder: Path) -> Path:
    np.savez(folder / "s.npz", x=np.zeros((2, 5), np.float32), k=_sample(1)["k"])
    return folder / "s.npz"


def _single(folder: Path) -> Path:
    np.save(folder / "s.npy", _sample(1)["x"])
    return folder / "s.npy"


def _too_many(folder: Path) -> Path:
    onnx.save_tensor(numpy_helper.from_array(np.zeros(1, np.float32)), folder / "input_7.pb")
    return folder


def _no_tensor(folder: Path) -> Path:
    (folder / "input_0.pb").write_bytes(b"\xff\xff\xff")
    return folder


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (_wrong_name, "s.npz: the model has no input 'kk'"),
        (_wrong_shape, "s.npz: the input 'x' is float32[2, 5], and the model takes float32[N, 4]"),
        (_single, "s.npy: is one array, and the model has 2 inputs (x, k): expected an .npz file"),
        (_too_many, "input_7.pb: the model has only 2 inputs"),
        (_no_tensor, "input_0.pb: not a tensor of ONNX"),
        (lambda folder: folder / "none.npz", "none.npz: no such file or folder"),
    ],
)
def test_what_does_not_fit_names_file_and_input(
    tmp_path: Path, write: Callable[[Path], Path], reason: str
) -> None:
    given = write(tmp_path)
    with pytest.raises(InputError, match=re.escape(reason)):
        byoc.partition(parse(TWO), VANILLA, output=tmp_path / "out", inputs=given)
    assert not (tmp_path / "out").exists()


def test_one_array_will_do_for_one_input(tmp_path: Path) -> None:
    found = read_samples(_single(tmp_path), byoc.load_model(parse(ONE)))
    assert [sample.inputs["x"].tolist() for sample in found] == [[[0, 1, 2, 3]]]


def test_a_sample_that_onnxruntime_does_not_run_leaves_the_bundle_unverified(tmp_path: Path) -> None:
    model = parse("g (float[N, 4] x, float[M, 4] z) => (float[N, 4] y) { y = Add(x, z) }")
    wrong = {"x": np.zeros((2, 4), np.float32), "z": np.zeros((3, 4), np.float32)}
    result = byoc.partition(
        model, VANILLA, output=tmp_path / "out", inputs=wrong, strategy="all-supported"
    )
    assert result.verification is None
    assert result.report.verification_missing
    assert "sample 1: g: onnxruntime cannot run the model" in (result.report.not_verified or "")
    assert (tmp_path / "out" / "manifest.json").is_file()
