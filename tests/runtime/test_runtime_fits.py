"""Whether a bundle fits a machine is answered as loading answers it; of alternatives one is loaded."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
from byoc.codegens.openvino import OpenVINO
from helpers import vendors
from helpers.cutting import CHAIN, DEVICE_ONLY, cut, ramp
from helpers.support import Ran, parse

import byoc
from byoc.bundle import list_models, pack_folder
from byoc.codegen import (
    YES,
    Artifact,
    Codegens,
    Executor,
    Fit,
    InputError,
    Isolation,
    NotHereError,
    Region,
    refuse,
)
from byoc.onnxrt import get_session_settings
from byoc.runtime import NoneFitsError, RegionFailedError, RegionNotHereError, VariantSession
from byoc.support import format_options, list_installed

# Machines that are simulated: two accelerators, each with a driver of a version, or without one.


class Npu(vendors.Tables):
    """Runs by a driver: `driver` is the version on this machine, `chip` the device that is here."""

    name = "npu_tables"
    driver: ClassVar[str] = "2"
    chip: ClassVar[str] = "v73"
    seen: ClassVar[list[tuple[str, int]]] = []

    def compile(self, region: Region, options: Mapping[str, str]) -> Artifact:
        made = super().compile(region, {})
        return Artifact(made.files, {**made.metadata, "driver": "2", "chip": "v73", "threads": "1"})

    def find_fit(self, files: Sequence[str], metadata: Mapping[str, str]) -> Fit:
        assert set(files) == {"code.json", "empty.bin"}
        needed, here = metadata["driver"], self.driver
        if not here:
            return Fit("", refuse("its driver is not installed"))
        fit = f"{self.name} {here}"
        if here < needed:
            return Fit(fit, refuse(f"it needs driver {needed} or later, and this is {here}"))
        if metadata["chip"] != self.chip:
            return Fit(fit, refuse(f"it is for {metadata['chip']}, and this is {self.chip}"))
        return Fit(fit, YES, f"driver {needed} or later", metadata["chip"], 4096)

    def load(self, region: Region, artifact: Artifact) -> Executor:
        assert self.driver >= artifact.metadata["driver"], "a driver that is too old would crash"
        assert self.chip == artifact.metadata["chip"]
        self.seen.append((artifact.metadata["threads"], get_session_settings()[2]))
        return super().load(region, artifact)


class Pc(Npu):
    """Another accelerator, slower by prediction."""

    name = "pc_tables"


class Unsure(vendors.Tables):
    """Does not say what it needs; loading tells."""

    name = "pc_tables"

    def load(self, *_: Any) -> Any:
        raise NotHereError("there is no card")


MODEL = "g (float[n, 4] x) => (float[n, 4] y) { a = Add(x, x) y = Relu(a) }"


def install(patch: pytest.MonkeyPatch, npu: type, pc: type | None) -> None:
    vendors.install(patch, npu_tables=npu, **({} if pc is None else {"pc_tables": pc}))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a bundle for two accelerators at two sizes."""
    folder = tmp_path_factory.mktemp("fits")
    shutil.copy(Path(vendors.__file__).with_name("vanilla.yaml"), folder / "npu.yaml")
    slow = "extends: npu.yaml\ntarget: pc\ncost_model: slow.yaml\n"
    (folder / "pc.yaml").write_text(slow)
    (folder / "slow.yaml").write_text("extends: dla\nname: slow\nlaunch: 1.0\n")
    rules = {"npu": str(folder / "npu.yaml"), "pc": str(folder / "pc.yaml")}
    variants = {f"{name}_{n}": {"rules": file, "n": n} for name, file in rules.items() for n in (1, 2)}
    with pytest.MonkeyPatch.context() as patch:
        install(patch, Npu, Pc)
        byoc.partition(
            parse(MODEL),
            variants=variants,
            codegen={"dla": "npu_tables", "pc": "pc_tables"},
            strategy="all-supported",
            output=folder / "b",
        )
    yield folder / "b"


