"""Steps of integers against ONNX's definition: each operator and type, by each way to multiply."""

import itertools
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.c_libraries import build_library, run_library
from helpers.support import parse
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from small_programs import planning_quickly

from byoc.standalone import export_c, verify_program

pytest.importorskip("emx_onnx_cgen")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

STRICT = ("cc", "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-O1")
PLAIN = (*STRICT, "-U__SSE2__", "-U__AVX2__")  # plain C, as for other machines
SANITIZED = (*STRICT, "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error")
TYPES = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8}
WIDE_TYPES = {"uint16": TensorProto.UINT16, "int16": TensorProto.INT16}
POINTS = {"uint8": (121, 100), "int8": (-3, -20), "uint16": (31_000, 26_000), "int16": (-700, 5_000)}
"""Zero points of what is read, and of results."""


class QuantizedModel:
    """A model of quantized operators side by side: each output is an operator's, of `dtype`."""

    def __init__(self, dtype: str = "uint8", weights: str = "int8", symmetric: bool = False) -> None:
        self.dtype, self.weights, self.symmetric = dtype, weights, symmetric
        self.random = np.random.default_rng(5)
        self.graph = onnx.GraphProto(name="net")

    @property
    def points(self) -> tuple[int, int]:
        """The zero points of what is read, and of results."""
        return (0, 0) if self.symmetric else POINTS[self.dtype]

    def scale(self, value: float) -> np.float32:
        """Return the scale of the type for one of 8 bits: the range is the same."""
        return np.float32(value if self.dtype in TYPES else value / 256)

    def store(self, value: object, name: str) -> str:
        """Store a constant under a new name."""
        name = f"{name}_{len(self.graph.initializer)}"
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def dequantize(self, name: str, scale: object, zero: object, **attributes: int) -> str:
        """Add a DequantizeLinear; return what it makes."""
        made = f"real_{len(self.graph.node)}"
        read = [name, self.store(scale, "scale"), self.store(zero, "zero")]
        self.graph.node.append(helper.make_node("DequantizeLinear", read, [made], **attributes))
        return made

    def read(self, shape: tuple[int, ...], scale: float = 0.03, zero: int | None = None) -> str:
        """Add an input; return it as floats. `scale` is that of 8 bits."""
        name = f"x_{len(self.graph.input)}"
        kind = (TYPES | WIDE_TYPES)[self.dtype]
        self.graph.input.append(helper.make_tensor_value_info(name, kind, shape))
        point = self.points[0] if zero is None else zero
        return self.dequantize(name, self.scale(scale), np.array(point, self.dtype))

    def weigh(self, shape: tuple[int, ...], axis: int | None = None, zero: int = 0) -> str:
        """Store weights that reach the ends, in one scale or one for each place of an axis."""
        ends = np.iinfo(self.weights)
        values = self.random.integers(ends.min, ends.max + 1, shape).astype(self.weights)
        count = 1 if axis is None else shape[axis]
        scales = self.random.uniform(0.01, 0.02, count).astype(np.float32) * np.float32(127 / ends.max)
        zeros = np.full(count, zero, self.weights)
        if axis is None:
            return self.dequantize(self.store(values, "w"), scales[0], zeros[0])
        return self.dequantize(self.store(values, "w"), scales, zeros, axis=axis)

    def add(
        self, op: str, *operands: str, scale: float = 0.5, act: str = "", **attributes: object
    ) -> None:
        """Add an operator, an activation behind it and a QuantizeLinear, whose result is an output."""
        made = f"made_{len(self.graph.node)}"
        self.graph.node.append(helper.make_node(op, operands, [made], **attributes))
        if act:
            self.graph.node.append(helper.make_node(act, [made], [f"{made}_{act}"]))
            made = f"{made}_{act}"
        point = self.store(np.array(self.points[1], self.dtype), "zero")
        result = f"y_{op}_{len(self.graph.node)}"
        read = [made, self.store(self.scale(scale), "scale"), point]
        self.graph.node.append(helper.make_node("QuantizeLinear", read, [result]))
        self.graph.output.append(onnx.ValueInfoProto(name=result))

    def build(self) -> onnx.ModelProto:
        """Return the model, with the types of its outputs."""
        model = helper.make_model(self.graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
        del model.graph.output[:]
        model.graph.output.extend(inferred.graph.output)
        return model


def add_products(net: QuantizedModel) -> None:
    """Add convolutions and products of all forms."""
    bias, five, six = (
        net.store(net.random.standard_normal(size).astype(np.float32) * 9, "bias") for size in (7, 5, 6)
    )
    net.add("Conv", net.read((2, 5, 9, 7)), net.weigh((7, 5, 3, 3), 0), bias, pads=[1] * 4, act="Relu")
    net.add("Conv", net.read((1, 3, 4, 5)), net.weigh((5, 3, 1, 1)), five)  # one scale, many biases
    net.add("Conv", net.read((1, 6, 5, 4)), net.weigh((6, 1, 3, 3)), six, group=6)
    net.add("Conv", net.read((1, 4, 5, 4)), net.weigh((6, 2, 3, 3)), six, group=2)
    net.add("Gemm", net.read((3, 8)), net.weigh((8, 5)), five)
    net.add("Conv", net.read((1, 3, 8, 9)), net.weigh((5, 3, 1, 1)), scale=0.2)
    net.add("Conv", net.read((1, 4, 11, 6)), net.weigh((6, 2, 3, 2), 0), group=2, strides=[2, 3])
    net.add(
        "Conv", net.read((1, 3, 12, 11)), net.weigh((4, 3, 3, 3), zero=9), dilations=[2, 1], scale=0.9
    )
    net.add("Conv", net.read((1, 6, 10, 9)), net.weigh((6, 1, 3, 3), 0), group=6, pads=[1] * 4)
    net.add("Conv", net.read((1, 3, 10, 19)), net.weigh((6, 1, 5, 5), 0), group=3, strides=[2, 2])
    net.add("Conv", net.read((1, 4, 21)), net.weigh((9, 4, 3), 0))
    net.add("Gemm", net.read((9, 33)), net.weigh((33, 20), 1), scale=1.5)
    net.add("Gemm", net.read((1, 34)), net.weigh((21, 34), 0), transB=1, scale=1.5)
    net.add("MatMul", net.read((3, 7, 12)), net.weigh((12, 18)), scale=0.9)
    net.add("MatMul", net.read((2, 5, 9)), net.read((2, 9, 6), 0.02), scale=0.1)


def add_windows(net: QuantizedModel) -> None:
    """Add depthwise convolutions of each stride and dilation, of windows and images of many sizes."""
    for number in range(24):
        stride, dilation = [1 + number % 3] * 2, [1 + number // 3 % 2, 1 + number // 6 % 2]
        kernel = tuple(int(each) for each in net.random.integers(1, 6, 2))
        image = tuple(int(each) for each in net.random.integers(9, 15 if number % 2 else 45, 2))
        groups = int(net.random.integers(1, 4))
        weights = (groups * (1 + number % 2), 1, *kernel)
        pads = [int(each) for each in net.random.integers(0, 3, 4)]
        net.add(
            "Conv", net.read((1, groups, *image)), net.weigh(weights, 0), group=groups, strides=stride,
            dilations=dilation, pads=pads, scale=0.25,
        )  # fmt: skip
    net.add("Conv", net.read((1, 2, 30, 70)), net.weigh((2, 1, 2, 66)), group=2, scale=0.9)
    net.add("Conv", net.read((1, 2, 33, 30)), net.weigh((2, 1, 15, 18)), group=2, scale=0.9)


def add_others(net: QuantizedModel) -> None:
    """Add sums, products of elements, pools, tables, and what moves integers."""
    for op, scale in (("Add", 0.06), ("Mul", 0.04)):
        net.add(op, net.read((2, 5, 3, 7)), net.read((2, 5, 3, 7), 0.01), scale=scale, act="Relu")
        net.add(op, net.read((2, 5, 1, 1)), net.read((2, 5, 6, 7), 0.02), scale=scale)
        net.add(op, net.read((4, 35)), net.read((35,), 0.02), scale=scale)
    x = net.read((3, 17))
    net.add("Mul", x, x, scale=0.07)
    pool = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 1, 1, 0]}
    net.add("AveragePool", net.read((1, 3, 9, 8)), scale=0.03, **pool)
    net.add("AveragePool", net.read((1, 3, 9, 8)), scale=0.03, count_include_pad=1, **pool)
    net.add("GlobalAveragePool", net.read((2, 3, 9, 8)), scale=0.02)
    zero = net.points[1]
    net.add("MaxPool", net.read((1, 3, 9, 8), 0.5, zero), **pool)
    net.add("Concat", net.read((2, 3), 0.5, zero), net.read((2, 4), 0.1), axis=1)
    net.add("Transpose", net.read((2, 3, 4), 0.5, zero), perm=[2, 0, 1])
    sizes = net.store(np.array([1, 1, 2, 3], np.float32), "scales")
    net.add("Resize", net.read((1, 2, 3, 4), 0.5, zero), "", sizes, mode="nearest")


