"""The conformance tests of `rknn`, in float16 and int8, on the simulator of rknn-toolkit2."""

import os
from collections.abc import Mapping, Sequence
from typing import ClassVar

import pytest
from helpers.support import parse
from onnx import ModelProto

from byoc.testing import Claims, CodegenConformance

pytestmark = pytest.mark.rknn
if "BYOC_RKNN_PYTHON" not in os.environ:
    pytest.skip("BYOC_RKNN_PYTHON names no interpreter with rknn-toolkit2", allow_module_level=True)


CROPPED = parse(
    "g (float[4, 6] x) => (float[2, 8] y) <int64[2] s = {2, 8}> { y = CenterCropPad(x, s) }", 8, 18
)


class TestRKNN(CodegenConformance):
    codegen = "rknn"
    rules = "rknn-rk3588"
    zoo = ()  # tests/codegens_suite/run.py has networks, which take minutes here
    most_cases = 2
    tolerance: ClassVar[dict[str, float]] = {"quantized": 2}  # units of 255
    # The toolkit leaves addresses of its memory in the file. Open extents are not taken.
    claims = Claims(deterministic=False, threads=True)
    cases: ClassVar[Mapping[str, Sequence[str | ModelProto]]] = {
        "CenterCropPad": [CROPPED],
        "Einsum": ['x:2x3 z:3x4 | Einsum<equation="ij,jk->ik">(x, z)'],
    }
    skips: ClassVar[dict[str, str]] = {
        "test_driver": "it wants the chip's runtime; tests/codegens/test_rknn.py has a stand-in",
        "CumSum": "ONNX's tests of it are of float64; tests/rknn_rules has others",
        "GridSample": "ONNX's tests of it are of an operator set that the toolkit does not read",
        "NegativeLogLikelihoodLoss": "the kit has no model of it; tests/rknn_rules has",
        "ReduceLogSum": "the kit has no model of it; tests/rknn_rules has",
        "ReduceLogSumExp": "the kit has no model of it; tests/rknn_rules has",
        "SoftmaxCrossEntropyLoss": "the kit has no model of it; tests/rknn_rules has",
        "Trilu": "ONNX's tests of it are of whole numbers; tests/rknn_rules has others",
        "Where": "ONNX's tests of it compute its condition",
    }
