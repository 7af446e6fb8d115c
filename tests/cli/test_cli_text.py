"""What the command line prints, as text and as JSON."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from threading import Thread
from typing import Any

import onnx
import pytest
from helpers.cutting import CHAIN, UNLIKE, cut
from helpers.support import VANILLA, Ran, parse, region_names
from helpers.warm_processes import WarmProcesses

from byoc.errors import InputError
from byoc.support import report_step
from byoc.verification import BundleCheck, OutputError, RegionError, Verification

# The weights are identities and the rest moves signs, so that every number is exact on every machine.
NET = """net (float[1, 256, 28, 28] image, float[1, 4] extra)
    => (float[1, 256, 28, 28] score, float[1, 4] side) {
    shape = Constant <value_ints = [256, 256]> ()
    zeros = ConstantOfShape(shape)
    identity = EyeLike(zeros)
    kernel = Constant <value_ints = [256, 256, 1, 1]> ()
    w = Reshape(identity, kernel)
    c1 = Conv(image, w)
    r1 = Relu(c1)
    c2 = Conv(r1, w)
    r2 = Relu(c2)
    c3 = Conv(r2, w)
    wide = Conv <dilations = [5, 5]> (c3, w)
    score = Neg(wide)
    t1 = Abs(extra)
    t2 = Abs(t1)
    side = Relu(t2)
}"""


Cli = Callable[..., Ran]


Golden = Callable[[str, str], None]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with net.onnx in it."""
    monkeypatch.chdir(tmp_path)
    for variable in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)
    onnx.save(parse(NET), "net.onnx")
    return tmp_path


def _strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def _floats(document: Any) -> list[float]:
    if isinstance(document, (dict, list)):
        values = document.values() if isinstance(document, dict) else document
        return [number for value in values for number in _floats(value)]
    return [document] if isinstance(document, float) else []


@pytest.mark.usefixtures("here")
def test_partition_without_output(byoc: Cli, golden: Golden) -> None:
    ran = byoc("partition", "net.onnx", "--rules", VANILLA)
    assert (ran.code, ran.err) == (0, "")
    golden("cli_partition_plan.txt", ran.out)


@pytest.mark.usefixtures("here")
def test_partition_with_output(byoc: Cli, golden: Golden) -> None:
    ran = byoc("partition", "net.onnx", "--rules", VANILLA, "-o", "out")
    assert (ran.code, ran.err) == (0, "")
    golden("cli_partition_output.txt", ran.out)


@pytest.mark.usefixtures("here")
def test_verify(byoc: Cli, golden: Golden) -> None:
    byoc("partition", "net.onnx", "--rules", VANILLA, "-o", "out")
    ran = byoc("verify", "out", "--against", "net.onnx")
    assert (ran.code, ran.err) == (0, "")
    golden("cli_verify.txt", ran.out)


