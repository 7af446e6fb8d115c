"""The conformance tests of `openvino`, by rules that are held to OpenVINO itself elsewhere."""

import pytest

from byoc.testing import Claims, CodegenConformance

pytestmark = pytest.mark.openvino
pytest.importorskip("openvino")


class TestOpenVINO(CodegenConformance):
    codegen = "openvino"
    rules = "openvino-cpu"
    claims = Claims(dynamic_batch=True, deterministic=False)
    most_cases = 1
