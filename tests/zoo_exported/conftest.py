"""Each exported structure, made and run once; only what was measured is kept, not the weights."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
from helpers.support import sample_cases
from numpy.typing import NDArray

from byoc import zoo

FOLDER = Path(zoo.__file__).parent / "structures"
NAMES = sorted(path.name.removesuffix(".onnx.xz") for path in FOLDER.glob("*.onnx.xz"))
# A network of convolutions, attention, and a detector with data-dependent extents.
ORDINARY = ("mobilenet_v3_large", "vit_tiny", "ssdlite320")


@dataclass(frozen=True)
class Trial:
    """A structure and what it did with two samples."""

    name: str
    bytes: int
    model: onnx.ModelProto
    outputs: tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]


@pytest.fixture(scope="module", params=sample_cases(NAMES, *ORDINARY))
def trial(request: pytest.FixtureRequest) -> Iterator[Trial]:
    """Run one model; pytest orders tests by this fixture, so one model is in memory at a time."""
    name: str = request.param
    model = zoo.load(name)
    session = _session(model)
    first, second = (_run(session, zoo.sample_inputs(name, seed)) for seed in (0, 1))
    del session
    yield Trial(name, (FOLDER / f"{name}.onnx.xz").stat().st_size, model, (first, second))


def _session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 2
    options.log_severity_level = 3  # detectors warn of the shapes that they find out as they run
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _run(
    session: onnxruntime.InferenceSession, inputs: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))
