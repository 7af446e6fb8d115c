"""Models whose weights are larger than memory should hold: planned, written and run in blocks or mapped.

Run with `pytest -m large -s`: each takes a minute, and 2.5 GB of disk for the bundle.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.support import VANILLA
from onnx import ModelProto, TensorProto, helper

pytestmark = pytest.mark.large

_WIDTH = 64
_ROWS = 9_000_000  # of 256 bytes: 2.3 GB in one tensor
_MORE = 800_000  # 0.2 GB in another
_MAX_MIB = 1024


def write_model(folder: Path) -> Path:
    """Write a model that looks up rows in two tables; what holds them is sparse, and takes no disk."""
    row = _WIDTH * 4
    with (folder / "tables.bin").open("wb") as file:
        file.truncate((_ROWS + _MORE) * row)
        file.seek((_ROWS - 1) * row)
        file.write(np.arange(2 * _WIDTH, dtype=np.float32).tobytes())  # the last row, and the first
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["large", "i"], ["a"]),
            helper.make_node("Gather", ["small", "j"], ["b"]),
            helper.make_node("Add", ["a", "b"], ["c"]),
            helper.make_node("Relu", ["c"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info(name, TensorProto.INT64, [1]) for name in "ij"],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, _WIDTH])],
        [_beside("large", 0, _ROWS), _beside("small", _ROWS * row, _MORE)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return _save(model, folder / "m.onnx")


def _beside(name: str, offset: int, rows: int) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[rows, _WIDTH])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "tables.bin"), ("offset", offset), ("length", rows * _WIDTH * 4)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _save(model: ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def peak_mib(code: str, *arguments: Path) -> int:
    """Run some Python in a process of its own, and return the most memory it had resident."""
    code = f"import resource, sys, byoc\nfrom pathlib import Path\n{code}\n"
    code += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    unit = 1 << (20 if sys.platform == "darwin" else 10)
    return int(done.stdout.split()[-1]) // unit


_PLAN = """
result = byoc.partition(sys.argv[1], sys.argv[-1], strategy="all-supported")
assert len(result.plan.regions) == 1
"""
_WRITE = """
byoc.partition(sys.argv[1], sys.argv[-1], strategy="all-supported", output=sys.argv[2], verify=False)
"""
_RUN = """
import numpy as np
session = byoc.load(sys.argv[1])
y = session({"i": np.array([8_999_999]), "j": np.array([0])})["y"]
assert y.tolist() == [[float(64 + 2 * i) for i in range(64)]]
y = session({"i": np.array([5]), "j": np.array([799_999])})["y"]
assert not y.any()
"""


def test_weights_never_pass_through_memory(tmp_path: Path) -> None:
    model = write_model(tmp_path)
    on_disk = (tmp_path / "tables.bin").stat()
    assert on_disk.st_size > 2_500_000_000
    assert on_disk.st_blocks * 512 < 1 << 20
    bundle = tmp_path / "m.byoc"
    planned = peak_mib(_PLAN, model, VANILLA)
    written = peak_mib(_WRITE, model, bundle, VANILLA)
    assert (bundle / "weights.bin").stat().st_size > 2_500_000_000
    stored = onnx.load(bundle / "model.onnx", load_external_data=False).graph.initializer
    assert {tensor.name: list(tensor.dims) for tensor in stored} == {
        "large": [_ROWS, _WIDTH],
        "small": [_MORE, _WIDTH],
    }
    print(f"peak: {planned} MiB to plan, {written} MiB to write", end=", ")
    assert max(planned, written) < _MAX_MIB
    pytest.importorskip("onnxruntime")
    ran = peak_mib(_RUN, bundle)
    print(f"{ran} MiB to load and run")
    assert ran < _MAX_MIB
