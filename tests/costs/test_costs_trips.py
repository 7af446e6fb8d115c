"""Trip counts of Loops and Scans: one answer for types and costs, from the graph's own values."""

from dataclasses import replace

import pytest
from helpers.support import parse

from byoc.costs import count_trips
from byoc.model import PlannedSizes, prepare_model

LOOP = """h = Loop ({limit}, {begins}, h0) <body: graph = b (int64 i, bool c, float[4] a) =>
    (bool d, float[4] r) {{ d = {goes_on}
    r = Tanh (a) }}>"""
LIMITS = {
    "stored": "",
    "a Constant": "n = Constant <value_int: int = 512> ()",
    "an extent": "s = Shape (x)\n zero = Constant <value_int: int = 0> ()\n n = Gather (s, zero)",
}
YES = "yes = Constant <value: tensor = bool[1] {1}> ()"
CONDITIONS = {  # of ONNX's two, the one that the Loop is given and the one that its body returns
    "passed on": ('""', "Identity (c)"),
    "captured": ("yes", "Identity (yes)"),
    "captured, twice": ("yes", "Identity (yes2)"),
    "its own": ('""', "Constant <value: tensor = bool {1}> ()"),
    "computed": ("yes", "Not (no)"),
}


def _count(before: str, loop: str, x: str = "float[512, 3] x", stored: str = "") -> tuple[float, str]:
    graph = f"g ({x}, float[4] h0) => (float[4] h) <bool no = {{0}}{stored}> {{ {before}\n {loop} }}"
    index = prepare_model(parse(graph), "m").index
    found = count_trips(index, index.producers["h"], {})
    return found.count, found.note


def _count_at(graph: str, **sizes: int) -> tuple[float, str]:
    index = replace(prepare_model(parse(graph), "m").index, planned=PlannedSizes(sizes))
    found = count_trips(index, index.producers["h"], {})
    return found.count, found.note


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("limit", LIMITS)
def test_a_loop_runs_to_its_limit(limit: str, condition: str) -> None:
    begins, goes_on = CONDITIONS[condition]
    loop = LOOP.format(limit="n", begins=begins, goes_on=goes_on)
    before = f"{LIMITS[limit]}\n {YES}\n yes2 = Identity (yes)"
    stored = ", int64 n = {512}" if limit == "stored" else ""
    assert _count(before, loop, stored=stored) == (512, "")


@pytest.mark.parametrize(
    ("begins", "goes_on"),
    [('""', "Not (c)"), ("no", "Identity (c)"), ('""', "Identity (no)"), ("z", "Identity (c)")],
)
def test_a_loop_that_may_end_before_is_estimated(begins: str, goes_on: str) -> None:
    loop = LOOP.format(limit="n", begins=begins, goes_on=goes_on)
    count, note = _count(LIMITS["a Constant"], loop, "float[512, 3] x, bool z")
    assert count == 8
    assert "counts as 8 trips" in note


@pytest.mark.parametrize("condition", ["passed on", "captured"])
def test_an_open_extent_counts_at_its_planned_size(condition: str) -> None:
    begins, goes_on = CONDITIONS[condition]
    loop = LOOP.format(limit="n", begins=begins, goes_on=goes_on)
    before = f"{LIMITS['an extent']}\n {YES}"
    graph = f"g (float[rows, 3] x, float[4] h0) => (float[4] h) {{ {before}\n {loop} }}"
    assert _count_at(graph, rows=96) == (96, "")


def test_a_scan_over_an_open_axis_counts_at_its_planned_size() -> None:
    graph = """g (float[rows, 4] x, float[4] h0) => (float[4] h, float[rows, 4] y) {
        h, y = Scan <num_scan_inputs: int = 1, body: graph = b (float[4] a, float[4] e) =>
            (float[4] r, float[4] t) { r = Add (a, e)
            t = Tanh (r) }> (h0, x) }"""
    assert _count_at(graph, rows=96) == (96, "")


def test_an_early_scan_runs_once_for_each_step_of_each_sequence() -> None:
    graph = """g (float[3, 50, 4] x, float[3, 4] h0) => (float[3, 4] h) {
        h, y = Scan <num_scan_inputs: int = 1, body: graph = b (float[4] a, float[4] e) =>
            (float[4] r, float[4] t) { r = Add (a, e)
            t = Tanh (r) }> ("", h0, x) }"""
    index = prepare_model(parse(graph, opset=8), "m").index
    assert count_trips(index, index.producers["h"], {}).count == 150


def test_a_loop_in_a_body_captures_the_limit_of_the_graph_around() -> None:
    inner = """r = Loop (n, "", a) <body: graph = q (int64 j, bool e, float[4] o) =>
        (bool f, float[4] p) { f = Identity (e)
        p = Tanh (o) }>"""
    graph = f"""g (float[512, 3] x, float[4] h0) => (float[4] h) {{ {LIMITS["an extent"]}
        three = Constant <value_int: int = 3> ()
        h = Loop (three, "", h0) <body: graph = b (int64 i, bool c, float[4] a) =>
            (bool d, float[4] r) {{ d = Identity (c)
            {inner} }}> }}"""
    index = prepare_model(parse(graph), "m").index
    (body,) = index.bodies[index.producers["h"]]
    found = [
        count_trips(each, each.producers[name], {}).count
        for each, name in ((index, "h"), (body.index, "r"))
    ]
    assert found == [3, 512]