def add_functions(net: QuantizedModel) -> None:
    """Add functions, also in several quantized operators of one tensor, as onnxruntime's HardSwish."""
    for op in ("Sigmoid", "Tanh", "HardSwish", "LeakyRelu", "Erf", "Relu"):
        net.add(op, net.read((3, 5)), scale=0.02)
    for op, scale in (("HardSigmoid", 0.02), ("Sigmoid", 0.02), ("Relu", 0.05)):
        x = net.read((2, 3, 5), 0.05)
        part = f"part_{len(net.graph.node)}"
        net.graph.node.append(helper.make_node(op, [x], [part]))
        ends = np.iinfo(net.dtype)
        one, zero = np.float32(1 / (ends.max - ends.min)), np.array(ends.min, net.dtype)
        read = [part, net.store(one, "scale"), net.store(zero, "zero")]
        net.graph.node.append(helper.make_node("QuantizeLinear", read, [f"{part}_q"]))
        net.add("Mul", x, net.dequantize(f"{part}_q", one, zero), scale=scale)


def draw_inputs(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Return values of all of each type, the ends among them."""
    random = np.random.default_rng(1)
    found = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
        ends, shape = np.iinfo(dtype), [dim.dim_value for dim in kind.shape.dim]
        found[value.name] = random.integers(ends.min, ends.max + 1, shape).astype(dtype)
        found[value.name].flat[:2] = (ends.min, ends.max)[: found[value.name].size]
    return found


def evaluate_exactly(model: onnx.ModelProto, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return the outputs where all floats have 64 bits: 16 bits times 16 and their sums are exact."""
    known = given | {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    for node in model.graph.node:
        read = [known[name] if name else None for name in node.input]
        if node.op_type == "DequantizeLinear":
            axis = next((each.i for each in node.attribute), 0)
            shape = [-1 if at == axis and read[1].size > 1 else 1 for at in range(read[0].ndim)]
            moved = read[0].astype(np.int64) - read[2].astype(np.int64).reshape(shape)
            made = moved * read[1].astype(np.float64).reshape(shape)
        elif node.op_type == "QuantizeLinear":
            ends = np.iinfo(read[2].dtype)
            moved = np.rint(read[0] / np.float64(read[1])) + int(read[2])
            made = np.clip(moved, ends.min, ends.max).astype(read[2].dtype)
        else:
            floats = {
                name: value.astype(np.float64)
                if value.dtype == np.float32 and node.op_type != "Resize"
                else value
                for name, value in zip(node.input, read, strict=True)
                if value is not None
            }
            made = ReferenceEvaluator(node, opsets={"": 21}).run(None, floats)[0]
        known[node.output[0]] = made
    return [known[value.name] for value in model.graph.output]


def run_program(
    model: onnx.ModelProto, out: Path, exact: bool = False
) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Build and run an exported program by both ways; return outputs with what the reference makes."""
    given = draw_inputs(model)
    expected = evaluate_exactly(model, given) if exact else ReferenceEvaluator(model).run(None, given)
    found = []
    for way in (STRICT, PLAIN):
        named = zip(model.graph.output, expected, strict=True)
        results = {value.name: np.zeros(wanted.shape, wanted.dtype) for value, wanted in named}
        made = run_library(build_library(out, way), list(given.values()), results)
        found += [
            (f"{name}, {way[-1]}", *each)
            for (name, *each) in zip(made, expected, made.values(), strict=True)
        ]
    return found


def test_integers_are_those_of_the_definition(tmp_path: Path) -> None:
    net = QuantizedModel()
    for dtype in TYPES:
        net.dtype = dtype
        add_products(net)
        add_windows(net)
        add_others(net)
        add_functions(net)
    model = net.build()

    with planning_quickly():
        export_c(model, output=tmp_path / "out")

    assert "kernel_dequantize" not in (tmp_path / "out" / "model.c").read_text()
    emitted = (tmp_path / "out" / "nodes.h").read_text()
    assert "float" not in emitted.replace("float scales_input", "")  # of Resize
    differing = total = 0
    for name, wanted, got in run_program(model, tmp_path / "out"):
        apart = np.abs(wanted.astype(np.int64) - got)
        assert np.max(apart) <= 1, name  # of a tie, which the reference's floats round either way
        assert np.ptp(wanted.astype(np.int64)) > 15, name
        differing, total = differing + np.count_nonzero(apart), total + apart.size
    assert differing < total / 100  # scales of decimals make many ties


@pytest.mark.parametrize(
    ("dtype", "weights", "symmetric"),
    [
        ("int16", "int8", True),
        ("int16", "int8", False),
        ("uint16", "uint8", False),
        ("int16", "int16", True),
        ("uint16", "uint16", False),
    ],
)
def test_integers_of_16_bits_are_those_of_exact_arithmetic(
    dtype: str, weights: str, symmetric: bool, tmp_path: Path
) -> None:
    net = QuantizedModel(dtype, weights, symmetric)
    for add in (add_products, add_windows, add_others):
        add(net)
    model = net.build()

    with planning_quickly():
        export_c(model, output=tmp_path / "out")

    program = (tmp_path / "out" / "model.c").read_text()
    assert "kernel_dequantize" not in program  # so each operator is computed in integers
    assert "kernel_multiply_wide" in program
    assert ("kernel_multiply_int" in program) == (symmetric and weights == "int8")
    for name, wanted, got in run_program(model, tmp_path / "out", exact=True):
        apart = np.abs(wanted.astype(np.int64) - got)
        assert np.max(apart) <= 1, name
        assert np.count_nonzero(apart) <= max(2, apart.size / 40), name  # what is within 2e-2 of a tie
        assert np.ptp(wanted.astype(np.int64)) > 15 * 256, name


def test_functions_of_16_bits_are_those_of_the_definition(tmp_path: Path) -> None:
    net = QuantizedModel("int16")
    add_functions(net)

    model = net.build()

    export_c(model, output=tmp_path / "out")

    for name, wanted, got in run_program(model, tmp_path / "out", exact=True):
        assert np.max(np.abs(wanted.astype(np.int64) - got)) <= 1, name


def test_whole_products_have_zero_points_by_channel(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    stored = {
        "w": random.integers(-128, 128, (13, 20)).astype(np.int8),
        "k": random.integers(0, 256, (4, 3, 3, 3)).astype(np.uint8),
        "wz": random.integers(-128, 128, 20).astype(np.int8),
    }
    model = parse(
        """g (uint8[7, 13] a, uint8 az, int8[2, 3, 6, 8] x, int8 xz)
        => (int32[7, 20] y, int32[2, 4, 6, 8] z) <uint8 kz = {77}> {
        y = MatMulInteger(a, w, az, wz)
        z = ConvInteger<pads=[1, 1, 1, 1]>(x, k, xz, kz)
        }""",
        opset=21,
    )
    for name, value in stored.items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))

    made = export_c(model, output=tmp_path / "out")

    assert made.kernels == 2
    assert "kernel_multiply_int" in (tmp_path / "out" / "model.c").read_text()
    for name, wanted, got in run_program(model, tmp_path / "out"):
        np.testing.assert_array_equal(got, wanted, name)


def test_a_bias_does_not_lead_a_sum_beyond_32_bits(tmp_path: Path) -> None:
    depth = 20_000
    stored = {
        "w": np.full((16, depth), 255, np.uint8),
        "k": np.full((16, depth, 1, 1), 255, np.uint8),
        "b": np.full(16, 1_000_000_000, np.int32),
    }
    model = parse(
        f"""g (uint8[1, {depth}] a, uint8[1, {depth}, 1, 1] x) => (uint8[1, 16] y, uint8[1, 16, 1, 1] z)
        <float s = {{0.001}}, float bs = {{0.000001}}, float ys = {{20}}, uint8 zero = {{0}},
        int32 bz = {{0}}> {{
        bf = DequantizeLinear(b, bs, bz)
        af = DequantizeLinear(a, s, zero)
        wf = DequantizeLinear(w, s, zero)
        yf = Gemm<transB=1>(af, wf, bf)
        y = QuantizeLinear(yf, ys, zero)
        xf = DequantizeLinear(x, s, zero)
        kf = DequantizeLinear(k, s, zero)
        zf = Conv(xf, kf, bf)
        z = QuantizeLinear(zf, ys, zero)
        }}""",
        opset=21,
    )
    for name, value in stored.items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))

    assert export_c(model, output=tmp_path / "out").kernels == 2

    ends = [np.full(shape, 255, np.uint8) for shape in ((1, depth), (1, depth, 1, 1))]
    results = {"y": np.zeros((1, 16), np.uint8), "z": np.zeros((1, 16, 1, 1), np.uint8)}
    made = run_library(build_library(tmp_path / "out", STRICT), ends, results)
    sums = depth * 255**2 * 1e-6 + 1000  # 2300.5
    assert {value for each in made.values() for value in each.ravel().tolist()} == {round(sums / 20)}


WIDTHS = [  # dtype, weight, depth, and the form of the product
    ("int16", 127, 516, "int"),  # 2^15 * 127 * 516 is below 2^31
    ("int16", 127, 517, "wide"),
    ("int8", -128, 131_071, "int"),  # as 2^7 * 2^7 * 131071 is
    ("int8", -128, 131_072, "wide"),
    ("uint16", 127, 4, "wide"),  # an element does not fit 16 bits
]


def test_sums_are_wide_where_their_bound_is_beyond_32_bits(tmp_path: Path) -> None:
    net, ends, wanted = QuantizedModel(symmetric=True), [], []
    for dtype, weight, depth, _ in WIDTHS:
        net.dtype, one = dtype, 1 if dtype == "int8" else 256
        end = np.iinfo(dtype).max if dtype == "uint16" else np.iinfo(dtype).min
        scale = one * abs(end * weight * depth) / 200
        for op, shape in (("Gemm", ()), ("Conv", (1, 1))):
            stored = net.store(np.full((16, depth, *shape), weight, np.int8), "w")
            weights = net.dequantize(stored, np.float32(0.5), np.int8(0))
            stated = {"transB": 1} if op == "Gemm" else {}
            net.add(op, net.read((1, depth, *shape), one), weights, scale=scale, **stated)
            ends.append(np.full((1, depth, *shape), end, dtype))
            wanted.append(np.full(16, 100 if end * weight > 0 else -100, dtype))

    export_c(net.build(), output=tmp_path / "out")

    # Which of them is wide the numbers say, and the sanitizer: a sum that does not fit 32 bits wraps.
    program = (tmp_path / "out" / "model.c").read_text()
    for name, form in itertools.product(("multiply", "convolve"), ("int", "wide")):
        expected = sum(form == each for *_, each in WIDTHS)
        assert program.count(f" kernel_{name}_{form}(") == expected, (name, form)
    for way in (STRICT, PLAIN, SANITIZED):
        results = {str(number): np.zeros_like(each) for number, each in enumerate(wanted)}
        made = run_library(build_library(tmp_path / "out", way), ends, results)
        for each, got in zip(wanted, made.values(), strict=True):
            np.testing.assert_array_equal(got, each)


def draw_cancelling(dtype: str, count: int) -> list[np.ndarray]:
    """Return two arrays around the middle of a type, whose deviations nearly cancel."""
    ends = np.iinfo(dtype)
    middle, room = middle_of(dtype), int(ends.max) - middle_of(dtype)
    random = np.random.default_rng(3)
    less = random.integers(0, room, count)
    near = np.clip(less + random.integers(-40, 41, count), 0, room)
    return [(middle + less).astype(dtype), (middle - near).astype(dtype)]


def middle_of(dtype: str) -> int:
    """Return the zero point of a type that leaves as much room above as below."""
    ends = np.iinfo(dtype)
    return (int(ends.min) + int(ends.max) + 1) // 2


def test_what_cancels_leaves_no_rounding(tmp_path: Path) -> None:
    """Sums near zero of large addends, in units of the result that are finer than theirs."""
    count, large = 512, 2.0**20 - 1  # of a bias, which the sum of a product takes away but for `less`
    inputs, outputs, stored, nodes, given = [], [], [], [], {}
    for dtype in [*TYPES, *WIDE_TYPES]:
        middle = middle_of(dtype)
        step = float(np.float32(large / max(1, int(np.iinfo(dtype).max) - middle - 40)))
        a, b = f"a_{dtype}", f"b_{dtype}"
        given |= zip((a, b), draw_cancelling(dtype, count), strict=True)
        inputs += [f"{dtype}[{count}] {a}, {dtype}[{count}] {b}"]
        stored += [f"{dtype} zero_{dtype} = {{{middle}}}, float ws_{dtype} = {{{step}}}"]
        for finer in (1, 8, 40, 777):
            kind = f"{dtype}_{finer}"
            outputs += [f"{dtype}[{count}] y_{kind}, {dtype}[{count}, 1] z_{kind}"]
            stored += [f"float ys_{kind} = {{{1 / finer}}}"]
            nodes += [
                f"""af_{kind} = DequantizeLinear({a}, s, zero_{dtype})
                bf_{kind} = DequantizeLinear({b}, s, zero_{dtype})
                yf_{kind} = Add(af_{kind}, bf_{kind})
                y_{kind} = QuantizeLinear(yf_{kind}, ys_{kind}, zero_{dtype})
                x_{kind} = Reshape({a}, column)
                xf_{kind} = DequantizeLinear(x_{kind}, s, zero_{dtype})
                wf_{kind} = DequantizeLinear(w, ws_{dtype}, wz)
                zf_{kind} = Gemm(xf_{kind}, wf_{kind}, c)
                z_{kind} = QuantizeLinear(zf_{kind}, ys_{kind}, zero_{dtype})"""
            ]
    model = parse(
        f"""g ({", ".join(inputs)}) => ({", ".join(outputs)})
        <float s = {{1}}, int64[2] column = {{{count}, 1}}, int8[1, 1] w = {{1}}, int8 wz = {{0}},
        float[1] c = {{{-large}}}, {", ".join(stored)}> {{ {" ".join(nodes)} }}""",
        opset=21,
    )

    export_c(model, output=tmp_path / "out")

    expected = ReferenceEvaluator(model).run(None, given)
    wanted = {value.name: each for value, each in zip(model.graph.output, expected, strict=True)}
    assert all(np.ptp(each.astype(np.int64)) > 40 for name, each in wanted.items() if name[0] == "y")
    for way in (STRICT, PLAIN):
        results = {name: np.zeros_like(each) for name, each in wanted.items()}
        made = run_library(build_library(tmp_path / "out", way), list(given.values()), results)
        for name, each in wanted.items():
            assert np.max(np.abs(each.astype(np.int64) - made[name])) <= 1, (name, way)


@pytest.mark.parametrize(("dtype", "widened"), [("int8", 2), ("int16", 2), ("uint16", 4)])
def test_the_arena_of_a_quantized_network_is_in_bytes(dtype: str, widened: int, tmp_path: Path) -> None:
    net = QuantizedModel(dtype, symmetric=True)
    net.add("Conv", net.read((1, 8, 32, 32)), net.weigh((8, 8, 3, 3), 0), pads=[1] * 4)

    made = export_c(net.build(), output=tmp_path / "out")

    scratch = (6 + 64) * 72 * widened  # rows and columns that the kernel widens to 16 or 32 bits
    tensors = 2 * 8 * 32 * 32 * np.dtype(dtype).itemsize
    assert made.arena_bytes == made.bound == tensors + scratch + -scratch % 64


def test_a_unit_is_allowed_where_the_definition_leaves_a_tie(tmp_path: Path) -> None:
    """Of all kernels of integers, as integers and as floats behind them; a unit more is refused."""
    net = QuantizedModel()
    net.dtype = "int8"
    add_products(net)
    add_others(net)
    add_functions(net)
    model = net.build()
    quantizers = {node.output[0]: node for node in model.graph.node}
    for value in list(model.graph.output)[::2]:
        read = [value.name, *quantizers[value.name].input[1:]]
        model.graph.node.append(helper.make_node("DequantizeLinear", read, [f"{value.name}_real"]))
        kind = value.type.tensor_type
        kind.elem_type = TensorProto.FLOAT
        value.name = f"{value.name}_real"

    export_c(model, output=tmp_path / "out")

    found = verify_program(tmp_path / "out", "cc -O1 -w")
    assert found.passed, found.problem
    off = {each.name for each in found.outputs if each.error > 0}
    assert {name.endswith("_real") for name in off} == {True, False}  # so some are at ties

    # A hundredth of a unit that is added before rounding moves more than ties leave open.
    kernels = (tmp_path / "out" / "rounding.h").read_text()
    read = "REAL(loadu)(values + (ptrdiff_t)v * LANES)"
    assert read in kernels
    moved = kernels.replace(read, f"REAL(add)({read}, REAL(set1)(0.01f))")
    (tmp_path / "out" / "rounding.h").write_text(moved)
    found = verify_program(tmp_path / "out", "cc -O1 -w", trust=True)
    assert "is off by" in found.problem
    assert max(each.error for each in found.outputs) < 0.1
