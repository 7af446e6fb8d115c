"""byoc's provider of ONNX Runtime: what it computes, threads and sessions, each fault as a sentence."""

import ctypes
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from drivers_of_tests import CHOSEN, DOUBLING
from helpers import quantized, vendors
from helpers.cutting import number_regions
from helpers.support import VANILLA, parse

import byoc
from byoc.bundle import CONTEXT_MODEL_FILE, open_bundle
from byoc.codegen import Artifact, DriverSources, NoOptions, Region
from byoc.errors import InputError
from byoc.onnxrt import open_provider_session, register_provider
from byoc.runtime import load_with_provider

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
    pytest.mark.skipif(sys.platform == "win32", reason="the provider is built for POSIX"),
]
TWO = """
two (float[2, 3] x, float[2, 3] u) => (float[2, 3] y, float[2, 3] z) {
  a = Relu(x)
  z = Relu(u)
  b = Sigmoid(a)
  y = Relu(b)
}
"""
ROW = """
row (float[2, 3] x) => (float[2, 3] y, float[2, 3] z) {
  a = Relu(x)
  t = Mul(a, a)
  s = Sub(a, x)
  y = Add(t, s)
  u = Sub(s, x)
  z = Mul(t, u)
}
"""
PAIR = """
pair (float[4] x, float[4] u) => (float[4] y, float[4] z) {
  a = Add(x, u)
  y = Relu(a)
  z = Mul(a, u)
}
"""
QUANTIZED = """
quantized (float[2, 3] x) => (int8[3, 2] y)
<float s = {0.25}, int8 z = {3}>
{
  a = Relu(x)
  t = Transpose(a)
  y = QuantizeLinear(t, s, z)
}
"""
BODIES = """
bodies (bool p, float[4] x, float[4] u) => (float[4] y) {
  n = Constant <value = int64 {3}> ()
  a = If (p) <then_branch = t () => (float[4] r) { q = Relu(x) r = Sub(q, u) },
              else_branch = e () => (float[4] s) { s = Sigmoid(x) }>
  y = Loop (n, p, a) <body = b (int64 i, bool c, float[4] v) => (bool k, float[4] w) {
    k = Identity(c)
    h = Relu(v)
    w = Sub(h, u)
  }>
}
"""


class Doubling:
    """Compiles each region into a file of one word, which its driver takes for `y = 2 x`."""

    name = "doubling"
    api = 2
    Options = NoOptions
    content = b"fine"

    def compile(self, region: Region, options: NoOptions) -> Artifact:
        return Artifact({"code.bin": self.content}, {"text": "für Menschen"})

    def driver(self) -> DriverSources:
        return DriverSources("doubling", (DOUBLING,))


class Chosen(Doubling):
    """Compiles regions for a driver whose outputs are its inputs, and which counts their bytes."""

    name = "chosen"

    def driver(self) -> DriverSources:
        return DriverSources("chosen", (CHOSEN,), abi=2)


Emit = Callable[..., Path]


@pytest.fixture
def emit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Emit:
    """Return what partitions a model's text for the codegen `doubling`, and returns the bundle."""

    def partition(text: str, content: bytes = b"fine", codegen: str = "doubling") -> Path:
        doubling = type("Doubling", (Doubling,), {"content": content})
        vendors.install(monkeypatch, doubling=doubling, chosen=Chosen)
        output = tmp_path / "b.byoc"
        with number_regions():
            byoc.partition(
                parse(text), VANILLA, output=output, codegen=codegen, strategy="all-supported",
                emit="epcontext", strict=True, verify=False, isolate=False, cache=False,
            )  # fmt: skip
        return output

    return partition


