"""A folder of onnxruntime-genai with several models: a package of them, and such a folder again."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.support import Ran, parse
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import byoc
from byoc.bundle import list_models
from byoc.errors import InputError
from byoc.onnxrt import register_provider

VISION = """vision (float[1, 3, 8, 8] pixel_values) => (float[1, 4, 16] image_features)
<int64[3] s = {1, 4, 16}> {
    c = Conv<kernel_shape = [2, 2], strides = [2, 2]>(pixel_values, vw)
    r = Relu(c)
    image_features = Reshape(r, s)
}"""
EMBEDDING = """embedding (int64[1, 6] input_ids, float[1, 4, 16] image_features)
=> (float[1, 6, 16] inputs_embeds) {
    g = Gather(ew, input_ids)
    p = ReduceMean<axes = [1], keepdims = 1>(image_features)
    inputs_embeds = Add(g, p)
}"""
DECODER = """decoder (float[1, 6, 16] inputs_embeds) => (float[1, 6, 32] logits) {
    a = MatMul(inputs_embeds, dw)
    b = Relu(a)
    logits = MatMul(b, lw)
}"""
ENCODER = """encoder (float[1, 8, 16] audio_features) => (float[1, 8, 64] hidden) {
    a = MatMul(audio_features, xw)
    hidden = Relu(a)
}"""
WHISPER_DECODER = """decoder (float[1, 8, 64] hidden) => (float[1, 8, 16] logits) {
    a = MatMul(hidden, yw)
    logits = Sigmoid(a)
}"""
SHAPES = {
    **{"vw": (4, 3, 2, 2), "ew": (32, 16), "dw": (16, 64), "lw": (64, 32)},
    **{"xw": (16, 64), "yw": (64, 16)},
}
LAYOUTS: dict[str, Mapping[str, str]] = {
    "phi3v": {"decoder": DECODER, "vision": VISION, "embedding": EMBEDDING},
    "whisper": {"decoder": WHISPER_DECODER, "encoder": ENCODER},
}


def build_model(text: str) -> onnx.ModelProto:
    model = parse(text, opset=13)
    read = {name for node in model.graph.node for name in node.input}
    for number, (name, shape) in enumerate(SHAPES.items()):
        if name in read:
            values = np.random.default_rng(number).standard_normal(shape).astype(np.float32)
            model.graph.initializer.append(numpy_helper.from_array(values / 4, name))
    return model


def write_folder(folder: Path, layout: str) -> Path:
    """Write the models of a layout, one of them with external data, and a tokenizer."""
    (folder / "processing").mkdir(parents=True)
    sections: dict[str, Any] = {}
    for name, text in LAYOUTS[layout].items():
        external = {"save_as_external_data": True, "location": f"{name}.data", "size_threshold": 0}
        onnx.save(
            build_model(text), folder / f"my_{name}.onnx", **(external if name == "decoder" else {})
        )
        sections[name] = {"filename": f"my_{name}.onnx"}
    sections["decoder"]["session_options"] = {"log_id": "genai", "provider_options": [{"cuda": {}}]}
    config = {"model": {"type": layout, **sections}, "search": {"max_length": 6}}
    (folder / "genai_config.json").write_text(json.dumps(config))
    (folder / "processing/words.json").write_text("{}")
    return folder


def make_inputs(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(3)
    found = {}
    for value in model.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        is_float = value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        drawn = draw.standard_normal(shape) if is_float else draw.integers(0, 32, shape)
        found[value.name] = drawn.astype(np.float32 if is_float else np.int64)
    return found


@pytest.fixture(scope="module", params=LAYOUTS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder, and a package of it for two devices, of which one has no provider."""
    folder = tmp_path_factory.mktemp(request.param)
    given = write_folder(folder / "given", request.param)
    (folder / "pc.yaml").write_text("extends: dla\ntarget: pc\ncodegen: c\n")
    byoc.package(
        [given],
        output=folder / "p",
        devices={"npu": "dla", "pc": str(folder / "pc.yaml")},
        strategy="all-supported",
    )
    return folder


def get_layout(folder: Path) -> Mapping[str, str]:
    config = json.loads((folder / "given/genai_config.json").read_text())
    return LAYOUTS[config["model"]["type"]]


