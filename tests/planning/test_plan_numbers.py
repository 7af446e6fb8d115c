"""Numbers of plans and what is known of targets, compared with short independent statements."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from helpers.support import VANILLA, parse
from hypothesis import given
from hypothesis import strategies as st

import byoc
from byoc.planning import RegionMemory
from byoc.planning import _memory_fit as memory_fit
from byoc.planning._plan_settings import KnownLimits, SizeLimit
from byoc.planning._saved_placement import _number_names, sign_nodes

BODIES = """
bodies (float[1, 64] x, bool c) => (float[1, 64] y) {
  a = Relu (x)
  b = If <then_branch = t () => (float[1, 64] u) { s = Neg (a) u = Relu (s) },
          else_branch = e () => (float[1, 64] v) { v = Sin (a) }> (c)
  d = Sin (b)
  y = Relu (d)
}
"""
CHAIN = "chain (float[4] x) => (float[4] y) { [one] a = Relu (x) b = Neg (a) [three] y = Relu (b) }"
SIZES = st.none() | st.integers(0, 2)
TARGETS = st.lists(st.sampled_from(["one", "two"]), max_size=3)
NAMES = st.lists(st.sampled_from(["one", "b", "three", "y", "nobody", ""]), unique=True)


def test_operations_of_a_graph_are_those_of_units_without_bodies() -> None:
    plan = byoc.partition(parse(BODIES), VANILLA, strategy="all-supported").plan
    for graph in plan.root.walk():
        done = total = 0.0
        for row, unit in enumerate(graph.units):
            count = float(graph.graph_problem.operations[row])
            if unit.nodes[0] in graph.bodies and graph.placement.labels[row] == 0:
                continue
            total += count
            done += count * bool(graph.placement.labels[row])
        assert graph.operations == (done, total)
        assert 0 <= done <= total
    done, total = plan.root.operations
    assert 0 < done < total


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
