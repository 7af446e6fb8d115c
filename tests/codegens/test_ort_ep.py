"""The codegen `ort_ep`: providers of others, asked what they take, held to onnxruntime."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from byoc.codegens.ort_ep.region_compiler import parse_settings
from compiling import compiled, model, refusal, region, same, with_composite
from helpers.cutting import original, ramp
from helpers.plugin_providers import build_small_provider

import byoc
from byoc.codegen import (
    Artifact,
    CompileError,
    ContextSource,
    Executable,
    Keyed,
    Oracle,
    Stamped,
    find_codegen,
)
from byoc.errors import InputError, MissingRuntimeError

TAKEN = "g (float[2,3] x) => (float[2,3] y) { a = Relu(x) y = Neg(a) }"
PARTLY = "g (float[2,3] x) => (float[2,3] y) { p = Relu(x) q = Sin(p) r = Neg(q) y = Cos(r) }"


def small(**more: str) -> dict[str, str]:
    """Return options that name the provider of the tests, which takes Relu and Neg."""
    return {"library": str(build_small_provider()), **more}


def parsed(**given: str) -> Any:
    """Return options of the codegen."""
    return byoc.codegen.parse_codegen_options(find_codegen("ort_ep"), given)


def test_it_runs_can_be_asked_and_makes_contexts() -> None:
    found = find_codegen("ort_ep")

    for ability in (Executable, Oracle, Stamped, Keyed, ContextSource):
        assert isinstance(found, ability)


def test_a_region_that_the_provider_takes_runs_on_it(tmp_path: Path) -> None:
    proto, inputs = model(TAKEN), {"x": ramp(2, 3)}
    _, artifact, run = compiled(proto, tmp_path, "ort_ep", **small())

    same(run(inputs), original(proto, inputs))
    assert not artifact.files  # this provider writes no contexts
    assert "the provider writes no context" in artifact.metadata["note"]
    assert artifact.metadata["provider_version"] == "1.0.0"


def test_no_context_is_wanted(tmp_path: Path) -> None:
    _, artifact, _ = compiled(model(TAKEN), tmp_path, "ort_ep", **small(context="false"))

    assert "note" not in artifact.metadata


def test_nodes_that_it_leaves_to_onnxruntime_are_named(tmp_path: Path) -> None:
    error = refusal(region(model(PARTLY), tmp_path), "ort_ep", **small())

    assert error.nodes == ("q", "y")
    assert str(error) == "the provider leaves Sin to onnxruntime, 'q' and 1 more"


def test_what_another_provider_left_is_found_when_it_is_loaded(tmp_path: Path) -> None:
    _, artifact, _ = compiled(model(TAKEN), tmp_path, "ort_ep", **small())
    found: Any = find_codegen("ort_ep")

    with pytest.raises(CompileError) as caught:
        found.load(region(model(PARTLY), tmp_path), artifact)
    assert caught.value.nodes == ("q", "y")


def test_nodes_of_composites_are_named_as_they_are_inlined(tmp_path: Path) -> None:
    error = refusal(region(with_composite(), tmp_path), "ort_ep", **small())

    made = byoc.codegen.resolve_node_names(region(with_composite(), tmp_path), error.nodes)
    assert made == ("y",)


def test_the_oracle_says_it_of_each_node() -> None:
    found: Any = find_codegen("ort_ep")
    verdicts = found.check(model(PARTLY), parsed(**small()))
    (composite,) = found.check(with_composite(), parsed(**small()))

    assert [bool(verdict) for verdict in verdicts] == [True, False, True, False]
    assert str(verdicts[1]) == "the provider leaves Sin to onnxruntime"
    assert str(composite) == "the provider leaves Conv to onnxruntime"


def test_nodes_of_constants_may_run_anywhere(tmp_path: Path) -> None:
    text = "g (float[2,3] x) => (float[2,3] y) { s = Sin(many) y = Relu(x) z = Shape(s) }"
    found: Any = find_codegen("ort_ep")

    assert all(found.check(model(text), parsed(**small())))


def test_an_operator_that_onnxruntime_does_not_know_is_refused_alone() -> None:
    text = "g (float[2] x) => (float[2] y) { a = Relu(x) y = org.acme.Strange(a) }"
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21, "org.acme" : 1]>\n{text}')
    found: Any = find_codegen("ort_ep")
    known, strange = found.check(proto, parsed(**small()))

    assert known
    assert "Strange" in str(strange)


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("fails", "the provider does not compile it: the small provider is out of Neg"),
        ("crashes", "the provider does not compile it: its process ended with SIGABRT"),
    ],
)
def test_where_it_fails_each_node_is_tried_alone(
    behaviour: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMALL_PROVIDER", behaviour)
    error = refusal(region(model(TAKEN), tmp_path), "ort_ep", **small())

    assert str(error) == reason
    assert error.nodes == ("y",)


def test_a_compiler_that_takes_too_long_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMALL_PROVIDER", "waits")
    error = refusal(region(model(TAKEN), tmp_path), "ort_ep", **small(timeout="1"))

    assert str(error) == "the provider took longer than 1 s and was stopped"
    assert not error.lasting


def test_a_provider_that_never_works_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMALL_PROVIDER", "broken")
    found: Any = find_codegen("ort_ep")

    with pytest.raises(MissingRuntimeError, match=r"does not work: the small provider has no licence$"):
        found.compile(region(model(TAKEN), tmp_path), parsed(**small()))


def wrong_library(name: str, folder: Path) -> tuple[dict[str, str], str]:
    """Return options that name no usable provider, and how the sentence ends."""
    (folder / "acme.so").write_text("no library", encoding="utf-8")
    path = build_small_provider()
    return {
        "no library": (
            {},
            "or of a shared library's file, or $BYOC_ORT_EP",
        ),
        "no file": (
            {"library": str(folder / "none.so")},
            f"the provider's library {folder / 'none.so'} is not there",
        ),
        "no package": (
            {"library": "acme_ep"},
            "the provider's library acme_ep is not there: neither a file nor an installed package",
        ),
        "another package": (
            {"library": "json"},
            "the package json names no provider's library: "
            "module 'json' has no attribute 'get_library_path'",
        ),
        "no shared library": (
            {"library": str(folder / "acme.so")},
            "onnxruntime cannot register it: Failed to load library",
        ),
        "no such device": (
            {"library": str(path), "device": "npu"},
            f"{path}: its provider has no device of type npu here, only of: cpu",
        ),
    }[name]


@pytest.mark.parametrize(
    "name",
    ["no library", "no file", "no package", "another package", "no shared library", "no such device"],
)
def test_what_names_no_provider_is_one_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BYOC_ORT_EP", raising=False)
    given, sentence = wrong_library(name, tmp_path)
    found: Any = find_codegen("ort_ep")

    with pytest.raises(MissingRuntimeError) as caught:
        found.compile(region(model(TAKEN), tmp_path), parsed(**given))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


FRESH = """
import sys
from byoc.codegens.ort_ep.provider_session import PluginProvider, ProviderError, find_device
try:
    print(find_device(PluginProvider(sys.argv[1], "small", sys.argv[2], "", {})).ep_name)
