"""Blocks, names, hashes and problems of a graph, function by function, against short statements."""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from accelerators import Files
from helpers.placement_oracle import chain as make_row
from helpers.placement_random import random_problem
from helpers.support import parse, prepared
from hypothesis import given
from hypothesis import strategies as st
from onnx import AttributeProto, helper, numpy_helper

import byoc
from byoc.errors import YES, InputError, refuse
from byoc.patterns import JointUnit, Unit
from byoc.pipeline import PlanOptions, load_settings
from byoc.pipeline import _outlining as outlining
from byoc.placement import Fusion, Measure, Placement, Problem
from byoc.placement.strategies import HostOnly
from byoc.planning import (
    GraphPlan,
    annotate_graphs,
    build_main_problem,
    group_graphs,
    name_units,
    plan_graphs,
    price_placement,
)
from byoc.planning import _graph_plan as blocks
from byoc.planning._cleaned_graphs import _find_alternatives
from byoc.planning._graph_plan import find_borders
from byoc.planning._plan_settings import _all_names

LOOP = """net (float[1, 8] x, int64 n) => (float[1, 8] y) {
    keep = Constant <value_int = 1> ()
    go = Cast <to = 9> (keep)
    z = Neg(x)
    [again] w = Loop (n, go, z) <body = b (int64 i, bool c, float[1, 8] v) => (bool d, float[1, 8] u) {
        d = Identity(c)
        a = Neg(v)
        [deep] u = Abs(a)
    }>
    y = Neg(w)
}"""
SLOW = "overhead: 1.0e-3\n"


@pytest.fixture
def parts(tmp_path: Path) -> tuple[Any, Any, Any]:
    """An index of `LOOP`, settings for an accelerator of Neg and Abs, and the units of its graphs."""
    files = Files(tmp_path)
    host = files.costs("host", peak="1.0e+9", more=SLOW)
    rules = Path(files.rules("npu", "Neg", "Abs"))
    settings = load_settings(PlanOptions(rules, host_cost_model=host), "exact")
    index, targets = prepared(LOOP).index, settings.targets
    return index, settings, group_graphs(index, targets, annotate_graphs(index, targets))


def same_problem(one: Problem, other: Problem) -> bool:
    return all(
        np.array_equal(getattr(one, each.name), getattr(other, each.name))
        if isinstance(getattr(one, each.name), np.ndarray)
        else getattr(one, each.name) == getattr(other, each.name)
        for each in fields(Problem)
    )


def test_the_main_problem_is_that_of_the_plan(parts: tuple[Any, Any, Any]) -> None:
    """With bodies placed first: the node around one costs on the host what its regions leave."""
    index, settings, units = parts
    plan = plan_graphs(index, settings, units)
    assert sum(1 for _ in plan.walk()) == 2
    posed = build_main_problem(index, settings, units)
    assert same_problem(posed.problem, plan.graph_problem.problem)
    assert posed.tensors == plan.graph_problem.tensors


def test_a_placement_is_priced_where_it_is(parts: tuple[Any, Any, Any]) -> None:
    index, settings, units = parts
    plan = plan_graphs(index, settings, units)
    again = price_placement(plan, replace(settings, doubt=cast("Any", "ignored")), units)
    for one, other in zip(plan.walk(), again.walk(), strict=True):
        assert one.placement.labels.tolist() == other.placement.labels.tolist()
        assert other.pins == {
            row: 0 for row, label in enumerate(one.placement.labels.tolist()) if label == 0
        }
    assert again.whole_cost.total == pytest.approx(plan.whole_cost.total)
    moved = replace(plan, placement=replace(plan.placement, labels=np.zeros_like(plan.placement.labels)))
    on_host = price_placement(moved, settings, units)
    assert not on_host.placement.labels.any()
    assert on_host.whole_cost.total > plan.whole_cost.total


def test_everything_on_the_host_costs_what_a_plan_without_regions_does(
    parts: tuple[Any, Any, Any],
) -> None:
    index, settings, units = parts
    plan = plan_graphs(index, settings, units)
    without = plan_graphs(index, replace(settings, strategy=HostOnly()), units)
    assert not any(graph.regions for graph in without.walk())
    for one, other in zip(plan.walk(), without.walk(), strict=True):
        assert one.host_only == pytest.approx(other.cost.total)
        assert other.host_only == pytest.approx(other.cost.total)
    assert plan.cost.total < plan.host_only


