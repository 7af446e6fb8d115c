"""Asks rknn-toolkit2 about models of one operator: `python tests/rknn_rules/run.py STORE.jsonl`.

The models are ONNX's own operator tests, as they are, with constants, and with other attributes, the
quantized ones that the rules of Ethos-U are held with, in int8, and edges that neither has and the
toolkit was wrong at. Each is built and run on the toolkit's simulator, whose interpreter
BYOC_RKNN_PYTHON names. Answers are kept in STORE.jsonl, a line each, and asked for once. `--sample
COUNT` takes so many models, drawn by `--seed`, `--operators A,B` those of some. `--drawn COUNT` makes so
many others by `--seed`, of random extents, attributes and values, each third in int8: a seed that was
not used before gives models that nothing was tuned on.

A table follows of how often the rule file (`--rules`, else `rknn-rk3588`) agrees. Floats are right
within a hundredth of the range, as float16 is verified; values that the file's contract gives up
(infinite, beyond float16) are no questions. Integers of 8 bits are right within 2 units. The exit code
is 1 where the file takes what is refused or wrong, or refuses more than 2 of 100 that are right.

With `--whole` each model goes the whole way: it is planned with the toolkit asked (`--ask everything`),
compiled, verified, and run on the data of the answers. What is taken is then what is on the accelerator
in the end, and a bundle that is wrong, or none, counts as a false accept.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice, product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

_TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(_TESTS), str(_TESTS / "ethos_u_suite")]

from byoc.codegens.rknn import RKNNOptions, _load_model  # noqa: E402
from byoc.codegens.rknn.sdk_process import SimulatorRun, find_toolkit  # noqa: E402
from held_out_cases import make_held_out_cases  # noqa: E402 - needs the path
from helpers.drawn_nodes import draw_cases  # noqa: E402 - needs the path
from helpers.one_node_models import OneNode as DrawnNode  # noqa: E402 - needs the path
from helpers.one_node_models import attribute_tests, operator_tests  # noqa: E402 - needs the path
from helpers.quantized import list_codes  # noqa: E402 - needs the path
from helpers.rule_agreement import WholeWay  # noqa: E402 - needs the path
from one_node import Given, OneNode, Stored, make_case  # noqa: E402 - needs the path
from vela_cases import make_cases  # noqa: E402 - needs the path

from byoc.codegen import CompileError, read_region  # noqa: E402
from byoc.errors import ByocError  # noqa: E402
from byoc.model import prepare_model  # noqa: E402
from byoc.onnxrt import open_session, run_session, without_optimizations  # noqa: E402
from byoc.rules import Target, annotate_graph, load_rules  # noqa: E402

_OPTIONS = RKNNOptions(timeout=120.0)
_SHARE, _UNITS = 1e-2, 2
_LARGEST = 65504.0  # of float16
_MOST = 60_000  # elements of a quantized model's inputs and outputs: others take long, and show no more
_GOAL = 0.02
_EXTENTS, _PLACES = (10, 13, 32), ("SAME_UPPER", "SAME_LOWER")
_POINTS = ((3, -5), (0, 0), (-128, 7))
Values = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Case:
    """A model of one operator, and inputs with what it computes of them."""

    name: str
    op: str
    model: onnx.ModelProto
    data: Sequence[tuple[Values, Values]]


@dataclass(frozen=True)
class Answer:
    """What became of a model: `why` is the toolkit's reason, or what is off; empty where it is right."""

    name: str
    op: str
    kind: str  # right, refused, wrong, crash
    why: str = ""


