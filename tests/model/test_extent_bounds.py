"""The least and the largest value of extents whose names are within ranges."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byoc.model import bound_dim, evaluate_dim

RANGES = {"a": (0, 4), "b": (2, 5), "x[0]": (1, 3)}
EXPRESSIONS = st.recursive(
    st.sampled_from(["a", "b", "'x[0]'", "1", "3", "-2"]),
    lambda inner: (
        st.builds(
            lambda word, one, other: (
                f"{word}({one}, {other})" if word.isalpha() else f"({one}) {word} ({other})"
            ),
            st.sampled_from(["+", "-", "*", "max", "min"]),
            inner,
            inner,
        )
        | st.builds(
            lambda one, divisor: f"({one}) // {divisor}", inner, st.sampled_from(["b", "2", "7"])
        )
    ),
    max_leaves=5,
)


@pytest.mark.parametrize(
    ("dim", "ends"),
    [
        (7, (7, 7)),
        (None, None),
        ("a", (0, 4)),
        ("c", None),
        ("a + b", (2, 9)),
        ("2*a - b", (-5, 6)),
        ("(a + 1) // 2", (0, 2)),
        ("b // a", None),
        ("max(a, b)", (2, 5)),
        ("x[0]", (1, 3)),
    ],
)
def test_ends(dim: int | str | None, ends: tuple[int, int] | None) -> None:
    assert bound_dim(dim, RANGES) == ends


@given(EXPRESSIONS)
def test_every_value_is_within_the_bounds(text: str) -> None:
    ends = bound_dim(text, RANGES)
    assert ends is not None
    for sizes in product(*(range(low, high + 1) for low, high in RANGES.values())):
        value = evaluate_dim(text, dict(zip(RANGES, sizes, strict=True)))
        assert value is not None
        assert ends[0] <= value <= ends[1]
