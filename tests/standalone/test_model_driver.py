"""Drivers that byoc makes of a bundle's regions: what they compute, and what they refuse."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import pytest
from helpers.support import Ran, parse
from onnx.reference import ReferenceEvaluator
from small_programs import WEIGHTS

import byoc
from byoc.bundle import CONTEXT_MODEL_FILE, MODEL_TEXT, open_bundle
from byoc.codegen import Artifact
from byoc.codegen.drivers import DriverError, DriverLibrary
from byoc.errors import InputError
from byoc.onnxrt import open_provider_session
from byoc.standalone import export_c, make_driver, verify_program, write_model_driver

pytest.importorskip("emx_onnx_cgen")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
STRICT = "cc -std=c99 -pedantic -Wall -Wextra -Werror -O1"
NET = f"""net (float[1, 2, 6, 6] x, float[1, 3, 6, 6] u) => (float[1, 3, 6, 6] y, float[1, 3, 6, 6] z)
    <float[3, 2, 3, 3] k = {{{WEIGHTS}}}, float[1] half = {{0.5}}> {{
    a = Conv <pads = [1, 1, 1, 1]> (x, k)
    b = Relu(a)
    h = Mul(b, half)
    s = Softsign(h)
    g = Mul(s, half)
    t = Add(g, u)
    z = Sigmoid(t)
    v = Softsign(t)
    y = Relu(v)
}}"""
"""Regions with a kernel of byoc's, and with functions whose constants have equal names."""


def emit(text: str, folder: Path, **options: object) -> Path:
    """Write a bundle of `reference` for onnxruntime, as much of it in regions as there can be."""
    options = {"codegen": "reference", "emit": "epcontext", **options}
    byoc.partition(parse(text), "dla", output=folder, strategy="all-supported", verify=False, **options)
    return folder


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return emit(NET, tmp_path_factory.mktemp("bundle") / "b")


@pytest.fixture(scope="module")
def library(bundle: Path) -> Path:
    path = bundle.with_name("reference.so")
    assert make_driver(bundle, path, compiler=STRICT) == "reference"
    return path


def draw() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shapes = {"x": (1, 2, 6, 6), "u": (1, 3, 6, 6)}
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def test_onnxruntime_runs_the_regions_by_it(bundle: Path, library: Path) -> None:
    session = open_provider_session(bundle / CONTEXT_MODEL_FILE, {"reference": library})
    inputs = draw()
    expected = byoc.load(bundle)(inputs)
    for value, found in zip(session.get_outputs(), session.run(None, inputs), strict=True):
        np.testing.assert_allclose(found, expected[value.name], rtol=1e-5, atol=1e-6)
        assert np.ptp(found) > 0.1


def test_regions_are_verified_one_by_one(bundle: Path, library: Path, byoc: Callable[..., Ran]) -> None:
    missing = byoc("verify", bundle, "--runtime", "ort-plugin")
    assert missing.code == 1
    assert (
        "a driver of codegen reference is made of the bundle: make one (byoc make-driver)" in missing.err
    )
    given = "--driver", f"reference={library}"
    ran = byoc("verify", bundle, "--runtime", "ort-plugin", *given)
    assert (ran.code, ran.out.count(" yes ") >= 5) == (0, True), ran.err
    assert byoc("run", bundle, "--inputs", "random", "--runtime", "ort-plugin", *given).code == 0
    unused = byoc("verify", bundle, *given)
    assert (unused.code, "it needs --runtime ort-plugin" in unused.err) == (2, True)
    other = byoc("verify", bundle, "--runtime", "ort-plugin", "--driver", f"dla={library}")
    assert "a driver of codegen dla is given, but its regions are of reference" in other.err


