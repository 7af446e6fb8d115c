"""Plans told: rows, the document, the picture."""

import json
from xml.etree import ElementTree

import pytest
from checkers.scratchpad_check import check as check_levels
from helpers.support import prepared

from byoc.errors import InputError
from byoc.memory.arena import ArenaPlan, ArenaProblem, ArenaStep
from byoc.memory.reading import CONVENTIONS
from byoc.memory.report import (
    MemoryOptions,
    MemoryReport,
    build_memory_document,
    draw_plan,
    draw_striped,
    plan_report,
    render_svg,
)

SVG = "{http://www.w3.org/2000/svg}"
NET = """net (float[1, 4, 16, 16] x) => (float[1, 8, 8, 8] y) {
    a = Relu(x)
    b = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (a)
    c = MaxPool <kernel_shape = [5, 5], pads = [2, 2, 2, 2]> (a)
    d = Concat <axis = 1> (b, c)
    y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (d)
}"""
IMAGE = 4 * 16 * 16 * 4


def _report(asked: MemoryOptions | None = None) -> MemoryReport:
    return plan_report(prepared(NET).index, "net", asked)


def test_rows_say_what_each_way_needs_and_what_the_bound_is() -> None:
    rows = {row.name: row for row in _report().rows}

    assert list(rows) == [
        "no reuse",
        "best-fit, given order",
        "reordered",
        "reordered, with inputs",
        "in place",
        "Concat in place",
        "striped",
    ]
    assert rows["no reuse"].size == 5.5 * IMAGE  # a, b, c, twice as much for d, half as much for y
    assert rows["reordered"].size == rows["reordered"].bound == 4 * IMAGE  # b and c with d
    assert rows["no reuse"].bound == rows["reordered"].bound
    assert rows["no reuse"].ratio == 5.5 / 4
    assert rows["Concat in place"].size == 3 * IMAGE  # a with b and c


def test_striped_execution_has_no_bound_and_is_compared_with_that_of_whole_tensors() -> None:
    report = _report()
    by_name = {row.name: row for row in report.rows}
    whole, row = by_name["in place"], by_name["striped"]

    assert (row.bound, row.ratio, row.proof) == (None, None, None)
    assert row.ratio_to_c == row.size / (whole.bound or 0) < 1
    assert {each.ratio_to_c for each in report.rows if each is not row} == {None}
    document = build_memory_document(report)
    told = next(each for each in document["rows"] if each["name"] == "striped")
    assert (told["bound"], told["ratio"], told["proof"]) == (None, None, None)
    assert told["of_c_bound"] == row.ratio_to_c
    assert document["striped"] is not None
    assert "scratch of kernels" in document["striped"]["counts"]


def test_the_plan_that_is_told_is_the_one_that_was_asked_for() -> None:
    report = _report(
        MemoryOptions(convention=CONVENTIONS["B"], method="best-fit", alignment=64, striped=False)
    )

    assert (report.model.convention.name, report.plan.problem.alignment) == ("B", 64)
    assert report.rows[-1].name == "best-fit, as asked"
    assert report.rows[-1].size == report.plan.size
    assert report.striped is None


def test_a_model_that_needs_no_bytes() -> None:
    report = plan_report(prepared("g (float[0] x) => (float[0] y) { y = Exp(x) }").index, "none")

    assert {row.size for row in report.rows} == {0}
    assert {row.ratio for row in report.rows} == {None}
    ElementTree.fromstring(render_svg(draw_plan(report.plan, "none")))


@pytest.mark.parametrize("op", ["Identity", "Relu"])
def test_where_nothing_goes_by_rows_there_is_no_striped_row(op: str) -> None:
    text = f"g (float[4] x) => (float[4] y) {{ y = {op}(x) }}"
    report = plan_report(prepared(text).index, "none")

    assert report.striped is None
    assert report.notes == ("nothing is computed by rows, so there is no striped execution",)
    assert [row.size for row in report.rows if row.convention == "C"] == [16]
    assert report.striping_refusal == report.notes[0]
    ElementTree.fromstring(render_svg(draw_plan(report.plan, "none")))


def test_steps_of_several_nodes_are_not_striped_and_it_is_said() -> None:
    index = prepared(NET).index
    report = plan_report(index, "net", None, [(0, 1)])
    unasked = plan_report(index, "net", MemoryOptions(striped=False), [(0, 1)])

    assert (report.striped, [row.name for row in report.rows][-1]) == (None, "Concat in place")
    assert report.notes == (report.striping_refusal,)
    assert "steps of several nodes are not computed by rows" in (report.striping_refusal or "")
    assert (unasked.striping_refusal, unasked.notes) == (None, ())


def test_what_the_search_of_striped_execution_left_out_is_noted() -> None:
    tall = """g (float[1, 4, 8192, 1] x) => (float[1, 4, 8192, 1] y) {
        a = Relu(x)
        y = Neg(a)
    }"""
    report = plan_report(prepared(tall).index, "tall")

    assert report.notes == ("the striped execution may be improved: rows go in blocks of up to 2",)


