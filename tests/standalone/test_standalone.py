"""Programs in C: each kind of operator, built with gcc and run; what is written, what is refused."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import vendors
from helpers.support import VANILLA, Ran, parse
from onnx import TensorProto, helper, numpy_helper
from small_programs import SMALL, WEIGHTS

from byoc import partition, zoo
from byoc.codegen import Artifact, DriverSources, NoOptions, Region
from byoc.errors import InputError, MissingRuntimeError
from byoc.standalone import ProgramVerification, export_c, verify_program

pytest.importorskip("emx_onnx_cgen")
pytest.importorskip("onnxruntime")
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
STRICT = "cc -std=c99 -pedantic -Wall -Wextra -Werror -O1"
OPSET = 17
SHAPES = f"""net (float[N, 4, 6] x) => (float[N, 36] y, int64[3] shape)
    <float[9] b = {{1, 2, 3, 4, 5, 6, 7, 8, 9}}, float[6, 9] w = {{{WEIGHTS}}},
    int64[1] zero = {{0}}, int64[1] rest = {{-1}}> {{
    shape = Shape(x)
    n = Gather(shape, zero)
    to = Concat <axis = 0> (n, rest)
    p = MatMul(x, w)
    q = Add(p, b)
    r = Relu(q)
    s = Tanh(r)
    y = Reshape(s, to)
}}"""
QUANTIZED = f"""net (float[8, 6] x) => (float[8, 6] y)
    <float[6, 9] w = {{{WEIGHTS}}}, float[9, 6] v = {{{WEIGHTS}}},
    float s = {{0.04}}, float t = {{0.2}}, int8 z = {{0}}> {{
    a = QuantizeLinear(x, s, z)
    b = DequantizeLinear(a, s, z)
    c = MatMul(b, w)
    d = QuantizeLinear(c, t, z)
    e = DequantizeLinear(d, t, z)
    y = MatMul(e, v)
}}"""


class OperatorModel:
    """A model of operators side by side, each with an input and an output of its own."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(7)
        self.graph = onnx.GraphProto(name="net")

    def add(
        self, kind: str, *operands: tuple[int, ...] | np.ndarray | None, **attributes: object
    ) -> None:
        """Add an operator: shapes are inputs, arrays constants; None is left out."""
        number, names = len(self.graph.node), []
        for at, operand in enumerate(operands):
            name = f"{kind}_{number}_{at}"
            if operand is None:
                name = ""
            elif isinstance(operand, tuple):
                value = helper.make_tensor_value_info(name, TensorProto.FLOAT, operand)
                self.graph.input.append(value)
            else:
                self.graph.initializer.append(numpy_helper.from_array(operand, name))
            names.append(name)
        made = f"y_{kind}_{number}"
        self.graph.node.append(helper.make_node(kind, names, [made], **attributes))
        self.graph.output.append(onnx.ValueInfoProto(name=made))

    def draw(self, *shape: int) -> np.ndarray:
        """Return random weights."""
        return self.random.standard_normal(shape).astype(np.float32)

    def build(self) -> onnx.ModelProto:
        """Return the model, with the types of its outputs."""
        model = helper.make_model(
            self.graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8
        )
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
        del model.graph.output[:]
        model.graph.output.extend(inferred.graph.output)
        return model


def check(model: onnx.ModelProto | str, folder: Path, **options: object) -> ProgramVerification:
    """Export, build and run a model; every output has to be right."""
    export_c(model, output=folder, **options)  # type: ignore[arg-type]
    found = verify_program(folder, STRICT)
    assert found.passed, found.problem
    assert found.arena_bytes >= found.plan_bytes
    return found


def build(out: Path, folder: Path, *flags: str) -> str:
    """Build a program with compiler flags; return the program's path."""
    sources = [str(path) for path in out.glob("*.c")]
    program = str(folder / "program")
    subprocess.run(["cc", "-O0", *flags, *sources, "-lm", "-o", program], check=True)
    return program


