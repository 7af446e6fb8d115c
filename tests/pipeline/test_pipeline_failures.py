"""What a codegen does not compile, load or run goes back to the host, and the bundle works."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from helpers import vendors
from helpers.cutting import UNLIKE, cut, files, ramp, same_as_original
from helpers.failing import on_devices, working
from helpers.faulty import REASON, faulty  # noqa: F401 - a fixture
from helpers.support import VANILLA, Ran, parse, sample_cases, without_location

from byoc.errors import InputError
from byoc.pipeline import partition
from byoc.reporting import summarize_report

pytestmark = pytest.mark.usefixtures("numbered_regions")

IN_PROCESS = {
    "refuses": REASON,
    "names nothing": REASON,
    "raises": "failed with ZeroDivisionError: division by zero",
    "exits": "failed with SystemExit: 0",
    "recursion": "failed with RecursionError: maximum recursion depth exceeded",
    "memory": "failed with MemoryError",
    "none": "compile gave NoneType, not an Artifact",
    "text": "the content of 'a' is str, not bytes",
    "path": "'../a' is not a plain file name for an artifact",
    "number": "7 is not a plain file name for an artifact",
    "list": "the artifact's files are list, not a mapping",
    "metadata": "the metadata 'cycles' is not text",
    "load": "loading failed with OSError: no such device",
    "load refuses": REASON,
    "no function": "loading failed with TypeError: `load` gave a NoneType instead of a function",
    "run": "failed with ZeroDivisionError: division by zero",
    "run exits": "failed with SystemExit: no device",
    "dtype": "gave output 'a' as float64[1, 4], but it is declared float32[1, 4]",
    "shape": "gave output 'a' as float32[4], but it is declared float32[1, 4]",
}

REFUSED = {"refuses", "names nothing", "load refuses"}


@pytest.mark.parametrize("fault", IN_PROCESS)
@pytest.mark.usefixtures("faulty")
def test_one_region_fails_and_the_other_stays(fault: str, tmp_path: Path) -> None:
    reason = IN_PROCESS[fault]
    options = {"fault": fault, "op": "Relu"}
    result = working(parse(UNLIKE), tmp_path / "b", codegen_options=options)
    assert on_devices(result) == {"a": "host", "b": "host", "y": "dla"}
    (refusal,) = result.report.refusals
    assert refusal.reason.startswith(reason)
    assert {**refusal.to_json(), "reason": ""} == {
        **{"target": "dla", "region": "dla_0", "codegen": "faulty", "reason": ""},
        **{
            "nodes": ["a"],
            "host": 1,
            "split": None,
            "failed": fault not in REFUSED,
        },
    }
    why = {item.reason: item.nodes for item in result.report.host_reasons}
    if fault in REFUSED:
        assert why[f"codegen faulty refused: {refusal.reason}"] == 1
    elif refusal.reason.startswith("failed with "):
        assert why[f"codegen faulty {refusal.reason}"] == 1
    else:
        assert why[f"codegen faulty failed: {refusal.reason}"] == 1
    (warning,) = [note.text for note in result.report.notes if note.severity == "warning"]
    assert warning == (f"codegen faulty: dla_0: {refusal.reason}; dla is planned again without a")
    manifest = json.loads((tmp_path / "b/manifest.json").read_text())
    assert manifest["variants"][0]["report"]["refusals"] == [refusal.to_json()]
    assert [region["name"] for region in manifest["variants"][0]["regions"]] == ["dla_0"]


@pytest.mark.parametrize("fault", sample_cases(list(IN_PROCESS), every=3))
@pytest.mark.usefixtures("faulty")
def test_strict_makes_it_an_error_and_touches_nothing(fault: str, tmp_path: Path) -> None:
    cut(parse(UNLIKE), tmp_path / "b")
    before = files(tmp_path)
    with pytest.raises(InputError) as caught:
        cut(
            parse(UNLIKE),
            tmp_path / "b",
            codegen="faulty",
            codegen_options={"fault": fault, "op": "Relu"},
        )
    said = str(caught.value)
    assert IN_PROCESS[fault] in said
    assert "dla_0: " in said
    assert "codegen faulty: " in said
    assert len(said.splitlines()) == 1
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("segv", "its process was killed by SIGSEGV in compile"),
        ("kill", "its process was killed by SIGKILL in compile, as happens when memory runs out"),
        ("leaves", "its process ended with exit code 0 in compile"),
        ("leaves with 3", "its process ended with exit code 3 in compile"),
        ("scribbles", "its process gave an answer to compile that cannot be read"),
        ("refuses", REASON),
        ("exits", "failed with SystemExit: 0"),
        ("none", "compile gave NoneType, not an Artifact"),
        ("path", "'../a' is not a plain file name for an artifact"),
    ],
)
@pytest.mark.usefixtures("faulty")
def test_in_a_process_of_its_own_nothing_takes_byoc_along(
    fault: str, reason: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = {"fault": fault, "op": "Relu"}
    result = working(parse(UNLIKE), tmp_path / "b", isolate=True, codegen_options=options)
    assert on_devices(result) == {"a": "host", "b": "host", "y": "dla"}
    assert [without_location(each.reason) for each in result.report.refusals] == [reason]
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("faulty")
def test_what_hangs_is_stopped(tmp_path: Path) -> None:
    model = parse("g (float[1, 4] x) => (float[1, 4] y) { y = Relu(x) }")
    before = _children()
    result = working(model, tmp_path / "b", compile_timeout=0.5, codegen_options={"fault": "hangs"})
    (refusal,) = result.report.refusals
    assert refusal.reason == "compile took longer than 0.5 s and was stopped"
    assert on_devices(result) == {"y": "host"}
    assert _children() <= before  # not even one that has ended and that nobody asked for


def _children() -> set[str]:
    """Return the processes that this one has started; other tests may have left some running."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = entry.read_text().rpartition(")")[2].split()[1]
        except OSError:  # it has ended meanwhile
            continue
        if parent == str(os.getpid()):
            found.add(entry.parent.name)
    return found