NPUS = {
    "here": {},
    "missing": {"driver": ""},
    "older": {"driver": "1"},
    "foreign": {"chip": "v75"},
}
PCS: dict[str, type | None] = {
    "here": Pc,
    "missing": type("MissingPc", (Pc,), {"driver": ""}),
    "not installed": None,
}
MACHINES = list(product(NPUS, PCS))


@pytest.fixture
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    npu, pc = request.param
    install(monkeypatch, type("SimulatedNpu", (Npu,), NPUS[npu]), PCS[pc])
    found: tuple[str, str] = request.param
    return found


def try_to_load(path: Path, **options: Any) -> str:
    """Return why a bundle is not loaded, empty where it is and computes what its model does."""
    try:
        session = byoc.load(path, isolate=False, **options)
    except InputError as error:
        return str(error)
    x = ramp(1, 4)
    if "variant" not in options or options["variant"].endswith("1"):
        np.testing.assert_array_equal(session({"x": x})["y"], np.maximum(2 * x, 0))
    return ""


@pytest.mark.parametrize("machine", MACHINES, indirect=True, ids="-".join)
def test_what_fits_is_what_loads(machine: tuple[str, str], made: Path) -> None:
    found = byoc.find_fitting(made)
    for variant in found.variants:
        why = try_to_load(made, variant=variant.name)
        assert bool(variant.verdict) == (why == ""), (variant, why)
        (region,) = variant.regions
        assert variant.verdict or str(region.fit.verdict) in why
    assert bool(found) == (try_to_load(made) == "")
    assert [bool(each.verdict) for each in found.variants] == [
        *[machine[0] == "here"] * 2,
        *[machine[1] == "here"] * 2,
    ]


@pytest.mark.parametrize("machine", MACHINES, indirect=True, ids="-".join)
@pytest.mark.parametrize("prefer", [(), ("pc_tables",), ("pc_1", "dla"), "npu_2"], ids=str)
def test_what_loads_is_what_was_said(
    prefer: Sequence[str] | str, machine: tuple[str, str], made: Path
) -> None:
    found = byoc.find_fitting(made, prefer)
    if found.choice is None:
        with pytest.raises(
            InputError, match=r"none of its variants runs on this machine: npu_1: "
        ) as told:
            byoc.load(made, isolate=False, prefer=prefer)
        assert len(told.value.lines) == 1
        with pytest.warns(RuntimeWarning, match="runs on the host"):
            session = byoc.load(made, isolate=False, prefer=prefer, fallback="host")
        assert len(session.fallbacks) == 2
    else:
        session = byoc.load(made, isolate=False, prefer=prefer)
        assert session.choice == found.choice
        assert session.choice.reasons.keys() == {"npu_1", "npu_2", "pc_1", "pc_2"}
        assert not session.fallbacks
    assert isinstance(session, VariantSession)
    assert tuple(session.sessions) == session.choice.chosen
    for n in (1, 2):  # each size is served by one of the two
        x = ramp(n, 4)
        np.testing.assert_array_equal(session({"x": x})["y"], np.maximum(2 * x, 0))


