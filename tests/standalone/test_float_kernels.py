"""Kernels of floats against onnxruntime without optimizations, with vectors and as plain C.

onnx.reference computes neither groups of ConvTranspose nor LSTMs of two directions.
"""

import platform
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.c_libraries import build_library, run_library
from onnx import helper, numpy_helper
from test_integers import QuantizedModel, add_products, add_windows, draw_inputs

from byoc.errors import InputError
from byoc.standalone import export_c, verify_program

pytest.importorskip("emx_onnx_cgen")
onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

STRICT = ("cc", "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-O1")
WAYS = [STRICT, (*STRICT, "-U__SSE2__")]  # the second one is plain C, as for other machines
CPU_FLAGS = Path("/proc/cpuinfo")
if platform.machine() == "x86_64" and CPU_FLAGS.exists() and " avx2 " in CPU_FLAGS.read_text():
    WAYS.append((*STRICT, "-mavx2", "-mfma"))


class DrawnModel:
    """Operators side by side: each reads inputs of its own, and its results are outputs."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.graph = onnx.GraphProto(name="net")

    def draw(self, *values: object) -> object:
        """Return one of some values."""
        return values[self.random.integers(len(values))]

    def read(self, *shape: object) -> str:
        """Add an input."""
        name = f"x_{len(self.graph.input)}"
        self.graph.input.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
        return name

    def store(self, *shape: object) -> str:
        """Add a constant of small numbers."""
        return self.keep(self.random.standard_normal(shape).astype(np.float32) / 2)

    def keep(self, value: np.ndarray) -> str:
        """Add a constant."""
        name = f"w_{len(self.graph.initializer)}"
        self.graph.initializer.append(numpy_helper.from_array(value, name))
        return name

    def add(self, op: str, *operands: str, results: int = 1, **attributes: object) -> None:
        """Add an operator; its results are outputs."""
        made = [f"y_{op}_{len(self.graph.node)}_{i}" for i in range(results)]
        self.graph.node.append(helper.make_node(op, operands, made, **attributes))
        self.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)

    def add_transposed(self) -> None:
        """Add a ConvTranspose of drawn extents, strides, pads and groups."""
        groups, rank = self.draw(1, 1, 2), self.draw(2, 2, 1)
        kernel = [int(self.draw(1, 2, 3, 4, 5)) for _ in range(rank)]
        strides = [int(self.draw(1, 2, 3)) for _ in range(rank)]
        pads = [int(self.random.integers(0, size)) for size in (*kernel, *kernel)]
        more = [int(self.random.integers(0, each)) for each in strides]
        image = [int(self.random.integers(3, 12)) + size for size in kernel]
        x = self.read(int(self.draw(1, 2)), groups * 3, *image)
        given = [x, self.store(groups * 3, int(self.draw(1, 5, 7)), *kernel)]
        shape = self.graph.initializer[-1].dims
        given += [self.store(groups * shape[1])] if self.draw(True, False) else []
        self.add("ConvTranspose", *given, group=groups, strides=strides, pads=pads, output_padding=more)

    def add_lstm(self) -> None:
        """Add an LSTM of drawn extents and directions, with or without states and biases."""
        direction = self.draw("forward", "reverse", "bidirectional")
        both, hidden, inputs = 1 + (direction == "bidirectional"), int(self.draw(3, 5, 16)), 7
        steps, batch = int(self.draw(1, 5, 17, 33)), int(self.draw(1, 3))
        weights = self.store(both, 4 * hidden, inputs), self.store(both, 4 * hidden, hidden)
        bias = self.store(both, 8 * hidden) if self.draw(True, False) else ""
        states = ["", *(self.read(both, batch, hidden) for _ in range(2))]
        given = [self.read(steps, batch, inputs), *weights, bias, *(states if self.draw(1, 0) else [])]
        self.add("LSTM", *given, results=3, hidden_size=hidden, direction=direction)

    def add_resize(self) -> None:
        """Add a Resize by linear interpolation, to drawn extents."""
        extents = [int(self.random.integers(1, 9)) for _ in range(4)]
        mode = self.draw("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
        sizes = self.keep(np.array([2, 3, *extents[:2]], np.int64))
        self.add(
            "Resize",
            *(self.read(2, 3, *extents[2:]), "", "", sizes),
            mode="linear",
            coordinate_transformation_mode=mode,
        )

    def add_product(self) -> None:
        """Add a Gemm of a stored matrix: few rows or many, deep or not, columns that fill no tile."""
        rows, depth, cols = (int(self.draw(*each)) for each in ((1, 2, 5, 13), (7, 300), (3, 16, 77)))
        turned = self.draw(0, 1)
        matrix = self.store(*((cols, depth) if turned else (depth, cols)))
        bias = self.store(*self.draw((cols,), (1,), (rows, 1), (rows, cols)))
        self.add("Gemm", self.read(rows, depth), matrix, bias, transB=turned, alpha=0.5, beta=1.5)

    def build(self) -> onnx.ModelProto:
        """Return the model, with the types of its outputs."""
        model = helper.make_model(self.graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
        del model.graph.output[:]
        model.graph.output.extend(inferred.graph.output)
        return model


def draw_network(seed: int, rounds: int) -> DrawnModel:
    """Return a model of drawn operators, and convolutions of chosen extents."""
    net = DrawnModel(seed)
    for _ in range(rounds):
        net.add_transposed()
        net.add_lstm()
        net.add_resize()
        net.add_product()
    net.add("Conv", net.read(1, 33, 7, 7), net.store(29, 33, 1, 1), net.store(29))
    net.add("Conv", net.read(2, 30, 13, 9), net.store(7, 30, 3, 3), pads=[1, 2, 0, 1])
    net.add("Conv", net.read(1, 5, 61, 41), net.store(5, 1, 5, 3), pads=[2] * 4, group=5)
    net.add("Conv", net.read(2, 5, 61, 41), net.store(5, 1, 3, 3), group=5, strides=[2, 2])
    return net


def draw_values(net: DrawnModel, model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Return values of all inputs."""
    shapes = {x.name: [dim.dim_value for dim in x.type.tensor_type.shape.dim] for x in model.graph.input}
    return {n: net.random.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}