def test_a_node_stands_for_all_names_in_its_bodies(parts: tuple[Any, Any, Any]) -> None:
    index, _, _ = parts
    by_output = {name: number for number, node in enumerate(index.nodes) for name in node.output}
    assert _all_names(index, [by_output["z"]]) == {"z"}
    assert _all_names(index, [by_output["w"]]) == {"again", "w", "d", "a", "deep", "u"}
    assert _all_names(index, [by_output["z"], by_output["y"]]) == {"z", "y"}


@pytest.mark.parametrize(
    ("outputs", "nodes", "names"),
    [
        ([["a"], ["b"]], [(0, 1)], ["b"]),
        ([["a"], ["b", "c"]], [(0,), (1,)], ["a", "b"]),
        ([["a"], ["", "c"]], [(0, 1)], ["c"]),
        ([["a"], [""]], [(0, 1)], ["a"]),
        ([["a", "z"], []], [(0, 1)], ["a"]),
        ([["a"], []], [(0,), (1,)], ["a", "\0" + "1"]),
        ([[""], [], [""]], [(0,), (2, 1)], ["\0" + "0", "\0" + "2"]),
    ],
)
def test_a_unit_is_called_after_what_its_last_node_makes(
    outputs: list[list[str]], nodes: list[tuple[int, ...]], names: list[str]
) -> None:
    index: Any = SimpleNamespace(node_outputs=outputs)
    units: Any = [SimpleNamespace(nodes=each) for each in nodes]
    assert name_units(index, units) == names


@pytest.mark.parametrize(
    ("tokens", "sizes", "borders"),
    [
        ([], [], []),
        ([1], [4], [0]),
        ([1, 1], [4, 4], [0, 1]),
        ([1, 1], [4, 3], [0, 1]),
        ([1, 1], [3, 4], [0]),
        ([1, 2], [9, 9], [0]),
        ([1] * 8, [1] * 8, [0, 4]),
        ([1] * 7, [1] * 7, [0]),
        ([1] * 12, [1] * 12, [0, 4, 8]),
        ([1] * 4, [2] * 4, [0, 2]),
        ([1, 2] * 3, [2] * 6, [0, 2, 4]),
        ([1, 2] * 4, [1] * 8, [0, 4]),
        ([9, 1, 2, 1, 2, 8], [2] * 6, [0, 1, 3, 5]),
        ([1, 2, 1, 2, 7, 3, 4, 3, 4], [2] * 9, [0, 2, 4, 5, 7]),
        ([1, 2, 3, 4, 1, 2, 3, 4], [1] * 8, [0, 4]),
    ],
)
def test_blocks_have_four_nodes_or_more(tokens: list[int], sizes: list[int], borders: list[int]) -> None:
    assert blocks.find_borders(tokens, sizes, [0.0] * len(tokens)) == borders


@given(st.lists(st.booleans(), max_size=12))
def test_the_longest_run_is_the_first_of_its_length(same: list[bool]) -> None:
    runs = [
        (stop - start, -start)
        for start in range(len(same))
        for stop in range(start + 1, len(same) + 1)
        if all(same[start:stop])
    ]
    length, start = max(runs, default=(0, 0))
    assert blocks._find_longest(np.array(same, np.bool_)) == (-start, length)


@given(st.lists(st.integers(0, 4), max_size=14))
def test_periods_are_distances_of_neighbours_that_are_alike_the_commonest_first(
    tokens: list[int],
) -> None:
    counts: dict[int, int] = {}
    for place, token in enumerate(tokens):
        later = [other for other in range(place + 1, len(tokens)) if tokens[other] == token]
        if later and 2 * (later[0] - place) <= len(tokens):
            counts[later[0] - place] = counts.get(later[0] - place, 0) + 1
    expected = sorted(counts, key=lambda period: (-counts[period], period))
    assert blocks._list_periods(np.array(tokens, np.int64)) == expected[:8]


