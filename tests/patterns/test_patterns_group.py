"""Units: composites where they fit, single nodes elsewhere, each node once."""

import random
from collections.abc import Sequence

from helpers.support import examples, prepared
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from byoc.errors import YES, refuse
from byoc.model import GraphIndex
from byoc.patterns import (
    JointUnit,
    Mark,
    Pattern,
    Unit,
    group_units,
    group_with_alternatives,
    make_single_unit,
    parse_pattern,
)

CONV_RELU = parse_pattern("conv_relu", "c = Conv(x, w, b?)\ny = Relu(c)")
CONV_ADD_RELU = parse_pattern("conv_add_relu", "c = Conv(x, w, b?)\na = Add(c, z)\ny = Relu(a)")
ADD_RELU = parse_pattern("add_relu", "a = Add(x, z)\ny = Relu(a)")
RESIDUAL = prepared("""
g (float[1,1,4,4] x) => (float[1,1,4,4] out)
<float[1,1,1,1] w = {2}> {
  k = Neg (w)
  c0 = Conv (x, k)
  r0 = Relu (c0)
  c1 = Conv (r0, w)
  a1 = Add (c1, x)
  r1 = Relu (a1)
  out = Sigmoid (r1)
}
""").index
TAKEN = Mark(YES, "ops[0]")


def marks(index: GraphIndex, **special: Mark) -> list[Mark]:
    """Return a mark per node: that of its first output's name, else taken."""
    return [special.get(node.output[0], TAKEN) for node in index.nodes]


def summary(units: Sequence[Unit]) -> list[tuple[str, tuple[int, ...], str | None]]:
    return [(unit.name, unit.nodes, unit.composite) for unit in units]


def test_larger_patterns_go_first() -> None:
    """Whatever the order of the file; constant node 0 is in no unit."""
    for patterns in ([CONV_RELU, ADD_RELU, CONV_ADD_RELU], [CONV_ADD_RELU, ADD_RELU, CONV_RELU]):
        assert summary(group_units(RESIDUAL, patterns, marks(RESIDUAL))) == [
            ("r0", (1, 2), "conv_relu"),
            ("r1", (3, 4, 5), "conv_add_relu"),
            ("out", (6,), None),
        ]


def test_of_equal_patterns_the_first_in_the_file_wins() -> None:
    twin = parse_pattern("twin", "first = Conv(x, w, b?)\nsecond = Relu(first)")
    assert group_units(RESIDUAL, [twin, CONV_RELU], marks(RESIDUAL))[0].composite == "twin"
    assert group_units(RESIDUAL, [CONV_RELU, twin], marks(RESIDUAL))[0].composite == "conv_relu"


def test_a_refused_node_breaks_the_composite_and_lets_a_smaller_one_match() -> None:
    refused = Mark(refuse("kernel_shape[0] is 9, at most 7 is supported"))
    units = group_units(RESIDUAL, [CONV_RELU, ADD_RELU, CONV_ADD_RELU], marks(RESIDUAL, c1=refused))
    assert summary(units) == [
        ("r0", (1, 2), "conv_relu"),
        ("c1", (3,), None),
        ("r1", (4, 5), "add_relu"),
        ("out", (6,), None),
    ]
    assert units[1].verdict == refused.verdict
    assert units[1].rules == ()


def test_rules_of_a_unit() -> None:
    special = {"c0": Mark(YES, "ops[4]"), "r0": Mark(YES, "ops[7]"), "out": Mark(YES, "ops[9]")}
    units = group_units(RESIDUAL, [CONV_RELU], marks(RESIDUAL, **special))
    assert units[0].rules == ("ops[4]", "ops[7]")
    assert units[0].verdict == YES
    assert units[-1].rules == ("ops[9]",)


def test_what_is_taken_only_inside_a_composite() -> None:
    inside_only = Mark(YES, "ops[2]", standalone=False)
    units = group_units(RESIDUAL, [CONV_RELU], marks(RESIDUAL, c0=inside_only, out=inside_only))
    assert (units[0].composite, units[0].verdict, units[0].rules) == (
        "conv_relu",
        YES,
        ("ops[2]", "ops[0]"),
    )
    assert str(units[-1].verdict) == "Sigmoid is taken only inside a composite"
    assert units[-1].rules == ()


def test_no_patterns() -> None:
    assert [unit.nodes for unit in group_units(RESIDUAL, [], marks(RESIDUAL))] == [
        (1,),
        (2,),
        (3,),
        (4,),
        (5,),
        (6,),
    ]


