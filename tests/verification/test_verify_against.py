"""`verify_against`: a bundle held against its original, its own model, or something else."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from helpers.cutting import CHAIN, HOST_ONLY, cut, files
from helpers.support import VANILLA, Ran, parse

import byoc
from byoc.bundle import describe_file
from byoc.errors import InputError, MissingRuntimeError
from byoc.pipeline import partition
from byoc.verification import verify_against


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    onnx.save(parse(CHAIN), tmp_path / "m.onnx")
    cut(tmp_path / "m.onnx", tmp_path / "b")
    return tmp_path / "b"


def test_against_the_original(bundle: Path) -> None:
    found = verify_against(bundle, bundle.parent / "m.onnx")
    assert found.passed
    assert found.against == str(bundle.parent / "m.onnx")
    assert [(o.name, o.dtype, o.relative) for o in found.outputs] == [("y", "float32", 0.0)]


def test_without_an_original_against_its_own_model(bundle: Path) -> None:
    (bundle.parent / "m.onnx").unlink()
    found = verify_against(bundle)
    assert found.passed
    assert found.against == "its own model.onnx"


def test_a_zoo_model_is_found_by_its_name(tmp_path: Path) -> None:
    partition("zoo:squeezenet", VANILLA, output=tmp_path / "b", verify=False)
    found = verify_against(tmp_path / "b")
    assert found.against == "zoo:squeezenet"
    assert found.passed


def test_the_dimensions_that_were_fixed_are_fixed_again(tmp_path: Path) -> None:
    onnx.save(
        parse("g (float[n, 4] x) => (float[n, 4] y) { a = Relu(x) y = Sigmoid(a) }"),
        tmp_path / "m.onnx",
    )
    cut(tmp_path / "m.onnx", tmp_path / "b", dims={"n": 3})
    assert verify_against(tmp_path / "b", tmp_path / "m.onnx").passed


def test_another_model_with_the_same_inputs_and_outputs(bundle: Path, byoc: Callable[..., Ran]) -> None:
    other = bundle.parent / "other.onnx"
    onnx.save(parse(HOST_ONLY), other)
    found = verify_against(bundle, other)
    assert not found.passed
    ran = byoc("verify", bundle, "--against", other)
    assert ran.code == 1
    assert ran.err.startswith(f"byoc: verification failed: output 'y' differs from {other} by ")
    assert ran.err.count("\n") == 1
    assert f"{bundle} against {other}:" in ran.out
    assert "NO" in ran.out.split()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "g (float[1, 4] z) => (float[1, 4] y) { y = Relu(z) }",
            "{0} has input z, the bundle x",
        ),
        (
            "g (float[1, 5] x) => (float[1, 5] y) { y = Relu(x) }",
            "{0} has input 'x' as float32[1, 5], the bundle as float32[1, 4]",
        ),
        (
            "g (float[1, 4] x) => (float[1, 4] other) { other = Relu(x) }",
            "verification failed: output 'other' is missing, compared with {0}",
        ),
        (
            "g (string[1] x) => (string[1] y) { y = Identity(x) }",
            "{0} has input 'x' as object[1], the bundle as float32[1, 4]",
        ),
    ],
)
def test_the_wrong_model_altogether(
    text: str, sentence: str, bundle: Path, byoc: Callable[..., Ran]
) -> None:
    other = bundle.parent / "other.onnx"
    onnx.save(parse(text), other)
    ran = byoc("verify", bundle, "--against", other)
    assert ran.code == 1
    assert ran.err == f"byoc: {sentence.format(other)}\n"


def test_no_such_original(bundle: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.onnx: no such file$"):
        verify_against(bundle, bundle.parent / "nothing.onnx")


def test_numbers_that_were_changed_are_found(bundle: Path) -> None:
    """Regions whose models and hashes were both replaced: only running them tells."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    for name in ("dla_0.onnx", "dla_1.onnx"):  # the same region twice, and so the same change
        region = onnx.load(bundle / name)
        region.graph.node[0].op_type = "Neg"
        onnx.save(region, bundle / name)
        manifest["files"][name] = describe_file(bundle / name).model_dump()
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    assert not verify_against(bundle).passed
    assert not verify_against(bundle, bundle.parent / "m.onnx").passed


def test_nothing_is_written(bundle: Path) -> None:
    before = files(bundle.parent)
    verify_against(bundle)
    assert files(bundle.parent) == before


def test_a_manifest_that_forgot_what_was_asked(bundle: Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    (bundle / "manifest.json").write_text(json.dumps(manifest | {"asked": {}}))
    assert verify_against(bundle).against == "its own model.onnx"
    assert verify_against(bundle, bundle.parent / "m.onnx").passed


def test_without_onnxruntime(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingRuntimeError, match=r"^onnxruntime is not installed \(pip install "):
        verify_against(bundle)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seed": -1}, "seed: -1 is not a number of at least 0"),
        ({"runtime": "ort"}, "runtime is 'ort', but must be one of byoc, ort-plugin, drivers"),
    ],
)
def test_a_wrong_seed_or_runtime_is_refused(options: dict[str, Any], said: str, bundle: Path) -> None:
    with pytest.raises(InputError) as caught:
        byoc.verify(bundle, **options)
    assert said in str(caught.value)
