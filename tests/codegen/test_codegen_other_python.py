"""Codegens in another Python: what they are told, what they give, and what goes wrong with them."""

import json
import re
import shlex
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.elsewhere import PLUG_IN, Configure, write_settings
from helpers.support import Ran, parse

import byoc as package
from byoc.codegen import (
    CodegenFailedError,
    Codegens,
    CompileError,
    Cycles,
    Isolation,
    NotHereError,
    Region,
    ResourceError,
    ask_verdicts,
    compile_region,
    compile_together,
    describe_codegens,
    estimate_region,
    exchange_weights,
    limit_trial,
    load_region,
    measure_executor,
    measure_seconds,
    parse_codegen_options,
    read_region,
)
from byoc.errors import InputError
from byoc.model import to_numpy_dtype
from byoc.onnxrt import has_runtime
from byoc.reporting import summarize_report

MODEL = """g (float[2, 4] x) => (float[2, 3] y) <float[4, 3] w = {1,2,3,4,5,6,7,8,9,10,11,12}> {
    a = Relu(x) m = MatMul(a, w) y = Add(m, m) }"""
HOST_BETWEEN = """g (float[2, 4] x) => (float[2, 3] y) <float[4, 3] w = {1,2,3,4,5,6,7,8,9,10,11,12}> {
    a = Relu(x) s = Sin(a) m = MatMul(s, w) y = Add(m, m) }"""
RULES = PLUG_IN / "acme-elsewhere.yaml"
NAME = "acme-elsewhere"
X = np.array([[1, -2, 3, 4], [-1, 0, 2, -4]], np.float32)


@pytest.fixture
def region(tmp_path: Path) -> Region:
    onnx.save(parse(MODEL), tmp_path / "r.onnx")
    return read_region(tmp_path / "r.onnx", "acme_0", NAME)


def _call(codegen: Any, method: str, region: Region) -> Any:
    options = parse_codegen_options(codegen, {"speed": "2"})
    if method == "compile":
        return compile_region(codegen, region, options)
    if method == "check":
        return ask_verdicts(codegen, region.load(), options)
    if method == "cost":
        return measure_seconds(codegen, region)
    artifact = compile_region(codegen, region, options)
    if method == "estimate":
        return estimate_region(codegen, region, options, artifact)
    run = load_region(codegen, region, artifact)
    return run if method == "load" else run({"x": X})


def test_a_codegen_in_an_older_python_compiles_and_runs(
    old_python: str, configure: Configure, region: Region
) -> None:
    configure(python=old_python)
    with closing(Codegens()) as codegens:
        codegen: Any = codegens.find(NAME)
        made = _call(codegen, "compile", region)
        assert (made.metadata["mode"], made.metadata["memory"]) == ("fast", "1024")
        assert int(made.metadata["numpy"].split(".")[0]) == 1 != int(np.__version__.split(".")[0])
        given = _call(codegen, "run", region)["y"]
        weights = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
        assert np.array_equal(given, 2 * (np.maximum(X, 0) @ weights))
        assert sorted(verdict.own_cpu for verdict in _call(codegen, "check", region)) == [0, 0, 1]
        assert all(_call(codegen, "check", region))
        assert _call(codegen, "estimate", region) == Cycles(300.0, 2e6)
        assert _call(codegen, "cost", region) == 0.25
        assert codegen.compatible(region, made)


@pytest.mark.skipif(not has_runtime(), reason="onnxruntime verifies")
def test_a_bundle_by_an_older_python_is_verified_and_run(
    old_python: str, configure: Configure, byoc: Callable[..., Ran], tmp_path: Path
) -> None:
    configure(python=old_python)
    onnx.save(parse(HOST_BETWEEN), tmp_path / "m.onnx")
    arguments = ("--strategy", "all-supported", "-o", tmp_path / "m.byoc", "--format", "json")
    done = byoc("partition", tmp_path / "m.onnx", "--rules", RULES, *arguments)
    assert (done.code, len(json.loads(done.out)["regions"])) == (0, 2)
    ran = package.load(tmp_path / "m.byoc")({"x": X})
    weights = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
    assert np.allclose(ran["y"], 2 * (np.sin(np.maximum(X, 0)) @ weights), rtol=1e-5)
    asked = byoc("partition", tmp_path / "m.onnx", "--rules", RULES, "--ask", "both")
    assert (
        "was asked about 3 units of acme-elsewhere, and refuses 0; the device's own CPU computes 1 "
        "(Add), priced as on the host" in (asked.out + asked.err)
    )
    assert byoc("verify", tmp_path / "m.byoc").code == 0


