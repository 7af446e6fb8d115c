"""Regions on special values: right ones pass, whatever ONNX leaves open; wrong ones are found."""

from pathlib import Path

import onnx
import pytest
from helpers.failing import rules
from helpers.skewed import skewed  # noqa: F401 - a fixture
from helpers.support import parse, sample_cases

import byoc
from byoc.model import list_own_bodies

pytestmark = pytest.mark.usefixtures("skewed")


FLOATS = (
    "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid "
    "HardSwish LeakyRelu Log LogSoftmax Mish Neg Reciprocal Relu Round Selu Sigmoid Sign Sin Sinh "
    "Softmax Softplus Softsign Sqrt Tan Tanh ThresholdedRelu"
)


PAIRS = "Add Sub Mul Div Pow Max Min PRelu"


REDUCTIONS = "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSumExp"


WHOLE = "Add Sub Mul Div Mod Max Min"


COMPARISONS = "Equal Greater Less GreaterOrEqual LessOrEqual"


RIGHT = {
    **{f"{op} float": f"(float[3, 5] x) => (float[3, 5] y) {{ y = {op}(x) }}" for op in FLOATS.split()},
    **{
        f"{op} float": f"(float[3, 5] x, float[3, 5] z) => (float[3, 5] y) {{ y = {op}(x, z) }}"
        for op in PAIRS.split()
    },
    **{
        f"{op} {dtype}": f"({dtype}[3, 5] x, {dtype}[3, 5] z) => ({dtype}[3, 5] y) {{ y = {op}(x, z) }}"
        for op in WHOLE.split()
        for dtype in ("int32", "int64", "uint32", "uint64", "int8", "uint8")
        if (op, dtype[-1:]) != ("Add", "") and not (op in "Add Sub Mul Div" and dtype.endswith("int8"))
    },
    **{
        f"{op} {dtype}": f"({dtype}[3, 5] x, {dtype}[3, 5] z) => (bool[3, 5] y) {{ y = {op}(x, z) }}"
        for op in COMPARISONS.split()
        for dtype in ("float", "double", "int32", "int64")
    },
    **{
        f"{op} float": f"(float[3, 5] x) => (float[3, 1] y) {{ y = {op}(x, axis) }}".replace(
            "{ y", "<int64[1] axis = {1}> { y"
        )
        for op in REDUCTIONS.split()
    },
    "two steps": "(float[4, 8] x) => (float[4, 8] y) { a = Exp(x) b = Sub(a, x) y = Mul(b, b) }",
    "cancels": "(float[4, 8] x) => (float[4, 8] y) { a = Mul(x, x) b = Mul(a, x) y = Sub(b, a) }",
    "cast to whole": "(float[4, 8] x) => (int32[4, 8] y) { y = Cast<to: int = 6>(x) }",
    "cast to bytes": "(float[4, 8] x) => (uint8[4, 8] y) { y = Cast<to: int = 2>(x) }",
    "cast to float": "(int64[4, 8] x) => (float[4, 8] y) { y = Cast<to: int = 1>(x) }",
    "there and back": (
        "(int32[4, 8] x) => (int32[4, 8] y) { a = Cast<to: int = 1>(x) y = Cast<to: int = 6>(a) }"
    ),
    "float16": (
        "(float[4, 8] x) => (float[4, 8] y) { a = Cast<to: int = 10>(x) y = Cast<to: int = 1>(a) }"
    ),
    "arg max": "(float[4, 8] x) => (int64[4, 1] y) { y = ArgMax<axis: int = 1>(x) }",
    "pools": (
        "(float[1, 2, 6, 6] x) => (float[1, 2, 3, 3] y) "
        "{ y = MaxPool<kernel_shape: ints = [2, 2], strides: ints = [2, 2]>(x) }"
    ),
    "looks up": (
        "(int64[3] x) => (float[3, 2] y) <float[4, 2] t = {1, 2, 3, 4, 5, 6, 7, 8}> { y = Gather(t, x) }"
    ),
    "looks up behind a sum": (
        "(int64[3] x) => (float[3, 2] y) <float[5, 2] t = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, "
        "int64 one = {1}> { a = Add(x, one) y = Gather(t, a) }"
    ),
    "a shape": "(float[6] x, int64[2] s) => (float[m, n] y) { y = Reshape(x, s) }",
    "powers": "(int32[4, 8] x) => (int32[4, 8] y) <int32 two = {2}> { y = Pow(x, two) }",
    "shifts": (
        '(uint8[4, 8] x, uint8[4, 8] s) => (uint8[4, 8] y) { y = BitShift<direction = "LEFT">(x, s) }'
    ),
    "divides by a sum": (
        "(int32[4, 8] x, int32[4, 8] z) => (int32[4, 8] y) { a = Mul(z, z) y = Div(x, a) }"
    ),
    "product": (
        "(float[2, 3] x) => (float[2, 2] y) "
        "<float[3, 2] w = {1, -2, 0.5, 3, 0.25, -1}> { a = MatMul(x, w) y = Relu(a) }"
    ),
    "whole product": (
        "(int32[2, 3] x) => (int32[2, 2] y) <int32[3, 2] w = {1, -2, 5, 3, 7, -1}> { y = MatMul(x, w) }"
    ),
    "quantizes": (
        "(float[2, 8] x) => (float[2, 8] y) <float s = {0.1}, int8 z = {3}> "
        "{ q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"
    ),
    "body": """(float[4] x, bool c) => (float[4] y) {
      y = If (c) <
        then_branch = a () => (float[4] p) { e = Exp(x) p = Relu(e) },
        else_branch = b () => (float[4] q) { f = Relu(x) q = Exp(f) }
      >
    }""",
}


