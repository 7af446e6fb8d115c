"""The examples do what they say: packages pass their own tests, scripts print facts and golden text."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from helpers.installing import install
from helpers.solving import here  # noqa: F401 - a fixture
from helpers.support import Ran, parse, region_names
from helpers.warm_processes import WarmProcesses
from onnx import numpy_helper

from byoc.comparison import read_results
from byoc.standalone import export_c

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_script(name: str, *arguments: str | Path) -> None:
    sys.argv = [name, *map(str, arguments)]
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


HAS_ZIGZAG = find_spec("zigzag") is not None


@pytest.mark.parametrize(
    "name",
    [
        "strategy",
        "cost_model",
        "pass",
        pytest.param(
            "cost_model_zigzag", marks=pytest.mark.skipif(not HAS_ZIGZAG, reason="needs ZigZag")
        ),
    ],
)
def test_a_package_passes_its_own_tests(
    name: str, tmp_path: Path, warm_processes: WarmProcesses
) -> None:
    install(EXAMPLES / name, tmp_path)
    paths = [EXAMPLES / name, tmp_path, EXAMPLES.parent]
    done = warm_processes.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLES / name)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_strategy_is_found_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, byoc: Callable[..., Ran]
) -> None:
    install(EXAMPLES / "strategy", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES / "strategy")
    ran = byoc("partition", "zoo:squeezenet", "--rules", "dla", "--strategy", "split-point")
    assert ran.code == 0, ran.err
    assert "64 of 65 nodes" in ran.out
    assert "predicted 3.59 ms" in ran.out


@pytest.mark.usefixtures("here")
def test_the_strategy_is_compared_in_a_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, byoc: Callable[..., Ran]
) -> None:
    install(EXAMPLES / "strategy", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES / "strategy")
    results = tmp_path / "results.csv"
    ran = byoc("study", EXAMPLES / "strategy" / "study.yaml", "-o", results, "--jobs", "1")
    assert ran.code == 0, ran.err
    rows = read_results(results)
    own = [row for row in rows if row["strategy"] == "split-point"]
    assert len(rows) == 4 * len(own) == 36
    assert all(row["own_tried"] > 0 for row in own)
    assert all((row["own_stretch"] > 0) == (row["regions"] > 0) for row in own)
    least = {row["strategy"]: row["ratio"] for row in rows if row["model"] == "zoo:squeezenet"}
    assert least["split-point"] == pytest.approx(least["launch-aware"])
    assert "split" in byoc("study", "table", results).out


@pytest.mark.usefixtures("here")
@pytest.mark.skipif(not find_spec("matplotlib"), reason="needs matplotlib")
def test_the_study_prints_its_table_and_draws_its_figures(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    golden: Callable[[str, str], None],
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    run_script("study.py", tmp_path / "out", "zoo:squeezenet", "zoo:shufflenet")
    golden("example_study.txt", capsys.readouterr().out)
    assert (tmp_path / "out" / "table.md").read_text().startswith("| strategy |")
    with pytest.raises(SystemExit, match="usage"):
        run_script("study.py")


NOTEBOOK_NEEDS = ("nbformat", "pandas", "matplotlib")


@pytest.mark.usefixtures("here")
@pytest.mark.skipif(not all(map(find_spec, NOTEBOOK_NEEDS)), reason=f"needs {NOTEBOOK_NEEDS}")
def test_the_notebook_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its cells are run in one namespace, without a kernel: it has no magic."""
    import nbformat  # noqa: PLC0415

    notebook = nbformat.read(EXAMPLES / "problem.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells), "it is kept without outputs"
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "code":
            exec(compile(cell.source, f"cell {number}", "exec"), names)  # noqa: S102
    printed = capsys.readouterr().out
    assert "launch-aware: 3.587 ms, at least 3.587 ms" in printed
    assert names["ratios"][0.0] >= 1
    assert len(names["result"].rows) == 18
    assert names["result"].failures == {}
    assert (tmp_path / "squeezenet.svg").is_file()
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == [
        *("bandwidth.svg", "gaps.svg", "pareto.svg", "profile.svg"),
    ]


def test_the_library_is_used_from_model_to_verified_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    folder = tmp_path / "not" / "yet"
    run_script("library.py", folder)
    *printed, verified = capsys.readouterr().out.splitlines()
    (name,) = region_names(folder / "net.byoc")
    assert printed == [
        f"regions: ['{name}']",
        "predicted: 848 us, host alone 1409 us",
        f"nodes: Transpose, {name}, Transpose, Sin, GlobalAveragePool",
        "scores: (1, 32, 1, 1), largest is number 4",
    ]
    assert verified.startswith("verified: True, largest error ")
    assert (folder / "net.byoc" / "manifest.json").is_file()


def run_in(name: str, folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> list[str]:
    """Run a script that takes a folder, and return the lines that it prints."""
    run_script(name, folder, *more)
    return capsys.readouterr().out.splitlines()


@pytest.fixture
def arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [])


@pytest.mark.usefixtures("arguments")
def test_an_accelerator_by_a_rule_file_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_in("rule_file/try_rules.py", tmp_path / "new", capsys) == [
        "rules: 7 operators, problems: []",
        "refused: 1 nodes, 0.0% of the compute",
        "on npu: 64 of 65 nodes, 1 regions",
        "predicted: 3.07 ms, host alone 9.13 ms",
        "verified: True",
        "with a link twice as fast: 2.99 ms",
    ]


@pytest.mark.usefixtures("arguments")
def test_costs_fitted_to_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured, built_in, fitted, scores = run_in("fitted_costs.py", tmp_path / "new", capsys)
    assert measured == "measured: 15 units of work, fitted to this-host.yaml"
    assert built_in == "host: host alone 1354 us, 6 nodes on dla"
    assert re.fullmatch(r"this-host: host alone [1-9]\d* us, \d nodes on dla", fitted)
    assert scores == "scores: (1, 32, 1, 1)"
    assert "kind: linear" in (tmp_path / "new" / "this-host.yaml").read_text(encoding="utf-8")


@pytest.mark.usefixtures("arguments")
def test_regions_in_int8_step_by_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranges, plain, int8, budget = run_in("quantization.py", tmp_path / "new", capsys)
    assert ranges == "ranges: 8 tensors on 8 samples"
    assert plain == "float32: 7 nodes on dla, in floating point"
    pattern = r"(.*): (\d+) units in int8, (\d+) left in float, (\d+) dB"
    whole, kept = (re.fullmatch(pattern, line) for line in (int8, budget))
    assert whole is not None
    assert kept is not None
    assert (whole[1], whole[3], kept[1]) == ("int8", "0", "int8, 45 dB")
    assert int(kept[3]) > 0
    assert int(kept[4]) > int(whole[4])


@pytest.mark.usefixtures("arguments")
def test_byoc_inside_another_tool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run_in("deploy.py", tmp_path / "new", capsys, "zoo:squeezenet", "no/such.onnx")
    first, second = map(json.loads, lines)
    assert first["board"] == min(first["milliseconds"], key=first["milliseconds"].get)
    assert first["milliseconds"] == {"small": 3.59, "matrix": 1.71}
    assert first["verified"]
    assert (tmp_path / "new" / first["bundle"]).is_file()
    assert second["problem"] == "no/such.onnx: no such file"


def test_the_library_example_says_how_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [])
    with pytest.raises(SystemExit, match=r"^usage: python examples/library\.py FOLDER$"):
        run_script("library.py")


