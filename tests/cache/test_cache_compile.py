"""Regions that an earlier program compiled are taken where all is the same, and only there."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cutting import UNLIKE, cut, ramp, same_as_original, without_what_ifs
from helpers.noting_vendor import Vendor, read_bundle
from helpers.support import VANILLA, Ran, examples, parse
from helpers.warm_processes import WarmProcesses
from hypothesis import given, settings
from hypothesis import strategies as st

import byoc
from byoc.codegen import digest_regions, read_region
from byoc.errors import InputError
from byoc.support.cache import Cache, find_cache_folder, open_cache

BOTH = ["dla_0", "dla_1"]
WEIGHT = ramp(20, 20)  # more than the 1 KiB up to which constants stay in the model
WEIGHTED = """
weighted (float[20, 20] x) => (float[20, 20] y) {
  [first] a = Add(x, w)
  [second] b = Sigmoid(a)
  [third] y = Relu(b)
}
"""


def weighted(weight: Any = WEIGHT, *swaps: tuple[str, str]) -> onnx.ModelProto:
    """Return a model with a large constant, some of its text replaced."""
    text = WEIGHTED
    for old, new in swaps:
        assert old in text
        text = text.replace(old, new)
    model = parse(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return model


def test_the_same_command_twice_compiles_once(vendor: Vendor, tmp_path: Path) -> None:
    model = parse(UNLIKE)
    first, compiled = vendor.cut(model, tmp_path / "first", verify=True)
    assert compiled == BOTH
    second, compiled = vendor.cut(model, tmp_path / "second", verify=True)
    assert compiled == []
    assert read_bundle(tmp_path / "first") == read_bundle(tmp_path / "second")
    assert second.verification is not None
    assert second.verification.passed
    same_as_original(model, tmp_path / "second", {"x": ramp(1, 4)})
    assert first.report.to_json() | {"bundle": ""} == second.report.to_json() | {"bundle": ""}


def test_the_bundle_is_the_one_without_a_cache(vendor: Vendor, tmp_path: Path) -> None:
    model = parse(UNLIKE)
    _, compiled = vendor.cut(model, tmp_path / "plain", cache=False)
    assert compiled == BOTH
    assert not find_cache_folder().exists()
    vendor.cut(model, tmp_path / "stored")
    _, compiled = vendor.cut(model, tmp_path / "found")
    assert compiled == []
    bundles = [read_bundle(tmp_path / name) for name in ("plain", "stored", "found")]
    assert bundles[0] == bundles[1] == bundles[2]


def test_without_the_cache_everything_is_compiled(vendor: Vendor, tmp_path: Path) -> None:
    vendor.cut(parse(UNLIKE), tmp_path / "b")
    entries = open_cache().list_entries()
    assert vendor.cut(parse(UNLIKE), tmp_path / "b", cache=False)[1] == BOTH
    assert open_cache().list_entries() == entries


def test_another_folder_is_another_cache(vendor: Vendor, tmp_path: Path) -> None:
    vendor.cut(parse(UNLIKE), tmp_path / "b")
    for expected in (BOTH, []):
        assert vendor.cut(parse(UNLIKE), tmp_path / "b", cache_dir=tmp_path / "other")[1] == expected
    assert len(open_cache(tmp_path / "other").list_entries()) == 2


def test_a_plan_opens_no_cache(vendor: Vendor) -> None:
    byoc.partition(parse(UNLIKE), VANILLA, codegen="noting")
    assert not find_cache_folder().exists()


def _change_source(vendor: Vendor, _: pytest.MonkeyPatch) -> dict[str, Any]:
    vendor.write("2")
    return {}


def _release(vendor: Vendor, _: pytest.MonkeyPatch) -> dict[str, Any]:
    vendor.release("1.1")
    return {}


def _update_library(vendor: Vendor, _: pytest.MonkeyPatch) -> dict[str, Any]:
    record = vendor.site / "noting_compiler-4.2.dist-info" / "METADATA"
    record.write_text(record.read_text().replace("4.2", "4.3"))
    return {}


def _set_variable(_: Vendor, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("NOTING_HOME", "/opt/noting")
    return {}


def _give_option(_: Vendor, __: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"codegen_options": {"speed": "4"}}


def _use_other_processors(_: Vendor, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr("byoc.codegen._compiler_identity._count_processors", lambda: 3)
    return {}


@pytest.mark.parametrize(
    "change",
    [_change_source, _release, _update_library, _set_variable, _give_option, _use_other_processors],
)
def test_another_compiler_compiles_anew(
    change: Callable[[Vendor, pytest.MonkeyPatch], dict[str, Any]],
    vendor: Vendor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = parse(UNLIKE)
    vendor.cut(model, tmp_path / "b")
    options = change(vendor, monkeypatch)
    assert vendor.cut(model, tmp_path / "b", **options)[1] == BOTH
    assert vendor.cut(model, tmp_path / "b", **options)[1] == []


def test_the_default_of_an_option_counts_as_the_option(vendor: Vendor, tmp_path: Path) -> None:
    vendor.cut(parse(UNLIKE), tmp_path / "b")
    assert vendor.cut(parse(UNLIKE), tmp_path / "b", codegen_options={"speed": "3"})[1] == []


KEYED = """
    def cache_key(self, options):
        return {"compiler": os.environ["COMPILER"], "speed": str(options.speed)}