def test_what_the_own_cpu_of_a_device_computes_takes_what_the_host_takes(
    configure: Configure,
) -> None:
    configure()
    text = "g (float[1024, 1024] x) => (float[1024, 1024] y) { y = OP(x, x) }"
    options: dict[str, Any] = {"strategy": "all-supported", "cache": False}
    took = {}
    reports = {}
    for operator in ("Add", "Mul"):  # alike to the cost model; the own CPU computes Add
        for ask in (None, "legality"):
            model = parse(text.replace("OP", operator))
            report = package.partition(model, RULES, ask=ask, **options).report
            took[operator, ask], reports[operator, ask] = report.predicted, report
    alike = {took[key].execution for key in (("Add", None), ("Mul", None), ("Mul", "legality"))}
    asked = took["Add", "legality"]
    assert len(alike) == 1
    assert asked.execution == pytest.approx(asked.host_only)
    assert asked.execution not in alike
    counts = {key: [region.own_cpu for region in found.regions] for key, found in reports.items()}
    assert counts == {
        ("Add", None): [0],
        ("Add", "legality"): [1],
        ("Mul", None): [0],
        ("Mul", "legality"): [0],
    }
    (region,) = reports["Add", "legality"].regions
    assert region.model_dump(mode="json")["own_cpu"] == 1
    assert "own_cpu" not in reports["Mul", "legality"].regions[0].model_dump(mode="json")
    said = summarize_report(reports["Add", "legality"])
    assert "in 1 region, 1 of them on the device's own CPU, 0 on the host" in said


