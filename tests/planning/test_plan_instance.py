"""The public benchmark's JSON: what it poses, what is refused and how, and the way back."""

import json
import random
from copy import deepcopy
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.placement_dags import random_problem
from helpers.placement_oracle import (
    SlowCost,
    chain,
    every_labels,
    problems,
    readers,
    slow_optimum,
    thorough,
)
from hypothesis import given
from hypothesis import strategies as st
from instance_writer import instance_document

from byoc.errors import InputError
from byoc.placement import Fusion, Problem
from byoc.planning import PlacementInstance, parse_instance, read_instance

Document = dict[str, Any]


def node(number: int, host: float = 4.0, device: float = 1.0, **more: Any) -> Document:
    return {
        "id": number,
        "supportedOnFpga": True,
        "cpuLatency": host,
        "fpgaLatency": device,
        "isBackwardNode": False,
        "size": 10.0,
    } | more


def edge(source: int, target: int, cost: float = 0.5) -> Document:
    return {"sourceId": source, "destId": target, "cost": cost}


def document(nodes: list[Document], edges: list[Document], **head: Any) -> Document:
    return {"maxSizePerFPGA": 100.0, "maxFPGAs": 1, "maxCPUs": 8, "nodes": nodes, "edges": edges} | head


def row() -> Document:
    """Nodes 7, 3 and 5 in a row; 5 on the host alone."""
    return document(
        [node(5, 2.0, supportedOnFpga=False), node(3, 8.0, 2.0), node(7)], [edge(3, 5), edge(7, 3, 0.25)]
    )


def parsed(given: Document) -> PlacementInstance:
    return parse_instance(json.dumps(given).encode(), Path("i.json"), "total")


def refused(given: Document | str) -> list[str]:
    with pytest.raises(InputError) as caught:
        text = given if isinstance(given, str) else json.dumps(given)
        parse_instance(text.encode(), Path("i.json"), "total")
    lines = str(caught.value).splitlines()
    assert all(line.startswith("i.json: ") for line in lines)
    return [line.removeprefix("i.json: ") for line in lines]


def test_a_row_by_hand() -> None:
    instance = parsed(row())
    problem = instance.problem
    assert instance.nodes == ((7,), (3,), (5,))
    assert instance.cores == {0}
    assert instance.notes == ()
    assert problem.seconds.tolist() == [[0.004, 0.001], [0.008, 0.002], [0.002, inf]]
    assert problem.producer.tolist() == [0, 1]
    assert [readers(problem, tensor) for tensor in (0, 1)] == [[1], [2]]
    assert problem.to_device.tolist() == problem.to_host.tolist() == [[0.00025], [0.0005]]
    assert problem.memory.tolist() == [[10.0]] * 3
    assert problem.capacity.tolist() == [100.0]
    assert not problem.is_output.any()
    assert not problem.launch.any()
    assert SlowCost(problem)((1, 1, 0)) == pytest.approx(0.001 + 0.002 + 0.0005 + 0.002)


def test_the_order_in_the_file_plays_no_part() -> None:
    nodes = [node(number, 1.0 + number) for number in range(9)]
    edges = [edge(a, b, a / 8) for a in range(9) for b in range(a + 1, 9) if (a * b) % 3 == 1]
    rng = random.Random(0)
    expected = parsed(document(nodes, edges))
    for _ in range(5):
        rng.shuffle(nodes)
        rng.shuffle(edges)
        found = parsed(document(nodes, edges))
        assert found.nodes == expected.nodes
        for name in ("seconds", "producer", "consumers", "consumer_start", "to_device", "memory"):
            assert np.array_equal(getattr(found.problem, name), getattr(expected.problem, name))


def test_several_accelerators_and_none() -> None:
    several = parsed(row() | {"maxFPGAs": 3}).problem
    assert several.devices == 3
    assert several.seconds[0].tolist() == [0.004, 0.001, 0.001, 0.001]
    assert several.capacity.tolist() == [100.0] * 3
    assert parsed(row() | {"maxFPGAs": 0}).problem.devices == 0
    assert parsed(document([], [])).problem.units == 0


