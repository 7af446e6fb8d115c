"""The dla's arithmetic and functions against numpy and onnxruntime, in float32 and in integers."""

import numpy as np
import pytest
from byoc.codegens.dla.machine import (
    Add,
    DType,
    Function,
    FunctionKind,
    Mul,
    Scale,
    Table,
    build_table,
    evaluate_function,
    to_common_multipliers,
    to_multiplier,
)
from byoc.codegens.dla.simulator import SimulationError
from dla_bench import Array, onnx_run, run_one
from dla_cases import bytes_of, floats, same_integers

SHAPES = {
    "box": (5, 4, 6),
    "channels": (1, 1, 6),
    "scalar": (1, 1, 1),
    "rows": (5, 1, 6),
    "column": (1, 4, 1),
}


@pytest.mark.parametrize("kind", [Add, Mul])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_float_arithmetic_stretches(kind: type, shape: tuple[int, ...]):
    a, b = floats(8, 5, 4, 6), floats(9, *shape)
    wanted = np.clip(a + b if kind is Add else a * b, -0.5, 1.25)
    for arrays in ({"a": a, "b": b}, {"a": b, "b": a}):
        mine = run_one(lambda **boxes: kind(0, **boxes, low=-0.5, high=1.25), arrays, (5, 4, 6))
        assert (mine == wanted).all()


def test_what_does_not_stretch_is_an_error():
    with pytest.raises(SimulationError, match=r"ADD .*an operand of \(1, 2, 6\) cannot be broadcast"):
        run_one(
            lambda **boxes: Add(0, **boxes),
            {"a": floats(1, 5, 4, 6), "b": floats(1, 1, 2, 6)},
            (5, 4, 6),
        )


def onnx_arithmetic(op: str, a: Array, b: Array, dtype: str) -> Array:
    text = f"""g ({dtype}[5,4,6] a, {dtype}[N,M,K] b) => ({dtype}[5,4,6] y)
      <float sa = {{0.0417}}, {dtype} za = {{5}}, float sb = {{0.0113}}, {dtype} zb = {{9}},
       float sy = {{0.0531}}, {dtype} zy = {{2}}> {{
      d = DequantizeLinear(a, sa, za) e = DequantizeLinear(b, sb, zb)
      f = {op}(d, e) y = QuantizeLinear(f, sy, zy) }}"""
    return onnx_run(text, {"a": a, "b": b})


SA, SB, SC = (float(np.float32(scale)) for scale in (0.0417, 0.0113, 0.0531))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_integer_addition(shape: tuple[int, ...], dtype: type):
    a, b = bytes_of(10, dtype, 5, 4, 6), bytes_of(11, dtype, *shape)
    one, other, shift = to_common_multipliers(SA / SC, SB / SC)
    more = {"a_mantissa": one, "b_mantissa": other, "shift": shift}
    mine = run_one(
        lambda **boxes: Add(0, **boxes, a_zero=5, b_zero=9, y_zero=2, **more),
        {"a": a, "b": b},
        (5, 4, 6),
        DType.INT8 if dtype is np.int8 else DType.UINT8,
    )
    same_integers(mine, onnx_arithmetic("Add", a, b, np.dtype(dtype).name))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_integer_multiplication(shape: tuple[int, ...], dtype: type):
    a, b = bytes_of(12, dtype, 5, 4, 6), bytes_of(13, dtype, *shape)
    mantissa, shift = to_multiplier(SA * SB / SC)
    mine = run_one(
        lambda **boxes: Mul(0, **boxes, a_zero=5, b_zero=9, y_zero=2, mantissa=mantissa, shift=shift),
        {"a": a, "b": b},
        (5, 4, 6),
        DType.INT8 if dtype is np.int8 else DType.UINT8,
    )
    same_integers(mine, onnx_arithmetic("Mul", a, b, np.dtype(dtype).name))


def test_a_sum_or_product_that_leaves_int64_is_an_error():
    least = np.full((1, 1, 1), -(2**31), np.int32)
    more = {"a_mantissa": 2**31 - 1, "b_mantissa": 2**31 - 1}
    one = np.full((1, 1, 1), -1, np.int32)
    run_one(lambda **boxes: Add(0, **boxes, **more), {"a": least, "b": one}, (1, 1, 1), DType.INT32)
    with pytest.raises(SimulationError, match=r"ADD .*a sum leaves the range of int64"):
        run_one(
            lambda **boxes: Add(0, **boxes, **more, a_zero=2**31 - 1),
            {"a": least, "b": least},
            (1, 1, 1),
            DType.INT32,
        )
    with pytest.raises(SimulationError, match=r"MUL .*a product leaves the range of int64"):
        run_one(lambda **boxes: Mul(0, **boxes), {"a": least, "b": least}, (1, 1, 1), DType.INT32)


def test_three_integers_are_added_over_an_int32():
    """The first sum has 16 bits more than the result, so that the second rounds once in effect."""
    a, b, c = (bytes_of(seed, np.int8, 5, 4, 6) for seed in (14, 15, 16))
    one, other, shift = to_common_multipliers(SA / SC * 2**16, SB / SC * 2**16)
    finer = {"a_mantissa": one, "b_mantissa": other, "shift": shift}
    partial = run_one(lambda **boxes: Add(0, **boxes, **finer), {"a": a, "b": b}, (5, 4, 6), DType.INT32)
    one, other, shift = to_common_multipliers(2.0**-16, SA / SC)
    last = {"a_mantissa": one, "b_mantissa": other, "shift": shift}
    mine = run_one(
        lambda **boxes: Add(0, **boxes, **last), {"a": partial, "b": c}, (5, 4, 6), DType.INT8
    )
    exact = (a * np.float64(SA) + b * np.float64(SB) + c * np.float64(SA)) / SC
    assert (mine == np.clip(np.rint(exact), -128, 127)).all()