def test_a_trial_has_a_limit_of_its_own_unless_the_user_gave_one(
    configure: Configure, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("byoc.codegen._worker.TRIAL_SECONDS", 1.0)
    configure(does="compile hang")
    with closing(Codegens()) as codegens, limit_trial(), pytest.raises(CodegenFailedError) as raised:
        compile_region(codegens.find(NAME), region, {})
    assert str(raised.value) == (
        "compile took longer than 1 s and was stopped (--call-timeout SECONDS allows more)"
    )
    with limit_trial():
        assert Isolation(call_timeout=7).find_limit("compile") == 7
        assert Isolation().find_limit("compile") == 1
    assert Isolation().find_limit("compile") > 1


def test_a_region_is_there_what_it_is_here(
    old_python: str, configure: Configure, tmp_path: Path
) -> None:
    text = """g (uint8[1, 4] x) => (uint8[1, 4] y)
        <float s = {0.5}, uint8 z = {3}, int8[4, 4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16},
         float[4] ws = {0.1,0.2,0.3,0.4}> {
        d = DequantizeLinear(x, s, z) v = DequantizeLinear<axis = 1>(w, ws)
        m = MatMul(d, v) r = Relu(m) y = QuantizeLinear(r, s, z) }"""
    onnx.save(parse(text), tmp_path / "q.onnx")
    np.savez(tmp_path / "samples.npz", np.uint8([[1, 2, 3, 4]]), np.uint8([[5, 6, 7, 8]]))
    region = replace(
        read_region(tmp_path / "q.onnx", "reader_0", "reader"), samples_file=tmp_path / "samples.npz"
    )
    configure("reader", "Reader", old_python)
    with closing(Codegens()) as codegens:
        assert codegens.find("reader").calibrates  # type: ignore[attr-defined]
        made = compile_region(codegens.find("reader"), region, {})
        saved = Path(made.metadata["saved"])
        assert made.metadata["files"] == "model.onnx"  # whose constants importers find in it
        assert not made.metadata["onnx"].startswith(onnx.__version__)
        whole = onnx.load_from_string(made.files["whole.onnx"])
        assert whole.graph == region.load().graph
        other = onnx.load_from_string(made.files["saved.onnx"])
        assert (other.ir_version, other.opset_import[0].version) == (7, 13)
        assert len(other.graph.node) == 4
        wanted = onnx.load_from_string(made.files["wanted.onnx"])
        assert [len(each.input) for each in wanted.graph.node if "Linear" in each.op_type] == [3, 3, 3]
        del region
    told = {name: made.files[name].decode() for name in made.files if name.endswith(".txt")}
    assert "op='MatMul'" in told["operations.txt"]
    assert told["quantized.txt"].count("Operation(") == 3  # Relu and QuantizeLinear are parts
    assert "scale=array([0.1, 0.2, 0.3, 0.4], dtype=float32)" in told["quantized.txt"]
    assert "TensorContract(tensor='x', name='x'" in told["contracts.txt"]
    assert told["type.txt"] == "TensorType(dtype='uint8', shape=(1, 4), elements=4, bytes=4)"
    assert told["path.txt"] == "True"
    assert told["samples.txt"] == "[{'x': [[1, 2, 3, 4]]}, {'x': [[5, 6, 7, 8]]}]"
    assert told["emitted.txt"] == "[1, 1, 'MatMul to m', 'Relu to r', 1]"
    assert not saved.exists()


def test_options_are_read_here_and_made_there(configure: Configure, region: Region) -> None:
    configure()
    with closing(Codegens()) as codegens:
        codegen: Any = codegens.find(NAME)
        given = {"mode": "small", "memory": "4KiB", "license": "none"}
        made = compile_region(codegen, region, parse_codegen_options(codegen, given))
        assert (made.metadata["mode"], made.metadata["memory"]) == ("small", "4096")
        for wrong, sentence in (
            ({"sped": "1"}, "has no option 'sped' (did you mean speed?); it has: speed, mode, memory, "),
            ({"mode": "slow"}, "takes as option 'mode' one of fast, small, not 'slow'"),
            ({"speed": "9"}, "refuses its options: speed is 9, at most 5"),
        ):
            with pytest.raises(InputError) as caught:
                parse_codegen_options(codegen, wrong)
            assert str(caught.value).startswith(f"codegen {NAME} {sentence}")
        assert "takes 'tool' from the user alone" in codegen.find_wrong_options({"tool": "x"})["tool"]


METHODS = ("compile", "load", "run", "check", "estimate")


def test_a_crash_in_any_method_is_one_sentence(configure: Configure, region: Region) -> None:
    for method in METHODS:
        configure(does=f"{method} segv")
        with closing(Codegens()) as codegens, pytest.raises(CodegenFailedError) as caught:
            _call(codegens.find(NAME), method, region)
        assert str(caught.value) == f"its process was killed by SIGSEGV in {method}"


REASONS = {
    "exit": (CodegenFailedError, "its process ended with exit code 7 in compile"),
    "sys.exit": (CodegenFailedError, "failed with SystemExit: 3"),
    "hang": (CodegenFailedError, "compile took longer than 2 s and was stopped"),
    "garbage": (CodegenFailedError, "its process gave an answer to compile that cannot be read"),
    "answer": (CodegenFailedError, "its process gave an answer to compile that cannot be read"),
    "question": (CodegenFailedError, "its process gave an answer to compile that cannot be read"),
    "other": (CodegenFailedError, "its process gave an answer to compile that cannot be read"),
    "raise": (CodegenFailedError, "failed with KeyError: 'popitem(): dictionary is empty'"),
    "refuse": (CompileError, "it is Friday"),
    "large": (ResourceError, "too many"),
    "constant": (
        CodegenFailedError,
        "failed with KeyError: \"acme_0 has no constant 'no_such', it has: w\"",
    ),
}


@pytest.mark.parametrize("way", REASONS)
def test_what_else_goes_wrong_is_one_sentence(way: str, configure: Configure, region: Region) -> None:
    kind, sentence = REASONS[way]
    configure(does=f"compile {way}")
    with closing(Codegens(Isolation(call_timeout=2.0))) as codegens:
        with pytest.raises(CompileError) as caught:
            _call(codegens.find(NAME), "compile", region)
        assert type(caught.value) is kind
        assert str(caught.value).partition(" (acme_elsewhere.py:")[0] == sentence
        assert ("(acme_elsewhere.py:" in str(caught.value)) == sentence.startswith("failed with")
        if way == "refuse":
            assert (caught.value.nodes, caught.value.lasting) == (("a",), False)
        if way == "raise":
            assert 'acme_elsewhere.py", line ' in str(caught.value.__cause__.__cause__)  # type: ignore[union-attr]
        configure()
        assert _call(codegens.find(NAME), "cost", region) == 0.25  # the same process, or the next one


def test_an_artifact_that_cannot_run_here(configure: Configure, region: Region) -> None:
    configure(does="load absent")
    with closing(Codegens()) as codegens, pytest.raises(NotHereError, match=r"^no device$"):
        _call(codegens.find(NAME), "load", region)


def test_what_methods_must_not_give(configure: Configure, region: Region) -> None:
    configure("careless", "Careless")
    with closing(Codegens()) as codegens:
        codegen: Any = codegens.find("careless")
        with pytest.raises(CodegenFailedError, match=r"^compile gave dict, not an Artifact$"):
            compile_region(codegen, region, {})
        with pytest.raises(CodegenFailedError, match=r"^cost gave 'much', not seconds above 0$"):
            measure_seconds(codegen, region)
        with pytest.raises(Exception, match=r"^`load` gave a int instead of a function$"):
            codegen.load(region, package.codegen.Artifact())


def test_regions_that_are_compiled_together_and_ones_with_other_weights(
    configure: Configure, region: Region, tmp_path: Path
) -> None:
    configure("together", "Together")
    onnx.save(parse(MODEL.replace("12}", "-5}")), tmp_path / "s.onnx")
    second = read_region(tmp_path / "s.onnx", "acme_1", NAME)
    with closing(Codegens()) as codegens:
        codegen: Any = codegens.find("together")
        options = parse_codegen_options(codegen, {})
        made = compile_together(codegen, [region, second], options)
        assert [each.metadata["with"] for each in made.values()] == ["acme_0", "acme_0, acme_1"]
        taken = exchange_weights(codegen, second, region, made["acme_0"], options)
        assert taken is not None
        assert taken.files == made["acme_1"].files
        assert exchange_weights(codegen, region, region, made["acme_0"], options) is None


def test_a_region_that_writes_into_its_inputs(configure: Configure, region: Region) -> None:
    configure("writer", "Writer")
    with closing(Codegens()) as codegens:
        run = _call(codegens.find("writer"), "load", region)
        with pytest.raises(Exception, match=r"^it wrote into its input 'x', which others read, too$"):
            run({"x": X})


def test_what_it_prints_goes_to_standard_error(
    configure: Configure, region: Region, capfd: pytest.CaptureFixture[str]
) -> None:
    configure(does="run print")
    with closing(Codegens()) as codegens:
        _call(codegens.find(NAME), "run", region)
    assert capfd.readouterr() == ("", "noise\n")


def test_runs_are_measured_there(configure: Configure, region: Region) -> None:
    configure()
    with closing(Codegens()) as codegens:
        codegen: Any = codegens.find(NAME)
        calls: list[Any] = []

        def measure(call: Callable[[], object]) -> list[float]:
            calls.append(call())
            return [1.0, 2.0]

        run = codegen.load(region, _call(codegen, "compile", region))
        assert measure_executor(run, {"x": X}, measure) == [1.0, 2.0]
        assert calls == [None]


def test_types_that_numpy_lacks_cross_as_unsigned_integers(
    old_python: str, configure: Configure, tmp_path: Path
) -> None:
    text = """g (bfloat16[3] x) => (bfloat16[3] y, bfloat16[3] z) <bfloat16[3] w = {16256, 16384, 1}> {
        y = Identity(x) z = Identity(w) }"""
    onnx.save(parse(text), tmp_path / "b.onnx")
    region = read_region(tmp_path / "b.onnx", "passing_0", "passing")
    configure("passing", "Passing", old_python)
    dtype = to_numpy_dtype("bfloat16")
    with closing(Codegens()) as codegens:
        codegen: Any = codegens.find("passing")
        made = compile_region(codegen, region, {})
        assert made.metadata["dtype"] == "uint16"
        given = codegen.load(region, made)({"x": np.array([1.5, -2, 0], dtype)})
    assert [each.dtype for each in given.values()] == [dtype, dtype]
    assert given["y"].tolist() == [1.5, -2, 0]
    assert given["z"].tobytes() == region.constant("w").tobytes()


def test_abilities_are_those_of_the_version_that_it_speaks(configure: Configure) -> None:
    configure("old-interface", "OldInterface")
    found = describe_codegens(["old-interface"])["old-interface"]
    assert not isinstance(found, InputError)
    assert (found.api, "measured" in found.abilities) == (1, True)
    assert "estimate" not in found.abilities


@pytest.mark.skipif(not has_runtime(), reason="onnxruntime verifies")
def test_what_it_compiled_is_kept_until_it_changes(
    configure: Configure, byoc: Callable[..., Ran], tmp_path: Path
) -> None:
    folder = tmp_path / "plug-in"
    folder.mkdir()
    source = (PLUG_IN / "acme_elsewhere.py").read_text()
    (folder / "acme_elsewhere.py").write_text(source)
    record = tmp_path / "record"
    environment = {"PYTHONPATH": str(folder), "RECORD": str(record)}
    arguments = ("--strategy", "all-supported")

    def count_compiled() -> int:
        onnx.save(parse(MODEL), tmp_path / "m.onnx")
        bundle = tmp_path / f"{len(list(tmp_path.iterdir()))}.byoc"
        done = byoc("partition", tmp_path / "m.onnx", "--rules", RULES, *arguments, "-o", bundle)
        assert done.code == 0
        return record.read_text().count("compiled")

    configure(environment=environment)
    found = [count_compiled() for _ in range(2)]
    (folder / "acme_elsewhere.py").write_text(source + "\n# another compiler\n")
    found.append(count_compiled())
    assert found == [1, 1, 2]


@pytest.mark.skipif(not has_runtime(), reason="onnxruntime verifies")
def test_the_documentation_followed_to_the_letter(
    old_python: str,
    configure: Configure,
    byoc: Callable[..., Ran],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    page = (PLUG_IN.parents[2] / "docs" / "codegen_processes.md").read_text("utf-8")
    section = page.partition("## In another Python\n")[2].partition("\n### ")[0]
    blocks = re.findall(r"^```\w+\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    code, settings, commands, with_driver = blocks
    write_settings(with_driver)
    with closing(Codegens()) as codegens, pytest.raises(InputError, match=r"acme_driver.c: there is no"):
        codegens.find_driver("acme")
    (tmp_path / "acme_byoc.py").write_text(code)
    settings = settings.replace("/opt/acme/venv/bin/python", old_python)
    write_settings(settings.replace("/opt/acme/plugin", str(tmp_path)))
    monkeypatch.chdir(tmp_path)
    text = "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { a = Add(x, w) y = Relu(a) }"
    onnx.save(parse(text), "model.onnx")
    rules = RULES.read_text().replace("acme-elsewhere", "acme").replace("[Add,", "[")
    Path("acme.yaml").write_text(rules + "  - {op: Add}\n")
    for line in commands.splitlines():
        extra = ["--strategy", "all-supported"] if "partition" in line else []
        assert byoc(*shlex.split(line)[1:], *extra).code == 0, line
    assert package.load("model.byoc")({"x": np.array([-4, 4], np.float32)})["y"].tolist() == [0, 6]


@pytest.mark.skipif(not has_runtime(), reason="onnxruntime verifies")
def test_a_crash_leaves_a_working_bundle(
    configure: Configure, byoc: Callable[..., Ran], tmp_path: Path
) -> None:
    onnx.save(parse(MODEL), tmp_path / "m.onnx")
    arguments = (tmp_path / "m.onnx", "--rules", RULES, "--strategy", "all-supported", "-o")
    configure(does="compile segv")
    done = byoc("partition", *arguments, tmp_path / "host.byoc")
    sentence = "its process was killed by SIGSEGV in compile"
    assert (done.code, f"Codegen {NAME} failed: " in done.out, sentence in done.out) == (5, True, True)
    assert package.load(tmp_path / "host.byoc")({"x": X})["y"].shape == (2, 3)
    configure()
    assert byoc("partition", *arguments, tmp_path / "m.byoc").code == 0
    configure(does="run exit")
    ran = byoc("run", tmp_path / "m.byoc", "--inputs", "random", "-o", tmp_path / "y.npz")
    assert (ran.code, "its process ended with exit code 7 in run" in ran.err) == (1, True)
    write_settings({})
    ran = byoc("run", tmp_path / "m.byoc", "--inputs", "random", "-o", tmp_path / "y.npz")
    assert (ran.code, f"{NAME}: no such codegen" in ran.err) == (1, True)