def test_two_levels_move_less_than_without_a_scratchpad() -> None:
    report = _report(MemoryOptions(size=3 * IMAGE))
    small = _report(MemoryOptions(size=2))

    assert report.scratchpad is not None
    check_levels(report.scratchpad)
    assert report.scratchpad.bound <= report.scratchpad.moved < report.scratchpad.unkept
    assert small.scratchpad is None
    assert small.notes[-1].startswith("no plan for two levels: ")


def test_an_unknown_method() -> None:
    with pytest.raises(InputError, match="did you mean exact"):
        _report(MemoryOptions(method="exakt"))


def test_the_document_is_json_that_names_every_buffer() -> None:
    report = _report(MemoryOptions(size=4 * IMAGE))
    document = json.loads(json.dumps(build_memory_document(report, 4 * IMAGE)))
    plan = document["plan"]

    assert [row["fits"] for row in document["rows"]] == [row.size <= 4 * IMAGE for row in report.rows]
    assert sorted(name for each in plan["buffers"] for name in each["tensors"]) == list("abcdxy")
    assert sorted(step["name"] for step in plan["steps"]) == list("abcdy")
    by_name = {each["name"]: each for each in plan["buffers"]}
    assert by_name["a"]["over"] == "x"
    assert by_name["a"]["offset"] == by_name["x"]["offset"]
    assert by_name["x"]["last"] < by_name["a"]["first"] or by_name["x"]["last"] == 0
    assert plan["arena"] == max(each["offset"] + each["bytes"] for each in plan["buffers"])
    assert (plan["proof"], plan["witness"]) == ("cut", "d")  # where b and c become d
    assert document["striped"]["arena"] == report.rows[-1].size
    assert {place["tensor"] for place in document["striped"]["places"]} >= {"x", "y"}


def test_the_picture_has_a_box_with_a_tooltip_for_every_buffer() -> None:
    report = _report()
    root = ElementTree.fromstring(render_svg(draw_plan(report.plan, "net")))
    tips = [tip for title in root.iter(f"{SVG}title") if (tip := title.text or "")]

    assert root.tag == f"{SVG}svg"
    for name, offset, size in zip(
        report.plan.problem.names, report.plan.offsets, report.plan.problem.sizes, strict=True
    ):
        found = [tip for tip in tips if tip.splitlines()[0] == name]
        assert len(found) == 1
        assert f"bytes {offset} to {offset + size} ({size})" in found[0]
    assert "y" in [text.text for text in root.iter(f"{SVG}text")]
    assert [tip for tip in tips if tip.startswith("step 1: ")]


def test_the_boxes_of_a_picture_never_share_a_byte_and_a_step() -> None:
    boxes = draw_plan(_report().plan, "net").boxes

    for number, one in enumerate(boxes):
        for other in boxes[:number]:
            apart = one.last < other.first or other.last < one.first
            ends = one.offset + one.bytes <= other.offset or other.offset + other.bytes <= one.offset
            over = one.detail.endswith(f"over {other.name}") and one.first == other.last
            assert apart or ends or over


def test_names_may_hold_anything() -> None:
    name = "<a href='x'>&\"\x01]]>\ud800"
    problem = ArenaProblem(
        (name, "y"), (8, 8), (ArenaStep(name, (0,), (1,)),), frozenset({0}), frozenset({1})
    )
    plan = ArenaPlan(problem, (0,), (None, None), (0, 8), (0,), 16, 16, "total")

    text = render_svg(draw_plan(plan, name))

    told = [title.text or "" for title in ElementTree.fromstring(text).iter(f"{SVG}title")]
    assert sum("<a href='x'>&\"\\x01]]>\\ud800" in each for each in told) == 3
    text.encode()


def test_scratch_and_a_bound_below_the_arena_are_drawn() -> None:
    problem = ArenaProblem(("x", "y"), (8, 8), (ArenaStep("s", (0,), (1,), scratch=4),), frozenset({0}))
    drawn = draw_plan(ArenaPlan(problem, (0,), (None, None), (0, 8), (16,), 20, 16, "cut"), "t")

    assert [(box.kind, box.offset, box.bytes) for box in drawn.boxes][-1] == ("scratch", 16, 4)
    assert [(line.name, line.bytes, line.dashed) for line in drawn.lines] == [
        ("arena", 20, False),
        ("bound", 16, True),
    ]


def test_the_striped_picture_draws_windows() -> None:
    report = _report()
    assert report.striped is not None
    drawn = draw_striped(report.striped, "striped")

    assert {box.name for box in drawn.boxes} >= {"x", "y"}
    assert max(box.offset + box.bytes for box in drawn.boxes) == report.striped.plan.size
    assert drawn.steps == len(report.striped.plan.bands)
    assert [span.first for span in drawn.spans] == [0, *(span.last + 1 for span in drawn.spans[:-1])]
    assert any("of 16 rows at a time" in box.detail for box in drawn.boxes)
    ElementTree.fromstring(render_svg(drawn))
