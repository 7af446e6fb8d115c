"""What bundles refuse, in sentences: codegens, makers, folders of two kinds, paths, reports."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest
from helpers.cutting import CHAIN
from helpers.support import VANILLA, parse
from onnx import TensorProto, helper, numpy_helper

import byoc
from byoc.bundle import (
    Consent,
    EstimateReport,
    HostReason,
    PrecisionReport,
    PredictedCosts,
    ReachReport,
    RefusalReport,
    RegionCompiler,
    RegionEntry,
    RegionReport,
    Report,
    TensorErrorReport,
    TrialCandidate,
    VerificationReport,
    WeightFile,
    find_folder_kind,
    is_packed_name,
    judge_trust,
    move_weights,
    open_bundle,
    read_signature,
    require_consent,
    sign_folder,
)
from byoc.bundle import _original_weights as originals
from byoc.bundle import _original_weights as references
from byoc.bundle import _packing as consent_module
from byoc.bundle import _packing as signing
from byoc.bundle import _reading as reading
from byoc.bundle._compiling import compile_regions
from byoc.bundle._epcontext import (
    NodeContext,
    _contradict,
    _encode_text,
    _replace_types,
    build_context_model,
)
from byoc.bundle._original_weights import _embed
from byoc.bundle._packing import NO_CONSENT, require_trusted_references
from byoc.codegen import (
    UNLESS_TRUSTED,
    Artifact,
    CompileError,
    Isolation,
    RefusedError,
    Region,
    read_region,
)
from byoc.errors import InputError, MissingRuntimeError
from byoc.support.trust import MAX_SIGNATURE_BYTES, SIGNATURE_FILE, Trust

AnyBundle = Any


def make_bundle(
    *codegens: str, native: tuple[str, ...] = (), consent: Consent = NO_CONSENT, paths: str = ""
) -> AnyBundle:
    """Return what stands for a bundle with a region for each of some codegens."""
    regions = [SimpleNamespace(name=f"r{number}", codegen=name) for number, name in enumerate(codegens)]
    files = {f"w{number}": SimpleNamespace(path=path) for number, path in enumerate(paths.split())}
    variant = SimpleNamespace(variant=SimpleNamespace(regions=regions))
    return SimpleNamespace(
        variants=(variant,),
        consent=consent,
        display_path=Path("b"),
        folder=Path("b"),
        manifest=SimpleNamespace(regions=regions, digest=b"", references=files),
        codegens=SimpleNamespace(find=lambda name: SimpleNamespace(native=name in native)),
    )


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Callable[[Trust], list[int]]:
    """Return what makes all makers judged so; it gives a list with an entry for each judgement."""

    def judge_so(trust: Trust) -> list[int]:
        asked: list[int] = []

        def judge(_: AnyBundle) -> Trust:
            asked.append(1)
            return trust

        monkeypatch.setattr(consent_module, "judge_maker", judge)
        return asked

    return judge_so


@pytest.mark.parametrize(
    ("codegens", "names"),
    [
        (None, None),
        ("dla", {"dla"}),
        (" dla , c", {"dla", "c"}),
        (["a,b", ""], {"a,b", ""}),
        ((), set()),
        ("dla,", "wrong"),
        (" ", "wrong"),
        ("", "wrong"),
    ],
)
def test_codegens_that_may_load_are_a_list_or_a_text_with_commas(codegens: Any, names: Any) -> None:
    if names == "wrong":
        with pytest.raises(
            InputError, match=r"^codegens: a name is missing at a comma: dla,reference is"
        ):
            Consent.of(False, codegens)
        return
    for trust in (False, True):
        consent = Consent.of(trust, codegens)
        assert (consent.trust, consent.codegens) == (trust, names)


def test_a_region_is_for_a_codegen_that_may_be_used() -> None:
    for allowed, known in ((["b", "a"], "a, b"), ([], "none")):
        with pytest.raises(InputError) as caught:
            require_consent(make_bundle("c", consent=Consent.of(codegens=allowed)))
        assert str(caught.value) == (
            f"b: region r0 is for codegen 'c', but only these may be used (--codegens): {known}"
        )
    require_consent(make_bundle("a", "b", "a", consent=Consent.of(codegens="a,b")))
    require_consent(make_bundle("c"))


@pytest.mark.parametrize(("key", "once"), [("", ""), ("ab", ", or run byoc trust on it once")])
def test_native_code_of_a_stranger_is_not_loaded(key: str, once: str, judged: Any) -> None:
    asked = judged(Trust(False, "it is not signed", key))
    with pytest.raises(InputError) as caught:
        require_consent(make_bundle("plain", "c", "c", native=("c",)))
    assert str(caught.value) == (
        "b: region r1 is native code for codegen c, and not loaded: it is not signed. If you trust its "
        f"maker, give --trust (in Python trust=True){once}"
    )
    with pytest.raises(InputError) as caught:
        require_trusted_references(make_bundle(paths="../first ../second"))
    assert str(caught.value) == (
        "b: it refers to weights outside of it, '../first', which are not looked at: it is not signed. "
        f"If you trust its maker, give --trust (in Python trust=True){once}"
    )
    assert len(asked) == 2
    require_consent(make_bundle("plain", native=("c",)))
    require_trusted_references(make_bundle())
    assert len(asked) == 2  # nobody is judged without need


def test_whom_one_trusts_runs_native_code_and_is_judged_once(judged: Any) -> None:
    asked = judged(Trust(True, "it was made here"))
    require_consent(make_bundle("c", "c", native=("c",)))
    assert len(asked) == 1
    require_trusted_references(make_bundle(paths="x"))
    told = make_bundle("c", native=("c",), consent=Consent.of(True))
    asked = judged(Trust(False, "no"))
    assert judge_trust(told) == Trust(True, "you said that you trust it")
    require_consent(told)
    assert not asked


@pytest.mark.parametrize("error", [InputError("no key"), MissingRuntimeError("no package")])
def test_without_a_key_a_bundle_is_not_signed(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[bytes] = []
    monkeypatch.setattr(signing, "remember_written", known.append)
    monkeypatch.setattr(signing, "open_or_create_key", lambda: "key")
    monkeypatch.setattr(signing, "make_signature", lambda *parts: repr(parts).encode())
    assert sign_folder(tmp_path, b"1", sign=False) == ""
    assert not [*tmp_path.iterdir()]
    assert sign_folder(tmp_path, b"2") == ""
    assert (tmp_path / SIGNATURE_FILE).read_bytes() == b"(b'2', 'key', 'bundle')"
    (tmp_path / SIGNATURE_FILE).unlink()

    def refuse() -> None:
        raise error

    monkeypatch.setattr(signing, "open_or_create_key", refuse)
    assert sign_folder(tmp_path, b"3") == f"the bundle is not signed: {error}"
    assert sign_folder(tmp_path, b"4", kind="program") == f"the program is not signed: {error}"
    assert not [*tmp_path.iterdir()]
    assert known == [b"1", b"2", b"3", b"4"]


def test_of_a_signature_no_more_is_read_than_it_may_have(tmp_path: Path) -> None:
    path = tmp_path / SIGNATURE_FILE
    assert read_signature(tmp_path) is None
    for size in (0, 5, MAX_SIGNATURE_BYTES, MAX_SIGNATURE_BYTES + 1, MAX_SIGNATURE_BYTES + 9):
        path.write_bytes(b"s" * size)
        read = read_signature(tmp_path)
        assert read == b"s" * min(size, MAX_SIGNATURE_BYTES + 1)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    assert read_signature(tmp_path) == b""
    path.unlink()
    path.mkdir()
    assert read_signature(tmp_path) == b""


def test_a_folder_is_of_one_kind(tmp_path: Path) -> None:
    assert find_folder_kind(tmp_path) is None
    for name, kind in (
        ("program.json", "program"),
        ("manifest.json", "bundle"),
        ("fault.json", "fault"),
    ):
        (tmp_path / name).write_text("")
        assert find_folder_kind(tmp_path) == kind
        (tmp_path / name).unlink()
    (tmp_path / "manifest.json").symlink_to("nowhere")
    assert find_folder_kind(tmp_path) == "bundle"
    (tmp_path / "fault.json").write_text("")
    with pytest.raises(InputError) as caught:
        find_folder_kind(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: holds manifest.json and fault.json, which are of two kinds of folders: what it "
        "is, is not clear"
    )
    assert find_folder_kind(Path("x\0")) is None
    assert find_folder_kind(tmp_path / "fault.json") is None


def test_no_bundle_is_opened_that_is_something_else_as_well(tmp_path: Path) -> None:
    byoc.partition(parse(CHAIN), VANILLA, output=tmp_path / "b", strategy="all-supported")
    for name in ("program.json", "fault.json"):
        (tmp_path / "b" / name).write_text("{}")
        with pytest.raises(
            InputError, match=rf"holds manifest\.json and {name}, which are of two kinds"
        ):
            open_bundle(tmp_path / "b")
        (tmp_path / "b" / name).unlink()
    assert open_bundle(tmp_path / "b").variant.name == ""


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("/a/b/c/d/w", "../w"),
        ("/a/w", "/a/w"),  # four folders up
        ("/a/b/w", "../../../w"),
        ("/w", "/w"),
        ("/a/b/c/d/b/w", "w"),
        ("/a/b/c/d/b/e/w", "e/w"),
    ],
)
def test_a_file_is_named_from_the_bundle_where_it_is_near(source: str, named: str) -> None:
    assert originals.name_path(Path(source), Path("/a/b/c/d/b")) == named


def test_a_path_that_no_text_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"^--weights reference: '.*' is not UTF-8 text, so no bundle"):
        originals.name_path(Path(os.fsdecode(b"/a/\xff")), Path("/a/b"))

    def refuse(*_: object) -> None:
        raise ValueError("path is on mount 'D:', start on mount 'C:'")

    monkeypatch.setattr(os.path, "relpath", refuse)
    assert originals.name_path(Path("/a/w"), Path("/a/b")) == "/a/w"


def test_a_text_of_an_artifact_has_no_zero() -> None:
    assert _encode_text("é") == b"\x02\0\0\0\xc3\xa9\0"
    assert _encode_text("") == b"\0\0\0\0\0"
    with pytest.raises(InputError) as caught:
        _encode_text("a" * 41 + "\0")
    assert str(caught.value) == f"a text of an artifact has a zero byte: {'a' * 40!r}"


def test_a_report_is_read_as_it_was_written_or_its_mistakes_are_told() -> None:
    report = byoc.partition(parse(CHAIN), VANILLA).report
    data = report.to_json()
    assert Report.read(data) == report
    with pytest.raises(InputError, match=r"^not a report of byoc: .*model.*; .*extra"):
        Report.read({**{key: value for key, value in data.items() if key != "model"}, "extra": 1})


def test_a_small_constant_outside_of_a_model_is_embedded(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"....\x01\x02\x03")
    tensor = TensorProto(name="t", data_type=TensorProto.INT8, dims=[2])
    assert _embed(tensor, tmp_path) is tensor
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "data"), ("offset", "4"), ("length", "2")):
        tensor.external_data.add(key=key, value=value)
    made = _embed(tensor, tmp_path)
    assert numpy_helper.to_array(made).tolist() == [1, 2]
    assert (made.name, len(made.external_data)) == ("t", 0)
    assert made.data_location != TensorProto.EXTERNAL
    assert tensor.data_location == TensorProto.EXTERNAL  # the model's own is not changed


def test_a_bundle_shows_its_path_and_its_variant(tmp_path: Path, cut_once: Callable[..., Path]) -> None:
    path = cut_once(CHAIN, tmp_path / "b")
    bundle = open_bundle(path)
    assert repr(bundle) == f"Bundle({str(path)!r})"
    assert repr(bundle.choose("")) == f"Bundle({str(path)!r})"


def test_files_that_cannot_be_put_together_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "w").write_bytes(b"1")
    manifest = cast("Any", SimpleNamespace(files={}))
    for error, reason in ((OSError(errno.ENOSPC, "No space"), "No space"), (OSError("odd"), "odd")):

        def refuse(*_: object, error: OSError = error, **__: object) -> None:
            raise error

        monkeypatch.setattr(references, "place_file", refuse)
        with (
            pytest.raises(InputError, match=rf"^b: its files cannot be put into one folder: {reason}$"),
            references.open_whole_folder(tmp_path / "b", manifest, {"w": tmp_path / "w"}, Path("b")),
        ):
            pass


class Refusing:
    """Refuses each region, with the region's file gone where it says so."""

    name = "acme"
    gone = False

    def compile(self, region: Region, options: object) -> Artifact:
        if self.gone:
            region.path.unlink()
            return Artifact({"code": b""})
        raise CompileError("no room")


