"""Arithmetic on extents agrees with that on numbers, whatever the names stand for."""

from collections.abc import Callable

import numpy as np
import pytest
from helpers.cutting import original
from helpers.support import count_calls, examples, parse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from byoc.errors import InputError
from byoc.model import (
    add_dims,
    ceil_divide_dims,
    evaluate_dim,
    floor_divide_dims,
    is_dim_at_least,
    list_dim_names,
    max_dims,
    min_dims,
    multiply_dims,
    parse_dim,
    prepare_model,
    subtract_dims,
)

# Names of open dimensions, as models have them.
NAMES = ["h", "seq", "past_seq", "lambda", "dim.0", "?", "größe", "don't"]

Calculated = tuple[object, Callable[[dict[str, int]], int | None]]


def combine(pairs: st.SearchStrategy[Calculated]) -> st.SearchStrategy[Calculated]:
    def apply(operation: str, one: Calculated, other: Calculated) -> Calculated:
        symbolic, plain = OPERATIONS[operation]

        def compute(sizes: dict[str, int]) -> int | None:
            a, b = one[1](sizes), other[1](sizes)
            if a is None or b is None or (b == 0 and "//" in operation):
                return None
            return plain(a, b)

        return symbolic(one[0], other[0]), compute

    return st.builds(apply, st.sampled_from(sorted(OPERATIONS)), pairs, pairs)