def test_kernels_compute_what_onnxruntime_does(tmp_path: Path) -> None:
    net = draw_network(11, 8)
    ends = np.concatenate(
        [np.geomspace(1e-30, 1e30, 2001), np.linspace(0, 20, 2001), [0, np.inf, np.nan]]
    )
    numbers = np.concatenate([ends, -ends]).astype(np.float32)
    functions = [net.read(numbers.size) for _ in range(2)]
    net.add("Tanh", functions[0])
    net.add("Sigmoid", functions[1])
    model = net.build()
    given = draw_values(net, model)
    given |= dict.fromkeys(functions, numbers)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    expected = dict(zip([x.name for x in model.graph.output], session.run(None, given), strict=True))
    with np.errstate(over="ignore"):
        exact = np.tanh(numbers.astype(float)), 1 / (1 + np.exp(-numbers.astype(float)))

    export_c(model, output=tmp_path / "out")

    assert not (tmp_path / "out" / "nodes.c").exists()
    for way in WAYS:
        made = {name: np.zeros(wanted.shape, np.float32) for name, wanted in expected.items()}
        made = dict(run_library(build_library(tmp_path / "out", way), list(given.values()), made))
        for name, wanted in expected.items():
            np.testing.assert_allclose(
                made[name], wanted, atol=2e-5, rtol=1e-5, err_msg=f"{name}, {way[-1]}"
            )
        for name, wanted in zip(list(made)[-2:], exact, strict=True):  # as kernels.h promises
            np.testing.assert_allclose(made[name], wanted, rtol=3e-7, atol=1e-37, err_msg=name)


def run_on_threads(
    model: onnx.ModelProto, given: dict[str, np.ndarray], threads: int, out: Path
) -> dict[str, bytes]:
    """Return the bytes of all outputs of a model's program."""
    export_c(model, output=out, threads=threads)
    results = {
        value.name: np.zeros(
            [dim.dim_value for dim in value.type.tensor_type.shape.dim],
            helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type),
        )
        for value in onnx.shape_inference.infer_shapes(model).graph.output
    }
    command = ("cc", "-std=c99", "-O1", "-w", "-pthread")
    made = run_library(build_library(out, command), list(given.values()), results)
    return {name: value.tobytes() for name, value in made.items()}


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_make_the_same_bits(threads: int, tmp_path: Path) -> None:
    net = draw_network(12, 4)
    net.add("MatMul", net.read(3, 30, 24), net.read(3, 24, 100))
    net.add("Gemm", net.read(1, 300), net.store(300, 200))
    model = net.build()
    given = draw_values(net, model)
    whole = QuantizedModel()
    add_products(whole)
    add_windows(whole)
    integers = whole.build()
    for number, (each, values) in enumerate(((model, given), (integers, draw_inputs(integers)))):
        alone = run_on_threads(each, values, 1, tmp_path / f"alone{number}")
        shared = run_on_threads(each, values, threads, tmp_path / f"shared{number}")
        assert "share_step(opened, 5)" in (tmp_path / f"shared{number}" / "model.c").read_text()
        assert alone == shared


def test_no_thread_races_with_another(tmp_path: Path) -> None:
    net = draw_network(13, 1)
    export_c(net.build(), output=tmp_path / "out", threads=3)
    runner = "setarch -R" if shutil.which("setarch") else None  # its shadow memory has a fixed place
    found = verify_program(tmp_path / "out", "cc -std=c99 -O1 -g -fsanitize=thread", runner)
    assert found.passed, found.problem


@pytest.mark.parametrize(
    ("threads", "why"),
    [(0, ": 0 is not a number of at least 1"), (65, " is 65, but must be at most 64")],
)
def test_a_number_of_threads_that_is_none_is_refused(threads: int, why: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"^threads{why}$"):
        export_c(draw_network(1, 0).build(), output=tmp_path / "out", threads=threads)
    assert not (tmp_path / "out").exists()
