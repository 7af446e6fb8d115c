"""Reading of bundles function by function: limits on both sides, names, formats, identical regions."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from helpers.cutting import CHAIN, ramp
from helpers.support import copy_vanilla, parse

from byoc.bundle import (
    MANIFEST_FILE,
    Bundle,
    Manifest,
    RegionEntry,
    describe_file,
    is_bundle,
    is_packed_name,
    open_bundle,
    pack_folder,
)
from byoc.errors import InputError
from byoc.pipeline import partition
from byoc.rules import ArithmeticContract, load_rules


@pytest.fixture
def bundle(tmp_path: Path, cut_once: Callable[..., Path]) -> Path:
    return cut_once(CHAIN, tmp_path / "b")


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        open_bundle(path)
    return str(caught.value)


def rewrite(bundle: Path, **changes: Any) -> None:
    path = bundle / MANIFEST_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("format_", "sentence"),
    [
        (3, "format 3 is that of an older byoc: partition the model again"),
        (1, "format 1 is that of an older byoc: partition the model again"),
        (0, "format 0; this version of byoc reads formats 4 to 7"),
        (-1, "format -1; this version of byoc reads formats 4 to 7"),
        (8, "format 8 is that of a newer byoc; this one reads formats 4 to 7"),
        (True, "format True; this version of byoc reads formats 4 to 7"),
        (4.0, "format 4.0; this version of byoc reads formats 4 to 7"),
        ("4", "format '4'; this version of byoc reads formats 4 to 7"),
        (None, "format None; this version of byoc reads formats 4 to 7"),
    ],
)
def test_other_formats_are_told_apart(format_: object, sentence: str, bundle: Path) -> None:
    rewrite(bundle, format=format_)
    assert refusal(bundle) == f"{bundle / MANIFEST_FILE}: {sentence}"


def test_what_may_be_a_bundle(bundle: Path, tmp_path: Path) -> None:
    zipped = tmp_path / "b.zip"
    pack_folder(bundle, [], zipped)
    assert is_bundle(bundle)
    assert is_bundle(zipped)
    assert not is_bundle(bundle / "model.onnx")
    assert not is_bundle(tmp_path / "none")
    assert not is_bundle(Path("a\0b"))
    assert not is_bundle(Path("x" * 9999))
    assert [is_packed_name(Path(n)) for n in ("m.byoc.zip", "m.ZIP", "m.zip.byoc", "zip")] == [
        True,
        True,
        False,
        False,
    ]


def test_a_manifest_says_what_each_target_promises_of_values(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    clause = "{op: Div, dtype: int32, exact_below: 16777216}"
    rules.write_text(
        f"extends: {copy_vanilla(tmp_path)}\narithmetic: [{clause}, {{computes: float16}}]\n"
    )
    partition(parse(CHAIN), rules, output=tmp_path / "b", strategy="all-supported", verify=False)
    stored = json.loads((tmp_path / "b" / MANIFEST_FILE).read_text())["arithmetic"]["dla"]
    assert stored[0] == {"op": ["Div"], "dtype": ["int32"], "exact_below": 1 << 24}
    manifest = open_bundle(tmp_path / "b").manifest
    assert manifest.read_arithmetic("dla") == load_rules(rules).arithmetic
    assert manifest.read_arithmetic("other") == ArithmeticContract()


def _replace_regions(manifest: Manifest, *regions: RegionEntry) -> Manifest:
    (variant,) = manifest.variants
    changed = variant.model_copy(update={"regions": regions})
    return manifest.model_copy(update={"variants": (changed,)})


def test_identical_regions_are_an_earlier_one_of_the_same_target_and_codegen(bundle: Path) -> None:
    opened = open_bundle(bundle)
    assert dict(opened.identical_regions) == {"dla_1": "dla_0"}
    (_, one, artifact), (_, other, shared) = opened.regions()
    assert (one.name, other.name, shared is artifact) == ("dla_0", "dla_1", True)
    first, second = opened.manifest.regions
    sentence = f"{bundle / MANIFEST_FILE}: regions: dla_1: it is not the same as 'dla_0'"
    for change in ({"target": "other"}, {"codegen": "other"}):
        changed = second.model_copy(update=change)
        manifest = _replace_regions(opened.manifest, first, changed)
        with pytest.raises(InputError) as caught:
            Bundle(bundle, manifest).identical_regions  # noqa: B018
        assert str(caught.value) == sentence
    manifest = _replace_regions(opened.manifest, second, first)  # of a later one
    with pytest.raises(InputError) as caught:
        Bundle(bundle, manifest).identical_regions  # noqa: B018
    assert str(caught.value) == sentence


def test_each_region_has_the_artifact_of_the_one_that_it_is_the_same_as(
    tmp_path: Path, cut_once: Callable[..., Path]
) -> None:
    text = """g (float[1, 4] x) => (float[1, 4] y) {
        a = Relu(x) b = Sigmoid(a) c = Add(b, b) d = Sigmoid(c) e = Add(d, d) f = Sigmoid(e)
        g = Relu(f) h = Sigmoid(g) i = Add(h, h) j = Add(i, i) k = Sigmoid(j) y = Relu(k)
    }"""
    opened = open_bundle(cut_once(text, tmp_path / "b"))
    twins = {"dla_2": "dla_1", "dla_3": "dla_0", "dla_5": "dla_0"}
    assert dict(opened.identical_regions) == twins
    found = {region.name: artifact for _, region, artifact in opened.regions()}
    assert list(found) == [f"dla_{number}" for number in range(6)]
    for name, artifact in found.items():
        assert artifact is found[twins.get(name, name)]
    assert len({id(artifact) for artifact in found.values()}) == 3


def test_a_region_that_is_not_the_same_as_it_says(bundle: Path) -> None:
    path = bundle / "dla_1.onnx"
    model = onnx.load(path)
    model.graph.node[0].op_type = "Neg"
    onnx.save(model, path)
    manifest = json.loads((bundle / MANIFEST_FILE).read_text())
    rewrite(bundle, files=manifest["files"] | {"dla_1.onnx": describe_file(path).model_dump()})
    opened = open_bundle(bundle)
    with pytest.raises(InputError) as caught:
        opened.regions()
    assert str(caught.value) == (
        f"{bundle / MANIFEST_FILE}: regions: dla_1: it is not the same as 'dla_0'"
    )


@pytest.mark.parametrize(
    ("error", "reason"),
    [(OSError(5, "Input/output error"), "Input/output error"), (OSError("odd"), "odd")],
)
def test_a_manifest_that_cannot_be_read(
    error: OSError, reason: str, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr("byoc.bundle._manifest_reading.read_limited", fail)
    assert refusal(bundle) == f"{bundle / MANIFEST_FILE}: cannot be read: {reason}"


def test_what_cannot_be_opened_leaves_no_folder_behind(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zipped = tmp_path / "b.zip"
    pack_folder(bundle, [], zipped)  # without the files
    made = tmp_path / "temporary"
    made.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(made))
    assert refusal(zipped).endswith("of the bundle is missing")
    assert list(made.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_that_may_not_be_read(bundle: Path) -> None:
    (bundle / "model.onnx").chmod(0)
    assert refusal(bundle) == f"{bundle}: the file 'model.onnx' cannot be read: Permission denied"


def test_weights_beside_the_model_are_found_by_their_hash(bundle: Path) -> None:
    model = onnx.load(bundle / "model.onnx", load_external_data=False)
    tensor = onnx.numpy_helper.from_array(ramp(2), "w")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="offset", value="0")
    tensor.external_data.add(key="location", value="weights.bin")
    inside = onnx.numpy_helper.from_array(ramp(2), "inside")
    model.graph.initializer.extend([inside, tensor])
    onnx.save(model, bundle / "model.onnx")
    files = json.loads((bundle / MANIFEST_FILE).read_text())["files"]
    (bundle / "weights.bin").write_bytes(ramp(2).tobytes())
    for name in ("model.onnx", "weights.bin"):
        files[name] = describe_file(bundle / name).model_dump()
    rewrite(bundle, files=files)
    found = open_bundle(bundle).model().graph.initializer[-2:]
    assert [(each.name, each.raw_data) for each in found] == [("inside", ramp(2).tobytes()), ("w", b"")]