CI_NET = """net (float[1, 64, 56, 56] x) => (float[1, 64, 56, 56] y) {
    [first] a = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w)
    [second] b = Relu(a)
    [third] c = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(b, w)
    [fourth] y = Relu(c)
}"""


def list_ci_commands() -> list[str]:
    """Return the commands of the workflow and of the hooks that run byoc, in their order."""
    gate, hooks = (
        yaml.safe_load((EXAMPLES / "ci" / name).read_text(encoding="utf-8"))
        for name in ("gate.yml", "pre-commit-config.yaml")
    )
    assert all(set(hook) >= {"id", "name", "language", "files"} for hook in hooks["repos"][0]["hooks"])
    steps = [step["run"] for step in gate["jobs"]["gate"]["steps"] if "run" in step]
    entries = [hook["entry"] for hook in hooks["repos"][0]["hooks"]]
    return [command for command in (*steps, *entries) if command.startswith("byoc ")]


def test_the_gate_of_ci_names_what_got_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, byoc: Callable[..., Ran]
) -> None:
    """A cost of a tenth more, an operator less, 3 dB less; a target of another name passes."""
    monkeypatch.chdir(tmp_path)
    for name in ("npu.yaml", "npu-costs.yaml"):
        shutil.copy(EXAMPLES / "rule_file" / name, tmp_path)
    model = parse(CI_NET)
    weights = np.random.default_rng(0).standard_normal((64, 64, 3, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    onnx.save(model, "model.onnx")
    readme = (EXAMPLES / "ci" / "README.md").read_text(encoding="utf-8")
    made = re.search(r"^byoc (partition .*) > baseline\.json$", readme, re.MULTILINE)
    assert made is not None
    baseline = byoc(*made[1].split())
    Path("baseline.json").write_text(baseline.out, encoding="utf-8")
    commands = list_ci_commands()
    assert len(commands) == 7

    def run() -> dict[str, Ran]:
        shutil.rmtree("model.byoc", ignore_errors=True)
        return {command: byoc(*command.split()[1:]) for command in commands}

    def judge() -> set[str]:
        """Return what the commands of the gate say; all others pass."""
        ran = run()
        failed = {command: each.code for command, each in ran.items() if each.code}
        assert set(failed.values()) == {6}
        assert all(command.startswith("byoc diff baseline.json ") for command in failed)
        return {line for each in ran.values() for line in each.err.splitlines()}

    assert all(each.code == 0 for each in run().values())
    rules, costs = (Path(name).read_text() for name in ("npu.yaml", "npu-costs.yaml"))
    Path("npu.yaml").write_text(rules.replace("target: npu", "target: dsp"))
    assert all(each.code == 0 for each in run().values())
    Path("npu.yaml").write_text(rules)
    Path("npu-costs.yaml").write_text(costs.replace("5.0e+11", "4.2e+11"))
    (slower,) = judge()
    assert re.fullmatch(
        r"byoc: predicted .* ms -> .* ms, \+1\d\.\d+ %; at most 5 % is tolerated", slower
    )
    Path("npu-costs.yaml").write_text(costs)
    Path("npu.yaml").write_text(rules.replace("[Relu, Add, ", "[Add, ").partition("composites:")[0])
    lost = "2 nodes of Relu (second, fourth): Relu is not among the operators of npu"
    assert any("no longer offloaded: " in line and lost in line for line in judge())
    Path("npu.yaml").write_text(rules)
    document = json.loads(baseline.out)
    (output,) = document["verification"]["outputs"]
    better = {"name": "y", "same_class": None, "exact": False}
    better["signal_to_noise"] = output["signal_to_noise"] + 3
    document["verification"]["accuracy"] = {"original": "model.onnx", "outputs": [better]}
    Path("baseline.json").write_text(json.dumps(document))
    (louder,) = judge()
    assert "+3.00 dB of error; at most 1 dB is tolerated" in louder


@pytest.mark.skipif(find_spec("openvino") is None, reason="needs OpenVINO")
@pytest.mark.skipif(find_spec("emx_onnx_cgen") is None, reason="needs emx-onnx-cgen")
@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs CMake")
def test_one_package_is_shipped_for_two_targets(
    tmp_path: Path, byoc: Callable[..., Ran], capsys: pytest.CaptureFixture[str]
) -> None:
    models, package, board = tmp_path / "models", tmp_path / "app.byoc", tmp_path / "board"
    run_script("package/make_models.py", models)
    shutil.copy(EXAMPLES / "package/app.yaml", models)
    ran = byoc("package", models / "app.yaml", "-o", package)
    assert ran.code == 0, ran.err
    weights = {"conv1": 1728, "conv2": 18432, "conv3": 36864, "classifier's head": 1280}  # over 1 KiB
    assert sum(path.stat().st_size for path in package.glob("*.weights.bin")) == sum(weights.values())
    found = {}
    for prefer in ("pc", "board"):
        capsys.readouterr()
        run_script("package/app.py", package, prefer)
        lines = capsys.readouterr().out.splitlines()
        for name in ("detector", "classifier"):
            chosen = f"{name}: variant {prefer} was chosen: it fits, preferred as {prefer}"
            assert any(line.startswith(chosen) for line in lines)
        found[prefer] = lines[-4:]
    assert found["pc"] == found["board"]
    ran = byoc("package", "split", package, "--for", "board", "-o", tmp_path / "board.byoc")
    assert ran.code == 0, ran.err
    ran = byoc(
        "export-c", tmp_path / "board.byoc", "--variant", "board", "--variant", "host", "-o", board
    )
    assert ran.code == 0, ran.err
    headers = [(board / f"{name}/{name}.h").read_text() for name in ("detector", "classifier")]
    plans = [
        int(size) for text in headers for size in re.findall(r"_PLAN_BYTES \(\(size_t\)(\d+)", text)
    ]
    assert f"MODELS_SHARED_BYTES ((size_t){max(plans)})" in (board / "models.h").read_text()
    build = tmp_path / "build"
    configure = ["cmake", "-S", EXAMPLES / "package", "-B", build, f"-DMODELS={board}"]
    for command in (configure, ["cmake", "--build", build, "--target", "app", "byoc_driver_dla_shared"]):
        subprocess.run(list(map(str, command)), check=True, capture_output=True)
    for drivers, chosen in ((build / "drivers", "board"), (tmp_path, "host")):
        done = subprocess.run(
            [build / "app", board],
            env={**os.environ, "BYOC_DRIVERS": str(drivers)},
            check=True,
            capture_output=True,
            text=True,
        )
        assert done.stdout.splitlines()[-4:] == found["board"]
        for name in ("detector", "classifier"):
            assert f"{name}: variant {chosen} was chosen: it fits, predicted " in done.stdout


WASI = Path("/usr/lib/wasm32-wasi")
SERVED = """<p id="result">right: largest error"""
IN_NODE = """
import { readFileSync } from "node:fs";
import { Model, testOnSample } from "./model.mjs";
const read = name => new Uint8Array(readFileSync(name)).buffer;
const model = await Model.open(read("model.wasm"), read("weights.bin"));
console.log(testOnSample(model, read("sample.bin")));
const changed = read("weights.bin");
new Uint8Array(changed)[24] ^= 1;
await Model.open(read("model.wasm"), changed).catch(problem => console.log(problem.message));
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the page of `browser/`, with a small model."""
    if not WASI.is_dir() or not shutil.which("clang") or not shutil.which("wasm-ld"):
        pytest.skip("needs clang and wasi-libc")
    if not find_spec("emx_onnx_cgen"):
        pytest.skip("needs emx-onnx-cgen")
    folder = tmp_path_factory.mktemp("browser")
    model = parse("net (float[1, 9, 11] x) => (float[1, 9, 4] y) <float[11, 4] w = {WEIGHTS}> {"
                  " a = MatMul(x, w) b = Sigmoid(a) y = Softmax(b) }"
                  .replace("WEIGHTS", ", ".join(str(i % 7 - 3) for i in range(44))))  # fmt: skip
    export_c(model, output=folder / "program")
    build = [EXAMPLES / "browser/build.sh", folder / "program", folder / "site"]
    subprocess.run(list(map(str, build)), check=True, capture_output=True)
    return folder / "site"


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
def test_the_module_of_the_browser_runs_in_node(site: Path) -> None:
    (site / "try.mjs").write_text(IN_NODE)
    done = subprocess.run(["node", "try.mjs"], cwd=site, check=True, capture_output=True, text=True)
    error, why = done.stdout.splitlines()
    assert float(error) <= 1e-5
    assert why == "the weights are those of another model"


@pytest.mark.browser
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_the_page_of_the_browser_runs_in_chromium(site: Path) -> None:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run")
        done = subprocess.run(
            [
                *("chromium", *options, "--disable-background-networking"),
                *("--virtual-time-budget=60000", "--dump-dom"),
                f"http://127.0.0.1:{server.server_port}/",
            ],
            check=True,
            capture_output=True,
            text=True,
        )
        server.shutdown()
    assert SERVED in done.stdout


def test_what_is_no_program_is_refused_for_the_browser(tmp_path: Path) -> None:
    done = subprocess.run(
        [EXAMPLES / "browser/build.sh", tmp_path, tmp_path / "site"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (1, f"{tmp_path}: is no program of byoc export-c\n")
    assert not (tmp_path / "site").exists()


BINDING = os.environ.get("BYOC_CSHARP_ONNXRUNTIME", "")


def test_an_application_in_csharp_runs_a_bundle(tmp_path: Path) -> None:
    if not BINDING:
        pytest.skip("BYOC_CSHARP_ONNXRUNTIME names no folder of Microsoft.ML.OnnxRuntime.dll")
    if not shutil.which("mcs") or not shutil.which("mono"):
        pytest.skip("needs Mono")
    weights = ", ".join(str(i % 7 - 3) for i in range(108))
    net = f"""net (float[1, 3, 6, 6] x) => (float[1, 4, 4, 4] y) <float[4, 3, 3, 3] w = {{{weights}}}> {{
        a = Conv(x, w)
        y = Relu(a)
    }}"""
    onnx.save(parse(net), tmp_path / "model.onnx")
    run_script("csharp/make_bundle.py", tmp_path / "model.onnx", tmp_path / "out")
    library, program = Path(BINDING) / "Microsoft.ML.OnnxRuntime.dll", tmp_path / "app.exe"
    compiler = ["mcs", "-warnaserror", f"-r:{library}", f"-out:{program}"]
    subprocess.run([*compiler, EXAMPLES / "csharp/Program.cs"], check=True, capture_output=True)
    places = {"MONO_PATH": BINDING, "LD_LIBRARY_PATH": BINDING}

    def run() -> subprocess.CompletedProcess[str]:
        command = ["mono", str(program), str(tmp_path / "out")]
        environment = {**os.environ, **places}
        return subprocess.run(command, check=False, capture_output=True, text=True, env=environment)

    done = run()
    assert (done.returncode, done.stdout.partition(":")[0]) == (0, "right"), done.stderr
    assert done.stdout.endswith(" of the range of y\n")
    (tmp_path / "out/libbyoc_driver_dla.so").unlink()
    done = run()
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no driver for 'dla': name its library" in done.stderr
