"""The conformance tests of `ethos_u`, in 8 bits, run on Arm's TOSA reference model."""

import os
from importlib.util import find_spec
from typing import ClassVar

import pytest

from byoc.testing import CodegenConformance

pytestmark = pytest.mark.ethos_u
pytest.importorskip("ethosu")
if "BYOC_TOSA_PYTHON" not in os.environ and find_spec("tosa_reference_model") is None:
    pytest.skip("BYOC_TOSA_PYTHON names no interpreter with the model", allow_module_level=True)


class TestEthosU(CodegenConformance):
    codegen = "ethos_u"
    rules = "ethos-u55"
    zoo = ()  # in a network steps add up: tests/codegens/test_ethos_u.py
    most_cases = 2
    skips: ClassVar = {
        "Div": "ONNX's tests of it in 8 bits divide integers; tests/ethos_u_suite has it",
        "Pow": "an exponent that is computed is not quantized; tests/ethos_u_suite has constant ones",
    }