def test_a_class_is_one_unit() -> None:
    """Nodes 1 and 2 are one: times and bytes add up, and what passes between them costs nothing."""
    given = document(
        [node(0), node(1, colorClass=6), node(2, 2.0, colorClass=6), node(3, colorClass=None)],
        [edge(0, 1), edge(0, 2), edge(1, 2, 0.75), edge(1, 3, 0.75), edge(2, 3, 1.0)],
    )
    instance = parsed(given)
    problem = instance.problem
    assert instance.nodes == ((0,), (1, 2), (3,))
    assert problem.seconds[1].tolist() == [0.006, 0.002]
    assert problem.memory[1].tolist() == [20.0]
    assert problem.size.tolist() == [1, 2, 1]
    assert problem.producer.tolist() == [0, 1, 1]
    assert problem.to_host.ravel().tolist() == [0.0005, 0.00075, 0.001]


def test_a_class_that_is_not_supported_as_a_whole() -> None:
    given = document([node(0, colorClass=1), node(1, colorClass=1, supportedOnFpga=0)], [])
    assert parsed(given).problem.seconds.tolist() == [[0.008, inf]]


def test_classes_that_would_form_a_circle_are_tied() -> None:
    """Forward 0, 1 and backward 2, 3, as in training: {0, 3} and {1, 2} wait for one another."""
    nodes = [node(0, colorClass=1), node(1, colorClass=2), node(2, colorClass=2), node(3, colorClass=1)]
    instance = parsed(document(nodes, [edge(0, 1), edge(1, 2), edge(2, 3)]))
    problem = instance.problem
    # 1 and 2 are next to one another; as one unit they still come after 0 and before 3.
    assert instance.nodes == ((0,), (1,), (2,), (3,))
    assert len(instance.notes) == 1
    assert instance.notes[0].startswith("2 colour classes would wait for one another in a circle")
    cost = SlowCost(problem)
    allowed = {labels for labels in every_labels(problem) if cost(labels) < inf}
    assert allowed == {(0, 0, 0, 0), (1, 1, 1, 1), (0, 1, 1, 0), (1, 0, 0, 1)}
    nodes[3]["supportedOnFpga"] = False
    tied = parsed(document(nodes, [edge(0, 1), edge(1, 2), edge(2, 3)])).problem
    assert np.isinf(tied.seconds[:, 1]).tolist() == [True, False, False, True]


def test_what_their_programs_take_is_taken() -> None:
    """0/1 for flags, sizes and classes left out, no latency where it is not supported, more keys."""
    bare = {"id": -4, "supportedOnFpga": 0, "cpuLatency": 3, "name": "x"}
    loose = document([bare, node(2, supportedOnFpga=1)], [edge(-4, 2, 1) | {"size": 9}], comment="")
    problem = parsed(loose).problem
    assert problem.seconds.tolist() == [[0.003, inf], [0.004, 0.001]]
    assert problem.memory.tolist() == [[0.0], [10.0]]
    twice = document([node(0), node(1)], [edge(0, 1), edge(0, 1)])
    assert parsed(twice).problem.tensors == 1


