"""What supporting more would gain, and why regions end where they do."""

from pathlib import Path

import numpy as np
import pytest
from helpers.support import parse, prepared

from byoc.pipeline import PlanOptions, load_settings, make_plan, partition
from byoc.planning import GraphPlan, Plan, _what_ifs, estimate_gains, find_neighbours

RULES = """
target: t
cost_model: {costs}
dtype: float32
regions: phase
ops:
  - op: {ops}
{more}
"""
# A byte takes a microsecond over the link, an operator a millisecond on the host and nothing elsewhere.
DEVICE = """
kind: roofline
name: t
peak: {float32: 1.0e+15}
bandwidth: 1.0e+15
launch: 1.0e-4
link: {bandwidth: 1.0e+6}
"""
HOST = """
kind: roofline
name: host
peak: {float32: 1.0e+15}
bandwidth: 1.0e+15
overhead: 1.0e-3
"""
# Softmax is in the middle of five, Sigmoid at the end.
NET = """net (float[1, 8] x) => (float[1, 8] y) {
    a = Relu(x)
    b = Abs(a)
    [soft] c = Softmax(b)
    d = Neg(c)
    e = Relu(d)
    [end] y = Sigmoid(e)
}"""


def plan(
    folder: Path, text: str = NET, more: str = "", strategy: str = "exact", ops: str = "[Relu, Abs, Neg]"
) -> Plan:
    (folder / "host.yaml").write_text(HOST)
    (folder / "t_cost.yaml").write_text(DEVICE)
    rules = folder / "t.yaml"
    rules.write_text(RULES.format(costs=folder / "t_cost.yaml", more=more, ops=ops))
    settings = load_settings(PlanOptions(rules, host_cost_model=str(folder / "host.yaml")), strategy)
    return make_plan(prepared(text), settings)


def test_the_gain_is_what_the_whole_placement_gains(tmp_path: Path) -> None:
    found = {each.operator: each for each in plan(tmp_path).what_ifs}
    # A crossing is 32 bytes, 32 us. With Softmax: its millisecond, two crossings and a launch are saved.
    assert found["Softmax"].gain == pytest.approx(1e-3 + 2 * 32e-6 + 1e-4, rel=1e-6)
    # With Sigmoid the output still has to come back: its millisecond is all.
    assert found["Sigmoid"].gain == pytest.approx(1e-3, rel=1e-6)
    assert [each.operator for each in plan(tmp_path).what_ifs] == ["Softmax", "Sigmoid"]
    assert (found["Softmax"].nodes, found["Softmax"].offloaded, found["Softmax"].target) == (1, 1, "t")
    assert found["Softmax"].reason == "Softmax is not among the operators of t"


def test_the_gain_comes_true(tmp_path: Path) -> None:
    before = plan(tmp_path)
    gain = next(each.gain for each in before.what_ifs if each.operator == "Softmax")
    after = plan(tmp_path, more="  - op: Softmax")
    assert before.cost.total - after.cost.total == pytest.approx(gain, rel=1e-6)
    assert [each.operator for each in after.what_ifs] == ["Sigmoid"]


def test_nothing_is_told_where_nothing_is_gained(tmp_path: Path) -> None:
    assert plan(tmp_path, more="  - op: [Softmax, Sigmoid]").what_ifs == ()
    slow = DEVICE.replace("1.0e+6}", "1.0e+1}")  # the link is so slow that all stays on the host
    rules = tmp_path / "slow.yaml"
    (tmp_path / "slow_cost.yaml").write_text(slow)
    (tmp_path / "host.yaml").write_text(HOST)
    rules.write_text(RULES.format(costs=tmp_path / "slow_cost.yaml", more="", ops="[Relu, Abs, Neg]"))
    settings = load_settings(PlanOptions(rules, host_cost_model=str(tmp_path / "host.yaml")))
    assert make_plan(prepared(NET), settings).what_ifs == ()


