"""Joining nodes without cycles, compared with the explicit contracted graph; and its work."""

import random
from collections.abc import Iterable, Mapping, Sequence

import pytest
from helpers.support import count_calls, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import NodeProto, helper

from byoc.errors import YES
from byoc.model import GraphIndex
from byoc.patterns import ContractionOrder, Mark, Unit, group_units, parse_pattern


def index_of(nodes: Sequence[NodeProto]) -> GraphIndex:
    x = helper.make_tensor_value_info("x", 1, [2])
    return GraphIndex(helper.make_model(helper.make_graph(nodes, "g", [x], [])), {})


def random_index(size: int, chance: random.Random) -> GraphIndex:
    names, nodes = ["x"], []
    for number in range(size):
        recent = names[-5:] if chance.random() < 0.6 else names
        nodes.append(helper.make_node("Sum", chance.choices(recent, k=2), [f"t{number}"]))
        names.append(f"t{number}")
    return index_of(nodes)


def circular(index: GraphIndex, one: Mapping[int, int]) -> bool:
    """Return whether the units that nodes were joined to wait for one another."""
    waits: dict[int, set[int]] = {one[number]: set() for number in range(len(index.nodes))}
    for name, users in index.consumers.items():
        for user in users if name in index.producers else ():
            waits[one[user]] |= {one[index.producers[name]]} - {one[user]}
    while ready := [unit for unit, others in waits.items() if not others & waits.keys()]:
        for unit in ready:
            del waits[unit]
    return bool(waits)


def is_sorted(index: GraphIndex, order: ContractionOrder, one: Mapping[int, int]) -> bool:
    """Return whether units have a position each, behind those of the units that they wait for."""
    places = order.position
    alike = all(places[node] == places[unit] for node, unit in one.items())
    return alike and all(
        one[index.producers[name]] == one[user] or places[index.producers[name]] < places[user]
        for name, users in index.consumers.items()
        for user in users
        if name in index.producers
    )


def merge_nodes(one: Mapping[int, int], nodes: Iterable[int]) -> dict[int, int]:
    units = {one[node] for node in nodes}
    return {node: min(units) if unit in units else unit for node, unit in one.items()}


@settings(deadline=None, max_examples=examples(400))
@given(st.integers(2, 40), st.randoms(use_true_random=False))
def test_joining_makes_no_circle_and_refuses_nothing_else(size: int, chance: random.Random) -> None:
    index = random_index(size, chance)
    order = ContractionOrder(index)
    one = {number: number for number in range(size)}
    for _ in range(size):
        near = chance.randrange(size)
        nodes = {
            near,
            *(min(size - 1, near + chance.randrange(12)) for _ in range(chance.randint(1, 3))),
        }
        after = merge_nodes(one, nodes)
        back = circular(index, after)
        assert (order.find_returning_node(nodes) is not None) == back
        found = order.join(nodes)
        assert (found is not None) == back
        if found is None:
            one = after
        else:
            assert found not in nodes
        assert is_sorted(index, order, one)


def test_readers_that_share_a_position_are_all_found() -> None:
    """Joining n0 with n5 separates positions: n8, which reads n2 as n3 does, hid n3 behind it."""
    inputs = ["x x", "x x", "t0 x", "x t2", "t1 t1", "t4 t0", "t2 t1", "t3 t2", "t2 t1"]
    nodes = [helper.make_node("Sum", names.split(), [f"t{i}"]) for i, names in enumerate(inputs)]
    order = ContractionOrder(index_of(nodes))
    assert order.join({0, 5}) is None
    assert order.position[2] < order.position[3]
    assert order.find_returning_node({2, 7}) == 3


MOST = 300
"""Calls of functions for each node while a graph is grouped, twice what is usual."""


@pytest.mark.parametrize("count", [5_000, 20_000])
def test_one_tensor_with_many_readers(count: int) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["r"])]
    nodes += [helper.make_node(("Neg", "Abs")[i % 2], ["r"], [f"f{i}"]) for i in range(count)]
    assert count_composites(index_of(nodes), "r = Relu(x)\na = Neg(r)\nb = Abs(r)\nreturn r, a, b") == 1


@pytest.mark.parametrize("far", [False, True])
def test_a_long_chain_with_a_reader_of_each(far: bool) -> None:
    chain = [helper.make_node("Relu", [f"a{i}" if i else "x"], [f"a{i + 1}"]) for i in range(5_000)]
    sides = [helper.make_node("Neg", [f"a{i + 1}"], [f"b{i}"]) for i in range(5_000)]
    mixed = [node for pair in zip(chain, sides, strict=True) for node in pair]
    index = index_of([*chain, *sides] if far else mixed)
    assert count_composites(index, "a = Relu(x)\nb = Neg(a)\nreturn a, b") == 5_000


def test_a_chain_and_many_nodes_beside_it() -> None:
    chain = [helper.make_node("Relu", [f"a{i}" if i else "x"], [f"a{i + 1}"]) for i in range(5_000)]
    beside = [helper.make_node("Neg", ["x"], [f"b{i}"]) for i in range(5_000)]
    assert count_composites(index_of([*chain, *beside]), "a = Relu(x)\nb = Neg(x)\nreturn a, b") == 1


def count_composites(index: GraphIndex, text: str) -> int:
    """Count the composites, in work linear in the nodes; each model once took half a minute and more."""
    units: list[Unit] = []

    def group() -> None:
        marks = [Mark(YES, "ops[0]")] * len(index.nodes)
        units.extend(group_units(index, [parse_pattern("p", text)], marks))

    assert count_calls(group, most=MOST * len(index.nodes)) > len(index.nodes)
    return sum(unit.kind == "composite" for unit in units)