@pytest.fixture(scope="module")
def packaged(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a package of three models for the same accelerators at the same sizes."""
    path = tmp_path_factory.mktemp("packaged") / "p"
    with pytest.MonkeyPatch.context() as patch:
        install(patch, Npu, Pc)
        byoc.package(
            {name: parse(MODEL) for name in ("detector", "recognizer", "classifier")},
            output=path,
            devices={name: str(made.with_name(f"{name}.yaml")) for name in ("npu", "pc")},
            variants={"n1": {"n": 1}, "n2": {"n": 2}},
            codegen={"dla": "npu_tables", "pc": "pc_tables"},
            strategy="all-supported",
        )
    return path


@pytest.mark.parametrize("machine", MACHINES, indirect=True, ids="-".join)
def test_each_model_of_a_package_is_chosen_for_as_a_bundle(
    machine: tuple[str, str], made: Path, packaged: Path
) -> None:
    expected = byoc.find_fitting(made).choice
    for model in list_models(packaged):
        found = byoc.find_fitting(model).choice
        if expected is None:
            assert found is None
            assert try_to_load(model).startswith(f"{model}: none of its variants runs on this machine")
            continue
        assert found is not None
        assert found.chosen == tuple(name.replace("_", "_n") for name in expected.chosen)
        assert byoc.load(model, isolate=False).choice == found
        assert try_to_load(model) == ""


def choose(made: Path, monkeypatch: pytest.MonkeyPatch, pc: type = Pc, **options: Any) -> Any:
    install(monkeypatch, Npu, pc)
    return byoc.load(made, isolate=False, **options).choice.chosen


def test_prefer_comes_before_the_prediction(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose(made, monkeypatch) == ("npu_1", "npu_2")
    assert choose(made, monkeypatch, prefer=["pc"]) == ("pc_1", "pc_2")
    assert choose(made, monkeypatch, prefer=["pc_2"]) == ("npu_1", "pc_2")
    with pytest.raises(
        InputError, match=r"b: prefer: no variant, target or codegen 'pcs' \(did you mean"
    ):
        byoc.find_fitting(made, ["pcs"])
    with pytest.raises(InputError, match="variant pc_1 is named, so that there is nothing to prefer"):
        byoc.load(made, variant="pc_1", prefer=["pc"])


def test_a_codegen_that_does_not_say_is_tried(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose(made, monkeypatch, Unsure, prefer=["pc"]) == ("npu_1", "npu_2")
    found = byoc.find_fitting(made, ["pc"])
    assert found.variants[2].regions[0].fit.unknown == "codegen pc_tables does not say what it needs"
    reasons = byoc.load(made, isolate=False, prefer=["pc"]).choice.reasons
    assert "there is no card" in reasons["pc_1"]
    assert reasons["npu_1"].startswith("it fits, predicted ")


def test_codegens_that_may_not_be_used_are_not_chosen(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert choose(made, monkeypatch, codegens="pc_tables") == ("pc_1", "pc_2")


def test_native_code_of_a_stranger_is_not_chosen(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, type("Native", (Npu,), {"native": True}), Pc)
    assert byoc.find_fitting(made).choice == byoc.load(made, isolate=False).choice  # made here
    theirs = tmp_path / "theirs"
    shutil.copytree(made, theirs)
    (theirs / "signature.json").unlink()
    files = [each.relative_to(theirs).as_posix() for each in theirs.rglob("*") if each.is_file()]
    pack_folder(theirs, sorted({*files} - {"manifest.json"}), tmp_path / "theirs.zip")
    for bundle in (theirs, tmp_path / "theirs.zip"):
        with monkeypatch.context() as patch:
            patch.setattr("byoc.support.trust._WRITTEN", set())
            found = byoc.find_fitting(bundle, ["npu_1"])
            assert found.choice is not None
            assert found.choice.chosen == ("pc_1", "pc_2")
            assert "native code for codegen npu_tables, and not loaded" in str(found.variants[0].verdict)
            for fallback in (None, "host"):
                loaded = byoc.load(bundle, isolate=False, prefer=["npu_1"], fallback=fallback)
                assert loaded.choice == found.choice
                assert not loaded.fallbacks
            with pytest.raises(NoneFitsError, match="but only these may be used") as caught:
                byoc.load(bundle, isolate=False, codegens=["npu_tables"], fallback="host")
            assert not caught.value.may_fall_back
            trusted = byoc.find_fitting(bundle, trust=True).choice
            assert trusted == byoc.load(bundle, isolate=False, trust=True).choice
            assert trusted is not None
            assert trusted.chosen == ("npu_1", "npu_2")


def test_a_name_of_a_variant_means_that_one(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, Npu, Pc)
    rules = {"pc": made.with_name("npu.yaml"), "host": made.with_name("pc.yaml")}
    byoc.partition(
        parse(MODEL),
        variants={name: {"rules": str(file)} for name, file in rules.items()},
        codegen={"dla": "npu_tables", "pc": "pc_tables"},
        strategy="all-supported",
        output=tmp_path / "b",
    )
    for prefer, chosen in (("pc", "pc"), ("host", "host"), ("pc_tables", "host"), ("dla", "pc")):
        found = byoc.find_fitting(tmp_path / "b", prefer)
        assert found.choice is not None
        assert found.choice.chosen == (chosen,)


def test_what_fails_is_left_out_with_a_fallback(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("the driver is confused")

    install(monkeypatch, type("Failing", (Npu,), {"load": fail}), Pc)
    with pytest.raises(RegionFailedError, match="the driver is confused"):
        byoc.load(made, isolate=False)
    loaded = byoc.load(made, isolate=False, fallback="host")
    assert loaded.choice.chosen == ("pc_1", "pc_2")
    assert "the driver is confused" in loaded.choice.reasons["npu_1"]


@pytest.mark.parametrize(
    "options",
    [
        *({"prefer": wrong} for wrong in (None, 1, [1], [None], b"pc", {"pc": 1}, True)),
        *({"options": wrong} for wrong in (None, [("threads", 2)], "threads=2", 3)),
        *({"variant": wrong} for wrong in (1, ["pc_1"], b"pc_1")),
        *({"trust": wrong} for wrong in ("no", 1, None)),
        *({"codegens": wrong} for wrong in (1, [1], b"dla")),
    ],
    ids=str,
)
def test_values_of_other_types_are_one_sentence(
    options: Mapping[str, Any], made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, Npu, Pc)
    ((name, value),) = options.items()
    asked = [byoc.load, *([byoc.find_fitting] if name in {"prefer", "trust"} else [])]
    for ask in asked:
        with pytest.raises(InputError, match=rf"{name}: ") as caught:
            ask(made, **options)
        assert repr(value) in str(caught.value)
        assert len(caught.value.lines) == 1


def test_asking_reads_the_manifest_alone(made: Path, tmp_path: Path, monkeypatch: Any) -> None:
    install(monkeypatch, Npu, Pc)
    whole = byoc.find_fitting(made)
    (tmp_path / "b").mkdir()
    shutil.copy(made / "manifest.json", tmp_path / "b")
    assert byoc.find_fitting(tmp_path / "b").variants == whole.variants
    region = whole.variants[0].regions[0].fit
    assert (region.driver, region.accepts) == ("npu_tables 2", "driver 2 or later")
    assert (region.machine, region.memory) == ("v73", 4096)
    for wrong in ("manifest.json", "none"):
        with pytest.raises(InputError, match=r"bundle"):
            byoc.find_fitting(tmp_path / "b" / wrong)


# Options that are given when a bundle is loaded.


@pytest.fixture
def opened(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the bundle on a machine whose codegens take `threads` at load."""

    @dataclass(frozen=True)
    class Options:
        threads: int = field(default=1, metadata={"at_load": True})
        level: int = 2

    @dataclass(frozen=True)
    class More(Options):
        depth: int = field(default=1, metadata={"at_load": True})

    install(monkeypatch, type("N", (Npu,), {"Options": Options}), type("P", (Pc,), {"Options": More}))
    Npu.seen.clear()
    return made


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({}, ("1", 0)),
        ({"threads": 3}, ("3", 3)),
        ({"npu_tables:threads": 3}, ("3", 0)),
        ({"dla:threads": "4", "host:threads": "2"}, ("4", 2)),
        ({"pc:threads": 3}, ("1", 0)),  # of what is not loaded
        ({"depth": 3, "pc_tables:depth": 4}, ("1", 0)),
    ],
)
def test_options_reach_the_artifact_and_the_host(
    options: Mapping[str, Any], seen: tuple[str, int], opened: Path
) -> None:
    byoc.load(opened, isolate=False, options=options)
    assert set(Npu.seen) == {seen}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"level": 3},
            "option level: nothing takes it at load; taken are host:threads, npu_tables:threads, "
            "pc_tables:threads, pc_tables:depth",
        ),
        ({"pc:level": 3}, "option pc:level: nothing takes it at load"),
        ({"dla:depth": 3}, "option dla:depth: nothing takes it at load"),
        ({"threads": 10**30}, "must be a whole number up to 99999"),
        ({"dla:level": 3}, "option dla:level: nothing takes it at load"),
        ({"host:level": 3}, "option host:level: nothing takes it at load"),
        (
            {"npus:threads": 3},
            r"option npus:threads: no such target or codegen.*; there are host, dla, ",
        ),
        (
            {"dla:threads": "many"},
            "codegen npu_tables takes as option 'threads' a whole number, not 'many'",
        ),
        ({"host:threads": -1}, "option host:threads is -1, and must be a whole number"),
    ],
)
def test_an_option_that_nothing_takes_is_one_sentence(
    options: Mapping[str, Any], told: str, opened: Path
) -> None:
    with pytest.raises(InputError, match=told) as caught:
        byoc.load(opened, isolate=False, options=options)
    assert len(caught.value.lines) == 1
    assert str(opened) in str(caught.value)


