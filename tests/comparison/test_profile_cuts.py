"""What cuts cost: models in two regions, a link fitted to them, and the margin for mixtures."""

from time import perf_counter

import numpy as np
import pytest
from helpers.support import parse
from hypothesis import given
from hypothesis import strategies as st

from byoc.codegen import find_codegen
from byoc.comparison import MeasuredCodegen, Patience
from byoc.comparison._prediction_error import choose_margin
from byoc.comparison._profile import MeasuredCut, describe_link, fit_link, time_cuts
from byoc.costs import HostLink, UnseenPrediction
from byoc.model import prepare_model

PATIENCE = Patience(warmup=0, least=2, most=2)
COPIES = HostLink(bandwidth=1e11, latency=1e-7)
TWO_BRANCHES = (
    "g (float[8, 16] x, float[16, 16] w) => (float[8, 16] y) {"
    " a = MatMul(x, w) b = Relu(a) c = MatMul(b, w) d = Relu(c) e = MatMul(d, w) y = Add(e, b) }"
)


def test_models_are_cut_where_a_share_of_the_work_is_done() -> None:
    host = MeasuredCodegen(find_codegen("reference"), {}, PATIENCE, perf_counter)
    model = prepare_model(parse(TWO_BRANCHES), "two branches")

    cuts = time_cuts(model, None, host, 0.0)

    # `b` crosses after the first Relu, and `b` and `d` after the second; each has 8 x 16 floats.
    assert [(cut.tensors, cut.size) for cut in cuts] == [(1, 512), (2, 1024)]
    assert all(cut.whole > 0 for cut in cuts)


@given(
    st.floats(1e-6, 1e-3),
    st.floats(1e8, 1e10),
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 10**7)), min_size=4, max_size=12, unique=True),
)
def test_the_link_that_cuts_were_made_with_is_found(
    latency: float, bandwidth: float, crossings: list[tuple[int, int]]
) -> None:
    rows = np.array(crossings, float)
    if np.linalg.cond(rows / rows.max(axis=0)) > 1e3:
        return
    cuts = [MeasuredCut(n, size, n * latency + size / bandwidth, 0.01) for n, size in crossings]

    link = fit_link(cuts, COPIES)

    assert link.latency == pytest.approx(latency, rel=1e-4)
    assert link.bandwidth == pytest.approx(bandwidth, rel=1e-4)


def test_few_or_free_cuts_cost_what_copying_does() -> None:
    free = [MeasuredCut(1, 1000 * n, -1e-6, 0.01) for n in range(1, 6)]
    assert fit_link(free, COPIES) == COPIES
    dear = [MeasuredCut(1, 1000, 1.0, 0.01)] * 3
    assert fit_link(dear, COPIES) == COPIES
    assert describe_link(COPIES, 3) == []
    assert describe_link(HostLink(bandwidth=2e9, latency=3e-5), 8) == [
        "8 cuts: what crosses takes 0.5 ns for each byte and 30 us for each tensor"
    ]


def test_the_margin_is_half_of_the_error_of_unseen_models() -> None:
    off = [UnseenPrediction(f"m{n}", factor, 1.0) for n, factor in enumerate((1.44, 1 / 1.44))]
    assert choose_margin(off * 2) == pytest.approx(1 - 1 / 1.2, abs=5e-3)
    assert choose_margin(off) == 0.0
    assert choose_margin([UnseenPrediction("m", 1e-3, 1.0)] * 4) == 0.5
