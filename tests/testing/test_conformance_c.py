"""The conformance tests of `c`."""

import pytest

from byoc.testing import CodegenConformance

pytest.importorskip("emx_onnx_cgen")


class TestC(CodegenConformance):
    codegen = "c"
    rules = "dla"
    zoo = ()  # tests/codegens compiles networks
    most_cases = 1