def test_a_codegen_that_removes_its_file_or_names_one_too_long_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    onnx.save(parse("g (float[4] x) => (float[4] y) { y = Relu(x) }"), tmp_path / "r.onnx")
    region = read_region(tmp_path / "r.onnx", "r", "dla")
    codegen = Refusing()
    for debug in ("", "1"):
        monkeypatch.setenv("BYOC_DEBUG", debug)
        with pytest.raises(RefusedError):
            compile_regions([region], RegionCompiler(codegen, {}), strict=False, jobs=1)
        assert ("Traceback" in capfd.readouterr().err) == bool(debug)
    monkeypatch.delenv("BYOC_DEBUG")
    for length in (200, 201):
        made = Artifact({"é" * 100 + "n" * (length - 200): b""})
        monkeypatch.setattr(codegen, "compile", lambda *_, made=made: made, raising=False)
        if length == 200:
            assert (
                compile_regions([region], RegionCompiler(codegen, {}), strict=True, jobs=1)[
                    "r"
                ].artifact.files
                == made.files
            )
            continue
        with pytest.raises(CompileError, match=r"the file name '\S{40}'\.\.\. is longer than 200 bytes"):
            compile_regions([region], RegionCompiler(codegen, {}), strict=True, jobs=1)
    monkeypatch.undo()
    codegen.gone = True
    with pytest.raises(CompileError, match=r"r: it changed the file it was handed, r\.onnx$"):
        compile_regions([region], RegionCompiler(codegen, {}), strict=True, jobs=1)


