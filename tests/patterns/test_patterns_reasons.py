"""Which near misses are worth a word, and which of several nodes a reason names."""

import pytest
from helpers.support import parse

from byoc.errors import refuse
from byoc.model import GraphIndex
from byoc.patterns import Mark
from byoc.patterns._grouper import _is_near
from byoc.patterns._matcher import describe_rejection
from byoc.patterns._qdq_groups import check_unaccepted_nodes


@pytest.mark.parametrize(
    ("matched", "count", "fits", "is_near"),
    [
        (0, 0, True, False),
        (0, 1, True, False),
        (1, 2, False, False),
        (1, 2, True, True),
        (1, 3, True, False),
        (2, 4, False, True),
        (2, 5, False, False),
        (2, 5, True, False),
        (3, 5, False, True),
        (3, 6, True, True),
    ],
)
def test_half_of_the_lines_and_two_are_near(matched: int, count: int, fits: bool, is_near: bool) -> None:
    assert _is_near(matched, count, fits) == is_near


def test_the_first_node_that_is_not_accepted_is_named() -> None:
    model = parse("g (float[4] x) => (float[4] y) { a = Relu(x) b = Sin(a) c = Cos(b) y = Tan(c) }")
    index = GraphIndex(model, {})
    marks = [Mark(refuse(f"reason {number}"), accepts_quantized=False) for number in range(4)]
    for nodes in ([1, 2], [3, 1], [2, 3, 1, 0], [2]):
        verdict = check_unaccepted_nodes(index, nodes, marks)
        first = min(nodes)
        assert verdict.reasons == (describe_rejection(index.nodes[first], marks[first]),)
        assert f"reason {first}" in str(verdict)