@pytest.mark.parametrize("seed", range(6))
def test_what_crosses_a_cut_is_made_before_it_and_read_behind_it(seed: int) -> None:
    problem = random_problem(seed, 10, frozenset({"two devices"}))
    rows = np.flatnonzero(np.arange(problem.units) % 4 != 1)
    for device in (1, 2):
        expected = []
        for cut in range(len(rows)):
            before, behind = set(rows[:cut].tolist()), set(rows[cut:].tolist())
            total = 0.0
            for tensor in range(problem.tensors):
                start, stop = problem.consumer_start[tensor : tensor + 2]
                if int(problem.producer[tensor]) in before and behind & {
                    *problem.consumers[start:stop].tolist()
                }:
                    total += problem.to_host[tensor, device - 1] + problem.to_device[tensor, device - 1]
            expected.append(total)
        assert blocks._sum_crossings(problem, rows, device) == pytest.approx(expected)


def chain(units: int, launch: float = 1.0, **limits: Any) -> tuple[Any, Any, Problem, Placement]:
    """Return alternating units on an accelerator, their index and problem, and a region of them all."""
    text = " ".join(f"t{n + 1} = {'Neg' if n % 2 else 'Abs'}(t{n})" for n in range(units))
    index = prepared(f"g (float[4] t0) => (float[4] t{units}) {{ {text} }}").index
    groups: Any = [SimpleNamespace(nodes=(number,)) for number in range(units)]
    problem = Problem.build(
        seconds=np.tile([9.0, 1.0, 1.0], (units, 1)),
        producer=range(-1, units),
        consumers=[[number] for number in range(units)] + [[]],
        is_output=[False] * units + [True],
        to_device=np.ones((units + 1, 2)),
        to_host=np.ones((units + 1, 2)),
        launch=[launch, launch],
        **limits,
    )
    return index, groups, problem, Placement.from_labels(problem, np.full(units, 2, np.int64))


def test_regions_of_devices_that_share_are_cut_and_the_launches_are_told() -> None:
    index, units, problem, whole = chain(9)
    assert blocks.cut_blocks(index, units, problem, whole, [1]) is whole
    cut = blocks.cut_blocks(index, units, problem, whole, [2])
    assert cut.regions.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2]
    assert cut.notes == (
        "a region is cut into 3, so that its 2 blocks of 4 units can be compiled once; the further "
        "launches take 2 s",
    )
    assert cut.cost.total == whole.cost.total + 2
    index, units, problem, whole = chain(7)
    assert blocks.cut_blocks(index, units, problem, whole, [2]).notes == ()


def test_a_region_of_one_unit_is_no_block() -> None:
    index, units, problem, whole = chain(1)
    assert blocks.cut_blocks(index, units, problem, whole, [2]).regions.tolist() == [0]


def test_later_regions_are_renumbered() -> None:
    index, units, problem, _ = chain(17)
    labels = np.full(17, 2, np.int64)
    labels[8] = 0
    whole = Placement.from_labels(problem, labels)
    cut = blocks.cut_blocks(index, units, problem, whole, [1, 2])
    assert cut.regions.tolist() == [0] * 4 + [1] * 4 + [-1] + [2] * 4 + [3] * 4
    assert len(cut.notes) == 2


@pytest.mark.parametrize(("most", "count"), [(3, 3), (2, 1), (1, 1)])
def test_a_limit_leaves_a_region_whole(most: int, count: int) -> None:
    index, units, problem, whole = chain(9, max_regions=[9, most])
    cut = blocks.cut_blocks(index, units, problem, whole, [2])
    assert int(cut.regions.max()) + 1 == count
    if count == 1:
        assert cut.notes == (
            "a region with repeated blocks is left whole: cut, device 2 has 3 regions, and "
            f"{most} is the most",
        )


def test_a_fusion_across_a_border_leaves_a_region_whole() -> None:
    index, units, problem, _ = chain(8, fusions=[Fusion((3, 4), 2, 0.5)])
    whole = Placement.from_labels(problem, np.full(8, 2, np.int64))
    assert whole.fusions == (0,)
    (note,) = blocks.cut_blocks(index, units, problem, whole, [2]).notes
    assert note == (
        "a region with repeated blocks is left whole: cut, fusion 0 is chosen and not in one region of "
        "its device"
    )


