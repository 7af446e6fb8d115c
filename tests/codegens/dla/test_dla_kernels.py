"""What the dla computes against onnxruntime: floats within 1e-5, int8 within one and mostly equal."""

from dataclasses import dataclass

import numpy as np
import pytest
from byoc.codegens.dla.fixed_point import common_multipliers, multiplier
from byoc.codegens.dla.isa import (
    Add,
    Conv,
    ConvFlags,
    Function,
    FunctionKind,
    Mul,
    Pool,
    PoolKind,
    Scale,
    Table,
)
from byoc.codegens.dla.operand import ABSENT, DType, Pads, Pair
from byoc.codegens.dla.simulator import SimulationError
from byoc.codegens.dla.tables import evaluate, table
from dla_bench import Array, onnx_run, run_one, to_rows

INF = float("inf")


@dataclass(frozen=True)
class Case:
    """A convolution or a pool: what ONNX's attributes say."""

    channels: int = 8
    makes: int = 12
    kernel: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    groups: int = 1
    size: tuple[int, int] = (11, 9)
    ceil: int = 0

    @property
    def attributes(self) -> str:
        return (
            f"kernel_shape={list(self.kernel)}, strides={list(self.strides)}, "
            f"dilations={list(self.dilations)}, pads={list(self.pads)}"
        )

    @property
    def geometry(self) -> dict[str, object]:
        """What the command has of it."""
        return {
            "kernel": Pair(*self.kernel),
            "strides": Pair(*self.strides),
            "dilations": Pair(*self.dilations),
            "pads": Pads(*self.pads),
        }

    @property
    def out(self) -> tuple[int, int]:
        free = [
            self._there(axis) - self.dilations[axis] * (self.kernel[axis] - 1) - 1 for axis in (0, 1)
        ]
        steps = zip(free, self.strides, strict=True)
        rows, cols = (-(-room // step) if self.ceil else room // step for room, step in steps)
        return rows + 1, cols + 1

    @property
    def overhang(self) -> Pair:
        spans = (
            (self.out[axis] - 1) * self.strides[axis]
            + self.dilations[axis] * (self.kernel[axis] - 1)
            + 1
            for axis in (0, 1)
        )
        return Pair(*(max(span - self._there(axis), 0) for axis, span in enumerate(spans)))

    def _reach(self, axis: int) -> int:
        return self.dilations[axis] * (self.kernel[axis] - 1) + 1

    def _there(self, axis: int) -> int:
        return self.size[axis] + self.pads[axis] + self.pads[axis + 2]


CONVOLUTIONS = {
    "plain": Case(),
    "pointwise": Case(kernel=(1, 1)),
    "padded": Case(pads=(1, 1, 1, 1)),
    "padded unevenly": Case(pads=(2, 0, 1, 2)),
    "strided": Case(strides=(2, 3), pads=(1, 1, 1, 1)),
    "dilated": Case(dilations=(2, 3), pads=(2, 3, 2, 3)),
    "oblong": Case(kernel=(1, 5), pads=(0, 2, 0, 2)),
    "grouped": Case(groups=4, pads=(1, 1, 1, 1)),
    "grouped and strided": Case(groups=2, strides=(2, 2), pads=(1, 1, 1, 1)),
    "depthwise": Case(groups=8, makes=8, pads=(1, 1, 1, 1)),
    "depthwise, strided and dilated": Case(groups=8, makes=8, strides=(2, 2), dilations=(2, 2)),
    "depthwise, two for each": Case(groups=8, makes=16, pads=(1, 1, 1, 1)),
    "large kernel": Case(channels=3, kernel=(7, 7), strides=(2, 2), pads=(3, 3, 3, 3)),
}


def floats(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def bytes_of(seed: int, dtype: type, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max + 1, shape).astype(dtype)


def weights_of(case: Case, seed: int) -> Array:
    """Return random weights [out, in per group, rows, cols]."""
    return floats(seed, case.makes, case.channels // case.groups, *case.kernel)


def packed(weights: Array) -> Array:
    return np.ascontiguousarray(weights.transpose(0, 2, 3, 1))


def close(mine: Array, theirs: Array) -> None:
    np.testing.assert_allclose(
        mine, theirs, rtol=1e-5, atol=1e-5 * max(1.0, float(np.abs(theirs).max()))
    )


def same_integers(mine: Array, theirs: Array, equal: float = 0.99) -> None:
    """Check that all are within one unit, and that at least so large a part is equal."""
    assert mine.dtype == theirs.dtype
    assert np.abs(mine.astype(int) - theirs.astype(int)).max() <= 1
    assert np.mean(mine == theirs) >= equal
    assert len(np.unique(theirs)) > 3


def float_conv(case: Case, **more: object):
    return lambda **boxes: Conv(
        0,
        flags=ConvFlags.ONLY,
        **{"accumulator": ABSENT, "residual": ABSENT, **boxes},
        **case.geometry,
        groups=case.groups,
        **more,
    )


@pytest.mark.parametrize("case", CONVOLUTIONS.values(), ids=list(CONVOLUTIONS))
def test_float_convolutions(case: Case):
    x, w, b = floats(1, 1, case.channels, *case.size), weights_of(case, 2), floats(3, case.makes)
    text = f"""g (float[1,{case.channels},{case.size[0]},{case.size[1]}] x,
      float[{case.makes},{w.shape[1]},{case.kernel[0]},{case.kernel[1]}] w, float[{case.makes}] b) =>
      (float[N,C,H,W] y) {{ y = Conv<group={case.groups}, {case.attributes}>(x, w, b) }}"""
    theirs = to_rows(onnx_run(text, {"x": x, "w": w, "b": b}))
    arrays = {"x": to_rows(x), "weights": packed(w).reshape(1, 1, -1), "parameters": b}
    close(run_one(float_conv(case), arrays, (*case.out, case.makes)), theirs)


def test_a_float_convolution_adds_the_residual_before_the_clamp():
    case = Case(pads=(1, 1, 1, 1))
    x, w, z = floats(1, 1, 8, *case.size), weights_of(case, 2), floats(3, 1, 12, *case.size)
    text = f"""g (float[1,8,11,9] x, float[12,8,3,3] w, float[1,12,11,9] z) => (float[N,C,H,W] y)
      {{ c = Conv<{case.attributes}>(x, w) a = Add(c, z) y = Relu(a) }}"""
    theirs = to_rows(onnx_run(text, {"x": x, "w": w, "z": z}))
    arrays = {"x": to_rows(x), "weights": packed(w).reshape(1, 1, -1), "residual": to_rows(z)}
    mine = run_one(float_conv(case, parameters=ABSENT, low=0.0), arrays, (*case.out, 12))
    assert (theirs == 0).any()
    close(mine, theirs)


def quantized_conv(case: Case, scales: Array, weights: Array, bias: Array, low: float = -INF):
    """Return a QDQ convolution's command and its parameters, for int8 with the zero points 5 and -7."""
    made = [multiplier(float(np.float64(SX) * scale / np.float64(SY))) for scale in scales]
    parameters = np.array([bias, *np.array(made).T]).astype(np.int32)
    more = {"x_zero": 5, "y_zero": -7, "low": low}
    arrays = {"weights": packed(weights).reshape(1, 1, -1), "parameters": parameters.reshape(1, 1, -1)}
    return float_conv(case, **more), arrays


SX, SY = np.float32(0.0417), np.float32(0.0931)


def quantized_case(case: Case):
    x = bytes_of(1, np.int8, 1, case.channels, *case.size)
    w = bytes_of(2, np.int8, case.makes, case.channels // case.groups, *case.kernel)
    terms = w[0].size
    scales = (np.linspace(0.6, 1.4, case.makes) * 0.02 / np.sqrt(terms)).astype(np.float32)
    bias = np.random.default_rng(4).integers(-4000, 4000, case.makes).astype(np.int32)
    return x, w, scales, bias


@pytest.mark.parametrize("relu", [False, True], ids=["", "relu"])
@pytest.mark.parametrize("case", CONVOLUTIONS.values(), ids=list(CONVOLUTIONS))
def test_int8_convolutions(case: Case, relu: bool):
    x, w, scales, bias = quantized_case(case)
    text = f"""g (int8[1,{case.channels},{case.size[0]},{case.size[1]}] x,
      int8[{case.makes},{w.shape[1]},{case.kernel[0]},{case.kernel[1]}] w, float[{case.makes}] ws,
      int32[{case.makes}] b, float[{case.makes}] bs) => (int8[N,C,H,W] y)
      <float sx = {{{SX}}}, int8 zx = {{5}}, float sy = {{{SY}}}, int8 zy = {{-7}}> {{
      d = DequantizeLinear(x, sx, zx) v = DequantizeLinear<axis=0>(w, ws)
      u = DequantizeLinear<axis=0>(b, bs) c = Conv<group={case.groups}, {case.attributes}>(d, v, u)
      r = {"Relu" if relu else "Identity"}(c) y = QuantizeLinear(r, sy, zy) }}"""
    theirs = to_rows(onnx_run(text, {"x": x, "w": w, "ws": scales, "b": bias, "bs": SX * scales}))
    make, arrays = quantized_conv(case, scales, w, bias, -7 if relu else -INF)
    mine = run_one(make, {"x": to_rows(x), **arrays}, (*case.out, case.makes), DType.INT8)
    same_integers(mine, theirs)


def test_a_convolution_that_needs_more_than_x_and_its_padding_is_an_error():
    case = Case(pads=(1, 1, 1, 1))
    arrays = {"x": floats(1, 11, 9, 8), "weights": packed(weights_of(case, 2)).reshape(1, 1, -1)}
    with pytest.raises(
        SimulationError, match=r"CONV .*windows need 14 rows, and x has 13 with the padding"
    ):
        run_one(float_conv(case, parameters=ABSENT), arrays, (12, 9, 12))


def test_a_sum_that_leaves_int32_is_an_error():
    case = Case(channels=1, makes=1, kernel=(1, 1), size=(1, 1))
    make, arrays = quantized_conv(
        case, np.float32([0.1]), np.int8([[[[127]]]]), np.array([2**31 - 1], np.int32)
    )
    with pytest.raises(SimulationError, match="a sum leaves the range of int32"):
        run_one(make, {"x": np.full((1, 1, 1), 127, np.int8), **arrays}, (1, 1, 1), DType.INT8)


POOLS = {
    "plain": Case(kernel=(2, 2), strides=(2, 2)),
    "overlapping": Case(kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
    "ceil": Case(kernel=(3, 3), strides=(2, 2), size=(10, 8), ceil=1),
    "ceil and padded": Case(kernel=(3, 3), strides=(3, 2), pads=(1, 1, 0, 0), size=(10, 8), ceil=1),
    "oblong": Case(kernel=(1, 4), strides=(1, 3)),
    "all": Case(kernel=(11, 9)),
}


def onnx_pool(case: Case, kind: PoolKind, counts: int, x: Array, dtype: str = "float") -> Array:
    name = "MaxPool" if kind is PoolKind.MAX else "AveragePool"
    counted = "" if kind is PoolKind.MAX else f", count_include_pad={counts}"
    shape = ",".join(map(str, x.shape))
    begin, end = ("v = Identity(x)", "y = Identity(p)")
    if dtype != "float":
        begin, end = "v = DequantizeLinear(x, sx, zx)", "y = QuantizeLinear(p, sy, zy)"
    zeros = "" if dtype == "float" else f", {dtype} zx = {{5}}, {dtype} zy = {{2}}"
    text = f"""g ({dtype}[{shape}] x) => ({dtype}[N,C,H,W] y)
      <float sx = {{{SX}}}, float sy = {{{SX * np.float32(0.8713)}}}{zeros}> {{
      {begin} p = {name}<{case.attributes}, ceil_mode={case.ceil}{counted}>(v) {end} }}"""
    return to_rows(onnx_run(text, {"x": x}))


KINDS = [(PoolKind.MAX, 0), (PoolKind.AVERAGE, 0), (PoolKind.AVERAGE, 1)]


@pytest.mark.parametrize(("kind", "counts"), KINDS)
@pytest.mark.parametrize("case", POOLS.values(), ids=list(POOLS))
def test_float_pools(case: Case, kind: PoolKind, counts: int):
    x = floats(5, 1, 8, *case.size)
    more = {**case.geometry, "overhang": case.overhang, "padding_counts": counts}
    mine = run_one(lambda **boxes: Pool(0, kind, **boxes, **more), {"x": to_rows(x)}, (*case.out, 8))
    close(mine, onnx_pool(case, kind, counts, x))


@pytest.mark.parametrize(("kind", "counts"), KINDS)
@pytest.mark.parametrize("case", POOLS.values(), ids=list(POOLS))
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_integer_pools(case: Case, kind: PoolKind, counts: int, dtype: type):
    x = bytes_of(6, dtype, 1, 8, *case.size) // np.arange(1, 9, dtype=dtype)[:, None, None]
    mantissa, shift = multiplier(float(SX) / float(SX * np.float32(0.8713)))
    more = {"overhang": case.overhang, "padding_counts": counts, "mantissa": mantissa, "shift": shift}
    mine = run_one(
        lambda **boxes: Pool(0, kind, **boxes, **case.geometry, **more, x_zero=5, y_zero=2),
        {"x": to_rows(x)},
        (*case.out, 8),
        DType.INT8 if dtype is np.int8 else DType.UINT8,
    )
    name = np.dtype(dtype).name
    same_integers(mine, onnx_pool(case, kind, counts, x, name))


def test_dilated_maximum():
    case = Case(kernel=(3, 2), dilations=(2, 3), pads=(1, 1, 1, 1))
    x = floats(7, 1, 8, *case.size)
    mine = run_one(
        lambda **boxes: Pool(0, PoolKind.MAX, **boxes, **case.geometry),
        {"x": to_rows(x)},
        (*case.out, 8),
    )
    close(mine, onnx_pool(case, PoolKind.MAX, 0, x))


def test_a_window_in_the_padding_alone_is_an_error():
    with pytest.raises(SimulationError, match=r"POOL .*a window has no position in x"):
        run_one(
            lambda **boxes: Pool(0, PoolKind.AVERAGE, **boxes, kernel=Pair(1, 1), pads=Pads(top=1)),
            {"x": floats(1, 2, 2, 2)},
            (3, 2, 2),
        )


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
    with pytest.raises(SimulationError, match=r"ADD .*an operand of \(1, 2, 6\) does not stretch"):
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
    one, other, shift = common_multipliers(SA / SC, SB / SC)
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
    mantissa, shift = multiplier(SA * SB / SC)
    mine = run_one(
        lambda **boxes: Mul(0, **boxes, a_zero=5, b_zero=9, y_zero=2, mantissa=mantissa, shift=shift),
        {"a": a, "b": b},
        (5, 4, 6),
        DType.INT8 if dtype is np.int8 else DType.UINT8,
    )
    same_integers(mine, onnx_arithmetic("Mul", a, b, np.dtype(dtype).name))


def test_three_integers_are_added_over_an_int32():
    """The first sum has 16 bits more than the result, so that the second rounds once in effect."""
    a, b, c = (bytes_of(seed, np.int8, 5, 4, 6) for seed in (14, 15, 16))
    one, other, shift = common_multipliers(SA / SC * 2**16, SB / SC * 2**16)
    finer = {"a_mantissa": one, "b_mantissa": other, "shift": shift}
    partial = run_one(lambda **boxes: Add(0, **boxes, **finer), {"a": a, "b": b}, (5, 4, 6), DType.INT32)
    one, other, shift = common_multipliers(2.0**-16, SA / SC)
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
    mantissa, shift = multiplier(SA / SC)
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
}


@pytest.mark.parametrize("kind", FunctionKind)
def test_functions(kind: FunctionKind):
    x = np.linspace(0 if kind is FunctionKind.SQRT else -20, 20, 60, dtype=np.float32).reshape(3, 4, 5)
    theirs = onnx_run(f"g (float[3,4,5] x) => (float[3,4,5] y) {{ y = {FUNCTIONS[kind]}(x) }}", {"x": x})
    mine = run_one(lambda **boxes: Function(0, kind, **boxes, alpha=0.3, beta=0.4), {"x": x}, x.shape)
    np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", set(FunctionKind) - {FunctionKind.SQRT})
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_tables(kind: FunctionKind, dtype: type):
    name = np.dtype(dtype).name
    mine_type = DType.INT8 if dtype is np.int8 else DType.UINT8
    x = np.arange(256).astype(np.uint8).view(dtype).reshape(4, 8, 8)
    text = f"""g ({name}[4,8,8] x) => ({name}[4,8,8] y)
      <float sx = {{0.0417}}, {name} zx = {{100}}, float sy = {{0.0113}}, {name} zy = {{20}}> {{
      d = DequantizeLinear(x, sx, zx) f = {FUNCTIONS[kind]}(d) y = QuantizeLinear(f, sy, zy) }}"""
    content = table(
        lambda real: evaluate(kind, real, 0.3, 0.4), 0.0417, 100, mine_type, 0.0113, 20, mine_type
    )
    mine = run_one(
        lambda **boxes: Table(0, **boxes),
        {"x": x, "table": np.frombuffer(content, np.uint8)},
        x.shape,
        mine_type,
    )
    same_integers(mine, onnx_run(text, {"x": x}))
