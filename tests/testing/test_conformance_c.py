"""The conformance tests of `c`."""

import pytest

from byoc.testing import CodegenConformance

pytest.importorskip("emx_onnx_cgen")


class TestC(CodegenConformance):
    codegen = "c"
    rules = "dla"
    most_cases = 2
