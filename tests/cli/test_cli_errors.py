"""Whose fault it was: the exit code and one sentence; never a traceback for what a user can cause."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from helpers import vendors
from helpers.cutting import CHAIN, files, ramp
from helpers.support import VANILLA, Ran, parse, sample_cases

Cli = Callable[..., Ran]
RULES = """target: npu
cost_model: dla
dtype: float32
ops:
  - op: Relu
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with m.onnx in it."""
    monkeypatch.chdir(tmp_path)
    onnx.save(parse(CHAIN), "m.onnx")
    return tmp_path


def _refused(here: Path, byoc: Cli, *arguments: str | Path) -> str:
    """Return the one sentence that a bad `byoc partition -o out` ends with; nothing was written."""
    before = files(here)
    ran = byoc("partition", *arguments, "-o", "out")
    return _sentence(ran, here, before)


def _sentence(ran: Ran, here: Path, before: dict[str, bytes]) -> str:
    assert (ran.code, ran.out) == (1, "")
    assert "Traceback" not in ran.err
    assert ran.err.startswith("byoc: ")
    assert ran.err.endswith("\n")
    assert ran.err.count("\n") == 1
    assert files(here) == before
    assert not list(here.glob(".*"))
    return ran.err.removeprefix("byoc: ").removesuffix("\n")


def test_no_such_file(here: Path, byoc: Cli) -> None:
    assert _refused(here, byoc, "n.onnx", "--rules", VANILLA) == "n.onnx: no such file"


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("mm.onnx", "m.onnx"), ("M.onnx", "m.onnx"), ("m.onx", "m.onnx"), ("m", "m.onnx")],
)
def test_a_missing_file_names_the_nearest_one(wrong: str, near: str, here: Path, byoc: Cli) -> None:
    told = _refused(here, byoc, wrong, "--rules", VANILLA)
    assert told == f"{wrong}: no such file (did you mean {near}?)"


def test_a_bundle_is_no_model(here: Path, byoc: Cli) -> None:
    assert byoc("partition", "m.onnx", "--rules", VANILLA, "-o", "b").code == 0
    told = _refused(here, byoc, "b", "--rules", VANILLA)
    assert told == "b: is a bundle, not an ONNX model: give the model that it was made of"


def test_a_folder_is_no_model(here: Path, byoc: Cli) -> None:
    (here / "folder").mkdir()
    assert _refused(here, byoc, "folder", "--rules", VANILLA) == "folder: is a folder, not an ONNX model"


def test_a_truncated_model(here: Path, byoc: Cli) -> None:
    model = parse("g (float[1, 400] x) => (float[1, 400] y) { y = Add(x, k) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(ramp(1, 400), "k"))
    whole = model.SerializeToString()
    (here / "cut.onnx").write_bytes(whole[: len(whole) // 2])
    assert _refused(here, byoc, "cut.onnx", "--rules", VANILLA).startswith(
        "cut.onnx: not an ONNX model, or a truncated one ("
    )


@pytest.mark.parametrize("content", ["Dear diary,\n", "<html></html>", "", "version https://git-lfs"])
def test_a_text_file_called_onnx(content: str, here: Path, byoc: Cli) -> None:
    (here / "text.onnx").write_text(content)
    assert _refused(here, byoc, "text.onnx", "--rules", VANILLA).startswith(
        "text.onnx: not an ONNX model"
    )


def test_a_model_that_the_checker_refuses(here: Path, byoc: Cli) -> None:
    onnx.save(parse("g (float[1, 4] x) => (float[1, 4] y) { y = Relu(x, x, x) }"), "bad.onnx")
    sentence = _refused(here, byoc, "bad.onnx", "--rules", VANILLA)
    assert sentence.startswith("bad.onnx: not valid ONNX: ")
    assert "Relu" in sentence


def test_a_model_with_a_cycle(here: Path, byoc: Cli) -> None:
    text = "g (float[4] x) => (float[4] y) { a = Add(x, b) b = Relu(a) y = Relu(b) }"
    (here / "bad.onnx").write_bytes(parse(text).SerializeToString())
    sentence = _refused(here, byoc, "bad.onnx", "--rules", VANILLA)
    assert re.fullmatch(r"bad\.onnx: the nodes form a cycle through (Add 'a'|Relu 'b')", sentence)


def test_external_data_that_is_not_there(here: Path, byoc: Cli) -> None:
    model = parse("g (float[1, 400] x) => (float[1, 400] y) { y = Add(x, k) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(ramp(1, 400), "k"))
    onnx.save(model, "ext.onnx", save_as_external_data=True, location="ext.bin")
    (here / "ext.bin").unlink()
    assert _refused(here, byoc, "ext.onnx", "--rules", VANILLA) == (
        "ext.onnx: tensor 'k' has external data in 'ext.bin', and there is no such file beside the model"
    )


def test_a_model_that_was_partitioned_for_the_target_before(here: Path, byoc: Cli) -> None:
    arguments = ("--rules", "npu.yaml", "--strategy", "all-supported")
    (here / "npu.yaml").write_text(RULES)
    assert byoc("partition", "m.onnx", *arguments, "-o", "first").code == 0
    (here / "npu.yaml").write_text(RULES.replace("Relu", "Sigmoid"))
    assert re.fullmatch(
        r"first/model\.onnx: is partitioned already: 'npu_\w+' is a region of npu; "
        "take the model that it was made of",
        _refused(here, byoc, "first/model.onnx", *arguments),
    )


def test_a_rule_file_with_a_misspelt_key(here: Path, byoc: Cli) -> None:
    (here / "npu.yaml").write_text(RULES.replace("dtype", "dtypo"))
    ran = byoc("partition", "m.onnx", "--rules", "npu.yaml", "-o", "out")
    assert ran.code == 1
    lines = ran.err.splitlines()
    assert any(
        re.match(r"byoc: npu\.yaml: dtypo: no such key \(did you mean dtype\?\); known: ", line)
        for line in lines
    )
    assert all(line.startswith("byoc: npu.yaml: ") for line in lines)
    assert not (here / "out").exists()


def test_an_operator_that_does_not_exist(here: Path, byoc: Cli) -> None:
    (here / "npu.yaml").write_text(RULES.replace("Relu", "Rellu"))
    sentence = _refused(here, byoc, "m.onnx", "--rules", "npu.yaml")
    assert sentence.startswith("npu.yaml: ops[0].op: ONNX has no operator 'Rellu' (did you mean ")


def test_no_such_rule_file(here: Path, byoc: Cli) -> None:
    assert _refused(here, byoc, "m.onnx", "--rules", "dlaa").startswith(
        "dlaa: no such file and no installed rule file (did you mean dla?); installed: "
    )


def test_an_unknown_codegen(here: Path, byoc: Cli) -> None:
    sentence = _refused(here, byoc, "m.onnx", "--rules", VANILLA, "--codegen", "referenz")
    assert sentence.startswith("referenz: no such codegen (did you mean reference?); installed: ")


def test_an_unknown_strategy(here: Path, byoc: Cli) -> None:
    assert _refused(here, byoc, "m.onnx", "--rules", VANILLA, "--strategy", "mincut").startswith(
        "mincut: no such strategy (did you mean min-cut?); installed: all-supported, "
    )


@pytest.mark.parametrize("option", ["--cost-model", "--host-cost-model"])
def test_an_unknown_cost_model(option: str, here: Path, byoc: Cli) -> None:
    assert _refused(here, byoc, "m.onnx", "--rules", VANILLA, option, "hos").startswith(
        "hos: no such file and no installed cost model (did you mean host?); installed: "
    )


def test_an_unknown_zoo_model(here: Path, byoc: Cli) -> None:
    sentence = _refused(here, byoc, "zoo:squeezenett", "--rules", VANILLA)
    assert "squeezenett" in sentence
    assert "(did you mean squeezenet?)" in sentence


def test_an_output_whose_parent_is_missing(here: Path, byoc: Cli) -> None:
    before = files(here)
    ran = byoc("partition", "m.onnx", "--rules", VANILLA, "-o", "no/such/out")
    assert _sentence(ran, here, before) == (
        "no/such/out: cannot be written: there is no folder 'no/such'"
    )


def test_an_output_under_a_file(here: Path, byoc: Cli) -> None:
    before = files(here)
    ran = byoc("partition", "m.onnx", "--rules", VANILLA, "-o", "m.onnx/out")
    assert _sentence(ran, here, before) == "m.onnx/out: cannot be written: 'm.onnx' is a file, no folder"


@pytest.mark.parametrize("output", [".", "..", "m.onnx"])
def test_an_output_that_is_something_else(output: str, here: Path, byoc: Cli) -> None:
    before = files(here)
    ran = byoc("partition", "m.onnx", "--rules", VANILLA, "-o", output)
    assert _sentence(ran, here, before) == (
        f"{output}: exists and is not a bundle, so it is not replaced"
    )


def test_a_dimension_that_the_model_has_not(here: Path, byoc: Cli) -> None:
    onnx.save(parse("g (float[batch, 4] x) => (float[batch, 4] y) { y = Relu(x) }"), "open.onnx")
    assert _refused(here, byoc, "open.onnx", "--rules", VANILLA, "--dim", "bach=2") == (
        "open.onnx: no input has a dimension named 'bach' (did you mean batch?); open dimensions: batch"
    )
    assert _refused(here, byoc, "open.onnx", "--rules", VANILLA, "--dim", "batch=-1") == (
        "open.onnx: dimension batch=-1: a size is at least 0 and less than 2**63"
    )
    assert _refused(here, byoc, "open.onnx", "--rules", VANILLA, "--shape", "x=2,5") == (
        "open.onnx: shape x=2,5: dimension 1 of 'x' is 4 in the model"
    )


def test_a_codegen_option_that_is_not_known(here: Path, byoc: Cli) -> None:
    arguments = ("--strategy", "all-supported", "--codegen-option", "fast=1")
    assert _refused(here, byoc, "m.onnx", "--rules", VANILLA, *arguments).endswith(
        "codegen reference has no option 'fast'; it has: none"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--dim", "batch"], "'batch' is not of the form NAME=VALUE, such as batch=1"),
        (["--dim", "=1"], "'=1' is not of the form NAME=VALUE"),
        (["--shape", "x=1,,2"], "'x': an extent is missing at a comma"),
        (["--min-offload", "90%"], "expected a number alone, such as 0.9: no unit, and no % sign"),
        (["--max-regions", "a"], "expected a whole number alone, such as 4"),
        (["--codegen-option", "fast"], "'fast' is not of the form NAME=VALUE"),
        (["--format", "yaml"], "'yaml' is not one of"),
        (["--speed"], "No such option: --speed"),
        (["another.onnx"], "several models are placed as one problem with --together"),
    ],
)
def test_usage_errors(arguments: list[str], sentence: str, here: Path, byoc: Cli) -> None:
    before = files(here)
    ran = byoc("partition", "m.onnx", "--rules", VANILLA, "-o", "out", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert "Traceback" not in ran.err
    assert sentence in ran.err
    assert files(here) == before


@pytest.mark.parametrize(
    "arguments", [["partition"], ["partition", "m.onnx"], ["verify"], ["inspect"], ["fly"], ["--fly"]]
)
def test_a_command_that_is_not_complete(arguments: list[str], byoc: Cli) -> None:
    ran = byoc(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert "Usage: byoc" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("verb", ["verify", "inspect"])
def test_what_is_no_bundle(verb: str, here: Path, byoc: Cli) -> None:
    before = files(here)
    assert _sentence(byoc(verb, "nothing"), here, before) == "nothing: no such bundle"
    assert _sentence(byoc(verb, "."), here, before) == (".: not a bundle: it holds no manifest.json")


def test_wrong_numbers_exit_with_1_and_name_output_and_error(
    here: Path, byoc: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.install(monkeypatch, odd=vendors.gives(lambda inputs, name: {name: -inputs["x"]}))
    onnx.save(parse("g (float[1, 4] x) => (float[1, 4] score) { score = Relu(x) }"), "one.onnx")
    arguments = ("--strategy", "all-supported", "--codegen", "odd", "--strict")
    assert re.fullmatch(
        r"verification failed: output 'score' differs from one\.onnx by [0-9.]+ of its range, "
        r"at most 0\.0001 is allowed for float32; region dla_[0-9a-z]{6} alone: output 'score' "
        r"differs from its own ONNX on plain onnxruntime by [0-9.]+ of its range, "
        r"at most 0\.0001 is allowed for float32 "
        r"\(nothing was written; --no-verify writes it all the same\)",
        _refused(here, byoc, "one.onnx", "--rules", VANILLA, *arguments),
    )


def test_a_defect_exits_with_3_and_a_traceback(
    here: Path, byoc: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> None:
        raise IndexError("list index out of range")

    monkeypatch.setattr("byoc.pipeline._planning_stages.annotate_graphs", broken)
    ran = byoc("partition", "m.onnx", "--rules", VANILLA, "-o", "out")
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.startswith("Traceback (most recent call last):\n")
    assert ran.err.endswith(
        "IndexError: list index out of range\n"
        "byoc: this is a defect of byoc; please report it with the lines above\n"
    )
    assert not (here / "out").exists()


def test_an_interrupt_exits_with_130(here: Path, byoc: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("byoc.pipeline._planning_stages.annotate_graphs", stop)
    ran = byoc("partition", "m.onnx", "--rules", VANILLA, "-o", "out")
    assert ran.code == 130
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_a_stop_that_python_hands_on_as_another_error_is_a_stop(
    stop: BaseException, code: int, here: Path, byoc: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Descriptor:
        def __set_name__(self, owner: type, name: str) -> None:
            raise stop

    def define(*_: object) -> None:
        type("Made", (), {"field": Descriptor()})

    monkeypatch.setattr("byoc.pipeline._planning_stages.annotate_graphs", define)
    ran = byoc("partition", "m.onnx", "--rules", VANILLA, "-o", "out")
    assert (ran.code, ran.out, ran.err) == (code, "", "")


HINT = "onnxruntime is not installed (pip install onnxruntime)"


@pytest.fixture
def no_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)


@pytest.mark.usefixtures("no_runtime")
def test_without_onnxruntime_partition_works_and_says_so(here: Path, byoc: Cli) -> None:
    ran = byoc("partition", "m.onnx", "--rules", VANILLA, "-o", "out")
    assert (ran.code, ran.err) == (4, "")
    nothing, first, summary = ran.out.splitlines()[:3]
    assert nothing.startswith("Nothing was offloaded: ")
    assert first == f"Not verified: {HINT}"
    assert summary.endswith("; not verified")
    assert (here / "out/manifest.json").is_file()
    assert byoc("inspect", "out").code == 0
    report = json.loads(
        byoc("partition", "m.onnx", "--rules", VANILLA, "-o", "out", "--format", "json").out
    )
    assert (report["verification_missing"], report["not_verified"]) == (True, HINT)


@pytest.mark.usefixtures("here", "no_runtime")
@pytest.mark.parametrize("asked", [["-o", "out", "--no-verify"], []])
def test_what_nobody_asked_to_verify_is_no_reason_for_an_exit_code(asked: list[str], byoc: Cli) -> None:
    ran = byoc("partition", "m.onnx", "--rules", VANILLA, *asked)
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert any("; not verified: " in line for line in lines[:3])
    assert any(line.startswith("Not verified: ") for line in lines[:2]) == bool(asked)


@pytest.mark.usefixtures("no_runtime")
@pytest.mark.parametrize("verb", [["codegens"], ["rules"], ["zoo"]])
def test_without_onnxruntime_lists_work(verb: list[str], byoc: Cli) -> None:
    assert byoc(*verb).code == 0


def test_without_onnxruntime_verify_says_how_to_get_it(
    here: Path, byoc: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    byoc("partition", "m.onnx", "--rules", VANILLA, "-o", "out")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    before = files(here)
    for against in ([], ["--against", "m.onnx"]):
        assert _sentence(byoc("verify", "out", *against), here, before) == HINT


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("closed", sample_cases(["<&-", "2>&-", "<&- 2>&-"], "<&- 2>&-"))
def test_streams_that_are_closed(closed: str) -> None:
    script = "from byoc.cli import main; main()"
    command = f'"{sys.executable}" -c "{script}" partition "$0" --rules "{VANILLA}" {closed}'
    ran = {
        model: subprocess.run(
            ["/bin/sh", "-c", command, model], stdout=subprocess.PIPE, check=False, timeout=1200
        )
        for model in ("m.onnx", "n.onnx")
    }
    assert ran["m.onnx"].returncode == 0
    assert ran["m.onnx"].stdout.startswith(b"Nothing was offloaded: ")
    assert (ran["n.onnx"].returncode, ran["n.onnx"].stdout) == (1, b"")


@pytest.mark.parametrize(
    ("results", "model", "code"),
    sample_cases(
        [
            (">&-", "m.onnx", 0),
            (">&- 2>&-", "m.onnx", 0),
            (">&-", "n.onnx", 1),
            (">/dev/full", "m.onnx", 1),
        ],
        *[(">&- 2>&-", "m.onnx", 0), (">/dev/full", "m.onnx", 1)],
    ),
)
def test_results_that_nobody_gets(results: str, model: str, code: int, here: Path) -> None:
    script = "from byoc.cli import main; main()"
    command = f'"{sys.executable}" -c "{script}" partition {model} --rules "{VANILLA}" -o out {results}'
    ran = subprocess.run(["/bin/sh", "-c", command], stderr=subprocess.PIPE, check=False, timeout=1200)
    assert ran.returncode == code
    assert b"Traceback" not in ran.stderr
    assert (here / "out/manifest.json").is_file() == (model == "m.onnx")


@pytest.mark.usefixtures("no_runtime")
@pytest.mark.parametrize(("asked", "code"), sample_cases([(["--no-verify"], 0), ([], 4)], ([], 4)))
def test_a_reader_that_leaves_early_changes_no_exit_code(
    asked: list[str], code: int, here: Path
) -> None:
    script = "import sys; sys.modules['onnxruntime'] = None; from byoc.cli import main; main()"
    partition = ["partition", "m.onnx", "--rules", VANILLA, "-o", "out", *asked]
    with subprocess.Popen(
        [sys.executable, "-c", script, *partition], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, errors = process.communicate(timeout=1200)
    assert (process.returncode, errors) == (code, b"")
    assert (here / "out/manifest.json").is_file()


@pytest.mark.parametrize("save", ["out", "out/p.yaml"])
def test_a_placement_is_not_saved_into_the_bundle(save: str, here: Path, byoc: Cli) -> None:
    assert byoc("partition", "m.onnx", "--rules", VANILLA, "-o", "out").code == 0
    sentence = (
        f"{save}: cannot be written: it would change the bundle that is written, out"
        if save != "out"
        else "out: cannot be written: it is a folder"
    )
    assert _refused(here, byoc, "m.onnx", "--rules", VANILLA, "--save-placement", save) == sentence


def test_a_placement_and_a_bundle_of_one_name(here: Path, byoc: Cli) -> None:
    assert _refused(here, byoc, "m.onnx", "--rules", VANILLA, "--save-placement", "out") == (
        "out: cannot be written: it would change the bundle that is written, out"
    )


def test_outputs_and_trace_of_one_name(here: Path, byoc: Cli) -> None:
    assert byoc("partition", "m.onnx", "--rules", VANILLA, "-o", "out").code == 0
    before = files(here)
    ran = byoc("run", "out", "--inputs", "random", "-o", "y.npz", "--trace", "y.npz")
    assert _sentence(ran, here, before) == (
        "y.npz: cannot be written: it would replace the file of the outputs, y.npz"
    )


def test_thresholds_and_outputs_of_a_verification(here: Path, byoc: Cli) -> None:
    assert byoc("partition", "m.onnx", "--rules", VANILLA, "-o", "out").code == 0
    before = files(here)
    assert _sentence(byoc("verify", "out", "--snr", "nan"), here, before) == (
        "signal-to-noise ratio nan: not a number of dB"
    )
    ran = byoc("verify", "out", "-o", "faults")
    assert (ran.code, ran.out) == (2, "")
    assert "--output: it says where --bisect writes" in ran.err
    assert files(here) == before


ENDLESS = """
import resource, sys
import byoc, numpy, scipy
from byoc.cli import load_verb, main
load_verb("partition")
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (50 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
def solve(*_, **__):
    import scipy.special
byoc.open_bundle = solve
sys.argv = ["byoc", "inspect", "b"]
main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is reckoned from /proc")
def test_too_little_memory_for_the_solvers_is_one_sentence() -> None:
    """OpenBLAS asks for memory without end while it is loaded."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", ENDLESS],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
        env=environment,
    )
    assert (ran.returncode, ran.stderr) == (1, "byoc: there is not enough memory for it\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "study table a.csv",
            "a.csv: not the results of a study: there is no column model; `byoc study",
        ),
        (
            "study plot noise.csv -o f.html",
            "noise.csv: cannot be read: it is not text in UTF-8, as CSV is",
        ),
        ("pack zoo:squeezenet -o x.zip", "zoo:squeezenet: no such bundle: it is a model, for"),
        ("place zoo:squeezenet", "zoo:squeezenet: no such file: it is a model, for"),
        (
            "cost-models check a.csv",
            "a.csv: expected a mapping of keys at the top, `key: value` line by line",
        ),
        ("cache clear --codegen dlaa", "no codegen of this name is installed or has results in"),
        (
            "compare m --rules dla --link 10GB/s",
            "'10GB/s' is no number of GB/s above 0, such as 10 or 0.5",
        ),
        ("compare m --rules dla --link 0", "'0' is no number of GB/s above 0, such as 10 or 0.5"),
        ("calibrate net.onnx --data random -o r.yaml --percentile 50", "percentile has it (--method)"),
    ],
)
def test_mistakes_are_answered_with_what_to_do(byoc: Cli, here: Path, words: str, sentence: str) -> None:
    (here / "a.csv").write_text("a,b\n1,2\n")
    (here / "noise.csv").write_bytes(b"\xff\xfe\x00,\n")
    onnx.save(parse("g (float[1] x) => (float[1] y) { y = Relu(x) }"), here / "net.onnx")
    ran = byoc(*words.split())
    assert ran.code in (1, 2)
    assert sentence in " ".join((ran.out + ran.err).split())