def _runs(process: str) -> bool:
    """Return whether a process is there and is more than an entry that its parent has not read."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("fault", ["child", "prints"])
@pytest.mark.usefixtures("faulty")
def test_a_process_that_leaves_more_than_a_result(
    fault: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = working(parse(UNLIKE), tmp_path / "b", isolate=True, codegen_options={"fault": fault})
    assert result.report.to_json()["refusals"] == []
    printed, noise = capfd.readouterr()
    assert printed == ""
    assert len(noise) == (2 * (1000 * 1001 + 100_000) if fault == "prints" else 0)
    for path in (tmp_path / "b/artifacts").glob("*/pid") if fault == "child" else ():
        while _runs(path.read_text()):  # the signal has been sent, and ends it in its own time
            time.sleep(0.01)


@pytest.mark.usefixtures("faulty")
def test_artifacts_come_back_from_a_process_as_they_were(tmp_path: Path) -> None:
    here = cut(
        parse(UNLIKE), tmp_path / "here", codegen="faulty", codegen_options={"fault": "none at all"}
    )
    there = cut(
        parse(UNLIKE),
        tmp_path / "there",
        **{"codegen": "faulty", "codegen_options": {"fault": "none at all"}, "isolate": True},
    )
    assert here.bundle is not None
    assert there.bundle is not None
    one, other = files(here.bundle), files(there.bundle)
    for content in (one, other):  # the options differ
        content.pop("manifest.json")
        content.pop("signature.json", None)
    assert one == other
    assert one["artifacts/dla_0/code"] == b"1"


@pytest.mark.usefixtures("faulty")
def test_the_environment_of_what_a_codegen_starts_is_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "mine"))
    (tmp_path / "onnx.py").write_text("raise RuntimeError('not the onnx that was meant')")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    options = {"fault": "environment"}
    cut(parse(UNLIKE), tmp_path / "out/b", codegen="faulty", codegen_options=options, isolate=True)
    assert (tmp_path / "out/b/artifacts/dla_0/path").read_text() == str(tmp_path / "mine")


@pytest.mark.usefixtures("faulty")
def test_numbers_that_are_off_pass_no_gate(tmp_path: Path) -> None:
    options = {"fault": "numbers", "op": "Relu"}
    with pytest.raises(InputError, match=r"^verification failed: output 'y' differs"):
        cut(parse(UNLIKE), tmp_path / "b", codegen="faulty", codegen_options=options)
    assert list(tmp_path.iterdir()) == []
    result = working(parse(UNLIKE), tmp_path / "b", gate=True, codegen_options=options)
    assert on_devices(result) == {"a": "host", "b": "host", "y": "dla"}
    (refusal,) = result.report.refusals
    assert refusal.nodes == ("a",)
    assert refusal.reason.startswith("Relu 'a' computed wrong (off by ")
    assert summarize_report(result.report).split("; ")[1] == (
        f"1 node went back to the host: codegen faulty: {refusal.reason}"
    )
    loose = cut(
        parse(UNLIKE),
        tmp_path / "b",
        **{
            "strict": False,
            "codegen": "faulty",
            "codegen_options": options,
            "verify": False,
            "gate": 9.0,
        },
    )
    assert loose.report.to_json()["refusals"] == []
    with pytest.raises(InputError, match=r"^codegen faulty: dla_0: Relu 'a' computed wrong "):
        cut(parse(UNLIKE), tmp_path / "b", codegen="faulty", codegen_options=options, gate=True)


def test_a_gate_needs_what_can_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vendors.install(monkeypatch, compileonly=vendors.CompileOnly)
    with pytest.raises(InputError) as caught:
        cut(parse(UNLIKE), tmp_path / "b", strict=False, codegen="compileonly", gate=True)
    assert str(caught.value) == (
        "the gate cannot compare regions: codegen compileonly cannot run here what it compiles"
    )
    with pytest.raises(InputError, match="gate -1: not an error of at least 0"):
        cut(parse(UNLIKE), tmp_path / "b", gate=-1.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("inf"), float("nan")])
def test_a_timeout_that_is_none(timeout: float) -> None:
    with pytest.raises(InputError, match=r"^compile timeout .*: not a number of seconds above 0, and"):
        partition(parse(UNLIKE), VANILLA, compile_timeout=timeout)


@pytest.mark.usefixtures("faulty")
def test_onnxruntime_6580_and_25334_a_provider_that_claims_what_it_cannot_compile(
    tmp_path: Path, byoc: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, a partition that its execution provider failed to compile was the end of the session."""
    monkeypatch.chdir(tmp_path)
    onnx.save(parse(UNLIKE), "net.onnx")
    command = [*("partition", "net.onnx", "--rules", VANILLA, "-o", "b", "--strategy", "all-supported")]
    command += ["--codegen", "faulty", "--codegen-option", "fault=refuses"]
    command += ["--codegen-option", "op=Relu"]
    ran = byoc(*command)
    assert (ran.code, ran.err) == (0, "")
    slower, first, *lines = ran.out.splitlines()
    assert slower == "The placement is predicted to be slower than the host alone"
    assert first.startswith("net.onnx: 1 of 3 nodes (")
    assert f"; 1 node went back to the host: codegen faulty: {REASON}; predicted" in first
    assert "; verified, largest error 0 " in first
    assert any(line.endswith(f"     1  Relu: codegen faulty refused: {REASON}") for line in lines)
    assert f"warning: codegen faulty: dla_0: {REASON}; dla is planned again without a" in lines
    same_as_original(parse(UNLIKE), Path("b"), {"x": ramp(1, 4)})
    before = files(tmp_path)
    ran = byoc(*command, "--strict")
    assert (ran.code, ran.out, ran.err) == (1, "", f"byoc: codegen faulty: dla_0: {REASON}\n")
    assert files(tmp_path) == before


