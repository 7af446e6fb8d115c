"""Model packages of onnxruntime as sources: the model of the variant that is plain ONNX."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import byoc
from byoc.errors import InputError

CPU = "CPUExecutionProvider"
ASSET = "sha256:" + 64 * "a"
FOLDER = "session.model_external_initializers_file_folder_path"


def write_model(path: Path, weights: Path | None = None) -> None:
    """Write a model whose weights lie beside it, or in another folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    value = np.arange(4096, dtype=np.float32).reshape(64, 64)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", 1, [1, 64])],
        [helper.make_tensor_value_info("y", 1, [1, 64])],
        [numpy_helper.from_array(value, "w")],
    )
    onnx.save(
        helper.make_model(graph), path, save_as_external_data=True, location="w.bin", size_threshold=0
    )
    if weights is not None:
        weights.mkdir(parents=True, exist_ok=True)
        path.with_name("w.bin").rename(weights / "w.bin")


def write_package(folder: Path, components: Mapping[str, Any]) -> Path:
    content = {"schema_version": "1.0", "components": components}
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps(content))
    return folder


def variant(directory: str, ep: str | None = CPU, **settings: str) -> dict[str, Any]:
    own: dict[str, Any] = {"model_file": "model.onnx", "session_options": settings}
    entry = {"variant_directory": directory, "executor_info": {"ort": own}}
    return entry if ep is None else {**entry, "ep": ep}


def test_the_variant_of_the_host_is_read(tmp_path: Path) -> None:
    write_model(tmp_path / "p" / "net" / "cpu" / "model.onnx")
    variants = {"npu": variant("net/npu", "QNNExecutionProvider"), "cpu": variant("net/cpu")}
    package = write_package(tmp_path / "p", {"net": {"variants": variants}})
    (package / "net" / "npu").mkdir()

    byoc.partition(package, "dla", output=tmp_path / "b.byoc", strategy="all-supported")

    assert byoc.verify_against(tmp_path / "b.byoc", package).passed


def test_weights_may_be_a_shared_asset(tmp_path: Path) -> None:
    shared = tmp_path / "p" / "shared_assets" / ASSET.replace(":", "-")
    write_model(tmp_path / "p" / "cpu" / "model.onnx", shared)
    package = write_package(
        tmp_path / "p", {"net": {"variants": {"cpu": variant("cpu", None, **{FOLDER: ASSET})}}}
    )

    byoc.partition(package, "dla", output=tmp_path / "b.byoc", strategy="all-supported")

    assert byoc.verify_against(tmp_path / "b.byoc", package).passed


def test_a_component_in_a_file_of_its_own_and_its_settings_too(tmp_path: Path) -> None:
    write_model(tmp_path / "p" / "net" / "cpu" / "model.onnx")
    own = {"ep": CPU, "executor_info": {"ort": "ort_info.json"}}
    (tmp_path / "p" / "net" / "component.json").write_text(json.dumps({"variants": {"cpu": own}}))
    (tmp_path / "p" / "net" / "cpu" / "ort_info.json").write_text('{"model_file": "model.onnx"}')

    package = write_package(tmp_path / "p", {"net": "net"})

    assert byoc.load_model(package).proto.graph.node[0].op_type == "MatMul"


def test_of_several_models_one_is_named(tmp_path: Path) -> None:
    write_model(tmp_path / "p" / "cpu" / "model.onnx")
    body = {"variants": {"cpu": variant("cpu")}}
    package = write_package(tmp_path / "p", {"encoder": body, "decoder": body})

    with pytest.raises(InputError, match=r"p: has several models: name one, as .*p/NAME, of encoder, "):
        byoc.load_model(package)
    with pytest.raises(InputError, match=r"no model 'decode' \(did you mean decoder\?\); it has "):
        byoc.load_model(package / "decode")
    assert byoc.load_model(package / "decoder").proto.graph.node[0].op_type == "MatMul"


@pytest.mark.parametrize(
    ("components", "sentence"),
    [
        ({}, "components: there are none"),
        ({"net": {}}, "components: net: it has no variants"),
        ({"net": {"variants": {"npu": variant("npu", "QNN")}}}, "net has no variant for CPU.*npu .QNN"),
        ({"net": {"variants": {"cpu": {"ep": CPU}}}}, "model_file: must be given"),
        ({"net": 5000 * "n"}, "components: net: it has no variants"),
        ({"net": {"variants": {"cpu": variant("../cpu")}}}, "'../cpu' is not the path of a file in"),
        ({"net": {"variants": {"cpu": variant("cpu", **{FOLDER: "/tmp"})}}}, "'/tmp' is not the path"),
    ],
)
def test_a_package_that_does_not_say_where_its_model_is(
    tmp_path: Path, components: Any, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        byoc.load_model(write_package(tmp_path / "p", components))


def test_a_link_out_of_the_package_is_not_followed(tmp_path: Path) -> None:
    write_model(tmp_path / "outside" / "model.onnx")
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "cpu").symlink_to(tmp_path / "outside")

    with pytest.raises(InputError, match="a link that leads out of its folder"):
        byoc.load_model(write_package(tmp_path / "p", {"net": {"variants": {"cpu": variant("cpu")}}}))


def test_a_shared_asset_that_is_a_link_out_of_the_package_is_not_followed(tmp_path: Path) -> None:
    write_model(tmp_path / "p" / "cpu" / "model.onnx", tmp_path / "outside")
    (tmp_path / "p" / "shared_assets").mkdir()
    (tmp_path / "p" / "shared_assets" / ASSET.replace(":", "-")).symlink_to(tmp_path / "outside")
    variants = {"cpu": variant("cpu", **{FOLDER: ASSET})}

    with pytest.raises(InputError, match="a link that leads out of its folder"):
        byoc.load_model(write_package(tmp_path / "p", {"net": {"variants": variants}}))


def test_a_package_of_another_schema_is_refused(tmp_path: Path) -> None:
    package = write_package(tmp_path / "p", {"net": {"variants": {"cpu": variant("cpu")}}})
    (package / "manifest.json").write_text((package / "manifest.json").read_text().replace("1.0", "2.0"))

    with pytest.raises(InputError, match=r"manifest.json: schema_version: '2.0' is not read, only 1"):
        byoc.load_model(package)


def test_a_models_own_file_is_read_beside_any_manifest(tmp_path: Path) -> None:
    package = write_package(tmp_path / "p", {"net": {"variants": {"cpu": variant("cpu")}}})
    write_model(package / "model.onnx")
    assert byoc.load_model(package / "model.onnx").proto.graph.name == "product"


def test_a_manifest_that_is_no_json_is_said(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"schema_version": ')
    for source in (tmp_path, tmp_path / "net"):
        with pytest.raises(InputError, match=r"manifest\.json: is not the manifest of a model package"):
            byoc.partition(source, "dla")
