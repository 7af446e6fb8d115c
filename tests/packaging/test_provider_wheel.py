"""The wheel of byoc's provider of ONNX Runtime, built and used where there is no byoc."""

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from packages import ROOT, install, run

pytestmark = pytest.mark.packaging
PROVIDER = ROOT / "byoc" / "onnxrt" / "provider"
APPLICATION = """
import onnxruntime, onnx_byoc_provider
onnxruntime.register_execution_provider_library("byoc", onnx_byoc_provider.get_library_path())
devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == "byoc"]
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
options.add_provider_for_devices(devices, {})
try:
    onnxruntime.InferenceSession("m.onnx", options, enable_fallback=0)
except Exception as error:
    print(error)
"""


def test_an_application_without_byoc_loads_the_provider(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "build", "--installer", "uv", "--wheel", "--outdir", tmp_path, PROVIDER],
        check=True,
        timeout=600,
    )
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith("onnx_byoc_provider-0.1.0-py3-none-")
    assert "none-any" not in wheel.name
    folder = install(tmp_path / "venv", str(wheel), "onnxruntime>=1.23")
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    node = helper.make_node(
        "EPContext", ["x"], ["y"], "r", domain="com.microsoft", source="byoc", ep_cache_context="4142"
    )
    graph = helper.make_graph([node], "g", value[:1], value[1:])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=imports), tmp_path / "m.onnx")
    (tmp_path / "application.py").write_text(APPLICATION)
    ran = run("python application.py", folder, tmp_path)
    assert "byoc: r: the node does not describe a region of byoc" in ran.stdout, ran.stderr
    assert not list(PROVIDER.rglob("*.so"))
