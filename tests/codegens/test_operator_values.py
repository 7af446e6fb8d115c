"""Codegens by value: whatever `c`, `dla` and `iree` take of an operator, they compute by definition.

Each operator in each dtype, on the values of tests/value_suite: the ends of types, wraps, halves, equal
keys, NaN, infinities, denormals, extents of 0; but for those of which a rule file promises nothing. Each
with other attributes and in older operator sets than those of ONNX's own tests as well.
"""

import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from compiling import compiled
from helpers.support import sample_cases

from byoc.codegen import CompileError, find_codegen
from byoc.errors import InputError
from byoc.model import prepare_model
from byoc.rules import ArithmeticContract, Target, annotate_graph, load_rules

_TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(_TESTS / "value_suite"), str(_TESTS / "onnx_suite")]

from attribute_cases import attribute_cases  # noqa: E402 - needs the path
from differing import differs  # noqa: E402
from exact_values import DTYPES  # noqa: E402
from joined_cases import (  # noqa: E402
    FORMS,
    UNDEFINED,
    Case,
    find_limits,
    group_cases,
    join_models,
)
from value_cases import ValueCase, value_cases  # noqa: E402
from value_samples import OPERATORS  # noqa: E402

SAMPLED = (
    "Add",
    "BitShift",
    "Clip",
    "MatMulInteger",
    "Max",
    "MaxPool",
    "Mod",
    "Pow",
    "ReduceSum",
    "Relu",
    "TopK",
)
"""The operators of the ordinary tests."""
IREE_DTYPES = ("float32", "float16", "int8", "uint8", "int32", "uint32", "int64", "uint64", "bool")
TAKEN = {
    "iree": ("Abs", "Add", "Clip", "Div", "Max", "Mod", "Mul", "ReduceSum", "Relu", "Where"),
    "dla": ("Add", "Clip", "Concat", "Div", "Exp", "Relu", "Softmax"),
}


def find_values(op: str, target: Target | None = None) -> Iterator[ValueCase]:
    """Yield the models of an operator, of those of floats the ones that a rule file takes."""
    stated = () if target is None else target.arithmetic.clauses
    promises = ArithmeticContract((*stated, UNDEFINED))
    for dtype in DTYPES if target is None else ["float32"]:
        for case in value_cases(op, dtype, promises.loosest, FORMS):
            if target is None or is_taken(case, target):
                yield case


def is_taken(case: Case, target: Target) -> bool:
    """Return whether a rule file takes the node of a model, as one of floats."""
    try:
        index = prepare_model(case.model, case.name).index
    except InputError:
        return False
    is_conversion = case.model.graph.node[0].op_type in ("QuantizeLinear", "DequantizeLinear")
    return not is_conversion and all(each.verdict for each in annotate_graph(index, target))


def find_wrong(codegen: str, cases: Sequence[Case], folder: Path) -> dict[str, str]:
    """Return what a codegen computes wrong of those of some models that it takes."""
    if not cases:
        return {}
    try:
        run = compiled(join_models(cases), folder, codegen)[2]
    except CompileError:
        if len(cases) == 1:
            return {}
        middle = len(cases) // 2
        halves = (cases[:middle], cases[middle:])
        return {k: v for half in halves for k, v in find_wrong(codegen, half, folder).items()}
    given = {
        f"k{i}_{name}": value for i, each in enumerate(cases) for name, value in each.inputs.items()
    }
    made = run(given)
    found = {}
    for i, case in enumerate(cases):
        for name, expected in case.expected.items():
            problem = differs(expected, made[f"k{i}_{name}"], *find_limits(case))
            if problem:
                found[f"{case.name} {name}"] = problem
    return found


@pytest.mark.skipif(find_spec("emx_onnx_cgen") is None, reason="emx-onnx-cgen is not installed")
@pytest.mark.parametrize("op", sample_cases(OPERATORS, *SAMPLED))
def test_what_c_takes_it_computes(op: str, tmp_path: Path) -> None:
    codegen: Any = find_codegen("c")
    cases = list(find_values(op))
    verdicts = codegen.check(join_models(cases), codegen.Options())
    taken = [case for case, verdict in zip(cases, verdicts, strict=True) if verdict]

    assert find_wrong("c", taken, tmp_path) == {}


@pytest.mark.parametrize("op", sample_cases(OPERATORS, *TAKEN["dla"]))
def test_what_the_dla_takes_it_computes(op: str, tmp_path: Path) -> None:
    target = load_rules("dla")
    cases = list(find_values(op, target))

    assert cases or op not in TAKEN["dla"]
    assert find_wrong("dla", cases, tmp_path) == {}


@pytest.mark.iree
@pytest.mark.skipif(find_spec("iree") is None, reason="IREE is not installed")
@pytest.mark.parametrize("op", TAKEN["iree"])
def test_what_iree_takes_it_computes(op: str, tmp_path: Path) -> None:
    target = load_rules("iree-cpu")
    promises = ArithmeticContract((*target.arithmetic.clauses, UNDEFINED))
    found = (
        case
        for dtype in IREE_DTYPES
        for case in value_cases(op, dtype, promises.loosest, ("variables", "later constant"))
    )
    cases = [case for case in found if is_taken(case, target)]

    assert cases
    assert find_wrong("iree", cases, tmp_path) == {}


@pytest.mark.skipif(find_spec("emx_onnx_cgen") is None, reason="emx-onnx-cgen is not installed")
@pytest.mark.parametrize("every", sample_cases([1, 300], 300))
def test_what_c_takes_of_other_attributes_it_computes(every: int, tmp_path: Path) -> None:
    codegen: Any = find_codegen("c")
    wrong: dict[str, str] = {}
    for cases in group_cases(attribute_cases(every, costly=every == 1)):
        verdicts = codegen.check(join_models(cases), codegen.Options())
        taken = [case for case, verdict in zip(cases, verdicts, strict=True) if verdict]
        wrong |= find_wrong("c", taken, tmp_path)

    assert wrong == {}


@pytest.mark.parametrize("every", sample_cases([1, 180], 180))
def test_what_the_dla_takes_of_other_attributes_it_computes(every: int, tmp_path: Path) -> None:
    target = load_rules("dla")
    found = (case for case in attribute_cases(every, costly=every == 1) if is_taken(case, target))
    wrong: dict[str, str] = {}
    for cases in group_cases(found):
        wrong |= find_wrong("dla", cases, tmp_path)

    assert wrong == {}