def wrong(path: str, value: Any) -> Document:
    """The row with one value replaced, or taken away where the value is `...`."""
    changed: Any = deepcopy(row())
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    place = changed
    for part in way:
        place = place[part]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("nodes", ..., "nodes: must be given"),
        ("edges", None, "edges: expected a list"),
        ("nodes", {}, "nodes: expected a list"),
        ("nodes.1", 3, "nodes[1]: expected a mapping of keys"),
        ("edges.1", "x", "edges[1]: expected a mapping of keys (sourceId, destId, cost)"),
        ("maxFPGAs", ..., "maxFPGAs: must be given"),
        ("maxFPGAs", 2.0, "maxFPGAs: expected a whole number"),
        ("maxFPGAs", -1, "maxFPGAs: must be at least 0"),
        ("maxFPGAs", 10**9, "maxFPGAs: must be at most 256"),
        ("maxFPGAs", True, "maxFPGAs: expected a whole number"),
        ("maxCPUs", "8", "maxCPUs: expected a whole number"),
        ("maxSizePerFPGA", -5, "maxSizePerFPGA: must be at least 0"),
        ("maxSizePerFPGA", 2e200, "maxSizePerFPGA: must be at most 1e+200"),
        ("maxSizePerFPGA", inf, "not JSON: Infinity is not a number that is read"),
        ("nodes.0.id", ..., "nodes[0].id: must be given"),
        ("nodes.0.id", 1.5, "nodes[0].id: expected a whole number"),
        ("nodes.0.id", 10**30, "nodes[0].id: must be at most 4.61169e+18"),
        ("nodes.0.supportedOnFpga", ..., "nodes[0].supportedOnFpga: must be given"),
        ("nodes.0.supportedOnFpga", 2, "nodes[0].supportedOnFpga: expected true or false"),
        ("nodes.0.isBackwardNode", "nope", "nodes[0].isBackwardNode: expected true or false"),
        ("nodes.0.cpuLatency", ..., "nodes[0].cpuLatency: must be given"),
        ("nodes.0.cpuLatency", float("nan"), "not JSON: NaN is not a number that is read"),
        ("nodes.0.cpuLatency", -0.25, "nodes[0].cpuLatency: must be at least 0"),
        ("nodes.0.cpuLatency", 10**400, "nodes[0].cpuLatency: expected a number"),
        ("nodes.1.fpgaLatency", ..., "nodes[1]: fpgaLatency must be given, since supportedOnFpga is "
         "true"),
        ("nodes.1.fpgaLatency", [], "nodes[1].fpgaLatency: expected a number"),
        ("nodes.1.size", False, "nodes[1].size: expected a number"),
        ("nodes.1.colorClass", "red", "nodes[1].colorClass: expected a whole number"),
        ("edges.0.sourceId", ..., "edges[0].sourceId: must be given"),
        ("edges.0.destId", 99, "edges[0].destId: there is no node 99"),
        ("edges.0.cost", ..., "edges[0].cost: must be given"),
        ("edges.0.cost", -1e9, "edges[0].cost: must be at least 0"),
        ("edges.0.destId", 7, "edges: they form a circle through node 3, 7"),
        ("edges.0.destId", 3, "edges: they form a circle through node 3"),
        ("edges.0.sourceId", 7, "edges[1].cost: 0.25, but edges[0] out of the same node, 7, costs 0.5: "
         "what a node makes has one cost"),
    ],
)  # fmt: skip
def test_one_mistake_one_sentence(path: str, value: Any, sentence: str) -> None:
    lines = refused(wrong(path, value))
    assert lines[0] == sentence
    assert len(lines) == 1


def test_an_id_that_stands_twice_and_one_that_is_gone() -> None:
    assert refused(wrong("nodes.0.id", 3)) == [
        "nodes[1].id: 3 is the id of nodes[0] already",
        "edges[0].destId: there is no node 5",
    ]


def test_all_mistakes_at_once_and_not_too_many() -> None:
    given = document([node(n, -1.0) for n in range(60)], [edge(0, 1, -1)])
    lines = refused(given)
    assert len(lines) == 51
    assert lines[0] == "nodes[0].cpuLatency: must be at least 0"
    assert lines[-1] == "and 11 more"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        ("{", "not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("[]", "the file: expected a mapping of keys (maxSizePerFPGA, maxFPGAs, maxCPUs, nodes, edges)"),
        (
            "null",
            "the file: expected a mapping of keys (maxSizePerFPGA, maxFPGAs, maxCPUs, nodes, edges)",
        ),
        ('{"nodes": [], "nodes": []}', "not JSON: the key 'nodes' stands twice"),
        ("[" * 200_000, "not JSON: it is nested too deep"),
    ],
)
def test_what_is_no_instance(text: str, sentence: str) -> None:
    assert refused(text) == [sentence]


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "i.json"
    path.write_text("\ufeff" + json.dumps(row()), encoding="utf-8")
    assert read_instance(path, "total").nodes == ((7,), (3,), (5,))
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not JSON: it is not UTF-8 text"):
        read_instance(path)
    with pytest.raises(InputError, match=r"none\.json: no such file"):
        read_instance(tmp_path / "none.json")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_instance(tmp_path)


