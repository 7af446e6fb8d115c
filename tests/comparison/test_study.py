"""Studies: axes become cases, rows are the same wherever they are solved, nothing is computed twice."""

import csv
import json
import os
import re
import subprocess
import sys
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import onnx
import pytest
from helpers.solving import here, solve_studies_here  # noqa: F401 - a fixture
from helpers.support import VANILLA
from studying import Cli, drop_times, make_folder, write_study  # noqa: F401 - a fixture

import byoc
from byoc import place
from byoc.comparison import COLUMNS, _case_solver, make_study_schema, read_results, replay_study
from byoc.pipeline import partition


@pytest.mark.usefixtures("here")
def test_every_combination_is_a_row(folder: Path) -> None:
    study = write_study(
        folder,
        links=[0.1, None],
        strategies=["host-only", {"name": "launch-aware", "options": {"rounds": [3, 12]}}],
        costs=[{}, {"parameters": {"launch": [0, 1e-3]}}],
        limits=[{}, {"time": 2, "memory": "64KiB"}],
        repetitions=2,
    )
    result = byoc.study(study, jobs=1)
    rows = result.rows
    assert len(rows) == result.total == 2 * 2 * 3 * 3 * 2 * 2
    assert [tuple(row) for row in rows] == [tuple(COLUMNS)] * len(rows)
    assert len({row["key"] for row in rows}) == len(rows)
    assert {row["status"] for row in rows} == {"ok"}
    assert {row["model"] for row in rows} == {"nets/one.onnx", "nets/two.onnx"}
    assert {row["options"] for row in rows} == {"", "rounds=3", "rounds=12"}
    assert {row["parameters"] for row in rows} == {"", "launch=0", "launch=0.001"}
    assert {row["limits"] for row in rows} == {"", "memory=64KiB"}
    for row in rows:
        parts = row["execution_seconds"] + row["transfer_seconds"] + row["launch_seconds"]
        assert row["seconds"] == pytest.approx(parts)
        assert (
            row["launch_seconds"]
            == {"": 5e-5, "launch=0": 0.0, "launch=0.001": 1e-3}[row["parameters"]] * row["regions"]
        )
        assert row["gap"] is not None  # of heuristics, too
        assert row["value"] >= row["best_bound"] * (1 - 1e-9)
        assert row["ratio"] >= 1
    again = [row for row in rows if row["repetition"]]
    first = [row for row in rows if not row["repetition"]]
    for one, other in zip(drop_times(first), drop_times(again), strict=True):
        assert {**one, "key": "", "repetition": 1} == {**other, "key": ""}


@pytest.mark.usefixtures("here")
def test_a_row_says_what_partition_says(folder: Path) -> None:
    (row,) = byoc.study(write_study(folder, models="nets/one.onnx", links=100), jobs=1).rows
    fast = folder / "fast.yaml"
    text = (Path(__file__).parents[2] / "cost_models" / "dla.yaml").read_text()
    assert "bandwidth: 2.0e+9" in text
    fast.write_text(text.replace("bandwidth: 2.0e+9", "bandwidth: 1.0e+11"))
    report = partition(folder / "nets" / "one.onnx", VANILLA, cost_model=fast).report
    assert row["seconds"] == report.predicted.seconds
    assert row["bound"] == report.predicted.bound
    assert row["joules"] == report.predicted.joules
    assert row["regions"] == len(report.regions)
    assert row["offloaded"] == report.compute.offloaded
    # In go x, out comes what Softmax reads; the convolutions share a constant.
    assert row["bytes_moved"] == 2 * 4 * 64 * 56 * 56
    assert row["constant_bytes"] == 4 * 64 * 64 * 3 * 3


