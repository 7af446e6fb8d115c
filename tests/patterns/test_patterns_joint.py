"""Units for several accelerators: joined if they overlap, without cycles, no node lost."""

import random
from collections.abc import Sequence

from helpers.support import examples, prepared
from hypothesis import given, settings
from hypothesis import strategies as st

from byoc.errors import YES, refuse
from byoc.model import GraphIndex
from byoc.patterns import JointUnit, Mark, Unit, join_units, open_units

TAKEN = Mark(YES, "ops[0]")
# What `first` has as {a, d} and `second` as {b, c} would be a circle: a -> b, c -> d.
CROSSED = """
g (float[2] x) => (float[2] b, float[2] d) {
  a = Relu (x)
  c = Neg (x)
  b = Abs (a)
  d = Add (a, c)
}
"""


def random_index(size: int, chance: random.Random) -> GraphIndex:
    names = ["x"]
    lines = []
    for number in range(size):
        one, other = chance.choice(names[-6:]), chance.choice(names[-6:])
        lines.append(f"n{number} = Add ({one}, {other})")
        names.append(f"n{number}")
    body = "\n".join(lines)
    return prepared(f"g (float[2] x) => (float[2] n{size - 1}) {{\n{body}\n}}").index


def followers(index: GraphIndex, blocks: Sequence[Sequence[int]]) -> list[set[int]]:
    block_of = {node: number for number, block in enumerate(blocks) for node in block}
    after: list[set[int]] = [set() for _ in blocks]
    for node, number in block_of.items():
        for name in index.reads[node]:
            if name in index.producers and block_of[index.producers[name]] != number:
                after[block_of[index.producers[name]]].add(number)
    return after


def acyclic(index: GraphIndex, blocks: Sequence[Sequence[int]]) -> bool:
    after = followers(index, blocks)
    waiting = [sum(number in others for others in after) for number in range(len(blocks))]
    ready = [number for number, count in enumerate(waiting) if not count]
    done = 0
    while ready:
        done += 1
        for follower in after[ready.pop()]:
            waiting[follower] -= 1
            if not waiting[follower]:
                ready.append(follower)
    return done == len(blocks)


def unit(index: GraphIndex, *nodes: int) -> Unit:
    name = index.nodes[nodes[-1]].output[0]
    return Unit(name, nodes, YES, ("ops[0]",), kind="composite" if len(nodes) > 1 else "node")


def random_units(index: GraphIndex, chance: random.Random) -> list[Unit]:
    """Return units that one accelerator alone could have: each node once, and no circle."""
    blocks: list[tuple[int, ...]] = [(node,) for node in range(len(index.nodes))]
    for _ in range(len(blocks)):
        if len(blocks) < 2:
            break
        one, other = chance.sample(blocks, 2)
        tried = [block for block in blocks if block not in (one, other)]
        tried.append(tuple(sorted((*one, *other))))
        if len(tried[-1]) <= 4 and max(tried[-1]) - min(tried[-1]) < 9 and acyclic(index, tried):
            blocks = tried
    return [unit(index, *block) for block in blocks]


def overlapping(units: Sequence[Sequence[Unit]]) -> list[set[int]]:
    """Return the blocks of nodes that units in common bring together, the slow way."""
    blocks: list[set[int]] = []
    for one in (one for each in units for one in each):
        touching = [block for block in blocks if not block.isdisjoint(one.nodes)]
        blocks = [block for block in blocks if block not in touching]
        blocks.append(set(one.nodes).union(*touching))
    return blocks


@settings(deadline=None, max_examples=examples(150))
@given(st.integers(2, 16), st.integers(2, 3), st.randoms(use_true_random=False))
def test_whatever_the_units(size: int, devices: int, chance: random.Random) -> None:
    index = random_index(size, chance)
    units = [random_units(index, chance) for _ in range(devices)]
    found = join_units(index, units, [[TAKEN] * size] * devices)

    blocks = [one.nodes for one in found]
    assert sorted(node for block in blocks for node in block) == list(range(size))
    assert acyclic(index, blocks)
    place = {node: row for row, block in enumerate(blocks) for node in block}
    assert all(row < other for row, after in enumerate(followers(index, blocks)) for other in after)
    assert all(len({place[node] for node in one.nodes}) == 1 for one in units[0])
    for device, own in enumerate(units):
        for one in found:
            parts = one.on_device[device]
            assert sorted(node for part in parts for node in part.nodes) == list(one.nodes)
            assert all(part in own or len(part.nodes) == 1 for part in parts)
            inside = [whole for whole in own if set(whole.nodes) <= set(one.nodes)]
            assert all(whole in parts for whole in inside)
    expected = overlapping(units)
    if acyclic(index, [sorted(block) for block in expected]):
        assert {frozenset(block) for block in blocks} == {frozenset(block) for block in expected}