def test_names() -> None:
    """A unit is called what its last node is called, or that node's first output."""
    model = prepared("g (float[2] x) => (float[2] y) { a = Relu (x)\n y = Neg (a) }").proto
    model.graph.node[1].name = "the_neg"
    index = GraphIndex.of_model(model)
    assert [unit.name for unit in group_units(index, [], marks(index))] == ["a", "the_neg"]


def test_matches_of_one_pattern_are_taken_in_the_order_of_the_nodes() -> None:
    index = prepared("g (float[2] x) => (float[2] c) { a = Neg (x)\n b = Neg (a)\n c = Neg (b) }").index
    pair = parse_pattern("pair", "a = Neg(x)\ny = Neg(a)")
    assert summary(group_units(index, [pair], marks(index))) == [
        ("b", (0, 1), "pair"),
        ("c", (2,), None),
    ]


PATTERNS = [
    parse_pattern("neg_neg", "a = Neg(x)\ny = Neg(a)"),
    parse_pattern("add_neg", "a = Add(x, z)\ny = Neg(a)"),
    parse_pattern("diamond", "a = Abs(x)\nb = Neg(a)\ny = Mul(a, b)"),
    parse_pattern("tower", "a = Add|Mul(x, z)\nb = Add(a, x)\nc = Neg|Abs(b)\ny = Abs(c)"),
    parse_pattern("two_adds", "a = Add(p, q)\nb = Add(r, s)\ny = Mul(a, b)"),
]


def random_index(size: int, chance: random.Random) -> GraphIndex:
    """Make a graph of few operators, so that patterns match often and compete."""
    names, nodes = ["x", "w"], []
    for i in range(size):
        op = chance.choice(["Neg", "Neg", "Abs", "Add", "Add", "Mul"])
        count = 1 if op in {"Neg", "Abs"} else 2
        recent = names[-3:] if chance.random() < 0.7 else names
        nodes.append(helper.make_node(op, chance.choices(recent, k=count), [f"t{i}"]))
        names.append(f"t{i}")
    model = prepared("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Neg (x) }").proto
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.output[0].name = names[-1]
    return GraphIndex(model, {})


@settings(deadline=None, max_examples=examples(200))
@given(st.integers(1, 25), st.randoms(use_true_random=False))
def test_every_node_is_in_one_unit_and_units_can_run_in_order(size: int, chance: random.Random) -> None:
    index = random_index(size, chance)
    given_marks = [
        Mark(refuse("no")) if chance.random() < 0.1 else TAKEN for _ in range(len(index.nodes))
    ]
    units = group_units(index, PATTERNS, given_marks)
    placed = sorted(node for unit in units for node in unit.nodes)
    assert placed == [i for i in range(len(index.nodes)) if i not in index.constant_nodes]
    done = set(index.constant_nodes)
    for unit in units:
        assert list(unit.nodes) == sorted(unit.nodes)
        made = {name for node in unit.nodes for name in index.nodes[node].output}
        for node in unit.nodes:
            sources = {index.producers[name] for name in index.reads[node] if name in index.producers}
            assert sources <= done | set(unit.nodes)
        if unit.match is not None:
            assert all(given_marks[node].verdict for node in unit.nodes)
            _check_composite(index, unit, made)
        done.update(unit.nodes)


def _check_composite(index: GraphIndex, unit: Unit, made: set[str]) -> None:
    """One output leaves, and what the signature names comes from outside and is all that enters."""
    assert unit.match is not None
    inside = set(unit.nodes)
    leaving = {
        name for name in made if name in index.outputs or set(index.consumers.get(name, ())) - inside
    }
    root = index.nodes[unit.nodes[-1]].output[0]
    assert leaving <= {root}
    entering = {name for node in unit.nodes for name in index.reads[node]} - made
    assert {unit.match.tensors[name] for name in unit.match.pattern.inputs} == entering


@settings(deadline=None)
@given(st.integers(1, 20), st.randoms(use_true_random=False), st.permutations(PATTERNS))
def test_the_order_of_patterns_of_different_size_is_nothing(
    size: int, chance: random.Random, shuffled: list[Pattern]
) -> None:
    """Patterns of one size keep their order here: between these the order of the file decides."""
    index = random_index(size, chance)
    place = {pattern.name: i for i, pattern in enumerate(PATTERNS)}
    lengths = [len(pattern.lines) for pattern in shuffled]
    by_size = {n: iter([p for p in PATTERNS if len(p.lines) == n]) for n in lengths}
    reordered = [next(by_size[n]) for n in lengths]
    assert sorted(place[pattern.name] for pattern in reordered) == list(range(len(PATTERNS)))
    taken = marks(index)
    assert summary(group_units(index, reordered, taken)) == summary(group_units(index, PATTERNS, taken))


