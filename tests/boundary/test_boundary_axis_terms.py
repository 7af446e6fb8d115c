"""Axis terms of contracts, function by function: what each returns, in numbers."""

import pytest
from contract_views import AxisStep, AxisTerm, AxisTerms

from byoc.model import Dim

Terms = tuple[AxisTerm, ...]


def terms(layout: str) -> Terms:
    found = AxisTerms.parse(layout, 4)
    assert found is not None
    return found


N, C, H, W = terms("NCHW")
NCHW4C = (N, C, H, W, AxisTerm(1, 4))


@pytest.mark.parametrize(
    ("before", "step", "after"),
    [
        (terms("NCHW"), AxisStep((0, 2, 3, 1)), (N, H, W, C)),
        (terms("NCHW"), AxisStep((0, 2, 1)), None),  # another rank
        (terms("NCHW"), AxisStep(None, (2, 8, 3, 5), (2, 2, 4, 3, 5)), (N, C, AxisTerm(1, 4), H, W)),
        (
            terms("NCHW"),
            AxisStep(None, (2, 8, 3, 5), (2, 2, 2, 2, 3, 5)),
            (N, C, AxisTerm(1, 2), AxisTerm(1, 2), H, W),
        ),
        (terms("NCHW"), AxisStep(None, (2, 8, 3), (2, 2, 4, 3)), None),  # a shape of another rank
        (terms("NCHW"), AxisStep(None, (2, 8, 3, 5), (2, 24, 5)), None),  # joins two axes
        (terms("NCHW"), AxisStep(None, (2, 8, 3, 5), (4, 4, 3, 5)), None),
        (terms("NCHW"), AxisStep(None, (2, 8, 3, 1), (2, 8, 3)), None),
        (terms("NCHW")[:3], AxisStep(None, (2, 8, 3), (2, 8, 3, 1)), None),
        (terms("NCHW"), AxisStep(None, (2, 6, 3, 5), (2, 4, 4, 3, 5)), None),
        (terms("NCHW"), AxisStep(None, ("b", 8, 3, 5), ("b", 2, 4, 3, 5)), (N, C, AxisTerm(1, 4), H, W)),
        (terms("NCHW"), AxisStep(None, (2, "c", 3, 5), (2, "c", 4, 3, 5)), None),
        (terms("NCHW"), AxisStep(None, (2, 8, 3, 5), (2, 2, "c", 3, 5)), None),
        (
            (N, AxisTerm(1, 2), AxisTerm(1, 4), H, W),  # both are blocks: so is what they make together
            AxisStep(None, (2, 2, 4, 3, 5), (2, 8, 3, 5)),
            (N, AxisTerm(1, 8), H, W),
        ),
        ((N, C, C, H, W), AxisStep(None, (2, 2, 4, 3, 5), (2, 8, 3, 5)), None),  # whole axes
    ],
)
def test_a_step_leads_from_terms_to_terms(before: Terms, step: AxisStep, after: Terms | None) -> None:
    assert AxisTerms(before).apply(step) == after


@pytest.mark.parametrize(
    ("after", "step", "before"),
    [
        ((N, H, W, C), AxisStep((0, 2, 3, 1)), (N, C, H, W)),
        ((N, W, C, H), AxisStep((0, 3, 1, 2)), (N, C, H, W)),
        ((N, H, W), AxisStep((0, 2, 3, 1)), None),
        ((N, C, AxisTerm(1, 4), H, W), AxisStep(None, (2, 8, 3, 5), (2, 2, 4, 3, 5)), (N, C, H, W)),
    ],
)
def test_a_step_is_reverted(after: Terms, step: AxisStep, before: Terms | None) -> None:
    assert AxisTerms(after).revert(step) == before


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        ((N, C, H, W), ""),
        ((N, H, W, C), "NHWC"),
        (NCHW4C, "NCHW4c"),
        ((N, C, AxisTerm(1, 4), H, W, AxisTerm(2, 16)), "NC4cHW16h"),
        ((AxisTerm(0), AxisTerm(2), AxisTerm(1)), "axes 0, 2, 1"),
        ((AxisTerm(0), AxisTerm(1), AxisTerm(1, 4)), "axes 0, 1, 1 by 4"),
        ((AxisTerm(0), AxisTerm(2), AxisTerm(1), AxisTerm(3), AxisTerm(4)), "axes 0, 2, 1, 3, 4"),
    ],
)
def test_a_layout_is_written(layout: Terms, text: str) -> None:
    assert str(AxisTerms(layout)) == text


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("", (AxisTerm(0), AxisTerm(1), AxisTerm(2))),
        ("NHWC", (N, H, W, C)),
        ("NCHW16c", (N, C, H, W, AxisTerm(1, 16))),
        ("NC8c2cHW", (N, C, AxisTerm(1, 8), AxisTerm(1, 2), H, W)),
        ("OHWI", None),
    ],
)
def test_a_layout_is_read(text: str, layout: Terms | None) -> None:
    assert AxisTerms.parse(text, 3) == layout


@pytest.mark.parametrize(
    ("shape", "layout", "packed"),
    [
        ((2, 3, 6, 8), (N, H, W, C), (2, 6, 8, 3)),
        ((2, 9, 6, 8), NCHW4C, (2, 3, 6, 8, 4)),
        ((2, 8, 6, 8), NCHW4C, (2, 2, 6, 8, 4)),
        (("b", 8, None, 8), NCHW4C, ("b", 2, None, 8, 4)),
        ((2, "c", 6, 8), NCHW4C, (2, None, 6, 8, 4)),
        ((2, 17, 6, 8), (N, C, AxisTerm(1, 4), AxisTerm(1, 2), H, W), (2, 3, 4, 2, 6, 8)),
    ],
)
def test_a_shape_is_packed(shape: tuple[Dim, ...], layout: Terms, packed: tuple[Dim, ...]) -> None:
    assert AxisTerms(layout).pack(shape) == packed


def test_a_shape_is_unpacked_unless_it_has_blocks() -> None:
    assert AxisTerms((N, H, W, C)).unpack((2, 6, 8, 3)) == (2, 3, 6, 8)
    assert AxisTerms(NCHW4C).unpack((2, 2, 6, 8, 4)) is None
    assert AxisTerms((N, H, W, C)).unpack((2, 6, 8)) is None