def test_units_of_one_reason_count_together(tmp_path: Path) -> None:
    ops = ["Exp", "Log", "Sqrt", "Sin", "Cos", "Tan", "Erf", "Floor", "Ceil", "Round", "Sign", "Tanh"]
    lines = [f"    t{i + 1} = {op}(t{i})" for i, op in enumerate(ops + ops)]
    text = f"net (float[1, 8] t0) => (float[1, 8] y) {{\n{chr(10).join(lines)}\n    y = Relu(t24)\n}}"
    found = plan(tmp_path, text).what_ifs
    assert len(found) == 12
    assert all(each.nodes == 2 for each in found)


def test_reasons_that_name_different_tensors_count_together(tmp_path: Path) -> None:
    """A rule for quantized operators refuses each Neg with the name of its input."""
    text = """net (float[1, 8] x) => (float[1, 8] y) {
        a = Relu(x)
        b = Neg(a)
        c = Relu(b)
        d = Neg(c)
        y = Relu(d)
    }"""
    rule = "  - {op: Neg, quantized: true}"
    (found,) = plan(tmp_path, text, rule, ops="[Relu]").what_ifs
    assert (found.operator, found.nodes) == ("Neg", 2)
    assert found.reason == (
        "Neg is no whole QDQ group: its input '...' is made by Relu '...', not by a DequantizeLinear"
    )
    alone = text.replace("d = Neg(c)", "d = Relu(c)")
    (found,) = plan(tmp_path, alone, rule, ops="[Relu]").what_ifs
    assert (found.nodes, "its input 'a' is made by Relu 'a'" in found.reason) == (1, True)


def alternating(nodes: int) -> str:
    """Return a chain of Relu and Tanh in turn."""
    lines = [f"    t{i + 1} = {'Relu' if i % 2 else 'Tanh'}(t{i})" for i in range(nodes)]
    return (
        f"net (float[1, 8] t0) => (float[1, 8] y) {{\n{chr(10).join(lines)}\n    y = Relu(t{nodes})\n}}"
    )


def test_the_gain_of_a_large_graph_comes_true(tmp_path: Path) -> None:
    """The strategy is of no matter: what is compared is the best that is known."""
    text = alternating(2_100)
    (gain,) = plan(tmp_path, text, strategy="all-supported").what_ifs
    assert (gain.operator, gain.nodes) == ("Tanh", 1_050)
    before, after = plan(tmp_path, text), plan(tmp_path, text, more="  - op: Tanh")
    assert gain.gain == pytest.approx(before.cost.total - after.cost.total, rel=1e-6)


def test_questions_are_limited_by_counted_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ops = ["Exp", "Log", "Sqrt", "Sin", "Cos", "Tan", "Erf", "Floor", "Ceil", "Round", "Sign", "Tanh"]
    lines = [f"    t{i + 1} = {op}(t{i})" for i, op in enumerate(ops)]
    text = f"net (float[1, 8] t0) => (float[1, 8] y) {{\n{chr(10).join(lines)}\n    y = Relu(t12)\n}}"
    made = plan(tmp_path, text)
    assert (len(made.what_ifs), made.untried) == (12, 0)
    steps = 13 + 13  # units, and a reader of each tensor
    monkeypatch.setattr(_what_ifs, "_LEAST_CUTS", 0)
    monkeypatch.setattr(_what_ifs, "_MAX_STEPS", 6 * steps)
    gains, untried = estimate_gains(made.root)
    # A cut for the present placement, and one for each question.
    assert (len(gains), untried) == (5, 7)
    monkeypatch.setattr(_what_ifs, "_MAX_TRIED", 3)
    assert estimate_gains(made.root)[1] == 9


BODY = """net (float[1, 8] x, int64 n) => (float[1, 8] y) {
    keep = Constant <value_int = 1> ()
    go = Cast <to = 9> (keep)
    y = Loop (n, go, x) <body = inner (int64 i, bool c, float[1, 8] v) => (bool d, float[1, 8] w) {
        d = Identity(c)
        a = Relu(v)
        b = Abs(a)
        e = Softmax(b)
        w = Neg(e)
    }>
}"""