def floats(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def run(session: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def test_each_region_runs_on_the_tensors_that_are_its_own(emit: Emit, doubling_library: Path) -> None:
    folder = emit(TWO)
    session = open_provider_session(folder / CONTEXT_MODEL_FILE, {"doubling": doubling_library})
    given = {"x": floats(2, 3), "u": floats(2, 3, seed=1)}
    found = run(session, given)
    np.testing.assert_array_equal(found["z"], 2 * given["u"])
    np.testing.assert_allclose(found["y"], 2 * sigmoid(2 * given["x"]), rtol=1e-6)


def test_the_node_describes_its_region(emit: Emit) -> None:
    folder = emit(TWO)
    proto = onnx.load(folder / CONTEXT_MODEL_FILE)
    nodes = [node for node in proto.graph.node if node.op_type == "EPContext"]
    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in nodes[0].attribute}
    assert (attributes["source"], attributes["embed_mode"]) == (b"byoc", 1)
    described = bytes.fromhex(attributes["ep_cache_context"].decode())
    assert described.startswith(struct.pack("<8s2I", b"BYOCREGN", 1, len(described)))
    for text in (
        b"doubling",
        b"dla_0",
        b"code.bin",
        b"artifacts/dla_0/code.bin",
        "für Menschen".encode(),
    ):
        assert struct.pack("<I", len(text)) + text + b"\0" in described
    assert described.endswith(struct.pack("<2I2q", 1, 2, 2, 3))  # float32 [2, 3]
    assert not proto.functions


@pytest.mark.skipif(
    onnxruntime.__version__.startswith("1.23."),
    reason="onnxruntime 1.23 takes compiled nodes in one body",
)
def test_regions_run_in_bodies_of_control_flow(emit: Emit, doubling_library: Path) -> None:
    folder = emit(BODIES)
    proto = onnx.load(folder / CONTEXT_MODEL_FILE)
    assert not any(node.op_type == "EPContext" for node in proto.graph.node)
    session = open_provider_session(folder / CONTEXT_MODEL_FILE, {"doubling": doubling_library})
    x, u = floats(4), floats(4, seed=1)
    expected = 2 * x - u
    for _ in range(3):
        expected = 2 * expected - u
    np.testing.assert_allclose(
        run(session, {"p": np.array(True), "x": x, "u": u})["y"], expected, rtol=1e-5
    )
    np.testing.assert_allclose(
        run(session, {"p": np.array(False), "x": x, "u": u})["y"], sigmoid(x), rtol=1e-6
    )


def test_quantization_behind_a_region_stays_where_it_is(emit: Emit, doubling_library: Path) -> None:
    path = emit(QUANTIZED) / CONTEXT_MODEL_FILE
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("optimization.disable_specified_optimizers", "ConstantFolding")
    register_provider(options, {"doubling": doubling_library})
    disabled = options.get_session_config_entry("optimization.disable_specified_optimizers")
    assert disabled == "ConstantFolding;QDQPropagationTransformer"
    session = onnxruntime.InferenceSession(str(path), options, enable_fallback=0)
    given = floats(2, 3)
    expected = np.clip(np.rint(2 * given.T / 0.25) + 3, -128, 127).astype(np.int8)
    np.testing.assert_array_equal(run(session, {"x": given})["y"], expected)


def test_an_output_that_nobody_reads_is_made_for_nobody(emit: Emit, doubling_library: Path) -> None:
    folder = emit(PAIR)
    proto = onnx.load(folder / CONTEXT_MODEL_FILE)
    (node,) = proto.graph.node
    assert len(node.output) == 2
    proto.graph.value_info.extend(value for value in proto.graph.output if value.name == node.output[0])
    proto.graph.output.remove(proto.graph.value_info[-1])
    onnx.save(proto, folder / "half.onnx")
    given = {"x": floats(4), "u": floats(4, seed=1)}
    session = open_provider_session(folder / "half.onnx", {"doubling": doubling_library})
    whole = open_provider_session(folder / CONTEXT_MODEL_FILE, {"doubling": doubling_library})
    (found,) = run(session, given).items()
    assert found[0] == node.output[1]
    np.testing.assert_array_equal(found[1], run(whole, given)[found[0]])
    assert found[1].any()


def test_a_bundle_is_run_and_verified_by_its_driver(tmp_path: Path) -> None:
    text = """net (float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) {
      c = Conv <pads = [1, 1, 1, 1]> (x, k) r = Relu(c) s = Softsign(r) y = Relu(s) }"""
    proto = parse(text)
    weights = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "k"))
    options = {"strategy": "all-supported", "emit": "epcontext"}
    byoc.partition(proto, output=tmp_path / "b", variants={"board": {"rules": "dla"}}, **options)
    bundle = open_bundle(tmp_path / "b", None)
    given = {"x": floats(1, 3, 8, 8)}
    session = load_with_provider(bundle)
    assert session.variant == "board"
    assert [stage.name for stage in session.stages] == ["onnxruntime"]
    np.testing.assert_allclose(session(given)["y"], byoc.load(tmp_path / "b")(given)["y"], atol=1e-6)
    found = byoc.verify(bundle, runtime="ort-plugin")
    assert found.passed
    assert len(found.regions) == len(bundle.manifest.regions) == 2
    assert len(found.boundary) >= 3
    with pytest.raises(InputError, match="runtime is 'ort', but must be one of byoc, ort-plugin, d"):
        byoc.verify(bundle, runtime="ort")


