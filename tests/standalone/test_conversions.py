"""Types of elements that C99 lacks: every code, every midpoint and all forms, against the definition."""

import ctypes
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.c_libraries import build_library, run_library
from helpers.support import parse
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import tensor_dtype_to_np_dtype
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops.op_cast import cast_to

import byoc
from byoc.model import DTYPE_NUMBERS, count_bits
from byoc.standalone import export_c, verify_program

pytest.importorskip("emx_onnx_cgen")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

SOURCE = Path(byoc.__file__).parent / "standalone" / "source"
FLOAT8 = ("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz")
SMALL_FLOATS = (*FLOAT8, "float4e2m1", "float6e2m3", "float6e3m2", "bfloat16", "float16")
SMALL_INTEGERS = ("int4", "uint4", "int2", "uint2")
WIDE = ("float32", "float64", "float16", "int8", "uint8", "int16", "int32", "int64", "bool")
ROUNDING = {"up": 0, "down": 1, "nearest": 2}


class Rules(ctypes.Structure):
    """`kernel_rules` of the source."""

    _fields_ = [(name, ctypes.c_int32) for name in ("type", "saturate", "rounding")]


class Conversion(ctypes.Structure):
    """`kernel_conversion` of the source."""

    _fields_ = [("count", ctypes.c_int64), ("type", ctypes.c_int32), ("rules", Rules)]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Return the kernels that convert, as a library."""
    folder: Path = tmp_path_factory.mktemp("conversions")
    for name in ("kernels.h", "conversions.c"):
        shutil.copy(SOURCE / name, folder)
    strict = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-O1")
    command = ["cc", *strict, "-fPIC", "-shared", "conversions.c", "-lm", "-o", "conversions.so"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "conversions.so"))


def get_dtype(name: str) -> "np.dtype[Any]":
    """Return numpy's dtype for a type of ONNX."""
    return np.dtype(tensor_dtype_to_np_dtype(DTYPE_NUMBERS[name]))


def list_codes(name: str) -> Any:
    """Return all values of a type of at most 16 bits."""
    bits = count_bits(name)
    return np.arange(2**bits).astype(np.uint16 if bits > 8 else np.uint8).view(get_dtype(name))


def list_midpoints(name: str) -> Any:
    """Return floats that try the rounding to a type: its values, what is between two, and beyond."""
    with np.errstate(all="ignore"):
        known = np.unique(list_codes(name).astype(np.float64))
        known = known[np.isfinite(known)]
        ends = [np.nan, -np.nan, np.inf, -np.inf, -0.0, 1e-30, 3e38, -3e38, 1e300]
        steps = np.diff(known)
        middle = known[:-1] + steps / 2
        beyond = known[[0, -1]] + np.outer(
            [0.49, 0.5, 0.51, 1, 2], [-steps[0], steps[-1]]
        ).ravel().reshape(-1, 2)
        single = np.concatenate([known, middle, beyond.ravel(), ends]).astype(np.float32)
        near = [np.nextafter(single, np.float32(end)) for end in (-np.inf, np.inf)]
        return np.concatenate([single, *near])


def convert(
    kernels: ctypes.CDLL, x: Any, types: tuple[str, str], saturate: bool, mode: str = "up"
) -> Any:
    """Return what the kernel makes of an array of the first type: one of the second."""
    source, to = types
    made = np.zeros(x.shape, get_dtype(to))
    rules = Rules(DTYPE_NUMBERS[to], int(saturate), ROUNDING[mode])
    given = Conversion(x.size, DTYPE_NUMBERS[source], rules)
    kernels.kernel_convert(
        ctypes.byref(given), ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(made.ctypes.data)
    )
    return made


def require_same_bits(made: Any, expected: Any, what: str) -> None:
    """Require equal bits; of NaN in types of more than 8 bits any."""
    if expected.dtype.name in ("float32", "float64", "float16", "bfloat16"):
        with np.errstate(invalid="ignore"):  # of signalling NaN
            wide = expected.astype(np.float64), made.astype(np.float64)
        np.testing.assert_array_equal(*wide, err_msg=what)
        np.testing.assert_array_equal(
            *map(np.signbit, (w[~np.isnan(wide[0])] for w in wide)), err_msg=what
        )
    else:
        np.testing.assert_array_equal(list(expected.tobytes()), list(made.tobytes()), err_msg=what)