OPS = sorted(
    {
        *f"{FLOATS} {PAIRS} {REDUCTIONS} {WHOLE} {COMPARISONS}".split(),
        *("ArgMax", "BitShift", "Cast", "DequantizeLinear", "Gather", "MatMul", "MaxPool"),
        *("QuantizeLinear", "Reshape"),
    }
)


def partition(text: str, folder: Path, keep: str = "", **options: str) -> byoc.Result:
    """The result with a codegen whose faults are options; nodes of `keep` are not taken apart."""
    return byoc.partition(
        parse(f"g {text}", opset=20),
        rules(folder, "npu", *OPS, more=f"keep: [{keep}]\n" if keep else ""),
        output=folder / "b",
        strategy="all-supported",
        codegen="stubborn",
        codegen_options=options,
    )


@pytest.mark.parametrize("case", sample_cases(list(RIGHT), every=3))
def test_what_is_right_is_right_on_special_values(case: str, tmp_path: Path) -> None:
    result = partition(RIGHT[case], tmp_path)
    assert result.report.refusals == ()
    assert result.report.nodes.offloaded
    assert result.verification is not None
    assert result.verification.notes == ()


def test_outputs_that_are_sequences_are_compared_element_by_element(tmp_path: Path) -> None:
    text = """(float[3, 5] x, float[0, 2] e) =>
      (seq(float[3, 5]) s, seq(float[3, 5]) n, int32[0, 2] w, bool[0, 2] t) {
      t = Cast<to = 9>(e)
      a = Relu(x)
      b = Abs(x)
      s = SequenceConstruct(a, b)
      n = SequenceEmpty<dtype = 1>()
      w = Cast<to = 6>(e)
    }"""
    result = partition(text, tmp_path)
    assert result.report.refusals == ()
    assert result.verification is not None
    assert {"s[0]", "s[1]", "w"} <= {error.name for error in result.verification.outputs}
    assert result.verification.passed


@pytest.mark.parametrize(
    "op", sorted({*FLOATS.split()} - {"ThresholdedRelu"})
)  # 0 of NaN by its definition
def test_nan_that_an_operator_loses_is_found(op: str, tmp_path: Path) -> None:
    text = f"(float[3, 5] x) => (float[3, 5] y) {{ y = {op}(x) }}"
    schema = onnx.defs.get_schema(op, 20)
    has_body = schema.has_function or schema.has_context_dependent_function
    in_parts = has_body or op in list_own_bodies()
    result = partition(text, tmp_path, keep=op if in_parts else "", wrong=op, loses="nan")
    assert result.report.nodes.offloaded == 0
    (refusal,) = result.report.refusals
    assert refusal.reason == f"{op} 'y' computed wrong (loses NaN: it is 0 where NaN is passed on)"