@pytest.mark.usefixtures("faulty")
def test_on_the_command_line(
    tmp_path: Path, byoc: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(parse("g (float[1, 4] x) => (float[1, 4] y) { y = Relu(x) }"), "net.onnx")
    command = ["partition", "net.onnx", "--rules", VANILLA, "-o", "b", "--strategy", "all-supported"]
    command += ["--codegen", "faulty", "--format", "json", "--codegen-option"]
    for options, code, reason in (
        (["fault=segv", "--isolate"], 5, "its process was killed by SIGSEGV in compile"),
        (
            ["fault=hangs", "--compile-timeout", "0.3"],
            5,
            "compile took longer than 0.3 s and was stopped",
        ),
        (["fault=numbers", "--gate"], 5, "Relu 'y' computed wrong (off by "),
        (["fault=load"], 5, "loading failed with OSError: no such device"),
    ):
        ran = byoc(*command, *options)
        assert (ran.code, ran.err) == (code, "")
        (refusal,) = json.loads(ran.out)["refusals"]
        assert refusal["reason"].startswith(reason)
        assert byoc("verify", "b").code == 0
    ran = byoc(*(word for word in command if word not in {"--format", "json"}), "fault=load")
    assert ran.code == 5
    assert ran.out.startswith(
        "Codegen faulty failed: dla_0: loading failed with OSError: no such device (helpers/faulty.py:"
    )
    ran = byoc(*command, "fault=numbers", "--gate", "--threshold", "float32=1", "--no-verify")
    assert json.loads(ran.out)["refusals"] == []
    assert byoc(*command, "fault=numbers", "--threshold", "float32=1").code == 2


@pytest.mark.parametrize("isolate", ["--isolate", "--no-isolate"])
@pytest.mark.usefixtures("faulty")
def test_a_region_that_is_not_loaded_goes_nowhere_in_silence(
    isolate: str, tmp_path: Path, byoc: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(parse(UNLIKE), "net.onnx")
    command = ["partition", "net.onnx", "--rules", VANILLA, "-o", "b", "--strategy", "all-supported"]
    command += ["--codegen", "faulty", "--codegen-option", "fault=load refuses"]
    command += ["--codegen-option", "op=Relu"]
    ran = byoc(*command, *(["--isolate"] if isolate == "--isolate" else []))
    assert (ran.code, ran.err) == (0, "")
    assert f"; 1 node went back to the host: codegen faulty: {REASON}; " in ran.out.splitlines()[1]
    assert f"warning: codegen faulty: dla_0: {REASON}; dla is planned again without a" in ran.out
    # Nobody loaded this one: running it says so, and runs no region on the host instead.
    assert byoc(*command, "--no-verify").code == 0
    for verb in (("run", "b", "--inputs", "random"), ("verify", "b")):
        ran = byoc(*verb, isolate)
        assert (ran.code, ran.out) == (1, "")
        assert ran.err.startswith("byoc: ")
        assert ran.err.endswith(f"codegen faulty: dla_0: {REASON}\n")
        assert ran.err.count("\n") == 1