@pytest.mark.parametrize("name", ["conv and relu", "gemm", "two outputs, of inputs not in order"])
def test_integers_are_equal_to_the_simulators(tmp_path: Path, dla_library: Path, name: str) -> None:
    proto = quantized.model(quantized.MODELS[name])
    byoc.partition(proto, "dla", output=tmp_path / "b", strategy="all-supported", emit="epcontext")
    session = open_provider_session(tmp_path / "b" / CONTEXT_MODEL_FILE, {"dla": dla_library})
    expected = byoc.load(tmp_path / "b")
    assert any(stage.device == "dla" for stage in expected.stages)
    random = np.random.default_rng(0)
    shapes = {value.name: value.shape for value in session.get_inputs()}
    for _ in range(3):
        given = {key: random.integers(0, 256, shape).astype(np.uint8) for key, shape in shapes.items()}
        wanted = expected(given)
        for output, value in run(session, given).items():
            np.testing.assert_array_equal(value, wanted[output])
            assert np.unique(value).size > 3


def test_threads_and_sessions_do_not_mix_their_regions(emit: Emit, doubling_library: Path) -> None:
    folder = emit(TWO)
    path = folder / CONTEXT_MODEL_FILE
    sessions = [open_provider_session(path, {"doubling": doubling_library}) for _ in range(2)]

    def work(number: int) -> bool:
        given = {"x": floats(2, 3, seed=number), "u": floats(2, 3, seed=-number % 97)}
        return all(
            np.array_equal(run(session, given)["z"], 2 * given["u"])
            for _ in range(200)
            for session in sessions
        )

    with ThreadPoolExecutor(
        4
    ) as pool:  # the driver ends the process if a region is called twice at once
        assert all(pool.map(work, range(8)))


def read_counts(library: Path) -> tuple[int, int]:
    """Return the bytes of inputs and outputs so far, in onnxruntime's memory and in buffers."""
    loaded = ctypes.CDLL(str(library))
    names = ("chosen_bytes_in_program", "chosen_bytes_in_buffers")
    program, buffers = (ctypes.c_uint64.in_dll(loaded, name).value for name in names)
    return program, buffers


def test_regions_in_a_row_pass_a_tensor_without_onnxruntime(emit: Emit, chosen_library: Path) -> None:
    """Of the regions' tensors `t` alone is read by no one else; the driver says where each lay."""
    path = emit(ROW, codegen="chosen") / CONTEXT_MODEL_FILE
    nodes = onnx.load(path, load_external_data=False).graph.node
    made, read = ([*each.output] for each in nodes if each.op_type == "EPContext"), nodes[-1].input
    assert "t" in next(made)
    assert "t" in read
    session = open_provider_session(path, {"chosen": chosen_library})
    inputs = [floats(2, 3, seed=number) for number in range(8)]

    def work(x: np.ndarray[Any, Any]) -> bool:
        x = np.abs(x)
        given = {"t": x, "s": x - x, "u": x - x - x}
        found = run(session, {"x": x})
        expected = [given[name] for name in read]
        return np.array_equal(found["y"], expected[0]) and np.array_equal(found["z"], expected[1])

    before = read_counts(chosen_library)
    assert work(inputs[0])
    program, buffers = (
        later - one for later, one in zip(read_counts(chosen_library), before, strict=True)
    )
    size = inputs[0].nbytes
    assert buffers == 2 * size  # `t`, where it is made and where it is read
    assert program == (len([*nodes[0].input, *nodes[0].output, *read, *nodes[-1].output]) - 2) * size
    with pytest.raises(Exception, match=r"byoc: dla_0: driver chosen: failed"):
        run(session, {"x": np.full((2, 3), 13, np.float32)})
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, inputs * 20))


