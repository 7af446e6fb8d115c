"""The bits of weights: each width as onnxruntime reads it, and the choice among them under a budget."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import examples, parse
from helpers.weighing import (
    ReplaceableWeights,
    RoundedModel,
    WeightOption,
    choose_options,
    make_branching,
    measure_output_noise,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import numpy_helper

from byoc.model import prepare_model
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.quantization import Precision, choose_precision, round_to_blocks
from byoc.rules import load_rules

NET = """net (float[n, 96] x) => (float[n, 40] y, float[n, 64] z) {
    a = MatMul(x, v)
    r = Relu(a)
    y = Gemm<transB = 1> (r, w)
    z = Gemm<alpha = 2.0> (r, u)
}"""
SHAPES = {"v": (96, 64), "w": (40, 64), "u": (64, 64)}
RULES = "target: npu\ncost_model: openvino-cpu\ncodegen: reference\ndtype: any\nops: [OPS]\n"
WIDTHS = (2, 4, 8)


def draw(shape: tuple[int, ...], seed: int, dtype: Any = np.float32) -> NDArray[Any]:
    """Return weights as trained networks have them: most are small, a few are large."""
    return (np.random.default_rng(seed).standard_t(4, shape) / 20).astype(dtype)


def build() -> onnx.ModelProto:
    model = parse(NET)
    for seed, (name, shape) in enumerate(SHAPES.items()):
        model.graph.initializer.append(numpy_helper.from_array(draw(shape, seed), name))
    return model


def write_rules(folder: Path, *ops: str) -> Path:
    path = folder / "npu.yaml"
    path.write_text(RULES.replace("OPS", ", ".join(f"{{op: '{op}'}}" for op in ops)))
    return path


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("block", [16, 128])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("symmetric", [True, False])
def test_integers_of_each_width_are_those_of_onnxruntime(
    bits: int, block: int, dtype: Any, symmetric: bool
) -> None:
    """MatMulNBits restores what `restore` gives; more bits leave a sixteenth of the error and less."""
    weights = abs(draw((24, 200), 3, dtype)) - dtype(0.05)
    made = round_to_blocks(weights, block, bits=bits, symmetric=symmetric)
    assert made.stored.max() < 1 << bits
    wider = round_to_blocks(weights, block, bits=2 * bits if bits < 8 else 4, symmetric=symmetric)
    assert wider.error < made.error / 5 if bits < 8 else wider.error > 50 * made.error
    kind = "float" if dtype == np.float32 else "float16"
    model = parse(f"""net ({kind}[200, 200] x) => ({kind}[200, 24] y) {{
        y = com.microsoft.MatMulNBits<K = 200, N = 24, bits = {bits}, block_size = {block}>
            (x, q, s{"" if made.zeros is None else ", z"})
    }}""")
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    zeros = made.pack_zeros()
    stored = {"q": made.pack(), "s": made.scales} | ({} if zeros is None else {"z": zeros})
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in stored.items())
    held = sum(each.nbytes for each in stored.values())
    assert made.nbytes == held
    with without_optimizations():
        found = run_session(open_session(model), {"x": np.eye(200, dtype=dtype)})["y"]
    np.testing.assert_allclose(found.T, made.restore().astype(dtype), rtol=2e-3, atol=1e-6)


@given(
    seed=st.integers(0, 1 << 16),
    count=st.integers(1, 5),
    budget=st.integers(0, 4000),
)
@settings(max_examples=examples(100))
def test_the_choice_of_bits_is_the_best_and_the_bound_holds(seed: int, count: int, budget: int) -> None:
    rng = np.random.default_rng(seed)
    tensors = [
        [
            WeightOption(bits, int(size * bits / 4), float(rng.random() * 4.0**-bits))
            for bits in (2, 4, 8)
        ]
        + [WeightOption(32, 8 * size, 0.0)]
        for size in rng.integers(20, 300, count).tolist()
    ]
    fitting = [each for each in product(*tensors) if sum(one.nbytes for one in each) <= budget]
    chosen = choose_options(tensors, budget)
    assert (chosen is None) == (not fitting)
    if chosen is not None:
        best = min(sum(one.noise for one in each) for each in fitting)
        assert chosen.nbytes <= budget
        assert chosen.noise == pytest.approx(best)
        assert chosen.bound <= best * (1 + 1e-9)


@pytest.mark.parametrize("has_data", [False, True])
@pytest.mark.parametrize("ops", [["*"], ["MatMul", "Gemm", "Relu"]])
def test_more_bits_leave_less_noise_and_none_takes_more_than_it_may(
    ops: list[str], has_data: bool, tmp_path: Path
) -> None:
    model, rng = build(), np.random.default_rng(4)
    samples = [{"x": rng.standard_normal((40, 96)).astype(np.float32)} for _ in range(8)]
    (tmp_path / "data").mkdir()
    for number, sample in enumerate(samples[:4]):
        np.savez(tmp_path / "data" / f"{number}.npz", **sample)
    target = load_rules(str(write_rules(tmp_path, *ops)))
    elements = sum(int(np.prod(shape)) for shape in SHAPES.values())
    with without_optimizations():
        exact = [run_session(open_session(model), sample)["y"] for sample in samples[4:]]
    noises = []
    for most in (5, 6.5, 9.5, 32):
        data = tmp_path / "data" if has_data else None
        precision = Precision("int4-weights", data=data, weight_bits=most)
        done = choose_precision(prepare_model(model, "net"), [target], precision)
        assert done.notes[0].text.startswith("weights take ")
        stored = sum(t.ByteSize() for t in done.model.proto.graph.initializer if len(t.dims) > 1)
        assert stored <= most * elements / 8 + 400  # names and shapes
        with without_optimizations():
            found = [run_session(open_session(done.model.proto), each)["y"] for each in samples[4:]]
        noises.append(sum(float(np.square(a - b).sum()) for a, b in zip(exact, found, strict=True)))
    assert noises[0] > noises[1] > noises[2] > noises[3]


def test_a_budget_that_no_form_fits_is_refused(tmp_path: Path, byoc: Callable[..., Any]) -> None:
    onnx.save(build(), tmp_path / "m.onnx")
    asked = ["partition", tmp_path / "m.onnx", "--rules", write_rules(tmp_path, "MatMul", "Gemm")]
    for flags, reason in (
        (("--quantize", "int4-weights", "--weight-bits", "4.5"), "weights need 5.000 bits on average"),
        (
            ("--quantize", "int4-weights", "--weight-bits", "0"),
            "--weight-bits 0: must be a number above 0",
        ),
        (
            ("--quantize", "int8", "--weight-bits", "4"),
            "--weight-bits 4: is for --quantize int4-weights",
        ),
    ):
        ran = byoc(*asked, *flags)
        assert (ran.code, ran.err.count("\n")) == (1, 1)
        assert reason in ran.err


def test_weights_of_a_constant_node_are_rounded_on_samples(tmp_path: Path) -> None:
    model = parse("net (float[n, 96] x) => (float[n, 64] y) { y = MatMul(x, v) }")
    stored = numpy_helper.from_array(draw((96, 64), 3), "v")
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["v"], value=stored))
    rng = np.random.default_rng(4)
    for number in range(4):
        np.save(tmp_path / f"{number}.npy", rng.standard_normal((40, 96)).astype(np.float32))
    for most in (None, 9.5):
        precision = Precision("int4-weights", data=tmp_path, weight_bits=most)
        done = choose_precision(prepare_model(model, "net"), (), precision)
        assert [each.bits for each in done.weights] == [4 if most is None else 8]


@pytest.mark.parametrize("memory", [1 << 30, 0])
def test_parts_of_a_model_make_what_the_whole_makes(
    memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Product after product is replaced; what is before it is computed once, or each time."""
    monkeypatch.setattr("byoc.quantization._weight_samples._MEMORY", memory)
    model, rng = prepare_model(make_branching(), "net"), np.random.default_rng(5)
    samples = [{"x": rng.standard_normal((n, 8)).astype(np.float32)} for n in (3, 1, 5)]
    nodes, floats = model.index.nodes, model.index.stored_tensors
    readers = {
        name: tuple(
            (at, node.input[:2].index(name)) for at, node in enumerate(nodes) if name in node.input
        )
        for name in "vuw"
    }
    rounded = RoundedModel(
        model,
        [ReplaceableWeights(n, numpy_helper.to_array(floats[n]), at) for n, at in readers.items()],
        samples,
    )
    changed = onnx.ModelProto()
    changed.CopyFrom(model.proto)
    stored = {each.name: each for each in changed.graph.initializer}
    for name, read in (("v", "v"), ("u", "ut"), ("w", "w")):
        reading = [
            at for at, node in enumerate(nodes) if node.op_type == "MatMul" and read in node.input
        ]
        names = [nodes[each].input[0] for each in reading]
        found = list(rounded.run(names, reading[0], reading[-1]))
        assert [before is after for before, after in found] == [name == "v"] * 3
        for sample, (before, after) in zip(samples, found, strict=True):
            for values, proto in ((before, model.proto), (after, changed)):
                expected = run_all(proto, names, sample)
                for each in names:
                    np.testing.assert_allclose(values[each], expected[each], rtol=1e-5, atol=1e-5)
        value = numpy_helper.to_array(floats[name]) + np.float32(0.1)
        rounded.replace(name, value)
        stored[name].CopyFrom(numpy_helper.from_array(value, name))


def run_all(
    proto: onnx.ModelProto, names: list[str], sample: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Return inner tensors of a model as onnxruntime computes it as a whole."""
    watched = onnx.ModelProto()
    watched.CopyFrom(proto)
    inner = [name for name in dict.fromkeys(names) if name not in sample]
    watched.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner)
    with without_optimizations():
        return run_session(open_session(watched), sample) | sample


def test_the_noise_of_weights_is_what_each_alone_makes_in_the_outputs() -> None:
    model, rng = prepare_model(make_branching(), "net"), np.random.default_rng(5)
    samples = [{"x": rng.standard_normal((n, 8)).astype(np.float32)} for n in (3, 4)]
    floats = {name: numpy_helper.to_array(model.index.stored_tensors[name]) for name in "vw"}
    weights = [
        ReplaceableWeights(name, value, tuple((at, 1) for at in model.index.consumers[name]))
        for name, value in floats.items()
    ]
    found = measure_output_noise(model, weights, {"w": floats["w"] * 2, "v": floats["v"]}, samples)
    assert found == {"w": pytest.approx(1.0, rel=1e-5), "v": 0.0}
