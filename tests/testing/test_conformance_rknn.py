"""The conformance tests of `rknn`, in float16 and int8, on the simulator of rknn-toolkit2."""

import os
from typing import ClassVar

import pytest

from byoc.testing import CodegenConformance

pytestmark = pytest.mark.rknn
if "BYOC_RKNN_PYTHON" not in os.environ:
    pytest.skip("BYOC_RKNN_PYTHON names no interpreter with rknn-toolkit2", allow_module_level=True)


class TestRKNN(CodegenConformance):
    codegen = "rknn"
    rules = "rknn-rk3588"
    zoo = ()  # tests/codegens_suite/run.py has networks, which take minutes here
    most_cases = 2
    quantized = 2  # units of 255 that the simulator may be off
    skips: ClassVar[dict[str, str]] = {}