def symmetric(problem: Problem) -> Problem:
    """The same with what the format can say: both ways cost the same, no launch."""
    devices = problem.devices
    return replace(
        problem,
        seconds=np.column_stack([problem.seconds[:, 0], *[problem.seconds[:, 1]] * devices]),
        to_device=np.repeat(problem.to_device[:, :1], devices, axis=1),
        to_host=np.repeat(problem.to_device[:, :1], devices, axis=1),
        launch=np.zeros(devices),
        connected=np.zeros(devices, np.bool_),
    )


@thorough
@given(problems(most_units=5, devices=st.integers(1, 2)))
def test_there_and_back(problem: Problem) -> None:
    """Units keep their costs, and what one placement costs in one it costs in the other."""
    problem = symmetric(problem)
    text = json.dumps(instance_document(problem), allow_nan=False)
    instance = parse_instance(text.encode(), Path("back"), "total")
    unit_of = {number: unit for unit, ids in enumerate(instance.nodes) for number in ids}
    back = instance.problem
    ours, theirs = SlowCost(problem), SlowCost(back)
    best = inf
    for labels in every_labels(problem):
        other = [0] * back.units  # what stands for inputs and outputs is on the host
        for unit, label in enumerate(labels):
            other[unit_of[unit]] = label
        assert theirs(tuple(other)) == pytest.approx(ours(labels), rel=1e-12, abs=1e-18)
        best = min(best, ours(labels))
    assert slow_optimum(problem) == best
    for unit in range(problem.units):
        there = back.seconds[unit_of[unit]]
        assert there == pytest.approx(problem.seconds[unit], rel=1e-15)


def test_there_and_back_is_the_same_where_nothing_is_added() -> None:
    given = parsed(row()).problem
    again = parse_instance(json.dumps(instance_document(given)).encode(), Path("again"), "total").problem
    assert again.seconds.tolist() == given.seconds.tolist()
    assert again.to_host.tolist() == given.to_host.tolist()
    assert again.memory.tolist() == given.memory.tolist()
    assert again.capacity.tolist() == given.capacity.tolist()


def test_tensors_that_cannot_be_moved_become_a_class() -> None:
    nodes = [node(0, colorClass=1), node(1, colorClass=2), node(2, colorClass=2), node(3, colorClass=1)]
    given = parsed(document(nodes, [edge(0, 1), edge(1, 2), edge(2, 3)]))
    again = parse_instance(json.dumps(instance_document(given.problem)).encode(), Path("again"), "total")
    assert again.notes == given.notes
    cost = SlowCost(again.problem)
    assert sum(cost(labels) < inf for labels in every_labels(again.problem)) == 4


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"launch": np.ones(2)}, "launch cost"),
        ({"connected": np.array([True, False])}, "regions that must be connected"),
        ({"must": np.array([True, False, False])}, "units that must be on an accelerator"),
        ({"min_nodes": np.array([2, 0])}, "least or most nodes of a region"),
        ({"max_regions": np.array([2, 5])}, "most regions of an accelerator"),
        ({"fusions": (Fusion((0, 1), 1, 0.5),)}, "fusions"),
        ({"capacity": np.array([1.0, 2.0])}, "accelerators that differ"),
        ({"to_host": np.ones((4, 2))}, "transfers that cost more one way than the other, or to one "
         "accelerator than to another"),
    ],
)  # fmt: skip
def test_what_the_format_cannot_say(change: dict[str, Any], sentence: str) -> None:
    plain = symmetric(random_problem(1, 3, 2))
    plain = replace(plain, seconds=np.array([[2.0, 1.0, 1.0]] * 3))
    with pytest.raises(InputError) as caught:
        instance_document(replace(plain, **change))
    assert str(caught.value) == f"the benchmark's format has no {sentence}"
    assert instance_document(plain)["maxFPGAs"] == 2


def test_a_chain_is_written_as_nodes_and_edges() -> None:
    written = instance_document(chain([0.004], [0.001], down=0.5, up=0.5))
    assert [entry["supportedOnFpga"] for entry in written["nodes"]] == [True, False, False]
    assert [entry["cpuLatency"] for entry in written["nodes"]] == [4.0, 0.0, 0.0]
    assert written["edges"] == [
        {"sourceId": 1, "destId": 0, "cost": 500.0},
        {"sourceId": 0, "destId": 2, "cost": 500.0},
    ]
