"""What an instance of the benchmark may ask for, and what it may not: sentences, limits, cores."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.placement_random import random_problem

from byoc.errors import InputError
from byoc.placement import UNLIMITED, Measure
from byoc.placement.strategies import HostOnly
from byoc.planning import (
    PlacementInstance,
    format_problem,
    parse_instance,
    read_instance,
    solve_instance,
)


def node(number: int, **other: Any) -> dict[str, Any]:
    values = {"supportedOnFpga": True, "cpuLatency": 8.0, "fpgaLatency": 1.0, "size": 2.0}
    return {"id": number, "isBackwardNode": False, **values, **other}


def parse(
    *nodes: dict[str, Any], objective: str | None = None, most: int | None = None, **head: Any
) -> PlacementInstance:
    document = {"maxSizePerFPGA": 10.0, "maxFPGAs": 1, "maxCPUs": 1, "edges": []}
    text = json.dumps({**document, "nodes": nodes, **head})
    return parse_instance(text.encode(), Path("i"), objective, most)


def refusal(*nodes: dict[str, Any], objective: str | None = None, **head: Any) -> str:
    with pytest.raises(InputError) as caught:
        parse(*nodes, objective=objective, **head)
    return str(caught.value)


FORWARD, BACKWARD = [node(1), node(2)], [node(1), node(2, isBackwardNode=True)]


def test_training_is_for_throughput_and_inference_asks() -> None:
    assert parse(*BACKWARD).objective.value == "throughput"
    assert refusal(*FORWARD) == (
        "i: an instance of inference does not say what it asks for: choose the objective latency, "
        "throughput or total"
    )
    for name in ("latency", "throughput", "total"):
        assert parse(*FORWARD, objective=name).objective.value == name
    for name in ("throughput", "total"):
        assert parse(*BACKWARD, objective=name).objective.value == name
    assert refusal(*BACKWARD, objective="latency") == (
        "i: nodes[1].isBackwardNode: the latency is that of inference, and this is an instance of "
        "training: choose the objective throughput or total"
    )
    assert refusal(*FORWARD, objective="totla") == (
        "objective totla: no such objective (did you mean total?); known: latency, throughput, total"
    )


def test_each_objective_has_a_measure_and_a_strategy() -> None:
    kinds = type(parse(*BACKWARD).objective)
    known = {each.value: (each.measure, each.strategy) for each in kinds}
    assert known == {
        "latency": (Measure.makespan, "makespan"),
        "throughput": (Measure.load, "throughput"),
        "total": (Measure.total, "launch-aware"),
    }


def test_without_cores_each_node_needs_an_accelerator() -> None:
    host_only = node(2, supportedOnFpga=False)
    for objective in ("latency", "total"):
        assert not parse(node(1), host_only, objective=objective, maxCPUs=0).problem.must.any()
    assert parse(*FORWARD, objective="throughput", maxCPUs=0).problem.must.all()
    assert not parse(*FORWARD, objective="throughput", maxCPUs=1).problem.must.any()
    assert refusal(node(1), host_only, objective="throughput", maxCPUs=0) == (
        "i: maxCPUs is 0, and node 2 runs on no accelerator"
    )
    assert refusal(node(1), objective="throughput", maxCPUs=0, maxFPGAs=0) == (
        "i: maxCPUs is 0, and there is no accelerator"
    )
    large = [node(1, size=10.0), node(2, size=5.0, colorClass=7), node(3, size=5.5, colorClass=7)]
    assert refusal(*large, objective="throughput", maxCPUs=0) == (
        "i: maxCPUs is 0, and node 2 fits no accelerator: its colour class has 10.5 bytes, and "
        "maxSizePerFPGA is 10"
    )
    larger = [*large, node(4, size=99.0)]
    assert "and node 2 fits" in refusal(*larger, objective="throughput", maxCPUs=0)
    assert parse(*large[:2], objective="throughput", maxCPUs=0).problem.units == 2  # just fits
    assert parse(*large, objective="throughput", maxCPUs=1).problem.units == 2


@pytest.mark.parametrize(
    ("cores", "devices"), [(0, 0), (1, 0), (2, 1), (256, 255), (257, 255), (9999, 255)]
)
def test_cores_beyond_the_first_are_devices_of_the_throughput(cores: int, devices: int) -> None:
    instance = parse(*FORWARD, objective="throughput", maxCPUs=cores)
    problem = instance.problem
    assert problem.devices == 1 + devices
    assert instance.cores == {0, *range(2, 2 + devices)}
    assert problem.cores == 1
    assert (problem.seconds[:, 2:] == problem.seconds[:, :1]).all()
    assert problem.capacity.tolist() == [10.0] + [np.inf] * devices
    assert (problem.memory[:, 1:] == 0).all()
    assert problem.max_regions.tolist() == [UNLIMITED] * (1 + devices)
    assert problem.seconds[:, 1].tolist() == [0.001, 0.001]
    for objective, own in (("latency", UNLIMITED), ("total", 1)):
        other = parse(*FORWARD, objective=objective, maxCPUs=cores)
        assert (other.problem.devices, other.problem.cores, other.cores) == (1, own, {0})


def test_regions_are_limited_on_accelerators_alone() -> None:
    problem = parse(*FORWARD, objective="throughput", most=3, maxCPUs=2, maxFPGAs=2).problem
    assert problem.max_regions.tolist() == [3, 3, UNLIMITED]
    assert parse(*FORWARD, objective="total", most=1 << 80).problem.max_regions.tolist() == [UNLIMITED]


def test_pairs_of_nodes_and_devices_are_limited() -> None:
    most = 1 << 22
    many = [
        node(number) for number in range(most // 256 - 63)
    ]  # with 256 devices and the host, too many
    assert 256 * len(many) < most < 257 * len(many)
    assert parse(*many, objective="total", maxFPGAs=255).problem.devices == 255
    for objective, head in (
        ("total", {"maxFPGAs": 256}),
        ("throughput", {"maxFPGAs": 255, "maxCPUs": 2}),
    ):
        assert refusal(*many, objective=objective, **head) == (
            f"i: {len(many)} nodes and 257 devices: more than {most} pairs of both"
        )


def test_a_file_may_be_as_large_as_the_limit(tmp_path: Path) -> None:
    most = 1 << 28
    path = tmp_path / "i"
    with path.open("wb") as file:
        file.write(b"\xff")
        file.flush()
        file.truncate(most)  # by zeros, of which the disk stores none
        with pytest.raises(InputError, match=r"i: not JSON: it is not UTF-8 text"):
            read_instance(path)
        file.truncate(most + 1)
    for place, sentence in (
        (path, f"cannot be read: it has more than {most} bytes"),
        (tmp_path / "gone", "no such file"),
        (tmp_path, "cannot be read: Is a directory"),
        (Path("x\0"), "cannot be read: embedded null byte"),
    ):
        with pytest.raises(InputError) as caught:
            read_instance(place)
        assert str(caught.value) == f"{place}: {sentence}".replace("\0", r"\x00")


def edge(source: int, target: int, cost: float) -> dict[str, Any]:
    return {"sourceId": source, "destId": target, "cost": cost}


@pytest.mark.parametrize(
    ("other", "same"), [(2.0, True), (2.0 + 9e-7, True), (2.0 + 2e-6, False), (1.9, False)]
)
def test_what_a_node_makes_has_one_cost(other: float, same: bool) -> None:
    edges = [edge(1, 2, 2.0), edge(1, 3, other)]
    nodes = [node(1), node(2), node(3)]
    if same:
        problem = parse(*nodes, objective="total", edges=edges).problem
        assert problem.to_device.tolist() == [[pytest.approx(0.002, abs=1e-8)]]
        return
    assert refusal(*nodes, objective="total", edges=edges).startswith(
        f"i: edges[1].cost: {other:g}, but edges[0] out of the same node, 1, costs 2: what a node makes"
    )


def test_a_circle_names_its_first_five_nodes() -> None:
    nodes = [node(number) for number in range(1, 9)]
    for length, named in ((1, "1"), (2, "1, 2"), (5, "1, 2, 3, 4, 5"), (7, "1, 2, 3, 4, 5")):
        edges = [edge(each, each % length + 1, 1.0) for each in range(1, length + 1)]
        assert refusal(*nodes, objective="total", edges=edges) == (
            f"i: edges: they form a circle through node {named}"
        )


@pytest.mark.parametrize("most", [None, 0, 1, 5])
@pytest.mark.parametrize("objective", [None, "latency", "throughput"])
def test_a_problem_that_byoc_saved_is_read(objective: str | None, most: int | None) -> None:
    problem = random_problem(3, 8, frozenset({"two devices", "region count"}))
    names = [f"u{number}" for number in range(problem.units)]
    document = format_problem(
        problem, "m", "latency", ["a", "b"], names, [()] * len(names), ["t"] * problem.tensors
    )
    instance = parse_instance(json.dumps(document).encode(), Path("p"), objective, most)
    assert instance.nodes == tuple((name,) for name in names)
    assert instance.objective.value == (objective or "total")
    limits = [min(each, UNLIMITED if most is None else most) for each in problem.max_regions.tolist()]
    assert instance.problem.max_regions.tolist() == limits
    assert (instance.cores, instance.notes) == ({0}, ())


def test_mistakes_of_a_saved_problem_name_its_file() -> None:
    problem = random_problem(3, 8, frozenset({"two devices"}))
    names = [f"u{number}" for number in range(problem.units)]
    document = format_problem(
        problem, "m", "latency", ["a", "b"], names, [()] * len(names), ["t"] * problem.tensors
    )
    for key, value, sentence in (
        ("version", 2, "version"),
        ("cores", 0, "cores"),
        ("fusions", [{"members": [0], "device": 1, "saving": 0.0}], "fusion 0: two members or more"),
    ):
        with pytest.raises(InputError, match=rf"^p: {sentence}"):
            parse_instance(json.dumps({**document, key: value}).encode(), Path("p"))


def test_what_a_saved_problem_leaves_out_limits_nothing() -> None:
    document = {
        "format": "byoc-placement-problem",
        "devices": [{"name": "a", "launch": 1.0}],
        "units": [{"name": "u", "costs": [2.0, None]}],
        "tensors": [{"producer": 0, "consumers": [], "to_device": [1.0], "to_host": [None]}],
    }
    problem = parse_instance(json.dumps(document).encode(), Path("p")).problem
    assert (problem.cores, problem.fusions) == (1, ())
    assert problem.seconds.tolist() == [[2.0, np.inf]]
    assert problem.to_host.tolist() == [[np.inf]]
    for name, value in (
        ("must", False),
        ("size", 1),
        ("connected", False),
        ("min_nodes", 0),
        ("max_nodes", UNLIMITED),
        ("max_regions", UNLIMITED),
        ("capacity", np.inf),
        ("is_output", False),
    ):
        assert getattr(problem, name).tolist() == [value]
    assert problem.memory.tolist() == [[0.0]]
    assert [each.value for each in problem.occupies] == ["nothing"]


@pytest.mark.parametrize(
    ("number", "fits"), [(2**62, True), (-(2**62), True), (2**62 + 1, False), (-(2**62) - 1, False)]
)
def test_an_id_is_a_number_of_so_many_bits(number: int, fits: bool) -> None:
    if fits:
        assert parse(node(number), objective="total").nodes == ((number,),)
    else:
        assert "nodes[0].id" in refusal(node(number), objective="total")


def test_classes_that_are_split_are_those_of_several_nodes() -> None:
    """1 and 3 are of a class with 2 between them; 2 is a class of its own, in the circle with them."""
    nodes = [node(1, colorClass=5), node(2, colorClass=6), node(3, colorClass=5)]
    edges = [edge(1, 2, 1.0), edge(2, 3, 1.0)]
    instance = parse(*nodes, objective="total", edges=edges)
    assert instance.nodes == ((1,), (2,), (3,))
    assert instance.notes == (
        "1 colour classes would wait for one another in a circle as one unit each: their 2 nodes are "
        "units of their own, held together by tensors that cannot be moved",
    )
    problem = instance.problem
    tied = np.isinf(problem.to_device[:, 0])
    assert problem.producer[tied].tolist() == [0]
    assert [problem.consumers[problem.consumer_start[row]] for row in np.flatnonzero(tied)] == [2]
    assert not parse(*nodes, objective="total", edges=edges[:1]).notes


def test_an_instance_of_nothing_has_no_regions() -> None:
    solved = solve_instance(parse(objective="total"), HostOnly(), "i")
    assert (solved["regions"], solved["objective_seconds"]) == (0, 0.0)
    assert [device["nodes"] for device in solved["devices"]] == [[], []]