@pytest.mark.usefixtures("here")
def test_verify_says_that_an_error_of_a_boundary_tensor_alone_adds_up(
    byoc: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    byoc("partition", "net.onnx", "--rules", VANILLA, "-o", "out")
    exact = OutputError("y", "float32", 0.0, 0.0, 1e-4)
    far = OutputError("t_q", "int8", 9.0, 0.06, 1.0, measure="units")
    regions = (RegionError("dla_0", (exact,)),)

    def print_found(*outputs: OutputError, **more: Any) -> str:
        found = Verification("m.onnx", outputs, regions=regions, **more)
        monkeypatch.setattr(BundleCheck, "verify", lambda *_, **__: found)
        text: str = byoc("verify", "out").out
        return text

    out = print_found(exact, boundary=(far,))
    assert [line.split()[-2:] for line in out.splitlines() if " t_q " in line] == [["adds", "up"]]
    assert out.endswith("\nVerified: 1 output and 1 region alone within what is allowed.\n")
    out = print_found(exact, not_here={"npu_0": "no NPU"})
    end = "\nVerified: 1 output and 1 region alone within what is allowed; 1 region not compared.\n"
    assert out.endswith(end)
    out = print_found(far, boundary=(far,))
    assert [line.split()[-1] for line in out.splitlines() if " t_q " in line] == ["NO", "NO"]
    assert "Verified" not in out


@pytest.mark.usefixtures("here")
def test_inspect_repeats_the_report_and_lists_the_files(byoc: Cli) -> None:
    made = byoc("partition", "net.onnx", "--rules", VANILLA, "-o", "out", "--verbose").out
    ran = byoc("inspect", "out", "--verbose")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(made.partition("\nWritten to")[0])
    assert "\nbundle:    folder, format 4, 4 files, " in ran.out
    rows = [line.split() for line in ran.out.splitlines()]
    kinds = (".gz", ".onnx", ".bin")
    sizes = {row[0]: " ".join(row[1:-1]) for row in rows if row and row[0].endswith(kinds)}
    (name,) = region_names(Path("out"))
    assert set(sizes) == {"decisions.json.gz", f"{name}.onnx", "model.onnx", "weights.bin"}
    assert sizes["weights.bin"] == "0 B"
    assert re.search(
        "^asked: +host_cost_model host, objective latency, rules vanilla.yaml, ", ran.out, re.MULTILINE
    )
    assert re.search("^model: +net.onnx$", ran.out, re.MULTILINE)
    assert re.search(r"^made with: byoc \S+, onnx \S+$", ran.out, re.MULTILINE)


@pytest.mark.usefixtures("here")
def test_partition_as_json_is_one_document(byoc: Cli) -> None:
    text = byoc("partition", "net.onnx", "--rules", VANILLA, "-o", "text")
    ran = byoc("partition", "net.onnx", "--rules", VANILLA, "-o", "out", "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    report = _strict(ran.out)
    assert list(report) == [
        "model",
        "targets",
        "strategy",
        "nodes",
        "compute",
        "predicted",
        "regions",
        "refusals",
        "host_reasons",
        "what_if",
        "precision",
        "notes",
        "verification",
        "not_verified",
        "verification_missing",
        "bundle",
        "placed",
    ]
    assert report["nodes"] == {"total": 10, "offloaded": 5, "host": 5, "constant": 5}
    assert report["regions"][0]["composites"] == {"conv_relu": 2}
    assert report["bundle"] == "out"
    assert all(map(isfinite, _floats(report)))
    assert "5 of 10 nodes" in text.out


@pytest.mark.usefixtures("here")
def test_verify_as_json(byoc: Cli) -> None:
    byoc("partition", "net.onnx", "--rules", VANILLA, "-o", "out")
    report = _strict(byoc("verify", "out", "--format", "json").out)
    assert list(report) == [
        *("against", "passed", "largest_relative_error", "outputs"),
        *(
            "accuracy",
            "samples",
            "judge",
            "reach",
            "notes",
            "tie_breaks",
            "layers_not_compared",
            "cached",
        ),
        *("boundary", "regions", "not_compared", "not_here"),
    ]
    assert report["passed"] is True
    assert [output["name"] for output in report["outputs"]] == ["score", "side"]


@pytest.mark.usefixtures("here")
def test_a_failed_verification_is_json_too_and_exits_with_1(byoc: Cli) -> None:
    byoc("partition", "net.onnx", "--rules", VANILLA, "-o", "out")
    other = parse(NET.replace("score = Neg(wide)", "score = Abs(wide)"))
    onnx.save(other, "other.onnx")
    ran = byoc("verify", "out", "--against", "other.onnx", "--format", "json")
    assert ran.code == 1
    report = _strict(ran.out)
    assert [output["within"] for output in report["outputs"]] == [False, True]
    assert report["largest_relative_error"] > 0.1
    assert ran.err.startswith("byoc: verification failed: output 'score' differs from other.onnx")


@pytest.mark.usefixtures("here")
def test_inspect_as_json_is_the_manifest_and_who_signed_it(byoc: Cli) -> None:
    byoc("partition", "net.onnx", "--rules", VANILLA, "-o", "out")
    shown = _strict(byoc("inspect", "out", "--format", "json").out)
    assert shown.pop("trust")["trusted"] is True
    assert shown == json.loads(Path("out/manifest.json").read_text("utf-8"))


@pytest.mark.parametrize(
    ("verb", "keys"),
    [
        ("zoo", ["name", "family", "nodes", "licence", "source", "present", "weights"]),
        ("strategies", ["name", "from", "description", "honours", "options", "problem"]),
        ("cost-models", ["name", "from", "kind", "description", "options", "problem"]),
        ("codegens", ["name", "from", "executable", "problem"]),
        (
            "rules",
            [
                "name",
                "from",
                "target",
                "description",
                "codegen",
                "cost_model",
                "operators",
                "composites",
                "generations",
                "problem",
            ],
        ),
    ],
)
def test_lists(verb: str, keys: list[str], byoc: Cli) -> None:
    rows = _strict(byoc(verb, "--format", "json").out)
    assert rows
    assert all(list(row) == keys for row in rows)
    text = byoc(verb).out
    assert all(row["name"] in text for row in rows)


def test_strategies_say_what_they_do(byoc: Cli) -> None:
    rows = {row["name"]: row for row in _strict(byoc("strategies", "--format", "json").out)}
    assert rows["host-only"]["description"] == "Run everything on the host"
    assert all(row["description"] for row in rows.values())
    assert "fusions" in rows["exact"]["honours"]
    assert "fusions" not in rows["makespan"]["honours"]
    text = byoc("strategies").out
    assert "Run everything on the host" in text
    assert "honours" not in text


def test_the_built_in_ones_are_listed(byoc: Cli) -> None:
    names = {
        verb: [row["name"] for row in _strict(byoc(verb, "--format", "json").out)]
        for verb in ("zoo", "codegens", "rules")
    }
    assert {"squeezenet", "yunet"} <= set(names["zoo"])
    assert "reference" in names["codegens"]
    assert "dla" in names["rules"]


@pytest.mark.parametrize(
    "verb",
    ["partition", "verify", "inspect", "pack", "zoo", "codegens", "rules", "strategies", "cost-models"],
)
def test_every_verb_has_help(verb: str, byoc: Cli) -> None:
    ran = byoc(verb, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"Usage: byoc {verb} [OPTIONS]")
    assert "--format" in ran.out


def test_the_help_names_every_verb(byoc: Cli) -> None:
    ran = byoc("--help")
    assert ran.code == 0
    for verb in ("partition", "verify", "inspect", "pack", "zoo", "codegens", "rules", "strategies"):
        assert f"\n  {verb} " in ran.out


@pytest.mark.usefixtures("here")
def test_nothing_is_folded_in_a_pipe(byoc: Cli) -> None:
    name = "a" * 200 + ".onnx"
    onnx.save(parse(CHAIN), name)
    lines = byoc("partition", name, "--rules", VANILLA).out.splitlines()
    assert lines[0].startswith("Nothing was offloaded: for 66.7 % of the work the reason is: Relu: ")
    assert lines[1].startswith(f"{name}: 0 of 3 nodes")


@pytest.mark.usefixtures("here")
def test_options_reach_the_pipeline(byoc: Cli) -> None:
    onnx.save(parse("g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }"), "open.onnx")
    common = "kind: roofline\npeak: {default: 1.0e+9}\n"
    link = "launch: 7\nlink: {bandwidth: .inf}\n"
    Path("near.yaml").write_text(f"{common}{link}name: near\nbandwidth: 1.0e+9\n", "utf-8")
    Path("slow.yaml").write_text(f"{common}name: slow\nbandwidth: 0.5\n", "utf-8")
    ran = byoc(
        *("partition", "open.onnx", "--rules", VANILLA, "--format", "json", "-o", "out"),
        *("--strategy", "all-supported", "--dim", "n=3", "--no-verify"),
        *("--cost-model", "near.yaml", "--host-cost-model", "slow.yaml", "--codegen", "reference"),
    )
    report = _strict(ran.out)
    assert report["strategy"] == "all-supported"
    assert report["regions"][0]["inputs"][0]["shape"] == [3, 4]
    assert report["predicted"]["launch"] == 7
    assert report["predicted"]["host_only"] == 96 / 0.5  # the bytes of x and y over the host's bandwidth
    assert report["not_verified"] == "verification was turned off"
    asked = _strict(Path("out/manifest.json").read_text("utf-8"))["asked"]
    assert set(asked.pop("precision").values()) <= {None, False}
    assert asked == {
        "model": "open.onnx",
        "rules": ["vanilla.yaml"],
        "strategy": "all-supported",
        "objective": "latency",
        "cost_model": "near.yaml",
        "host_cost_model": "slow.yaml",
        "unknown_costs": "estimate",
        "codegen": "reference",
        "codegen_options": {},
        "dims": {"n": 3},
        "trips": {},
        "placement": None,
        "strict": False,
        "isolate": False,
        "compile_timeout": None,
        "gate": None,
    }


SCRIPT = "import sys; from byoc.cli import main; sys.argv = ['byoc', *sys.argv[1:]]; main()"


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
@pytest.mark.usefixtures("here")
def test_progress_goes_to_a_terminal_on_standard_error(warm_processes: WarmProcesses) -> None:
    leader, follower = os.openpty()
    command = [
        sys.executable,
        "-c",
        SCRIPT,
        "partition",
        "net.onnx",
        "--rules",
        str(VANILLA),
        "-o",
        "out",
    ]
    environment = os.environ | {"TERM": "xterm"}
    started = warm_processes.Popen(command, stdout=subprocess.PIPE, stderr=follower, env=environment)
    printed, _ = started.communicate(timeout=1200)
    os.close(follower)
    shown = os.read(leader, 1 << 16)
    os.close(leader)
    assert started.returncode == 0
    assert b"\x1b[" in shown
    assert printed.startswith(b"net.onnx: 5 of 10 nodes")
    assert b"\x1b" not in printed


@pytest.mark.usefixtures("here")
def test_no_progress_in_a_pipe(byoc: Cli) -> None:
    ran = byoc("partition", "net.onnx", "--rules", VANILLA, "-o", "out")
    assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize(
    ("step", "part"),
    [
        ("place", (0, None)),
        ("compile dla_0 with c (1 of 4)", (0, 4)),
        ("photos: sample 3 of 64", (2, 64)),
        ("12 of 64 cases: 1 of 2 failed", (0, 2)),
        ("9 of 4", (0, None)),
        ("0 of 4 done", (0, 4)),
    ],
)
def test_a_step_that_counts_is_a_bar(
    step: str, part: tuple[int, int | None], byoc: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    bars: list[tuple[int, int | None]] = []

    def stop_behind_it(*_: Any, **__: Any) -> Any:
        report_step(step)
        raise InputError("that is all")

    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setattr(
        "rich.progress.Progress.update",
        lambda *_, completed, total, **__: bars.append((completed, total)),
    )
    monkeypatch.setattr("byoc.partition", stop_behind_it)
    assert byoc("partition", "net.onnx", "--rules", VANILLA).code == 1
    assert bars == [part]


def test_progress_counts_what_is_compiled_and_compared(tmp_path: Path) -> None:
    steps: list[str] = []
    result = cut(parse(UNLIKE), tmp_path / "b", progress=steps.append)
    first, second = (region.name for region in result.plan.regions)
    assert [step for step in steps if step.startswith("compile")] == [
        f"compile {first} with reference (1 of 2)",
        f"compile {second} with reference (2 of 2)",
    ]


def test_progress_names_the_steps(tmp_path: Path) -> None:
    steps: list[str] = []
    cut(parse(CHAIN), tmp_path / "b", progress=steps.append)
    assert steps == [
        "load model",
        "annotate for dla",
        "group",
        "place 3 units by all-supported",
        "outline",
        "convert",
        "write weights",
        "compile dla_0 with reference",  # dla_1 is the same
        "verify",
        "compare dla_0 (1 of 2)",
        "compare dla_1 (2 of 2)",
        "estimate gains",
    ]


def test_a_thread_that_begins_after_the_end_says_nothing(
    byoc: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is the one which watches for signals while a command runs."""
    late: list[Thread] = []
    start = Thread.start
    monkeypatch.setattr(
        Thread, "start", lambda it: late.append(it) if it.name == "byoc-signals" else start(it)
    )
    assert byoc("zoo").code == 0
    (watcher,) = late
    watcher.run()
