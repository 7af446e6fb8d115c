"""Constants that are declared variable: inputs with a default, of the model and of compiled regions."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import parse
from numpy.typing import NDArray
from onnx import numpy_helper

import byoc
from byoc.errors import InputError
from byoc.model import make_variable, prepare_model
from byoc.runtime import Session

RULES = (
    "target: npu\ncost_model: openvino-cpu\ncodegen: CODEGEN\ndtype: any\nops: [{op: '*'}]\n"
    "arithmetic: [{op: Relu, nan: any}]\n"  # OpenVINO fuses it with the product
)
# A product with an adapter of low rank: x w + (x a) b.
NET = """net (float[2, 32] x) => (float[2, 24] y) {
    p = MatMul(x, w)
    d = MatMul(x, lora_a)
    u = MatMul(d, lora_b)
    s = Add(p, u)
    y = Relu(s)
}"""
SHAPES = {"w": (32, 24), "lora_a": (32, 4), "lora_b": (4, 24)}
PACKAGES = {"openvino": "openvino", "c": "emx_onnx_cgen"}
ADAPTER = ("lora_a", "lora_b")


def draw(name: str, seed: int = 0) -> NDArray[np.float32]:
    random = np.random.default_rng([seed, *name.encode()])
    return random.standard_normal(SHAPES[name], np.float32) / 4


def draw_defaults() -> dict[str, NDArray[np.float32]]:
    """Return the weights of the model; the adapter adds nothing, as before it is trained."""
    return {name: draw(name) for name in SHAPES} | {"lora_b": np.zeros(SHAPES["lora_b"], np.float32)}


def build() -> onnx.ModelProto:
    model = parse(NET)
    for name, value in draw_defaults().items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


def compute(x: NDArray[np.float32], **adapter: NDArray[np.float32]) -> NDArray[np.float32]:
    weights = {**draw_defaults(), **adapter}
    low = x @ weights["lora_a"] @ weights["lora_b"]
    return np.maximum(x @ weights["w"] + low, 0)


@pytest.mark.parametrize("codegen", ["reference", "openvino", "c", "dla"])
def test_calls_exchange_the_weights_of_an_adapter(codegen: str, tmp_path: Path) -> None:
    if codegen in PACKAGES:
        pytest.importorskip(PACKAGES[codegen])
    (tmp_path / "npu.yaml").write_text(RULES.replace("CODEGEN", codegen))
    rules = "dla" if codegen == "dla" else tmp_path / "npu.yaml"
    given: dict[str, Any] = {"strategy": "all-supported", "variable": "lora_*"}
    result = byoc.partition(build(), rules, output=tmp_path / "b", **given)
    assert result.report.nodes.offloaded == 5
    (region,) = byoc.open_bundle(tmp_path / "b").variant.regions
    assert {each.tensor for each in region.inputs} == {"x", *ADAPTER}
    assert {each.tensor for each in region.constants} == {"w"}
    session = byoc.load(tmp_path / "b")
    assert isinstance(session, Session)
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
    np.testing.assert_allclose(session({"x": x})["y"], compute(x), atol=1e-5)
    for seed in (1, 2):
        adapter = {name: draw(name, seed) for name in ADAPTER}
        np.testing.assert_allclose(session({"x": x, **adapter})["y"], compute(x, **adapter), atol=1e-5)
    np.testing.assert_allclose(session({"x": x})["y"], compute(x), atol=1e-5)
    assert result.verification is not None
    assert result.verification.passed
    assert result.verification.samples == 2  # with the default, and with other values
    onnx.save(build(), tmp_path / "net.onnx")
    again = byoc.verify(tmp_path / "b", tmp_path / "net.onnx")
    assert again.passed
    assert again.samples == 2


def test_a_region_that_keeps_the_default_is_found(tmp_path: Path, monkeypatch: Any) -> None:
    """The second sample has other values; a runtime that ignores them computes something else."""
    (tmp_path / "npu.yaml").write_text(RULES.replace("CODEGEN", "reference"))
    run = Session.run

    def ignore(self: Session, inputs: Any, *more: Any) -> Any:
        return run(self, {name: value for name, value in inputs.items() if name == "x"}, *more)

    monkeypatch.setattr(Session, "run", ignore)
    monkeypatch.setattr(Session, "__call__", ignore)
    with pytest.raises(InputError, match="output 'y' differs from net by"):
        byoc.partition(build(), tmp_path / "npu.yaml", output=tmp_path / "b", variable="lora_*")


def test_constant_nodes_and_old_models_have_variable_constants() -> None:
    old = build()
    old.ir_version = 3
    for name, shape in SHAPES.items():
        old.graph.input.append(onnx.helper.make_tensor_value_info(name, 1, shape))
    found = make_variable(prepare_model(old, "old"), ["lora_a"])
    assert list(found.index.inputs) == ["x", "lora_a"]
    nodes = build()
    tensor = nodes.graph.initializer.pop()
    nodes.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["lora_b"], value=tensor))
    found = make_variable(prepare_model(nodes, "nodes"), ["*_b"])
    assert found.variable == ("lora_b",)
    assert {node.op_type for node in found.proto.graph.node} == {"MatMul", "Add", "Relu"}


def test_a_name_that_no_constant_has_is_refused(tmp_path: Path, byoc: Callable[..., Any]) -> None:
    onnx.save(build(), tmp_path / "net.onnx")
    ran = byoc("partition", tmp_path / "net.onnx", "--rules", "dla", "--variable", "lora_c")
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert "variable: no constant is called 'lora_c' (did you mean lora_b?)" in ran.err


def test_weights_that_an_exporter_lists_as_inputs_are_constants_where_asked_for(tmp_path: Path) -> None:
    """By the standard calls may give them, so that is what they do unless the user says otherwise."""
    model = build()
    for name, shape in SHAPES.items():
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
    onnx.save(model, tmp_path / "m.onnx")
    (tmp_path / "r.yaml").write_text(RULES.replace("CODEGEN", "reference"))
    x = np.ones((2, 32), np.float32)
    given = {"lora_b": draw("lora_b", 1)}
    for freeze in (False, True):
        result = byoc.partition(
            tmp_path / "m.onnx",
            tmp_path / "r.yaml",
            strategy="all-supported",
            output=tmp_path / "b",
            freeze_initializers=freeze,
        )
        told = [note for note in result.report.notes if "--freeze-initializers" in note.text]
        assert [note.text.partition(" weights")[0] for note in told] == ([] if freeze else ["3"])
        assert byoc.verify(tmp_path / "b")
        session = byoc.load(tmp_path / "b")
        np.testing.assert_allclose(session({"x": x})["y"], compute(x), rtol=1e-5, atol=1e-5)
        if freeze:
            with pytest.raises(InputError, match="no input 'lora_b'"):
                session({"x": x, **given})
        else:
            np.testing.assert_allclose(
                session({"x": x, **given})["y"], compute(x, **given), rtol=1e-5, atol=1e-5
            )