def test_only_sums_of_costs_are_cut() -> None:
    class Busy(Placement):
        measure = Measure.load

    index, units, problem, whole = chain(8)
    busy = Busy(whole.labels, whole.regions, whole.cost, notes=("first",))
    cut = blocks.cut_blocks(index, units, problem, busy, [2])
    assert cut.notes == ("first", "repeated blocks are not cut: the objective is no sum of costs")
    assert cut.regions.tolist() == [0] * 8


def attribute(content: bytes, **other: str) -> AttributeProto:
    made = helper.make_attribute("value", numpy_helper.from_array(np.frombuffer(content, np.uint8)))
    for key, value in other.items():
        of, name = {"name": (made.t, "name"), "doc": (made.t, "doc_string")}.get(
            key, (made, "doc_string")
        )
        setattr(of, name, value)
    return made


def test_of_an_attribute_names_and_texts_for_people_do_not_count() -> None:
    plain = outlining._describe_attribute(attribute(b"12", name="m"))
    for other in ({"name": "n"}, {"name": "m", "doc": "d"}, {"name": "m", "about": "a"}):
        changed = attribute(b"12", **other)
        before = changed.SerializeToString()
        # An empty text that is set has other bytes than none, which names of regions keep to.
        made = AttributeProto.FromString(outlining._describe_attribute(changed))
        assert (made.doc_string, made.t.name, made.t.doc_string) == ("", "", "")
        assert outlining._describe_attribute(changed) == plain
        assert changed.SerializeToString() == before  # the model's own
    assert outlining._describe_attribute(attribute(b"13")) != plain
    assert outlining._describe_attribute(helper.make_attribute("axis", 1)) == helper.make_attribute(
        "axis", 1
    ).SerializeToString(deterministic=True)


def test_a_large_attribute_counts_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = attribute(bytes(50)), attribute(b"\1" * 50)
    size = one.ByteSize()
    monkeypatch.setattr(outlining, "_MAX_HASHED_BYTES", size)
    assert outlining._describe_attribute(one) != outlining._describe_attribute(other)
    monkeypatch.setattr(outlining, "_MAX_HASHED_BYTES", size - 1)
    assert outlining._describe_attribute(one) == f"value 4 {size}".encode()
    assert outlining._describe_attribute(one) == outlining._describe_attribute(other)


@pytest.mark.parametrize(
    ("layout", "sentence"), [("activations: NHQ", "activations"), ("weights: [1]", "weights")]
)
def test_a_layout_that_is_none_is_told_at_its_place(layout: str, sentence: str, files: Files) -> None:
    rules = files.rules("npu", "Neg", more=f"layout: {{{layout}}}\n")
    model = parse("g (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) { y = Neg(x) }")
    with pytest.raises(InputError, match=rf"npu\.yaml: .*layout\.{sentence}"):
        byoc.partition(model, rules)


@pytest.mark.parametrize("key", ["launhc", "peak"])
def test_a_parameter_that_does_not_fit_the_cost_model_is_told_at_its_place(
    key: str, files: Files
) -> None:
    rules = files.rules("npu", "Neg", more=f"cost_parameters: {{{key}: 1.0}}\n")
    model = parse("g (float[4] x) => (float[4] y) { y = Neg(x) }")
    with pytest.raises(InputError, match=rf"npu\.yaml: .*cost_parameters.*{key}"):
        byoc.partition(model, rules)


def label_names(plan: GraphPlan) -> Sequence[str]:
    return [plan.device_of_node[node] for node in sorted(plan.device_of_node)]


def test_devices_of_nodes_are_called_by_their_names(parts: tuple[Any, Any, Any]) -> None:
    index, settings, units = parts
    plan = plan_graphs(index, settings, units)
    names = {0: "host", 1: "npu"}
    for graph in plan.walk():
        expected = [
            names[label]
            for _, label in sorted(
                (node, label)
                for unit, label in zip(graph.units, graph.placement.labels.tolist(), strict=True)
                for node in unit.nodes
            )
        ]
        assert label_names(graph) == expected


