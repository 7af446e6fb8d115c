"""The rule file for OpenVINO's CPU plug-in by value: what it promises of values OpenVINO computes.

For every operator and dtype that the file takes OpenVINO is asked, through the codegen's rewrites, for
values that tell kernels apart, but for those of which the file's contract promises nothing.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.asking import Answer, Data, Question
from helpers.support import sample_cases
from oracle import ask, openvino_version

sys.path[:0] = [str(Path(__file__).parents[1] / "value_suite")]

from exact_values import DTYPES  # noqa: E402 - needs the path
from value_cases import Resolve, ValueCase, value_cases  # noqa: E402
from value_samples import OPERATORS  # noqa: E402

from byoc.model import prepare_model  # noqa: E402
from byoc.rules import Arithmetic, Target, annotate_graph, load_rules  # noqa: E402

pytestmark = [
    pytest.mark.openvino,
    pytest.mark.skipif(not openvino_version(), reason="openvino is not installed"),
]
TOLERANCES = {"float16": (2e-3, 1e-3), "bfloat16": (2.0**-6, 1e-2)}  # of other floats (1e-4, 1e-6)
SAMPLED = "Div", "Exp", "Max", "TopK"
SAMPLED_INTEGERS = "Add", "Mod", "Pad"


def find_accepted(op: str, target: Target, resolve: Resolve) -> Iterator[ValueCase]:
    """Yield the models of an operator that the rules take, with values for which `resolve` promises."""
    for dtype in DTYPES:
        for case in value_cases(op, dtype, resolve):
            index = prepare_model(case.model, case.name).index
            marks = enumerate(annotate_graph(index, target))
            if all(mark.verdict for place, mark in marks if place not in index.constant_nodes):
                yield case


def find_wrong(cases: Iterable[ValueCase]) -> dict[str, Answer]:
    """Return what OpenVINO computes wrong, or crashes at; what it refuses stays on the host."""
    cases = list(cases)
    questions = []
    for case in cases:
        limits = TOLERANCES.get(case.dtype, (1e-4, 1e-6))
        data = Data(case.inputs, case.expected, *limits)
        questions.append(Question(case.model.SerializeToString(), (data,)))
    answers = zip(cases, ask(questions), strict=True)
    return {case.name: each for case, each in answers if each.kind in ("wrong numbers", "crash")}


def promise_all_integers(target: Target) -> Resolve:
    """Return the target's contract, as if all whole numbers were exact and wrapped."""

    def resolve(pairs: Iterable[tuple[str, str]]) -> Arithmetic:
        return replace(target.arithmetic.loosest(pairs), exact_below=None, overflow="wraps")

    return resolve


@pytest.mark.parametrize("op", sample_cases(OPERATORS, *SAMPLED))
def test_what_is_promised_of_values_is_computed(op: str) -> None:
    target = replace(load_rules("openvino-cpu"), values="assumed")

    accepted = list(find_accepted(op, target, target.arithmetic.loosest))

    assert find_wrong(accepted) == {}


@pytest.mark.parametrize("op", sample_cases(OPERATORS, *SAMPLED_INTEGERS))
def test_what_is_taken_is_right_for_all_integers(op: str) -> None:
    target = load_rules("openvino-cpu")

    accepted = list(find_accepted(op, target, promise_all_integers(target)))

    assert find_wrong(accepted) == {}


@pytest.mark.parametrize("op", sample_cases(["Add", "Equal", "QuantizeLinear"], "Equal"))
def test_a_file_that_promises_too_much_is_found_out(op: str) -> None:
    shipped = load_rules("openvino-cpu")
    target = replace(shipped, rules=shipped.rules.model_copy(update={"arithmetic": ()}))

    assert find_wrong(find_accepted(op, target, target.arithmetic.loosest))


def test_what_processors_differ_in_is_not_promised() -> None:
    """`inf - inf` with one of them constant is infinite in bfloat16 on Haswell and Nehalem."""
    contract = load_rules("openvino-cpu").arithmetic

    promised = {dtype: contract.resolve("Sub", dtype).infinities for dtype in ("float32", "bfloat16")}
    assert promised == {"float32": "kept", "bfloat16": "any"}
