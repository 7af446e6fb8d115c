"""The text, the page and the placement have the same bytes for what crosses boundaries."""

from io import StringIO

import pytest
from helpers.support import VANILLA, parse
from rich.console import Console

import byoc
from byoc.placement import count_transferred_bytes
from byoc.planning import Plan, find_sent_tensors
from byoc.reporting import make_decision_document, print_report

IMAGES = "g (float[1,4,8,8] x) => (int64[4] y) { a = Relu(x) b = Relu(a) y = Shape(b) }"
UNKNOWN = """g (float[1,4] x) => (float[N,M] y) {
    r = NonZero(x) f = Cast<to = 1>(r) q = Relu(f) y = Sin(q)
}"""


def cut_all(text: str) -> byoc.Result:
    return byoc.partition(parse(text), VANILLA, strategy="all-supported", no_passes="all")


def print_text(result: byoc.Result) -> str:
    stream = StringIO()
    print_report(result.report, Console(file=stream, width=200))
    return " ".join(stream.getvalue().split())


def count_bytes(plan: Plan) -> int:
    posed = plan.graph_problem
    return count_transferred_bytes(posed.problem, plan.placement.labels, posed.sizes)


def test_of_a_tensor_whose_shape_alone_is_read_only_the_shape_is_sent() -> None:
    result = cut_all(IMAGES)
    (region,) = result.report.regions
    assert [each.bytes for each in region.inputs] == [1024]
    assert [each.bytes for each in region.outputs] == [32]
    (sent,) = find_sent_tensors(result.plan.root).values()
    assert sum(each.bytes or 0 for each in sent) == count_bytes(result.plan) == 1056
    assert "1 (1 KiB) 1 (32 B)" in print_text(result)


def test_sizes_that_are_not_known_are_not_guessed() -> None:
    result = cut_all(UNKNOWN)
    (sent,) = find_sent_tensors(result.plan.root).values()
    assert [(each.name, each.bytes) for each in sent] == [("f", None), ("q", None)]
    assert all(each.seconds for each in sent)  # the placement counts with some size
    assert "1 (unknown) 1 (unknown)" in print_text(result)


@pytest.mark.parametrize("options", [{}, {"no_passes": "all"}])
def test_the_text_and_the_page_say_the_same_of_ssdlite(options: dict[str, str]) -> None:
    result = byoc.partition("zoo:ssdlite320", "dla.yaml", what_if=False, **options)
    (region,) = result.report.regions
    (drawn,) = make_decision_document(result.plan).graphs[0].regions
    for enters, listed in ((True, region.inputs), (False, region.outputs)):
        assert [each.bytes for each in listed] == [
            each.bytes for each in drawn.boundary if each.enters == enters
        ]
    if not options:  # else shapes are sent beside their tensors, and the placement counts these, too
        both = (*region.inputs, *region.outputs)
        assert sum(each.bytes or 0 for each in both) == count_bytes(result.plan)