@needs_compiler
def test_convolutions(tmp_path: Path) -> None:
    net = OperatorModel()
    draw = net.draw
    net.add("Conv", (2, 3, 9, 11), draw(5, 3, 3, 3), draw(5), pads=[1, 1, 1, 1])
    net.add("Conv", (1, 4, 13, 9), draw(14, 4, 3, 3), strides=[2, 2], pads=[1, 0, 2, 1])
    net.add("Conv", (1, 4, 12, 12), draw(6, 2, 3, 3), draw(6), group=2, dilations=[2, 3])
    net.add("Conv", (1, 6, 10, 7), draw(6, 1, 5, 5), draw(6), group=6, pads=[2] * 4, strides=[2, 1])
    net.add("Conv", (1, 3, 8, 8), draw(6, 1, 3, 3), group=3, dilations=[2, 2], pads=[2] * 4)
    net.add("Conv", (1, 20, 4, 8), draw(33, 20, 1, 1), draw(33))
    net.add("Conv", (1, 300, 5, 3), draw(7, 300, 1, 1), draw(7))
    net.add("Conv", (1, 3, 11, 12), draw(4, 3, 4, 2), auto_pad="SAME_UPPER", strides=[2, 3])
    net.add("Conv", (1, 3, 11, 12), draw(4, 3, 4, 2), auto_pad="SAME_LOWER")
    net.add("Conv", (2, 3, 40), draw(4, 3, 5), draw(4), pads=[2, 1], strides=[3])
    net.add("Conv", (1, 2, 4, 5, 6), draw(3, 2, 2, 2, 2))  # three axes are emx-onnx-cgen's
    net.add("Conv", (1, 2, 2, 2), draw(2, 2, 5, 5), pads=[4, 4, 4, 4])
    made = export_c(net.build(), output=tmp_path / "out")
    found = verify_program(tmp_path / "out", STRICT)
    assert (found.problem, made.kernels, made.steps) == ("", 11, 12)
    assert max(each.error for each in found.outputs) < 1e-6