OPERATIONS = {
    "+": (add_dims, lambda a, b: a + b),
    "-": (subtract_dims, lambda a, b: a - b),
    "*": (multiply_dims, lambda a, b: a * b),
    "//": (floor_divide_dims, lambda a, b: a // b),
    "//+": (ceil_divide_dims, lambda a, b: -(-a // b)),
    "max": (max_dims, max),
    "min": (min_dims, min),
}

NUMBERS = st.integers(-9, 9).map(lambda value: (value, lambda _: value))
OPEN = st.sampled_from(NAMES).map(lambda name: (name, lambda sizes: sizes[name]))
EXPRESSIONS = st.recursive(NUMBERS | OPEN, combine, max_leaves=10)
SETTINGS = settings(
    max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
SIZES = st.fixed_dictionaries({name: st.integers(0, 30) for name in NAMES})


@SETTINGS
@given(EXPRESSIONS, st.lists(SIZES, min_size=3, max_size=3))
def test_an_expression_evaluates_to_what_plain_numbers_give(pair, several):
    dim, compute = pair
    for sizes in several:
        wanted = compute(sizes)
        if wanted is not None and dim is not None:
            assert evaluate_dim(dim, sizes) == wanted, dim


@SETTINGS
@given(EXPRESSIONS, SIZES)
def test_canonical_text_is_read_as_itself(pair, sizes):
    dim = pair[0]
    if isinstance(dim, str):
        assert parse_dim(dim) == dim
        assert add_dims(dim, 0) == dim
        assert list_dim_names(dim) <= set(NAMES)


@SETTINGS
@given(EXPRESSIONS, SIZES)
def test_a_proven_lower_bound_holds(pair, sizes):
    dim, compute = pair
    value = compute(sizes)
    for least in (-3, 0, 2):
        if value is not None and is_dim_at_least(dim, least):
            assert value >= least


@SETTINGS
@given(EXPRESSIONS, EXPRESSIONS, EXPRESSIONS)
def test_equal_sums_and_products_have_equal_text(one, other, third):
    a, b, c = one[0], other[0], third[0]
    if None not in (a, b, c, add_dims(a, b, c), multiply_dims(a, b), multiply_dims(a, c)):
        assert add_dims(a, b, c) == add_dims(c, add_dims(b, a))
        assert multiply_dims(a, b) == multiply_dims(b, a)
        if multiply_dims(a, add_dims(b, c)) is not None:
            assert multiply_dims(a, add_dims(b, c)) == add_dims(multiply_dims(a, b), multiply_dims(a, c))


@pytest.mark.parametrize(
    ("text", "dim"),
    [
        ("seq+past", "past + seq"),
        ("2 * h", "2*h"),
        ("h//2", "h // 2"),
        ("floor(h/2)", "h // 2"),
        ("((s0 - 1)//2) + 1", "(s0 + 1) // 2"),
        ("ceil(h/2)", "(h + 1) // 2"),
        ("-(-h // 2)", "(h + 1) // 2"),
        ("(4*h + 6)//2", "2*h + 3"),
        ("(h//2)//2", "h // 4"),
        ("((h + 1)//2 + 1)//2", "(h + 3) // 4"),
        ("s0**2", "s0*s0"),
        ("h*w//w", "h"),
        ("(a + b)*(a - b)//(a + b)", "a - b"),
        ("h - h", 0),
        ("Max(1, 1 + n)", "n + 1"),
        ("Max(2, n)", "max(2, n)"),
        ("min(h, h - 3)", "h - 3"),
        ("max(h - 3, 0)", "max(0, h - 3)"),
        ("h % 8", "h - 8*(h // 8)"),
        ("64", 64),
        ("-1", None),
        ("", None),
        ("?", "?"),
        ("dynamic.0", "dynamic.0"),
        ("a b", "a b"),
        ("h/2", "h/2"),
        ("f(x)", "f(x)"),
        ("lambda", "lambda"),
        ("9" * 500, "9" * 500),
        ("(" * 200 + "h" + ")" * 200, "(" * 200 + "h" + ")" * 200),
        ("2**99", "2**99"),
        ("True", "True"),
    ],
)
def test_text_of_exporters_is_read(text, dim):
    assert parse_dim(text) == dim


def test_what_is_unknown_stays_unknown():
    assert add_dims(None, "h") is None
    assert multiply_dims(None, "h") is None
    assert multiply_dims(None, "h", 0) == 0
    assert floor_divide_dims("h", 0) is None
    assert max_dims("h", None) is None
    assert evaluate_dim("h + w", {"h": 1}) is None
    assert evaluate_dim("h // w", {"h": 1, "w": 0}) is None


def test_a_name_that_reads_like_a_difference_has_its_own_size():
    assert evaluate_dim("batch-size", {"batch-size": 4}) == 4
    assert evaluate_dim(multiply_dims("batch-size", 2), {"batch-size": 4}) == 8


def test_what_grows_beyond_use_is_unknown():
    dim = "n0"
    for i in range(1, 40):
        dim = multiply_dims(dim, add_dims(f"n{i}", 1))
    assert dim is None


def test_a_proof_by_cases_ends():
    """Each maximum doubles the cases: 242 characters of a dimension's name stood for four million."""
    maxima = "".join(f" - max(x, {number}*y)" for number in range(2, 24))
    text = f"max(999*x + 999*y{maxima}, 0)"
    assert len(text) < 400
    found: list[object] = []
    assert count_calls(lambda: found.append(parse_dim(text)), most=400_000) > 1_000
    assert found != [None]
    few = "max(999*x + 999*y - max(x, 2*y) - max(x, 3*y), 0)"
    assert parse_dim(few) == parse_dim("999*x + 999*y - max(x, 2*y) - max(x, 3*y)")


@pytest.mark.parametrize("rows", [1, 5, 64])
def test_a_table_cut_to_an_extent_has_that_extent_where_both_meet(rows: int) -> None:
    """Every size at which it runs has the inferred shape; a table that is too short is refused."""
    model = parse("""g (float[b, s, 2] x) => (float[b, n, 2] y) {
        length = Shape <start = 1, end = 2> (x)
        t = Slice(table, zero, length, one)
        y = Add(x, t)
    }""")
    model.graph.initializer.extend(
        numpy_helper.from_array(value, name)
        for name, value in {
            "table": np.ones((1, rows, 2), np.float32),
            "zero": np.array([0]),
            "one": np.array([1]),
        }.items()
    )
    assert prepare_model(model, "m").index.get_shape("y") == ("b", "s", 2)
    ran = 0
    for size in (1, 2, 5, 6, 64, 65):
        try:
            outputs = original(model, {"x": np.ones((3, size, 2), np.float32)})
        except InputError:
            continue
        assert outputs["y"].shape == (3, size, 2)
        ran += 1
    assert ran >= (6 if rows == 1 else 1)
