"""Compilers that estimate what they compiled, asked before placing: units, and then whole regions."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.cutting import ramp, same_as_original
from helpers.noting_vendor import Vendor
from helpers.support import parse

import byoc
from byoc.numerics import fit_proportions

MODEL = """
asked (float[64, 4096] x) => (float[64, 4096] y) {
  a = Relu(x)
  b = Add(a, a)
  c = Mul(b, a)
  y = Sigmoid(c)
}
"""
ESTIMATE = """
    def estimate(self, region, options, artifact):
        from byoc.codegen import Cycles
        nodes = [node.op_type for node in region.nodes]
        with open(os.environ["COMPILED"], "a") as file:
            file.write("estimate:" + ",".join(nodes) + "\\n")
        if os.environ.get("UNSAID") in nodes:
            raise CompileError("that is not known")
        alone, whole = (float(text) for text in os.environ["SECONDS"].split())
        return Cycles(1e9 * (alone if len(nodes) == 1 else whole), 1e9)
"""
OF_VERSION_1 = """
    api = 1

    def cost(self, region):
        with open(os.environ["COMPILED"], "a") as file:
            file.write("cost:" + ",".join(node.op_type for node in region.nodes) + "\\n")
        return 0.25

    def estimate(self, effort):
        raise NotImplementedError
"""
COSTS = """
kind: roofline
name: fast
peak: {default: 1.0e+12}
bandwidth: 1.0e+11
launch: 1.0e-5
link: {bandwidth: 1.0e+12, latency: 1.0e-7}
"""


@pytest.fixture
def asked(vendor: Vendor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Vendor:
    """The installed codegen `noting`, which estimates, and a rule file with its costs."""
    path = os.pathsep.join([str(vendor.site), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.chdir(tmp_path)
    vendor.write(more=ESTIMATE)
    Path("fast.yaml").write_text(COSTS)
    Path("acme.yaml").write_text(
        "target: acme\ncodegen: noting\ncost_model: fast.yaml\ndtype: float32\n"
        "ops: [{op: [Relu, Add, Mul]}]\n"
    )
    return vendor


def plan(vendor: Vendor, **options: Any) -> tuple[list[int], byoc.Result, list[str]]:
    """Plan the model; return the sizes of regions, the result, and what was asked and compiled."""
    vendor.forget()
    vendor.log.write_text("")
    result = byoc.partition(
        parse(MODEL),
        "acme.yaml",
        what_if=False,
        **options,
    )
    sizes = [len(region.nodes) for region in result.plan.regions]
    return sizes, result, vendor.log.read_text().split()


def test_whole_regions_that_are_faster_than_their_units_are_placed(
    asked: Vendor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A unit alone takes a second, three in one region take 20 us."""
    monkeypatch.setenv("SECONDS", "1.0 2e-5")
    sizes, result, log = plan(asked, ask="costs", output=tmp_path / "b")
    assert sizes == [3]
    (region,) = result.report.regions
    assert region.estimate is not None
    assert region.estimate.seconds == pytest.approx(2e-5)
    assert region.seconds == pytest.approx(2e-5)  # predicted is what was estimated before
    assert [line for line in log if line.startswith("estimate:")] == [
        *("estimate:Relu", "estimate:Add", "estimate:Mul"),
        "estimate:Relu,Add,Mul",
        "estimate:Relu,Add,Mul",  # for the report, of what was compiled
    ]
    assert not any("--ask costs" in note.text for note in result.report.notes)
    (note,) = [text for text in result.plan.root.notes if "as wholes" in text]
    assert note.startswith("compilers estimated the regions of 2 placements as wholes; the one that")
    same_as_original(parse(MODEL), tmp_path / "b", {"x": ramp(64, 4096)})
    again, _, log = plan(asked, ask="costs")
    assert (again, log) == ([3], [])  # the answers were kept


def test_whole_regions_that_are_slower_than_predicted_stay_on_the_host(
    asked: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECONDS", "1e-6 1.0")
    assert plan(asked)[0] == [3]
    assert plan(asked, ask="legality")[0] == [3]
    assert plan(asked, ask="costs")[0] == []


def test_what_the_compiler_does_not_say_stays_the_cost_models(
    asked: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECONDS", "1e-6 1e-6")
    monkeypatch.setenv("UNSAID", "Mul")
    _, without, _ = plan(asked, strategy="all-supported")
    sizes, result, _ = plan(asked, ask="costs", strategy="all-supported")
    assert sizes == [3]
    before, after = (each.plan.graph_problem.problem.seconds[:, 1] for each in (without, result))
    assert after[2] == before[2]
    assert after[0] != before[0]


def test_a_plug_in_of_version_1_is_asked_for_cost_as_ever(
    asked: Vendor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a worker process; its `estimate` is a method of its own."""
    asked.write(more=OF_VERSION_1)
    sizes, result, log = plan(asked, ask="costs", strategy="all-supported", output=tmp_path / "b")
    assert sizes == [3]
    assert [line for line in log if ":" in line] == ["cost:Relu", "cost:Add", "cost:Mul"]
    assert result.report.regions[0].estimate is None
    assert result.report.regions[0].seconds == pytest.approx(3 * (0.25 - 1e-5) + 1e-5)
    same_as_original(parse(MODEL), tmp_path / "b", {"x": ramp(64, 4096)})


@pytest.mark.parametrize("seed", range(5))
def test_seconds_of_tasks_add_up_to_estimates(seed: int) -> None:
    random = np.random.default_rng(seed)
    shares = random.integers(0, 4, (3, 6)).astype(float)
    seconds = random.uniform(0.1, 1.0, 6)
    goals = shares @ (seconds * random.uniform(0.2, 5.0, 6))  # so that there is a solution
    found = fit_proportions(shares, seconds, goals)
    assert (found > 0).all()
    np.testing.assert_allclose(shares @ found, goals, rtol=0.05)
    only = fit_proportions(shares[:1], seconds, goals[:1])
    used = shares[0] > 0
    np.testing.assert_allclose(only[used] / seconds[used], goals[0] / (shares[0] @ seconds))
    np.testing.assert_array_equal(only[~used], seconds[~used])
    np.testing.assert_array_equal(fit_proportions(shares, 0 * seconds, goals), 0 * seconds)