"""


def test_what_a_codegen_says_it_depends_on(
    vendor: Vendor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor.write(more=KEYED)
    for version, expected in (("4", BOTH), ("5", BOTH), ("4", [])):
        monkeypatch.setenv("COMPILER", version)
        assert vendor.cut(parse(UNLIKE), tmp_path / "b")[1] == expected


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("    def cache_key(self, options): return 3", "cache_key gave int, not texts by name"),
        ("    def cache_key(self, options): return {'a': 3}", "cache_key gave 'a', which is not text"),
        ("    def cache_key(self, options): return {}['a']", "failed with KeyError: 'a'"),
    ],
)
def test_a_key_that_is_none_is_a_fault_of_the_codegen(
    more: str, sentence: str, vendor: Vendor, tmp_path: Path
) -> None:
    vendor.write(more=more)
    with pytest.raises(InputError, match=sentence):
        vendor.cut(parse(UNLIKE), tmp_path / "b")
    assert vendor.cut(parse(UNLIKE), tmp_path / "b", cache=False)[1] == BOTH


def test_a_codegen_may_not_want_to_be_cached(vendor: Vendor, tmp_path: Path) -> None:
    vendor.write(more="    cached = False")
    for _ in range(2):
        assert vendor.cut(parse(UNLIKE), tmp_path / "b")[1] == BOTH
    assert open_cache().list_entries() == []


STAMPED = """
    def compatible(self, region, artifact):
        from byoc.codegen import YES, refuse
        return refuse("no") if "MISFIT" in os.environ else YES
