"""`--emit epcontext`: regions as EPContext nodes, for any codegen that says how they are loaded."""

import hashlib
import struct
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
from helpers import vendors
from helpers.cutting import CHAIN, HOST_ONLY, original
from helpers.support import VANILLA, parse
from onnx import helper

import byoc
from byoc.bundle import CONTEXT_MODEL_FILE, open_bundle
from byoc.codegen import Artifact, CompileError, Context, DriverSources, NoOptions, Region
from byoc.errors import InputError

pytestmark = pytest.mark.usefixtures("numbered_regions")

DEVICE = """
twice (float[1, 4] x, float[1, 4] u) => (float[1, 4] y) {
  a = Relu(x) b = Sigmoid(a) c = Relu(b) d = Add(c, w) y = Sub(d, u)
}
"""
IN_BODY = """
branch (bool p, float[4] x) => (float[4] y) {
  y = If (p) <then_branch = t () => (float[4] r) { r = Relu(x) },
              else_branch = e () => (float[4] s) { s = Sigmoid(x) }>
}
"""


VANILLA_ANY = """target: any
cost_model: dla
dtype: any
ops:
  - op: Unsqueeze
"""


class Provided:
    """Makes contexts of a provider that takes the region's inputs the other way round."""

    name = "provided"
    Options = NoOptions

    def compile(self, region: Region, options: NoOptions) -> Artifact:
        names = {
            "in": [each.name for each in region.inputs],
            "out": [each.name for each in region.outputs],
        }
        metadata = {key: ",".join(value) for key, value in names.items()}
        return Artifact({"blob": region.name.encode(), "log": b""}, metadata)

    def context(self, artifact: Artifact) -> Context:
        inputs = tuple(reversed(artifact.metadata["in"].split(",")))
        outputs = tuple(artifact.metadata["out"].split(","))
        return Context("AcmeEP", "blob", inputs, outputs, sdk_version="4.2", more={"max_size": 7})


class Misplaced(Provided):
    """Speaks of a file that it did not make."""

    def context(self, artifact: Artifact) -> Context:
        return Context("AcmeEP", "other", (), ())


class Mistaken(Provided):
    """Speaks of a tensor that the region does not have."""

    def context(self, artifact: Artifact) -> Context:
        return Context("AcmeEP", "blob", ("nothing",), ())


class Broken(Provided):
    """Fails in a way of its own."""

    def context(self, artifact: Artifact) -> Context:
        raise ZeroDivisionError("by nothing")


class Refusing(Provided):
    """Has no context of what it compiled."""

    def context(self, artifact: Artifact) -> Context:
        raise CompileError("no context today")


