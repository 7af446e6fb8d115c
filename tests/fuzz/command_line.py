"""Random models by the command line: `python tests/fuzz/command_line.py --graphs 2000 --seed 1`.

Each model of scoped_graphs.py is partitioned by a random rule file of scoped_rules.py with random
options, `byoc partition -o`, and the bundle run by `byoc run` in a process of its own. Its outputs are
held to the original on onnxruntime without optimizations and on onnx.reference: where the two agree, to
both; where one fails, to the other; where they differ, to either, and this is counted. What is beyond
the tolerance of docs/verify.md is held to the original whose values were moved by a unit in the last
place, or of a quantized tensor, for what compares or rounds makes steps of it.

Each process is a fork of one that has imported byoc (tests/warm_processes.py). Graph number i of a seed
is the same on every run: `--first i --graphs 1 --keep FOLDER` tries it again and keeps its files.
"""

import argparse
import json
import os
import re
import resource
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from subprocess import DEVNULL, TimeoutExpired
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1])]

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import yaml  # noqa: E402
from evaluators import run_plain, run_reference  # noqa: E402
from helpers.warm_processes import ForkedProcess, ForkServer  # noqa: E402
from moved_values import explain_by_moves  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from scoped_graphs import ScopedGraphMaker  # noqa: E402
from scoped_rules import RuleMaker  # noqa: E402

from byoc.samples import read_npz  # noqa: E402

EQUAL, CLOSE, EXPLAINED = "equal", "within tolerance", "explained by moved values"
DIFFERENT, REFUSED, BROKEN, LEFT_OUT = "different", "refused", "broken", "left out"
NO_PLAN = "no plan, and says why"
BAD = (DIFFERENT, REFUSED, BROKEN)
_RELATIVE = {"float16": 1e-2, "bfloat16": 5e-2, "float32": 1e-4, "float64": 1e-4}
_IMPORTS = "import pytest, byoc.cli._partition_verb, byoc.cli._run_verb, onnxruntime, scipy.optimize"
# onnxruntime starts a thread when it is imported, for which the end of a fork would wait for ever.
_PROGRAM = """
import os, sys
from byoc.cli import main
sys.argv[0] = "byoc"
try:
    main()
except SystemExit as end:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
"""
# Sentences about what was asked, not about the bundle: there is no plan, or no sample.
_NO_PLANS = (
    "must be on an accelerator",
    "has to run on",
    "no placement",
    "is the least",
    "is the most",
    "made for costs that add up",
    "the gate cannot compare regions",
    "pass simplify changes",
    "pass simplify: its result",
    "does not cross to a driver",
    "which a driver needs",
    "it has neither a `context` nor a `driver`",
)
# A library that a pass calls fails, in one sentence, and nothing is written.
_FAILED_PASS = "pass simplify failed with"
_LONGEST = 120


@dataclass
class Case:
    """A model with inputs, rule files and options."""

    model: onnx.ModelProto
    inputs: Mapping[str, NDArray[Any]]
    types: Mapping[str, int]
    rules: Sequence[Mapping[str, Any]]
    costs: Sequence[str]
    options: Sequence[str]


@dataclass
class Found:
    """How a graph went."""

    graph: int
    outcome: str
    why: str = ""
    codes: Sequence[int] = ()
    regions: int = 0
    judges: str = ""
    operators: Sequence[str] = field(default_factory=list)


def make_case(seed: int, number: int) -> Case:
    """Return a model, rule files and options: a function of both numbers alone."""
    start = seed * 1_000_003 + number
    maker = ScopedGraphMaker(start)
    model, inputs = maker.model(2 + number % 13)
    rules = RuleMaker(start, model, maker.opset)
    count = 2 if number % 4 == 3 else 1
    made = [rules.rules(target) for target in ("acme", "other")[:count]]
    if len({each["target"] for each in made}) < count:
        made = made[:1]
    costs = [rules.costs() for _ in made]
    dims = [dim for value in model.graph.input for dim in value.type.tensor_type.shape.dim]
    symbols = sorted({dim.dim_param for dim in dims if dim.dim_param})
    batches = [array.shape[0] for array in inputs.values() if array.ndim]
    options = rules.options(symbols, batches[0] if batches else 1, len(made))
    if number % 3 and "--bucket" not in options:
        options += ["--inputs", "x.npz"]
    return Case(model, inputs, maker.types(), made, costs, options)