"""


def test_what_does_not_fit_any_more_is_compiled(
    vendor: Vendor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor.write(more=STAMPED)
    vendor.cut(parse(UNLIKE), tmp_path / "b")
    assert vendor.cut(parse(UNLIKE), tmp_path / "b")[1] == []
    monkeypatch.setenv("MISFIT", "1")
    assert vendor.cut(parse(UNLIKE), tmp_path / "b")[1] == BOTH


@pytest.mark.parametrize(
    "model",
    [
        weighted(np.nextafter(WEIGHT, np.float32(2))),
        weighted(WEIGHT.reshape(20, 20).T.copy()),
        weighted(WEIGHT, ("w)", "w)"), ("Add(x, w)", "Add(w, x)")),
        weighted(WEIGHT, ("[first] a", "[other] a")),
        weighted(WEIGHT, ("Add(x", "Add(z"), ("20] x", "20] z")),
    ],
    ids=["a weight", "weights", "order", "the name of a node", "the name of a tensor"],
)
def test_another_region_is_compiled(model: onnx.ModelProto, vendor: Vendor, tmp_path: Path) -> None:
    vendor.cut(weighted(), tmp_path / "b")
    assert vendor.cut(model, tmp_path / "b")[1] == ["dla_0"]
    assert vendor.cut(weighted(), tmp_path / "b")[1] == []


def test_the_same_region_of_another_model_is_not(vendor: Vendor, tmp_path: Path) -> None:
    vendor.cut(weighted(), tmp_path / "b")
    other = weighted(WEIGHT, ("b = Sigmoid(a)", "c = Sigmoid(a)\n  b = Tanh(c)"), ("weighted", "longer"))
    other.graph.doc_string = other.graph.node[0].doc_string = "about it"
    other.graph.initializer.insert(0, onnx.numpy_helper.from_array(ramp(500), "unread"))
    assert vendor.cut(other, tmp_path / "b")[1] == []
    same_as_original(other, tmp_path / "b", {"x": ramp(20, 20)})


@pytest.mark.parametrize("more", ["", "    refers_to_weights = True"], ids=["copies", "refers"])
@pytest.mark.parametrize("isolate", [False, True], ids=["here", "isolated"])
def test_where_weights_lie_counts_for_a_codegen_that_refers_to_them(
    more: str, isolate: bool, vendor: Vendor, tmp_path: Path
) -> None:
    vendor.write(more=more)
    vendor.cut(weighted(), tmp_path / "b", isolate=isolate)
    assert vendor.cut(weighted(), tmp_path / "b", isolate=isolate)[1] == []
    other = parse(WEIGHTED.replace("y = Relu(b)", "c = Relu(b) y = Sub(c, v)"))
    for name, values in (("v", ramp(20, 20) + 3), ("w", WEIGHT)):  # the first one of the file is v
        other.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    assert ("dla_0" in vendor.cut(other, tmp_path / "b", isolate=isolate)[1]) == bool(more)


def test_a_codegens_note_is_one_of_the_plans(
    vendor: Vendor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTE", "it took\nthe slow way")
    made, _ = vendor.cut(parse(UNLIKE), tmp_path / "b")
    assert "dla_0, dla_1: it took the slow way" in [note.text for note in made.report.notes]


def test_an_artifact_with_its_regions_name_is_for_that_name_alone(
    vendor: Vendor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = parse("g (float[1, 4] x) => (float[1, 4] y) { a = Sigmoid(x) y = Relu(a) }")
    earlier = parse(
        "g (float[1, 4] w) => (float[1, 4] y, float[1, 4] z)"
        " { z = Add(w, w) x = Sub(z, w) a = Sigmoid(x) y = Relu(a) }"
    )
    vendor.cut(model, tmp_path / "b")
    assert vendor.cut(earlier, tmp_path / "b")[1] == ["dla_0"]  # the Relu is dla_1 here
    monkeypatch.setenv("NOTE", "made for dla_0")
    open_cache().clear()
    vendor.cut(model, tmp_path / "b")
    assert vendor.cut(model, tmp_path / "b")[1] == []
    assert vendor.cut(earlier, tmp_path / "b")[1] == BOTH


def test_a_refusal_is_not_asked_for_again(
    vendor: Vendor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFUSED", "Add")
    model = parse(UNLIKE)
    first, compiled = vendor.cut(model, tmp_path / "first", strict=False)
    assert compiled == BOTH
    second, compiled = vendor.cut(model, tmp_path / "second", strict=False)
    assert compiled == []
    assert read_bundle(tmp_path / "first") == read_bundle(tmp_path / "second")
    assert second.report.refusals == first.report.refusals
    assert second.report.refusals[0].reason == "this one is not taken"
    with pytest.raises(InputError, match="codegen noting: dla_1: this one is not taken"):
        vendor.cut(model, tmp_path / "third", strict=True)


def test_a_refusal_that_may_pass_is(
    vendor: Vendor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFUSED", "Add")
    monkeypatch.setenv("FOR_NOW", "1")
    vendor.cut(parse(UNLIKE), tmp_path / "b", strict=False)
    monkeypatch.delenv("REFUSED")
    result, compiled = vendor.cut(parse(UNLIKE), tmp_path / "b", strict=False)
    assert compiled == ["dla_1"]
    assert result.report.refusals == ()


def test_a_fault_is_not_kept(vendor: Vendor, tmp_path: Path) -> None:
    vendor.write(more="    def compile(self, region, options): raise OSError('no licence')")
    assert vendor.cut(parse(UNLIKE), tmp_path / "b", strict=False)[0].report.failures
    assert open_cache().list_entries() == []


def test_a_codegen_in_a_process_of_its_own_has_the_same_artifacts(
    vendor: Vendor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    vendor.write(more=KEYED)
    monkeypatch.setenv("COMPILER", "4")
    _, compiled = vendor.cut(parse(UNLIKE), tmp_path / "here")
    assert compiled == BOTH
    result, compiled = vendor.cut(parse(UNLIKE), tmp_path / "there", isolate=True, verify=True)
    assert compiled == []
    assert result.verification is not None
    assert result.verification.passed
    monkeypatch.setenv("REFUSED", "Add")
    monkeypatch.setenv("FOR_NOW", "1")
    open_cache().clear()
    for _ in range(2):
        assert vendor.cut(parse(UNLIKE), tmp_path / "c", isolate=True, strict=False)[1][-1] == "dla_1"
    monkeypatch.delenv("FOR_NOW")
    vendor.cut(parse(UNLIKE), tmp_path / "c", isolate=True, strict=False)
    assert vendor.cut(parse(UNLIKE), tmp_path / "c", isolate=True, strict=False)[1] == []


def test_what_is_damaged_is_compiled_again(vendor: Vendor, tmp_path: Path) -> None:
    vendor.cut(parse(UNLIKE), tmp_path / "first")
    for entry in open_cache().list_entries():
        content = bytearray(entry.path.read_bytes())
        content[-1] ^= 1
        entry.path.write_bytes(content)
    assert vendor.cut(parse(UNLIKE), tmp_path / "second")[1] == BOTH
    assert read_bundle(tmp_path / "first") == read_bundle(tmp_path / "second")
    assert vendor.cut(parse(UNLIKE), tmp_path / "second")[1] == []


def test_a_folder_that_is_not_used_is_one_sentence(
    vendor: Vendor, tmp_path: Path, byoc: Callable[..., Ran]
) -> None:
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o700)
    folder.chmod(0o777)
    model = tmp_path / "m.onnx"
    onnx.save(parse(UNLIKE), model)
    ran = byoc("partition", model, "--rules", VANILLA, "-o", tmp_path / "b", "--cache-dir", folder)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        f"byoc: {folder}: is not used as a cache: others may write it (its mode is 777): "
        f"chmod 700 {folder}\n"
    )
    assert not (tmp_path / "b").exists()


def test_a_folder_without_a_cache_is_a_usage_error(tmp_path: Path, byoc: Callable[..., Ran]) -> None:
    folder = tmp_path / "mine"
    given = ("--rules", VANILLA, "-o", tmp_path / "b", "--no-cache", "--cache-dir", folder)
    ran = byoc("partition", "zoo:squeezenet", *given)
    assert (ran.code, ran.out, folder.exists()) == (2, "", False)
    assert "--cache-dir: it is where the cache is, which --no-cache does without" in ran.err


def test_regions_that_are_compiled_together(vendor: Vendor, tmp_path: Path) -> None:
    vendor.write(
        more="""
    def compile_all(self, regions, options):
        return {region.name: self.compile(region, options) for region in regions}
