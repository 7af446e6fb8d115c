"""A bundle as a model package of onnxruntime: onnxruntime itself chooses the variant, and is right."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import byoc
from byoc.bundle import open_bundle
from byoc.errors import InputError
from byoc.onnxrt import register_provider

needs_packages = pytest.mark.skipif(
    not hasattr(onnxruntime, "ModelPackageContext"), reason="onnxruntime before 1.32 opens no packages"
)


def make_model(height: int | str = 12, seed: int = 5) -> onnx.ModelProto:
    """Return two convolutions with weights that bundles store in a file, and a Softmax for the host."""
    draw = np.random.default_rng(seed).standard_normal
    shape = [1, 8, height, 12]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["d"], pads=[1, 1, 1, 1]),
        helper.make_node("Softmax", ["d"], ["y"], axis=1),
    ]
    weights = {name: draw((8, 8, 3, 3)).astype(np.float32) / 8 for name in ("w", "v")}
    stored = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    types = [helper.make_tensor_value_info(name, 1, shape) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "small", types[:1], types[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def export(bundle: Path, output: Path, **options: Any) -> byoc.bundle.ExportedPackage:
    return byoc.export_package({"net": open_bundle(bundle, **options)}, output)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with a variant for dla, and one for openvino, which has no driver in C."""
    path = tmp_path_factory.mktemp("bundle") / "b.byoc"
    variants = {"npu": {"rules": "dla"}, "pc": {"rules": "openvino-cpu"}}
    byoc.partition(make_model(), output=path, variants=variants, strategy="all-supported")
    return path


def test_a_variant_that_no_provider_loads_is_left_out(bundle: Path, tmp_path: Path) -> None:
    found = export(bundle, tmp_path / "package")

    assert [(each.variant, each.provider) for each in found.variants] == [
        ("npu", "byoc"),
        ("host", "CPUExecutionProvider"),
    ]
    assert list(found.left_out) == ["net/pc"]
    assert "no provider of ONNX Runtime loads what codegen openvino makes" in found.left_out["net/pc"]


def test_weights_and_artifacts_stand_in_it_once(bundle: Path, tmp_path: Path) -> None:
    export(bundle, tmp_path / "package")

    (asset,) = (tmp_path / "package" / "shared_assets").iterdir()
    names = {path.name for path in asset.rglob("*") if path.is_file()}
    assert {"weights.bin", "program.bin"} <= names
    others = [path for path in (tmp_path / "package").rglob("*.*") if asset not in path.parents]
    assert sorted(path.name for path in others if path.is_file()) == [
        *("manifest.json", "model.onnx", "model.onnx"),
    ]


@needs_packages
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.skipif(sys.platform == "win32", reason="the provider is built for POSIX")
def test_onnxruntime_chooses_by_the_providers_of_a_session(
    bundle: Path, tmp_path: Path, dla_library: Path
) -> None:
    export(bundle, tmp_path / "package")
    x = np.random.default_rng(1).standard_normal((1, 8, 12, 12)).astype(np.float32)
    plain = onnxruntime.InferenceSession(make_model().SerializeToString()).run(None, {"x": x})[0]
    context = onnxruntime.ModelPackageContext(str(tmp_path / "package"))
    with_provider = onnxruntime.SessionOptions()
    register_provider(with_provider, {"dla": dla_library})

    chosen = []
    for options in (onnxruntime.SessionOptions(), with_provider):
        component = context.select_component("net", onnxruntime.ModelPackageOptions(options))
        session = component.create_session(options)
        chosen.append(component.get_selected_variant_name())
        np.testing.assert_allclose(session.run(None, {"x": x})[0], plain, atol=1e-5)

    assert chosen == ["host", "npu"]


@needs_packages
def test_the_library_of_onnxruntime_reads_all_of_it(bundle: Path, tmp_path: Path) -> None:
    export(bundle, tmp_path / "package")

    opened = onnxruntime.ModelPackage.open(str(tmp_path / "package"))
    found = opened.get_info()

    (asset,) = found["shared_assets"]
    assert asset["uri"] == onnxruntime.ModelPackage.compute_directory_hash(asset["resolved_path"])
    assert [each["name"] for each in found["components"]] == ["net"]


def test_several_bundles_are_several_models(bundle: Path, tmp_path: Path) -> None:
    models = {"one": open_bundle(bundle), "two": open_bundle(bundle)}

    found = byoc.export_package(models, tmp_path / "package")

    assert {each.component for each in found.variants} == {"one", "two"}
    manifest = json.loads((tmp_path / "package" / "manifest.json").read_text())
    assert [*manifest["components"]] == ["one", "two"]
    assert len([*(tmp_path / "package" / "shared_assets").iterdir()]) == 1


@needs_packages
def test_bundles_made_apart_keep_their_own_weights(bundle: Path, tmp_path: Path) -> None:
    models = {"one": make_model(), "two": make_model(seed=6)}
    byoc.partition(models["two"], "dla", output=tmp_path / "b", strategy="all-supported")
    byoc.export_package(
        {"one": open_bundle(bundle), "two": open_bundle(tmp_path / "b")}, tmp_path / "package"
    )
    context = onnxruntime.ModelPackageContext(str(tmp_path / "package"))
    options = onnxruntime.SessionOptions()
    x = np.random.default_rng(1).standard_normal((1, 8, 12, 12)).astype(np.float32)

    for name, model in models.items():
        component = context.select_component(name, onnxruntime.ModelPackageOptions(options))
        found = component.create_session(options).run(None, {"x": x})[0]
        expected = ReferenceEvaluator(model).run(None, {"x": x})[0]
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("names", [("net", "NET"), ("shared_assets",), ("Manifest.json",)])
def test_components_that_could_not_be_told_apart_are_refused(
    bundle: Path, tmp_path: Path, names: tuple[str, ...]
) -> None:
    with pytest.raises(InputError, match=r"cannot be told apart|one that the package itself has"):
        byoc.export_package({name: open_bundle(bundle) for name in names}, tmp_path / "package")

    assert not (tmp_path / "package").exists()


def test_sizes_are_chosen_by_the_user(tmp_path: Path) -> None:
    sizes = {"small": {"h": 4}, "large": {"h": 16}}
    byoc.partition(
        make_model("h"), "dla", output=tmp_path / "b", variants=sizes, strategy="all-supported"
    )

    with pytest.raises(InputError, match=r"give --variant .* one of small, large"):
        export(tmp_path / "b", tmp_path / "package")
    found = export(tmp_path / "b", tmp_path / "package", variant="large")

    assert {each.variant for each in found.variants} == {"large", "host"}


def test_a_folder_that_is_there_is_left_alone(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()

    with pytest.raises(InputError, match="package: is there already"):
        export(bundle, tmp_path / "package")
    with pytest.raises(InputError, match="it lies in what is exported"):
        export(bundle, bundle / "package")
    with pytest.raises(InputError, match="there is no folder 'none'"):
        byoc.export_package({"net": open_bundle(bundle)}, Path("none/package"))
    with pytest.raises(InputError, match="no plain name of a file"):
        byoc.export_package({"../net": open_bundle(bundle)}, tmp_path / "other")

    assert [*(tmp_path / "package").iterdir()] == []
