"""Asks TVM of models of one node: `python tests/tvm_rules/run.py STORE.jsonl [--rules RULES]`.

The models are ONNX's own operator tests, as they are and with constants; the same with another attribute
or in an older operator set; nodes of the light models; and each operator in each dtype on values that
tell kernels apart, but for those of which RULES (`tvm-cpu`, or a file) promise nothing. Answers are kept
in STORE.jsonl, a line each, and asked for once.

A table follows of how often RULES agree with TVM; the exit code is 1 where the goal is missed.
`--every N` takes one model in N, `--operators A,B` those of some operators, `--sources` some of `tests`,
`light`, `values`, `attributes` and `stored`, which are those of other attributes with constants.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

_TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(_TESTS), str(_TESTS / "value_suite")]

from exact_values import DTYPES  # noqa: E402
from helpers.asking import Answer, Data, Question  # noqa: E402 - needs the path
from helpers.one_node_models import (  # noqa: E402
    OneNode,
    attribute_tests,
    light_nodes,
    operator_tests,
    store_inputs,
)
from helpers.rule_agreement import Judged, goal_missed, refusal, table  # noqa: E402
from joined_cases import UNDEFINED, find_limits  # noqa: E402
from tvm_answers import ask  # noqa: E402
from value_cases import value_cases  # noqa: E402
from value_samples import OPERATORS  # noqa: E402

from byoc.rules import ArithmeticContract, Target, load_rules  # noqa: E402

_AT_ONCE = 100  # models that are asked before their answers are kept
_FORMS = ("variables", "later constant", "empty")


def list_stored(every: int) -> Iterator[OneNode]:
    """Yield the tests of other attributes with all inputs but the first one stored."""
    several = (one for one in attribute_tests(every) if len(one.model.graph.input) > 1)
    yield from filter(None, (store_inputs(one, "stored") for one in several))


def list_values(every: int, target: Target) -> Iterator[OneNode]:
    """Yield each operator in each dtype, on values of which the rules promise one result."""
    promises = ArithmeticContract((*target.arithmetic.clauses, UNDEFINED))
    cases = (
        case
        for op in OPERATORS
        for dtype in DTYPES
        for case in value_cases(op, dtype, promises.loosest, _FORMS)
    )
    for case in islice(cases, 0, None, every):
        data = Data(case.inputs, case.expected, *find_limits(case))
        question = Question(case.model.SerializeToString(), (data,))
        yield OneNode(case.name, "values", case.model, question)


SOURCES: Mapping[str, Callable[[int, Target], Iterator[OneNode]]] = {
    "tests": lambda every, _: operator_tests(every),
    "light": lambda every, _: light_nodes(every),
    "values": list_values,
    "attributes": lambda every, _: attribute_tests(every),
    "stored": lambda every, _: list_stored(every),
}


def judge(cases: Sequence[OneNode], target: Target, store: Path, workers: int = 2) -> Iterator[Judged]:
    """Yield what TVM and the rules say of each case; answers that the store lacks are added to it."""
    target = replace(target, values="assumed")
    known = {}
    if store.exists():
        rows = map(json.loads, store.read_text(encoding="utf-8").splitlines())
        known = {(each["source"], each["name"]): Answer(each["kind"], each["why"]) for each in rows}
    missing = iter([case for case in cases if (case.source, case.name) not in known])
    with store.open("a", encoding="utf-8") as file:
        while batch := list(islice(missing, _AT_ONCE)):
            answers = ask([case.question for case in batch], workers=workers)
            for case, answer in zip(batch, answers, strict=True):
                known[case.source, case.name] = answer
                row = {"source": case.source, "name": case.name, "kind": answer.kind, "why": answer.why}
                file.write(f"{json.dumps(row)}\n")
            file.flush()
    for case in cases:
        yield Judged(case, known[case.source, case.name], refusal(case, target))


def main() -> int:
    """Ask, print, and return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("store", type=Path)
    parser.add_argument("--rules", default="tvm-cpu")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--sources", default=",".join(SOURCES))
    parser.add_argument("--operators", help="ask of these alone: Relu,Conv")
    asked = parser.parse_args()
    target = load_rules(asked.rules)
    sources = asked.sources.split(",")
    cases = [case for source in sources for case in SOURCES[source](asked.every, target)]
    if asked.operators is not None:
        cases = [case for case in cases if case.op in asked.operators.split(",")]
    judged = list(judge(cases, target, asked.store))
    for line in table(judged, "TVM"):
        sys.stdout.write(f"{line}\n")
    return int(bool(goal_missed(judged)))


if __name__ == "__main__":
    sys.exit(main())