def test_scaling_floats_is_a_copy_with_a_clamp():
    x = floats(17, 3, 4, 5)
    assert (run_one(lambda **boxes: Scale(0, **boxes), {"x": x}, x.shape) == x).all()
    clamped = run_one(lambda **boxes: Scale(0, **boxes, low=0.0, high=0.5), {"x": x}, x.shape)
    assert (clamped == np.clip(x, 0, np.float32(0.5))).all()


def test_scaling_integers_is_one_dequantization_and_one_quantization():
    x = np.arange(-128, 128).astype(np.int8).reshape(4, 8, 8)
    mantissa, shift = to_multiplier(SA / SC)
    text = """g (int8[4,8,8] x) => (uint8[4,8,8] y)
      <float sa = {0.0417}, int8 za = {5}, float sy = {0.0531}, uint8 zy = {2}> {
      d = DequantizeLinear(x, sa, za) y = QuantizeLinear(d, sy, zy) }"""
    mine = run_one(
        lambda **boxes: Scale(0, **boxes, x_zero=5, y_zero=2, mantissa=mantissa, shift=shift),
        {"x": x},
        x.shape,
        DType.UINT8,
    )
    same_integers(mine, onnx_run(text, {"x": x}))


FUNCTIONS = {
    FunctionKind.SIGMOID: "Sigmoid",
    FunctionKind.TANH: "Tanh",
    FunctionKind.EXP: "Exp",
    FunctionKind.SQRT: "Sqrt",
    FunctionKind.HARD_SIGMOID: "HardSigmoid<alpha=0.3, beta=0.4>",
    FunctionKind.HARD_SWISH: "HardSwish",
    FunctionKind.LEAKY_RELU: "LeakyRelu<alpha=0.3>",
    FunctionKind.ELU: "Elu<alpha=0.3>",
    FunctionKind.ERF: "Erf",
    FunctionKind.GELU: "Gelu",
    FunctionKind.GELU_TANH: 'Gelu<approximate="tanh">',
    FunctionKind.RECIPROCAL: "Reciprocal",
    FunctionKind.SWISH: "com.microsoft.QuickGelu<alpha=0.3>",
    FunctionKind.IDENTITY: "Identity",
}


_NOT_OF_ALL = (FunctionKind.SQRT, FunctionKind.RECIPROCAL)  # numbers below 0, or 0 itself


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_functions(kind: FunctionKind):
    x = np.linspace(0 if kind is FunctionKind.SQRT else -20, 20, 60, dtype=np.float32).reshape(3, 4, 5)
    theirs = onnx_run(f"g (float[3,4,5] x) => (float[3,4,5] y) {{ y = {FUNCTIONS[kind]}(x) }}", {"x": x})
    mine = run_one(lambda **boxes: Function(0, kind, **boxes, alpha=0.3, beta=0.4), {"x": x}, x.shape)
    np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_a_gate_is_a_product() -> None:
    x = np.linspace(-20, 20, 60, dtype=np.float32).reshape(3, 4, 5)
    made, factor = (
        run_one(
            lambda kind=kind, **boxes: Function(0, kind, **boxes, alpha=0.3, beta=0.4), {"x": x}, x.shape
        )
        for kind in (FunctionKind.HARD_GATE, FunctionKind.HARD_SIGMOID)
    )

    assert {*FunctionKind} == {*FUNCTIONS, FunctionKind.HARD_GATE, FunctionKind.NUMBER}
    np.testing.assert_allclose(made, x * factor, rtol=1e-6)


def test_a_number_stays_and_nan_is_zero() -> None:
    x = np.array([-np.inf, -2.5, -0.0, 0.0, 1e-40, 3.0, np.inf, np.nan], np.float32).reshape(1, 2, 4)
    made = run_one(lambda **boxes: Function(0, FunctionKind.NUMBER, **boxes), {"x": x}, x.shape)
    np.testing.assert_array_equal(made, np.where(np.isnan(x), np.float32(0), x))


@pytest.mark.parametrize("kind", [kind for kind in FUNCTIONS if kind not in _NOT_OF_ALL])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_tables(kind: FunctionKind, dtype: type):
    name = np.dtype(dtype).name
    mine_type = DType.INT8 if dtype is np.int8 else DType.UINT8
    x = np.arange(256).astype(np.uint8).view(dtype).reshape(4, 8, 8)
    text = f"""g ({name}[4,8,8] x) => ({name}[4,8,8] y)
      <float sx = {{0.0417}}, {name} zx = {{100}}, float sy = {{0.0113}}, {name} zy = {{20}}> {{
      d = DequantizeLinear(x, sx, zx) f = {FUNCTIONS[kind]}(d) y = QuantizeLinear(f, sy, zy) }}"""
    content = build_table(
        lambda real: evaluate_function(kind, real, 0.3, 0.4),
        0.0417,
        100,
        mine_type,
        0.0113,
        20,
        mine_type,
    )
    mine = run_one(
        lambda **boxes: Table(0, **boxes),
        {"x": x, "table": np.frombuffer(content, np.uint8)},
        x.shape,
        mine_type,
    )
    same_integers(mine, onnx_run(text, {"x": x}))
