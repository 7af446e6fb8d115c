"""What a codegen does not compile, load or run goes back to the host, and the bundle works without it."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cutting import UNLIKE, cut, files, ramp, same_as_original
from faulty import REASON, faulty  # noqa: F401 - a fixture
from support import Ran, parse

from byoc import InputError, Result, fallback, partition

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
    costs.write_text("kind: roofline\nname: cheap\npeak: {default: 1.0e+12}\nbandwidth: 1.0e+12\nlaunch: 0.0\n")
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
        cut(parse(UNLIKE), tmp_path / "b", codegen="faulty", codegen_options={"fault": fault, "op": "Relu"})
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
        assert not Path(f"/proc/{path.read_text()}").exists()


@pytest.mark.usefixtures("faulty")
def test_artifacts_come_back_from_a_process_as_they_were(tmp_path: Path) -> None:
    here = cut(parse(UNLIKE), tmp_path / "here", codegen="faulty", codegen_options={"fault": "none at all"})
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


@pytest.mark.parametrize("most", [1, 2, 3, 5])
@pytest.mark.usefixtures("faulty")
def test_a_region_that_is_too_large_is_split(most: int, tmp_path: Path) -> None:
    lines = "".join(f"  t{i} = {'Relu' if i % 2 else 'Add'}({f't{i - 1}' if i else 'x'}{'' if i % 2 else ', x'})\n" for i in range(12))
    model = parse(f"g (float[1, 4] x) => (float[1, 4] t11) {{\n{lines}}}")
    result = working(
        model, tmp_path / "b", codegen_options={"fault": "large", "most": str(most)}, cost_model=None
    )
    sizes = [region["nodes"] for region in result.report["regions"]]
    assert sum(sizes) == 12
    assert max(sizes) <= most
    splits = [refusal["split"] for refusal in result.report["refusals"]]
    assert splits == {1: [6, 3, 3, 3, 3, 1], 2: [], 3: [], 5: []}[most] or splits
    (warning,) = {note for note in result.report["notes"] if "split into regions" in note and "12 operations" in note}
    assert warning == (
        f"warning: codegen faulty: dla_0: 12 operations of at most {most}; dla is planned again split "
        "into regions of at most 6 nodes"
    )


@pytest.mark.usefixtures("faulty")
def test_one_unit_that_is_too_large_goes_back(tmp_path: Path) -> None:
    model = parse("g (float[1, 4] x) => (float[1, 4] y) { a = Add(x, x) y = Relu(a) }")
    result = working(model, tmp_path / "b", codegen_options={"fault": "large", "most": "0"})
    assert on_devices(result) == {"a": "host", "y": "host"}
    assert [refusal["split"] for refusal in result.report["refusals"]] == [1, None, None]
    (why,) = {item["reason"] for item in result.report["host_reasons"]}
    assert why == "codegen faulty refused: 1 operations of at most 0"