def list_cases() -> Iterator[Case]:
    """Yield the models, those left out whose tensors are no arrays of types that may cross."""
    for number, one in enumerate((*operator_tests(), *attribute_tests())):
        data = [(each.inputs, each.expected) for each in one.question.data]
        asked = [pair for pair in data if all(map(_is_promised, (*pair[0].values(), *pair[1].values())))]
        needed = {value.name for value in one.model.graph.input}
        read = {name for node in one.model.graph.node for name in node.input}
        if asked and needed and needed == set(asked[0][0]) <= read:  # what is left out has a default
            yield Case(f"{number} {one.source} {one.name}", one.op, one.model, asked)
    quantized = {(each.op, each.name): each for each in (*make_cases(), *list_quantized_edges())}
    yield from _list_quantized(quantized.values())
    for size, kernel, step, place in product(_EXTENTS, (1, 2, 3), (2, 3, 4, 5), _PLACES):
        model = _make_convolution(size, kernel, step, place)
        image = {"x": np.random.default_rng(1).standard_normal((1, 3, size, size)).astype(np.float32)}
        name = f"edge {size} by {size}, kernel {kernel}, step {step}, {place}"
        yield Case(name, "Conv", model, [(image, run_session(open_session(model), image))])


def list_drawn_cases(seed: int, count: int) -> Iterator[Case]:
    """Yield so many models drawn at random, each third quantized."""
    plain = (one for one in draw_cases(seed, 2 * count) if all(map(_is_promised, _list_values(one))))
    for one in islice(plain, count - count // 3):
        data = [(each.inputs, each.expected) for each in one.question.data]
        yield Case(f"drawn {one.name}", one.op, one.model, data)
    yield from islice(_list_quantized(make_held_out_cases(seed, 3 * count)), count // 3)


def _list_values(one: DrawnNode) -> Iterator[Any]:
    """Yield the arrays of a model's data."""
    for data in one.question.data:
        yield from (*data.inputs.values(), *data.expected.values())


def _list_quantized(cases: Iterable[OneNode]) -> Iterator[Case]:
    """Yield those of int8 that are not too large, with data."""
    for each in cases:
        if each.name.startswith(("int16", "uint8")) or _count_elements(each.model) > _MOST:
            continue
        try:
            data = _draw_integers(each.model)
        except ByocError:  # a kernel larger than its image: onnxruntime has nothing to compare with
            continue
        yield Case(f"int8 {each.op} {each.name}", each.op, each.model, data)


def list_quantized_edges() -> Iterator[OneNode]:
    """Yield what the toolkit was wrong at, and what is right beside it.

    These are steps and poles by zero point, operators that change nothing but the scale, and automatic
    padding whose windows do not reach the end.
    """
    for op, points in product(
        ("Ceil", "Floor", "Round", "ThresholdedRelu", "Reciprocal", "Cos", "Sin"), _POINTS
    ):
        yield make_case(op, [Given((1, 4, 8, 8))], points=points)
    for shape, same in product(((2, 1), (2, 1, 3), (2, 1, 3, 4)), (False, True)):
        image = Given(shape)
        yield make_case("Concat", [image], axis=0, same=same)
        yield make_case("Clip", [image], same=same)
        yield make_case("Split", [image, np.array([2])], axis=0, same=same)
        for op in ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"):
            yield make_case(op, [image, np.array([1])], same=same)
    for size, kernel, step, place in product(_EXTENTS, (1, 2, 3), (2, 3, 4, 5), _PLACES):
        operands = [Given((1, 3, size, size)), Stored((4, 3, kernel, kernel))]
        yield make_case("Conv", operands, strides=[step] * 2, auto_pad=place)


def _make_convolution(size: int, kernel: int, step: int, place: str) -> onnx.ModelProto:
    """Return a convolution of floats with automatic padding."""
    weights = np.random.default_rng(2).standard_normal((4, 3, kernel, kernel)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], strides=[step] * 2, auto_pad=place)],
        "edge",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (1, 3, size, size))],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def _is_promised(value: Any) -> bool:
    """Return whether the rule file's contract promises something of a value."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub":
        return False
    return value.dtype.kind != "f" or bool(np.all(np.abs(value) <= _LARGEST))


def _read_extents(value: onnx.ValueInfoProto) -> list[int]:
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


def _count_elements(model: onnx.ModelProto) -> int:
    graph = model.graph
    return sum(int(np.prod(_read_extents(value))) for value in (*graph.input, *graph.output))


def _draw_integers(model: onnx.ModelProto) -> list[tuple[Values, Values]]:
    """Return random integers, and the ends of int8 by turns, with what onnxruntime makes of them."""
    with without_optimizations():
        session = open_session(model)
    inputs = model.graph.input
    drawn = np.random.default_rng(1)
    given: list[dict[str, Any]] = [
        {each.name: drawn.integers(-128, 128, _read_extents(each)).astype(np.int8) for each in inputs},
        {
            each.name: list_codes(_read_extents(each), np.int8, (2, 3)[number % 2])
            for number, each in enumerate(inputs)
        },
    ]
    return [(each, run_session(session, each)) for each in given]


def ask(case: Case) -> Answer:
    """Return what the toolkit makes of a case."""
    try:
        with tempfile.TemporaryDirectory(prefix="byoc-") as folder:
            path = Path(folder) / "model.onnx"
            onnx.save(case.model, path)
            region = read_region(path, "asked", "rknn-rk3588")
            model = _load_model(region)
            run = SimulatorRun(find_toolkit(), model, _OPTIONS.settings, _OPTIONS.timeout)
            for inputs, expected in case.data:
                made = run([np.asarray(inputs[each.name]) for each in region.inputs])
                if len(made) != len(region.outputs):
                    said = f"has {len(made)} outputs for {len(region.outputs)}"
                    return Answer(case.name, case.op, "wrong", said)
                for contract, array in zip(region.outputs, made, strict=True):
                    off = find_difference(np.asarray(expected[contract.name]), array)
                    if off:
                        return Answer(case.name, case.op, "wrong", f"'{contract.name}' {off}")
    except CompileError as error:
        return Answer(case.name, case.op, "refused" if error.lasting else "crash", str(error))
    except ByocError as error:
        return Answer(case.name, case.op, "refused", str(error))
    return Answer(case.name, case.op, "right")


def find_difference(expected: np.ndarray[Any, Any], made: np.ndarray[Any, Any]) -> str:
    """Return how a result is off, nothing where it is right."""
    if expected.size != made.size:
        return f"has {made.size} elements for {expected.size}"
    expected, made = expected.ravel(), made.ravel()
    if not expected.size:
        return ""
    if expected.dtype.kind != "f":
        off = np.abs(expected.astype(np.int64) - made.astype(np.int64)).max()
        allowed = _UNITS if expected.dtype == np.int8 else 0
        return f"is off by {off} units" if off > allowed else ""
    wide = expected.astype(np.float64)
    scale = max(float(np.ptp(wide)), float(np.abs(wide).max()), 1e-30)
    share = np.nan_to_num(np.abs(wide - made), nan=np.inf).max() / scale
    return f"is off by {share:.2g} of the range" if share > _SHARE else ""


def find_answers(store: Path, cases: Sequence[Case]) -> dict[str, Answer]:
    """Return the answers by name of case; those that the store lacks are asked for and added."""
    known = {}
    if store.exists():
        lines = map(json.loads, store.read_text(encoding="utf-8").splitlines())
        known = {each["name"]: Answer(**each) for each in lines}
    with store.open("a", encoding="utf-8") as file:
        for case in cases:
            if case.name not in known:
                known[case.name] = ask(case)
                file.write(f"{json.dumps(asdict(known[case.name]))}\n")
                file.flush()
    return known


def find_refusal(case: Case, target: Target) -> str:
    """Return why the rules refuse a case's operator, nothing where they take it."""
    try:
        model = prepare_model(case.model, case.name)
    except ByocError as error:
        return str(error)
    marks = annotate_graph(model.index, target)
    mark = next(
        mark
        for node, mark in zip(model.index.graph.node, marks, strict=True)
        if node.op_type == case.op.rpartition(".")[2]
    )
    if not mark.verdict:
        return str(mark.verdict)
    if case.name.startswith("int8 "):
        return "" if mark.accepts_quantized else mark.not_quantized or "it is taken in float16 alone"
    return "" if mark.accepts_plain else "it is taken in int8 alone"


