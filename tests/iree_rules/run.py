"""Asks IREE of ONNX's operator tests: `python tests/iree_rules/run.py STORE.jsonl [--rules RULES]`.

Each test of one node whose tensors IREE's buffers can hold is compiled alone, as it is and with all
inputs but the first one stored in the model, and runs on its own data. Answers are kept in STORE.jsonl,
a line each, and asked for once. `--most N` takes at most N models of an operator, spread over its tests,
`--operators A,B` those of some operators.
With RULES (`iree-cpu`, or a file) a table follows of how often they agree with IREE; the exit code is 1
where they take what IREE refuses or computes wrong.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

_TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(_TESTS), str(_TESTS / "onnx_suite")]

from byoc.codegens.iree import (  # noqa: E402  # noqa: E402
    IREEOptions,
    _shorten_message,
    can_cross,
    load_module,
    make_process,
)
from differing import differs  # noqa: E402 - needs the path
from suite import Case, collect  # noqa: E402 - needs the path

from byoc.codegen import read_region  # noqa: E402
from byoc.errors import ByocError  # noqa: E402
from byoc.model import prepare_model  # noqa: E402
from byoc.rules import Target, annotate_graph, load_rules  # noqa: E402

_OPTIONS = IREEOptions(threads=1)
_AT_ONCE = 40  # models in one process of the compiler
_PATIENCE = 60.0  # seconds for a run
_RTOL, _ATOL = 1e-3, 1e-5
_ENDLESS = "test_wrap_pad"  # with constants, of which IREE's compiler had made nothing in six minutes
_CONSTANTS_ARE_NO_INPUTS = 4  # the IR version from which on that may be so


@dataclass(frozen=True)
class Answer:
    """What became of a model: `why` is IREE's reason, or what was off; empty where it is right."""

    name: str
    op: str
    kind: str  # takes, refuses, wrong numbers, crash
    why: str = ""


@dataclass(frozen=True, eq=False)
class OneNode:
    """A model of one node, and its data: inputs and expected outputs by name."""

    name: str
    model: onnx.ModelProto
    inputs: Mapping[str, Any]
    expected: Mapping[str, Any]
    case: Case

    @property
    def op(self) -> str:
        """The operator."""
        return self.model.graph.node[0].op_type


def list_cases() -> Iterator[OneNode]:
    """Yield the tests of one node whose tensors can cross, as they are and with constants."""
    for case in collect():
        if len(case.model.graph.node) != 1 or case.model.functions or not case.data_sets:
            continue
        inputs, expected = case.data_sets[0]
        arrays = [*inputs.values(), *expected.values()]
        if not all(isinstance(each, np.ndarray) and can_cross(each.dtype.name) for each in arrays):
            continue
        yield OneNode(case.name, _without_defaults(case.model, inputs), inputs, expected, case)
        first, *others = case.model.graph.input or [None]
        if case.name == _ENDLESS:
            continue
        if others and all(each.name in inputs for each in (first, *others)):
            model = onnx.ModelProto()
            model.CopyFrom(case.model)
            model.ir_version = max(model.ir_version, _CONSTANTS_ARE_NO_INPUTS)
            del model.graph.input[1:]
            model.graph.initializer.extend(
                numpy_helper.from_array(inputs[each.name], each.name) for each in others
            )
            given = {first.name: inputs[first.name]}
            yield OneNode(f"{case.name} (constants)", model, given, expected, case)