def test_a_region_of_other_weights_is_refused(bundle: Path, library: Path, tmp_path: Path) -> None:
    other = emit(NET.replace("-3", "-2"), tmp_path / "b")
    names = [[entry.name for entry in open_bundle(each).manifest.regions] for each in (bundle, other)]
    assert names[0] == names[1]
    with pytest.raises(InputError, match="the driver was made for another bundle, which does not have"):
        open_provider_session(other / CONTEXT_MODEL_FILE, {"reference": library})


def test_what_is_not_the_regions_is_refused(bundle: Path, library: Path) -> None:
    driver = DriverLibrary(library)
    (_, first, _), (_, second, _), *_ = open_bundle(bundle).regions()
    with pytest.raises(DriverError, match="the artifact does not name the model of its region"):
        driver.open_region(first, Artifact())
    proto = onnx.load(bundle / CONTEXT_MODEL_FILE)
    nodes = [node for node in proto.graph.node if node.op_type == "EPContext"]
    described = next(node for node in nodes if node.name == first.name)
    (content,) = (each.s for each in described.attribute if each.name == "ep_cache_context")
    behind = bytes.fromhex(content.decode()).partition(MODEL_TEXT.encode() + b"\0")[2]
    artifact = Artifact({}, {MODEL_TEXT: behind[4:68].decode()})
    ones = {each.name: np.ones(each.type.shape, np.float32) for each in first.inputs}
    (made,) = driver.open_region(first, artifact)(ones).values()
    assert made.any()
    with pytest.raises(DriverError, match="the region has other inputs or outputs than its model"):
        driver.open_region(second, artifact)


def test_it_is_made_for_a_big_endian_machine_too(bundle: Path, tmp_path: Path) -> None:
    opened = open_bundle(bundle)
    files = [
        {
            path.name: path.read_bytes()
            for path in write_model_driver(opened, "reference", folder, order).files
        }
        for folder, order in ((tmp_path / "little", "little"), (tmp_path / "big", "big"))
    ]
    assert {name for name in files[0] if files[0][name] != files[1][name]} == {"weights.S"}
    weights = [(tmp_path / order / "weights.bin").read_bytes() for order in ("little", "big")]
    numbers = [
        np.frombuffer(each[64:], order) for each, order in zip(weights, ("<f4", ">f4"), strict=True)
    ]
    np.testing.assert_array_equal(numbers[0], numbers[1])
    assert numbers[0].any()


def test_constants_in_the_other_byte_order_are_refused(bundle: Path, tmp_path: Path) -> None:
    other: Literal["little", "big"] = "big" if sys.byteorder == "little" else "little"
    make_driver(bundle, tmp_path / "other.so", compiler=STRICT, byte_order=other)
    with pytest.raises(InputError, match=r"constants are in another byte order than this machine's"):
        open_provider_session(bundle / CONTEXT_MODEL_FILE, {"reference": tmp_path / "other.so"})


def test_a_program_has_such_regions_as_steps_of_the_host(bundle: Path, tmp_path: Path) -> None:
    made = export_c(bundle, output=tmp_path / "out")
    assert (made.regions, made.kernels > 0) == (0, True)
    found = verify_program(tmp_path / "out", STRICT)
    assert found.passed, found.problem
    assert len(found.outputs) == 2


def test_what_has_no_driver_is_said(tmp_path: Path, bundle: Path) -> None:
    text = """net (float[4, 3] x) => (float[3, 3] y, float[4, 3] z) {
        y = Einsum <equation = "ij,ik->jk"> (x, x)
        z = Relu(x)
    }"""
    rules = tmp_path / "rules.yaml"
    ops = "ops:\n  - op: Einsum\n  - op: Relu\n"
    rules.write_text(f"target: dla\ncodegen: reference\ncost_model: dla\ndtype: float32\n{ops}")
    byoc.partition(parse(text), rules, output=tmp_path / "b", strategy="all-supported", verify=False)
    with pytest.raises(InputError, match=r"Einsum .* has no function in C: .*Einsum"):
        make_driver(tmp_path / "b", tmp_path / "b.so")
    assert not (tmp_path / "b.so").exists()
    with pytest.raises(InputError, match="it has no region of codegen dla"):
        make_driver(bundle, tmp_path / "b.so", codegen="dla")


