"""What is asked of the placement, round by round, until regions fit into memory: exact numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from helpers.support import VANILLA, parse
from hypothesis import given
from hypothesis import strategies as st

import byoc
from byoc.costs import PlacementDevice
from byoc.errors import InputError
from byoc.placement import Placement, Problem
from byoc.planning import RegionMemory
from byoc.planning import _memory_fit as memory_fit
from byoc.planning import _memory_fit as module
from byoc.planning._memory_fit import Constraints, FittedPlacement, RegionArena, fit_memory
from byoc.planning._plan_settings import KnownLimits, SizeLimit
from byoc.planning._saved_placement import _number_names, sign_nodes


@dataclass
class Arenas:
    """Arenas of units that lie beside one another; the largest unit is the fullest."""

    sizes: Sequence[int]
    reason: str = ""

    @property
    def units(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=f"u{row}") for row in range(len(self.sizes))]

    def plan_arena(self, rows: Sequence[int]) -> RegionArena:
        return RegionArena(sum(self.sizes[row] for row in rows), max(rows, key=self.sizes.__getitem__))


def make_devices(*memory: float) -> list[PlacementDevice]:
    costs = cast("Any", None)
    return [PlacementDevice(f"d{number}", costs, memory=each) for number, each in enumerate(memory, 1)]


def pose(
    constants: Sequence[Sequence[float]], must: Sequence[int] = (), not_taken: Sequence[int] = ()
) -> Problem:
    """Return a problem of units without tensors, that take a second on the host and none elsewhere.

    The last device takes none of `not_taken`.
    """
    memory = np.array(constants, np.float64)
    units, devices = memory.shape
    seconds = np.hstack([np.ones((units, 1)), np.zeros((units, devices))])
    seconds[list(not_taken), -1] = np.inf
    return Problem.build(
        seconds=seconds,
        producer=[],
        consumers=[],
        is_output=[],
        to_device=np.zeros((0, devices)),
        to_host=np.zeros((0, devices)),
        launch=np.zeros(devices),
        memory=memory,
        must=[row in must for row in range(units)],
    )


Place = Callable[[Constraints], Placement]


def place_all(problem: Problem, bound: float | None = None) -> Place:
    """Return a placement of each unit on the first device that takes it: one region for each device."""

    def place(constraints: Constraints) -> Placement:
        labels = np.zeros(problem.units, np.int64)
        for row in range(problem.units):
            for device, (refused, room) in enumerate(
                zip(constraints.refused, constraints.capacity, strict=True)
            ):
                taken = problem.memory[labels == 1 + device, device].sum()
                if row not in refused and taken + problem.memory[row, device] <= room:
                    labels[row] = 1 + device
                    break
        return Placement.from_labels(problem, labels, bound)

    return place


def fit(
    arenas: Arenas, devices: list[PlacementDevice], problem: Problem, place: Place
) -> tuple[FittedPlacement, list[Constraints]]:
    """Return the result of a search, and the constraints that it asked for."""
    search = fit_memory(cast("Any", arenas), devices)
    asked, found = [], next(search)
    while isinstance(found, Constraints):
        asked.append(found)
        found = search.send((place(found), problem))
    assert next(search, None) is None
    return found, asked


def refused(constraints: Constraints) -> list[dict[int, str]]:
    return [{row: str(cause) for row, cause in each.items()} for each in constraints.refused]


def test_without_a_limit_the_first_placement_counts() -> None:
    problem = pose([[9.0], [9.0]])
    found, asked = fit(Arenas([5, 5], "nobody asks"), make_devices(inf), problem, place_all(problem))
    assert [(refused(each), each.capacity) for each in asked] == [([{}], (inf,))]
    assert (found.placement.labels.tolist(), found.notes) == ([1, 1], ())


def test_arenas_that_are_not_known_leave_a_note() -> None:
    problem = pose([[9.0], [9.0]])
    found, asked = fit(Arenas([50, 50], "no shape"), make_devices(18), problem, place_all(problem))
    assert len(asked) == 1
    assert found.placement.labels.tolist() == [1, 1]
    assert found.notes == ("limits.memory holds for constants alone: no shape",)


@pytest.mark.parametrize("first", [inf, 100.0])
def test_what_does_not_fit_alone_is_refused_with_its_bytes(first: float) -> None:
    """A device without a limit before it changes nothing; what just fits stays."""
    problem = pose([[3.0, 4.0], [3.0, 5.0], [0.0, 11.0], [0.0, 12.0]], not_taken=[3])
    arenas = Arenas([6, 6, 0, 0])
    _, asked = fit(arenas, make_devices(first, 10), problem, place_all(problem))
    assert refused(asked[1]) == [
        {},
        {
            1: "limits.memory: it needs 5 bytes for constants and 6 bytes for activations, and d2 has "
            "10 bytes",
            2: "limits.memory: it needs 11 bytes for constants and 0 bytes for activations, and d2 has "
            "10 bytes",
        },
    ]


def test_room_for_constants_shrinks_or_the_fullest_unit_goes_and_the_cheaper_is_taken() -> None:
    problem = pose([[2.0], [2.0], [2.0]])
    arenas = Arenas([1, 3, 2])  # 6 bytes of constants and 6 of activations
    found, asked = fit(arenas, make_devices(11), problem, place_all(problem, bound=0.25))
    why = (
        "limits.memory: d1 would need 6 bytes for constants and 6 bytes for activations at once, and "
        "has 11 bytes"
    )
    assert [(refused(each), each.capacity) for each in asked] == [
        ([{}], (11,)),
        ([{}], (11,)),
        ([{}], (5,)),  # two units, 4 bytes and an arena of 4
        ([{}], (11,)),
        ([{1: why}], (11,)),
    ]
    assert found.placement.labels.tolist() == [1, 1, 0]  # as cheap, and it came first
    assert found.constraints is asked[2]
    assert found.placement.bound == pytest.approx(0.25)
    free, asked = fit(arenas, make_devices(12), problem, place_all(problem))
    assert (free.placement.labels.tolist(), len(asked)) == ([1, 1, 1], 3)


def test_constants_of_what_has_to_be_there_keep_their_room() -> None:
    problem = pose([[500.0], [0.0]], must=[0])
    found, asked = fit(Arenas([100, 600]), make_devices(1000), problem, place_all(problem))
    assert {each.capacity for each in asked} == {(1000,)}  # 400 would leave no device to unit 0
    assert found.placement.labels.tolist() == [1, 0]


@pytest.mark.parametrize(("arena", "row"), [(4, 2), (3, 1), (0, 1)])
def test_units_go_where_the_arena_alone_takes_all(arena: int, row: int) -> None:
    """And constants cannot get room: then the unit that runs where it is fullest goes first."""
    problem = pose([[1.0], [1.0], [1.0]])
    _, asked = fit(Arenas([2, 3, arena]), make_devices(5), problem, place_all(problem))
    assert [*refused(asked[2])[0]] == [row]
    assert asked[2].capacity == (5,)


def test_the_first_device_that_is_too_full_is_looked_at_by_its_own_regions() -> None:
    problem = pose([[0.0, 0.0]] * 4)
    arenas = Arenas([3, 4, 2, 5])

    def place(constraints: Constraints) -> Placement:
        wanted = [1, 1, 2, 2]
        kept = [
            0 if row in constraints.refused[label - 1] else label for row, label in enumerate(wanted)
        ]
        return Placement.from_labels(problem, np.array(kept, np.int64))

    found, asked = fit(arenas, make_devices(7, 6), problem, place)
    assert [[*map(sorted, refused(each))] for each in asked[:3]] == [[[], []], [[], []], [[], [3]]]
    assert found.placement.labels.tolist() == [1, 1, 2, 0]
    _, asked = fit(arenas, make_devices(6, 6), problem, place)
    assert [[*map(sorted, refused(each))] for each in asked[2:4]] == [[[1], []], [[1], [3]]]


def test_after_some_rounds_everything_goes_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = pose([[0.0]] * 5)
    for rounds, left in ((0, []), (1, []), (2, [0, 1, 2]), (3, [0, 1, 2])):
        monkeypatch.setattr(module, "_ROUNDS", rounds)
        found, _ = fit(Arenas([1, 1, 1, 2, 2]), make_devices(3), problem, place_all(problem))
        assert np.flatnonzero(found.placement.labels).tolist() == left


def test_what_has_to_be_there_and_does_not_fit_is_told_with_the_reason() -> None:
    problem = pose([[1.0], [1.0], [1.0]], must=[1])
    with pytest.raises(InputError) as caught:
        fit(Arenas([2, 3, 1]), make_devices(3), problem, place_all(problem))
    assert str(caught.value) == (
        "unit 'u1' has to be on an accelerator (level: must): limits.memory: it needs 1 bytes for "
        "constants and 3 bytes for activations, and d1 has 3 bytes"
    )
    problem = pose([[1.0, 1.0], [1.0, 1.0]], must=[1])

    def place(constraints: Constraints) -> Placement:
        labels = np.array([1, 0 if 1 in constraints.refused[1] else 2])
        return Placement.from_labels(problem, labels)

    with pytest.raises(InputError, match=r"^unit 'u1' has to .* 9 bytes for activations, and d2 has 9 "):
        fit(Arenas([0, 9]), make_devices(99, 9), problem, place)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6),
    st.tuples(st.integers(0, 30), st.sampled_from([0, 5, 12, inf])),
)
def test_all_results_fit_and_units_are_refused_for_a_reason_alone(
    rows: list[tuple[int, int, int]], memory: tuple[float, float]
) -> None:
    problem = pose([row[:2] for row in rows])
    arenas, devices = Arenas([row[2] for row in rows]), make_devices(*memory)
    found, asked = fit(arenas, devices, problem, place_all(problem))
    for device, most in enumerate(memory):
        here = np.flatnonzero(found.placement.labels == 1 + device).tolist()
        arena = sum(rows[row][2] for row in here)
        assert sum(rows[row][device] for row in here) + arena <= most
        alone = {row for row, each in enumerate(rows) if each[device] + each[2] > most}
        assert alone == set(asked[1].refused[device] if len(asked) > 1 else ())


CHAIN = "chain (float[4] x) => (float[4] y) { [one] a = Relu (x) b = Neg (a) [three] y = Relu (b) }"


SIZES = st.none() | st.integers(0, 2)


NAMES = st.lists(st.sampled_from(["one", "b", "three", "y", "nobody", ""]), unique=True)


@given(NAMES, SIZES)
def test_what_a_target_refuses_is_by_name_by_output_and_by_size(
    names: Sequence[str], size: int | None
) -> None:
    plan = byoc.partition(parse(CHAIN), VANILLA, strategy="host-only").plan
    units = plan.root.units
    limits = KnownLimits()
    if names:
        limits = limits.with_refused("npu", names, "refused")
    if size is not None:
        limits = limits.with_size("npu", SizeLimit(size, "too large"))
    nodes = plan.root.index.nodes
    expected = {}
    for row, unit in enumerate(units):
        own = [{nodes[node].name or nodes[node].output[0], nodes[node].output[0]} for node in unit.nodes]
        if "" in names or any(set(names) & each for each in own):
            expected[row] = "refused"
        elif size is not None and len(unit.nodes) > size:
            expected[row] = "too large"
    found = limits.refused_rows(plan.root.index, "", units, "npu")
    assert {row: str(cause) for row, cause in found.items()} == expected
    assert limits.refused_rows(plan.root.index, "", units, "other") == {}


def test_names_without_text_stand_for_no_node() -> None:
    index = byoc.partition(parse(CHAIN), VANILLA, strategy="host-only").plan.root.index
    found = _number_names(iter([(index, "", {0: "one", 1: ""}), (index, "Loop/body", {2: "one"})]))
    assert {name: number for name, (_, number) in found.items()} == {"one": 0, "Loop/body/one": 2}


def test_signatures_have_an_operator_and_two_hashes_of_twelve_digits() -> None:
    index = byoc.partition(parse(CHAIN), VANILLA, strategy="host-only").plan.root.index
    signatures = sign_nodes(index)
    assert len({*signatures.values()}) == 3
    for number, sign in signatures.items():
        operator, *hashes = sign.split("-")
        assert operator == index.nodes[number].op_type
        assert [len(each) for each in hashes] == [12, 12]
        assert all(set(each) <= set("0123456789abcdef") for each in hashes)


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(["one", "two"]), max_size=3), st.integers(0, 9), st.integers(0, 9)
        ),
        min_size=1,
        max_size=3,
    ),
    st.integers(0, 4),
    st.integers(0, 30) | st.just(float("inf")),
)
def test_all_graphs_together_keep_to_an_accelerators_limits(
    drawn: list[tuple[list[str], int, int]], most: int, memory: float
) -> None:
    graphs = [
        SimpleNamespace(
            regions=[
                SimpleNamespace(
                    target=SimpleNamespace(name=name),
                    memory=None if name == "two" else RegionMemory(constants, arena),
                )
                for name in names
            ]
        )
        for names, constants, arena in drawn
    ]
    plan: Any = SimpleNamespace(walk=lambda: iter(graphs))
    limits: Any = [
        SimpleNamespace(name="two", max_regions=9, memory=float("inf")),
        SimpleNamespace(name="one", max_regions=most, memory=memory),
    ]
    count = sum(name == "one" for names, _, _ in drawn for name in names)
    needs = [need for names, *need in drawn for name in names if name == "one"]
    total = sum(constants for constants, _ in needs) + max((arena for _, arena in needs), default=0)
    expected = ""
    if count > most:
        expected = f"one would have {count} regions of at most {most}"
    elif len(drawn) > 1 and total > memory:
        expected = f"one would hold {total} bytes of at most {memory}"
    assert memory_fit.describe_excess(plan, limits) == expected