def test_what_is_in_bodies_counts_by_its_trips(tmp_path: Path) -> None:
    before = plan(tmp_path, BODY)
    gain = next(each.gain for each in before.what_ifs if each.operator == "Softmax")
    after = plan(tmp_path, BODY, more="  - op: Softmax")
    assert gain == pytest.approx(before.cost.total - after.cost.total, rel=1e-6)
    assert gain > 8e-3  # 8 trips, a millisecond each


def test_nothing_is_asked_where_it_is_turned_off(tmp_path: Path) -> None:
    plan(tmp_path)  # writes the files
    options = {"rules": tmp_path / "t.yaml", "host_cost_model": tmp_path / "host.yaml"}
    asked = partition(parse(NET), **options)
    assert asked.report.what_if
    silent = partition(parse(NET), **options, what_if=False)
    assert (silent.report.what_if, silent.plan.break_evens, silent.plan.untried) == ((), (), 0)
    assert silent.report.what_if_left_out == 0
    kept = next(each for each in asked.plan.host_units if each[0].name == "soft")
    assert str(kept[1])
    assert silent.plan.placement.cost == asked.plan.placement.cost


# The first two are worth moving, the last is large and nearly free on the host.
FAR = """net (float[1, 8] x, float[1, 100000] z) => (float[1, 8] y, float[1, 100000] v) {
    a = Relu(x)
    y = Abs(a)
    [far] v = Neg(z)
}"""


def plan_at(folder: Path, bandwidth: float, speed: float = 1.0) -> Plan:
    """Return a plan of FAR; Neg takes half a millisecond on the accelerator divided by its speed."""
    figures = f"operators: {{Neg: {{overhead: {5e-4 / speed}}}}}"
    link = f"link: {{bandwidth: {bandwidth!r}, latency: 1.0e-5}}"
    (folder / "host.yaml").write_text(HOST)
    (folder / "t_cost.yaml").write_text(
        DEVICE.replace("link: {bandwidth: 1.0e+6}", f"{link}\n{figures}")
    )
    rules = folder / "t.yaml"
    rules.write_text(RULES.format(costs=folder / "t_cost.yaml", more="", ops="[Relu, Abs, Neg]"))
    settings = load_settings(PlanOptions(rules, host_cost_model=str(folder / "host.yaml")), "exact")
    return make_plan(prepared(FAR), settings)


def list_moved(made: Plan) -> set[str]:
    host = {unit.name for unit, _ in made.host_units}
    return {unit.name for unit in made.units} - host


def test_the_link_from_which_on_it_is_worth_it(tmp_path: Path) -> None:
    """Neg saves half a millisecond; its 800,000 bytes and their latencies may take that."""
    (each,) = plan_at(tmp_path, 1e9).break_evens
    assert (each.target, each.unit, each.operators, each.nodes) == ("t", "far", ("Neg",), 1)
    assert each.loss == pytest.approx(8e5 / 1e9 + 2e-5 - 5e-4, rel=1e-6)
    assert each.link is not None
    assert each.link == pytest.approx(8e5 / (5e-4 - 2e-5), rel=1e-6)
    assert "far" not in list_moved(plan_at(tmp_path, each.link * 0.999))
    assert "far" in list_moved(plan_at(tmp_path, each.link * 1.001))


def test_the_speed_from_which_on_it_is_worth_it(tmp_path: Path) -> None:
    (each,) = plan_at(tmp_path, 1e9).break_evens
    assert each.faster is not None
    assert each.faster == pytest.approx(5e-4 / (5e-4 - each.loss), rel=1e-4)
    assert "far" not in list_moved(plan_at(tmp_path, 1e9, each.faster * 0.999))
    assert "far" in list_moved(plan_at(tmp_path, 1e9, each.faster * 1.001))


def test_groups_that_nothing_helps_are_not_told(tmp_path: Path) -> None:
    """At a link so slow that the bytes alone take longer than the host, only the link counts."""
    (each,) = plan_at(tmp_path, 1e8).break_evens
    assert each.faster is None
    assert each.link == pytest.approx(8e5 / (5e-4 - 2e-5), rel=1e-6)
    assert plan_at(tmp_path, 1e9, 1e3).break_evens == ()