@pytest.mark.parametrize("to", SMALL_FLOATS)
def test_floats_are_rounded_as_cast_defines(kernels: ctypes.CDLL, to: str) -> None:
    single = list_midpoints(to)
    for source in ("float32", "float64", "float16", "bfloat16"):
        with np.errstate(all="ignore"):
            x = single.astype(get_dtype(source))
        for saturate in (True, False) if to in FLOAT8 else (False,):
            with np.errstate(all="ignore"):
                expected = cast_to(x, DTYPE_NUMBERS[to], saturate)
            what = f"{source} to {to}, saturate {saturate}"
            require_same_bits(convert(kernels, x, (source, to), saturate), expected, what)


@pytest.mark.parametrize("source", (*SMALL_FLOATS, *SMALL_INTEGERS, "float8e8m0"))
def test_every_code_means_what_cast_defines(kernels: ctypes.CDLL, source: str) -> None:
    codes = list_codes(source)
    with np.errstate(all="ignore"):
        wide = codes.astype(np.float32)  # is exact, and not all types of ml_dtypes know each other
    for to in (*WIDE, *SMALL_FLOATS, *SMALL_INTEGERS):
        # What does not fit an integer is left open.
        fits = (to == "bool") | ("float" in to) | (np.abs(wide) < 127)
        x = np.ascontiguousarray(codes[fits])
        with np.errstate(all="ignore"):
            expected = cast_to(wide[fits], DTYPE_NUMBERS[to], True)
        require_same_bits(convert(kernels, x, (source, to), to in FLOAT8), expected, f"{source} to {to}")


def test_the_upper_half_of_uint64_is_kept(kernels: ctypes.CDLL) -> None:
    x = np.array([2.0**63, 1e19, 1.5e19, 2.0**62, 3.0]).astype(get_dtype("bfloat16"))
    expected = x.astype(np.float64).astype(np.uint64)
    require_same_bits(convert(kernels, x, ("bfloat16", "uint64"), False), expected, "to uint64")


def test_integers_become_small_types_as_cast_defines(kernels: ctypes.CDLL) -> None:
    ends = [0, 1, -1, 7, 8, -8, -9, 100, 449, 2**24 + 1, 2**31 - 1, -(2**31), 2**62 + 12345]
    for source in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool"):
        x = np.array(ends).astype(get_dtype(source))
        for to in (*SMALL_FLOATS, *SMALL_INTEGERS):
            with np.errstate(all="ignore"):
                expected = cast_to(x, DTYPE_NUMBERS[to], True)
            require_same_bits(
                convert(kernels, x, (source, to), to in FLOAT8), expected, f"{source} to {to}"
            )


@pytest.mark.parametrize("mode", ROUNDING)
@pytest.mark.parametrize("saturate", (True, False))
def test_exponents_are_rounded_as_cast_defines(kernels: ctypes.CDLL, mode: str, saturate: bool) -> None:
    bits = np.arange(0, 2**15, dtype=np.uint32) << 16
    x = np.concatenate([bits, bits + 1, bits - 1]).view(np.float32)
    expected = cast_to(x, DTYPE_NUMBERS["float8e8m0"], saturate, mode)
    require_same_bits(convert(kernels, x, ("float32", "float8e8m0"), saturate, mode), expected, mode)


FORMS: Mapping[str, tuple[tuple[int, ...], dict[str, int]]] = {
    "one": ((), {}),
    "axis": ((4,), {"axis": 1}),
    "blocks": ((3, 2, 5), {"axis": 1, "block_size": 2}),
}
"""Shapes of scales for [3, 4, 5], and the attributes that say so."""


