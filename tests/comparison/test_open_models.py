"""Verbs beside `partition` plan a model with open dimensions as that does."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.support import Ran, parse
from onnx import numpy_helper

import byoc
from byoc.pipeline import is_worth_sizes
from byoc.placement import Placement, Problem
from byoc.placement.strategies import AllSupported
from byoc.planning import find_sizes

TEXT = "g (float[batch, 64] x) => (float[batch, 64] y) { a = MatMul(x, w) b = Relu(a) y = MatMul(b, w) }"
GROWING = """g (float[n, 64] x, float[p, 64] past_key) => (float[n, 64] y, float[t, 64] present_key) {
    y = MatMul(x, w)
    present_key = Concat <axis = 0> (past_key, x)
}"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    made = parse(TEXT)
    weights = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64)
    made.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    onnx.save(made, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.mark.parametrize("strategy", ["all-supported", "launch-aware", "host-only"])
def test_compare_places_what_partition_places(strategy: str, model: Path) -> None:
    planned = byoc.partition(model, "dla", strategy=strategy).variants[0].report
    (row,) = byoc.compare(model, rules="dla", strategies=[strategy], jobs=1)
    assert row["objective"] == pytest.approx(planned.predicted.optimized)
    assert row["offloaded"] == pytest.approx(planned.compute.offloaded)
    assert row["regions"] == len(planned.regions)
    assert ("planned for batch = 1, as partition does" in row["notes"]) == bool(planned.chosen_sizes)


def test_a_study_places_what_partition_places(model: Path) -> None:
    study = {"models": [str(model)], "rules": ["dla"], "strategies": ["all-supported"]}
    (row,) = byoc.study(study, jobs=1).rows
    planned = byoc.partition(model, "dla", strategy="all-supported").variants[0].report
    assert row["seconds"] == pytest.approx(planned.predicted.seconds)
    assert row["offloaded"] == pytest.approx(planned.compute.offloaded) == 1.0


def test_sizes_that_are_given_are_taken(model: Path) -> None:
    (row,) = byoc.compare(
        model, rules="dla", strategies=["all-supported"], jobs=1, dims={"batch": "1..8"}
    )
    assert row["offloaded"] == 0.0


def test_explain_is_at_the_sizes_that_are_planned(model: Path) -> None:
    found = byoc.explain(model, "dla")
    assert (found.sizes, len(found.refusals)) == ({"batch": 1}, 0)
    kept = byoc.explain(model, "dla", keep_open=True)
    assert (kept.sizes, len(kept.refusals)) == ({}, 3)


def test_explain_says_its_sizes(model: Path, byoc: Callable[..., Ran]) -> None:
    told = byoc("explain", model, "--rules", "dla").out.splitlines()
    line = "At batch = 1, as it is planned (--dim chooses others, --keep-open leaves it open)"
    assert told[1] == line
    assert line not in byoc("explain", model, "--rules", "dla", "--keep-open").out


def test_memory_is_planned_at_the_sizes_that_are_planned(model: Path) -> None:
    (open_one,) = byoc.plan_memory(model).values()
    (fixed,) = byoc.plan_memory(model, dims={"batch": 1}).values()
    assert open_one.plan.size == fixed.plan.size
    assert open_one.notes[0] == "planned for batch = 1 (--dim chooses others)"
    assert not any("planned for" in note for note in fixed.notes)


def test_caches_that_grow_get_no_size() -> None:
    growing = parse(GROWING)
    growing.graph.initializer.append(numpy_helper.from_array(np.eye(64, dtype=np.float32), "w"))
    assert find_sizes(byoc.load_model(growing)) == {}
    assert find_sizes(
        byoc.load_model(parse("g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }"))
    ) == {"n": 1}


@pytest.mark.parametrize("strategy", ["launch-aware", "exact"])
def test_sizes_are_worth_what_they_are_predicted_to_bring(strategy: str, model: Path) -> None:
    """Where a strategy weighs costs these decide, whatever the number of nodes."""
    fixed = byoc.partition(model, "dla", strategy=strategy, dims={"batch": 1}).plan.root
    forced = byoc.partition(model, "dla", strategy="all-supported", dims={"batch": 1}).plan.root
    opened = byoc.partition(model, "dla", strategy=strategy, keep_open=True).plan.root
    assert forced.regions
    assert not is_worth_sizes(fixed, opened)  # the host is as fast with a size as without
    assert is_worth_sizes(forced, opened)  # it was asked to offload all that it can


def test_the_seconds_of_a_strategy_are_those_of_one_search(tmp_path: Path, model: Path) -> None:
    """Which limit keeps units on the host takes further searches, and no row says it."""
    rules = tmp_path / "limited.yaml"
    rules.write_text(
        "target: t\ncost_model: dla\ndtype: any\nops: [{op: '*'}]\nlimits: {min_nodes: 30}\n"
    )
    asked: list[int] = []

    solve = AllSupported.solve

    def count(strategy: AllSupported, problem: Problem) -> Placement:
        asked.append(problem.units)
        return solve(strategy, problem)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AllSupported, "solve", count)
        (row,) = byoc.compare(model, rules=rules, strategies=["all-supported"], jobs=1)
    assert row["offloaded"] == 0.0
    assert len(asked) == 1
    report = byoc.partition(model, rules, strategy="all-supported").report
    assert {cause.constraint for each in report.host_reasons for cause in each.causes} == {
        "limits.min_nodes"
    }