def write_case(case: Case, folder: Path) -> list[str]:
    """Write the files of a case; return the arguments of `byoc` that partition it."""
    onnx.save(case.model, folder / "m.onnx")
    plain = {name: _storable(array) for name, array in case.inputs.items()}
    np.savez(folder / "x.npz", **plain)
    arguments = ["partition", "m.onnx"]
    for number, (rules, costs) in enumerate(zip(case.rules, case.costs, strict=True)):
        stem = f"near{number}"
        (folder / f"{stem}.yaml").write_text(costs, encoding="utf-8")
        text = yaml.safe_dump(
            {**rules, "cost_model": f"{stem}.yaml"}, allow_unicode=True, sort_keys=False
        )
        (folder / f"rules{number}.yaml").write_text(text, encoding="utf-8")
        arguments += ["--rules", f"rules{number}.yaml"]
    return [*arguments, *case.options, "-o", "m.byoc"]


def _storable(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind == "O":
        return array.astype(np.str_)
    return array.view("V2") if array.dtype.name == "bfloat16" else array


class CommandLine:
    """Runs the command line in forks, with a home of its own."""

    def __init__(self, home: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
        kept |= {f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("DATA", "CONFIG", "CACHE")}
        self._environment = kept | {
            "HOME": str(home),
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }
        self._processes = ForkServer(["-c", _IMPORTS], self._environment)

    def __call__(self, folder: Path, *arguments: str) -> tuple[int, str, str]:
        """Return the exit code, what was printed, and the errors."""
        words = ["-c", _PROGRAM, *arguments]
        with TemporaryFile() as out, TemporaryFile() as err:
            streams = (DEVNULL, out, err)
            process = ForkedProcess(
                self._processes, words, self._environment, streams, passed=(), folder=folder
            )
            try:
                code = process.wait(_LONGEST)
            except TimeoutExpired:
                process.kill()
                process.wait()
                code = -1
            for file in (out, err):
                file.seek(0)
            return code, out.read().decode(), err.read().decode()

    def close(self) -> None:
        """End the processes."""
        self._processes.close()


def compare(byoc: CommandLine, seed: int, number: int, folder: Path) -> Found:
    """Return how a graph went."""
    case = make_case(seed, number)
    found = Found(number, BROKEN, operators=sorted({node.op_type for node in case.model.graph.node}))
    names = [value.name for value in case.model.graph.output]
    expected, found.judges = _judge(case)
    arguments = write_case(case, folder)
    (folder / "command").write_text(shlex.join(["byoc", *arguments]) + "\n", encoding="utf-8")
    code, out, err = byoc(folder, *arguments)
    (folder / "output").write_text(out + err, encoding="utf-8")
    found.codes = [code]
    if code not in (0, 1, 4, 5) or "Traceback" in err or "Traceback" in out:
        found.why = _last_lines(err)
        return found
    if code == 5 and _FAILED_PASS in err and not (folder / "m.byoc").exists():
        found.outcome, found.why = NO_PLAN, _last_lines(err)
        return found
    if code == 1:
        found.outcome, found.why = REFUSED, _last_lines(err)
        if any(words in err for words in _NO_PLANS):
            found.outcome = NO_PLAN
        if not expected:
            found.outcome = LEFT_OUT
        return found
    manifest = json.loads((folder / "m.byoc" / "manifest.json").read_text(encoding="utf-8"))
    found.regions = sum(len(variant["regions"]) for variant in manifest["variants"])
    trusted = ["--trust"] if "--no-sign" in case.options else []
    ran = byoc(folder, "run", "m.byoc", "--inputs", "x.npz", "-o", "y.npz", *trusted)
    run_code, run_out, run_err = ran
    found.codes = [code, run_code]
    (folder / "output").write_text(out + err + run_out + run_err, encoding="utf-8")
    if run_code or "Traceback" in run_err:
        found.why = _last_lines(run_err)
        found.outcome = REFUSED if expected and run_code == 1 else BROKEN
        if found.judges in ("neither", "onnx.reference") and (code, run_code) == (4, 1):
            found.outcome = LEFT_OUT
        return found
    if code == 5:
        found.outcome, found.why = REFUSED, _last_lines(out + err)
        if _is_of_compiler(case, out + err):
            code = 0
    if not expected:
        found.outcome = LEFT_OUT
        return found
    given = read_npz(folder / "y.npz")
    outcome, why = _compare_all(case, names, expected, given)
    if outcome == DIFFERENT or code != 5:
        found.outcome, found.why = outcome, why
    if code == 4 and not found.why:
        found.why = "4: " + _last_lines(err)
    return found


def _is_of_compiler(case: Case, text: str) -> bool:
    """Say whether a compiler refused what rules offered it, rather than computed it wrong."""
    native = any(rules.get("extends") or rules.get("codegen") != "reference" for rules in case.rules)
    return native and "wrong" not in text


def _last_lines(text: str) -> str:
    return " / ".join(line.strip() for line in text.strip().splitlines()[-3:])[:300]


def _judge(case: Case) -> tuple[list[Mapping[str, Any]], str]:
    """Return what the evaluators give, those that run the model, and how they agree."""
    names = [value.name for value in case.model.graph.output]
    found = []
    for run in (run_plain, run_reference):
        try:
            found.append(dict(zip(names, run(case.model, case.inputs), strict=True)))
        except Exception:
            found.append({})
    plain, reference = found
    if not plain and not reference:
        return [], "neither"
    if not plain or not reference:
        return [plain or reference], "onnxruntime" if plain else "onnx.reference"
    agree = all(_differs(plain[name], reference[name]) != DIFFERENT for name in names)
    return [plain, reference], "both" if agree else "they differ"


def _compare_all(
    case: Case, names: Sequence[str], expected: Sequence[Mapping[str, Any]], given: Mapping[str, Any]
) -> tuple[str, str]:
    outputs = dict(_read_outputs(case, names, given))
    if set(outputs) != set(names):
        return DIFFERENT, f"outputs {sorted(given)} instead of {names}"
    worst, why = EQUAL, ""
    loose = any("float16" in str(rules.get("arithmetic", "")) for rules in case.rules)
    for name in names:
        ways = [_differs(each[name], outputs[name], loose) for each in expected]
        if EQUAL in ways:
            continue
        if CLOSE in ways:
            worst = CLOSE if worst == EQUAL else worst
            continue
        found = f"'{name}': {_show(outputs[name])} instead of {_show(expected[0][name])}"
        if not explain_by_moves(
            case.model, case.inputs, case.types, name, expected[0][name], outputs[name]
        ):
            return DIFFERENT, found
        worst, why = EXPLAINED, found
    return worst, why


def _show(value: Any) -> str:
    if isinstance(value, list):
        return f"{len(value)} of {[_show(each) for each in value[:2]]}"
    array = np.asarray(value)
    return f"{array.dtype}{list(array.shape)} {' '.join(str(array.ravel()[:8]).split())}"


def _read_outputs(
    case: Case, names: Sequence[str], given: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    for name in names:
        pattern = re.compile(re.escape(name) + r"\[(\d+)\]")
        if name in given:
            yield name, _restore(given[name], case.types.get(name, 0))
            continue
        parts = {int(m[1]): value for key, value in given.items() if (m := pattern.fullmatch(key))}
        yield name, [_restore(parts[i], case.types.get(name, 0)) for i in sorted(parts)]


def _restore(array: NDArray[Any], dtype: int) -> NDArray[Any]:
    if array.dtype.kind == "V":
        return array.view(onnx.helper.tensor_dtype_to_np_dtype(dtype))
    return array


def _differs(expected: Any, given: Any, loose: bool = False) -> str:  # noqa: PLR0911 - a case each
    """Return EQUAL, CLOSE or DIFFERENT."""
    if isinstance(expected, list) or isinstance(given, list):
        if not isinstance(expected, list) or not isinstance(given, list) or len(expected) != len(given):
            return DIFFERENT
        found = {_differs(a, b, loose) for a, b in zip(expected, given, strict=True)}
        return next((each for each in (DIFFERENT, CLOSE) if each in found), EQUAL)
    a, b = np.asarray(expected), np.asarray(given)
    if a.dtype.kind in "OSU" and b.dtype.kind in "OSU":
        same = a.shape == b.shape and a.astype(object).tolist() == b.astype(object).tolist()
        return EQUAL if same else DIFFERENT
    if a.dtype != b.dtype or a.shape != b.shape:
        return DIFFERENT
    if a.tobytes() == b.tobytes():
        return EQUAL
    if a.dtype.name not in _RELATIVE:
        return DIFFERENT
    numbers, others = a.astype(np.float64), b.astype(np.float64)
    reach = max(np.ptp(numbers), 4.8e-3 * np.abs(numbers).max())
    share = 1e-2 if loose else _RELATIVE[a.dtype.name]
    return CLOSE if np.abs(numbers - others).max() <= share * max(reach, 1e-30) else DIFFERENT


def _known(log: Path | None, seed: int) -> dict[int, Found]:
    found = {}
    for line in log.read_text().splitlines() if log and log.exists() else ():
        if line.endswith("}"):
            content = json.loads(line)
            if content.pop("seed") == seed:
                found[content["graph"]] = Found(**content)
    return found


def run(arguments: argparse.Namespace) -> list[Found]:
    """Try the graphs that are asked for."""
    found, known = [], _known(arguments.log, arguments.seed)
    with TemporaryDirectory(prefix="byoc-fuzz-") as name:
        home = Path(name).resolve()
        byoc = CommandLine(home)
        for number in range(arguments.first, arguments.first + arguments.graphs):
            if number in known:
                found.append(known[number])
                continue
            folder = (arguments.keep or home) / f"graph-{arguments.seed}-{number}"
            folder.mkdir(parents=True, exist_ok=True)
            try:
                each = compare(byoc, arguments.seed, number, folder)
            except Exception as error:  # whatever happens is a finding
                each = Found(number, BROKEN, f"{type(error).__name__}: {error}"[:500])
            found.append(each)
            if each.outcome in BAD:
                sys.stdout.write(f"graph {number}, {each.outcome}, {list(each.codes)}: {each.why}\n")
                sys.stdout.flush()
            if arguments.log:
                with arguments.log.open("a") as file:
                    file.write(json.dumps({"seed": arguments.seed, **asdict(each)}) + "\n")
        byoc.close()
    return found


def summarize(seed: int, found: Sequence[Found]) -> Iterator[str]:
    """Yield the lines of the summary."""
    operators = {name for each in found for name in each.operators}
    regions = sum(each.regions for each in found)
    yield f"{len(found)} graphs of seed {seed}: {len(operators)} operators, {regions} regions"
    for outcome, number in Counter(each.outcome for each in found).most_common():
        yield f"  {number:6} {outcome}"
    for judges, number in Counter(each.judges for each in found).most_common():
        yield f"  {number:6} judged by: {judges}"
    for codes, number in Counter(str(list(each.codes)) for each in found).most_common():
        yield f"  {number:6} with exit codes {codes}"


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first graph")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, help="keep what was found, and go on behind it")
    parser.add_argument("--keep", type=Path, help="keep the files of each graph in this folder")
    arguments = parser.parse_args()
    began = time.monotonic()
    found = run(arguments)
    sys.stdout.writelines(f"{line}\n" for line in summarize(arguments.seed, found))
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = sum(each.ru_utime + each.ru_stime for each in used)
    sys.stdout.write(f"{seconds:.0f} s of processor time, {time.monotonic() - began:.0f} s in all\n")
    return int(any(each.outcome in BAD for each in found))


if __name__ == "__main__":
    sys.exit(main())
