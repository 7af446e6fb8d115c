"""The arithmetic contract: which clause holds, what is weakest, what a file may say and inherits."""

from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byoc.errors import InputError
from byoc.rules import Arithmetic, ArithmeticClause, ArithmeticContract, Target, load_rules

HEAD = "target: one\ncost_model: dla\ndtype: any\nops: [{op: Relu}]\n"
OPERATORS, DTYPES = ("Add", "Div", "Relu"), ("float32", "float64", "int32", "uint8")


def load(folder: Path, *texts: str) -> Target:
    """Load the last of some files; each builds on the one before."""
    for i, text in enumerate(texts):
        start = f"extends: {i - 1}.yaml\n" if i else HEAD
        (folder / f"{i}.yaml").write_text(start + text, encoding="utf-8")
    return load_rules(folder / f"{len(texts) - 1}.yaml")


def find_problems(folder: Path, text: str) -> str:
    with pytest.raises(InputError) as caught:
        load(folder, text)
    return str(caught.value).replace(str(folder / "0.yaml"), "0.yaml")


def test_nothing_said_is_the_definition_of_onnx(tmp_path: Path) -> None:
    contract = load(tmp_path, "").arithmetic
    assert contract.resolve("Add", "int64") == Arithmetic()
    assert contract.loosest(product(OPERATORS, DTYPES)) == Arithmetic()
    assert contract.to_json() == []


def test_later_clauses_override_earlier_ones_key_by_key(tmp_path: Path) -> None:
    text = """
arithmetic:
  - {exact_below: 16777216, nan: any}
  - {op: [Add, Sub], dtype: [uint8, int8], overflow: any}
  - {op: Add, exact_below: 100}
  - {dtype: int64, exact_below: 18446744073709551616}
"""
    contract = load(tmp_path, text).arithmetic
    assert contract.resolve("Add", "uint8") == Arithmetic(exact_below=100, overflow="any", nan="any")
    assert contract.resolve("Sub", "uint8") == Arithmetic(exact_below=1 << 24, overflow="any", nan="any")
    assert contract.resolve("Mul", "uint8") == Arithmetic(exact_below=1 << 24, nan="any")
    assert contract.resolve("Add", "int64") == Arithmetic(nan="any")


def test_a_type_is_computed_with_less_precision_than_its_own_or_with_that(tmp_path: Path) -> None:
    contract = load(tmp_path, "arithmetic: {computes: float16}\n").arithmetic
    assert contract.resolve("Add", "float32").computes == "float16"
    assert contract.resolve("Add", "float64").computes == "float16"
    assert contract.resolve("Add", "float16") == contract.resolve("Add", "int32") == Arithmetic()
    assert contract.loosest([("Add", "int32"), ("Add", "float32")]).computes == "float16"


NAMES = {"op": (*OPERATORS, "*"), "dtype": (*DTYPES, "any")}
PROMISES = {
    "computes": ("float16", "bfloat16", "float32"),
    "exact_below": (100, 1 << 24, 1 << 64),
    "overflow": ("wraps", "saturates", "any"),
    "nan": ("kept", "any"),
}
CLAUSES = st.fixed_dictionaries(
    {"halves": st.sampled_from(["even", "any"])},
    optional={name: st.sampled_from(values) for name, values in PROMISES.items()}
    | {
        name: st.lists(st.sampled_from(values), min_size=1, max_size=2) for name, values in NAMES.items()
    },
).map(ArithmeticClause.model_validate)


@given(st.lists(CLAUSES, max_size=4))
def test_the_weakest_promise_of_a_region_is_no_stronger_than_that_of_any_node(
    clauses: list[ArithmeticClause],
) -> None:
    contract = ArithmeticContract(tuple(clauses))
    assert ArithmeticContract.from_json(contract.to_json()) == contract
    pairs = list(product(OPERATORS, DTYPES))
    weakest = contract.loosest(pairs)
    for pair in pairs:
        found = contract.resolve(*pair)
        assert found.join(weakest) == weakest
        last = [clause.nan for clause in clauses if clause.covers(*pair) and clause.nan]
        assert found.nan == (last[-1] if last else "kept")
    assert contract.loosest(reversed(pairs)) == weakest


def test_what_is_wrong_is_said_with_its_location(tmp_path: Path) -> None:
    text = """
arithmetic:
  - {op: Dib, nan: any}
  - {dtype: [fp16], computes: float16}
  - {op: Add}
  - {exact_below: 0}
  - {computes: int8}
  - {dtype: float32, exact_below: 16777216}
  - {dtype: [float32, int8], computes: float32}
"""
    for problem in (
        "arithmetic[0].op: ONNX has no operator 'Dib' (did you mean Div?)",
        "arithmetic[1].dtype: no such data type 'fp16' (did you mean float16?)",
        "arithmetic[2]: says nothing about values; give one of computes, exact_below, overflow, nan,",
        "arithmetic[3].exact_below: expected a whole number from 1 to 2^64",
        "arithmetic[4].computes: expected 'float16', 'bfloat16', 'float32' or 'float64'",
        "arithmetic[5].exact_below: is about whole numbers, and float32 has none",
        "arithmetic[6].computes: none of the clause's data types is wider than float32",
    ):
        assert problem in find_problems(tmp_path, text)


def test_clauses_of_a_base_come_first_and_are_named_by_their_own_files(tmp_path: Path) -> None:
    base = "arithmetic: [{exact_below: 100}, {op: Add, nan: any}]\n"
    middle = "arithmetic: [{exact_below: 200}]\n"
    last = "arithmetic: [{op: Add, nan: kept}]\n"
    target = load(tmp_path, base, middle, "target: two\n", last)
    assert target.arithmetic.resolve("Add", "int32") == Arithmetic(exact_below=200)
    assert [target.locate(f"arithmetic[{i}].nan") for i in range(4)] == [
        "0.yaml: arithmetic[0].nan",
        "0.yaml: arithmetic[1].nan",
        "1.yaml: arithmetic[0].nan",
        "arithmetic[0].nan",
    ]


def test_a_generation_overrides_what_its_file_says(tmp_path: Path) -> None:
    text = """
arithmetic: [{exact_below: 100}]
generation: new
generations:
  old: {}
  new: {arithmetic: {exact_below: 200}}
"""
    target = load(tmp_path, text)
    assert target.arithmetic.resolve("Add", "int32").exact_below == 200
    assert target.locate("arithmetic[1]") == "generations.new.arithmetic[0]"
    old = load_rules(f"{tmp_path / '0.yaml'}:old")
    assert old.arithmetic.resolve("Add", "int32").exact_below == 100
