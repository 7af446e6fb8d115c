"""The JSON Schema of manifests cannot drift from the types, fits real ones, and describes every key."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from helpers import vendors
from helpers.cutting import CHAIN, HOST_ONLY, cut
from helpers.support import Ran, parse

from byoc import bundle
from byoc.bundle import MANIFEST_FILE, manifest_schema, read_only_manifest
from byoc.codegen import describe_path_problem, is_plain_name
from byoc.errors import InputError
from byoc.pipeline import partition
from byoc.quantization import Precision
from byoc.runtime import load

SHIPPED = Path(bundle.__path__[0]) / "manifest.schema.json"
VALIDATOR = jsonschema.Draft202012Validator(manifest_schema())


def without_dtypes(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without what depends on the version of ONNX."""
    copy: dict[str, Any] = json.loads(json.dumps(schema))
    del copy["$defs"]["TypeEntry"]["properties"]["dtype"]["enum"]
    return copy


def test_the_shipped_schema_is_that_of_the_types(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--regenerate"):
        SHIPPED.write_text(json.dumps(manifest_schema(), indent=2) + "\n", encoding="utf-8")
    shipped = json.loads(SHIPPED.read_text(encoding="utf-8"))
    assert without_dtypes(shipped) == without_dtypes(manifest_schema())
    assert {"float32", "int8"} < {*shipped["$defs"]["TypeEntry"]["properties"]["dtype"]["enum"]}


def test_it_is_a_schema_that_the_command_line_prints(byoc: Callable[..., Ran]) -> None:
    jsonschema.Draft202012Validator.check_schema(manifest_schema())
    ran = byoc("inspect", "--schema")
    assert (ran.code, ran.err) == (0, "")
    assert json.loads(ran.out) == manifest_schema()


def test_every_key_is_described() -> None:
    schema = manifest_schema()
    for name, part in {"Manifest": schema, **schema["$defs"]}.items():
        assert part["description"], name
        for key, value in part.get("properties", {}).items():
            assert value["description"], f"{name}.{key}"


def _quantized(path: Path) -> None:
    asked = Precision(quantize="int8", data="random")
    partition(
        "zoo:squeezenet",
        "ethos-u55",
        output=path,
        codegen="reference",
        precision=asked,
        verify=False,
    )


def _several(path: Path) -> None:
    partition("zoo:squeezenet", ["dla", "tensorrt-dla"], output=path, verify=False)


def _open_shape(path: Path) -> None:
    cut(parse("g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }"), path)


MADE: list[Callable[[Path], object]] = [
    lambda path: cut(parse(CHAIN), path, codegen="tables"),
    lambda path: cut(parse(HOST_ONLY), path),
    _open_shape,
    _quantized,
    _several,
]


@pytest.mark.parametrize("make", MADE)
def test_real_manifests_fit(
    make: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.install(monkeypatch, tables=vendors.Tables)
    make(tmp_path / "b")
    content = json.loads((tmp_path / "b/manifest.json").read_text("utf-8"))
    VALIDATOR.validate(content)
    load(tmp_path / "b")


def _region(content: Any) -> Any:
    return content["variants"][0]["regions"][0]


def _contract(content: Any) -> Any:
    return content["variants"][0]["regions"][0]["inputs"][0]


WRONG: list[Callable[[Any], object]] = [
    lambda content: content.update(format=2),
    lambda content: content.update(format="3"),
    lambda content: content.update(format=3.5),
    lambda content: content.update(surprise=1),
    lambda content: content.update(asked=[]),
    lambda content: content.update(targets="dla"),
    lambda content: content.update(versions={"byoc": 1}),
    lambda content: content.update(variants=[]),
    lambda content: content["variants"][0].update(regions={}),
    lambda content: content["variants"][0].update(name="a-b"),
    lambda content: content["variants"][0].update(dims={"n": 1.5}),
    lambda content: content["variants"][0].pop("report"),
    lambda content: content["files"].update({"../x": {"sha256": "0" * 64, "bytes": 0}}),
    lambda content: content["files"]["model.onnx"].update(bytes=-1),
    lambda content: content["files"]["model.onnx"].update(bytes=2**63),
    lambda content: content["files"]["model.onnx"].update(bytes="7"),
    lambda content: content["files"]["model.onnx"].update(bytes=True),
    lambda content: content["files"]["model.onnx"].update(sha256="0" * 63),
    lambda content: _region(content).update(name="a/b"),
    lambda content: _region(content).update(composites=[1]),
    lambda content: _region(content)["artifact_files"].update({"../x": "model.onnx"}),
    lambda content: _region(content)["artifact_metadata"].update(steps=1),
    lambda content: _contract(content).update(scale=["1"]),
    lambda content: _contract(content).update(zero_point=[0.5]),
    lambda content: _contract(content).update(axis="1"),
    lambda content: _contract(content).update(converts={"layout": "nobody"}),
    lambda content: _contract(content)["type"].update(shape=[-1]),
    lambda content: _contract(content)["type"].update(shape=[True]),
    lambda content: _contract(content)["type"].update(dtype="int9"),
]


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("made") / "b"
    cut(parse(CHAIN), path)
    return (path / "manifest.json").read_text("utf-8")


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_schema_and_reader_refuse_the_same(number: int, manifest: str, tmp_path: Path) -> None:
    (tmp_path / MANIFEST_FILE).write_text(manifest)
    assert read_only_manifest(tmp_path)
    content = json.loads(manifest)
    assert VALIDATOR.is_valid(content)
    WRONG[number](content)
    assert not VALIDATOR.is_valid(content)
    (tmp_path / MANIFEST_FILE).write_text(json.dumps(content))
    with pytest.raises(InputError, match=MANIFEST_FILE):
        read_only_manifest(tmp_path)


PATHS = {
    **dict.fromkeys(["a", "a.b", ".a", "a b", "a/b.c/d", "con2", "console", "ü/é", "a..b", "lpt"]),
    **dict.fromkeys(
        ["com10", "conin", "conin$s", "clock", "com\xbd", "模型/重み", "a\u3000b", "p/" * 499 + "ab"]
    ),
    **dict.fromkeys(["..", ".", "", "/", "/a", "a/", "a//b", "./a", "a/./b", "../a", "a/../b"], "wrong"),
    **dict.fromkeys(["a\\b", "..\\a", "\\a", "C:\\a", "c:a", "a:b", "a\0b", "a\x1fb", "a\x7f"], "wrong"),
    **dict.fromkeys(["nul", "NUL.txt", "a/Con", "aux .c", "com1", "LPT9.x.y", "a.", "a "], "wrong"),
    **dict.fromkeys(
        ["com\xb9", "COM\xb2.txt", "a/Lpt\xb3.x", "com0", "CONIN$", "conout$.b", "Clock$"], "wrong"
    ),
    **dict.fromkeys(
        ["a\u200fb", "a\u202exe", "a\u2066", "\u200ba", "a\ufeff", "a\x85b", "a\u2028"], "wrong"
    ),
    **dict.fromkeys(["a\ud800", "a. ", "a .", "a/b./c", "\uffff", "p/" * 500 + "a"], "wrong"),
    **dict.fromkeys(["a|b", 'a"b', "a<b", "a>b", "a*", "a?"], "wrong"),
}


@pytest.mark.parametrize("path", PATHS)
def test_names_are_held_to_the_same(path: str) -> None:
    parts = manifest_schema()["$defs"]
    said = jsonschema.Draft202012Validator({"$ref": "#/$defs/path", "$defs": parts}).is_valid(path)
    assert said == (PATHS[path] is None) == (describe_path_problem(path) == "")
    alone = jsonschema.Draft202012Validator({"$ref": "#/$defs/name", "$defs": parts}).is_valid(path)
    assert alone == is_plain_name(path) == (PATHS[path] is None and "/" not in path)


def test_what_is_referred_to_comes_last() -> None:
    keys = list(manifest_schema())
    assert keys[:2] == ["$schema", "title"]
    assert keys[-1] == "$defs"
    assert keys[2:-1] == sorted(keys[2:-1])