def test_consumers_of_a_dead_node() -> None:
    index = prepared("g (float[2] x) => (float[2] y) { a = Abs (x)\n b = Neg (a)\n y = Neg (x) }").index
    units = group_units(index, [parse_pattern("p", "a = Abs(x)\ny = Neg(a)")], marks(index))
    assert summary(units) == [("b", (0, 1), "p"), ("y", (2,), None)]


CONV_ADD = parse_pattern("conv_add", "c = Conv(x, w, b?)\na = Add(c, z)")


def alternatives(
    patterns: Sequence[Pattern], **special: Mark
) -> tuple[list[tuple[int, ...]], list[tuple[str | None, tuple[int, ...]]]]:
    units, rivals = group_with_alternatives(RESIDUAL, patterns, marks(RESIDUAL, **special))
    return [unit.nodes for unit in units], [(unit.composite, unit.nodes) for unit in rivals]


def test_composites_that_overlap_are_opened() -> None:
    """Add may be the second node of one or the first of the other; Conv and Relu before overlap none."""
    found = alternatives([CONV_RELU, CONV_ADD, ADD_RELU])
    assert found == (
        [(1, 2), (3,), (4,), (5,), (6,)],
        [("conv_add", (3, 4)), ("add_relu", (4, 5))],
    )
    closed = [(1,), (2,), (3, 4), (5,), (6,)]
    assert alternatives([CONV_ADD]) == (closed, [])
    # None is part of a larger one, takes a node that is refused, or one that cannot run alone.
    assert alternatives([CONV_ADD_RELU, CONV_ADD, ADD_RELU])[1] == []
    assert alternatives([CONV_ADD, ADD_RELU], r1=Mark(refuse("no"))) == (closed, [])
    for alone in ("c1", "a1", "r1"):
        special = {alone: Mark(YES, "ops[0]", standalone=False)}
        assert alternatives([CONV_ADD, ADD_RELU], **special) == (closed, [])
        special = {alone: Mark(YES, "ops[0]", accepts_plain=False)}
        assert alternatives([CONV_ADD, ADD_RELU], **special)[1] == []


@settings(deadline=None, max_examples=examples(200))
@given(st.integers(1, 25), st.randoms(use_true_random=False))
def test_alternatives_overlap_and_their_nodes_run_alone(size: int, chance: random.Random) -> None:
    index = random_index(size, chance)
    own = [Mark(YES, "ops[0]", standalone=chance.random() < 0.8) for _ in range(len(index.nodes))]
    largest = group_units(index, PATTERNS, own)
    units, rivals = group_with_alternatives(index, PATTERNS, own)
    before, after = ({unit.nodes for unit in each} for each in (largest, units))
    opened = {node for nodes in before - after for node in nodes}
    assert sorted(node for nodes in after for node in nodes) == sorted(
        node for nodes in before for node in nodes
    )
    assert after - before == {(node,) for node in opened}
    assert all(own[node].standalone for unit in rivals for node in unit.nodes)
    assert before - after <= {unit.nodes for unit in rivals}
    assert [unit.nodes for unit in rivals] == sorted({unit.nodes for unit in rivals})
    place = {node: number for number, unit in enumerate(units) for node in unit.nodes}
    for name, users in index.consumers.items():
        maker = index.producers.get(name)
        assert all(maker not in place or place[maker] <= place[user] for user in users)
    for unit in rivals:
        others = [set(other.nodes) for other in rivals if other is not unit]
        assert any(set(unit.nodes) & other for other in others)
        assert not any(set(unit.nodes) <= set(nodes) for nodes in before - {unit.nodes})


def test_a_joint_unit_is_refused_for_what_any_part_of_it_is() -> None:
    yes, no, other = TAKEN, Mark(refuse("too large")), Mark(refuse("too wide", "too large"))

    def join(*marked: tuple[Mark, ...]) -> JointUnit:
        on = [[make_single_unit(RESIDUAL, i, mark) for i, mark in enumerate(each, 1)] for each in marked]
        return JointUnit("r0", (1, 2), tuple(map(tuple, on)))

    unit = join((yes,), (no,), (yes, yes), (yes, no), (no, yes), (no, other))
    assert [list(verdict.reasons) for verdict in unit.verdicts] == [
        *([], ["too large"], [], ["too large"], ["too large"], ["too large", "too wide"])
    ]
    assert [unit.is_supported(number) for number in range(6)] == [True, False, True, False, False, False]
    assert not unit.must
