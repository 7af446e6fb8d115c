"""Bundles of one-operator models by value: what is written to disk and run anew computes by definition.

`python tests/value_suite/written_bundles.py --rules dla --rules openvino-cpu --rules c` tries every
fourth model of the value suite within what a rule file promises of values; a codegen's name stands for
a rule file of every operator, of which the codegen is asked what it takes. Sixty models are joined:
`byoc partition` writes their bundle, `byoc run` runs it in a fresh process, and every output is held to
its exact value. Where no bundle is written, one without a planned region, or one that does not run,
halves are tried. A row for each rule file counts outcomes: right and wrong ones on the device and on the
host; refused ones, where the codegen leaves out a region or onnxruntime has no kernel; errors. The
reasons follow, and a line for each wrong one and each error; for these the exit code is 1.
`--python "qemu-x86_64 -cpu Haswell python"` runs the bundles on another processor.
"""

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx

_TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(_TESTS), str(_TESTS / "onnx_suite")]

from attribute_cases import attribute_cases  # noqa: E402 - needs the path
from differing import differs  # noqa: E402
from exact_values import DTYPES  # noqa: E402
from joined_cases import (  # noqa: E402
    BATCH,
    FORMS,
    UNDEFINED,
    Case,
    find_limits,
    group_cases,
    join_models,
)
from value_cases import ValueCase, value_cases  # noqa: E402
from value_samples import OPERATORS  # noqa: E402

from byoc.codegen import find_codegen  # noqa: E402
from byoc.errors import InputError  # noqa: E402
from byoc.onnxrt import open_session, without_optimizations  # noqa: E402
from byoc.rules import (  # noqa: E402
    Arithmetic,
    ArithmeticContract,
    load_rules,
)
from byoc.samples import read_npz, write_npz  # noqa: E402

_FAULTS = ("error", "WRONG")
_EVERY = 4  # some 700 models
_MOST = 300  # characters of a message
_PATIENCE = 1800  # seconds for one process, on an emulated processor as well
_WITHOUT_KERNEL = "NOT_IMPLEMENTED"  # what onnxruntime says
_NOT_RUN = "onnxruntime cannot run the model"  # what byoc says
_WIDER = {"openvino-cpu": 1e-4}  # how far off float32 may be, as the tests of that rule file have it
_EVERYTHING = """target: {name}
codegen: {name}
cost_model: dla
regions: phase
dtype: any
ops: [{{op: '*'}}]
"""


@dataclass(frozen=True)
class Row:
    """What became of a case: its outcome, where it ran if it did, and what was wrong."""

    name: str
    outcome: str
    on_device: bool = False
    message: str = ""

    def __str__(self) -> str:
        """Return a line for a list."""
        place = f" on the {'device' if self.on_device else 'host'}" if self.outcome == "WRONG" else ""
        return f"{self.outcome}{place} | {self.name} | {self.message}"


class NotRunError(Exception):
    """A bundle that byoc did not write, did not run, or wrote without the nodes of the cases `at_fault`.

    `at_fault` is empty where that is not known.
    """

    def __init__(self, outcome: str, message: str, at_fault: Sequence[Case] = ()) -> None:
        super().__init__(re.sub(r"\bk\d+_", "", " ".join(message.split()))[:_MOST])
        self.outcome = outcome
        self.at_fault = at_fault

    def split(self, cases: Sequence[Case]) -> tuple[Sequence[Case], Sequence[Case]]:
        """Return those at fault and the others; halves, where all may be."""
        if 0 < len(self.at_fault) < len(cases):
            return self.at_fault, [case for case in cases if case not in self.at_fault]
        middle = len(cases) // 2
        return cases[:middle], cases[middle:]


