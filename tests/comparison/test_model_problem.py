"""The problem of a model as data: names, a table, a file that `byoc place` solves, a picture."""

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from helpers.support import VANILLA, Ran, parse

import byoc
from byoc.comparison import ModelProblem
from byoc.placement import Problem, Strategy
from byoc.placement.strategies import AllSupported

Cli = Callable[..., Ran]

LOOP = """
g (float[8, 64, 64] x) => (float[8, 64, 64] y) <int64 n = {4}, bool c = {1}> {
  h = Relu(x)
  z = Loop<body = inner (int64 i, bool k, float[8, 64, 64] a) => (bool k2, float[8, 64, 64] b) {
    k2 = Identity(k)  r = MatMul(a, a)  b = Relu(r)
  }>(n, c, h)
  y = Sigmoid(z)
}
"""
LONGER = LOOP.replace("{4}", "{40}")


def assert_same(one: Problem, other: Problem) -> None:
    for each in fields(Problem):
        left, right = getattr(one, each.name), getattr(other, each.name)
        assert np.array_equal(left, right) if isinstance(left, np.ndarray) else left == right, each.name


@pytest.mark.parametrize("rules", [("dla",), ("dla", "nnpa")])
def test_it_is_the_problem_that_partition_solves(rules: tuple[str, ...], tmp_path: Path) -> None:
    found = byoc.build_problem("zoo:shufflenet", rules)
    plan = byoc.partition("zoo:shufflenet", rules, what_if=False).plan
    assert_same(found.problem, plan.graph_problem.problem)
    assert found.devices == ("host", *rules)
    assert len(found.units) == len(found.nodes) == len(found.operators) == found.problem.units
    assert len(found.tensors) == found.problem.tensors
    placement = found.solve()
    assert placement.labels.tolist() == plan.placement.labels.tolist()
    assert placement.cost == plan.placement.cost
    found.save(tmp_path / "p.json")
    placed = byoc.place(tmp_path / "p.json")
    assert placed["objective_seconds"] == pytest.approx(placement.cost.total, rel=1e-9)
    assert placed["regions"] == int(placement.regions.max()) + 1
    on_host = [name for name, label in zip(found.units, placement.labels, strict=True) if label == 0]
    assert placed["devices"][0]["nodes"] == on_host


def test_bodies_are_placed_first() -> None:
    model = parse(LOOP)
    found = byoc.build_problem(model, "dla")
    plan = byoc.partition(model, "dla", what_if=False).plan
    assert [*plan.root.bodies]
    assert_same(found.problem, plan.graph_problem.problem)
    longer = byoc.build_problem(parse(LONGER), "dla")
    assert not np.array_equal(found.problem.seconds, longer.problem.seconds)


@pytest.fixture(scope="module")
def squeezenet() -> ModelProblem:
    return byoc.build_problem("zoo:squeezenet", "dla")


def test_strategies_by_name_and_by_object(squeezenet: ModelProblem) -> None:
    found = squeezenet
    mine: Strategy = AllSupported()
    assert found.solve(mine).cost == found.solve("all-supported").cost
    assert found.solve("launch-aware", rounds=3, margin=0.5).bound is not None
    with pytest.raises(byoc.InputError, match="did you mean rounds"):
        found.solve("launch-aware", round=3)


def test_a_table_has_a_row_for_each_unit(squeezenet: ModelProblem) -> None:
    pytest.importorskip("pandas")
    found = squeezenet
    labels = found.solve().labels
    frame = found.to_frame(labels)
    assert list(frame) == ["unit", "nodes", "operators", "host", "dla", "placed"]
    assert len(frame) == found.problem.units
    assert frame["nodes"].sum() == 65
    assert frame["host"].sum() == pytest.approx(found.problem.seconds[:, 0].sum())
    assert (frame["placed"] == "host").sum() == 1
    assert np.isinf(frame[frame["operators"] == "Softmax"]["dla"]).all()


def test_a_picture_has_a_circle_for_each_unit(squeezenet: ModelProblem, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = squeezenet
    figure = found.draw(tmp_path / "p.svg", found.solve().labels)
    assert (tmp_path / "p.svg").read_text().startswith("<?xml")
    (axes,) = figure.axes
    assert sum(len(circles.get_offsets()) for circles in axes.collections) == found.problem.units
    assert len(axes.lines) == len(found.problem.edges[0])
    with pytest.raises(byoc.InputError, match="cannot be written"):
        found.draw(tmp_path / "no" / "p.svg")


def test_wrong_files_are_told(tmp_path: Path, byoc: Cli) -> None:
    import byoc as package  # noqa: PLC0415

    path = tmp_path / "p.json"
    package.build_problem("zoo:squeezenet", str(VANILLA)).save(path)
    good = json.loads(path.read_text())
    for change, told in (
        ({"format": "other"}, "format: expected 'byoc-placement-problem'"),
        ({"version": 2}, "version: expected 1"),
        ({"unts": []}, "unts: no such key (did you mean units?)"),
        ({"units": [good["units"][0] | {"costs": [1.0]}]}, "units[0].costs: expected 2 numbers"),
        (
            {"units": [good["units"][0] | {"costs": [-1.0, 1.0]}]},
            "units[0].costs[0]: must be at least 0",
        ),
        ({"tensors": [good["tensors"][0] | {"consumers": [999]}]}, "a consumer is one of the"),
    ):
        path.write_text(json.dumps(good | change))
        ran = byoc("place", path)
        assert (ran.code, ran.out) == (1, "")
        assert told in ran.err


@pytest.mark.parametrize("margin", ["0.9", "0"])
def test_the_margin_of_the_cost_models_goes_with_the_problem(margin: str, tmp_path: Path) -> None:
    """With a margin that no mixture saves everything is on one device, and a file decides as a plan."""
    path, options = tmp_path / "p.json", {"margin": margin}
    made = byoc.build_problem("zoo:bert", "dla.yaml", strategy_options=options)
    assert made.margin == float(margin)
    made.save(path)
    planned = byoc.partition("zoo:bert", "dla.yaml", strategy_options=options, what_if=False)
    seconds = planned.plan.placement.cost.total
    assert byoc.place(path)["objective_seconds"] == pytest.approx(seconds, rel=1e-9)
    assert made.solve().cost.total == pytest.approx(seconds, rel=1e-9)
    without = byoc.place(path, strategy_options={"margin": "0"})["objective_seconds"]
    assert (without < seconds * 0.99) == (margin == "0.9")
