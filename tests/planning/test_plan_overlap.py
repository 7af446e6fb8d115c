"""Composites that overlap, left to the placement."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.support import examples, parse, prepared, region_names
from hypothesis import given, settings
from hypothesis import strategies as st

from byoc.patterns import group_with_alternatives
from byoc.pipeline import PlanOptions, load_settings, make_plan, partition
from byoc.rules import annotate_graph, load_rules

NET = """net (float[1, 8] x, float[1, 8] z) => (float[1, 8] y) {
    a = Exp(x)
    b = Add(a, z)
    y = Relu(b)
}"""
RULES = """
target: t
cost_model: t_cost.yaml
dtype: float32
regions: phase
overlaps: {overlaps}
ops:
  - op: [Exp, Add, Relu, Neg, Abs]
composites:
  - name: exp_add
    pattern: |
      a = Exp(x)
      b = Add(a, z)
  - name: add_relu
    pattern: |
      b = Add(x, z)
      y = Relu(b)
"""
# Each operator takes a millisecond, exp_add saves half of one, add_relu all but a tenth.
COSTS = """
kind: table
name: t
link: {bandwidth: 1.0e+12}
entries:
- {op: Exp, types: 'float32[1, 8] -> float32[1, 8]', seconds: 1.0e-3}
- {op: Add, types: 'float32[1, 8], float32[1, 8] -> float32[1, 8]', seconds: 1.0e-3}
- {op: Relu, types: 'float32[1, 8] -> float32[1, 8]', seconds: 1.0e-3}
- {op: exp_add, types: 'float32[1, 8], float32[1, 8] -> float32[1, 8]', seconds: 1.5e-3}
- {op: add_relu, types: 'float32[1, 8], float32[1, 8] -> float32[1, 8]', seconds: 1.1e-3}
"""
HOST = "kind: roofline\nname: host\npeak: {float32: 1.0e+3}\nbandwidth: 1.0e+3\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "t_cost.yaml").write_text(COSTS)
    (tmp_path / "host.yaml").write_text(HOST)
    for overlaps in ("largest", "placement"):
        (tmp_path / f"{overlaps}.yaml").write_text(RULES.format(overlaps=overlaps))
    return tmp_path


@pytest.mark.parametrize("strategy", ["launch-aware", "exact", "exhaustive"])
def test_the_placement_takes_the_one_that_saves_more(strategy: str, folder: Path) -> None:
    found = {}
    for overlaps in ("largest", "placement"):
        chosen = load_settings(
            PlanOptions(folder / f"{overlaps}.yaml", host_cost_model=str(folder / "host.yaml")), strategy
        )
        found[overlaps] = make_plan(prepared(NET), chosen)
    composites = {
        overlaps: [unit.composite for region in plan.regions for unit in region.units]
        for overlaps, plan in found.items()
    }
    assert composites == {"largest": ["exp_add", None], "placement": [None, "add_relu"]}
    assert found["largest"].cost.total == pytest.approx(2.5e-3, abs=1e-8)
    assert found["placement"].cost.total == pytest.approx(2.1e-3, abs=1e-8)
    (region,) = found["placement"].regions
    assert region.seconds == pytest.approx(2.1e-3)


def test_the_chosen_composite_is_in_the_model_and_computes_the_same(folder: Path) -> None:
    result = partition(
        parse(NET),
        folder / "placement.yaml",
        output=folder / "out.byoc",
        host_cost_model=str(folder / "host.yaml"),
    )
    assert result.verification is not None
    assert result.verification.worst.relative == 0
    names = {function.name for function in onnx.load(folder / "out.byoc" / "model.onnx").functions}
    assert names == {*region_names(folder / "out.byoc"), "add_relu"}


def test_a_strategy_that_does_not_choose_says_so(folder: Path) -> None:
    chosen = load_settings(
        PlanOptions(folder / "placement.yaml", host_cost_model=str(folder / "host.yaml")), "min-cut"
    )
    plan = make_plan(prepared(NET), chosen)
    assert any("running as one played no part" in note for note in plan.root.notes)


def test_what_is_part_of_a_larger_one_is_no_alternative(folder: Path) -> None:
    text = (folder / "placement.yaml").read_text()
    text += (
        "  - name: all_three\n    pattern: |\n      a = Exp(x)\n      b = Add(a, z)\n      y = Relu(b)\n"
    )
    (folder / "three.yaml").write_text(text)
    target = load_rules(str(folder / "three.yaml"))
    index = prepared(NET).index
    units, open_ones = group_with_alternatives(index, target.patterns, annotate_graph(index, target))
    assert [unit.composite for unit in units] == ["all_three"]
    assert open_ones == []


def test_what_cannot_run_by_itself_is_no_alternative(folder: Path) -> None:
    text = (folder / "placement.yaml").read_text()
    text = text.replace("[Exp, Add,", "[Exp,").replace(
        "composites:", "  - {op: Add, standalone: false}\ncomposites:", 1
    )
    (folder / "inside.yaml").write_text(text)
    target = load_rules(str(folder / "inside.yaml"))
    index = prepared(NET).index
    units, open_ones = group_with_alternatives(index, target.patterns, annotate_graph(index, target))
    assert [unit.composite for unit in units] == ["exp_add", None]
    assert open_ones == []


OPS = ("Exp", "Relu", "Neg", "Abs")


@st.composite
def nets(draw: st.DrawFn) -> str:
    """A graph of the operators of the rules, with more adjacent pairs than composites can take."""
    lines, names = [], ["x", "z"]
    for number in range(draw(st.integers(3, 8))):
        op = draw(st.sampled_from((*OPS, "Add", "Add")))
        operands = [draw(st.sampled_from(names)) for _ in range(2 if op == "Add" else 1)]
        names.append(f"t{number}")
        lines.append(f"    t{number} = {op}({', '.join(operands)})")
    return (
        "net (float[1, 8] x, float[1, 8] z) => (float[1, 8] y) {\n"
        + "\n".join(lines)
        + f"\n    y = Relu({names[-1]})\n}}"
    )


@settings(max_examples=examples(40), deadline=None)
@given(text=nets())
def test_leaving_it_open_is_never_worse(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("overlap")
    more = "\n".join(
        f"- {{op: {op}, types: 'float32[1, 8] -> float32[1, 8]', seconds: 1.0e-3}}"
        for op in ("Neg", "Abs")
    )
    (folder / "t_cost.yaml").write_text(COSTS + more + "\n")
    (folder / "host.yaml").write_text(HOST)
    totals = {}
    for overlaps in ("largest", "placement"):
        rules = folder / f"{overlaps}.yaml"
        rules.write_text(RULES.format(overlaps=overlaps))
        chosen = load_settings(PlanOptions(rules, host_cost_model=str(folder / "host.yaml")), "exact")
        model = prepared(text)
        plan = make_plan(model, chosen)
        nodes = [node for graph in plan.root.walk() for unit in graph.units for node in unit.nodes]
        assert len(nodes) == len(set(nodes))
        for region in plan.regions:
            assert len(region.nodes) == len(set(region.nodes))
        totals[overlaps] = plan.cost.total
        onnx.checker.check_model(plan.proto)
    assert totals["placement"] <= totals["largest"] * (1 + 1e-9)
    assert np.isfinite(totals["placement"])