class Wordless(Provided):
    """Gives what is no context."""

    def context(self, artifact: Artifact) -> Context:
        return cast(Context, None)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what has a class found as the codegen `provided`."""

    def found(kind: type[Provided]) -> None:
        vendors.install(monkeypatch, provided=kind)

    return found


def emitted(proto: onnx.ModelProto, output: Path, **options: Any) -> onnx.ModelProto:
    byoc.partition(
        proto, VANILLA, output=output, codegen="provided", strategy="all-supported", emit="epcontext",
        strict=True, **options,
    )  # fmt: skip
    path = output / CONTEXT_MODEL_FILE
    onnx.checker.check_model(path)
    return onnx.load(path, load_external_data=False)


def attributes(node: onnx.NodeProto) -> Mapping[str, Any]:
    return {each.name: helper.get_attribute_value(each) for each in node.attribute}


def test_each_region_is_a_node_with_the_path_of_its_context(install: Any, tmp_path: Path) -> None:
    install(Provided)
    proto = parse(DEVICE)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((1, 4), np.float32), "w"))
    made = emitted(proto, tmp_path / "b.byoc")

    assert [node.op_type for node in made.graph.node] == ["EPContext", "Sigmoid", "EPContext", "Sub"]
    first, second = (node for node in made.graph.node if node.domain == "com.microsoft")
    assert (list(first.input), list(first.output)) == (["x"], ["a"])
    assert (list(second.input), list(second.output)) == (["b"], ["d"])
    assert attributes(first) == {
        "main_context": 1,
        "embed_mode": 0,
        "ep_cache_context": b"artifacts/dla_0/blob",
        "source": b"AcmeEP",
        "partition_name": b"dla_0",
        "ep_sdk_version": b"4.2",
        "onnx_model_filename": b"dla_0.onnx",
        "notes": b"region dla_0, compiled by byoc's codegen provided",
        "max_size": 7,
    }
    assert {node.name for node in (first, second)} == {"dla_0", "dla_1"}
    assert (tmp_path / "b.byoc" / "artifacts/dla_0/blob").read_bytes() == b"dla_0"
    assert not made.functions
    assert not made.graph.initializer  # that of the region is in its context
    assert {each.domain: each.version for each in made.opset_import} == {"": 17, "com.microsoft": 1}
    types = {info.name: info.type.tensor_type for info in made.graph.value_info}
    for name in ("a", "d"):  # onnxruntime infers nothing of what a context gives out
        assert types[name].elem_type == onnx.TensorProto.FLOAT
        assert [dim.dim_value for dim in types[name].shape.dim] == [1, 4]


def test_large_weights_stay_in_their_file(install: Any, tmp_path: Path) -> None:
    """Of what stays on the host; a region's are in its context."""
    install(Provided)
    text = "g (float[5000] x) => (float[5000] y) { a = Relu(x) b = Pow(a, w) y = Relu(b) }"
    proto = parse(text)
    weights = np.arange(5000, dtype=np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    made = emitted(proto, tmp_path / "b.byoc")

    (stored,) = made.graph.initializer
    places = {each.key: each.value for each in stored.external_data}
    assert (stored.name, stored.data_location) == ("w", onnx.TensorProto.EXTERNAL)
    assert places["location"] == "weights.bin"
    assert (tmp_path / "b.byoc" / CONTEXT_MODEL_FILE).stat().st_size < weights.nbytes
    loaded = onnx.load(tmp_path / "b.byoc" / CONTEXT_MODEL_FILE).graph.initializer[0]
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(loaded), weights)


def test_an_input_that_nothing_reads_keeps_its_default(install: Any, tmp_path: Path) -> None:
    install(Provided)
    proto = parse(DEVICE)
    for name in ("w", "unread"):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((1, 4), np.float32), name))
    proto.graph.input.append(helper.make_tensor_value_info("unread", onnx.TensorProto.FLOAT, [1, 4]))
    made = emitted(proto, tmp_path / "b.byoc")

    assert [each.name for each in made.graph.input] == ["x", "u", "unread"]
    assert [each.name for each in made.graph.initializer] == ["unread"]


def test_an_output_of_a_region_has_the_shape_that_it_has(install: Any, tmp_path: Path) -> None:
    """Some exporters state another rank; onnxruntime warns of it, and providers compare."""
    install(Provided)
    text = "g (float[1, 4, 2] x) => (float[1, N] y, float[1, M, 2] z) { y = Relu(x) z = Relu(y) }"
    wrong, right = emitted(parse(text), tmp_path / "b").graph.output

    assert [dim.dim_value for dim in wrong.type.tensor_type.shape.dim] == [1, 4, 2]
    assert [dim.dim_param for dim in right.type.tensor_type.shape.dim] == ["", "M", ""]


def test_inputs_are_in_the_order_of_the_context(install: Any, tmp_path: Path) -> None:
    install(Provided)
    made = emitted(parse("g (float[4] x, float[4] u) => (float[4] y) { y = Add(x, u) }"), tmp_path / "b")

    (node,) = made.graph.node
    assert list(node.input) == ["u", "x"]