@dataclass(frozen=True)
class Bench:
    """Where bundles are written by a rule file, with arguments, and run by a command."""

    rules: str
    arguments: Sequence[str]
    python: Sequence[str]
    wider: float = 0.0
    is_onnxruntime: bool = False  # what runs the regions, which has no other kernels there
    _kernels: dict[Case, str] = field(default_factory=dict)

    def try_cases(self, cases: Sequence[Case]) -> Iterator[Row]:
        """Yield what becomes of cases in one bundle, or in several of fewer cases."""
        if not cases:
            return
        on_device: set[Case] = set()
        try:
            with TemporaryDirectory() as folder:
                on_device = self._write(cases, Path(folder))
                able = set() if self.is_onnxruntime else on_device
                rest = [case for case in cases if case in able or not self._find_lacking_kernel(case)]
                made = self._run(cases, Path(folder)) if len(rest) == len(cases) else {}
        except NotRunError as error:
            if len(cases) == 1:
                # A model on the host alone is run by onnxruntime as byoc found it.
                plain = _NOT_RUN in str(error) and not on_device
                yield Row(cases[0].name, "refused" if plain else error.outcome, False, str(error))
                return
            for part in error.split(cases):
                yield from self.try_cases(part)
            return
        if made:
            yield from (self._judge(case, case in on_device, made[case]) for case in cases)
            return
        yield from (
            Row(case.name, "refused", False, self._kernels[case]) for case in cases if case not in rest
        )
        yield from self.try_cases(rest)

    def order(self, cases: Iterable[Case]) -> list[Case]:
        """Return the cases so that those are together of which bundles are likely to go in halves."""

        def rank(case: Case) -> tuple[bool, str]:
            return bool(self._find_lacking_kernel(case)), case.dtype if isinstance(
                case, ValueCase
            ) else ""

        return sorted(cases, key=rank)

    def _find_lacking_kernel(self, case: Case) -> str:
        """Return what onnxruntime says of a model for which it has no kernel."""
        if case not in self._kernels:
            self._kernels[case] = ""
            try:
                with without_optimizations():
                    open_session(case.model)
            except InputError as error:
                said = " ".join(str(error).split())
                self._kernels[case] = (
                    "no kernel of onnxruntime" if _WITHOUT_KERNEL in said else said[:_MOST]
                )
        return self._kernels[case]

    def _write(self, cases: Sequence[Case], folder: Path) -> set[Case]:
        """Write the bundle of cases; return those on the device."""
        onnx.save(join_models(cases), folder / "m.onnx")
        words = ["partition", "m.onnx", "--rules", self.rules, *self.arguments]
        words += ["--strategy", "all-supported", "--no-verify", "-o", "m.byoc", "--format", "json"]
        done = _call([sys.executable, "-m", "byoc", *words], folder)
        if not (folder / "m.byoc").exists():
            raise NotRunError("error", f"not written: {_find_last_line(done)}")
        if refusals := json.loads(done.stdout)["refusals"]:
            names = [name for each in refusals for name in each["nodes"]]
            outcome = "error" if any(each["failed"] for each in refusals) else "refused"
            raise NotRunError(outcome, refusals[0]["reason"], _find_owners(names, cases))
        graph = onnx.load(folder / "m.byoc" / "model.onnx", load_external_data=False).graph
        found = [name for node in graph.node if node.domain.startswith("byoc") for name in node.output]
        return set(_find_owners(found, cases))

    def _run(self, cases: Sequence[Case], folder: Path) -> dict[Case, Mapping[str, Any]]:
        """Run the bundle of cases in a fresh process; return the outputs of each."""
        given = {
            f"k{i}_{name}": each for i, case in enumerate(cases) for name, each in case.inputs.items()
        }
        write_npz(folder / "x.npz", given)
        done = _call(
            [*self.python, "-m", "byoc", "run", "m.byoc", "--inputs", "x.npz", "-o", "y.npz"], folder
        )
        if not (folder / "y.npz").exists():
            message = _find_last_line(done)
            outcome = "refused" if _WITHOUT_KERNEL in message else "error"
            raise NotRunError(outcome, f"not run: {message}")
        made = read_npz(folder / "y.npz")
        return {
            case: {
                name: _restore(made[f"k{i}_{name}"], expected)
                for name, expected in case.expected.items()
            }
            for i, case in enumerate(cases)
        }

    def _judge(self, case: Case, on_device: bool, made: Mapping[str, Any]) -> Row:
        relative, absolute = find_limits(case)
        limits = max(relative, self.wider), absolute
        problems = {name: differs(each, made[name], *limits) for name, each in case.expected.items()}
        message = "; ".join(f"{name} {problem}" for name, problem in problems.items() if problem)
        return Row(case.name, "WRONG" if message else "right", on_device, message)


def _call(words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            words, cwd=folder, capture_output=True, text=True, check=False, timeout=_PATIENCE
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, -1, "", f"took more than {_PATIENCE} s")


def _find_last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = done.stderr.strip().splitlines() or ["nothing was said"]
    return f"exit {done.returncode}: {lines[-1]}"