@pytest.mark.parametrize(
    ("borders", "rows", "count", "size"),
    [
        ([0, 4, 8, 9, 10], 11, 2, 4),  # of blocks of 4, and of 1 the most
        ([0, 1, 2, 3, 7], 11, 2, 4),
        ([0, 1, 2, 3, 4, 5, 6], 7, 7, 1),
        ([0, 2, 4, 6], 8, 4, 2),
        ([0, 2, 4, 5, 6, 7, 8], 9, 5, 1),
        ([0, 2, 4, 5, 6, 7], 8, 2, 2),  # of as many units, the larger ones
    ],
)
def test_the_blocks_that_have_most_units_are_told(
    borders: list[int], rows: int, count: int, size: int
) -> None:
    problem = make_row([1.0] * rows, [0.5] * rows, launch=0.25)
    whole = Placement.from_labels(problem, np.ones(rows, np.int64))
    found = blocks._cut_region(problem, whole, 0, np.arange(rows), borders)
    lengths = np.diff([*borders, rows])
    assert found.regions.tolist() == np.repeat(range(len(borders)), lengths).tolist()
    (note,) = set(found.notes) - set(whole.notes)
    assert note == (
        f"a region is cut into {len(borders)}, so that its {count} blocks of {size} units can be "
        f"compiled once; the further launches take {0.25 * (len(borders) - 1):.3g} s"
    )


@pytest.mark.parametrize(
    ("nodes", "device", "rows"),
    [
        ((0, 1), 1, (0, 1)),
        ((0, 1), 2, None),  # which does not take node 1
        ((0, 4), 2, (0, 3)),
        ((0, 2, 3), 1, (0, 2)),
        ((0, 2), 1, None),  # of the unit of 2 and 3 it has a part
        ((1, 3), 1, None),
        ((2, 3), 1, None),  # it is a unit as it is
        ((4,), 1, None),
        ((0, 1, 2, 3, 4), 1, (0, 1, 2, 3)),
    ],
)
def test_a_composite_is_an_alternative_to_whole_units(
    nodes: tuple[int, ...], device: int, rows: tuple[int, ...] | None
) -> None:
    def unit(*own: int, is_taken: bool = True) -> Unit:
        return Unit(f"u{own[0]}", own, YES if is_taken else refuse("no"), ())

    joint = [
        JointUnit(f"j{own[0]}", own, ((unit(*own),), (unit(*own, is_taken=own != (1,)),)))
        for own in ((0,), (1,), (2, 3), (4,))
    ]
    rival = unit(*nodes)
    found = list(_find_alternatives(joint, [(device, rival)]))
    assert [(each.device, each.rows) for each in found] == ([] if rows is None else [(device, rows)])


def test_the_fewest_tensors_cross_a_border() -> None:
    tokens = [0, 1, 2, 3] * 4
    crossings = [0.0, 3, 1, 2] + [2.0, 3, 1, 2] * 3
    assert find_borders(tokens, [1] * 16, crossings) == [0, 2, 6, 10, 14]
    assert find_borders(tokens, [1] * 16, [1.0] * 16) == [0, 4, 8, 12]


def test_two_runs_are_found_in_one_region() -> None:
    tokens = [9, *[1, 2, 3, 4, 5] * 3, 8, *[6, 7, 6, 1] * 2]
    assert find_borders(tokens, [1] * len(tokens), [0.0] * len(tokens)) == [0, 1, 6, 11, 16, 17, 21]


@given(
    block=st.lists(st.integers(0, 9), min_size=1, max_size=7, unique=True),
    count=st.integers(8, 12),
    before=st.lists(st.integers(10, 15), max_size=5, unique=True),
    after=st.lists(st.integers(16, 20), max_size=5, unique=True),
)
def test_planted_blocks_are_found(
    block: list[int], count: int, before: list[int], after: list[int]
) -> None:
    tokens = [*before, *block * count, *after]
    borders = find_borders(tokens, [1] * len(tokens), [0.0] * len(tokens))
    assert borders[0] == 0
    pieces = [tuple(tokens[a:b]) for a, b in zip(borders, [*borders[1:], len(tokens)], strict=True)]
    assert [token for piece in pieces for token in piece] == tokens
    blocks = [piece for piece in pieces if set(piece) <= set(block)]
    size = max(map(len, blocks))
    assert 4 <= size < 4 + len(block)
    assert sum(len(piece) == size for piece in blocks) == len(block) * count // size
    assert len({piece for piece in blocks if len(piece) == size}) == 1
