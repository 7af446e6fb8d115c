"""What a codegen does not compile, load or run goes back to the host, and the bundle works without it."""

import json
import os
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import vendors
from byoc.codegens.reference import Reference
from cutting import UNLIKE, cut, files, ramp, same_as_original
from faulty import REASON, faulty  # noqa: F401 - a fixture
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import GraphMaker
from support import Ran, parse

from byoc import InputError, Result, fallback, partition
from byoc.codegen import Artifact, CompileError, NoOptions, Operation, Region
from byoc.report.text import summary

# Everything but Sin may be on `one`, and Sin and Neg on `two`.
LONG = """
long (float[1, 4] x) => (float[1, 4] y) {
  [first] a = Add(x, x)
  [rectify] b = Relu(a)
  [second] c = Add(b, x)
  [third] y = Add(c, a)
}
"""


def rules(folder: Path, target: str, *ops: str, more: str = "") -> str:
    """Return the path of a rule file for some operators, with a cost model that makes nothing dear."""
    costs = folder / "cheap.yaml"
    costs.write_text(
        "kind: roofline\nname: cheap\npeak: {default: 1.0e+12}\nbandwidth: 1.0e+12\nlaunch: 0.0\n"
    )
    path = folder / f"{target}.yaml"
    listed = "".join(f"- {op if op.startswith('{') else f'{{op: {op}}}'}\n" for op in ops)
    path.write_text(f"target: {target}\ncost_model: {costs}\ndtype: any\n{more}ops:\n{listed}")
    return str(path)


def on_devices(result: Result) -> dict[str, str]:
    """Return the device of each node by its first output: `host`, or the target's name."""
    names = ("host", *(target.name for target in result.plan.targets))
    return {
        graph.index.nodes[node].output[0]: names[label]
        for graph in result.plan.root.walk()
        for unit, label in zip(graph.units, graph.placement.labels.tolist(), strict=True)
        for node in unit.nodes
    }


def working(model: onnx.ModelProto, output: Path, **options: Any) -> Result:
    """Partition, and assert that the bundle is verified, computes the same, and is all there is."""
    result = cut(model, output, **{"strict": False, "codegen": "faulty", **options})
    assert result.verification is not None
    assert result.verification.passed
    same_as_original(model, output, {"x": ramp(1, 4)})
    assert [path.name for path in output.parent.iterdir()] == [output.name]
    return result


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
    "no function": "loading failed with TypeError: `load` gave a NoneType instead of a function",
    "run": "failed with ZeroDivisionError: division by zero",
    "run exits": "failed with SystemExit: no device",
    "dtype": "gave output 'a' as float64[1, 4], but it is declared float32[1, 4]",
    "shape": "gave output 'a' as float32[4], but it is declared float32[1, 4]",
}


@pytest.mark.parametrize("fault", IN_PROCESS)
@pytest.mark.usefixtures("faulty")
def test_one_region_fails_and_the_other_stays(fault: str, tmp_path: Path) -> None:
    reason = IN_PROCESS[fault]
    options = {"fault": fault, "op": "Relu"}
    result = working(parse(UNLIKE), tmp_path / "b", codegen_options=options)
    assert on_devices(result) == {"a": "host", "b": "host", "y": "dla"}
    (refusal,) = result.report["refusals"]
    assert refusal["reason"].startswith(reason)
    assert {**refusal, "reason": ""} == {
        **{"target": "dla", "region": "dla_0", "codegen": "faulty", "reason": ""},
        **{"nodes": ["a"], "host": 1, "split": None},
    }
    why = {item["reason"]: item["nodes"] for item in result.report["host_reasons"]}
    assert why[f"codegen faulty refused: {refusal['reason']}"] == 1
    (warning,) = [note for note in result.report["notes"] if note.startswith("warning: codegen")]
    assert warning == (
        f"warning: codegen faulty: dla_0: {refusal['reason']}; dla is planned again without a"
    )
    manifest = json.loads((tmp_path / "b/manifest.json").read_text())
    assert manifest["report"]["refusals"] == [refusal]
    assert [region["name"] for region in manifest["regions"]] == ["dla_0"]