@needs_compiler
def test_products_and_pools(tmp_path: Path) -> None:
    net = OperatorModel()
    draw = net.draw
    net.add("Gemm", (3, 300), draw(300, 70), draw(70), alpha=0.5, beta=2.0)
    net.add("Gemm", (1, 40), draw(17, 40), draw(1, 17), transB=1)
    net.add("Gemm", (20, 9), (9, 16), draw(20, 1))
    net.add("Gemm", (4, 6), draw(6, 5), draw(4, 5))
    net.add("Gemm", (6, 4), draw(6, 5), transA=1)  # emx-onnx-cgen's
    net.add("MatMul", (2, 3, 14, 20), (2, 3, 20, 33))
    net.add("MatMul", (2, 14, 20), draw(20, 16))
    net.add("MatMul", (14, 20), (3, 20, 5))
    net.add("MatMul", (3, 1, 4, 5), (2, 5, 6))  # emx-onnx-cgen's
    net.add("MaxPool", (1, 2, 9, 10), kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1])
    net.add(
        "MaxPool", (1, 2, 10, 10), kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, dilations=[2, 1]
    )
    net.add("AveragePool", (1, 2, 9, 9), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    net.add("AveragePool", (1, 2, 9, 9), kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)
    net.add("AveragePool", (1, 2, 20), kernel_shape=[4], strides=[2], auto_pad="SAME_UPPER")
    net.add("GlobalAveragePool", (2, 3, 7, 5))
    net.add("GlobalMaxPool", (2, 3, 7, 5))
    net.add("Softmax", (2, 3, 7))
    net.add("Softmax", (2, 3, 7), axis=1)  # emx-onnx-cgen's
    made = export_c(net.build(), output=tmp_path / "out")
    found = verify_program(tmp_path / "out", STRICT)
    assert (found.problem, made.kernels, made.steps) == ("", 15, 18)
    assert max(each.error for each in found.outputs) < 1e-6


@needs_compiler
def test_a_softmax_of_many_classes(tmp_path: Path) -> None:
    """Its sum is right to the last digits."""
    logits = 3 * np.random.default_rng(5).standard_normal((1, 20000)).astype(np.float32)
    logits[0, 0] = np.log(np.exp(logits.astype(np.float64)).sum())  # half of all
    model = parse(
        "net (float[2, 1] x, float[1, 20000] logits) => (float[2, 20000] y) "
        "{ a = Add(x, logits) y = Softmax(a) }"
    )
    model.graph.input.pop()
    model.graph.initializer.append(numpy_helper.from_array(logits, "logits"))
    found = check(model, tmp_path / "out")
    assert found.outputs[0].error < 2e-6


@needs_compiler
def test_the_other_operators(tmp_path: Path) -> None:
    net = OperatorModel()
    draw = net.draw
    for kind in ("Relu", "Sigmoid", "HardSwish", "Erf", "Exp", "Neg", "Softplus"):
        net.add(kind, (2, 3, 4))
    net.add("Add", (2, 3, 4), (3, 1))
    net.add("Max", (2, 3), (2, 3), (1, 3))  # three operands are never written over
    net.add("Softmax", (2, 3, 5), axis=1)
    net.add("LayerNormalization", (2, 3, 5), draw(5), draw(5))
    net.add("Transpose", (2, 3, 4), perm=[2, 0, 1])
    net.add("Concat", (2, 3, 4), (2, 1, 4), axis=1)
    net.add("Slice", (4, 6), np.array([1]), np.array([-1]), np.array([1]), np.array([2]))
    net.add("Gather", (5, 3), np.array([[0, 4], [2, 2]]))
    net.add("ReduceMean", (2, 3, 4), axes=[1], keepdims=0)
    net.add("Resize", (1, 2, 4, 4), None, np.array([1, 1, 2, 2], np.float32), mode="linear")
    net.add("Resize", (1, 2, 4, 4), np.zeros(0, np.float32), np.array([1, 1, 2, 2], np.float32))
    net.add("ConvTranspose", (1, 3, 4, 4), draw(3, 2, 3, 3), strides=[2, 2])
    net.add("Pad", (1, 2, 3, 3), np.array([0, 0, 1, 1, 0, 0, 1, 1]))
    check(net.build(), tmp_path / "out")


@needs_compiler
def test_a_chain_with_views_and_shape_arithmetic(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--dim N=SIZE"):
        export_c(parse(SHAPES), output=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    made = export_c(parse(SHAPES), output=tmp_path / "out", dims={"N": 2})
    assert (made.steps, made.kernels) == (2, 2)
    found = verify_program(tmp_path / "out", STRICT)
    assert found.passed, found.problem
    assert [each.error for each in found.outputs][1] == 0


@needs_compiler
def test_an_input_with_a_default_is_no_input_of_the_program(tmp_path: Path) -> None:
    model = parse(
        "net (float[2, 3] x, float[3] b) => (float[2, 3] y) <float[3] b = {1, 2, 3}> { y = Add(x, b) }"
    )
    assert [value.name for value in model.graph.input] == ["x", "b"]
    check(model, tmp_path / "out")
    assert "#define MODEL_INPUTS 1" in (tmp_path / "out" / "model.h").read_text()


@needs_compiler
def test_nothing_is_written_over_that_is_still_to_be_read(tmp_path: Path) -> None:
    """The function of Max writes its first operand to the result before it reads the second."""
    text = """net (float[4, 6] x, float[4, 6] z) => (float[4, 6] y) <float low = {-0.1}> {
        a = Tanh(x)
        b = Max(low, a)
        c = Sum(b, z)
        y = Neg(c)
    }"""
    found = check(parse(text), tmp_path / "out")
    assert found.plan_bytes == 3 * 128


@needs_compiler
def test_an_activation_is_computed_by_the_kernel_in_front_of_it(tmp_path: Path) -> None:
    model = OperatorModel()
    for weights, group in ((model.draw(6, 3, 3, 3), 1), (model.draw(3, 1, 3, 3), 3)):
        model.add("Conv", (1, 3, 9, 7), weights, group=group, pads=[1] * 4)
    chained = model.build()
    for number, kind in enumerate(("HardSwish", "Relu")):
        inner = chained.graph.node[number].output[0]
        chained.graph.node.append(helper.make_node(kind, [inner], [f"z{number}"]))
        chained.graph.output[number].name = f"z{number}"
    made = export_c(chained, output=tmp_path / "out")
    assert (made.steps, made.kernels) == (2, 2)
    assert verify_program(tmp_path / "out", STRICT).problem == ""


@needs_compiler
@pytest.mark.parametrize("embed", [False, True])
def test_a_bundle_runs_its_region_by_the_driver(embed: bool, tmp_path: Path) -> None:
    partition(parse(SMALL), rules="dla", output=tmp_path / "b", strategy="all-supported")
    made = export_c(tmp_path / "b", output=tmp_path / "out", embed=embed)
    assert made.regions >= 1
    found = verify_program(tmp_path / "out", STRICT.replace("-pedantic ", ""))
    assert found.passed, found.problem
    assert found.arena_bytes > found.plan_bytes > 0
    assert {"byoc_driver.h", "drivers/dla/dla_driver.c"} <= list_files(tmp_path / "out")
    described = json.loads((tmp_path / "out/sbom.cdx.json").read_text())["components"]
    texts = {each["name"]: each["externalReferences"][0]["url"] for each in described[:-1]}
    assert texts.keys() <= {"onnx-byoc", "emx-onnx-cgen", "driver-dla"} >= {"onnx-byoc", "driver-dla"}
    assert all("Apache License" in (tmp_path / "out" / path).read_text() for path in texts.values())
    assert all(f"`{path}`" in (tmp_path / "out/README.md").read_text() for path in texts.values())


def test_a_bundle_of_the_zoo_has_the_zoos_sample(tmp_path: Path) -> None:
    partition("zoo:squeezenet", "dla", output=tmp_path / "b", verify=False)
    export_c(tmp_path / "b", output=tmp_path / "out")
    (image,) = zoo.sample_inputs("squeezenet").values()
    assert (tmp_path / "out/sample.bin").read_bytes().startswith(image.tobytes())


def test_the_licence_of_a_vendors_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = tmp_path / "driver" / "acme.c"
    source.parent.mkdir()
    source.write_text("/* a driver */\n")

    class Acme:
        name = "acme"
        api = 2
        Options = NoOptions

        def compile(self, region: Region, options: NoOptions) -> Artifact:
            return Artifact({"code.bin": b"fine"})

        def driver(self) -> DriverSources:
            return DriverSources("acme", (source,))

    vendors.install(monkeypatch, acme=Acme)
    partition(
        parse(SMALL), VANILLA, codegen="acme", output=tmp_path / "b", strategy="all-supported",
        verify=False, isolate=False, cache=False,
    )  # fmt: skip
    export_c(tmp_path / "b", output=tmp_path / "bare")
    readme = (tmp_path / "bare/README.md").read_text()
    assert "driver-acme; no licence is stated; no text came with it" in readme
    (source.parent / "LICENSE.txt").write_text("Do as you like.")
    (source.parent / "NOTICE").write_text("Made by Acme.")
    export_c(tmp_path / "b", output=tmp_path / "out")
    folder = tmp_path / "out/licences/driver-acme"
    assert (folder / "LICENSE.txt").read_text() == "Do as you like."
    assert (folder / "NOTICE").read_text() == "Made by Acme."


def list_files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_what_is_written(golden: Callable[[str, str], None], tmp_path: Path) -> None:
    export_c(parse(SMALL), output=tmp_path / "one")
    export_c(parse(SMALL), output=tmp_path / "two")
    files = sorted(list_files(tmp_path / "one"))
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    golden("standalone/files.txt", "".join(f"{name}\n" for name in files))
    golden("standalone/model.c", (tmp_path / "one" / "model.c").read_text())
    golden("standalone/CMakeLists.txt", (tmp_path / "one" / "CMakeLists.txt").read_text())
    told = json.loads((tmp_path / "one" / "program.json").read_text())
    assert told["files"] == [name for name in files if name not in ("program.json", "signature.json")]
    assert set(told["code"]) == {name for name in files if name.endswith((".c", ".h", ".S"))}


def test_an_operator_without_a_function_is_named(byoc: Callable[..., Ran], tmp_path: Path) -> None:
    text = """net (float[2, 3] x) => (float[3, 3] y, float[2, 3] z) {
        y = Einsum <equation = "ij,ik->jk"> (x, x)
        z = Bernoulli(x)
    }"""
    model = tmp_path / "m.onnx"
    onnx.save(parse(text), model)
    ran = byoc("export-c", str(model), "-o", str(tmp_path / "out"))
    assert ran.code == 1
    assert "Einsum 'y' has no function in C: emx-onnx-cgen: Unsupported Einsum equation" in ran.err
    assert not (tmp_path / "out").exists()


ORDINARY = {"FLOAT", "DOUBLE", "BOOL"} | {
    f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)
}


@needs_compiler
@pytest.mark.parametrize("dtype", sorted(TensorProto.DataType.keys()))
@pytest.mark.parametrize("operator", ["Cast", "Reshape", "Gather"])
def test_a_type_that_c_lacks_is_refused_by_name(dtype: str, operator: str, tmp_path: Path) -> None:
    """What is written compiles as C99, whatever type a tensor inside of the model has."""
    number = TensorProto.DataType.Value(dtype)
    moved = {"Cast": ["c"], "Reshape": ["c", "shape"], "Gather": ["c", "indices"]}[operator]
    attributes = {"to": number} if operator == "Cast" else {}
    nodes = [
        helper.make_node("Cast", ["x"], ["c"], to=number),
        helper.make_node(operator, moved, ["d"], **attributes),
        helper.make_node("Cast", ["d"], ["y"], to=TensorProto.FLOAT),
    ]
    constants = [
        helper.make_tensor("shape", TensorProto.INT64, [1], [4]),
        helper.make_tensor("indices", TensorProto.INT64, [4], [3, 0, 1, 2]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    try:
        export_c(model, output=tmp_path / "out")
    except InputError as error:
        assert not (tmp_path / "out").exists()
        assert dtype not in ORDINARY, error
        return
    sources = [str(path) for path in (tmp_path / "out").glob("*.c")]
    command = ["cc", "-std=c99", "-fsyntax-only", "-I", str(tmp_path / "out"), *sources]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_what_is_not_a_program_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="is not a program of byoc's"):
        export_c(parse(SMALL), output=tmp_path / "out")
    assert list_files(tmp_path / "out") == {"mine.txt"}
    with pytest.raises(InputError, match="there is no folder"):
        export_c(parse(SMALL), output=tmp_path / "no" / "out")
    with pytest.raises(InputError, match="must be little or big"):
        export_c(parse(SMALL), output=tmp_path / "new", byte_order="middle")


@needs_compiler
def test_a_wrong_result_and_a_flipped_bit_are_found(byoc: Callable[..., Ran], tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_c(parse(SMALL), output=out)
    assert "the outputs are right" in byoc("verify", str(out), "--cc", STRICT).out
    weights, sample = ((out / name).read_bytes() for name in ("weights.bin", "sample.bin"))
    (out / "weights.bin").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    assert "the weights: are not as they were written" in byoc("verify", out).out
    (out / "weights.bin").write_bytes(weights)
    changed = np.frombuffer(sample, np.float32) * np.float32(1.5)
    (out / "sample.bin").write_bytes(changed.tobytes())
    ran = byoc("verify", out)
    assert ran.code == 4
    assert "output y is off by" in ran.out
    assert "at most 1e-05 is allowed" in ran.out
    assert json.loads(byoc("verify", out, "--format", "json").out)["passed"] is False


@needs_compiler
def test_integers_one_off_are_noise_where_activations_are_quantized(tmp_path: Path) -> None:
    """An error is right if one entry of the table has a larger one, and a larger mean square."""
    out = tmp_path / "out"
    export_c(parse(QUANTIZED), output=out)
    found = verify_program(out, "cc -O0").outputs[0]
    assert found.error < 1e-5
    entries = re.findall(r"{0, (\S+), (\S+)},", (out / "model.c").read_text())
    largest, square = max((float(one), float(other)) for one, other in entries[:-1])
    assert 1e-3 < largest <= 0.06
    assert found.allowed == pytest.approx(largest, rel=1e-2)
    program = build(out, tmp_path)
    sample = np.fromfile(out / "sample.bin", np.float32)
    start = count = 8 * 6  # the output is behind the input, whose bytes are a multiple of 64
    expected = sample[start : start + count].copy()

    def judge(moved: np.ndarray) -> int:
        sample[start : start + count] = expected + moved * np.ptp(expected)
        sample.tofile(out / "sample.bin")
        return subprocess.run([program], cwd=out, check=False, capture_output=True).returncode

    one = np.zeros(count)
    one[np.argsort(expected)[count // 2]] = 1
    assert judge(one * 0.9 * min(largest, np.sqrt(square * count))) == 0
    assert judge(one * 1.1 * largest) == 1
    assert judge(np.where(np.arange(count) % 2, 0.9, -0.9) * largest) == 1  # the mean square


@needs_compiler
def test_a_saturated_sigmoid_is_as_exact_as_one_is(tmp_path: Path) -> None:
    """onnxruntime computes it through 1/2, so results of a few 1e-7 lie a large share of them apart."""
    lines = "{ b = Add(x, k) y = Sigmoid(b) c = Add(x, x) z = Sigmoid(c) }"
    text = f"net (float[64] x) => (float[64] y, float[64] z) <float[1] k = {{-14}}> {lines}"
    export_c(parse(text), output=tmp_path / "out")
    first, second = verify_program(tmp_path / "out", "cc -O0").outputs
    assert 1e-4 < first.allowed <= 0.06
    assert first.error <= first.allowed
    assert second.allowed == 1e-5


@needs_compiler
def test_a_profile_names_each_kind_of_operator(tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_c(parse(SMALL), output=out)
    program = build(out, tmp_path, "-Wall", "-Wextra", "-Werror", "-DMODEL_PROFILE")
    ran = subprocess.run([program, "--runs", "3"], cwd=out, check=True, capture_output=True, text=True)
    found = re.findall(r"^profile: (.*): (\S+) s of a run, (\S+) %$", ran.stdout, re.MULTILINE)
    assert [kind for kind, _, _ in found] == ["Conv", "Sigmoid", "Add"]
    assert all(float(seconds) >= 0 and 0 <= float(share) <= 100 for _, seconds, share in found)


@needs_compiler
def test_foreign_weights_and_commands_are_refused(byoc: Callable[..., Ran], tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_c(parse(SMALL), output=out, byte_order="big")
    assert "in another byte order than this machine's" in verify_program(out).problem
    export_c(parse(SMALL.replace("Sigmoid", "Tanh")), output=tmp_path / "other")
    export_c(parse(SMALL), output=out)
    export_c(parse(SMALL.replace("{-3", "{-2")), output=tmp_path / "other")
    shutil.copy(tmp_path / "other" / "weights.bin", out / "weights.bin")
    assert "those of another model" in verify_program(out).problem
    with pytest.raises(MissingRuntimeError, match="there is no command 'no-such-cc' here"):
        verify_program(out, "no-such-cc -O2")
    with pytest.raises(InputError, match="cc refuses the program"):
        verify_program(out, "cc -no-such-flag")
    document = json.loads((out / "program.json").read_text())
    (out / "program.json").write_text(json.dumps({**document, "sources": ["../x.c"]}))
    with pytest.raises(InputError, match="is not what export-c writes, of format 2"):
        verify_program(out, trust=True)
    changed = {**document, "sources": ["../x.c"], "code": {"../x.c": "0"}}
    (out / "program.json").write_text(json.dumps(changed))
    with pytest.raises(InputError, match=r"there is no file '\.\./x\.c' in this folder"):
        verify_program(out, trust=True)
    ran = byoc("verify", tmp_path, "--cc", "cc")
    assert (ran.code, "is no program of export-c" in ran.err) == (1, True)