def test_borders_name_both_sides_and_the_reason(tmp_path: Path) -> None:
    made = plan(tmp_path)
    first, second = made.regions
    assert [(b.tensor, b.enters, b.operator, b.reason) for b in find_neighbours(made.root, first)] == [
        ("x", True, "", "the graph's input"),
        ("b", False, "Softmax", "Softmax is not among the operators of t"),
    ]
    found = list(find_neighbours(made.root, second))
    assert [(b.tensor, b.neighbour, b.device) for b in found] == [
        ("c", "soft", "host"),
        ("e", "end", "host"),
    ]


def test_a_border_that_the_costs_made_says_so(tmp_path: Path) -> None:
    """The second output is wanted by the host, and the accelerator would have to send both."""
    text = """net (float[1, 8] x, float[1, 100000] z) => (float[1, 8] y, float[1, 100000] v) {
        a = Relu(x)
        y = Abs(a)
        [far] v = Neg(z)
    }"""
    made = plan(tmp_path, text)
    reasons = {unit.name: str(verdict) for unit, verdict in made.host_units}
    assert reasons["far"].startswith("supported, but the host is cheaper")


def every_region(root: GraphPlan) -> int:
    return sum(len(graph.regions) for graph in root.walk())


def test_each_tensor_of_a_border_is_told(tmp_path: Path) -> None:
    made = plan(tmp_path, strategy="all-supported")
    assert every_region(made.root) == 2
    for region in made.regions:
        told = {border.tensor for border in find_neighbours(made.root, region)}
        assert told == {*region.interface.inputs, *region.interface.outputs}
    assert np.isfinite(made.cost.total)


def test_groups_that_are_alike_are_told_once_and_only_the_largest_are_tried(tmp_path: Path) -> None:
    """Fourteen groups, all worth it at the same link, are told as one of the twelve that are tried."""
    names = [f"v{number}" for number in range(14)]
    outputs = ", ".join(f"float[1, 100000] {name}" for name in names)
    # A Softmax between keeps the groups apart.
    lines = "".join(f"s{n} = Softmax(z{n}) {n} = Neg(s{n}) " for n in names)
    inputs = ", ".join(f"float[1, 100000] z{name}" for name in names)
    figures = f"operators: {{Neg: {{overhead: {5e-4}}}}}"
    (tmp_path / "host.yaml").write_text(HOST)
    (tmp_path / "t_cost.yaml").write_text(
        DEVICE.replace(
            "link: {bandwidth: 1.0e+6}", f"link: {{bandwidth: 1.0e+9, latency: 1.0e-5}}\n{figures}"
        )
    )
    rules = tmp_path / "t.yaml"
    rules.write_text(RULES.format(costs=tmp_path / "t_cost.yaml", more="", ops="[Neg]"))
    settings = load_settings(PlanOptions(rules, host_cost_model=str(tmp_path / "host.yaml")), "exact")
    made = make_plan(prepared(f"net ({inputs}) => ({outputs}) {{ {lines} }}"), settings)
    (each,) = made.break_evens
    assert (each.operators, each.nodes, each.groups) == (("Neg",), 1, 12)
    assert each.loss == pytest.approx(8e5 / 1e9 + 2e-5 + 1e-4 - 5e-4, rel=1e-6)


def test_operations_on_accelerators_and_all_of_them(tmp_path: Path) -> None:
    """Eight elements each; the Softmax and the Sigmoid are on the host."""
    made = plan(tmp_path, strategy="all-supported")
    done, total = made.root.operations
    each = dict(zip((unit.name for unit in made.units), made.root.graph_problem.operations, strict=True))
    assert total == sum(each.values())
    assert done == total - each["soft"] - each["end"]
    assert 0 < done < total
    assert made.root.offloaded_operations == (done, total)
    looped = plan(tmp_path, BODY, strategy="all-supported").root
    (body,) = [graph for graph in looped.walk() if graph is not looped]
    assert looped.operations[1] + 8 * body.operations[1] == looped.offloaded_operations[1]
    assert looped.offloaded_operations[0] == looped.operations[0] + 8 * body.operations[0] > 0