@pytest.mark.parametrize("fault", IN_PROCESS)
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
        ("segv", "its process was killed by SIGSEGV"),
        ("kill", "its process was killed by SIGKILL, as happens when memory runs out"),
        ("leaves", "its process ended with exit code 0 and without a result"),
        ("leaves with 3", "its process ended with exit code 3 and without a result"),
        ("scribbles", "its process left a result that cannot be read"),
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
    assert [refusal["reason"] for refusal in result.report["refusals"]] == [reason]
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("faulty")
def test_what_hangs_is_stopped(tmp_path: Path) -> None:
    model = parse("g (float[1, 4] x) => (float[1, 4] y) { y = Relu(x) }")
    result = working(model, tmp_path / "b", compile_timeout=0.5, codegen_options={"fault": "hangs"})
    (refusal,) = result.report["refusals"]
    assert refusal["reason"] == "took longer than 0.5 s and was stopped"
    assert on_devices(result) == {"y": "host"}
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


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
    assert result.report["refusals"] == []
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
    del one["manifest.json"], other["manifest.json"]
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
def test_only_the_nodes_that_a_codegen_names_go(tmp_path: Path) -> None:
    log = tmp_path / "log"
    options = {"fault": "names", "op": "Relu", "log": str(log)}
    (tmp_path / "out").mkdir()
    result = working(parse(LONG), tmp_path / "out/b", codegen_options=options)
    assert on_devices(result) == {"a": "dla", "b": "host", "c": "dla", "y": "dla"}
    assert [refusal["nodes"] for refusal in result.report["refusals"]] == [["rectify"]]
    assert log.read_text().splitlines() == ["Add Relu Add Add", "Add", "Add Add"]
    assert result.plan.proto.graph.node  # the partitioned model says why, too
    reasons = {
        node.name: entry.value
        for node in result.plan.proto.graph.node
        for entry in node.metadata_props
        if entry.key == "byoc.reason"
    }
    assert reasons == {"rectify": f"codegen faulty refused: {REASON}"}


@pytest.mark.usefixtures("faulty")
def test_a_region_that_stays_the_same_is_not_compiled_again(tmp_path: Path) -> None:
    model = parse("""
    g (float[1, 4] x) => (float[1, 4] y) {
      a = Add(x, x)
      b = Sigmoid(a)
      c = Relu(b)
      d = Relu(c)
      e = Sigmoid(d)
      y = Mul(e, e)
    }
    """)
    log = tmp_path / "log"
    options = {"fault": "names the first", "op": "Relu", "log": str(log)}
    (tmp_path / "out").mkdir()
    result = working(model, tmp_path / "out/b", codegen_options=options)
    assert on_devices(result) == {**dict.fromkeys("bcde", "host"), "a": "dla", "y": "dla"}
    assert log.read_text().splitlines() == ["Add", "Relu Relu", "Mul", "Relu"]
    manifest = json.loads((tmp_path / "out/b/manifest.json").read_text())
    assert [region["name"] for region in manifest["regions"]] == ["dla_0", "dla_1"]


@pytest.mark.parametrize(("most", "halves"), [(1, {6, 3, 1}), (2, {6, 3, 1}), (4, {6, 3}), (6, {6})])
@pytest.mark.usefixtures("faulty")
def test_a_region_that_is_too_large_is_split(most: int, halves: set[int], tmp_path: Path) -> None:
    names = ["x", *(f"t{number}" for number in range(11)), "y"]
    lines = "".join(f"  {made} = Add({read}, x)\n" for read, made in pairwise(names))
    model = parse(f"g (float[1, 4] x) => (float[1, 4] y) {{\n{lines}}}")
    result = working(model, tmp_path / "b", codegen_options={"fault": "large", "most": str(most)})
    sizes = [region["nodes"] for region in result.report["regions"]]
    assert sum(sizes) == 12
    assert max(sizes) <= most
    refusals = result.report["refusals"]
    assert {refusal["split"] for refusal in refusals} == halves
    assert [(refusal["nodes"], refusal["host"]) for refusal in refusals] == [([], 0)] * len(refusals)
    assert result.report["notes"][0] == (
        f"warning: codegen faulty: dla_0: 12 operations of at most {most}; dla is planned again split "
        "into regions of at most 6 nodes"
    )


