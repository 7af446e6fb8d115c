"""Calibrations that were interrupted go on, to the same result; and memory holds one sample."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np
import pytest
from helpers.calibrating import METHODS, inputs, network
from helpers.support import sample_cases

from byoc.errors import InputError
from byoc.model import Model, prepare_model
from byoc.quantization import calibrate


class Killed(BaseException):
    """As an interrupt: nothing that byoc catches."""


@pytest.fixture(autouse=True)
def few_bins_saved_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("byoc.quantization._calibrators.BINS", 256)
    monkeypatch.setattr("byoc.quantization._calibrate.BINS", 256)
    monkeypatch.setattr("byoc.quantization._calibrate._SAVE_SAMPLES", 3)
    monkeypatch.setattr("byoc.quantization._calibrate._MAX_BYTES", 2500)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for i, sample in enumerate(inputs(8)):
        np.save(folder / f"{i}.npy", sample["x"])
    return folder


def killed_at(step: int) -> Any:
    steps = []

    def show(told: str) -> None:
        steps.append(told)
        if len(steps) == step:
            raise Killed

    return show


@pytest.mark.parametrize(
    ("step", "method"), sample_cases([*product((2, 5, 8, 12, 21, 33), METHODS)], every=3)
)
def test_an_interrupted_run_goes_on_to_the_same(
    net: Model, data: Path, tmp_path: Path, method: str, step: int
) -> None:
    whole = calibrate(net, data, tmp_path / "whole.yaml", method=method)
    output, partial = tmp_path / "c.yaml", tmp_path / "c.yaml.partial"
    every: list[str] = []
    calibrate(net, data, method=method, progress=every.append)
    step = min(step, len(every))  # min-max takes fewer
    with pytest.raises(Killed):
        calibrate(net, data, output, method=method, progress=killed_at(step))
    assert not output.exists()
    assert partial.exists() == (step > 3)
    rest: list[str] = []
    assert calibrate(net, data, output, method=method, progress=rest.append) == whole
    assert output.read_text() == (tmp_path / "whole.yaml").read_text()
    assert not partial.exists()
    # What was saved is not done again: at most the last two samples are.
    again = [told for told in rest if "sample" in told]
    assert len(again) <= len([told for told in every[step - 1 :] if "sample" in told]) + 2
    assert rest == every[-len(rest) :]


def stopped(net: Model, data: Path, output: Path, **options: Any) -> None:
    with pytest.raises(Killed):
        calibrate(net, data, output, progress=killed_at(6), **options)


def test_a_state_of_something_else_is_refused(net: Model, data: Path, tmp_path: Path) -> None:
    output = tmp_path / "c.yaml"
    stopped(net, data, output)
    other = network()
    other.graph.initializer[0].raw_data = other.graph.initializer[0].raw_data[::-1]
    cases: list[tuple[str, Model, dict[str, Any]]] = [
        ("method", net, {"method": "mse"}),
        ("method", net, {"symmetric": True}),
        ("tensors", net, {"tensors": ["c"]}),
        ("data", net, {"samples": 5}),
        ("model", prepare_model(other, "net.onnx"), {}),
        ("method and another tensors", net, {"method": "mse", "tensors": ["c"]}),
    ]
    for what, model, options in cases:
        with pytest.raises(InputError, match=rf"c\.yaml\.partial: .* with another {what}: remove it"):
            calibrate(model, data, output, **options)
    np.save(data / "7.npy", np.zeros((1, 3, 8, 8), np.float32))
    with pytest.raises(InputError, match=r"c\.yaml\.partial: .* with another data: remove it"):
        calibrate(net, data, output)
    assert (tmp_path / "c.yaml.partial").exists()


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04"])
def test_a_damaged_state_is_told(net: Model, data: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "c.yaml.partial").write_bytes(content)
    with pytest.raises(InputError, match=r"c\.yaml\.partial: is not the state of a calibration, or is"):
        calibrate(net, data, tmp_path / "c.yaml")


def test_the_place_of_a_model_does_not_matter(net: Model, data: Path, tmp_path: Path) -> None:
    output = tmp_path / "c.yaml"
    stopped(net, data, output)
    moved = replace(net, source="elsewhere/net.onnx")
    assert calibrate(moved, data, output) == calibrate(net, data)


class _Counted:
    """Samples that know how many of them are there at once."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.alive = 0
        self.most = 0

    def _one(self, i: int) -> dict[str, Any]:
        made = np.full((1, 3, 8, 8), i, np.float32)
        finalize(made, self._gone)
        self.alive += 1
        self.most = max(self.most, self.alive)
        return {"x": made}

    def _gone(self) -> None:
        self.alive -= 1

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for i in range(self.number):
            yield self._one(i)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("number", [10, 200])
def test_one_sample_is_there_at_a_time(net: Model, method: str, number: int) -> None:
    samples = _Counted(number)
    found = calibrate(net, samples, method=method, tensors=["x", "c"])
    assert found.samples == number
    assert samples.most == 1