"""
    )
    assert vendor.cut(parse(UNLIKE), tmp_path / "first")[1] == BOTH
    assert vendor.cut(parse(UNLIKE), tmp_path / "second")[1] == []
    assert read_bundle(tmp_path / "first") == read_bundle(tmp_path / "second")
    (entry,) = open_cache().list_entries()
    assert open_cache().read_facts(entry)["regions"] == BOTH  # type: ignore[index]


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_a_digest_tells_all_that_a_codegen_may_read(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("r")
    text = (
        "g (float[2, 3] x, float[2, 3] z) => (float[2, 3] y)"
        " { [n] a = Add(x, z) [m] y = Elu<alpha = 0.5>(a) }"
    )
    swaps = [
        ("Add(x, z)", "Add(z, x)"),
        ("Add", "Mul"),
        ("0.5", "0.25"),
        ("[n]", "[k]"),
        ("float[2, 3] x, float[2, 3] z", "float[2, 3] z, float[2, 3] x"),
        ("float[2, 3] x", "float[2, N] x"),
        ("float[2, 3]", "double[2, 3]"),
    ]
    chosen = data.draw(st.sets(st.sampled_from(swaps)))
    other = text
    for old, new in sorted(chosen):
        other = other.replace(old, new)
    digests = []
    for name, content in (("one", text), ("other", other)):
        model = parse(content)
        model.graph.name = model.graph.doc_string = name
        model.graph.node[0].metadata_props.add(key="byoc.rules", value=name)
        model.metadata_props.add(key="byoc.predicted_seconds", value=name)
        (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
        digests.append(digest_regions([read_region(folder / f"{name}.onnx", name, "acme")]))
    assert (digests[0] == digests[1]) == (other == text)


def _region_with(folder: Path, tensor: onnx.TensorProto, name: str) -> str:
    model = parse("g (float[4] x) => (float[4] y) { y = Add(x, w) }")
    model.graph.initializer.append(tensor)
    (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
    return digest_regions([read_region(folder / f"{name}.onnx", name, "acme")])


def test_where_a_constant_lies_does_not_count_and_no_constant_passes_for_another(tmp_path: Path) -> None:
    values = ramp(4).tobytes()
    (tmp_path / "one.bin").write_bytes(values)
    (tmp_path / "two.bin").write_bytes(b"\0" * 64 + values)

    def outside(location: str, offset: int) -> onnx.TensorProto:
        tensor = onnx.TensorProto(name="w", dims=[4], data_type=onnx.TensorProto.FLOAT)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", offset), ("length", len(values))):
            tensor.external_data.add(key=key, value=str(value))
        return tensor

    one = _region_with(tmp_path, outside("one.bin", 0), "a")
    assert _region_with(tmp_path, outside("two.bin", 64), "b") == one
    assert _region_with(tmp_path, outside("two.bin", 0), "c") != one
    # A tensor that says to be inside, with the place of which a hash is made.
    import hashlib  # noqa: PLC0415

    forged = onnx.TensorProto(name="w", dims=[4], data_type=onnx.TensorProto.FLOAT)
    forged.external_data.add(key="sha256", value=hashlib.sha256(values).hexdigest())
    assert _region_with(tmp_path, forged, "d") != one


@pytest.mark.parametrize("codegen", ["dla", "c", "openvino"])
def test_our_codegens_give_the_same_bundle_from_the_cache(codegen: str, tmp_path: Path) -> None:
    pytest.importorskip({"dla": "numpy", "c": "emx_onnx_cgen"}.get(codegen, codegen))
    model = parse(
        "g (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) { a = Relu(x) b = Sigmoid(a) y = Add(b, b) }"
    )
    bundles = []
    for number in range(2):
        steps: list[str] = []
        with without_what_ifs():
            cut(model, tmp_path / str(number), codegen=codegen, progress=steps.append)
        bundles.append(read_bundle(tmp_path / str(number)))
        assert any(step.startswith("compile") for step in steps) == (number == 0)
    assert bundles[0] == bundles[1]


def test_reference_keeps_nothing(tmp_path: Path) -> None:
    with without_what_ifs():
        cut(parse(UNLIKE), tmp_path / "b", verify=False)
    assert open_cache().list_entries() == []


PROGRAM = """
import sys
from pathlib import Path
import onnx
from helpers.cutting import cut, without_what_ifs
model = onnx.load(sys.argv[1])
for number in range(2):
    with without_what_ifs():
        cut(model, Path(sys.argv[2]), codegen="noting", verify=False)
