"""What the rows of a comparison are measured in, and what stands beside the numbers."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from comparison_parts import make_rows
from helpers.support import VANILLA, Ran, parse

from byoc.comparison import (
    FAST_STRATEGIES,
    ROW_KEYS,
    StrategyRow,
    StudyCase,
    compare,
    make_strategy_rows,
    summarize_strategies,
)
from byoc.pipeline import partition
from byoc.placement.strategies import ScheduledPlacement

# Two chains with nothing in common: host and accelerator can work on one each.
TWO = """two (float[1, 64, 32, 32] x) => (float[1, 64, 32, 32] y, float[1, 64, 32, 32] z) {
    v = Constant <value_float = 0.01> ()
    kernel = Constant <value_ints = [64, 64, 3, 3]> ()
    k = Expand(v, kernel)
    a = Conv <pads = [1, 1, 1, 1]> (x, k)
    b = Conv <pads = [1, 1, 1, 1]> (a, k)
    y = Relu(b)
    c = Sin(x)
    d = Cos(c)
    e = Sin(d)
    z = Cos(e)
}"""
LOOP = """g (float[4] x, int64 n, bool c) => (float[4] y) {
  [round] y = Loop <body = l (int64 i, bool k, float[4] p) => (bool m, float[4] q)
    { m = Identity (k) r = Neg (p) q = Relu (r) }> (n, c, x) }"""
COSTS = """kind: roofline
name: {name}
peak: {{default: {peak}}}
bandwidth: 1.0e+10
energy: {{operation: {joules}, byte: 1.0e-11, moved: 1.0e-11, launch: 1.0e-6}}
"""
STRATEGIES = ("min-cut", "launch-aware", "makespan")
Cli = Callable[..., Ran]


@pytest.fixture
def two(tmp_path: Path) -> Path:
    path = tmp_path / "two.onnx"
    onnx.save(parse(TWO), path)
    return path


@pytest.fixture
def loop(tmp_path: Path) -> Path:
    path = tmp_path / "loop.onnx"
    onnx.save(parse(LOOP), path)
    return path


@pytest.fixture
def energy(tmp_path: Path) -> tuple[str, ...]:
    """Options for a slow host and an accelerator that takes a tenth of the joules."""
    host, device = tmp_path / "host.yaml", tmp_path / "frugal.yaml"
    host.write_text(COSTS.format(name="host", peak="1.0e+11", joules="1.0e-9"))
    text = COSTS.format(name="frugal", peak="1.0e+10", joules="1.0e-10")
    device.write_text(text + "launch: 5.0e-5\nlink: {bandwidth: 2.0e+9}\n")
    return ("--cost-model", str(device), "--host-cost-model", str(host), "--jobs", "1")


def test_a_makespan_is_the_schedules(two: Path) -> None:
    plan = partition(two, VANILLA, strategy="makespan").plan
    assert isinstance(plan.placement, ScheduledPlacement)
    assert plan.placement.schedule is not None
    (row,) = compare(two, VANILLA, strategies=("makespan",), jobs=1)
    assert (row["measure"], row["error"]) == ("makespan", None)
    assert row["objective"] == plan.placement.schedule.makespan < plan.placement.cost.total
    assert row["gap"] == (row["objective"] - row["bound"]) / row["objective"]


def test_a_makespan_is_not_the_best_of_what_adds_up(two: Path) -> None:
    rows = compare(two, VANILLA, strategies=STRATEGIES, jobs=1)
    assert [row["measure"] for row in rows] == ["total", "total", "makespan"]
    assert rows[2]["objective"] < rows[1]["objective"]
    means = summarize_strategies(rows)
    assert [mean["measure"] for mean in means] == ["total", "total", "makespan"]
    assert [mean["mean_ratio"] for mean in means[1:]] == [1.0, 1.0]
    assert means[0]["mean_ratio"] == pytest.approx(rows[0]["objective"] / rows[1]["objective"])


def test_makespans_are_told_apart_in_the_text(two: Path, byoc: Cli) -> None:
    asked = ("compare", two, "--rules", VANILLA, "--jobs", "1", "--strategies")
    assert "measure" not in byoc(*asked, "min-cut").out
    text = byoc(*asked, "min-cut,makespan").out
    assert text.count("measure ") == 2
    assert "ratios to the best that was found for it by the same measure" in text


def test_bodies_in_a_makespan_add_up(loop: Path) -> None:
    only, spread = compare(
        loop, VANILLA, strategies=("host-only", "makespan"), trips={"round": 5}, jobs=1
    )
    assert spread["error"] is None
    assert 0 < spread["objective"] <= only["objective"]
    assert spread["bound"] <= spread["objective"]


def test_trips_are_those_of_partition(loop: Path, byoc: Cli) -> None:
    asked = ("--rules", VANILLA, "--format", "json")
    verb = ("compare", loop, *asked, "--jobs", "1", "--strategies")
    (given,) = json.loads(byoc(*verb, "launch-aware", "--trips", "round=5").out)
    report = json.loads(byoc("partition", loop, *asked, "--trips", "round=5").out)
    assert given["objective"] == report["predicted"]["seconds"]
    (assumed,) = json.loads(byoc(*verb, "launch-aware").out)
    assert assumed["objective"] != given["objective"]
    assert any("8" in note for note in assumed["notes"])
    assert len(given["notes"]) < len(assumed["notes"])
    (wrong,) = json.loads(byoc(*verb, "host-only", "--trips", "rund=5").out)
    assert "trips of 'rund': no such node (did you mean round?)" in wrong["error"]


@pytest.mark.parametrize(
    ("objective", "unit"), [("latency", "s"), ("energy", "J"), ("latency=1,energy=0.5", "")]
)
def test_the_unit_is_the_objectives(
    objective: str, unit: str, two: Path, energy: tuple[str, ...], byoc: Cli
) -> None:
    options = ("--strategies", "host-only", "--objective", objective, *energy)
    ran = byoc("compare", two, "--rules", VANILLA, *options)
    assert ran.code == 0
    (line,) = (line for line in ran.out.splitlines() if str(two) in line)
    shown = line.split("host-only")[1].split()
    (row,) = json.loads(byoc("compare", two, "--rules", VANILLA, *options, "--format", "json").out)
    if unit:
        assert shown[1] in (unit, f"m{unit}")
        scale = 1.0 if shown[1] == unit else 1e-3
        assert float(shown[0]) * scale == pytest.approx(row["objective"], rel=0.01)
    else:
        assert float(shown[0]) == pytest.approx(row["objective"], rel=0.01)
        assert shown[1] == "0"  # regions


def test_cost_models_without_joules_are_named(
    two: Path, tmp_path: Path, energy: tuple[str, ...], byoc: Cli
) -> None:
    for name, link in (("silent", ", link: {bandwidth: .inf}"), ("mute", "")):
        body = "peak: {default: 1.0e+9}, bandwidth: 1.0e+9"
        (tmp_path / f"{name}.yaml").write_text(f"{{kind: roofline, name: {name}, {body}{link}}}")
    device, host = (
        ("--cost-model", tmp_path / "silent.yaml"),
        ("--host-cost-model", tmp_path / "mute.yaml"),
    )
    asked = ("compare", two, "--rules", VANILLA, "--objective", "latency=1,energy=2")
    ran = byoc(*asked, *energy[:2], *host)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "byoc: objective latency=1,energy=2: cost model mute gives no joules\n"
    ran = byoc(*asked, *energy[2:], *device)
    assert ran.err == "byoc: objective latency=1,energy=2: cost model silent gives no joules\n"
    ran = byoc(*asked, *host, *device)
    assert ran.err == "byoc: objective latency=1,energy=2: cost models mute, silent give no joules\n"
    assert byoc(*asked, *energy).code == 0


def test_a_table_with_joules_is_not_without_them(
    two: Path, tmp_path: Path, energy: tuple[str, ...], byoc: Cli
) -> None:
    table = tmp_path / "table.yaml"
    text = "kind: table\nname: t\nentries:\n- {op: Relu, types: 'float32[1] -> float32[1]', seconds: 1.0"
    asked = ("compare", two, "--rules", VANILLA, "--objective", "energy", "--jobs", "1", *energy[:2])
    table.write_text(f"{text}}}\n")
    assert byoc(*asked, "--host-cost-model", table).err.endswith("cost model t gives no joules\n")
    table.write_text(f"{text}, joules: 1.0}}\n")
    ran = byoc(*asked, "--host-cost-model", table)  # the model has other operators
    assert (ran.code, ran.err) == (1, "")
    assert f"\nerror: {two}: objective energy: " in f"\n{ran.out}"
    assert ran.out.count("error: ") == 1


def test_provider_order_takes_the_place_of_min_cut_for_several_accelerators(
    two: Path, byoc: Cli
) -> None:
    asked = ("compare", two, "--rules", VANILLA, "--jobs", "1", "--format", "json")
    one = [row["strategy"] for row in json.loads(byoc(*asked).out)]
    ran = byoc(*asked, "--rules", "nnpa")
    rows = json.loads(ran.out)
    assert ran.code == 0
    several = [row["strategy"] for row in rows]
    assert several == ["provider-order" if name == "min-cut" else name for name in one]
    assert "min-cut" in one
    ran = byoc(*asked, "--rules", "nnpa", "--strategies", "min-cut")
    assert ran.code == 1
    assert list(FAST_STRATEGIES) == one


def test_notes_say_what_a_strategy_leaves_out(two: Path) -> None:
    rows = {row["strategy"]: row for row in compare(two, VANILLA, strategies=STRATEGIES, jobs=1)}
    assert "strategy min-cut: launches played no part in the choice" in rows["min-cut"]["notes"]
    assert not any("launches" in note for note in rows["launch-aware"]["notes"])


def test_guessed_costs_are_noted(tmp_path: Path) -> None:
    path = tmp_path / "open.onnx"
    onnx.save(parse("g (float[4] x) => (int64[1, M] y) { y = NonZero(x) }"), path)
    (row,) = compare(path, VANILLA, strategies=("launch-aware",), jobs=1)
    assert row["notes"] == ["the cost of 1 unit is an estimate: host: a shape of NonZero is not known"]


def test_notes_in_csv_and_as_footnotes(two: Path, byoc: Cli) -> None:
    asked = (
        "compare",
        two,
        "--rules",
        VANILLA,
        "--link",
        "1",
        "--link",
        "2",
        "--strategies",
        "min-cut",
        "--jobs",
        "1",
    )
    table = list(csv.DictReader(io.StringIO(byoc(*asked, "--format", "csv").out)))
    assert list(table[0]) == list(ROW_KEYS)
    assert [row["link"] for row in table] == ["1.0", "2.0"]
    sentence = "strategy min-cut: launches played no part in the choice"
    assert all(sentence in row["notes"].split("; ") for row in table)
    text = byoc(*asked).out
    assert text.count(sentence) == 1
    assert f"\n  1  {sentence}\n" in text


def row(strategy: str, found: float, bound: float | None = None, **more: Any) -> StrategyRow:
    known = {"model": "m", "strategy": strategy, "measure": "total", "seconds": 1.0, "notes": []}
    return {**dict.fromkeys(ROW_KEYS), **known, "objective": found, "bound": bound, **more}


def test_a_bound_above_what_another_found_is_an_error() -> None:
    found = {
        "good": {"value": 2.0, "bound": 2.0},
        "rounded": {"value": 2.0, "bound": 2.0 * (1 + 1e-12)},
        "wrong": {"value": 3.0, "bound": 2.5},
        "unproven": {"value": 4.0, "bound": None},
        "other": {"value": 1.0, "bound": 1.0, "measure": "makespan"},
    }
    cases = [StudyCase(model="m", rules=("r",), strategy=name) for name in (*found, "failed")]
    outcomes = {
        case.key: {"status": "ok", "measure": "total", "solver_seconds": 1.0, **found[case.strategy]}
        for case in cases[:-1]
    }
    outcomes[cases[-1].key] = {"status": "refused", "reason": "no"}
    rows = make_rows(cases, outcomes)
    assert [row["status"] for row in rows] == ["ok", "ok", "failed", "ok", "ok", "refused"]
    assert [row["gap"] for row in rows] == [
        *(0.0, 0.0, pytest.approx(1 / 3), pytest.approx(1 / 2), 0.0),
        None,
    ]
    assert [row["ratio"] for row in rows] == [1.0, 1.0, 1.5, 2.0, 1.0, None]
    checked = make_strategy_rows(rows)
    assert [r["error"] for r in checked] == [
        None,
        None,
        "its bound, 2.5, is above what good found, 2: one of them is wrong",
        None,
        None,
        "no",
    ]
    means = summarize_strategies(checked)
    assert [mean["errors"] for mean in means] == [0, 0, 1, 0, 0, 1]
    assert [mean["cases"] for mean in means] == [1, 1, 1, 1, 1, 0]


def test_a_bound_that_leaves_something_out_counts_for_its_own_row_alone() -> None:
    found = {
        "partial": {"value": 3.0, "bound": 2.5, "comparable": False},
        "whole": {"value": 2.0, "bound": 1.0, "comparable": True},
        "heuristic": {"value": 4.0, "bound": None, "comparable": False},
    }
    cases = [StudyCase(model="m", rules=("r",), strategy=name) for name in found]
    outcomes = {case.key: {"status": "ok", "measure": "total", **found[case.strategy]} for case in cases}
    rows = make_rows(cases, outcomes)
    assert [row["status"] for row in rows] == ["ok"] * 3
    assert [row["best_bound"] for row in rows] == [2.5, 1.0, 1.0]
    assert [row["gap"] for row in rows] == pytest.approx([1 / 6, 1 / 2, 3 / 4])


def print_rows(
    byoc: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, rows: list[StrategyRow]
) -> str:
    """Return what `byoc compare` prints of rows, as text."""
    monkeypatch.setattr("byoc.compare", lambda *_, **__: rows)
    return byoc("compare", "m.onnx", "--rules", VANILLA).out


def test_errors_stand_below_the_table_one_line_a_model(
    byoc: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "a sentence that goes on and on " * 10
    rows = [
        row("a", 2.0, regions=1, offloaded=0.5, bytes_moved=1, error=None),
        row("b", 0.0, objective=None, error=long),
        row("c", 0.0, objective=None, error="strategy c: no"),
        *(row(name, 0.0, model="n", objective=None, error="n: gone") for name in "abc"),
    ]
    lines = print_rows(byoc, monkeypatch, rows).splitlines()
    assert [line for line in lines if line.startswith("error: ")] == [
        f"error: m: b: {long}; strategy c: no",
        "error: n: gone",
    ]
    assert max(len(line) for line in lines if not line.startswith("error: ")) < 105


def test_many_notes_are_cut_short(byoc: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    notes = [f"note {number}" for number in range(12)]
    shown = {"regions": 1, "offloaded": 0.5, "bytes_moved": 1}
    rows = [row("a", 2.0, **shown, notes=notes), row("b", 2.0, **shown, notes=["often"] * 2)]
    out = print_rows(byoc, monkeypatch, rows)
    assert "\n  1  often\n  2  note 0\n" in out
    assert "\n     and 3 other notes (--format json)\n" in out


def test_bounds_of_real_strategies_hold(two: Path) -> None:
    names = ("host-only", "tree-dp", "min-cut", "exact")
    rows = compare(two, VANILLA, strategies=names, links=(0.1, 2.0, 50.0), jobs=1)
    assert all(found["error"] is None for found in rows)
