"""Regions: acyclic, as few as can be, in launching order."""

from dataclasses import replace

import numpy as np
from helpers.placement_oracle import (
    fewest_regions,
    labelled,
    problems,
    slow_edges,
    slow_is_acyclic,
    thorough,
)
from hypothesis import given
from hypothesis import strategies as st
from placement_searches import form_regions, is_contraction_acyclic

from byoc.placement import Problem


def graph(units: int, edges: list[tuple[int, int]], devices: int = 1) -> Problem:
    return Problem.build(
        seconds=np.ones((units, 1 + devices)),
        producer=[u for u, _ in edges],
        consumers=[[v] for _, v in edges],
        is_output=[False] * len(edges),
        to_device=np.ones((len(edges), devices)),
        to_host=np.ones((len(edges), devices)),
        launch=np.ones(devices),
    )


def regions_of(problem: Problem, *labels: int) -> list[int]:
    return [int(region) for region in form_regions(problem, np.array(labels, np.int64))]


def connected(problem: Problem, *devices: bool) -> Problem:
    return replace(problem, connected=np.array(devices, np.bool_))


def test_disconnected_branches_share_a_phase_only() -> None:
    branches = graph(4, [(0, 1), (0, 2), (1, 3), (2, 3)])
    assert regions_of(branches, 0, 1, 1, 0) == [-1, 0, 0, -1]
    assert regions_of(connected(branches, True), 0, 1, 1, 0) == [-1, 0, 1, -1]
    assert regions_of(connected(branches, True), 1, 1, 1, 1) == [0, 0, 0, 0]


def test_a_unit_after_the_host_needs_a_launch_of_its_own() -> None:
    triangle = graph(3, [(0, 1), (0, 2), (1, 2)])
    assert regions_of(triangle, 1, 0, 1) == [0, -1, 1]
    assert regions_of(triangle, 1, 1, 1) == [0, 0, 0]
    assert regions_of(triangle, 0, 0, 0) == [-1, -1, -1]


def test_a_neighbour_in_another_phase_does_not_connect() -> None:
    shared_reader = connected(graph(4, [(0, 3), (1, 2), (1, 3), (2, 3)]), True)
    assert regions_of(shared_reader, 1, 1, 0, 1) == [0, 1, -1, 2]


def test_numbers_follow_launches_not_units() -> None:
    late_first = graph(4, [(0, 1), (1, 2)])
    assert regions_of(late_first, 1, 0, 1, 1) == [0, -1, 1, 0]
    assert regions_of(connected(late_first, True), 1, 0, 1, 1) == [0, -1, 2, 1]


def test_regions_each_convex_but_mutually_cyclic_are_told_apart() -> None:
    crossing = graph(4, [(0, 1), (2, 3)], devices=2)
    assert not is_contraction_acyclic(crossing, np.array([0, 1, 1, 0]))
    regions = regions_of(crossing, 1, 2, 2, 1)
    assert len(set(regions)) == 3


def test_the_device_that_goes_first_is_chosen() -> None:
    """Device 2 must run before device 1 at one unit, so device 1's other unit waits for it."""
    problem = graph(3, [(0, 1)], devices=2)
    assert regions_of(problem, 2, 1, 1) == [0, 1, 1]
    assert regions_of(problem, 1, 2, 2) == [0, 1, 1]


def test_no_units() -> None:
    problem = graph(0, [])
    assert regions_of(problem) == []
    assert is_contraction_acyclic(problem, np.zeros(0, np.int64))


@thorough
@given(labelled())
def test_contraction_is_acyclic_and_launchable(case: tuple[Problem, np.ndarray]) -> None:
    problem, labels = case
    regions = form_regions(problem, labels)
    assert regions.dtype == np.int64
    assert ((regions >= 0) == (labels > 0)).all()
    assert is_contraction_acyclic(problem, regions)
    assert slow_is_acyclic(problem, regions.tolist())
    # All that a region needs, by whatever path, is launched before it.
    latest = [-1] * problem.units
    for u, v in sorted(slow_edges(problem), key=lambda edge: edge[1]):
        latest[v] = max(latest[v], latest[u], regions[u])
        if regions[v] >= 0:
            assert latest[v] <= regions[v]
    numbers = sorted(set(regions.tolist()) - {-1})
    assert numbers == list(range(len(numbers)))
    for number in numbers:
        assert len(set(labels[regions == number])) == 1


@thorough
@given(labelled())
def test_connected_regions_are_connected_pieces_of_phases(
    case: tuple[Problem, np.ndarray],
) -> None:
    problem, labels = case
    everywhere = np.ones(problem.devices, np.bool_)
    pieces = form_regions(replace(problem, connected=everywhere), labels).tolist()
    for number in set(pieces) - {-1}:
        members = {unit for unit, region in enumerate(pieces) if region == number}
        reached = {min(members)}
        for _ in members:
            for u, v in slow_edges(problem):
                if {u, v} <= members and {u, v} & reached:
                    reached |= {u, v}
        assert reached == members


@thorough
@given(labelled(most_units=8))
def test_phases_are_the_fewest(case: tuple[Problem, np.ndarray]) -> None:
    """The least number with one accelerator; at most `devices` times that with several."""
    problem, labels = case
    alike = replace(
        problem,
        connected=np.zeros(problem.devices, np.bool_),
        launch=np.ones(problem.devices),
    )
    count = int(form_regions(alike, labels).max(initial=-1)) + 1
    fewest = fewest_regions(alike, labels.tolist())
    assert fewest <= count <= fewest * max(1, len(set(labels.tolist()) - {0}))


@thorough
@given(problems(devices=st.just(0)), st.data())
def test_the_check_agrees_with_kahn_on_any_regions(problem: Problem, data: st.DataObject) -> None:
    anywhere = st.lists(st.integers(-1, 3), min_size=problem.units, max_size=problem.units)
    regions = np.array(data.draw(anywhere), np.int64)
    assert is_contraction_acyclic(problem, regions) == slow_is_acyclic(problem, regions.tolist())
