"""Asks TVM of models of one node: `python tests/tvm_rules/run.py STORE.jsonl [--rules RULES]`.

The models are ONNX's own operator tests, as they are and with constants; the same with another attribute
or in an older operator set; nodes of the light models; and each operator in each dtype on values that
tell kernels apart, but for those of which RULES (`tvm-cpu`, or a file) promise nothing. Answers are kept
in STORE.jsonl, a line each, and asked for once. Memory that is given out anew is filled, so that what
TVM does not write is not right by chance. Left out are models without inputs, whose nodes are not
placed, and those whose extents follow from values that are computed, if RULES refuse them: the codegen
compiles for extents that are known.

A table follows of how often RULES agree with TVM; the exit code is 1 where the goal is missed.
`--every N` takes one model in N, `--operators A,B` those of some operators, `--sources` some of `tests`,
`light`, `values`, `attributes`, `stored`, which are those of other attributes with constants, and
`halves`, which are the tests of float32 in float16 and bfloat16. `--drawn COUNT` makes so many others
by `--seed`, of random extents, attributes and values, on which nothing was tuned.

With `--whole LOG` each model goes the whole way: it is planned with TVM asked (`--ask everything`),
compiled, verified, and run on the data of the answers; outcomes are kept in LOG. What is taken is then
what is on TVM in the end, and a bundle that is wrong, or none, counts as a false accept.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

_TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(_TESTS), str(_TESTS / "value_suite"), str(_TESTS / "onnx_suite")]

from differing import differs  # noqa: E402 - needs the path
from exact_values import DTYPES  # noqa: E402
from helpers.asking import Answer, Data, Question  # noqa: E402 - needs the path
from helpers.drawn_nodes import draw_cases  # noqa: E402 - needs the path
from helpers.one_node_models import (  # noqa: E402
    OneNode,
    attribute_tests,
    light_nodes,
    operator_tests,
    run_model,
    store_inputs,
)
from helpers.rule_agreement import Judged, WholeWay, goal_missed, refusal, table  # noqa: E402
from joined_cases import TOLERANCES, UNDEFINED, find_limits  # noqa: E402
from partitioned import attempt  # noqa: E402
from tvm_answers import ask  # noqa: E402
from value_cases import value_cases  # noqa: E402
from value_samples import OPERATORS  # noqa: E402

from byoc.errors import InputError  # noqa: E402
from byoc.model import prepare_model  # noqa: E402
from byoc.rules import ArithmeticContract, Target, load_rules  # noqa: E402

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


def list_halves(every: int) -> Iterator[OneNode]:
    """Yield the tests of float32 in float16 and bfloat16, where the operator has them.

    What is expected is what the test's own model makes of the rounded inputs, rounded.
    """
    for one in operator_tests(every):
        types = {value.type.tensor_type.elem_type for value in one.model.graph.input}
        if TensorProto.FLOAT in types and not types & {TensorProto.DOUBLE, TensorProto.FLOAT16}:
            for kind in (TensorProto.FLOAT16, TensorProto.BFLOAT16):
                yield from filter(None, [_halve(one, kind)])


def _halve(one: OneNode, kind: int) -> OneNode | None:
    """Return a test with its float32 in another type, None where there is no such model."""
    model = onnx.ModelProto()
    model.CopyFrom(one.model)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = kind
    if any(each.data_type == TensorProto.FLOAT for each in model.graph.initializer):
        return None
    if attempt(onnx.shape_inference.infer_shapes, model, True, True)[0] is None:
        return None
    inputs = {
        name: _convert(value, "float32", dtype) for name, value in one.question.data[0].inputs.items()
    }
    wide = {name: _convert(value, dtype, "float32") for name, value in inputs.items()}
    made = attempt(run_model, one.model, wide)[0]
    if made is None:
        return None
    expected = {name: _convert(value, "float32", dtype) for name, value in made.items()}
    question = Question(model.SerializeToString(), (Data(inputs, expected, *TOLERANCES[dtype.name]),))
    return OneNode(f"{one.name} {dtype.name}", "halves", model, question)


def _convert(value: Any, given: Any, wanted: Any) -> Any:
    """Return an array of another type where it is one of a given type, any other value as it is."""
    return value.astype(wanted) if getattr(value, "dtype", None) == given else value


SOURCES: Mapping[str, Callable[[int, Target], Iterator[OneNode]]] = {
    "tests": lambda every, _: operator_tests(every),
    "light": lambda every, _: light_nodes(every),
    "values": list_values,
    "attributes": lambda every, _: attribute_tests(every),
    "stored": lambda every, _: list_stored(every),
    "halves": lambda every, _: list_halves(every),
}


def judge(cases: Sequence[OneNode], target: Target, store: Path, workers: int = 2) -> Iterator[Judged]:
    """Yield what TVM and the rules say of each case; answers that the store lacks are added to it."""
    target = replace(target, values="assumed")
    known = {}
    if store.exists():
        rows = map(json.loads, store.read_text(encoding="utf-8").splitlines())
        known = {(each["source"], each["name"]): Answer(each["kind"], each["why"]) for each in rows}
    missing = [case for case in cases if (case.source, case.name) not in known]
    with store.open("a", encoding="utf-8") as file:
        for case, answer in zip(
            missing, ask([case.question for case in missing], workers=workers), strict=True
        ):
            known[case.source, case.name] = answer
            row = {"source": case.source, "name": case.name, "kind": answer.kind, "why": answer.why}
            file.write(f"{json.dumps(row)}\n")
            file.flush()
    for case in cases:
        why = refusal(case, target)
        if not why or _has_known_extents(case.model):
            yield Judged(case, known[case.source, case.name], why)


def _has_known_extents(original: onnx.ModelProto) -> bool:
    """Return whether the extents of a model's outputs follow from its inputs and constants."""
    model = onnx.ModelProto()
    model.CopyFrom(original)
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    try:
        index = prepare_model(model, "asked").index
    except InputError:
        return True
    types = [index.types.get(value.name) for value in model.graph.output]
    return all(each is not None and each.elements is not None for each in types)