def _without_defaults(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> onnx.ModelProto:
    """Return a model as a region has it: what the test gives no value for is no input."""
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    kept = [each for each in model.graph.input if each.name in inputs]
    if len(kept) < len(model.graph.input):
        plain.ir_version = max(plain.ir_version, _CONSTANTS_ARE_NO_INPUTS)
        del plain.graph.input[:]
        plain.graph.input.extend(kept)
    return plain


def ask(cases: Sequence[OneNode]) -> Iterator[Answer]:
    """Yield IREE's answer to each case."""
    with tempfile.TemporaryDirectory(prefix="byoc-") as folder:
        for number, case in enumerate(cases):
            (Path(folder) / f"{number}.onnx").write_bytes(case.model.SerializeToString())
        runner = _Runner()
        for number, (case, answer) in enumerate(
            zip(cases, make_process(_OPTIONS).run(Path(folder), len(cases)), strict=True)
        ):
            why = answer.reason
            if why:
                kind = "crash" if why.startswith("its compiler ended") else "refuses"
                yield Answer(case.name, case.op, kind, _shorten_message(why))
            else:
                kind, wrong = runner.run(Path(folder) / str(number), case)
                yield Answer(case.name, case.op, kind, wrong)
        runner.stop()


class _Runner:
    """A process that runs modules, started again where one of them ends it."""

    def __init__(self) -> None:
        self._process: Any = None

    def run(self, path: Path, case: OneNode) -> tuple[str, str]:
        if self._process is None:
            context = get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=serve, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()
        limits = max(case.case.rtol, _RTOL), max(case.case.atol, _ATOL)
        try:
            self._pipe.send((str(path), dict(case.inputs), dict(case.expected), limits))
            if self._pipe.poll(_PATIENCE):
                found: tuple[str, str] = self._pipe.recv()
                return found
            why = f"no result in {_PATIENCE:g} s"
        except (EOFError, OSError):
            self._process.join()
            why = f"running it ended the process with {self._process.exitcode}"
        self.stop()
        return "crash", why

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def serve(pipe: Connection) -> None:
    """Run the modules that come through a pipe until it is closed."""
    while True:
        try:
            path, inputs, expected, limits = pipe.recv()
        except EOFError:
            return
        pipe.send(_run(Path(path), inputs, expected, limits))


def _run(
    path: Path, inputs: Mapping[str, Any], expected: Mapping[str, Any], limits: tuple[float, float]
) -> tuple[str, str]:
    try:
        region = read_region(path.with_suffix(".onnx"), "region", "any")
        code = path.with_suffix(".vmfb").read_bytes()
        made = load_module(code, _OPTIONS, region.inputs, region.outputs)(inputs)
    except Exception as error:  # whatever it says is the answer
        return "refuses", " ".join(f"when run: {error}".split())[:300]
    for name, value in expected.items():
        wrong = differs(value, made[name], *limits)
        if wrong:
            return "wrong numbers", f"'{name}' {wrong}"
    return "takes", ""


def find_answers(store: Path, cases: Sequence[OneNode]) -> dict[str, Answer]:
    """Return the answers by name of case; those that the store lacks are asked for and added."""
    known = {}
    if store.exists():
        lines = map(json.loads, store.read_text(encoding="utf-8").splitlines())
        known = {each["name"]: Answer(**each) for each in lines}
    missing = iter([case for case in cases if case.name not in known])
    with store.open("a", encoding="utf-8") as file:
        while batch := list(islice(missing, _AT_ONCE)):
            for answer in ask(batch):
                known[answer.name] = answer
                file.write(f"{json.dumps(asdict(answer))}\n")
            file.flush()
    return known


def find_refusal(case: OneNode, target: Target) -> str:
    """Return why the rules refuse a case's node, nothing where they take it."""
    try:
        model = prepare_model(case.model, case.name)
    except ByocError as error:
        return str(error)
    verdict = annotate_graph(model.index, target)[0].verdict
    return "" if verdict else str(verdict)


def spread_cases(cases: Sequence[OneNode], most: int) -> list[OneNode]:
    """Return at most so many cases of each operator, the first and the last of them among these."""
    by_operator = defaultdict(list)
    for case in cases:
        by_operator[case.op].append(case)
    return [
        own[place]
        for own in by_operator.values()
        for place in sorted({round(each) for each in np.linspace(0, len(own) - 1, most)})
    ]


def main() -> int:
    """Ask, print, and return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("store", type=Path)
    parser.add_argument("--rules")
    parser.add_argument("--most", type=int)
    parser.add_argument("--operators", help="ask of these alone: Relu,Conv")
    asked = parser.parse_args()
    cases = list(list_cases())
    if asked.operators is not None:
        cases = [case for case in cases if case.op in asked.operators.split(",")]
    if asked.most is not None:
        cases = spread_cases(cases, asked.most)
    answers = find_answers(asked.store, cases)
    counts = Counter(answers[case.name].kind for case in cases)
    operators = len({case.op for case in cases})
    sys.stdout.write(f"{len(cases)} models of one node, {operators} operators\n")
    told = ", ".join(f"{kind} {number}" for kind, number in counts.most_common())
    sys.stdout.write(f"IREE: {told}\n")
    if asked.rules is None:
        return 0
    target = load_rules(asked.rules)
    judged = [(answers[case.name], find_refusal(case, target)) for case in cases]
    accepts = [(one, "") for one, why in judged if not why and one.kind != "takes"]
    refusals = [(one, why) for one, why in judged if why and one.kind == "takes"]
    for what, found in (("false accepts", accepts), ("false refusals", refusals)):
        sys.stdout.write(f"{what}: {len(found)}\n")
        for one, why in sorted(found, key=lambda pair: (pair[0].op, pair[0].name)):
            sys.stdout.write(f"  {one.op:<22} {one.name}: {why or f'{one.kind}: {one.why}'}\n")
    return int(bool(accepts))


if __name__ == "__main__":
    sys.exit(main())
