"""The conformance tests of `c`."""

import pytest
from helpers.support import VANILLA

from byoc.testing import CodegenConformance

pytest.importorskip("emx_onnx_cgen")


class TestC(CodegenConformance):
    codegen = "c"
    rules = str(VANILLA)
    zoo = ()  # tests/codegens compiles networks
    most_cases = 1