@pytest.mark.parametrize("missing", ["submit", "wait", "open_buffer", "close_buffer"])
def test_without_buffers_tensors_pass_through_onnxruntime(
    missing: str, emit: Emit, chosen_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = emit(ROW, codegen="chosen") / CONTEXT_MODEL_FILE
    monkeypatch.setenv("CHOSEN_WITHOUT", missing)
    session = open_provider_session(path, {"chosen": chosen_library})
    before = read_counts(chosen_library)
    x = np.abs(floats(2, 3))
    assert run(session, {"x": x})["y"].any()
    assert read_counts(chosen_library) == before  # they are counted in `submit` alone


def test_a_tensor_that_a_body_or_the_caller_reads_is_in_onnxruntimes_memory(
    emit: Emit, chosen_library: Path
) -> None:
    text = """
    row (float[2, 3] x, bool p) => (float[2, 3] y, float[2, 3] t) {
      a = Relu(x)
      t = Mul(a, a)
      s = Sub(a, x)
      b = Add(t, s)
      c = If (p) <then_branch = one () => (float[2, 3] r) { r = Sub(b, x) },
                  else_branch = two () => (float[2, 3] q) { q = Sub(x, b) }>
      y = Mul(b, c)
    }"""
    path = emit(text, codegen="chosen") / CONTEXT_MODEL_FILE
    session = open_provider_session(path, {"chosen": chosen_library})
    before = read_counts(chosen_library)
    x = np.abs(floats(2, 3))
    assert run(session, {"x": x, "p": np.array(True)})["t"].any()
    assert read_counts(chosen_library)[1] == before[1]


def test_a_run_that_fails_is_a_sentence_and_the_next_one_works(
    emit: Emit, doubling_library: Path
) -> None:
    folder = emit(TWO)
    session = open_provider_session(folder / CONTEXT_MODEL_FILE, {"doubling": doubling_library})
    given = {"x": np.full((2, 3), 13, np.float32), "u": floats(2, 3)}
    for _ in range(2):
        with pytest.raises(Exception, match=r"byoc: dla_.: driver doubling: the device is unlucky"):
            run(session, given)
        assert run(session, {**given, "x": floats(2, 3)})["y"].any()


def refusal(path: Path, drivers: Mapping[str, Path]) -> str:
    """Return what onnxruntime says of a model that it does not load."""
    with pytest.raises(InputError) as caught:
        open_provider_session(path, drivers)
    text = str(caught.value)
    assert "byoc: dla_0: " in text, text
    return text.rpartition("byoc: dla_0: ")[2]


def test_drivers_that_are_none_are_named(emit: Emit, dla_library: Path, tmp_path: Path) -> None:
    path = emit(TWO) / CONTEXT_MODEL_FILE
    (tmp_path / "text.so").write_text("text")
    missing = "there is no driver for 'doubling': name its library by the option driver.CODEGEN"
    assert refusal(path, {}) == missing
    assert refusal(path, {"dla": dla_library}) == missing
    assert refusal(path, {"doubling": tmp_path / "text.so"}).endswith(
        "text.so: it is no library that can be loaded"
    )
    assert refusal(path, {"doubling": tmp_path / "none.so"}).endswith("none.so: there is no such file")
    assert refusal(path, {"doubling": dla_library}).endswith("dla.so: its driver is for another codegen")
    numpy = next(Path(np.__file__).parent.rglob("_multiarray_umath*.so"))
    assert refusal(path, {"doubling": numpy}).endswith("it is no driver: it has no byoc_get_driver")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    register_provider(options, {})
    options.add_session_config_entry("ep.byoc.driver.doubling", "doubling.so")
    with pytest.raises(Exception, match=r"driver\.doubling=doubling\.so: it must be an absolute path"):
        onnxruntime.InferenceSession(str(path), options, enable_fallback=0)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"old", "driver doubling: the artifact is for another device"),
        (b"open", "driver doubling: the artifact cannot be opened"),
    ],
)
def test_what_the_driver_refuses(
    emit: Emit, doubling_library: Path, content: bytes, sentence: str
) -> None:
    assert refusal(emit(TWO, content) / CONTEXT_MODEL_FILE, {"doubling": doubling_library}) == sentence


def test_files_that_are_not_as_they_were(emit: Emit, doubling_library: Path, tmp_path: Path) -> None:
    folder = emit(TWO)
    path, drivers = folder / CONTEXT_MODEL_FILE, {"doubling": doubling_library}
    file = folder / "artifacts/dla_0/code.bin"
    name = "artifacts/dla_0/code.bin: "
    file.write_bytes(b"FINE")
    assert refusal(path, drivers) == f"{name}it is not as it was written: its hash differs"
    file.write_bytes(b"fine!")
    assert refusal(path, drivers) == f"{name}it is not as it was written: its size differs"
    file.unlink()
    assert refusal(path, drivers) == f"{name}it is missing, or behind a link"
    (tmp_path / "code.bin").write_bytes(b"fine")
    file.symlink_to(tmp_path / "code.bin")
    assert refusal(path, drivers) == f"{name}it is a link"
    file.unlink()
    file.mkdir()
    assert refusal(path, drivers) == f"{name}it is no file"
    shutil.rmtree(folder / "artifacts")
    (tmp_path / "elsewhere/dla_0").mkdir(parents=True)
    (tmp_path / "elsewhere/dla_0/code.bin").write_bytes(b"fine")
    (folder / "artifacts").symlink_to(tmp_path / "elsewhere")
    assert refusal(path, drivers) == f"{name}it is missing, or behind a link"