def test_regions_that_are_the_same_share_a_context_under_their_own_names(
    install: Any, tmp_path: Path
) -> None:
    install(Provided)
    made = emitted(parse(CHAIN), tmp_path / "b.byoc")

    first, second = (node for node in made.graph.node if node.domain == "com.microsoft")
    assert attributes(first)["ep_cache_context"] == attributes(second)["ep_cache_context"]
    assert (list(second.input), list(second.output)) == (["b"], ["y"])
    assert first.name != second.name  # by which a provider tells them apart


def test_the_bundle_is_one_like_any_other(install: Any, tmp_path: Path) -> None:
    install(Provided)
    emitted(parse(CHAIN), tmp_path / "b.byoc")
    opened = open_bundle(tmp_path / "b.byoc")

    assert CONTEXT_MODEL_FILE in opened.manifest.files
    assert opened.manifest.asked["emit"] == "epcontext"
    before = (tmp_path / "b.byoc" / CONTEXT_MODEL_FILE).read_bytes()
    emitted(parse(CHAIN), tmp_path / "b.byoc")
    assert (tmp_path / "b.byoc" / CONTEXT_MODEL_FILE).read_bytes() == before


def test_without_regions_the_model_is_the_hosts(install: Any, tmp_path: Path) -> None:
    install(Provided)
    made = emitted(parse(HOST_ONLY), tmp_path / "b.byoc")

    assert [node.op_type for node in made.graph.node] == ["Sigmoid"]


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        (Provided, IN_BODY, "region dla_0 stands in the body of an If, Loop or Scan"),
        (Misplaced, CHAIN, "codegen provided: the artifact of dla_0 has no 'other'"),
        (Mistaken, CHAIN, "codegen provided: dla_0 has no tensor 'nothing'"),
        (Refusing, CHAIN, "^--emit epcontext: codegen provided: dla_0: no context today$"),
        (
            Broken,
            CHAIN,
            "^--emit epcontext: codegen provided: dla_0: context failed with ZeroDivisionError: by n",
        ),
        (
            Wordless,
            CHAIN,
            "codegen provided: dla_0: context failed with TypeError: `context` gave a NoneType instead",
        ),
    ],
)
def test_what_cannot_be_emitted_leaves_nothing(
    kind: type[Provided], text: str, told: str, install: Any, tmp_path: Path
) -> None:
    install(kind)
    with pytest.raises(InputError, match=told):
        emitted(parse(text), tmp_path / "b.byoc")
    assert not list(tmp_path.iterdir())


def test_a_codegen_without_a_provider_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        byoc.partition(parse(CHAIN), VANILLA, output=tmp_path / "b", codegen="iree", emit="epcontext")
    assert str(caught.value) == (
        "--emit epcontext: no provider of ONNX Runtime loads what codegen iree makes for dla: "
        "it has neither a `context` nor a `driver`"
    )


def test_there_has_to_be_a_bundle_and_a_kind_that_is_known(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="say where that is to be"):
        byoc.partition(parse(CHAIN), VANILLA, emit="epcontext")
    with pytest.raises(InputError, match="emit: 'c' is not 'epcontext' or None"):
        byoc.partition(parse(CHAIN), VANILLA, output=tmp_path / "b", emit="c")  # type: ignore[arg-type]