def test_failures_are_rows_and_the_rest_goes_on(folder: Path, byoc: Cli) -> None:
    (folder / "nets" / "bad.onnx").write_bytes(b"no model")
    study = write_study(
        folder,
        models=["nets/one.onnx", "nets/bad.onnx"],
        strategies=["deadly", "endless", "host-only"],
        case_seconds=3,
    )
    ran = byoc("study", study, "-o", folder / "r.csv", "--jobs", "1")
    assert ran.code == 1
    rows = read_results(folder / "r.csv")
    assert [row["status"] for row in rows[:3]] == ["crashed", "timed out", "ok"]
    assert [row["reason"] for row in rows[:3]] == [
        "its process ended with exit code 9",
        "stopped after 3 s",
        "",
    ]
    assert all(row["status"] == "refused" and "bad.onnx: " in row["reason"] for row in rows[3:6])
    assert "6 cases" in ran.err
    assert "5 not solved (3 refused, 1 crashed, 1 timed out)" in ran.err
    assert [line for line in ran.err.splitlines() if "bad.onnx: " in line] == [
        f"byoc: deadly, endless, host-only: {rows[3]['reason']}"
    ], "a reason is told once"
    junit = folder / "j.xml"
    ran = byoc("study", study, "-o", folder / "r.csv", "--jobs", 1, "--allow-failures", "--junit", junit)
    assert ran.code == 0
    suites = ElementTree.parse(junit).getroot()
    assert (suites.attrib["tests"], suites.attrib["failures"]) == ("6", "5")
    assert [suite.attrib["name"] for suite in suites] == [
        "nets/one.onnx",
        "nets/bad.onnx",
    ]
    assert [case.attrib["name"] for case in suites[0]] == ["deadly", "endless", "host-only"]
    messages = [each.attrib["message"] for each in suites[0].iter("failure")]
    assert messages == ["crashed: its process ended with exit code 9", "timed out: stopped after 3 s"]


def test_models_that_are_not_there_stop_a_study_before_it_solves(folder: Path, byoc: Cli) -> None:
    study = write_study(
        folder, models=["nets/one.onnx", "nets/gone.onnx", "nets/*.pb", "zoo:gone*", "zoo:squezenet"]
    )
    ran = byoc("study", study, "-o", folder / "r.csv", "--jobs", "1")
    assert ran.code == 1
    lines = [line.removeprefix(f"byoc: {study}: ") for line in ran.err.splitlines()]
    assert lines == [
        f"models[1]: {folder / 'nets/gone.onnx'}: no such file (did you mean one.onnx?)",
        f"models[2]: no file in {folder} matches 'nets/*.pb'",
        "models[3]: no model of the zoo that is here matches 'zoo:gone*'",
        "models[4]: the zoo has no 'squezenet' (did you mean squeezenet?); `byoc zoo` lists its models",
    ]
    assert not (folder / "r.csv").exists()


def test_junit_names_a_case_by_what_differs(folder: Path, byoc: Cli) -> None:
    strategies = [{"name": "counting", "seeds": [1, 2]}, "host-only"]
    study = write_study(folder, models="nets/one.onnx", strategies=strategies, links=[None, 0.5])
    junit = folder / "j.xml"
    assert byoc("study", study, "-o", folder / "r.csv", "--jobs", 1, "--junit", junit).code == 0
    assert [case.attrib["name"] for case in ElementTree.parse(junit).getroot().iter("testcase")] == [
        *("counting, seed 1", "counting, seed 2", "host-only"),
        *("counting, link 0.5, seed 1", "counting, link 0.5, seed 2", "host-only, link 0.5"),
    ]
    study.write_text("models: []")
    assert byoc("study", study, "-o", folder / "r.csv", "--junit", junit).code == 1
    assert [case.tag for case in ElementTree.parse(junit).getroot().iter("error")] == ["error"]