def judge_whole_way(
    cases: Sequence[Case], answers: Mapping[str, Answer], rules: str, log: Path
) -> Iterator[tuple[Answer, str]]:
    """Yield the answers with why a case is not taken in the end; outcomes are added to a log.

    What is on the accelerator is right if its numbers are, and what ends wrong or in an error is taken
    and not right, whatever the answer: a crash need not come again.
    """
    options = {"ask": "everything", "codegen_options": {"timeout": "60"}, "cache": False}
    models = {case.name: (case.model, case.data) for case in cases}
    known = WholeWay(rules, options, find_difference).find_outcomes(models, log)
    for case in cases:
        each = known[case.name]
        if each == "host":
            yield answers[case.name], each
        else:
            kind = "right" if each == "accelerator" else "wrong"
            yield replace(answers[case.name], kind=kind, why=each), ""


def write_table(answers: Sequence[tuple[Answer, str]]) -> Iterator[str]:
    """Yield the figures, then every disagreement; each answer comes with the rule file's refusal."""
    kinds = Counter(answer.kind for answer, _ in answers)
    yield f"{len(answers)} models of one operator, {len({answer.op for answer, _ in answers})} operators"
    yield "rknn-toolkit2: " + ", ".join(f"{kind} {number}" for kind, number in kinds.most_common())
    accepts = [pair for pair in answers if pair[0].kind != "right" and not pair[1]]
    refusals = [pair for pair in answers if pair[0].kind == "right" and pair[1]]
    yield f"false accepts: {len(accepts)} of {len(answers) - kinds['right']}"
    yield from (f"  {answer.kind} {answer.name}: {answer.why}" for answer, _ in accepts)
    yield f"false refusals: {len(refusals)} of {kinds['right']}"
    yield from (f"  {answer.name}: {why}" for answer, why in refusals)