def make_scalings() -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Return a model that quantizes and dequantizes by all small types and forms, and its input."""
    random = np.random.default_rng(5)
    x = (random.normal(size=(3, 4, 5)) * np.exp2(random.integers(-3, 6, (3, 4, 5)))).astype(np.float32)
    x.ravel()[:4] = 0.5, 1.5, 2.5, -0.0
    graph = onnx.GraphProto(name="scalings")
    graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape))
    floats = ("float32", "float16", "bfloat16")
    types = (*FLOAT8, "float4e2m1", *SMALL_INTEGERS, "int8", "uint16")
    for number, dtype in enumerate(types):
        form, (extents, attributes) = [*FORMS.items()][number % 3]
        real = floats[number // 3 % 3]
        name = f"{dtype}_{form}_{real}"
        scale = np.exp2(random.integers(-1, 3, extents)).astype(get_dtype(real))
        whole = count_bits(dtype) < 32 and "float" not in dtype
        zeros = (np.arange(max(scale.size, 1)) % 3).reshape(extents) * int(whole)
        graph.initializer.append(numpy_helper.from_array(scale, f"{name}_scale"))
        graph.initializer.append(numpy_helper.from_array(zeros.astype(get_dtype(dtype)), f"{name}_zero"))
        by = [f"{name}_scale", f"{name}_zero"]
        kind = DTYPE_NUMBERS[real]
        graph.node.append(helper.make_node("Cast", ["x"], [f"{name}_x"], to=kind))
        graph.node.append(helper.make_node("QuantizeLinear", [f"{name}_x", *by], [name], **attributes))
        moved = f"{name}_moved"
        graph.node.append(helper.make_node("Transpose", [name], [moved], perm=[0, 1, 2]))
        back = helper.make_node("DequantizeLinear", [moved, *by], [f"{name}_back"], **attributes)
        graph.node.append(back)
        for made, element in ((moved, DTYPE_NUMBERS[dtype]), (f"{name}_back", kind)):
            graph.output.append(helper.make_tensor_value_info(made, element, x.shape))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)
    return model, {"x": x}


def test_scales_of_all_types_and_forms_are_as_defined(tmp_path: Path) -> None:
    model, inputs = make_scalings()
    with np.errstate(all="ignore"):
        expected = ReferenceEvaluator(model).run(None, inputs)
    names = [each.name for each in model.graph.output]

    export_c(model, output=tmp_path / "out")

    made = {
        name: np.zeros(value.shape, value.dtype) for name, value in zip(names, expected, strict=True)
    }
    run_library(build_library(tmp_path / "out", ("cc", "-std=c99", "-O1")), [inputs["x"]], made)
    for name, value in zip(names, expected, strict=True):
        require_same_bits(made[name], value, name)


NARROW = """net (bfloat16[2, 3] x, float8e5m2[4, 2] codes, int4[4] small) =>
    (bfloat16[2, 2] y, float8e5m2[3, 4, 1] moved, int4[2, 2] turned, bool[2, 3] above)
    <float[3, 2] w_float = {0.5, 1.5, -2.0, 0.25, 3.0, 1.0}, float float_half = {0.5},
    int64[4] pads = {0, 1, 0, 0}, int64[1] axis = {2}, int64[2] square = {2, 2}> {
    w = Cast <to = 16> (w_float)
    product = MatMul (x, w)
    y = Relu (product)
    half = Cast <to = 16> (float_half)
    x_half = Mul (x, half)
    above = Greater (x, x_half)
    padded = Pad (codes, pads)
    back = Transpose <perm = [1, 0]> (padded)
    moved = Unsqueeze (back, axis)
    four = Reshape (small, square)
    turned = Transpose <perm = [1, 0]> (four)
}"""


def test_small_types_are_moved_and_computed_with(tmp_path: Path) -> None:
    model = parse(NARROW, ir=10, opset=21)
    random = np.random.default_rng(6)
    inputs = {
        "x": random.normal(size=(2, 3)).astype(get_dtype("bfloat16")),
        "codes": np.arange(8, dtype=np.uint8).reshape(4, 2).view(get_dtype("float8e5m2")),
        "small": np.array([-8, 7, 0xF3, 2]).astype(get_dtype("int4")),  # bits above a code do not count
    }
    expected = ReferenceEvaluator(model).run(None, inputs)

    export_c(model, output=tmp_path / "out")

    names = [each.name for each in model.graph.output]
    made = {
        name: np.zeros(value.shape, value.dtype) for name, value in zip(names, expected, strict=True)
    }
    library = build_library(tmp_path / "out", ("cc", "-std=c99", "-O1"))
    run_library(library, list(inputs.values()), made)
    for name, value in zip(names, expected, strict=True):
        require_same_bits(made[name], value, name)
    assert verify_program(tmp_path / "out").passed