def change_description(path: Path, change: Callable[[bytes], bytes]) -> Path:
    """Write the model with another description of its first region; return its path."""
    proto = onnx.load(path)
    node = next(node for node in proto.graph.node if node.op_type == "EPContext")
    attribute = next(each for each in node.attribute if each.name == "ep_cache_context")
    attribute.s = change(bytes.fromhex(attribute.s.decode())).hex().encode()
    onnx.save(proto, path.with_name("changed.onnx"))
    return path.with_name("changed.onnx")


def test_descriptions_that_are_wrong(emit: Emit, doubling_library: Path) -> None:
    path, drivers = emit(TWO) / CONTEXT_MODEL_FILE, {"doubling": doubling_library}
    described = "the node's description of its region "

    def refused(change: Callable[[bytes], bytes]) -> str:
        return refusal(change_description(path, change), drivers)

    assert refused(lambda old: b"") == "the node does not describe a region of byoc"
    assert refused(lambda old: b"ELF" + old[3:]) == "the node does not describe a region of byoc"
    version = refused(lambda old: old[:8] + b"\2" + old[9:])
    assert version == f"{described}is not of version 1; take a newer provider"
    assert refused(lambda old: old[:-1]) == f"{described}breaks off"
    longer = refused(lambda old: old[:12] + struct.pack("<I", len(old) + 1) + old[16:] + b"\0")
    assert longer == f"{described}goes on behind its end"
    huge = struct.pack("<2q", 2**62, 2**62)
    assert refused(lambda old: old[:-16] + huge) == f"{described}has a tensor that no memory holds"
    other = refused(lambda old: old[:-16] + struct.pack("<2q", 3, 2))
    assert other.endswith("the model has another shape there than the region")
    for outside in (
        b"../../../../etc/hostname",
        b"/rtifacts/dla_0/code.bin",
        b"artifacts/./dla/code.bin",
        b"artifacts//la_0/code.bin",
    ):
        assert len(outside) == len("artifacts/dla_0/code.bin")
        text = refused(lambda old, to=outside: old.replace(b"artifacts/dla_0/code.bin", to))
        assert text == f"{outside.decode()}: its path leads out of the bundle"


def test_a_model_as_bytes_needs_the_folder_of_its_bundle(emit: Emit, doubling_library: Path) -> None:
    folder = emit(TWO)
    content = (folder / CONTEXT_MODEL_FILE).read_bytes()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    register_provider(options, {"doubling": doubling_library})
    with pytest.raises(Exception, match="say by the option folder where its bundle is"):
        onnxruntime.InferenceSession(content, options, enable_fallback=0)
    options.add_session_config_entry("ep.byoc.folder", str(folder))
    session = onnxruntime.InferenceSession(content, options, enable_fallback=0)
    given = {"x": floats(2, 3), "u": floats(2, 3, seed=1)}
    np.testing.assert_array_equal(run(session, given)["z"], 2 * given["u"])


def test_a_bundle_without_the_model_is_told_how_to_get_it(tmp_path: Path) -> None:
    byoc.partition(parse("g (float[4] x) => (float[4] y) { y = Relu(x) }"), "dla", output=tmp_path / "b")
    with pytest.raises(
        InputError, match=r"no model_ctx\.onnx, which ort-plugin runs: .* --emit epcontext"
    ):
        load_with_provider(open_bundle(tmp_path / "b"))


APPLICATION = Path(__file__).with_name("application.c")


def test_an_application_in_c_runs_a_bundle(emit: Emit, doubling_library: Path, tmp_path: Path) -> None:
    folder = emit("one (float[2, 3] x) => (float[2, 3] y) { a = Relu(x) y = Sigmoid(a) }")
    provider = byoc.onnxrt.build_provider(tmp_path / "provider.so")
    program = tmp_path / "application"
    library = next(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*"))
    include = byoc.onnxrt.get_provider_folder()
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{include}"]
    subprocess.run(["cc", *flags, str(APPLICATION), "-o", str(program), "-ldl"], check=True)
    x = floats(2, 3)
    arguments = [library, provider, folder / CONTEXT_MODEL_FILE, "driver.doubling", doubling_library]
    ran = subprocess.run(
        [str(program), *map(str, arguments), "2", "3"],
        input=x.tobytes(), capture_output=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr.decode()
    found = np.frombuffer(ran.stdout, np.float32).reshape(2, 3)
    np.testing.assert_allclose(found, sigmoid(2 * x), rtol=1e-6)