except ProviderError as error:
    print(error)
"""


def ask_fresh(name: str, folder: Path, **environment: str) -> str:
    """Return what a fresh process finds of a provider in a copy of the library, or the error."""
    library = Path(shutil.copy(build_small_provider(), folder / "libother.so"))
    ran = subprocess.run(
        [sys.executable, "-c", FRESH, str(library), name],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return ran.stdout.strip().replace(str(library), "LIBRARY")


def test_a_provider_may_be_called_as_it_is_registered(tmp_path: Path) -> None:
    assert ask_fresh("", tmp_path) == "small"
    assert ask_fresh("Acme", tmp_path) == "Acme"


def test_a_provider_without_a_device_here(tmp_path: Path) -> None:
    found = ask_fresh("", tmp_path, SMALL_PROVIDER="absent")

    assert found.startswith(
        "LIBRARY: its provider lists no device on this machine, of which onnxruntime sees: cpu ("
    )


def test_an_older_onnxruntime_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxruntime.__version__", "1.24.2")
    found: Any = find_codegen("ort_ep")

    with pytest.raises(MissingRuntimeError) as caught:
        found.check(model(TAKEN), parsed(**small()))
    assert str(caught.value) == (
        "onnxruntime 1.24.2 is too old for codegen ort_ep, which takes 1.24.3 or later "
        "(pip install -U onnxruntime)"
    )


def test_a_provider_of_another_name(tmp_path: Path) -> None:
    found = ask_fresh("Acme", tmp_path, SMALL_PROVIDER="named")

    assert found == "LIBRARY has no provider Acme, but Small"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("device_type=CPU", {"device_type": "CPU"}),
        (
            ' a=1  b=x=y "path=/some where/lib.so" c=',
            {"a": "1", "b": "x=y", "path": "/some where/lib.so", "c": ""},
        ),
        ("""load='{"CPU": {"A": "NO"}}'""", {"load": '{"CPU": {"A": "NO"}}'}),
    ],
)
def test_settings_are_read(text: str, found: dict[str, str]) -> None:
    assert parse_settings(text) == found


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"settings": "device_type"}, "settings has 'device_type', which is not NAME=VALUE"),
        ({"settings": "a=1 =2"}, "settings has '=2', which is not NAME=VALUE"),
        ({"settings": 'a=1 "b=2'}, "settings cannot be read: No closing quotation"),
        ({"settings": "a=1 a=2"}, "settings has a twice"),
        ({"timeout": "0"}, "timeout is 0 s, but must be more than 0"),
    ],
)
def test_wrong_options_are_one_sentence(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        parsed(**given)
    assert str(caught.value) == f"codegen ort_ep refuses its options: {sentence}"


def test_rule_files_cannot_name_a_library() -> None:
    wrong = byoc.codegen.find_wrong_options(
        find_codegen("ort_ep"), {"library": "x", "settings": "a=b", "device": "npu"}
    )

    assert set(wrong) == {"library", "settings"}


def test_a_bundle_names_the_library_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BYOC_ORT_EP", raising=False)
    path, bundle = tmp_path / "net.onnx", tmp_path / "b"
    onnx.save(model(PARTLY), path)
    result = byoc.partition(
        path, "ort-ep", output=bundle, strategy="all-supported", codegen_options=small()
    )

    assert result.verification.passed
    assert len(result.report.regions) == 2
    assert {each.nodes for each in result.report.refusals} == {("q", "y")}
    inputs = {"x": ramp(2, 3)}
    same(byoc.load(bundle)(inputs), original(model(PARTLY), inputs))


def test_the_environment_goes_before_what_a_bundle_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, artifact, _ = compiled(model(TAKEN), tmp_path, "ort_ep", **small())
    moved = replace(artifact, metadata={**artifact.metadata, "library": str(tmp_path / "gone.so")})
    found: Any = find_codegen("ort_ep")

    with pytest.raises(MissingRuntimeError, match=r"gone\.so is not there$"):
        found.load(made, moved)
    monkeypatch.setenv("BYOC_ORT_EP", str(build_small_provider()))
    same(found.load(made, moved)({"x": ramp(2, 3)}), original(model(TAKEN), {"x": ramp(2, 3)}))


def test_an_artifact_of_something_else_is_refused(tmp_path: Path) -> None:
    found: Any = find_codegen("ort_ep")

    with pytest.raises(InputError, match="its metadata is not of codegen ort_ep"):
        found.load(region(model(TAKEN), tmp_path), Artifact({}, {"library": "x"}))
