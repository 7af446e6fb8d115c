"""The conformance tests of `openvino`, by rules that are held to OpenVINO itself elsewhere."""

import pytest

from byoc.testing import Claims, CodegenConformance

pytestmark = pytest.mark.openvino
pytest.importorskip("openvino")


class TestOpenVINO(CodegenConformance):
    codegen = "openvino"
    rules = "openvino-cpu"
    claims = Claims(dynamic_batch=True, deterministic=False)
    operators = (
        *(
            "Add",
            "AveragePool",
            "BatchNormalization",
            "Clip",
            "Concat",
            "Conv",
            "ConvTranspose",
            "Gather",
        ),
        *("Gemm", "GlobalAveragePool", "LayerNormalization", "MatMul", "MaxPool", "Pad", "Relu"),
        *("ReduceMean", "Reshape", "Resize", "Slice", "Softmax", "Split", "TopK", "Transpose", "Where"),
    )
    zoo = ()  # tests/codegens compiles networks
    most_cases = 2