def test_passes_that_are_left_out_are_an_axis(folder: Path) -> None:
    model = onnx.load(folder / "nets" / "one.onnx")
    model.graph.node[-1].input[0] = "dropped"
    model.graph.node.insert(
        len(model.graph.node) - 1, onnx.helper.make_node("Identity", ["c"], ["dropped"])
    )
    onnx.save(model, folder / "nets" / "one.onnx")
    left_out = [[], "all", ["drop-identity", "fold-shapes"]]
    study = write_study(
        folder, models="nets/one.onnx", strategies="counting", no_passes=left_out, links=[1, 2]
    )
    rows = byoc.study(study, jobs=1).rows
    assert {row["status"] for row in rows} == {"ok"}
    found = [(row["no_passes"], row["own_units"]) for row in rows if row["link"] == 1]
    assert found == [("", 3), ("all", 4), ("drop-identity+fold-shapes", 4)]
    assert len({row["key"] for row in rows}) == 6


def test_results_are_the_same_as_csv_and_parquet(folder: Path) -> None:
    pytest.importorskip("pyarrow")
    study = write_study(folder, strategies=["host-only", {"name": "counting", "seeds": [7]}])
    rows = byoc.study(study, folder / "r.csv", jobs=2).rows
    with solve_studies_here():
        same = byoc.study(study, folder / "r.parquet", jobs=1).rows
    assert drop_times(same) == drop_times(rows)
    assert drop_times(read_results(folder / "r.csv")) == drop_times(read_results(folder / "r.parquet"))
    with (folder / "r.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [float(row["value"]) for row in table] == [row["value"] for row in rows]
    assert [row["own_steps"] for row in table] == ["", "70.0", "", "70.0"]


@pytest.mark.usefixtures("here")
def test_saved_placements_are_priced_over_other_links_and_by_other_costs(
    folder: Path, byoc: Cli
) -> None:
    strategies = ["launch-aware", "makespan", {"name": "counting", "seeds": [3]}]
    study = write_study(folder, models="nets/one.onnx", strategies=strategies, links=[0.001, 100])
    assert byoc("study", study, "-o", folder / "r.csv", "--jobs", "1", "--save", folder / "s").code == 0
    rows = read_results(folder / "r.csv")
    assert {path.name for path in (folder / "s").iterdir()} == {
        f"{row['key'][:16]}.{ending}"
        for row in rows
        for ending in ("case.json", "problem.json", "placement.yaml")
    }
    for row in rows:  # what is saved is what was found
        stem = folder / "s" / row["key"][:16]
        if row["measure"] == "total":
            found = place(f"{stem}.problem.json", "launch-aware", strategy_options={"margin": "0"})
            assert found["objective_seconds"] <= row["value"] * (1 + 1e-9)
    ran = byoc("study", "replay", folder / "s", "-o", folder / "a.csv", "--link", "100", "--jobs", "1")
    assert ran.code == 0, ran.err
    again = {(row["strategy"], row["options"]): row for row in read_results(folder / "a.csv")}
    assert len(again) == len(rows)
    for row in rows:
        other = again[row["strategy"], f"saved_link={row['link']}"]
        assert (other["link"], other["seed"], other["measure"]) == (100, row["seed"], row["measure"])
        assert other["regions"] == row["regions"]
        assert other["bytes_moved"] == row["bytes_moved"]
        if row["link"] == 100:
            assert other["value"] == pytest.approx(row["value"], rel=1e-12)
        assert other["execution_seconds"] == pytest.approx(row["execution_seconds"], rel=1e-12)
        assert other["gap"] is other["bound"] is None
    slow, fast = (row for row in rows if row["strategy"] == "counting")
    assert slow["regions"] > 0 < fast["transfer_seconds"] < slow["transfer_seconds"]
    assert again["counting", "saved_link=0.001"]["value"] == pytest.approx(fast["value"], rel=1e-12)
    text = (Path(__file__).parents[2] / "cost_models" / "dla.yaml").read_text()
    slower, count = re.subn(r"^launch: [0-9.e-]+", "launch: 1.0", text, flags=re.MULTILINE)
    assert count == 1
    (folder / "slow.yaml").write_text(slower)
    asked = (
        "study",
        "replay",
        folder / "s",
        "-o",
        folder / "b.csv",
        "--cost-model",
        folder / "slow.yaml",
    )
    assert byoc(*asked, "--jobs", "1").code == 0
    for row in read_results(folder / "b.csv"):
        assert row["launch_seconds"] == row["regions"]
        assert row["options"] == "saved_cost_model=null"
        assert row["cost_model"] == str(folder / "slow.yaml")


@pytest.mark.usefixtures("here")
def test_what_was_not_saved_is_solved_again(folder: Path) -> None:
    study = write_study(folder, models="nets/one.onnx", links=[1, 2])
    byoc.study(study, folder / "r.csv", jobs=1)
    kept = byoc.study(study, folder / "r.csv", jobs=1, save=folder / "s")
    assert kept.earlier == 0
    key = kept.rows[0]["key"]
    (folder / "s" / f"{key[:16]}.case.json").unlink()
    again = byoc.study(study, folder / "r.csv", jobs=1, save=folder / "s")
    assert (again.earlier, len(list((folder / "s").glob("*.case.json")))) == (1, 2)
    assert drop_times(again.rows) == drop_times(kept.rows)
    problem = folder / "s" / f"{key[:16]}.problem.json"
    whole = problem.read_text()
    for broken in (whole[: len(whole) // 2], whole.replace('"units"', '"unit"'), "[]", ""):
        problem.write_text(broken)
        with pytest.raises(byoc.InputError, match=rf"{key[:16]}\.problem\.json: "):
            replay_study(folder / "s")
    problem.write_text(whole)
    for text, told in (
        ("{}", "measure: "),
        ('{"measure": "total", "case": {"model": 1}}', "case.model: "),
    ):
        (folder / "s" / f"{key[:16]}.case.json").write_text(text)
        with pytest.raises(byoc.InputError, match=rf"{key[:16]}\.case\.json: .*{told}"):
            replay_study(folder / "s")
    with pytest.raises(byoc.InputError, match="no case that `byoc study --save` wrote is in it"):
        replay_study(folder / "nets")


@pytest.mark.usefixtures("here")
def test_rows_say_by_what_they_were_computed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/byoc/__main__.py", "study", "a b.yaml"])
    study = write_study(folder, models="nets/one.onnx", strategies=["host-only", "min-cut"])
    rows = byoc.study(study, folder / "r.csv", jobs=1).rows
    for row in rows:
        assert row["command"] == "byoc study 'a b.yaml'"
        assert datetime.fromisoformat(row["date"]).tzinfo is not None
        assert f"{os.uname().sysname} {os.uname().machine}" in row["machine"]
        for name in ("onnx", "onnxruntime", "scipy"):
            assert row[f"{name}_version"] == version(name)
    assert byoc.study(study, folder / "r.csv", jobs=1).earlier == 2
    versions = {**_case_solver.list_versions(), "scipy": "0.1"}
    monkeypatch.setattr(_case_solver, "list_versions", lambda: versions)
    assert byoc.study(study, folder / "r.csv", jobs=1).earlier == 0, "another scipy, other answers"


MISTAKES = [
    ({"links": [1, -2]}, "study.yaml: links[1]: input should be greater than 0"),
    ({"modles": "x"}, "study.yaml: modles: no such key (did you mean models?)"),
    ({"strategies": [{"name": "exact", "option": {}}]}, "strategies[0].option: no such key"),
    ({"strategies": ["exact", "exakt"]}, "strategies[1]: exakt: no such strategy (did you mean exact?)"),
    ({"strategies": {"name": "exact", "seeds": [1]}}, "strategies[0]: strategy 'exact' of "),
    ({"rules": ["vanilla.yaml", "dlb"]}, "rules[1]: dlb: no such file"),
    ({"costs": [{"parameters": {"lunch": 1}}]}, "costs[0]: cost model "),
    ({"costs": [{"parameters": {"launch": -1}}]}, "launch: must be at least 0"),
    ({"no_passes": [[], "drop-node"]}, "no_passes[1]: "),
    ({"objectives": "speed"}, "objectives[0]: objective speed: no such objective"),
    ({"models": ["nets/*.txt"]}, " matches 'nets/*.txt'"),
    ({"models": ["zoo:nix*"]}, "models[0]: no model of the zoo that is here matches 'zoo:nix*'"),
    ({"links": []}, "study.yaml: links: must not be empty"),
    ({"limits": [{"regions": 0}]}, "limits[0].regions: must be at least 1"),
]


@pytest.mark.parametrize(("axes", "sentence"), MISTAKES)
def test_mistakes_have_locations(axes: dict[str, Any], sentence: str, folder: Path, byoc: Cli) -> None:
    ran = byoc("study", write_study(folder, **axes), "-o", folder / "r.csv")
    assert (ran.code, ran.out) == (1, "")
    assert sentence in ran.err
    assert not (folder / "r.csv").exists()


def test_results_have_a_suffix_and_a_folder(folder: Path, byoc: Cli) -> None:
    study = write_study(folder)
    assert "end in .csv or .parquet" in byoc("study", study, "-o", folder / "r.txt").err
    assert "there is no folder" in byoc("study", study, "-o", folder / "no" / "r.csv").err
    (folder / "r.csv.cases.jsonl").write_text("model,rules\n")
    assert "not a line of the journal" in byoc("study", study, "-o", folder / "r.csv").err


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({"repetitions": 10**30}, "at most 1000000 are possible"),
        pytest.param(
            {"models": ["**x/*"]},
            "models[0]: '**x/*': ",
            marks=pytest.mark.skipif(sys.version_info >= (3, 13), reason="it is a pattern since 3.13"),
        ),
        (
            {"strategies": {"name": "min-cut", "options": {f"o{i}": [1, 2] for i in range(60)}}},
            "strategies: options of one make more than 1000000 cases",
        ),
    ],
)
def test_axes_without_end_are_refused(axes: dict[str, Any], said: str) -> None:
    whole = {"models": "zoo:squeezenet", "rules": "dla", "strategies": "min-cut", **axes}
    with pytest.raises(byoc.InputError, match=re.escape(said)):
        byoc.study(whole)


def test_the_schema_is_one_and_takes_studies(folder: Path, byoc: Cli) -> None:
    schema = json.loads(byoc("study", "schema").out)
    assert schema == make_study_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    good = [
        {"models": "a", "rules": "b", "strategies": "c"},
        {"models": ["a"], "rules": [["b", "c"], "d"], "strategies": ["c", {"name": "d", "seeds": [1]}]},
    ]
    more = {"costs": [{"parameters": {"launch": [1, 2]}}, "x"], "links": [None, 1.5], "limits": {}}
    for content in (*good, good[0] | more):
        assert list(validator.iter_errors(content)) == []
    for axes in ({"links": []}, *(axes for axes, _ in MISTAKES[:3])):
        assert list(validator.iter_errors(good[0] | axes))


def test_the_digest_of_a_strategy_does_not_depend_on_the_order_of_sets() -> None:
    script = (
        "from dataclasses import make_dataclass\n"
        "from byoc.comparison._case_solver import _describe_plugin\n"
        "kind = make_dataclass('Kind', ['names', 'other'])\n"
        "print(_describe_plugin(kind(frozenset('abcdefgh'), [{'x', 'y', 'z'}, {'k': (1, 2.5)}])))"
    )
    command, found = [sys.executable, "-c", script], set()
    for seed in ("0", "1"):
        seeded = os.environ | {"PYTHONHASHSEED": seed}
        found.add(subprocess.check_output(command, env=seeded, text=True))
    assert len(found) == 1
    assert "'k': [1, 2.5]" in found.pop()