def judge_whole_way(judged: Sequence[Judged], rules: str, log: Path) -> Iterator[Judged]:
    """Yield what became of each case, with why it is on the host; outcomes are added to a log."""
    models = {
        f"{one.case.source} {one.case.name}": (
            one.case.model,
            [(data.inputs, data.expected) for data in one.case.question.data],
        )
        for one in judged
    }
    way = WholeWay(rules, {"ask": "everything", "cache": False}, _find_difference)
    outcomes = way.find_outcomes(models, log).values()
    for one, outcome in zip(judged, outcomes, strict=True):
        if outcome == "host":
            yield replace(one, refusal="it is on the host")
        else:
            answer = Answer("takes") if outcome == "accelerator" else Answer("wrong numbers", outcome)
            yield Judged(one.case, answer, "")


def _find_difference(expected: Any, made: Any) -> str:
    """Return how an output is off, nothing where it is right; float16 as drawn models are judged."""
    return differs(expected, made, *((1e-2, 1e-2) if expected.dtype == "float16" else (1e-3, 1e-5)))


def main() -> int:
    """Ask, print, and return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("store", type=Path)
    parser.add_argument("--rules", default="tvm-cpu")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--sources", default=",".join(SOURCES))
    parser.add_argument("--operators", help="ask of these alone: Relu,Conv")
    parser.add_argument("--drawn", type=int, help="so many models drawn at random in their place")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--whole", type=Path, help="go the whole way; outcomes are kept in this file")
    asked = parser.parse_args()
    os.environ["MALLOC_PERTURB_"] = "165"  # read by the C library of processes that are started
    target = load_rules(asked.rules)
    sources = asked.sources.split(",")
    drawn = asked.drawn and draw_cases(asked.seed, asked.drawn)
    made = drawn or [case for source in sources for case in SOURCES[source](asked.every, target)]
    cases = [case for case in made if case.model.graph.input]
    if asked.operators is not None:
        cases = [case for case in cases if case.op in asked.operators.split(",")]
    judged = list(judge(cases, target, asked.store))
    if asked.whole:
        judged = list(judge_whole_way(judged, asked.rules, asked.whole))
    for line in table(judged, "TVM"):
        sys.stdout.write(f"{line}\n")
    return int(bool(goal_missed(judged)))


if __name__ == "__main__":
    sys.exit(main())
