"""Weights of matrix products in 4 bits: errors, forms by what targets take, what is left, the report."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import examples, parse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import numpy_helper

import byoc
from byoc.errors import InputError
from byoc.model import prepare_model
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.quantization import ChosenPrecision, Precision, choose_precision, round_to_blocks
from byoc.rules import Target, load_rules

onnxruntime = pytest.importorskip("onnxruntime.capi._pybind_state")

NET = """net (DTYPE[n, 96] x) => (DTYPE[n, 40] y, DTYPE[n, 64] z) <DTYPE[40] b> {
    t = Transpose<perm = [1, 0]> (v)
    a = MatMul(x, t)
    r = Relu(a)
    y = Gemm<transB = 1> (r, w, b)
    z = Gemm<alpha = 2.0> (r, u)
}"""
SHAPES = {"v": (64, 96), "w": (40, 64), "u": (64, 64)}
PLAIN = "target: npu\ncost_model: openvino-cpu\ncodegen: CODEGEN\ndtype: any\nops: [OPS]\n"


def draw(shape: tuple[int, ...], seed: int, dtype: Any = np.float32) -> NDArray[Any]:
    """Return weights as trained networks have them: most are small, a few are large."""
    rng = np.random.default_rng(seed)
    return (rng.standard_t(4, shape) / 20).astype(dtype)


def build(dtype: str = "float") -> onnx.ModelProto:
    model = parse(NET.replace("DTYPE", dtype))
    kind = np.float32 if dtype == "float" else np.float16
    for seed, (name, shape) in enumerate(SHAPES.items()):
        model.graph.initializer.append(numpy_helper.from_array(draw(shape, seed, kind), name))
    bias = numpy_helper.from_array(draw((40,), 9, kind), "b")
    del model.graph.initializer[: len(model.graph.initializer) - len(SHAPES)]
    model.graph.initializer.append(bias)
    return model


def load(path: Path) -> Target:
    return load_rules(str(path))


def write_rules(folder: Path, *ops: str, codegen: str = "reference") -> Path:
    path = folder / "npu.yaml"
    taken = ", ".join(f"{{op: '{op}'}}" for op in ops)
    path.write_text(PLAIN.replace("OPS", taken).replace("CODEGEN", codegen))
    return path


def quantize(model: onnx.ModelProto, targets: Sequence[Target], block: int = 32) -> ChosenPrecision:
    precision = Precision("int4-weights", block=block)
    return choose_precision(prepare_model(model, "net"), targets, precision)


def restore_onnxruntime(
    weights: NDArray[np.float32], block: int, *, symmetric: bool = True
) -> NDArray[np.float32]:
    """Return weights `[K, N]` as onnxruntime's own quantizer rounds them."""
    rows, columns = weights.shape
    blocks = -(-rows // block)
    padded = np.zeros((blocks * block, columns), np.float32)
    padded[:rows] = weights
    packed = np.zeros((columns, blocks, block // 2), np.uint8)
    scales = np.zeros(columns * blocks, np.float32)
    points = np.zeros(columns * ((blocks + 1) // 2), np.uint8)
    onnxruntime.quantize_matmul_4bits(packed, padded, scales, points, block, columns, rows, symmetric)
    numbers = np.stack([packed & 15, packed >> 4], axis=-1).reshape(columns, blocks, block)
    pairs = points.reshape(columns, -1)
    zeros = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(columns, -1)[:, :blocks, np.newaxis]
    moved = numbers.astype(np.float32) - (8 if symmetric else zeros.astype(np.float32))
    values = moved * scales.reshape(columns, blocks, 1)
    return values.reshape(columns, -1)[:, :rows].T


@given(
    shape=st.tuples(st.integers(1, 100), st.integers(1, 12)),
    block=st.sampled_from([16, 32, 64]),
    seed=st.integers(0, 1 << 16),
    spread=st.sampled_from([1e-6, 1.0, 1e4]),
)
@settings(max_examples=examples(60))
def test_squared_errors_are_at_most_onnxruntimes(
    shape: tuple[int, int], block: int, seed: int, spread: float
) -> None:
    weights = draw(shape, seed) * np.float32(spread)
    for symmetric in (True, False):
        ours = round_to_blocks(np.ascontiguousarray(weights.T), block, symmetric=symmetric)
        error = np.square(ours.restore().T - weights, dtype=np.float64).sum()
        other = restore_onnxruntime(weights, block, symmetric=symmetric)
        theirs = np.square(other - weights, dtype=np.float64).sum()
        assert error <= theirs * (1.05 if ours.zeros is None and not symmetric else 1 + 1e-6)
        assert ours.error == pytest.approx(error, rel=1e-3, abs=1e-12 * spread**2)


def test_zeros_are_stored_where_weights_are_on_one_side_and_not_where_they_gain_little() -> None:
    weights = abs(draw((256, 32), 1)).T
    plain, moved = (round_to_blocks(weights, 32, symmetric=each) for each in (True, False))
    assert plain.zeros is None
    assert moved.zeros is not None
    assert moved.error < 0.4 * plain.error
    assert moved.pack_zeros().shape == (32, 4)  # type: ignore[union-attr]
    exact = np.tile(np.arange(-8, 8, dtype=np.float32), (4, 8))
    assert round_to_blocks(exact, 16, symmetric=False).zeros is None


def test_squared_errors_are_clearly_below_onnxruntimes() -> None:
    for block in (16, 32, 128):
        weights = draw((512, 256), 1)
        ours = round_to_blocks(np.ascontiguousarray(weights.T), block)
        theirs = np.square(restore_onnxruntime(weights, block) - weights, dtype=np.float64).sum()
        assert ours.error < 0.93 * theirs, block


def test_what_is_stored_is_what_onnxruntime_computes_with(tmp_path: Path) -> None:
    """Both forms give the products of the weights that the integers stand for."""
    inputs = {"x": draw((3, 96), 7)}
    model = build()
    target = load(write_rules(tmp_path, "*"))
    for targets in ([target], [load(write_rules(tmp_path, "MatMul", "Gemm", "Relu"))]):
        done = quantize(model, targets)
        free = targets[0] is target  # of MatMulNBits, which has zeros
        stored = {
            name: round_to_blocks(draw(shape, n), 32, symmetric=not free).restore()
            for n, (name, shape) in enumerate(SHAPES.items())
        }
        stored["u"] = round_to_blocks(np.ascontiguousarray(draw(SHAPES["u"], 2).T), 32).restore().T
        hidden = np.maximum(inputs["x"] @ stored["v"].T, 0)
        with without_optimizations():
            exact = run_session(open_session(done.model.proto), inputs)
        # optimized: onnxruntime fuses DequantizeLinear and MatMul, and must not round activations
        for made in (exact, run_session(open_session(done.model.proto), inputs)):
            np.testing.assert_allclose(made["y"], hidden @ stored["w"].T + draw((40,), 9), atol=2e-5)
            np.testing.assert_allclose(made["z"], 2 * hidden @ stored["u"], atol=2e-5)


def test_the_form_is_the_one_that_a_target_takes(tmp_path: Path) -> None:
    model = build()
    plain = load(write_rules(tmp_path, "MatMul", "Gemm"))
    whole = load(write_rules(tmp_path, "*"))
    forms = {
        "all": ["MatMulNBits", "MatMulNBits", "DequantizeLinear and Gemm"],
        "plain": ["DequantizeLinear and MatMul", *["DequantizeLinear and Gemm"] * 2],
        "none": ["MatMulNBits", "MatMulNBits", "DequantizeLinear and Gemm"],
    }
    for name, targets in (("all", [whole]), ("plain", [plain]), ("none", [])):
        done = quantize(model, targets, 16)
        assert [each.operator for each in done.weights] == forms[name], name
        assert [each.name for each in done.weights] == ["t", "w", "u"]
        assert all(18 < each.decibels < 25 for each in done.weights)
        held = {tensor.name for tensor in done.model.proto.graph.initializer}
        assert held.isdisjoint({"v", "w", "u"})
        assert all(node.op_type != "Transpose" for node in done.model.proto.graph.node)


def test_a_target_without_zeros_gets_symmetric_weights(tmp_path: Path) -> None:
    path = write_rules(tmp_path, "com.microsoft.MatMulNBits")
    takes_zeros = load(path)
    path.write_text(path.read_text().replace("NBits'", "NBits', tensors: {zero_points: {absent: true}}"))
    model = build()
    for target, expected in ((takes_zeros, 4), (load(path), 3)):
        done = quantize(model, [target], 32)
        inputs = [len(n.input) for n in done.model.index.nodes if n.op_type == "MatMulNBits"]
        assert inputs[0] == expected


@pytest.mark.parametrize(("ops", "codegen"), [("*", "reference"), ("MatMul Gemm Relu", "c"), ("*", "c")])
def test_a_bundle_keeps_a_quarter_and_tells_the_noise(ops: str, codegen: str, tmp_path: Path) -> None:
    rules = write_rules(tmp_path, *ops.split(), codegen=codegen)
    given: dict[str, Any] = {"strategy": "all-supported", "dims": {"n": 3}}
    precision = Precision("int4-weights", block=32)
    result = byoc.partition(build(), rules, output=tmp_path / "b", precision=precision, **given)
    assert result.verification is not None
    assert result.verification.passed
    assert result.verification.accuracy is not None
    assert result.report.precision is not None
    assert [each.name for each in result.report.precision.weights] == ["t", "w", "u"]
    size = (tmp_path / "b" / "weights.bin").stat().st_size
    assert size < 0.2 * 4 * sum(int(np.prod(shape)) for shape in SHAPES.values())
    onnx.save(build(), tmp_path / "net.onnx")
    again = byoc.verify(tmp_path / "b", tmp_path / "net.onnx")
    assert again.passed
    assert again.accuracy is not None


def test_half_precision_keeps_scales_of_its_own(tmp_path: Path) -> None:
    model = build("float16")
    done = quantize(model, [load(write_rules(tmp_path, "*"))], 32)
    kinds = {tensor.name: tensor.data_type for tensor in done.model.proto.graph.initializer}
    assert kinds["t_scales"] == onnx.TensorProto.FLOAT16
    assert all(18 < each.decibels < 25 for each in done.weights)


@pytest.mark.parametrize("most", [1, 2, 3, 7])
def test_weights_of_a_few_least_numbers_of_half_precision_are_exact(most: int, tmp_path: Path) -> None:
    """Their scales are below half of the least number, and would be zero."""
    numbers = np.resize(np.arange(-most, most + 1), (64, 16))
    weights = (numbers * np.finfo(np.float16).smallest_subnormal).astype(np.float16)
    model = parse("half (float16[n, 64] x) => (float16[n, 16] y) { y = MatMul(x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    inputs = {"x": np.eye(64, dtype=np.float16)}
    for ops in ("*", "MatMul"):
        target = load(write_rules(tmp_path, ops))
        done = quantize(model, [target], 32)
        assert [each.decibels for each in done.weights] == [np.inf]
        with without_optimizations():
            made = run_session(open_session(done.model.proto), inputs)
        np.testing.assert_array_equal(made["y"], weights)


def test_what_is_left_is_told_with_the_reason(tmp_path: Path, byoc: Callable[..., Any]) -> None:
    model = parse("""net (float[n, 3, 32, 32] x, int64[m] i) => (float[n, 3, 32, 32] y, float[m, 64] e) {
        a = MatMul(w, x)
        b = MatMul(a, s)
        y = MatMul(b, r)
        e = Gather(t, i)
    }""")
    shapes = {"w": (32, 32), "s": (3, 32, 32), "r": (32, 32), "t": (64, 64)}
    for seed, (name, shape) in enumerate(shapes.items()):
        model.graph.initializer.append(numpy_helper.from_array(draw(shape, seed), name))
    onnx.save(model, tmp_path / "m.onnx")
    asked = ["partition", tmp_path / "m.onnx", "--rules", write_rules(tmp_path, "*")]
    ran = byoc(*asked, "--quantize", "int4-weights", "--verbose")
    assert ran.code == 0
    for line in (
        "weights left as they are: 'w': not the second operand of MatMul",
        "weights left as they are: 's': no matrix, but read by MatMul",
        "weights left as they are: 't': read by Gather, not by MatMul or Gemm",
        "Weights of 4 bits in 1 product, by the ratio of the weights, or of outputs on --data,",
        "dB: 'r', MatMulNBits",
    ):
        assert line in ran.out, line
    for flags, reason in (
        (("--quantize", "int4-weights", "--block", "24"), "--block 24: must be a power of two"),
        (("--quantize", "int8", "--block", "32"), "--block 32: is for --quantize int4-weights alone"),
    ):
        ran = byoc(*asked, *flags)
        assert (ran.code, ran.err.count("\n")) == (1, 1)
        assert reason in ran.err


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    model = build()
    broken = np.array(numpy_helper.to_array(model.graph.initializer[1]))
    broken[0, 0] = np.inf
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(broken, "w"))
    with pytest.raises(InputError, match="'w' is not finite everywhere"):
        quantize(model, [load(write_rules(tmp_path, "*"))], 32)


@pytest.mark.parametrize("largest", [1e-43, 1e-39, 3.4e38])
def test_weights_at_the_ends_of_their_type_are_rounded_without_a_warning(largest: float) -> None:
    weights = np.linspace(-1, 1, 210).reshape(3, 70).astype(np.float32) * np.float32(largest)
    done = round_to_blocks(weights, 32)
    assert abs(done.restore() - weights).max() <= largest / 7
    assert done.decibels > 20


def test_a_block_is_at_most_as_long_as_the_inputs(tmp_path: Path) -> None:
    done = quantize(build(), [load(write_rules(tmp_path, "*"))], 1 << 40)
    sizes = [
        attribute.i
        for node in done.model.proto.graph.node
        for attribute in node.attribute
        if attribute.name == "block_size"
    ]
    assert sizes == [128, 64, 64]


def test_a_model_whose_weights_are_all_inputs_is_raised(tmp_path: Path) -> None:
    """Before IR 4 each initializer is a graph input as well, which integers and scales are not."""
    model = parse("old (float[2, 64] x, float[64, 32] w) => (float[2, 32] y) { y = MatMul(x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(draw((64, 32), 3), "w"))
    model.ir_version = 3
    model.opset_import[0].version = 9
    done = quantize(model, [load(write_rules(tmp_path, "*"))], 32)
    assert [each.operator for each in done.weights] == ["MatMulNBits"]
    inputs = {"x": draw((2, 64), 4)}
    rows = np.ascontiguousarray(draw((64, 32), 3).T)
    stored = round_to_blocks(rows, 32, symmetric=False).restore()
    made = run_session(open_session(done.model.proto), inputs)
    np.testing.assert_allclose(made["y"], inputs["x"] @ stored.T, atol=2e-5)


def make_moments(inputs: int, seed: int) -> NDArray[np.float64]:
    """Return second moments of inputs that depend on one another, some of them always 0."""
    rng = np.random.default_rng(seed)
    drawn = rng.standard_normal((60, max(inputs // 3, 1))) @ rng.standard_normal(
        (max(inputs // 3, 1), inputs)
    )
    drawn += 0.3 * rng.standard_normal(drawn.shape)
    drawn[:, rng.random(inputs) < 0.1] = 0
    return drawn.T @ drawn / len(drawn)


def measure_error(
    weights: NDArray[Any], restored: NDArray[Any], moments: NDArray[np.float64]
) -> tuple[float, float]:
    """Return the power of outputs, and of their errors, by moments of inputs."""
    exact, away = (each.astype(np.float64) for each in (weights, weights - restored))
    return float(((exact @ moments) * exact).sum()), float(((away @ moments) * away).sum())


@given(
    shape=st.tuples(st.integers(1, 12), st.integers(1, 100)),
    block=st.sampled_from([16, 32, 64]),
    symmetric=st.booleans(),
    dtype=st.sampled_from([np.float32, np.float16]),
    seed=st.integers(0, 1 << 16),
)
@settings(max_examples=examples(30), deadline=None)
def test_moments_give_integers_within_their_grid_and_the_error_that_is_told(
    shape: tuple[int, int], block: int, symmetric: bool, dtype: Any, seed: int
) -> None:
    """Rows of any length; dead inputs and moments of lower rank than inputs included."""
    weights, moments = draw(shape, seed, dtype), make_moments(shape[1], seed)
    done = round_to_blocks(weights, block, symmetric=symmetric, moments=moments)
    assert done.stored.max() <= 15
    assert (done.zeros is None) == symmetric
    assert done.scales.dtype == dtype
    assert np.isfinite(done.restore()).all()
    squares, error = measure_error(weights, done.restore(), moments)
    assert done.squares == pytest.approx(squares, rel=1e-6)
    assert done.error == pytest.approx(error, rel=1e-2, abs=1e-6 * squares)


def test_moments_make_the_errors_of_outputs_smaller_on_other_inputs() -> None:
    rng = np.random.default_rng(3)
    mix = rng.standard_normal((40, 96)) * rng.lognormal(size=96)
    drawn = rng.standard_normal((800, 40)) @ mix + 0.1 * rng.standard_normal((800, 96))
    seen, other = (each.T @ each / len(each) for each in (drawn[:400], drawn[400:]))
    weights = draw((48, 96), 1)
    for block, symmetric in ((32, True), (32, False), (128, False)):
        rounded = [
            round_to_blocks(weights, block, symmetric=symmetric, moments=each) for each in (None, seen)
        ]
        before, after = (measure_error(weights, each.restore(), other)[1] for each in rounded)
        assert after < 0.2 * before, (block, symmetric)


@pytest.mark.parametrize("moments", [np.zeros((40, 40)), np.diag([0.0] + [1.0] * 39)])
def test_moments_of_dead_inputs_leave_their_weights_near(moments: NDArray[np.float64]) -> None:
    """Inputs that were 0 on all samples need not be so on others."""
    weights = draw((8, 40), 5)
    plain, moved = (
        round_to_blocks(weights, 32, symmetric=True, moments=each) for each in (None, moments)
    )
    near, far = (np.square(each.restore() - weights).sum() for each in (plain, moved))
    assert far < 1.3 * near


def test_samples_lower_the_errors_of_each_form_of_product(tmp_path: Path) -> None:
    """Transposed weights and Gemm, in MatMulNBits and behind DequantizeLinear."""
    model, rng = build(), np.random.default_rng(4)
    mix = rng.standard_normal((12, 96)).astype(np.float32)
    samples = [rng.standard_normal((40, 12)).astype(np.float32) @ mix for _ in range(12)]
    (tmp_path / "data").mkdir()
    for number, sample in enumerate(samples[:8]):
        np.save(tmp_path / "data" / f"{number}.npy", sample)
    for ops in (["*"], ["MatMul", "Gemm", "Relu"]):
        targets = [load(write_rules(tmp_path, *ops))]
        noises = []
        for data in (None, tmp_path / "data"):
            precision = Precision("int4-weights", data=data)
            done = choose_precision(prepare_model(model, "net"), targets, precision)
            assert done.notes == ()
            with without_optimizations():
                exact, rounded = open_session(model), open_session(done.model.proto)
            noise = {"y": 0.0, "z": 0.0}
            for sample in samples[8:]:
                expected, made = (run_session(each, {"x": sample}) for each in (exact, rounded))
                for name in noise:
                    noise[name] += float(np.square(expected[name] - made[name]).sum())
            noises.append(noise)
        plain, moved = noises
        assert all(moved[name] < 0.5 * plain[name] for name in plain), ops


@pytest.mark.parametrize("number", [0.0, np.nan, np.inf, 1e30])
def test_samples_that_tell_nothing_leave_the_rounding_without_data(
    number: float, tmp_path: Path
) -> None:
    model = parse("net (float[n, 96] x) => (float[n, 40] y) { y = MatMul(x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(draw((96, 40), 3), "w"))
    np.save(tmp_path / "0.npy", np.full((1, 96), number, np.float32))
    plain, moved = (
        choose_precision(prepare_model(model, "net"), (), Precision("int4-weights", data=data))
        for data in (None, tmp_path)
    )
    assert moved.weights == plain.weights  # the decibels, too, which would be infinite
    assert moved.model.proto == plain.model.proto
    assert [note.text for note in moved.notes] == [
        "weights rounded without --data, on which their inputs cannot be measured: 'w'"
    ]
    assert not plain.notes


def test_made_up_data_is_not_used_and_a_note_says_so(tmp_path: Path) -> None:
    precision = Precision("int4-weights", data="random")
    done = choose_precision(prepare_model(build(), "net"), [load(write_rules(tmp_path, "*"))], precision)
    assert [note.text for note in done.notes] == [
        "--data random is not used: weights would be rounded for made-up inputs"
    ]


TIED = {
    "transpose": "t = Transpose<perm = [1, 0]> (e)\n y = MatMul(r, t)",
    "transB": "y = Gemm<transB = 1> (r, e)",
    "alpha": "y = Gemm<alpha = 2.0, transB = 1> (r, e)",
    "two": "t = Transpose (e)\n a = MatMul(r, t)\n b = Gemm<transB = 1> (r, e)\n y = Add(a, b)",
}


@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize("head", TIED)
@pytest.mark.parametrize("ops", ["*", "MatMul Gemm Gather"])
def test_a_tied_head_and_its_table_are_one_tensor_of_8_bits(
    head: str, ops: str, dtype: str, tmp_path: Path
) -> None:
    """Rows that Gather takes are those that the integers stand for, to the last bit."""
    text = f"net (int64[n] i) => ({dtype}[n, 64] r, {dtype}[n, 90] y)"
    model = parse(f"{text} {{ r = Gather(e, i)\n {TIED[head]} }}", opset=21, ir=10)
    kind = np.float32 if dtype == "float" else np.float16
    table = draw((90, 64), 8, kind)
    model.graph.initializer.append(numpy_helper.from_array(table, "e"))
    done = quantize(model, [load(write_rules(tmp_path, *ops.split()))])
    graph = done.model.proto.graph
    assert (
        max(np.prod(tensor.dims) for tensor in graph.initializer if tensor.data_type in (1, 10)) == 180
    )
    assert all(each.operator.endswith("GatherBlockQuantized") for each in done.weights)
    assert not done.notes
    free = "alpha" not in head and ops == "*"
    assert all(each.bits == 8 for each in done.weights)
    stored = round_to_blocks(table, 32, bits=8, symmetric=not free).restore().astype(kind)
    with without_optimizations():
        made = run_session(open_session(done.model.proto), {"i": np.arange(-90, 90)})
    np.testing.assert_array_equal(made["r"], np.concatenate([stored, stored]))
    assert np.square(stored - table).sum() < 1e-4 * np.square(table).sum()
    wide = stored.astype(np.float64)
    expected = np.concatenate([wide, wide]) @ wide.T * (2 if head in ("alpha", "two") else 1)
    np.testing.assert_allclose(made["y"], expected, rtol=1e-2, atol=1e-2 if kind == np.float16 else 1e-5)


def test_a_table_whose_rows_are_no_whole_blocks_stays(tmp_path: Path) -> None:
    model = parse("""net (int64[n] i) => (float[n, 40] r, float[n, 90] y) {
        r = Gather(e, i)
        y = Gemm<transB = 1> (r, e)
    }""")
    model.graph.initializer.append(numpy_helper.from_array(draw((90, 40), 8), "e"))
    done = quantize(model, [load(write_rules(tmp_path, "*"))])
    assert [each.operator for each in done.weights] == ["MatMulNBits"]
    (note,) = done.notes
    assert note.text == (
        "weights left as they are: 'e': read by Gather, whose rows of 40 are no whole blocks of 32"
    )


@pytest.mark.parametrize("ops", ["*", "MatMul Gemm Gather"])
def test_a_matrix_that_products_sum_along_either_axis_is_rounded_along_each(
    ops: str, tmp_path: Path
) -> None:
    """A square one would have the same packed shape both ways; a table is one of its rows."""
    model = parse("""net (float[n, 64] x, int64[m] i) => (float[n, 64] y, float[n, k] z, float[m, k] r)
    {
        y = MatMul(x, w)
        z = Gemm<transB = 1> (x, w)
        r = Gather(w, i)
    }""")
    weights = draw((64, 64), 5)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    done = quantize(model, [load(write_rules(tmp_path, *ops.split()))])
    assert len(done.weights) == 2
    x, i = draw((3, 64), 6) * 20, np.array([7, 9])
    with without_optimizations():
        made = run_session(open_session(done.model.proto), {"x": x, "i": i})
    for name, exact in {"y": x @ weights, "z": x @ weights.T, "r": weights[i]}.items():
        assert np.square(made[name] - exact).sum() < 0.02 * np.square(exact).sum(), name