def test_options_of_codegens_that_are_missing_do_not_end_a_load(
    opened: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"depth": 3, "pc_tables:anything": 4, "threads": 2}
    vendors.install(monkeypatch, npu_tables=Npu)
    assert byoc.load(opened, isolate=False, options=options).choice.chosen == ("npu_1", "npu_2")
    vendors.install(monkeypatch)
    with pytest.warns(RuntimeWarning, match="runs on the host"):
        loaded = byoc.load(opened, isolate=False, options=options, fallback="host")
    x = ramp(1, 4)
    np.testing.assert_array_equal(loaded({"x": x})["y"], np.maximum(2 * x, 0))
    with pytest.raises(NoneFitsError, match="codegen 'pc_tables' of"):
        byoc.load(opened, isolate=False, options=options)


# The codegens that come along: what they say is what loading does, also without their libraries.

CODEGENS = {
    "reference": ("onnxruntime",),
    "dla": (),
    "c": (),
    "openvino": ("openvino",),
    "iree": ("iree.runtime",),
    "tvm": ("tvm",),
}


@pytest.mark.parametrize("name", CODEGENS)
def test_codegens_that_come_along(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        cut(parse(DEVICE_ONLY), tmp_path / "b", codegen=name, verify=False)
    except byoc.MissingRuntimeError as error:
        pytest.skip(str(error))
    (variant,) = byoc.find_fitting(tmp_path / "b").variants
    (region,) = variant.regions
    assert (bool(variant.verdict), region.fit.again, region.fit.unknown) == (True, "", "")
    assert region.fit.driver
    x = ramp(1, 4)
    np.testing.assert_allclose(byoc.load(tmp_path / "b")({"x": x})["y"], np.maximum(2 * x, 0))
    for module in CODEGENS[name]:
        monkeypatch.setitem(sys.modules, module, None)
    (variant,) = byoc.find_fitting(tmp_path / "b").variants
    assert bool(variant.verdict) == (not CODEGENS[name])
    if CODEGENS[name]:
        with pytest.raises(byoc.MissingRuntimeError) as caught:
            byoc.load(tmp_path / "b")
        assert str(caught.value) == str(variant.regions[0].fit.verdict)


MARKS = {
    "dla": {"isa": "0"},
    "c": {"machine": "pdp11"},
    "openvino": {"openvino": "2020.1-x"},
    "iree": {"iree": "3.0"},
    "tvm": {"tvm": "0.1"},
}


@pytest.mark.parametrize("name", MARKS)
def test_an_artifact_of_another_version_is_said_to_be_compiled_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        cut(parse(DEVICE_ONLY), tmp_path / "b", codegen=name, verify=False, sign=False)
    except byoc.MissingRuntimeError as error:
        pytest.skip(str(error))
    content = json.loads((tmp_path / "b/manifest.json").read_text())
    metadata = content["variants"][0]["regions"][0]["artifact_metadata"]
    assert MARKS[name].keys() <= metadata.keys()
    metadata.update(MARKS[name])
    (tmp_path / "b/manifest.json").write_text(json.dumps(content))
    (variant,) = byoc.find_fitting(tmp_path / "b").variants
    assert next(iter(MARKS[name].values())) in variant.regions[0].fit.again
    x = ramp(1, 4)
    session = byoc.load(tmp_path / "b", trust=True, isolate=False)
    np.testing.assert_allclose(session({"x": x})["y"], np.maximum(2 * x, 0))
    if name == "c":
        monkeypatch.setenv("BYOC_CC", "no-such-compiler")
        (variant,) = byoc.find_fitting(tmp_path / "b").variants
        assert "no C compiler 'no-such-compiler'" in str(variant.verdict)
        with pytest.raises(RegionNotHereError, match="no C compiler 'no-such-compiler'"):
            byoc.load(tmp_path / "b", trust=True, isolate=False)


@pytest.mark.parametrize("made_by", ["reference", "c"])
@pytest.mark.parametrize("name", sorted(list_installed("byoc.codegens")))
def test_an_artifact_of_another_codegen_is_one_sentence(name: str, made_by: str, tmp_path: Path) -> None:
    cut(parse(DEVICE_ONLY), tmp_path / "b", codegen=made_by, verify=False, sign=False)
    content = json.loads((tmp_path / "b/manifest.json").read_text())
    content["variants"][0]["regions"][0]["codegen"] = name
    (tmp_path / "b/manifest.json").write_text(json.dumps(content))
    (variant,) = byoc.find_fitting(tmp_path / "b").variants
    told = str(variant.verdict)
    try:
        byoc.load(tmp_path / "b", trust=True, isolate=False)
    except byoc.ByocError as error:  # what compiles a region again from its ONNX loads it
        assert not variant.verdict  # asking and loading agree
        told += str(error)
        if isinstance(error, RegionFailedError):
            assert not error.defect
    assert "failed with" not in told


def test_the_verbs_say_it(tmp_path: Path, byoc: Any) -> None:
    onnx.save(parse(CHAIN), tmp_path / "m.onnx")
    given = [
        "--variant",
        "a:rules=openvino-cpu",
        "--variant",
        "b:rules=dla",
        "-o",
        tmp_path / "m.byoc.zip",
    ]
    ran: Ran = byoc(
        "partition", tmp_path / "m.onnx", "--no-verify", *given, "--strategy", "all-supported"
    )
    assert ran.code in (0, 4), ran.err
    ran = byoc("inspect", tmp_path / "m.byoc.zip", "--fits")
    assert (ran.code, ran.err) == (0, "")
    assert "variant b (predicted " in ran.out
    assert "simulator of dla" in ran.out
    ran = byoc("inspect", tmp_path / "m.byoc.zip", "--fits", "--format", "json")
    document = json.loads(ran.out)
    assert document["fits"] is True
    assert [each["name"] for each in document["variants"]] == ["a", "b"]
    run = ["run", tmp_path / "m.byoc.zip", "--inputs", "random"]
    ran = byoc(*run, "--prefer", "dla", "--load-option", "threads=1")
    assert ran.code == 0, ran.err
    assert "variant b was chosen: it fits, preferred as dla" in ran.out
    ran = byoc(*run, "--prefer", "dla", "--load-option", "dla:clock=1")
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert "option dla:clock: nothing takes it at load" in ran.err
    ran = byoc("partition", tmp_path / "m.onnx", "--variant", "a:rules=dla", "--variant", "b:x=1")
    assert ran.code == 2
    assert "--rules" in ran.err


def test_a_codegen_in_a_process_of_its_own_says_the_same() -> None:
    codegens = Codegens(Isolation())
    with closing(codegens):
        isolated: Any = codegens.find("openvino")
        options = format_options(OpenVINO.Options())
        for metadata in (options, {**options, "device": "GPU", "openvino": "2020.1-x"}):
            assert isolated.find_fit(("region.blob",), metadata) == OpenVINO().find_fit(
                ["region.blob"], metadata
            )


def test_asking_imports_no_library_of_a_compiler(tmp_path: Path) -> None:
    cut(parse(DEVICE_ONLY), tmp_path / "b", codegen="openvino", verify=False)
    program = f"""
import sys, byoc
assert byoc.find_fitting({str(tmp_path / "b")!r})
print([name for name in ("openvino", "onnxruntime", "iree", "tvm") if name in sys.modules])
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
