"""The dla's pools against onnxruntime: floats within 1e-5, int8 within one and mostly equal."""

import numpy as np
import pytest
from byoc.codegens.dla.machine import DType, Pads, Pair, Pool, PoolKind, to_multiplier
from byoc.codegens.dla.simulator import SimulationError
from dla_bench import Array, onnx_run, run_one, to_rows
from dla_cases import Case, bytes_of, close, floats, same_integers

SX = np.float32(0.0417)
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
    mantissa, shift = to_multiplier(float(SX) / float(SX * np.float32(0.8713)))
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


def test_a_divisor_of_more_than_62_bits_is_an_error():
    with pytest.raises(SimulationError, match=r"a shift of 60 is too large for an average of 4"):
        run_one(
            lambda **boxes: Pool(0, PoolKind.AVERAGE, **boxes, kernel=Pair(2, 2), shift=60),
            {"x": bytes_of(1, np.int8, 2, 2, 2)},
            (1, 1, 2),
            DType.INT8,
        )