def info(name: str, *shape: int | str | None, ranked: bool = True) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape if ranked else None)


@pytest.mark.parametrize(
    ("one", "other", "contradict"),
    [
        (info("a", 1, 2), info("a", 1, 2), False),
        (info("a", 1, 2), info("a", 1, 3), True),
        (info("a", 3, 2), info("a", 1, 2), True),
        (info("a", "n", 2), info("a", 7, 2), False),
        (info("a", 7, 2), info("a", "n", 2), False),
        (info("a", 7, None), info("a", 8, 2), True),
        (info("a", 7), info("a", 7, 2), True),
        (info("a", 7, 2), info("a", 7), True),
        (info("a", "n"), info("a"), True),
        (info("a"), info("a", "n"), True),
        (info("a"), info("a"), False),
        (info("a", ranked=False), info("a", 7, 2), False),
    ],
)
def test_shapes_contradict_where_both_state_an_extent(one: Any, other: Any, contradict: bool) -> None:
    assert _contradict(one, other) is contradict


def test_a_node_for_a_context_keeps_what_is_said_of_its_region(tmp_path: Path) -> None:
    byoc.partition(parse(CHAIN), VANILLA, output=tmp_path / "b", strategy="all-supported")
    bundle = open_bundle(tmp_path / "b")
    proto, entries = bundle.model(), bundle.variant.regions
    contexts = {
        each.name: NodeContext(
            {"source": "acme", "notes": ""},
            tuple(value.name for value in each.inputs),
            tuple(value.name for value in each.outputs),
        )
        for each in entries
    }
    calls = {node.op_type: node for node in proto.graph.node if node.domain == "byoc.dla"}
    for number, call in enumerate(calls.values()):
        call.metadata_props.add(key="vendor.key", value=str(number))
        call.name = "named" if number else ""
    made = build_context_model(proto, entries, contexts)
    found = [node for node in made.graph.node if node.domain == "com.microsoft"]
    assert [node.name for node in found] == [entries[0].name, "named"]
    for node, call in zip(found, calls.values(), strict=True):
        assert list(node.metadata_props) == list(call.metadata_props)
        assert len(node.metadata_props) > 1
        assert (list(node.input), list(node.output)) == (list(call.input), list(call.output))
        said = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        assert (said["source"], said["main_context"]) == (b"acme", 1)
        assert said["onnx_model_filename"] == f"{call.op_type}.onnx".encode()
        assert said["notes"].startswith(b"region dla_")  # an empty text of the context says nothing