def _find_owners(names: Iterable[str], cases: Sequence[Case]) -> list[Case]:
    """Return the cases of which there are names in a joined model."""
    found = {match[1] for name in names if (match := re.match(r"k(\d+)_", name))}
    return [case for i, case in enumerate(cases) if str(i) in found]


def _restore(array: Any, expected: Any) -> Any:
    """Return an array of untyped bytes as one of the dtype that is expected."""
    same = array.dtype.kind == "V" and array.dtype.itemsize == expected.dtype.itemsize
    return array.view(expected.dtype) if same else array


def find_cases(contract: ArithmeticContract, ops: Sequence[str], values: str) -> Iterator[Case]:
    """Yield the models of operators, on what a contract promises; `shown` to be exact, all integers."""

    def resolve(pairs: Iterable[tuple[str, str]]) -> Arithmetic:
        promises = contract.loosest(pairs)
        return replace(promises, exact_below=None, overflow="wraps") if values == "shown" else promises

    for op in ops:
        for dtype in DTYPES:
            yield from value_cases(op, dtype, resolve, FORMS)


def read_target(name: str, folder: Path) -> tuple[str, ArithmeticContract, list[str]]:
    """Return the rule file of a name, or of a codegen, its contract, and arguments of `partition`."""
    try:
        target = load_rules(name)
    except InputError:
        find_codegen(name)
        path = folder / f"{name}.yaml"
        path.write_text(_EVERYTHING.format(name=name), encoding="utf-8")
        return str(path), ArithmeticContract((UNDEFINED,)), ["--ask", "legality"]
    return name, ArithmeticContract((*target.arithmetic.clauses, UNDEFINED)), []


def try_target(name: str, options: argparse.Namespace) -> list[Row]:
    """Return what becomes of the chosen cases with a rule file."""
    with TemporaryDirectory() as folder:
        rules, contract, arguments = read_target(name, Path(folder))
        arguments += ["--values", options.values]
        wider = _WIDER.get(name, 0.0)
        bench = Bench(rules, arguments, options.python.split(), wider, name == "reference")
        ops = options.ops.split(",") if options.ops else OPERATORS
        cases = list(find_cases(contract, ops, options.values))[:: options.every]
        if options.attributes:
            cases += attribute_cases(options.attributes, costly=False)
        batches = list(group_cases(bench.order(cases), options.batch))
        texts = set(cases).difference(*batches)
        rows = [Row(case.name, "refused", False, "texts are not tried") for case in texts]
        return rows + [row for batch in batches for row in bench.try_cases(batch)]


def describe_rows(name: str, rows: Sequence[Row]) -> str:
    """Return the row of a rule file in the table."""
    counts = Counter((row.outcome, row.on_device) for row in rows)
    device, host = ([counts[each, place] for each in ("right", "WRONG")] for place in (True, False))
    refused, error = (counts[each, False] for each in ("refused", "error"))
    figures = (len(rows), sum(device), *(device[0], host[0]), refused, error, device[1], host[1])
    return " | ".join((f"{name:16}", *(f"{each:6}" for each in figures)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table and what is wrong; return 1 where something is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rules", action="append", help="rule files, or codegens; dla unless given")
    parser.add_argument("--every", type=int, default=_EVERY, help="one in so many models")
    parser.add_argument(
        "--attributes", type=int, default=0, help="one in so many of attribute_cases, too"
    )
    parser.add_argument("--ops", default="", help="only these operators, with commas between them")
    parser.add_argument(
        "--values", default="shown", choices=("shown", "assumed"), help="as partition has it"
    )
    parser.add_argument("--batch", type=int, default=BATCH, help="how many models are one")
    parser.add_argument("--python", default=sys.executable, help="the command that runs bundles")
    options = parser.parse_args(arguments)
    wrong = 0
    heads = ("tried", "device", "right", "host", "refuse", "error", "WRONG", "host W")
    print(" | ".join((f"{'rules':16}", *(f"{each:>6}" for each in heads))), flush=True)
    for name in options.rules or ["dla"]:
        rows = try_target(name, options)
        faults = [row for row in rows if row.outcome in _FAULTS]
        reasons = Counter(row.message for row in rows if row.outcome == "refused").most_common()
        lines = [*(f"{count} refused | {reason}" for reason, count in reasons), *map(str, faults)]
        print("\n  ".join((describe_rows(name, rows), *lines)), flush=True)
        wrong += len(faults)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
