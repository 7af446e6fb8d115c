"""Tests of this codegen's own output: the instructions of a region."""

import json
from pathlib import Path

import byoc
import onnx

RULES = "acme"
MODEL = """<ir_version: 8, opset_import: ["" : 17]>
small (float[1, 2, 4, 4] x) => (float[1, 3, 2, 2] y)
<float[3, 2, 3, 3] w = {WEIGHTS}> { c = Conv(x, w) y = Relu(c) }"""


def test_a_convolution_and_its_relu_are_one_instruction(tmp_path: Path) -> None:
    weights = ", ".join(str(number / 54 - 0.5) for number in range(54))
    model = onnx.parser.parse_model(MODEL.replace("WEIGHTS", weights))

    byoc.partition(model, RULES, strategy="all-supported", output=tmp_path / "b")

    (program,) = (tmp_path / "b" / "artifacts").glob("*/program.json")
    (instruction,) = json.loads(program.read_text())
    assert (instruction["do"], instruction["relu"]) == ("conv", True)
    assert instruction["strides"] == [1, 1]