def test_types_are_stated_of_what_is_made_and_outputs_keep_theirs() -> None:
    graph = parse(
        "g (float[4] x) => (float[4] y, float[4] x) { b = Relu(x) a = Relu(b) y = Relu(a) }"
    ).graph
    graph.value_info.extend([info("gone", 1)])
    types = {name: info(name, 4) for name in ("x", "b", "a", "gone")} | {"y": info("y", 5)}
    _replace_types(graph, types)
    assert [each.name for each in graph.value_info] == ["a", "b"]
    extents = {each.name: each.type.tensor_type.shape.dim[0].dim_value for each in graph.output}
    assert extents == {"y": 5, "x": 4}
    graph.output[0].type.CopyFrom(info("y", "n").type)
    _replace_types(graph, types)
    assert graph.output[0].type.tensor_type.shape.dim[0].dim_param == "n"


def test_a_region_in_a_function_has_no_context() -> None:
    model = parse("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    entries = [SimpleNamespace(name=name, target="dla", outputs=()) for name in ("r1", "r2")]
    with pytest.raises(InputError) as caught:
        build_context_model(model, cast("list[RegionEntry]", entries), {"r1": NodeContext({}, (), ())})
    assert str(caught.value) == (
        "--emit epcontext: region r1 stands in a function, where none is written"
    )


@pytest.mark.parametrize(
    ("name", "packed"),
    [
        ("b.zip", True),
        ("b.byoc.ZIP", True),
        ("b.byoc", False),
        ("b", False),
        ("zip", False),
        ("b.zzz", False),
        ("b.zip.d", False),
        ("b.7z", False),
    ],
)
def test_a_name_that_ends_in_zip_asks_for_a_packed_bundle(name: str, packed: bool) -> None:
    assert is_packed_name(Path("x.zip") / name) is packed


@pytest.mark.parametrize(
    ("isolation", "trusted", "kept"),
    [
        (None, False, False),
        (None, True, False),
        (Isolation(), False, True),
        (Isolation(), True, True),  # was asked for whoever made it
        (UNLESS_TRUSTED, False, True),
        (UNLESS_TRUSTED, True, False),
    ],
)
def test_codegens_run_in_processes_unless_the_maker_is_trusted(
    isolation: Isolation | None, trusted: bool, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "judge_trust", lambda _: Trust(trusted, ""))
    bundle = reading.Bundle(Path("b"), cast("Any", None))
    found = reading._choose_processes(bundle, isolation).codegens.isolation
    assert found == (isolation if kept else None)


def test_a_target_is_told_with_its_generation_and_a_model_with_its_variant() -> None:
    report = byoc.partition(parse(CHAIN), VANILLA).report
    told = report.model_copy(update={"generations": {"a": "2"}, "variant": "long"})
    assert (told.name_target("a"), told.name_target("b")) == ("a (2)", "b")
    assert (told.display_name, report.display_name) == (f"{report.model}, long", report.model)


def defaults(kind: Any) -> dict[str, Any]:
    """Return the fields that may be left out, with what they then are."""
    return {
        name: field.get_default(call_default_factory=True)
        for name, field in kind.model_fields.items()
        if not field.is_required()
    }


def test_what_a_report_does_not_say_is_nothing() -> None:
    assert defaults(VerificationReport) == {
        "samples": 1,
        "judge": None,
        "reach": None,
        "notes": (),
        "tie_breaks": (),
        "layers_not_compared": "",
        "cached": False,
    }
    assert defaults(PredictedCosts) == {"estimated": 0.0, "measure": "total"}
    for kind in (
        *(Report, RegionReport, RefusalReport, HostReason, EstimateReport, PrecisionReport),
        *(TensorErrorReport, ReachReport),
    ):
        assert not any(defaults(kind).values())
    assert Report.model_fields["verification_missing"].default is False
    assert RefusalReport.model_fields["failed"].default is False
    assert ReachReport.model_fields["too_large"].default == 0
    candidate = TrialCandidate("s")
    assert (candidate.regions, candidate.samples, candidate.problem) == (0, 0, "")


def test_a_weight_that_moves_keeps_what_is_said_of_it(tmp_path: Path) -> None:
    tensor = numpy_helper.from_array(np.arange(4000, dtype=np.float32), "w")
    tensor.doc_string = "for people"
    tensor.metadata_props.add(key="k", value="v")
    with WeightFile(tmp_path) as weights:
        moved = weights.add(tensor, None)
    assert (moved.name, moved.doc_string, list(moved.dims)) == ("w", "for people", [4000])
    assert [(each.key, each.value) for each in moved.metadata_props] == [("k", "v")]
    places = {each.key: each.value for each in moved.external_data}
    assert places == {"location": "weights.bin", "offset": "0", "length": "16000"}


@pytest.mark.parametrize("op", ["Constant", "Constants", "Keep", "Alpha"])
def test_only_a_constant_nodes_value_becomes_a_weight(op: str, tmp_path: Path) -> None:
    value = numpy_helper.from_array(np.arange(4000, dtype=np.float32), "inner")
    node = helper.make_node(op, [], ["c"], domain="" if op == "Constant" else "acme", value=value)
    graph = helper.make_graph([node], "g", [], [info("c", 4000)])
    with WeightFile(tmp_path) as weights:
        moved = move_weights(helper.make_model(graph), None, weights).graph
    assert (len(moved.node), len(moved.initializer)) == ((0, 1) if op == "Constant" else (1, 0))
