"""Reading of bundles function by function: limits on both sides, names, formats, identical regions."""

import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import onnx
import pytest
from helpers.cutting import CHAIN, ramp
from helpers.support import copy_vanilla, parse
from pydantic import ValidationError

from byoc.bundle import (
    MANIFEST_FILE,
    Bundle,
    Consent,
    Manifest,
    RegionEntry,
    describe_file,
    inspect,
    is_bundle,
    is_packed_name,
    open_bundle,
    pack_folder,
)
from byoc.bundle._manifest import FileEntry, TypeEntry, copy_and_hash
from byoc.bundle._manifest_reading import check_file_entry, list_files, parse_manifest, resolve_inside
from byoc.bundle._packing import NO_CONSENT
from byoc.bundle._reading import _close
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
    ("size", "limit", "written"), [(0, 0, 0), (5, 5, 5), (6, 5, 0), (3 << 19, 1 << 20, 1 << 20)]
)
def test_no_more_is_copied_than_is_allowed(size: int, limit: int, written: int) -> None:
    content, target = bytes(range(256)) * (size // 256 + 1), io.BytesIO()
    entry = copy_and_hash(io.BytesIO(content[:size]), target, limit)
    assert (entry.bytes, entry.sha256) == (size, hashlib.sha256(content[:size]).hexdigest())
    assert target.getvalue() == content[:written]


@pytest.mark.parametrize(
    ("extent", "is_extent"), [(-1, 0), (0, 1), (1, 1), ("n", 1), (None, 1), (True, 0)]
)
def test_an_extent_is_a_number_a_name_or_unknown(extent: object, is_extent: int) -> None:
    text = json.dumps({"dtype": "float32", "shape": [extent]})
    if is_extent:
        assert TypeEntry.model_validate_json(text, strict=True).shape == (extent,)
        return
    with pytest.raises(ValidationError):
        TypeEntry.model_validate_json(text, strict=True)


@pytest.mark.parametrize(("size", "is_size"), [(-1, 0), (0, 1), (2**63 - 1, 1), (2**63, 0)])
def test_a_size_is_a_number_of_63_bits(size: int, is_size: bool) -> None:
    if is_size:
        assert FileEntry(sha256="a" * 64, bytes=size).bytes == size
        return
    with pytest.raises(ValidationError):
        FileEntry(sha256="a" * 64, bytes=size)


def test_files_are_held_to_size_and_hash() -> None:
    right = FileEntry(sha256="a" * 64, bytes=3)
    check_file_entry(Path("b"), "n", right, right)
    for wrong, what in (({"sha256": "b" * 64}, "hash"), ({"bytes": 4}, "size")):
        found = right.model_copy(update=wrong)
        with pytest.raises(InputError) as caught:
            check_file_entry(Path("b"), "n", found, right)
        assert str(caught.value) == f"b: the file 'n' is not as it was written: its {what} differs"


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ('{"files": {"a": 1, "b/c": 2}, "versions": {"byoc": "0"}}', {"a", "b/c"}),
        ('{"files": {}, "versions": {"byoc": "0"}}', set()),
        ('{"files": {}, "versions": {"byoc": 0}}', None),
        ('{"files": {}, "versions": {"npm": "0"}}', None),
        ('{"versions": {"byoc": "0"}}', None),
        ("[]", None),
        ("{", None),
    ],
)
def test_a_manifest_of_byocs_is_told_from_others(content: str, found: set[str] | None) -> None:
    assert list_files(lambda _: content.encode()) == found


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


def test_a_manifest_may_be_as_large_as_the_limit(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = (bundle / MANIFEST_FILE).read_bytes()
    monkeypatch.setattr("byoc.bundle._manifest_reading.MAX_MANIFEST_BYTES", len(content))
    assert parse_manifest(content, Path("m")).variants[0].model == "model.onnx"
    with pytest.raises(InputError) as caught:
        parse_manifest(content + b" ", Path("m"))
    assert str(caught.value) == f"m: not a manifest: it has more than {len(content)} bytes"


def test_paths_are_resolved_inside_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    folder.mkdir()
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "out").symlink_to(tmp_path)
    assert resolve_inside(folder, "a/b") == folder.resolve() / "a" / "b"
    for name in ("../b2", "/etc", "out/c", "a\0b"):
        with pytest.raises(InputError) as caught:
            resolve_inside(folder, name, Path("shown"))
        assert str(caught.value).startswith(f"shown/{MANIFEST_FILE}: the file ")
        assert str(caught.value).endswith(" is not inside the bundle")


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


def test_a_manifest_of_before_there_were_contracts_promises_what_onnx_defines(bundle: Path) -> None:
    content = json.loads((bundle / MANIFEST_FILE).read_text())
    del content["arithmetic"]
    manifest = parse_manifest(json.dumps(content).encode(), bundle)
    assert manifest.read_arithmetic("dla") == ArithmeticContract()


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


def test_a_bundle_is_shown_by_the_path_that_was_given(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    opened = open_bundle("b")
    assert opened.consent == Consent() == NO_CONSENT
    assert open_bundle("b", trust=True, codegens="dla").consent == Consent(True, frozenset({"dla"}))
    assert (opened.display_path, opened.folder, opened.packed) == (Path("b"), bundle, None)
    assert Bundle(bundle, opened.manifest).display_path == bundle
    zipped = tmp_path / "b.zip"
    pack_folder(bundle, opened.manifest.files, zipped)
    packed = open_bundle(zipped)
    assert (packed.display_path, packed.packed) == (zipped, zipped)
    assert packed.folder != bundle
    shown = inspect(bundle)
    assert inspect(zipped) == shown
    assert shown.pop("trust")["trusted"] is True
    assert shown == opened.manifest.model_dump(mode="json")
    folder = packed.folder
    assert (folder / "model.onnx").read_bytes() == (bundle / "model.onnx").read_bytes()
    del packed
    assert not folder.exists()


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


def test_a_folder_is_removed_by_the_process_that_made_it_and_if_it_is_still_there(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = ExitStack()
    stack.callback(shutil.rmtree, bundle, ignore_errors=True)
    _close(stack, os.getpid() + 1)
    assert bundle.exists()
    for _ in range(2):
        _close(stack, os.getpid())
        assert not bundle.exists()

    def lose(path: Path, folder: Path) -> None:
        folder.rmdir()
        raise InputError("the first reason")

    monkeypatch.setattr("byoc.bundle._reading.unpack_bundle", lose)
    (tmp_path / "b.zip").touch()
    with pytest.raises(InputError, match=r"^the first reason$"):
        open_bundle(tmp_path / "b.zip")
