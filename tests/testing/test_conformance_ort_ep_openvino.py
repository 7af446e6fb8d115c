"""The conformance tests of `ort_ep` with OpenVINO's plug-in provider, by the rules of `openvino-cpu`."""

from typing import ClassVar

import pytest
from helpers.plugin_providers import find_openvino_provider

from byoc.testing import Claims, CodegenConformance

pytestmark = pytest.mark.openvino


class TestOpenVINOProvider(CodegenConformance):
    codegen = "ort_ep"
    rules = "openvino-cpu"
    options: ClassVar = {"library": str(find_openvino_provider())}
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
        *("ReduceMean", "Reshape", "Resize", "Slice", "Softmax", "Split", "Transpose", "Where"),
    )
    zoo = ()  # the table of benchmarks/RESULTS.md has networks
    most_cases = 1
    skips: ClassVar = {"empty tensors": "OpenVINO compiles them, and fails when it is to run them"}