def test_the_driver_of_a_codegen_is_built_of_its_sources(
    tmp_path: Path, byoc: Callable[..., Ran]
) -> None:
    folder = emit(NET, tmp_path / "b", codegen="dla")
    ran = byoc("make-driver", folder, "-o", tmp_path / "dla.so")
    assert (ran.code, "--driver dla=" in ran.out) == (0, True), ran.err
    assert DriverLibrary(tmp_path / "dla.so").name == "dla"


VALUES = """values (float[1, 1, 4, 8] x) => ({outs}) {{
    {lines}
}}"""
KEPT = {
    "relu": "Relu(x)",
    "clip": "Clip(x, low, high)",
    "maximum": "Max(x, low)",
    "minimum": "Min(x, high)",
    "sigmoid": "HardSigmoid(x)",
    "swish": "HardSwish(x)",
    "pool": "MaxPool<kernel_shape=[1, 2], strides=[1, 2]>(x)",
}


def test_drivers_keep_nan_and_infinities(tmp_path: Path) -> None:
    lines = [f"{name} = {text}" for name, text in KEPT.items()]
    text = VALUES.format(
        outs=", ".join(f"float[1, 1, 4, {4 if name == 'pool' else 8}] {name}" for name in KEPT),
        lines="\n    ".join(
            ("low = Constant<value_float=-0.5>()", "high = Constant<value_float=0.5>()", *lines)
        ),
    )
    model = parse(text)
    (tmp_path / "all.yaml").write_text(
        "target: all\ncost_model: dla\ndtype: any\ncodegen: reference\nops: [{op: '*'}]\n", "utf-8"
    )
    byoc.partition(
        model,
        tmp_path / "all.yaml",
        output=tmp_path / "b",
        strategy="all-supported",
        emit="epcontext",
        verify=False,
    )
    make_driver(tmp_path / "b", tmp_path / "all.so")
    session = open_provider_session(
        tmp_path / "b" / CONTEXT_MODEL_FILE, {"reference": tmp_path / "all.so"}
    )
    x = np.random.default_rng(1).standard_normal((1, 1, 4, 8)).astype(np.float32)
    x[0, 0, 0] = [np.nan, 1, 1, np.nan, np.inf, -np.inf, -0.0, np.nan]
    names = [each.name for each in session.get_outputs()]
    found = dict(zip(names, session.run(None, {"x": x}), strict=True))
    with np.errstate(invalid="ignore"):
        expected = ReferenceEvaluator(model).run(None, {"x": x})
    for name, value in zip(KEPT, expected, strict=True):
        wanted = np.asarray(value)
        if name == "pool":  # the reference's maximum loses NaN
            wanted = np.maximum(x[..., ::2], x[..., 1::2])
        np.testing.assert_allclose(found[name], wanted, rtol=1e-6, err_msg=name)


NETWORKS = """recurrent (float[3, 1, 4] x) => (float[3, {ways}, 1, 2] y) {{
    y = {op}<hidden_size = 2, direction = "{direction}">(x, w, r)
}}"""
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", GATES)
def test_programs_read_sequences_in_each_direction(op: str, direction: str, tmp_path: Path) -> None:
    ways = 2 if direction == "bidirectional" else 1
    model = parse(NETWORKS.format(op=op, direction=direction, ways=ways))
    random = np.random.default_rng(2)
    for name, depth in (("w", 4), ("r", 2)):
        values = random.standard_normal((ways, GATES[op] * 2, depth)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    try:
        export_c(model, output=tmp_path / "c")
    except InputError as error:  # refused in a sentence, never wrong
        assert op != "LSTM" and direction != "forward", str(error)
        return
    found = verify_program(tmp_path / "c", STRICT)
    assert found.passed, found.problem