QUANTIZED = """
g (float[1,3,8,8] x) => (float[1,3,8,8] y) {
  q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
  v = DequantizeLinear(w, ws, wz) c = Conv<pads=[1,1,1,1]>(d, v) r = Relu(c)
  o = QuantizeLinear(r, s, z) e = DequantizeLinear(o, s, z)
  h = Softsign(e)
  q2 = QuantizeLinear(h, s, z) d2 = DequantizeLinear(q2, s, z)
  v2 = DequantizeLinear(w, ws, wz) c2 = Conv<pads=[1,1,1,1]>(d2, v2) r2 = Relu(c2)
  o2 = QuantizeLinear(r2, s, z) y = DequantizeLinear(o2, s, z)
}
"""
# Without byoc, as whoever is given the bundle would do it.
FRESH = """
import sys
import numpy as np, onnxruntime, onnxruntime_qnn
model, inputs, outputs = sys.argv[1:]
onnxruntime.register_execution_provider_library("QNN", onnxruntime_qnn.get_library_path())
devices = [each for each in onnxruntime.get_ep_devices() if each.ep_name == "QNN"]
options = onnxruntime.SessionOptions()
options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
options.add_provider_for_devices(devices[:1], {"backend_path": onnxruntime_qnn.get_qnn_htp_path()})
session = onnxruntime.InferenceSession(model, options, enable_fallback=0)
parts = session.get_provider_graph_assignment_info()
taken = [node.name for part in parts if part.ep_name == "QNN" for node in part.get_nodes()]
np.savez(outputs, y=session.run(["y"], dict(np.load(inputs)))[0], taken=sorted(taken))
"""


