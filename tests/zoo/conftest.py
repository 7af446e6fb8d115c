"""A home for each test. Each light model, run once: only what was measured is kept, no weights."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.support import LIGHT, sample_cases
from numpy.typing import NDArray

from byoc import zoo


@dataclass(frozen=True)
class Trial:
    """A model and what it did with two images."""

    name: str
    model: onnx.ModelProto
    finite: bool
    deviations: dict[str, float]
    """Standard deviation of every node's first output, for the first image."""
    probabilities: tuple[NDArray[np.float64], NDArray[np.float64]]


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Give a test a cache and a configuration of its own, and return the folder that they are in."""
    folder = tmp_path / "home"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    return folder


@pytest.fixture(scope="session", params=sample_cases(LIGHT, "squeezenet", "shufflenet"))
def trial(request: pytest.FixtureRequest) -> Iterator[Trial]:
    """Run one model; pytest orders tests by this fixture, so one model is in memory at a time."""
    name: str = request.param
    model = zoo.load(name)
    session = _session_with_all_outputs(model)
    runs = [_run(session, zoo.sample_inputs(name, seed)) for seed in (0, 1)]
    logits_only = model.graph.node[-1].op_type != "Softmax"
    answers = [run[model.graph.output[0].name].ravel().astype(np.float64) for run in runs]
    first, second = (_softmax(answer) if logits_only else answer for answer in answers)
    yield Trial(
        name=name,
        model=model,
        finite=all(np.isfinite(values).all() for run in runs for values in run.values()),
        deviations={tensor: float(values.std()) for tensor, values in runs[0].items()},
        probabilities=(first, second),
    )


def _session_with_all_outputs(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    # Second outputs are Dropout's masks, which inference does not define.
    last = {value.name for value in model.graph.output}
    seen = [node.output[0] for node in model.graph.node if node.output[0] not in last]
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    watched.graph.output.extend(onnx.ValueInfoProto(name=name) for name in seen)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(
        watched.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _run(
    session: onnxruntime.InferenceSession, inputs: dict[str, NDArray[np.float32]]
) -> dict[str, NDArray[np.float32]]:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    powers: NDArray[np.float64] = np.exp(logits - logits.max())
    return powers / np.sum(powers)