def test_each_model_of_the_folder_is_one_of_the_package(made: Path) -> None:
    assert {path.name for path in list_models(made / "p")} == {*get_layout(made)}
    for name, text in get_layout(made).items():
        model = build_model(text)
        found = byoc.load(made / "p" / name, prefer="npu", isolate=False)(make_inputs(model))
        (expected,) = ReferenceEvaluator(model).run(None, make_inputs(model))
        np.testing.assert_allclose(*found.values(), expected, rtol=1e-4, atol=1e-5)


def test_the_package_is_such_a_folder_again(
    made: Path, tmp_path: Path, byoc: Callable[..., Ran], dla_library: Path
) -> None:
    """Each model runs by byoc's provider, which the configuration names, as onnxruntime runs it."""
    out = tmp_path / "out"
    ran = byoc(
        *("package", "export", made / "p", "--genai", made / "given", "-o", out),
        *("--driver", f"dla={dla_library}"),
    )
    assert ran.code == 0, ran.err
    config = json.loads((out / "genai_config.json").read_text())
    assert config["search"] == {"max_length": 6}
    assert (out / "processing/words.json").read_text() == "{}"
    assert not [*out.glob("my_*"), *out.glob("*.data")]
    for name, text in get_layout(made).items():
        section = config["model"][name]
        assert section["session_options"]["log_id"] == "genai"
        options = section["session_options"]["provider_options"]
        assert options == [{"byoc": {"driver.dla": str(dla_library.absolute())}}]
        assert section["session_options"]["optimization.disable_specified_optimizers"]
        file = out / section["filename"]
        assert any(node.op_type == "EPContext" for node in onnx.load(file).graph.node)
        settings = onnxruntime.SessionOptions()
        register_provider(settings, {"dla": dla_library})
        inputs = make_inputs(build_model(text))
        session = onnxruntime.InferenceSession(str(file), settings)
        (expected,) = ReferenceEvaluator(build_model(text)).run(None, inputs)
        np.testing.assert_allclose(session.run(None, inputs)[0], expected, rtol=1e-4, atol=1e-5)


def test_a_model_is_named_by_its_key(made: Path, tmp_path: Path, byoc: Callable[..., Ran]) -> None:
    name = [*get_layout(made)][-1]
    ran = byoc("partition", made / "given" / name, "--rules", "dla", "--strategy", "all-supported")
    assert ran.code == 0, ran.err
    assert f"given/{name}: " in ran.out
    ran = byoc("partition", made / "given/visions", "--rules", "dla")
    assert ran.code == 1
    assert "given/visions: no such file, nor a model of the folder" in ran.err


def test_what_is_not_on_a_provider_is_said(made: Path, tmp_path: Path, byoc: Callable[..., Ran]) -> None:
    export = ("package", "export", made / "p", "-o", tmp_path / "out", "--genai", made / "given")
    ran = byoc(*export, "--variant", "pc")
    assert ran.code == 1
    assert "variant pc: no provider of ONNX Runtime loads what codegen c makes" in ran.err
    assert not (tmp_path / "out").exists()
    alone = tmp_path / "alone"
    ran = byoc("package", "split", made / "p", "--for", "pc", "-o", alone)
    assert ran.code == 0, ran.err
    ran = byoc("package", "export", alone, "-o", tmp_path / "out", "--genai", made / "given")
    assert ran.code == 0
    assert "no provider loads any region of it, so that all runs on the host" in ran.err
    config = json.loads((tmp_path / "out/genai_config.json").read_text())["model"]
    assert config["decoder"]["session_options"]["provider_options"] == []


def test_folders_that_do_not_fit_are_refused(made: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no folder of onnxruntime-genai: it holds no genai_config"):
        byoc.export_genai({}, tmp_path, tmp_path / "out")
    bundle = byoc.bundle.open_bundle(list_models(made / "p")[0])
    with pytest.raises(InputError, match="its configuration names no model 'sound'"):
        byoc.export_genai({"sound": bundle}, made / "given", tmp_path / "out")
    shutil.copytree(made / "given", tmp_path / "given")
    config = json.loads((tmp_path / "given/genai_config.json").read_text())
    config["model"]["vision"] = {"pipeline": [{"a": {"filename": "a.onnx"}}]}
    (tmp_path / "given/genai_config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"model\.vision\.pipeline: partition its models one by one"):
        byoc.package([tmp_path / "given"], output=tmp_path / "p", devices={"npu": "dla"})
    with pytest.raises(InputError, match="would have two models 'decoder'"):
        byoc.package(
            {"a": made / "given", "b": made / "given"}, output=tmp_path / "p", devices={"npu": "dla"}
        )
