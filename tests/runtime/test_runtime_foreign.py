"""Elements that numpy has no dtype for cross the border between host and region."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from support import parse

import byoc

COSTS = (
    "kind: roofline\nname: near\npeak: {default: 1.0e+12}\nbandwidth: 1.0e+12\nlink: {bandwidth: .inf}\n"
)


@pytest.mark.parametrize("dtype", ["BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2", "INT4", "UINT4"])
def test_what_numpy_cannot_name_crosses(dtype: str, tmp_path: Path) -> None:
    number = onnx.TensorProto.DataType.Value(dtype)
    model = parse(
        f"""g (float[5] x) => (float[5] y) {{
            a = Cast <to = {number}> (x)
            y = Cast <to = 1> (a)
        }}""",
        ir=11,
        opset=21,
    )
    (tmp_path / "near.yaml").write_text(COSTS, encoding="utf-8")
    (tmp_path / "some.yaml").write_text(
        f"target: npu\ncost_model: {tmp_path / 'near.yaml'}\ndtype: any\n"
        "ops: [{op: Cast, attributes: {to: {one_of: 1}}}]\n",
        encoding="utf-8",
    )

    byoc.partition(
        model, tmp_path / "some.yaml", strategy="all-supported", output=tmp_path / "b", verify=False
    )

    x = np.array([0, 1, 2, 5, 7] if dtype == "UINT4" else [-3, 0, 1, 2, 5], np.float32)
    got = byoc.load(tmp_path / "b")({"x": x})["y"]
    assert np.array_equal(got, x)
