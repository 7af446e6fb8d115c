"""A bundle that is not as it was written is refused in one sentence."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import vendors
from helpers.cutting import CHAIN, files
from helpers.support import parse

import byoc as library
from byoc.bundle import MANIFEST_FILE, describe_file, inspect
from byoc.codegen import quote_name
from byoc.errors import InputError
from byoc.runtime import load
from byoc.verification import verify_against


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut_once: Callable[..., Path]) -> Path:
    vendors.install(monkeypatch, tables=vendors.Tables)
    return cut_once(CHAIN, tmp_path / "b", codegen="tables")


def _refused(bundle: Path) -> str:
    """Return the sentence with which a bundle is refused, by everything that opens one."""
    with pytest.raises(InputError) as caught:
        load(bundle)
    with pytest.raises(InputError) as again:
        verify_against(bundle)
    assert str(again.value) == str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def _regions(content: Any) -> Any:
    return content["variants"][0]["regions"]


def _edit(bundle: Path, change: Callable[[Any], Any]) -> None:
    path = bundle / "manifest.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(change(content) or content))


def test_as_written_it_loads(bundle: Path) -> None:
    assert load(bundle).inputs == ("x",)


def test_every_file_is_watched(bundle: Path) -> None:
    for name, content in files(bundle).items():
        if name in ("manifest.json", "signature.json") or not content:
            continue
        changed = bytes([content[0] ^ 1]) + content[1:]
        (bundle / name).write_bytes(changed)
        assert _refused(bundle) == (
            f"{bundle}: the file '{name}' is not as it was written: its hash differs; "
            "copy the bundle anew"
        )
        (bundle / name).write_bytes(content)
    load(bundle)


def test_a_longer_file_is_noticed(bundle: Path) -> None:
    with (bundle / "weights.bin").open("ab") as file:
        file.write(b"\0")
    assert _refused(bundle) == (
        f"{bundle}: the file 'weights.bin' is not as it was written: its size differs; "
        "copy the bundle anew"
    )


def test_a_key_that_stands_twice(bundle: Path) -> None:
    path = bundle / MANIFEST_FILE
    path.write_text(path.read_text().replace('"files": {', '"files": {"model.onnx": null,'))
    assert (
        _refused(bundle)
        == f"{path}: not a manifest: the key 'model.onnx' stands twice; copy the bundle anew"
    )


def test_a_manifest_that_is_no_file(bundle: Path) -> None:
    kept = (bundle / MANIFEST_FILE).rename(bundle.parent / "kept.json")
    for make in (lambda path: path.symlink_to(kept), Path.mkdir, os.mkfifo):
        make(bundle / MANIFEST_FILE)
        assert _refused(bundle) == f"{bundle}: not a bundle: it holds no manifest.json"
        (bundle / MANIFEST_FILE).rmdir() if (bundle / MANIFEST_FILE).is_dir() else (
            bundle / MANIFEST_FILE
        ).unlink()


def test_a_manifest_of_gigabytes_is_not_read(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("byoc.bundle._manifest_reading.MAX_MANIFEST_BYTES", 1 << 20)
    with (bundle / MANIFEST_FILE).open("r+b") as file:
        file.truncate(1 << 36)  # a hole; the disk has nothing of it
    assert (
        _refused(bundle) == f"{bundle / MANIFEST_FILE}: not a manifest: it has more than 1048576 bytes"
    )


@pytest.mark.parametrize(
    "name", ["model.onnx", "dla_1.onnx", "artifacts/dla_0/code.json", "weights.bin"]
)
def test_a_missing_file_is_named(name: str, bundle: Path) -> None:
    (bundle / name).unlink()
    assert _refused(bundle) == f"{bundle}: the file '{name}' of the bundle is missing"


def test_no_folder(tmp_path: Path) -> None:
    assert _refused(tmp_path / "none") == f"{tmp_path / 'none'}: no such bundle"


def test_a_file_is_no_bundle(bundle: Path) -> None:
    assert _refused(bundle / "model.onnx") == (
        f"{bundle / 'model.onnx'}: not a bundle: neither a folder nor a zip; `byoc partition` makes "
        "one of a model (-o)"
    )


def test_a_folder_without_manifest(tmp_path: Path) -> None:
    assert _refused(tmp_path) == f"{tmp_path}: not a bundle: it holds no manifest.json"


OUTSIDE = [
    "../outside.bin",
    "artifacts/../../outside.bin",
    "{0}/outside.bin",
    "link.bin",
    "a\0b",
    "loop/x",
    "..",
    "/",
    "..\\outside.bin",
    "C:\\outside.bin",
    "c:outside.bin",
]


def _outside(bundle: Path, name: str) -> str:
    outside = bundle.parent / "outside.bin"
    outside.write_bytes(b"secret")
    (bundle / "link.bin").symlink_to(outside)
    (bundle / "loop").symlink_to("loop")
    return name.format(bundle.parent)


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_file_outside_the_bundle_is_not_read(name: str, bundle: Path) -> None:
    name = _outside(bundle, name)
    entry = {"sha256": "0" * 64, "bytes": 6}
    _edit(bundle, lambda content: content["files"].update({name: entry}))
    wrong = "does not have a plain name" if "\0" in name else "is not inside the bundle"
    assert _refused(bundle) == f"{bundle / 'manifest.json'}: the file {quote_name(name)} {wrong}"


@pytest.mark.parametrize("name", ["", "./model.onnx", "artifacts//x", "a\nb", "\x1b[2J", "NUL", "a."])
def test_a_name_that_is_not_plain(name: str, bundle: Path) -> None:
    _edit(bundle, lambda content: content["files"].update({name: {"sha256": "0" * 64, "bytes": 6}}))
    wrong = "does not have a plain name"
    assert _refused(bundle) == f"{bundle / 'manifest.json'}: the file {quote_name(name)} {wrong}"


def test_a_name_that_is_too_long(bundle: Path) -> None:
    _edit(bundle, lambda content: content["files"].update({"x" * 999: {"sha256": "0" * 64, "bytes": 6}}))
    shown = quote_name("x" * 999)
    assert _refused(bundle) == f"{bundle}: the file {shown} cannot be read: File name too long"
    assert len(shown) == 205


def test_the_manifest_has_no_hash_of_itself(bundle: Path) -> None:
    entry = describe_file(bundle / MANIFEST_FILE).model_dump()
    _edit(bundle, lambda content: content["files"].update({MANIFEST_FILE: entry}))
    assert (
        _refused(bundle) == f"{bundle / MANIFEST_FILE}: the file 'manifest.json' is the manifest itself"
    )


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "", "..", "a/b", "a\\b", "C:x", "nul", "a\0b"])
def test_an_artifact_file_has_a_plain_name(name: str, bundle: Path) -> None:
    def change(content: Any) -> None:
        given = _regions(content)[0]["artifact_files"]
        given[name] = given.pop("code.json")

    _edit(bundle, change)
    what = f"the artifact of region 'dla_0': {quote_name(name)} is not a plain file name"
    assert _refused(bundle) == f"{bundle / MANIFEST_FILE}: {what}"


@pytest.mark.parametrize("name", ["../x", "", "a\nb"])
def test_a_region_has_a_plain_name(name: str, bundle: Path) -> None:
    _edit(bundle, lambda content: _regions(content)[0].update(name=name))
    assert _refused(bundle) == (
        f"{bundle / MANIFEST_FILE}: the region {quote_name(name)} does not have a plain name"
    )


def test_a_region_stands_once(bundle: Path) -> None:
    _edit(
        bundle,
        lambda content: _regions(content).append(_regions(content)[0]),
    )
    assert _refused(bundle) == f"{bundle / MANIFEST_FILE}: the region 'dla_0' stands in it twice"


def _as_model(content: Any, name: str) -> None:
    content["variants"][0]["model"] = name


def _as_region(content: Any, name: str) -> None:
    _regions(content)[0]["model"] = name


def _as_artifact(content: Any, name: str) -> None:
    _regions(content)[0]["artifact_files"]["code.json"] = name


@pytest.mark.parametrize("put", [_as_model, _as_region, _as_artifact])
@pytest.mark.parametrize("name", [*OUTSIDE, "there is no such file", ""])
def test_a_file_without_a_hash_is_not_read(
    name: str, put: Callable[[Any, str], None], bundle: Path
) -> None:
    name = _outside(bundle, name)
    _edit(bundle, lambda content: put(content, name))
    assert _refused(bundle) == (
        f"{bundle / 'manifest.json'}: the file {quote_name(name)} is named but has no hash"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not a manifest: Expecting value: line 1 column 1 (char 0)"),
        ("PK\x03\x04", "not a manifest: Expecting value: line 1 column 1 (char 0)"),
        ("[1, 2]", "format None; this version of byoc reads formats 4 to 7"),
        ("{}", "format None; this version of byoc reads formats 4 to 7"),
        ('{"format": 1}', "format 1 is that of an older byoc: partition the model again"),
        ('{"format": 2, "files": {}}', "format 2 is that of an older byoc: partition the model again"),
        ('{"format": 8}', "format 8 is that of a newer byoc; this one reads formats 4 to 7"),
        ('{"format": true}', "format True; this version of byoc reads formats 4 to 7"),
        ('{"format": 4.0}', "format 4.0; this version of byoc reads formats 4 to 7"),
        ('{"format": 0}', "format 0; this version of byoc reads formats 4 to 7"),
        ('{"format": "2"}', "format '2'; this version of byoc reads formats 4 to 7"),
        ('{"format": 4}', "not a manifest: versions: Field required"),
        ("[" * 100_000, "not a manifest: it is nested too deep"),
        ('{"format": 4, "asked": ' + '{"a":' * 100_000, "not a manifest: it is nested too deep"),
        ('{"format": 4, "format": 4}', "not a manifest: the key 'format' stands twice"),
        ('{"a\\nb": 1, "a\\nb": 2}', r"not a manifest: the key 'a\nb' stands twice"),
        ('{"format": 4, "asked": {"x": NaN}}', "not a manifest: NaN is not a number that is read"),
        ('{"format": 4, "asked": {"x": -Infinity}}', "not a manifest: -Infinity is not a number"),
        ('{"format": 4, "asked": {"x": 1e999}}', "not a manifest: 1e999 is not a number"),
        (
            '{"format": 4, "asked": {"x": ' + "9" * 5000 + "}}",
            "not a manifest: an integer of thousands of digits",
        ),
        ('{"format": 4, "surprise\\u001b\\n": 3}', "not a manifest: versions: Field required"),
        ('{"format": 4, "asked": {"\\ud800": 3}}', "not a manifest: Invalid JSON: "),
        ('{"format": 4, "asked": ' + "[" * 500 + "]" * 500 + "}", "not a manifest: Invalid JSON: "),
    ],
)
def test_what_is_no_manifest(text: str, reason: str, bundle: Path) -> None:
    (bundle / "manifest.json").write_text(text)
    assert _refused(bundle).startswith(f"{bundle / 'manifest.json'}: {reason}")


def test_bytes_that_are_no_text(bundle: Path) -> None:
    (bundle / "manifest.json").write_bytes(b"\xff\xfe\x00")
    assert _refused(bundle).startswith(f"{bundle / 'manifest.json'}: not a manifest: ")


@pytest.mark.parametrize("key", ["versions", "asked", "targets", "variants", "files"])
def test_a_missing_key_is_named(key: str, bundle: Path) -> None:
    _edit(bundle, lambda content: {k: v for k, v in content.items() if k != key})
    assert _refused(bundle) == f"{bundle / 'manifest.json'}: not a manifest: {key}: Field required"


@pytest.mark.parametrize("key", ["name", "dims", "model", "regions", "report"])
def test_a_missing_key_of_a_variant_is_named(key: str, bundle: Path) -> None:
    _edit(bundle, lambda content: content["variants"][0].pop(key) and None)
    place = f"variants.0.{key}"
    assert _refused(bundle) == f"{bundle / 'manifest.json'}: not a manifest: {place}: Field required"


def test_variants_have_names_of_their_own(bundle: Path) -> None:
    def add(name: str, first: str) -> Callable[[Any], None]:
        def change(content: Any) -> None:
            content["variants"] = [content["variants"][0] | {"name": each} for each in (first, name)]

        return change

    for change, problem in (
        (add("a", ""), "one of 2 variants has no name"),
        (add("a", "a"), "the variant 'a' stands in it twice"),
        (add("b", "a"), "the region 'dla_0' stands in it twice"),
        (add("../b", "a"), "not a manifest: variants.1.name: String should match pattern"),
    ):
        _edit(bundle, change)
        assert _refused(bundle).startswith(f"{bundle / 'manifest.json'}: {problem}")


def test_a_missing_key_of_a_region_is_named(bundle: Path) -> None:
    _edit(bundle, lambda content: _regions(content)[1].pop("codegen") and None)
    assert _refused(bundle) == (
        f"{bundle / 'manifest.json'}: not a manifest: variants.0.regions.1.codegen: Field required"
    )


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"files": []}, "files"),
        ({"variants": 3}, "variants"),
        ({"files": {"model.onnx": {"sha256": "abc", "bytes": 1}}}, "files.model.onnx.sha256"),
        ({"files": {"model.onnx": {"sha256": "0" * 64, "bytes": -1}}}, "files.model.onnx.bytes"),
        ({"files": {"model.onnx": {"sha256": "0" * 64, "bytes": 10**30}}}, "files.model.onnx.bytes"),
        ({"files": {"model.onnx": {"sha256": "0" * 64, "bytes": "1"}}}, "files.model.onnx.bytes"),
        ({"files": {"model.onnx": {"sha256": "0" * 64, "bytes": True}}}, "files.model.onnx.bytes"),
        ({"files": {"a\nb": 1}}, r"files.a\nb"),
        ({"targets": "dla"}, "targets"),
        ({"versions": {"byoc": 1}}, "versions.byoc"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_key_of_the_wrong_kind_is_named(change: Any, place: str, bundle: Path) -> None:
    _edit(bundle, lambda content: content | change)
    assert _refused(bundle).startswith(f"{bundle / 'manifest.json'}: not a manifest: {place}: ")


def _a_layout(region: Any) -> None:
    region["inputs"][0]["layout"] = "NHWC"


def _a_scale(region: Any) -> None:
    region["outputs"][0] |= {"scale": [0.5], "zero_point": [0]}


def _a_shape(region: Any) -> None:
    region["inputs"][0]["type"]["shape"] = [1, 5]


def _another_name(region: Any) -> None:
    region["outputs"][0]["name"] = "other"


def _one_less(region: Any) -> None:
    region["inputs"].clear()


def _a_constant(region: Any) -> None:
    region["constants"].append(region["inputs"][0])


@pytest.mark.parametrize(
    ("change", "tensor"),
    [
        (_a_layout, "x"),
        (_a_scale, "a"),
        (_a_shape, "x"),
        (_another_name, "a"),
        (_one_less, "x"),
        (_a_constant, "x"),
    ],
)
def test_a_contract_that_the_regions_model_does_not_bear_out(
    change: Callable[[Any], None], tensor: str, bundle: Path
) -> None:
    _edit(bundle, lambda content: change(_regions(content)[0]))
    for opens in (load, inspect):
        with pytest.raises(InputError) as caught:
            opens(bundle)
        assert str(caught.value) == (
            f"{bundle / 'manifest.json'}: regions: dla_0: '{tensor}' is not as the region's model has it"
        )


def test_a_contract_of_no_dtype_is_named(bundle: Path) -> None:
    def change(content: Any) -> None:
        _regions(content)[0]["inputs"][0]["type"]["dtype"] = "int9"

    _edit(bundle, change)
    place = "variants.0.regions.0.inputs.0.type.dtype"
    assert _refused(bundle).startswith(f"{bundle / 'manifest.json'}: not a manifest: {place}: ")


def test_an_artifact_is_looked_at_when_it_is_loaded(tmp_path: Path) -> None:
    """That of another accelerator is not in the way; that which is loaded is not taken if changed."""
    model = parse("g (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) { a = Relu(x) y = Abs(a) }")
    pytest.importorskip("openvino")
    variants = {"one": {"rules": "dla"}, "two": {"rules": "openvino-cpu"}}
    library.partition(
        model, output=tmp_path / "b", variants=variants, strategy="all-supported", verify=False
    )
    (program,) = (tmp_path / "b" / "artifacts").rglob("program.bin")
    content = program.read_bytes()
    program.write_bytes(bytes([content[0] ^ 1]) + content[1:])

    assert library.load(tmp_path / "b", prefer="two").choice.chosen == ("two",)
    with pytest.raises(
        InputError,
        match=r"program\.bin.* is not as it was written: its hash differs; copy the bundle anew",
    ):
        library.load(tmp_path / "b", prefer="one")
    with pytest.raises(InputError, match="its hash differs"):
        library.open_bundle(tmp_path / "b")
