"""Asks TVM of models of one node: `python tests/tvm_rules/run.py STORE.jsonl [--rules RULES]`.

The models are ONNX's own operator tests, as they are and with constants, the same with another
attribute or in an older operator set, the nodes of the light models, and each operator in each dtype on
values that tell kernels apart. Answers are kept in STORE.jsonl, a line each, and asked for once.
`--every N` takes one model in N, `--operators A,B` those of some operators, `--sources A,B` those of
some sources. With RULES (`tvm-cpu`, or a file) a table follows of how often they agree with TVM; the
exit code is 1 where the goal is missed.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import islice
from math import inf
from pathlib import Path

_TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(_TESTS), str(_TESTS / "value_suite")]

from asking import Answer, Data, Question  # noqa: E402 - needs the path
from exact_values import DTYPES  # noqa: E402
from joined_cases import FORMS, UNDEFINED, find_limits  # noqa: E402
from one_node_models import OneNode, attribute_tests, light_nodes, operator_tests  # noqa: E402
from rule_agreement import Judged, goal_missed, refusal, table  # noqa: E402
from tvm_answers import ask, tvm_version  # noqa: E402
from value_cases import Resolve, value_cases  # noqa: E402
from value_samples import OPERATORS  # noqa: E402

from byoc.rules import Arithmetic, ArithmeticContract, Target, load_rules  # noqa: E402

_AT_ONCE = 100  # models that are asked before their answers are kept


def list_cases(every: int, resolve: Resolve, sources: Sequence[str]) -> Iterator[OneNode]:
    """Yield one in so many of the models of each source."""
    if "tests" in sources:
        yield from operator_tests(every)
    if "light" in sources:
        yield from light_nodes(every, most_bytes=inf)
    if "values" in sources:
        yield from islice(value_tests(resolve), 0, None, every)
    if "attributes" in sources:
        yield from attribute_tests(every)


def value_tests(resolve: Resolve) -> Iterator[OneNode]:
    """Yield each operator in each dtype, with the values of which a contract promises one result."""
    for op in OPERATORS:
        for dtype in DTYPES:
            for case in value_cases(op, dtype, resolve, ("variables", "later constant", "empty")):
                data = Data(case.inputs, case.expected, *find_limits(case))
                question = Question(case.model.SerializeToString(), (data,))
                yield OneNode(case.name, "values", case.model, question)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("store", type=Path)
    parser.add_argument("--rules")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--sources", default="tests,light,values,attributes")
    parser.add_argument("--operators", default="")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--loose", action="store_true")
    asked = parser.parse_args()
    loose = Arithmetic(nan="any", infinities="any", denormals="flushed", halves="any", equal_keys="any")
    resolve = (lambda _: loose) if asked.loose else (lambda _: Arithmetic())
    start = time.monotonic()
    known = {}
    if asked.store.exists():
        for line in asked.store.read_text().splitlines():
            one = json.loads(line)
            known[one["source"], one["name"]] = Answer(one["kind"], one["why"])
    ops = set(filter(None, asked.operators.split(",")))
    cases = (
        c for c in list_cases(asked.every, resolve, asked.sources.split(",")) if not ops or c.op in ops
    )
    missing = (c for c in cases if (c.source, c.name) not in known)
    with asked.store.open("a") as file:
        while batch := list(islice(missing, _AT_ONCE)):
            for case, answer in zip(batch, ask([c.question for c in batch], workers=asked.workers)):
                file.write(
                    json.dumps(
                        {
                            "source": case.source,
                            "name": case.name,
                            "op": case.op,
                            "kind": answer.kind,
                            "why": answer.why,
                        }
                    )
                    + "\n"
                )
            file.flush()
            print(len(batch), time.monotonic() - start, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
