"""The codegen `c` by value: what emx-onnx-cgen alone loses or computes wrong, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiling import compiled, refusal, region
from helpers.cutting import original, ramp
from helpers.support import parse
from numpy.typing import NDArray
from onnx import helper, numpy_helper

pytest.importorskip("emx_onnx_cgen")

NAN, INF = np.nan, np.inf
MOST = np.finfo(np.float32).max
WORDS = np.array([3, -3, 2**31 - 1, -(2**31), -1, 2, 1, 0], np.int32)


def floats(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def run(text: str, folder: Path, inputs: dict[str, Any], stored: dict[str, Any], opset: int = 21) -> Any:
    """Return what C makes of the inputs of a model, whose initializers are `stored`, as its output y."""
    proto = parse(text, opset=opset)
    for name, value in stored.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return compiled(proto, folder, "c")[2](inputs)["y"]


@pytest.mark.parametrize(
    ("line", "given", "expected"),
    [
        ("Relu(x)", (NAN, -1, 2, -INF), (NAN, 0, 2, 0)),
        ("Clip(x, low, high)", (NAN, -9, 9, INF), (NAN, -1, 4, 4)),
        ("Clip(x, nan, high)", (1, 2, 3, 4), (NAN, NAN, NAN, NAN)),
        ("Max(x, low)", (NAN, -9, 9, INF), (NAN, -1, 9, INF)),
        ("Max(x, nan)", (1, -9, INF, -INF), (NAN, NAN, NAN, NAN)),
        ("Min(x, high)", (NAN, -9, 9, INF), (NAN, -9, 4, 4)),
        ("HardSigmoid(x)", (NAN, -9, 9, 0), (NAN, 0, 1, 0.5)),
        ("HardSwish(x)", (NAN, -9, 9, 3e38), (NAN, 0, 9, 3e38)),
    ],
)
@pytest.mark.parametrize("dtype", ["float", "double", "float16"])
def test_no_number_stays_no_number(
    line: str, given: tuple[float, ...], expected: tuple[float, ...], dtype: str, tmp_path: Path
) -> None:
    kind = {"float": np.float32, "double": np.float64, "float16": np.float16}[dtype]
    if kind is np.float16:
        given, expected = (
            tuple(min(each, 6e4) if each < INF else each for each in values)
            for values in (given, expected)
        )
    stored = {"low": kind(-1), "high": kind(4), "nan": kind(NAN)}
    text = f"g ({dtype}[4] x) => ({dtype}[4] y) {{ y = {line} }}"
    used = {name: value for name, value in stored.items() if name in line}

    made = run(text, tmp_path, {"x": np.array(given, kind)}, used)

    np.testing.assert_allclose(made, np.array(expected, kind), rtol=1e-3)


@pytest.mark.parametrize(
    ("line", "shape"),
    [
        ("MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)", "1,1,1,2"),
        ("GlobalMaxPool(x)", "1,1,1,1"),
        ("ReduceMax<keepdims=1>(x, axes)", "1,1,1,4"),
        ("ReduceMin<keepdims=1>(x, axes)", "1,1,1,4"),
    ],
)
def test_no_number_stays_where_many_become_one(line: str, shape: str, tmp_path: Path) -> None:
    x = np.arange(8, dtype=np.float32).reshape(1, 1, 2, 4)
    x[0, 0, 0, 0] = NAN
    stored = {"axes": np.array([2])} if "axes" in line else {}

    made = run(
        f"g (float[1,1,2,4] x) => (float[{shape}] y) {{ y = {line} }}", tmp_path, {"x": x}, stored
    )

    assert np.isnan(made.reshape(-1)[0])
    assert np.isfinite(made.reshape(-1)[1:]).all()


def test_whole_powers_wrap(tmp_path: Path) -> None:
    base = np.array([2, -3, 7, -1, 46341, 0, -2, 1], np.int32)
    exponent = np.array([31, 3, 11, 5, 2, 0, -1, -3], np.int32)
    expected = [-(2**31), -27, 7**11 - 2**32 * (7**11 // 2**32 + 1), -1, 46341**2 - 2**32, 1, 0, 1]

    made = run(
        "g (int32[8] x, int32[8] e) => (int32[8] y) { y = Pow(x, e) }",
        tmp_path,
        {"x": base, "e": exponent},
        {},
    )

    assert made.tolist() == [(each + 2**31) % 2**32 - 2**31 for each in expected]


def test_a_fraction_raises_a_whole_number(tmp_path: Path) -> None:
    x = np.array([9, 2, 3**33, -(2**40)])
    text = "g (int64[4] x, float[4] e) => (int64[4] y) { y = Pow(x, e) }"

    made = run(text, tmp_path, {"x": x, "e": floats(0.5, 0.5, 1, 1)}, {})

    assert made.tolist() == [3, 1, 3**33, -(2**40)]


def test_halves_become_integers_of_16_bits(tmp_path: Path) -> None:
    x = np.array([3001, -3001, INF, -INF, 65504, 0.5], np.float16)
    stored = {"s": np.float16(1), "z": np.int16(3)}
    text = "g (float16[6] x) => (int16[6] y) { y = QuantizeLinear(x, s, z) }"

    made = run(text, tmp_path, {"x": x}, stored)

    ends = np.iinfo(np.int16)
    assert made.tolist() == [int(x[0]) + 3, int(x[1]) + 3, ends.max, ends.min, ends.max, 3]


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_a_shift_by_all_bits_and_more_leaves_none(bits: int, direction: str, tmp_path: Path) -> None:
    by = np.array([0, 1, bits - 1, bits, bits + 1, 200], f"uint{bits}")
    x = np.full(6, 2**bits - 1, f"uint{bits}")
    kind, line = f"uint{bits}[6]", f'BitShift<direction="{direction}">(x, b)'
    text = f"g ({kind} x, {kind} b) => ({kind} y) {{ y = {line} }}"

    made = run(text, tmp_path, {"x": x, "b": by}, {})

    shifted = [2**bits - 1 << int(b) if direction == "LEFT" else 2**bits - 1 >> int(b) for b in by]
    assert made.tolist() == [each % 2**bits for each in shifted]


@pytest.mark.parametrize("largest", [0, 1])
def test_no_number_is_the_greatest_key(largest: int, tmp_path: Path) -> None:
    text = f"g (float[5] x) => (float[5] y, int64[5] i) {{ y, i = TopK<largest={largest}>(x, k) }}"
    proto = parse(text)
    proto.graph.initializer.append(numpy_helper.from_array(np.array([5]), "k"))

    made = compiled(proto, tmp_path, "c")[2]({"x": floats(1, NAN, INF, 1, NAN)})

    assert made["i"].tolist() == ([1, 4, 2, 0, 3] if largest else [0, 3, 2, 1, 4])


@pytest.mark.parametrize("ends", [(2**62, 2**31), (2**33 + 1, 2**40)])
def test_a_slice_ends_where_the_axis_does(ends: tuple[int, int], tmp_path: Path) -> None:
    x = ramp(3, 4)
    text = "g (float[3,4] x, int64[2] s, int64[2] e) => (float[2,4] y) { y = Slice(x, s, e) }"

    made = run(text, tmp_path, {"x": x, "s": np.array([1, -(2**40)]), "e": np.array(ends)}, {})

    np.testing.assert_array_equal(made, x[1:])


def test_sums_of_exponentials_do_not_overflow(tmp_path: Path) -> None:
    x = floats(1000, 1001, -2000, -2000, -INF, -INF, NAN, 1).reshape(4, 2)
    text = "g (float[4,2] x) => (float[4,1] y) { y = ReduceLogSumExp<keepdims=1>(x, axes) }"

    made = run(text, tmp_path, {"x": x}, {"axes": np.array([1])})

    expected = [1000 + np.log1p(np.e), -2000 + np.log(2), -INF, NAN]
    np.testing.assert_allclose(made[:, 0], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("ReduceL1", (2.0, 0.25)),
        ("ReduceL2", (2.0, 0.25)),
        ("ReduceSumSquare", (4.0, 0.0625)),
        ("ReduceSum", (-2.0, 0.25)),
        ("ReduceLogSumExp", (-2.0, 0.25)),
        ("ReduceLogSum", (NAN, np.log(0.25))),
    ],
)
@pytest.mark.parametrize("stated", [False, True])
def test_a_reduction_without_axes_still_does_its_part(
    op: str, expected: tuple[float, float], stated: bool, tmp_path: Path
) -> None:
    operands = "x, axes" if stated else "x"
    text = f"g (float[2] x) => (float[2] y) {{ y = {op}<noop_with_empty_axes=1>({operands}) }}"

    made = run(
        text, tmp_path, {"x": floats(-2, 0.25)}, {"axes": np.zeros(0, np.int64)} if stated else {}
    )

    np.testing.assert_allclose(made, expected, rtol=1e-6)


def test_what_is_multiplied_by_zero_is_left_out(tmp_path: Path) -> None:
    text = "g (float[1,2] x) => (float[1,2] y) { y = Gemm<beta=0.0>(x, w, c) }"

    made = run(
        text,
        tmp_path,
        {"x": floats(1, 2).reshape(1, 2)},
        {"w": np.eye(2, dtype=np.float32), "c": floats(NAN, INF)},
    )

    assert made.tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("line", "opset", "expected"),
    [
        ("Clip<min=-1.0>(x)", 6, (MOST, -1, 3)),
        ("Clip(x, low)", 13, (MOST, -1, 3)),
        ("Clip(x, , high)", 13, (2, -MOST, 2)),
        ("Clip(x)", 13, (MOST, -MOST, 3)),
    ],
)
def test_a_bound_that_is_left_out_is_the_limit_of_the_type(
    line: str, opset: int, expected: tuple[float, ...], tmp_path: Path
) -> None:
    stored = {name: np.float32(value) for name, value in (("low", -1), ("high", 2)) if name in line}

    made = run(
        f"g (float[3] x) => (float[3] y) {{ y = {line} }}",
        tmp_path,
        {"x": floats(INF, -INF, 3)},
        stored,
        opset=opset,
    )

    assert made.tolist() == list(expected)


@pytest.mark.parametrize(
    ("op", "gates", "direction"),
    [
        ("LSTM", 4, "forward"),
        ("LSTM", 4, "reverse"),
        ("LSTM", 4, "bidirectional"),
        ("GRU", 3, "forward"),
        ("RNN", 1, "forward"),
    ],
)
@pytest.mark.parametrize("lengths", [False, True])
def test_a_sequence_is_read_in_its_direction(
    op: str, gates: int, direction: str, lengths: bool, tmp_path: Path
) -> None:
    """A step that is read from the end makes the result of its own place."""
    many, hidden = 1 + (direction == "bidirectional"), 3
    line = f"{op}(x, w, r, , {'n' if lengths else ''})"
    shape = f"float[5,{many},2,{hidden}]"
    proto = parse(f"g (float[5,2,4] x, int32[2] n) => ({shape} y) {{ y = {line} }}")
    proto.graph.node[0].attribute.extend(
        [helper.make_attribute("direction", direction), helper.make_attribute("hidden_size", hidden)]
    )
    drawn = np.random.default_rng(3)
    for name, width in (("w", 4), ("r", hidden)):
        value = drawn.normal(size=(many, gates * hidden, width)).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(value, name))
    inputs = {"x": drawn.normal(size=(5, 2, 4)).astype(np.float32), "n": np.array([5, 3], np.int32)}

    made = compiled(proto, tmp_path, "c")[2](inputs)["y"]

    np.testing.assert_allclose(made, original(proto, inputs)["y"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("width", "points"), [(32, ""), (48, "packed"), (48, "float"), (40, "packed")])
def test_scales_of_blocks_may_be_flat(width: int, points: str, tmp_path: Path) -> None:
    columns, blocks, drawn = 3, -(-width // 16), np.random.default_rng(5)
    stored: dict[str, Any] = {
        "w": drawn.integers(0, 256, (columns, blocks, 8)).astype(np.uint8),
        "s": drawn.uniform(0.1, 1, columns * blocks).astype(np.float32),
    }
    if points == "packed":
        stored["z"] = drawn.integers(0, 256, columns * ((blocks + 1) // 2)).astype(np.uint8)
    elif points:
        stored["z"] = drawn.uniform(2, 12, columns * blocks).astype(np.float32)
    node = helper.make_node(
        "MatMulNBits",
        ["x", *stored],
        ["y"],
        domain="com.microsoft",
        K=width,
        N=columns,
        block_size=16,
        bits=4,
    )
    values = [
        helper.make_tensor_value_info(name, 1, [2, size])
        for name, size in (("x", width), ("y", columns))
    ]
    graph = helper.make_graph(
        [node], "g", values[:1], values[1:], [numpy_helper.from_array(v, n) for n, v in stored.items()]
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=9)
    inputs = {"x": drawn.normal(size=(2, width)).astype(np.float32)}

    made = compiled(proto, tmp_path, "c")[2](inputs)["y"]

    np.testing.assert_allclose(made, original(proto, inputs)["y"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("line", "inside", "opset", "reason"),
    [
        (
            'Resize<mode="nearest", coordinate_transformation_mode="tf_half_pixel_for_nn">(x, , k)',
            "float[1,1,4,4] x",
            18,
            "Resize of tf_half_pixel_for_nn",
        ),
        (
            'GridSample<mode="cubic", padding_mode="border">(x, g)',
            "float[1,1,4,4] x, float[1,4,4,2] g",
            20,
            "cubic GridSample with padding of borders",
        ),
        ("Hardmax<axis=1>(x)", "float[1,1,4,4] x", 11, "Hardmax of operator set 11"),
        (
            "ReduceLogSumExp<keepdims=1>(x, a)",
            "float[1,1,4,4] x, int64[1] a",
            18,
            "ReduceLogSumExp over axes that are computed",
        ),
    ],
)
def test_what_is_computed_wrong_is_refused(
    line: str, inside: str, opset: int, reason: str, tmp_path: Path
) -> None:
    extents = "1,1,4,1" if "Reduce" in line else "1,1,4,4"
    proto = parse(f"g ({inside}) => (float[{extents}] y) {{ [wrong] y = {line} }}", opset=opset)
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(4, np.float32), "k"))

    error = refusal(region(proto, tmp_path), "c")

    assert (str(error), error.nodes) == (f"emx-onnx-cgen computes a {reason} wrong", ("wrong",))