def test_overlapping_units_become_one() -> None:
    text = "g (float[2] x) => (float[2] d) { a = Relu(x)\n b = Neg(a)\n c = Abs(b)\n d = Relu(c) }"
    index = prepared(text).index
    first = [unit(index, 0, 1), unit(index, 2), unit(index, 3)]
    second = [unit(index, 0), unit(index, 1, 2), unit(index, 3)]
    found = join_units(index, [first, second], [[TAKEN] * 4] * 2)
    assert [one.nodes for one in found] == [(0, 1, 2), (3,)]
    assert [[part.nodes for part in parts] for parts in found[0].on_device] == [
        [(0, 1), (2,)],
        [(0,), (1, 2)],
    ]


def test_composites_are_opened_where_another_accelerator_has_other_units() -> None:
    """On the first three nodes the accelerators differ; of the last two only one takes anything."""
    text = """g (float[2] x) => (float[2] f) {
      a = Relu(x)\n b = Neg(a)\n c = Abs(b)\n d = Exp(c)\n f = Sqrt(d)
    }"""
    index = prepared(text).index
    refused = Mark(refuse("no"), "")
    first = [unit(index, 0, 1), unit(index, 2), unit(index, 3, 4)]
    second = [
        unit(index, 0),
        unit(index, 1, 2),
        *(Unit(n, (k,), refuse("no"), ()) for n, k in (("d", 3), ("f", 4))),
    ]
    marks = [[TAKEN] * 5, [TAKEN] * 3 + [refused] * 2]
    units, rivals = open_units(index, [first, second], marks)
    assert [[each.nodes for each in own] for own in units] == [
        [(0,), (1,), (2,), (3, 4)],
        [(0,), (1,), (2,), (3,), (4,)],
    ]
    assert [[each.nodes for each in own] for own in rivals] == [[(0, 1)], [(1, 2)]]
    lonely = Mark(YES, "ops[0]", standalone=False)
    for marks[1][1] in (lonely, Mark(YES, "ops[0]", accepts_plain=False)):
        assert open_units(index, [first, second], marks) == ([first, second], [[], []])


def test_what_would_wait_in_a_circle_is_taken_apart_on_the_later_accelerator() -> None:
    index = prepared(CROSSED).index
    first = [unit(index, 0, 3), unit(index, 1), unit(index, 2)]
    second = [unit(index, 0), unit(index, 1, 2), unit(index, 3)]
    assert acyclic(index, [one.nodes for one in first])
    assert acyclic(index, [one.nodes for one in second])
    lonely = Mark(YES, "ops[0]", standalone=False)
    found = join_units(index, [first, second], [[TAKEN] * 4, [TAKEN, lonely, TAKEN, TAKEN]])
    assert [one.nodes for one in found] == [(1,), (0, 3), (2,)]
    assert [[len(part.nodes) for part in one.on_device[1]] for one in found] == [[1], [1, 1], [1]]
    assert str(found[0].verdicts[1]) == "Neg is taken only inside a composite"
    assert [bool(one.verdicts[0]) for one in found] == [True] * 3


def test_one_accelerator_keeps_its_units() -> None:
    index = prepared(CROSSED).index
    units = [unit(index, 1), unit(index, 0, 3), unit(index, 2)]
    found = join_units(index, [units], [[TAKEN] * 4])
    assert [(one.name, one.nodes, one.on_device) for one in found] == [
        (each.name, each.nodes, ((each,),)) for each in units
    ]


def test_every_part_must_be_taken_and_each_reason_is_told_once() -> None:
    no = refuse("too large")
    parts = (Unit("a", (0,), no, ()), Unit("b", (1,), no, ()), Unit("c", (2,), YES, ("r",), must=True))
    taken = (Unit("abc", (0, 1, 2), YES, ("r",)),)
    both = JointUnit("abc", (0, 1, 2), (parts, taken))
    assert list(map(str, both.verdicts)) == ["too large", "yes"]
    assert not both.must  # the one that says so does not take all of it
    assert JointUnit("c", (2,), ((parts[2],), (parts[2],))).must
