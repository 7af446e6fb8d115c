"""`byoc.place` on random instances: what its document says, compared with sums over nodes and edges."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import byoc
from byoc.errors import InputError
from byoc.placement import UNLIMITED, Measure, Placement, Problem
from byoc.placement.strategies import measure_placement
from byoc.planning import PlacementInstance, parse_instance, read_instance, solve_instance

Document = dict[str, Any]
DEVICES = 2


@dataclass(frozen=True)
class Chosen:
    """A strategy that gives what a function gives."""

    solve: Callable[[Problem], Placement]
    name: str = "chosen"


@st.composite
def instances(draw: st.DrawFn) -> tuple[Document, list[int]]:
    """Draw an instance and the device of each node, whose tensors have one cost each, in ms."""
    count = draw(st.integers(1, 7))
    milliseconds = st.integers(1, 400).map(lambda number: number / 8)
    supported = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    nodes = [
        {
            "id": 10 * (count - number),  # the order of the nodes is not that of the ids
            "supportedOnFpga": supported[number],
            "cpuLatency": draw(milliseconds),
            "fpgaLatency": draw(milliseconds),
            "isBackwardNode": False,
            "size": float(draw(st.integers(1, 9))),
        }
        for number in range(count)
    ]
    costs = [draw(milliseconds) for _ in range(count)]
    edges = [
        {"sourceId": nodes[a]["id"], "destId": nodes[b]["id"], "cost": costs[a]}
        for b in range(count)
        for a in range(b)
        if draw(st.booleans())
    ]
    head = {"maxSizePerFPGA": 100.0, "maxFPGAs": DEVICES, "maxCPUs": 8}
    labels = [draw(st.integers(0, DEVICES)) if each else 0 for each in supported]
    return {**head, "nodes": nodes, "edges": edges}, labels


def parse(document: Document, objective: str = "total") -> PlacementInstance:
    return parse_instance(json.dumps(document).encode(), Path("i.json"), objective, UNLIMITED)


def place_at(instance: PlacementInstance, device_of: dict[Any, int]) -> Callable[[Problem], Placement]:
    labels = [device_of[nodes[0]] for nodes in instance.nodes]
    return lambda problem: Placement.from_labels(problem, np.array(labels, np.int64))


@given(instances())
def test_the_loads_are_those_of_nodes_and_edges(drawn: tuple[Document, list[int]]) -> None:
    document, labels = drawn
    nodes, instance = document["nodes"], parse(document)
    device_of = {node["id"]: label for node, label in zip(nodes, labels, strict=True)}
    solved = solve_instance(instance, Chosen(place_at(instance, device_of)), "i.json")
    assert (solved["instance"], solved["strategy"], solved["objective"]) == ("i.json", "chosen", "total")
    total = 0.0
    for device, load in enumerate(solved["devices"]):
        here = [node for node in nodes if device_of[node["id"]] == device]
        assert load["device"] == device
        assert load["kind"] == ("accelerator" if device else "core")
        assert load["nodes"] == sorted(node["id"] for node in here)
        key = "fpgaLatency" if device else "cpuLatency"
        assert load["execution_seconds"] == pytest.approx(sum(node[key] for node in here) / 1e3)
        assert load["bytes"] == (sum(node["size"] for node in here) if device else 0)
        moved = 0.0
        for node in nodes:
            edges = [edge for edge in document["edges"] if edge["sourceId"] == node["id"]]
            ends = {device_of[edge["destId"]] for edge in edges}
            own = device_of[node["id"]]
            leaves = own == device and ends - {device}
            enters = own != device and device in ends
            moved += edges[0]["cost"] / 1e3 if device and (leaves or enters) else 0.0
        assert load["transfer_seconds"] == pytest.approx(moved)
        total += load["execution_seconds"] + load["transfer_seconds"]
    assert len(solved["devices"]) == DEVICES + 1
    assert solved["objective_seconds"] == pytest.approx(total)
    assert solved["regions"] == sum(load["regions"] for load in solved["devices"])
    for load in solved["devices"][1:]:
        assert (load["regions"] > 0) == bool(load["nodes"])
    assert solved["devices"][0]["regions"] == 0


@given(instances(), st.sampled_from([0, 0.25, 1 - 1e-12, 1, 1 + 1e-12, 1 + 1e-6, 1.5, 3]))
def test_a_bound_is_below_the_value_and_gives_the_gap(
    drawn: tuple[Document, list[int]], share: float
) -> None:
    """A bound on the makespan may lie above it by what sums in another order differ by."""
    document, labels = drawn
    instance = parse(document, "latency")
    device_of = {node["id"]: each for node, each in zip(document["nodes"], labels, strict=True)}

    def solve(problem: Problem) -> Placement:
        placement = place_at(instance, device_of)(problem)
        found = measure_placement(problem, placement, Measure.makespan)
        # All costs one after the other are a bound on it, too.
        return replace(found, bound=min(found.value * share, placement.cost.total))

    own = solve(instance.problem)
    assert own.bound is not None
    if own.bound > own.value * (1 + 1e-8):
        with pytest.raises(InputError, match=r"^strategy chosen: its bound .* is above its own .* s$"):
            solve_instance(instance, Chosen(solve), "i.json")
        return
    solved = solve_instance(instance, Chosen(solve), "i.json")
    assert (solved["objective_seconds"], solved["bound_seconds"]) == (own.value, own.bound)
    assert solved["gap"] == pytest.approx(max(0, 1 - own.bound / own.value), abs=1e-11)
    assert solved["gap"] >= 0


def test_what_costs_nothing_has_no_gap() -> None:
    node = {"id": 1, "supportedOnFpga": False, "cpuLatency": 0.0, "fpgaLatency": 1.0, "size": 1.0}
    head = {"maxSizePerFPGA": 1.0, "maxFPGAs": 1, "maxCPUs": 1, "edges": []}
    instance = parse({**head, "nodes": [{**node, "isBackwardNode": False}]})
    chosen = Chosen(lambda problem: replace(place_at(instance, {1: 0})(problem), bound=0.0))
    assert solve_instance(instance, chosen, "i.json")["gap"] == 0


def test_what_is_no_placement_is_refused_and_notes_stand_once() -> None:
    nodes = [{"id": 1, "supportedOnFpga": True, "cpuLatency": 8.0, "size": 1.0, "isBackwardNode": False}]
    nodes[0]["fpgaLatency"] = 1.0
    document = {"maxSizePerFPGA": 0.5, "maxFPGAs": 1, "maxCPUs": 1, "nodes": nodes, "edges": []}
    instance = parse(document)
    with pytest.raises(InputError, match=r"^strategy chosen: it gave a list instead of a Placement$"):
        solve_instance(instance, Chosen(lambda _: []), "i.json")  # type: ignore[arg-type, return-value]
    with pytest.raises(InputError, match=r"^strategy chosen: device 1 holds 1 bytes, and 0\.5 is"):
        solve_instance(instance, Chosen(place_at(instance, {1: 1})), "i.json")

    def noting(problem: Problem) -> Placement:
        return replace(place_at(instance, {1: 0})(problem), notes=("one", "two", "one"))

    notes = solve_instance(instance, Chosen(noting), "i.json")["notes"]
    assert [note for note in notes if note in {"one", "two"}] == ["one", "two"]
    assert "it was not told how much memory a device has" in " ".join(notes)


@pytest.mark.parametrize(
    ("objective", "strategy"),
    [("total", "launch-aware"), ("latency", "makespan"), ("throughput", "throughput")],
)
def test_each_objective_has_its_strategy_unless_one_is_named(
    objective: str, strategy: str, tmp_path: Path
) -> None:
    nodes = [
        {"id": number, "supportedOnFpga": True, "cpuLatency": 8.0, "fpgaLatency": 1.0, "size": 1.0}
        | {"isBackwardNode": False}
        for number in (1, 2)
    ]
    edges = [{"sourceId": 1, "destId": 2, "cost": 0.5}]
    head = {"maxSizePerFPGA": 9.0, "maxFPGAs": 1, "maxCPUs": 1}
    path = tmp_path / "i.json"
    path.write_text(json.dumps({**head, "nodes": nodes, "edges": edges}), encoding="utf-8")
    solved = byoc.place(path, objective=objective)
    assert solved["strategy"].startswith(strategy)
    assert solved["devices"][1]["nodes"] == [1, 2]
    named = byoc.place(path, "host-only", objective=objective)
    assert named["strategy"] == "host-only"
    assert named["objective_seconds"] == pytest.approx(0.016)
    assert any("does not minimise" in note for note in named["notes"]) == (objective != "total")


@pytest.mark.parametrize(
    ("objective", "asked", "most"),
    [
        ("latency", None, 1),
        ("latency", 1, 1),
        ("latency", 3, 3),
        ("total", None, UNLIMITED),
        ("total", 2, 2),
        ("throughput", None, UNLIMITED),
    ],
)
def test_for_the_latency_an_accelerator_has_one_region_unless_more_are_asked_for(
    objective: str, asked: int | None, most: int, tmp_path: Path
) -> None:
    node = {"id": 1, "supportedOnFpga": True, "cpuLatency": 8.0, "fpgaLatency": 1.0, "size": 1.0}
    head = {"maxSizePerFPGA": 9.0, "maxFPGAs": 1, "maxCPUs": 1, "edges": []}
    path = tmp_path / "i.json"
    content = {**head, "nodes": [{**node, "isBackwardNode": False}]}
    path.write_text(json.dumps(content), encoding="utf-8")
    assert set(read_instance(path, objective, asked).problem.max_regions.tolist()) == {most}
