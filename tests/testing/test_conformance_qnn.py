"""The conformance tests of `qnn`, in 8 bits, by rules of which its emulator was asked."""

import pytest

from byoc.testing import CodegenConformance

pytestmark = pytest.mark.qnn
pytest.importorskip("onnxruntime_qnn")


class TestQNN(CodegenConformance):
    codegen = "qnn"
    rules = "qnn-htp"
    zoo = ()  # in a network steps add up: tests/codegens/test_qnn.py
    most_cases = 1
