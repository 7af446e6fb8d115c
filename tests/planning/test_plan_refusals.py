"""What codegens refuse, round by round: which nodes do not come back, and how small regions get."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from accelerators import Files, devices
from helpers.support import prepared

from byoc.codegen import Refusal
from byoc.pipeline import PlanOptions, load_settings, make_plan
from byoc.planning import Plan, RefusalHistory

CHAIN = """g (float[64] x) => (float[64] y) {
    a = Neg(x)
    [second] b = Abs(a)
    c = Neg(b)
    d = Abs(c)
    y = Neg(d)
}"""
BODY = """g (float[64] x) => (float[64] y) {
    n = Constant <value_int = 100> ()
    go = Constant <value_int = 1> ()
    yes = Cast <to = 9> (go)
    [again] y = Loop (n, yes, x) <
        body = b (int64 i, bool c, float[64] s) => (bool d, float[64] t) {
            d = Identity(c)
            [inner] u = Neg(s)
            t = Abs(u)
        }
    >
}"""
PAIR = "composites:\n- {name: pair, pattern: 'a = Neg(x)\n\n    b = Abs(a)\n\n    y = Neg(b)'}\n"
Replan = Callable[[RefusalHistory], Plan]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def planner(files: Files, text: str = CHAIN, more: str = "") -> Replan:
    """Return a function that plans a model for an accelerator of Neg and Abs, given a history."""
    rules = files.rules("npu", "Neg", "Abs", more=more)
    host = files.costs("host", peak="1.0e+9", more="overhead: 1.0e-6\n")
    settings = load_settings(PlanOptions(Path(rules), host_cost_model=host), "all-supported")
    model = prepared(text)
    return lambda history: make_plan(model, replace(settings, known_limits=history.limits))


def refuse(plan: Plan, *nodes: str, number: int = 0, **more: Any) -> Refusal:
    """Return the refusal of a region of a plan."""
    return Refusal("npu", "vendor", plan.regions[number].name, "no room", nodes, **more)


def on_device(plan: Plan) -> str:
    return "".join(name for name, where in devices(plan.root).items() if where == "npu")


@pytest.mark.parametrize(
    ("named", "nodes", "left"),
    [
        (("c",), ("c",), "abdy"),
        (("second",), ("second",), "acdy"),
        (("b",), ("second",), "acdy"),  # by what it makes
        (("a", "y"), ("a", "y"), "bcd"),
        (("elsewhere",), ("a", "second", "c", "d", "y"), ""),
        ((), ("a", "second", "c", "d", "y"), ""),
    ],
)
def test_nodes_that_are_named_do_not_come_back(
    named: tuple[str, ...], nodes: tuple[str, ...], left: str, files: Files
) -> None:
    """Or all of a region where none of them is in it."""
    replan = planner(files)
    plan = replan(RefusalHistory())
    assert on_device(plan) == "abcdy"
    history = RefusalHistory().add(plan, [refuse(plan, *named)])
    (refused,) = history.refused
    assert (refused.target, refused.region, refused.codegen) == ("npu", plan.regions[0].name, "vendor")
    assert (refused.nodes, refused.failed, refused.split) == (nodes, False, 0)
    assert refused.why == "codegen vendor refused: no room"
    again = replan(history)
    assert on_device(again) == left
    whys = {unit.name: str(why) for unit, why in again.host_units}
    assert whys == dict.fromkeys(nodes, refused.why)
    assert history.rounds == 1
    assert dict(history.limits.refused["npu"]) == dict.fromkeys(nodes, refused.why)


def test_a_failure_is_called_one_and_the_first_reason_stays(files: Files) -> None:
    replan = planner(files)
    plan = replan(RefusalHistory())
    history = RefusalHistory().add(plan, [refuse(plan, "c", failed=True)])
    first, second = (refuse(plan, name, number=0) for name in ("c", "a"))
    history = history.add(plan, [replace(first, reason="other"), second])
    assert [each.why for each in history.refused] == [
        "codegen vendor failed: no room",
        "codegen vendor refused: other",
        "codegen vendor refused: no room",
    ]
    assert dict(history.limits.refused["npu"]) == {
        "c": "codegen vendor failed: no room",
        "a": "codegen vendor refused: no room",
    }


def test_what_is_in_a_body_is_named_behind_its_path(files: Files) -> None:
    replan = planner(files, BODY)
    plan = replan(RefusalHistory())
    (region,) = plan.regions
    for named, nodes in (
        (("t",), ("again/body/t",)),
        (("u",), ("again/body/inner",)),
        ((), ("again/body/inner", "again/body/t")),
    ):
        history = RefusalHistory().add(plan, [refuse(plan, *named)])
        assert history.refused[0].nodes == nodes
        regions = replan(history).regions
        left = {each.index.nodes[node].output[0] for each in regions for node in each.nodes}
        assert left == {"u", "t"} - {
            name.removeprefix("again/body/").replace("inner", "u") for name in nodes
        }
    assert len(region.nodes) == 2


@pytest.mark.parametrize(
    ("more", "split"),
    [
        ("", 2),
        ("limits: {min_nodes: 2}\n", 2),  # one node is left over
        ("limits: {min_nodes: 3}\n", 0),  # halves would be too small: the region goes
        (PAIR, 3),  # no smaller than a composite
    ],
)
def test_a_region_that_is_too_large_is_halved(more: str, split: int, files: Files) -> None:
    replan = planner(files, more=more)
    plan = replan(RefusalHistory())
    history = RefusalHistory().add(plan, [refuse(plan, "c", too_large=True)])
    (refused,) = history.refused
    assert refused.split == split
    again = replan(history)
    if not split:
        assert refused.nodes == ("a", "second", "c", "d", "y")  # whatever is named
        assert not again.regions
        assert not history.limits.sizes
    else:
        assert refused.nodes == ()
        assert history.limits.sizes["npu"].nodes == split
        assert history.limits.sizes["npu"].reason == refused.why
        left = 4 if "2" in more else 5
        assert sum(len(each.nodes) for each in again.regions) == left
        assert max(len(each.nodes) for each in again.regions) == split


def test_a_region_of_one_node_is_not_halved_and_the_smallest_half_counts(files: Files) -> None:
    replan = planner(files)
    plan = replan(RefusalHistory())
    history = RefusalHistory().add(plan, [refuse(plan, "c")])
    parts = replan(history)
    assert sorted(len(each.nodes) for each in parts.regions) == [2, 2]
    both = [refuse(parts, number=number, too_large=True) for number in (0, 1)]
    history = history.add(parts, both)
    assert [each.split for each in history.refused] == [0, 1, 1]
    single = replan(history)
    assert [len(each.nodes) for each in single.regions] == [1] * 4
    history = history.add(single, [refuse(single, too_large=True)])
    assert history.refused[-1].split == 0
    assert len(replan(history).regions) == 3


def test_a_unit_that_is_larger_than_a_limit_stays_on_the_host(files: Files) -> None:
    whole = planner(files)(RefusalHistory())
    history = RefusalHistory().add(whole, [refuse(whole, too_large=True)])
    assert history.limits.sizes["npu"].nodes == 2
    again = planner(files, more=PAIR)(history)
    assert {len(unit.nodes) for unit in again.units} == {1, 3}
    assert on_device(again) == "dy"


def test_other_options_are_counted_and_forgotten_with_the_nodes(files: Files) -> None:
    replan = planner(files)
    plan = replan(RefusalHistory())
    (region,) = plan.regions
    history = RefusalHistory()
    for attempts in (1, 2, 3):
        history = history.add(plan, [refuse(plan, options={"safe": str(attempts)})])
        assert history.limits.count_attempts(region, "") == attempts
        assert history.refused[-1].options == {"safe": str(attempts)}
        assert history.refused[-1].nodes == ()
        assert on_device(replan(history)) == "abcdy"
    part = planner(files)(RefusalHistory().add(plan, [refuse(plan, "c")])).regions[0]
    assert history.limits.count_attempts(part, "") == 3
    history = history.add(plan, [refuse(plan, "c")])
    assert history.limits.count_attempts(region, "") == 0
    assert on_device(replan(history)) == "abdy"
    assert not RefusalHistory().add(plan, [refuse(plan, "c")]).limits.attempts


@pytest.mark.parametrize(
    ("rounds", "more", "nodes", "reason"),
    [
        (22, {}, ("c",), "no room"),
        (23, {}, ("a", "second", "c", "d", "y"), "no room"),
        (30, {}, ("a", "second", "c", "d", "y"), "no room"),
        (31, {}, (), "regions still fail after 32 rounds: no room"),
        (22, {"options": {"safe": "1"}}, (), "no room"),
        (23, {"options": {"safe": "1"}}, ("a", "second", "c", "d", "y"), "no room"),
        (30, {"too_large": True}, (), "no room"),
        (31, {"too_large": True}, (), "regions still fail after 32 rounds: no room"),
    ],
)
def test_patience_ends(
    rounds: int, more: dict[str, Any], nodes: tuple[str, ...], reason: str, files: Files
) -> None:
    """From the 24th round on whole regions go, and in the 32nd all of the target."""
    replan = planner(files)
    plan = replan(RefusalHistory())
    history = RefusalHistory(rounds=rounds).add(plan, [refuse(plan, "c", **more)])
    (refused,) = history.refused
    assert (history.rounds, refused.nodes, refused.reason) == (rounds + 1, nodes, reason)
    assert refused.split == (2 if more.get("too_large") and rounds < 31 else 0)
    assert refused.options == (more.get("options", {}) if rounds < 23 else {})
    again = replan(history)
    if rounds == 31:
        assert not again.regions
        assert dict(history.limits.refused["npu"]) == {"": refused.why}
    else:
        assert bool(again.regions) == (nodes == ("c",) or not nodes)