"""


def test_programs_at_once(vendor: Vendor, tmp_path: Path, warm_processes: WarmProcesses) -> None:
    onnx.save(parse(UNLIKE), tmp_path / "m.onnx")
    path = os.pathsep.join([str(vendor.site), str(Path(__file__).parents[1]), *sys.path])
    vendor.log.write_text("")
    programs = [
        warm_processes.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "m.onnx"), str(tmp_path / f"b{number}")],
            env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
            stderr=subprocess.PIPE,
        )
        for number in range(2)
    ]
    for program in programs:
        _, errors = program.communicate(timeout=1200)
        assert program.returncode == 0, errors.decode()
    bundles = [read_bundle(tmp_path / f"b{number}") for number in range(2)]
    assert bundles[0] == bundles[1]
    assert len(open_cache().list_entries()) == 2
    assert set(vendor.log.read_text().split()) == set(BOTH)
    assert len(vendor.log.read_text().split()) <= 4
    assert vendor.cut(parse(UNLIKE), tmp_path / "last")[1] == []


def test_the_verb(vendor: Vendor, tmp_path: Path, byoc: Callable[..., Ran]) -> None:
    empty = json.loads(byoc("cache", "--format", "json").out)
    folder = find_cache_folder()
    assert empty == {"folder": str(folder), "entries": 0, "bytes": 0, "limit": 4 << 30, "codegens": []}
    assert byoc("cache").out == f"{folder}: 0 results, 0 B of at most 4 GiB\n"
    vendor.cut(parse(UNLIKE), tmp_path / "b")
    told = json.loads(byoc("cache", "--format", "json").out)
    assert told["entries"] == 2
    assert [(row["codegen"], row["entries"], row["bytes"]) for row in told["codegens"]] == [
        ("noting", 2, told["bytes"])
    ]
    assert "noting" in byoc("cache").out
    assert byoc("cache", "clear", "--codegen", "dla").out == f"{folder}: 0 results removed\n"
    assert byoc("cache", "clear", "--codegen", "noting").out == f"{folder}: 2 results removed\n"
    assert byoc("cache", "limit", "8GiB").out == f"{folder}: at most 8 GiB from now on\n"
    assert json.loads(byoc("cache", "--format", "json").out)["limit"] == 8 << 30
    wrong = byoc("cache", "limit", "much")
    assert wrong.code == 2
    assert "'much' is not a size, such as 500MiB" in " ".join(wrong.err.split())
    other = byoc("cache", "limit", "1MiB", "--cache-dir", tmp_path / "mine")
    assert other.out == f"{tmp_path / 'mine'}: at most 1 MiB from now on\n"


def test_the_folder_stands_before_or_after_what_is_done(
    vendor: Vendor, tmp_path: Path, byoc: Callable[..., Ran]
) -> None:
    mine = tmp_path / "mine"
    vendor.cut(parse(UNLIKE), tmp_path / "b")
    assert byoc("cache", "--cache-dir", mine, "limit", "1MiB").out.startswith(f"{mine}: at most 1 MiB")
    assert byoc("cache", "--cache-dir", mine, "clear").out == f"{mine}: 0 results removed\n"
    assert byoc("cache", "--cache-dir", tmp_path, "clear", "--cache-dir", mine).out.startswith(
        f"{mine}:"
    )
    assert byoc("cache", "--format", "json", "clear").code == 2
    kept = json.loads(byoc("cache", "--format", "json").out)
    assert (kept["entries"], kept["limit"]) == (2, 4 << 30)


def test_an_entry_of_a_year_that_no_calendar_has(
    vendor: Vendor, tmp_path: Path, byoc: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor.cut(parse(UNLIKE), tmp_path / "b")
    entries = open_cache().list_entries()
    far = [replace(each, used=1e13) for each in entries]
    monkeypatch.setattr(Cache, "list_entries", lambda _: far)
    ran = byoc("cache", "--format", "json")
    assert (ran.code, [row["last used"] for row in json.loads(ran.out)["codegens"]]) == (0, [""])


def test_options_of_the_cache_are_not_in_the_manifest(vendor: Vendor, tmp_path: Path) -> None:
    vendor.cut(parse(UNLIKE), tmp_path / "b", cache_dir=tmp_path / "mine")
    asked = json.loads((tmp_path / "b" / "manifest.json").read_text())["asked"]
    assert not {"cache", "cache_dir", "jobs"} & set(asked)