def find_missed_goal(answers: Sequence[tuple[Answer, str]]) -> str:
    """Return how the goal is missed, nothing where it is reached."""
    accepts = sum(answer.kind != "right" and not why for answer, why in answers)
    right = sum(answer.kind == "right" for answer, _ in answers)
    refusals = sum(answer.kind == "right" and bool(why) for answer, why in answers)
    if accepts:
        return f"{accepts} false accepts"
    return f"{refusals} false refusals of {right}" if refusals > _GOAL * right else ""


def main() -> int:
    """Ask, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--rules", default="rknn-rk3588")
    parser.add_argument("--sample", type=int)
    parser.add_argument("--drawn", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--operators", help="ask of these alone: Relu,Conv")
    parser.add_argument("--whole", type=Path, help="go the whole way; outcomes are kept in this file")
    asked = parser.parse_args()
    drawn = asked.drawn and list_drawn_cases(asked.seed, asked.drawn)
    cases = list(drawn or list_cases())
    if asked.operators is not None:
        cases = [case for case in cases if case.op in asked.operators.split(",")]
    if asked.sample is not None:
        cases = Random(asked.seed).sample(cases, min(asked.sample, len(cases)))
    answers = find_answers(asked.store, cases)
    target = load_rules(asked.rules)
    judged = [(answers[case.name], find_refusal(case, target)) for case in cases]
    if asked.whole:
        judged = list(judge_whole_way(cases, answers, asked.rules, asked.whole))
    for line in write_table(judged):
        sys.stdout.write(f"{line}\n")
    missed = find_missed_goal(judged)
    sys.stdout.write(f"{missed or 'the goal is reached'}\n")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