@pytest.mark.usefixtures("faulty")
def test_one_unit_that_is_too_large_goes_back(tmp_path: Path) -> None:
    model = parse("g (float[1, 4] x) => (float[1, 4] y) { a = Add(x, x) y = Relu(a) }")
    result = working(model, tmp_path / "b", codegen_options={"fault": "large"})
    assert on_devices(result) == {"a": "host", "y": "host"}
    assert [refusal["split"] for refusal in result.report["refusals"]] == [1, None, None]
    (why,) = {item["reason"] for item in result.report["host_reasons"]}
    assert why == "codegen faulty refused: 1 operations of at most 0"


@pytest.fixture
def files_of_rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for rule files, which is not that of the bundle."""
    return tmp_path_factory.mktemp("rules")


@pytest.mark.usefixtures("faulty")
def test_what_one_target_refuses_another_may_take(files_of_rules: Path, tmp_path: Path) -> None:
    both = [
        rules(files_of_rules, "one", "Add", "Relu", more="codegen: faulty\n"),
        rules(files_of_rules, "two", "Relu", "Neg"),
    ]
    model = parse("g (float[1, 4] x) => (float[1, 4] y) { a = Add(x, x) b = Relu(a) y = Neg(b) }")
    options = {"one:fault": "names", "one:op": "Relu"}
    before = partition(model, both, strategy="all-supported")
    assert on_devices(before) == {"a": "one", "b": "one", "y": "two"}
    after = partition(
        model, both, strategy="all-supported", output=tmp_path / "b", codegen_options=options
    )
    assert on_devices(after) == {"a": "one", "b": "two", "y": "two"}
    assert after.verification is not None
    assert after.verification.passed
    same_as_original(model, tmp_path / "b", {"x": ramp(1, 4)})
    (refusal,) = after.report["refusals"]
    assert (refusal["target"], refusal["nodes"], refusal["host"]) == ("one", ["b"], 0)
    assert "went back to the host" not in summary(after.report)


@pytest.mark.usefixtures("faulty")
def test_both_targets_refuse(files_of_rules: Path, tmp_path: Path) -> None:
    both = [rules(files_of_rules, name, "Relu", more="codegen: faulty\n") for name in ("one", "two")]
    model = parse("g (float[1, 4] x) => (float[1, 4] y) { y = Relu(x) }")
    options = {"one:fault": "refuses", "two:fault": "raises"}
    result = partition(
        model, both, strategy="all-supported", output=tmp_path / "b", codegen_options=options
    )
    assert on_devices(result) == {"y": "host"}
    assert [item["reason"] for item in result.report["host_reasons"]] == [
        f"one: codegen faulty refused: {REASON}; "
        "two: codegen faulty refused: failed with ZeroDivisionError: division by zero"
    ]
    assert [refusal["target"] for refusal in result.report["refusals"]] == ["one", "two"]


@pytest.mark.usefixtures("faulty")
def test_what_must_be_on_an_accelerator_goes_back_all_the_same(
    files_of_rules: Path, tmp_path: Path
) -> None:
    file = rules(files_of_rules, "one", "{op: Relu, level: must}", "Add", more="codegen: faulty\n")
    for fault in ("refuses", "large"):
        result = partition(
            parse(UNLIKE),
            file,
            strategy="all-supported",
            output=tmp_path / "b",
            codegen_options={"fault": fault, "op": "Relu"},
        )
        assert on_devices(result) == {"a": "host", "b": "host", "y": "one"}


@pytest.mark.usefixtures("faulty")
def test_inside_bodies(files_of_rules: Path, tmp_path: Path) -> None:
    file = rules(files_of_rules, "one", "Relu", "Add", "Neg", more="codegen: faulty\n")
    model = parse("""
    g (float[1, 4] x, bool c) => (float[1, 4] y) {
      a = Add(x, x)
      y = If(c) <
        then_branch = yes () => (float[1, 4] t) { t1 = Relu(a) t = Add(t1, a) },
        else_branch = no () => (float[1, 4] t) { t1 = Neg(a) t = Add(t1, a) }
      >
    }
    """)
    result = partition(
        model,
        file,
        strategy="all-supported",
        output=tmp_path / "b",
        codegen_options={"fault": "names", "op": "Relu"},
    )
    where = [
        (graph.place, graph.index.nodes[unit.nodes[0]].op_type, int(label))
        for graph in result.plan.root.walk()
        for unit, label in zip(graph.units, graph.placement.labels, strict=True)
    ]
    assert [op for _, op, label in where if not label] == ["If", "Relu"]
    assert result.verification is not None
    assert result.verification.passed
    for condition in (False, True):
        same_as_original(model, tmp_path / "b", {"x": ramp(1, 4), "c": np.array(condition)})


@pytest.mark.usefixtures("faulty")
def test_a_composite_and_what_is_named_inside_it(tmp_path: Path) -> None:
    weights = onnx.numpy_helper.from_array(np.ones((3, 3, 1, 1), np.float32), "w")
    model = parse("""
    g (float[1, 3, 4, 4] x) => (float[1, 3, 4, 4] y) {
      [one] c = Conv(x, w)
      [two] r = Relu(c)
      [three] s = Add(r, x)
      [four] d = Conv(s, w)
      [five] y = Relu(d)
    }
    """)
    model.graph.initializer.append(weights)
    for fault, gone in (("composite", ["one", "two"]), ("inside", ["one", "two"])):
        result = cut(
            model,
            tmp_path / "b",
            **{"codegen": "faulty", "codegen_options": {"fault": fault}, "strict": False},
        )
        assert [refusal["nodes"] for refusal in result.report["refusals"]] == [gone], fault
        assert on_devices(result) == {
            **{"c": "host", "r": "host", "s": "dla", "d": "dla", "y": "dla"},
        }
        same_as_original(model, tmp_path / "b", {"x": ramp(1, 3, 4, 4)})


@pytest.mark.usefixtures("faulty")
def test_a_given_placement_yields(tmp_path: Path, files_of_rules: Path) -> None:
    pins = files_of_rules / "pins.yaml"
    pins.write_text("format: 1\nnodes: {a: dla, y: dla}\n")
    options = {"fault": "refuses", "op": "Relu"}
    result = working(parse(UNLIKE), tmp_path / "b", placement=pins, codegen_options=options)
    assert on_devices(result) == {"a": "host", "b": "host", "y": "dla"}
    assert any("not taken by the device: 'a'; placed anew" in note for note in result.report["notes"])


@pytest.mark.usefixtures("faulty")
def test_a_codegen_that_never_has_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "".join(f"  t{i} = Relu({f't{i - 1}' if i else 'x'})\n" for i in range(9))
    model = parse(f"g (float[1, 4] x) => (float[1, 4] t8) {{\n{lines}}}")
    options = {"fault": "names the first", "op": "Relu"}
    monkeypatch.setattr(fallback, "_PATIENT", 3)
    result = working(model, tmp_path / "b", codegen_options=options)
    assert [refusal["nodes"] for refusal in result.report["refusals"]] == [
        ["t0"],
        ["t1"],
        [f"t{number}" for number in range(2, 9)],
    ]
    assert set(on_devices(result).values()) == {"host"}
    monkeypatch.setattr(fallback, "_MOST", 2)
    result = working(model, tmp_path / "b", codegen_options=options)
    assert [refusal["nodes"] for refusal in result.report["refusals"]] == [["t0"], []]
    assert [refusal["host"] for refusal in result.report["refusals"]] == [1, 8]
    reason = f"regions still fail after 2 rounds: {REASON}"
    assert result.report["refusals"][1]["reason"] == reason
    assert {"reason": f"codegen faulty refused: {reason}", "nodes": 8} in result.report["host_reasons"]


@pytest.mark.usefixtures("faulty")
def test_numbers_that_are_off_pass_no_gate(tmp_path: Path) -> None:
    options = {"fault": "numbers", "op": "Relu"}
    with pytest.raises(InputError, match=r"^verification failed: output 'y' differs"):
        cut(parse(UNLIKE), tmp_path / "b", strict=False, codegen="faulty", codegen_options=options)
    assert list(tmp_path.iterdir()) == []
    result = working(parse(UNLIKE), tmp_path / "b", gate=True, codegen_options=options)
    assert on_devices(result) == {"a": "host", "b": "host", "y": "dla"}
    (refusal,) = result.report["refusals"]
    assert refusal["nodes"] == ["a"]
    assert refusal["reason"].startswith("its output 'a' is off by ")
    assert summary(result.report).split("; ")[1] == (
        f"1 node went back to the host: codegen faulty: {refusal['reason']}"
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
    assert loose.report["refusals"] == []
    with pytest.raises(InputError, match=r"^codegen faulty: dla_0: its output 'a' is off by "):
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
    with pytest.raises(InputError, match=r"^compile timeout .*: not a number of seconds above 0$"):
        partition(parse(UNLIKE), "dla", compile_timeout=timeout)


@pytest.mark.usefixtures("faulty")
def test_onnxruntime_6580_and_25334_a_provider_that_claims_what_it_cannot_compile(
    tmp_path: Path, byoc: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, a partition that its execution provider failed to compile was the end of the session."""
    monkeypatch.chdir(tmp_path)
    onnx.save(parse(UNLIKE), "net.onnx")
    command = [*("partition", "net.onnx", "--rules", "dla", "-o", "b", "--strategy", "all-supported")]
    command += ["--codegen", "faulty", "--codegen-option", "fault=refuses"]
    command += ["--codegen-option", "op=Relu"]
    ran = byoc(*command)
    assert (ran.code, ran.err) == (0, "")
    first, *lines = ran.out.splitlines()
    assert first.startswith("net.onnx: 1 of 3 nodes (")
    assert f"; 1 node went back to the host: codegen faulty: {REASON}; predicted" in first
    assert "; verified, largest error 0 " in first
    assert f"      1  codegen faulty refused: {REASON}" in lines
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
    command = ["partition", "net.onnx", "--rules", "dla", "-o", "b", "--strategy", "all-supported"]
    command += ["--codegen", "faulty", "--format", "json", "--codegen-option"]
    for options, reason in (
        (["fault=segv", "--isolate"], "its process was killed by SIGSEGV"),
        (["fault=hangs", "--compile-timeout", "0.3"], "took longer than 0.3 s and was stopped"),
        (["fault=numbers", "--gate"], "its output 'y' is off by "),
    ):
        ran = byoc(*command, *options)
        assert (ran.code, ran.err) == (0, "")
        (refusal,) = json.loads(ran.out)["refusals"]
        assert refusal["reason"].startswith(reason)
        assert byoc("verify", "b").code == 0
    ran = byoc(*command, "fault=numbers", "--gate", "--threshold", "float32=1", "--no-verify")
    assert json.loads(ran.out)["refusals"] == []
    assert byoc(*command, "fault=numbers", "--threshold", "float32=1").code == 2


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    ops=st.sets(
        st.sampled_from(["Conv", "Relu", "Add", "Mul", "Sum", "Concat"]), min_size=1, max_size=3
    ),
    named=st.booleans(),
)
def test_whatever_is_refused_the_bundle_computes_the_same(
    seed: int, ops: set[str], named: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def compile_(region: Region) -> Artifact:
        wrong = [each.name for each in region.operations() if ops & _ops(each)]
        if wrong:
            raise CompileError("not these", wrong[:2] if named else ())
        return Artifact()

    class Picky(Reference):
        name = "picky"

        def compile(self, region: Region, options: NoOptions) -> Artifact:
            return compile_(region)

    model = GraphMaker(seed).model(20)
    output = tmp_path_factory.mktemp("random") / "b"
    with pytest.MonkeyPatch.context() as patch:
        vendors.install(patch, picky=Picky)
        result = cut(model, output, strict=False, codegen="picky")
        assert result.verification is not None
        assert result.verification.passed
        for region in result.plan.regions:
            inside = {region.index.nodes[node].op_type for node in region.nodes}
            assert not inside & ops


def _ops(operation: Operation) -> set[str]:
    return {operation.op, *(inner.op for inner in operation.inner)}