@pytest.mark.qnn
@pytest.mark.skipif(find_spec("onnxruntime_qnn") is None, reason="onnxruntime-qnn is not installed")
def test_onnxruntime_with_the_provider_runs_it(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{QUANTIZED}')
    weights = np.random.default_rng(0).integers(-40, 40, (3, 3, 3, 3)).astype(np.int8)
    constants = {"w": weights, "s": np.float32(0.02), "z": np.uint8(128)}
    constants |= {"ws": np.float32(0.01), "wz": np.int8(0)}
    for name, value in constants.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    x = np.random.default_rng(1).normal(size=(1, 3, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "in.npz", x=x)

    byoc.partition(
        proto, "qnn-htp", output=tmp_path / "b.byoc", strategy="all-supported", emit="epcontext",
        verify=False, strict=True,
    )  # fmt: skip
    paths = (tmp_path / "b.byoc" / CONTEXT_MODEL_FILE, tmp_path / "in.npz", tmp_path / "out.npz")
    subprocess.run([sys.executable, "-c", FRESH, *map(str, paths)], check=True, capture_output=True)

    made = np.load(paths[2])
    assert made["taken"].tolist() == ["qnn-htp_0", "qnn-htp_1"]
    expected = original(proto, {"x": x})["y"]
    assert np.unique(expected).size > 20
    # One step of the first region's output may be a few of the second's.
    assert np.mean(np.abs(made["y"] - expected) > 0.0001) < 0.1
    assert np.max(np.abs(made["y"] - expected)) < 0.0601
    np.testing.assert_array_equal(made["y"], byoc.load(tmp_path / "b.byoc")({"x": x})["y"])


class Driven:
    """A codegen whose regions a driver runs."""

    name = "provided"
    Options = NoOptions

    def compile(self, region: Region, options: NoOptions) -> Artifact:
        return Artifact({"code.bin": region.name.encode(), "a.log": b""}, {"größe": "4", "b": "für"})

    def driver(self) -> DriverSources:
        return DriverSources("provided", (Path("none.c"),))


class Modelled(Provided):
    """A codegen whose drivers are made of the models of regions."""

    model_driver = True
    context = None  # type: ignore[assignment]


def read_description(content: bytes) -> dict[str, Any]:
    """Read the bytes as docs/epcontext.md has them."""
    magic, version, size, *counts = struct.unpack_from("<8s6I", content)
    assert (magic, version, size) == (b"BYOCREGN", 1, len(content))
    at = 32

    def take(form: str) -> tuple[Any, ...]:
        nonlocal at
        found = struct.unpack_from(f"<{form}", content, at)
        at += struct.calcsize(f"<{form}")
        return found

    def take_text() -> str:
        (length,) = take("I")
        text, end = take(f"{length}sB")
        assert end == 0
        return str(text.decode())

    def take_file() -> tuple[str, str, int, str]:
        return take_text(), take_text(), *take("Q"), take("32s")[0].hex()

    def take_tensor() -> tuple[Any, ...]:
        name, (dtype, rank) = take_text(), take("2I")
        return name, dtype, take(f"{rank}q")

    found: dict[str, Any] = {"codegen": take_text(), "region": take_text()}
    for kind, count, read in zip(
        ("files", "texts", "inputs", "outputs"),
        counts,
        (take_file, lambda: (take_text(), take_text()), take_tensor, take_tensor),
        strict=True,
    ):
        found[kind] = [read() for _ in range(count)]
    assert at == len(content)
    return found


def test_a_driver_is_told_of_its_region_in_bytes(install: Any, tmp_path: Path) -> None:
    install(Driven)
    text = """
    two (float[2, 3] x, int64[3] k, bool[2, 1] c) => (float[2, 3] y, int64[3] m) {
      a = Relu(x)
      b = Abs(a)
      y = Sigmoid(b)
      m = Abs(k)
    }"""
    made = emitted(parse(text), tmp_path / "b.byoc")
    nodes = [node for node in made.graph.node if node.domain == "com.microsoft"]
    for node in nodes:
        said = attributes(node)
        assert said["embed_mode"] == 1
        found = read_description(bytes.fromhex(said["ep_cache_context"].decode()))
        region = found["region"]
        content = region.encode()
        assert found["codegen"] == "provided"
        (empty, code) = found["files"]
        assert (empty[0], empty[2:]) == ("a.log", (0, hashlib.sha256(b"").hexdigest()))
        assert (code[0], code[2:]) == ("code.bin", (len(content), hashlib.sha256(content).hexdigest()))
        assert (tmp_path / "b.byoc" / code[1]).read_bytes() == content
        assert found["texts"] == [("b", "für"), ("größe", "4")]
        assert [each[0] for each in found["inputs"]] == list(node.input)
        assert [each[0] for each in found["outputs"]] == list(node.output)
        kind = (1, (2, 3)) if node.input[0] == "x" else (7, (3,))
        assert {each[1:] for each in (*found["inputs"], *found["outputs"])} == {kind}


def test_a_driver_of_models_is_told_the_hash_of_its_model(install: Any, tmp_path: Path) -> None:
    install(Modelled)
    made = emitted(parse(CHAIN), tmp_path / "b.byoc")
    for node in (node for node in made.graph.node if node.domain == "com.microsoft"):
        found = read_description(bytes.fromhex(attributes(node)["ep_cache_context"].decode()))
        model = tmp_path / "b.byoc" / "regions" / found["region"]
        texts = dict(found["texts"])
        hashes = {
            hashlib.sha256(path.read_bytes()).hexdigest()
            for path in (tmp_path / "b.byoc").rglob("*.onnx")
        }
        assert texts["byoc.model"] in hashes, model
        assert list(texts) == sorted(texts)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("float[N, 4]", "its extents are not all known, which a driver needs"),
        ("string[4]", "string does not cross to a driver"),
        ("int4[4]", "int4 does not cross to a driver"),
    ],
)
def test_tensors_that_do_not_cross_to_a_driver_are_named(
    kind: str, said: str, install: Any, tmp_path: Path
) -> None:
    install(Driven)
    rules = tmp_path / "any.yaml"
    rules.write_text(VANILLA_ANY)
    more = kind.replace("[", "[1, ")
    text = f"one ({kind} x) => ({more} y) <int64[1] k = {{0}}> {{ y = Unsqueeze(x, k) }}"
    with pytest.raises(InputError) as caught:
        byoc.partition(
            parse(text, opset=21, ir=10), rules, output=tmp_path / "b.byoc", codegen="provided",
            strategy="all-supported", emit="epcontext", strict=True,
        )  # fmt: skip
    assert str(caught.value) == f"--emit epcontext: region any_0: 'x': {said}"
