"""Small models, and the cut that puts every supported node of them on the accelerator."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from byoc import Result, load, partition
from byoc.runtime.onnxrt import open_session, run_session, unoptimized

# `dla` takes Relu and Add; Sigmoid, Sub and If stay on the host.
CHAIN = """
chain (float[1, 4] x) => (float[1, 4] y) {
  a = Relu(x)
  b = Sigmoid(a)
  y = Relu(b)
}
"""
HOST_ONLY = "alone (float[1, 4] x) => (float[1, 4] y) { y = Sigmoid(x) }"
DEVICE_ONLY = "all (float[1, 4] x) => (float[1, 4] y) { a = Add(x, x) y = Relu(a) }"


def cut(model: str | Path | onnx.ModelProto, output: Path | None = None, **options: Any) -> Result:
    """Partition for `dla` with everything it takes on it, however small."""
    return partition(model, "dla", output=output, strategy="all-supported", **options)


def original(model: onnx.ModelProto, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return what onnxruntime makes of a model, outside of byoc's pipeline."""
    with unoptimized():
        return run_session(open_session(model), inputs)


def same_as_original(model: onnx.ModelProto, bundle: Path, inputs: dict[str, Any]) -> None:
    """Assert that a bundle gives the outputs of its model, by name and number."""
    expected, given = original(model, inputs), load(bundle)(inputs)
    assert list(given) == list(expected)
    for name, value in expected.items():
        assert given[name].dtype == value.dtype, name
        np.testing.assert_array_equal(given[name], value, err_msg=name)


def ramp(*shape: int) -> NDArray[np.float32]:
    """Return distinct numbers around zero, none of them 0."""
    count = int(np.prod(shape))
    return ((np.arange(count) - count / 2 + 0.25) / count).astype(np.float32).reshape(shape)


def files(folder: Path) -> dict[str, bytes]:
    """Return the content of every file under a folder, hidden ones too, by relative path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
