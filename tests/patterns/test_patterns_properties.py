"""Properties of the matcher: planted patterns are found, and matches equal those of brute force."""

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations, product

import numpy as np
import onnx
from helpers.cutting import planned
from helpers.ruling import make_target
from helpers.strategies import Random
from helpers.support import examples, prepared
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import NodeProto, helper

from byoc.errors import YES, refuse
from byoc.model import GraphIndex, prepare_model
from byoc.patterns import (
    Mark,
    Pattern,
    PatternForm,
    PatternLine,
    filter_allowed,
    find_matches,
    free_nodes,
    group_units,
    parse_pattern,
)
from byoc.placement.strategies import AllSupported
from byoc.samples import sample_inputs
from byoc.verification import run_plain

_INPUTS = {"Neg": 1, "Abs": 1, "Add": 2, "Mul": 2, "Sub": 2, "Split": 1}
_COMMUTATIVE = {"Add", "Mul"}
_Sets = set[frozenset[str]]


def random_index(size: int, chance: random.Random, ops: Sequence[str] = tuple(_INPUTS)) -> GraphIndex:
    """Make a graph of few operators; the nodes are called after their first outputs."""
    names, nodes = ["x", "w"], []
    for i in range(size):
        op = chance.choice(ops)
        recent = names[-4:] if chance.random() < 0.7 else names
        outputs = [f"t{i}", f"u{i}"] if op == "Split" else [f"t{i}"]
        nodes.append(helper.make_node(op, chance.choices(recent, k=_INPUTS[op]), outputs, f"t{i}"))
        names.extend(outputs)
    return index_of(nodes, chance.sample(names[2:], min(2, len(names) - 2)))


def index_of(nodes: Sequence[NodeProto], outputs: Sequence[str]) -> GraphIndex:
    model = prepared("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Neg (x) }").proto
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    value = model.graph.output[0]
    del model.graph.output[:]
    for output in outputs:
        model.graph.output.add().CopyFrom(value)
        model.graph.output[-1].name = output
    return GraphIndex(model, {})


def taken(index: GraphIndex) -> list[Mark]:
    return [Mark(YES, "ops[0]")] * len(index.nodes)


def found(index: GraphIndex, pattern: Pattern) -> _Sets:
    marks = taken(index)
    matches = find_matches(index, [pattern], free_nodes(index, marks))
    return {
        frozenset(index.nodes[i].name for i in match.nodes.values())
        for match in filter_allowed(index, matches, marks)
    }


def pattern_of(index: GraphIndex, chosen: Sequence[int], chance: random.Random) -> Pattern:
    """Return some nodes of a graph as a pattern."""
    called: dict[str, str] = {}
    made = {name for i in chosen for name in index.nodes[i].output}
    lines, leaving = [], []
    for place, number in enumerate(chosen):
        node = index.nodes[number]
        operands = []
        for name in node.input:
            called.setdefault(name, f"i{len(called)}")
            sure = name not in made and index.is_constant(name) and chance.random() < 0.5
            operands.append(called[name] + ("!" if sure else ""))
        if node.op_type in _COMMUTATIVE and chance.random() < 0.5:
            operands.reverse()
        outputs = []
        for position, name in enumerate(node.output):
            called[name] = f"{'abc'[position]}{place}x"
            outside = [user for user in index.consumers.get(name, ()) if user not in chosen]
            inside = len(outside) < len(index.consumers.get(name, ()))
            if outside or name in index.outputs:
                leaving.append(called[name])
            outputs.append(called[name] if inside or called[name] in leaving else "_")
        other = {1: "Exp", 2: "Div"}[len(node.input)]
        op = chance.choice([node.op_type, f"{node.op_type}|{other}", f"{other}|{node.op_type}"])
        op = node.op_type if node.op_type == "Split" else op
        lines.append(f"{', '.join(outputs)} = {op}({', '.join(operands)})")
    return parse_pattern("planted", "\n".join([*lines, f"return {', '.join(leaving)}"]))


def convex(index: GraphIndex, chosen: set[int]) -> bool:
    """Return whether no path leaves some nodes and comes back, by walking every path."""
    reached = {user for i in chosen for name in index.nodes[i].output for user in readers(index, name)}
    pending = list(reached - chosen)
    while pending:
        outside = pending.pop()
        for name in index.nodes[outside].output:
            for user in readers(index, name):
                if user in chosen:
                    return False
                pending.append(user)
    return True


def readers(index: GraphIndex, name: str) -> list[int]:
    return [i for i, node in enumerate(index.nodes) if name in node.input]


def is_connected(index: GraphIndex, chosen: Sequence[int]) -> bool:
    """Return whether some nodes hang together by the tensors that they read and make."""
    names = [{*index.nodes[i].input, *index.nodes[i].output} for i in chosen]
    reached, pending = names[0], names[1:]
    while any(reached & other for other in pending):
        for other in [other for other in pending if reached & other]:
            reached = reached | other
            pending.remove(other)
    return not pending


@settings(deadline=None, max_examples=examples(300))
@given(st.integers(1, 14), st.integers(1, 5), st.randoms(use_true_random=False))
def test_a_planted_pattern_is_found(size: int, count: int, chance: random.Random) -> None:
    index = random_index(size, chance)
    possible = sorted(set(range(len(index.nodes))) - index.constant_nodes)
    chosen = sorted(chance.sample(possible, min(count, len(possible))))
    used = {i for i in chosen if any(map(index.is_used, index.nodes[i].output))}
    if not chosen or len(used) < len(chosen) or not is_connected(index, chosen):
        return
    leaves = [n for i in chosen for n in index.nodes[i].output if index.is_used(n)]
    if not any(n in index.outputs or set(index.consumers.get(n, ())) - set(chosen) for n in leaves):
        return
    pattern = pattern_of(index, chosen, chance)
    names = frozenset(index.nodes[i].name for i in chosen)
    assert (names in found(index, pattern)) == convex(index, set(chosen))


PATTERNS = [
    parse_pattern("chain", "a = Neg(x)\nb = Abs(a)?\ny = Neg(b)"),
    parse_pattern("diamond", "a = Abs(x)\nb = Neg(a)\ny = Mul(a, b)"),
    parse_pattern("commuted", "a = Add|Mul(x, z)\ny = Add(a, x)"),
    parse_pattern("tower", "a = Add(x, z)\nb = Add(p, q)\ny = Add(a, b)"),
    parse_pattern("two", "a = Neg(x)\ny = Add(a, z)\nreturn a, y"),
    parse_pattern("wide", "a = Neg(x)\nb = Abs(x)\nreturn a, b"),
    parse_pattern("split", "a, b = Split(x)\nn = Neg(a)?\ny = Add(n, b)"),
    parse_pattern("constant", "a = Add(x, w!)\ny = Sub(z, a)\n"),
    parse_pattern("ending", "a = Sub(x, z)\nm = Mul(a, q)?\ny = Neg(m)?"),
    parse_pattern("either", ["a = Neg(x)\ny = Abs(a)", "a = Abs(x)\ny = Neg(a)"]),
]


def forms(form: PatternForm) -> Iterator[tuple[list[tuple[str, ...]], dict[str, str]]]:
    """Yield the lines that are there, and what stands for what is not, for each choice."""
    optional = [line.output for line in form.nodes if line.optional]
    for choice in product([False, True], repeat=len(optional)):
        gone = {name for name, there in zip(optional, choice, strict=True) if not there}
        instead: dict[str, str] = {}
        for line in form.nodes:
            if line.output in gone:
                first = line.operands[0].name
                instead[line.output] = instead.get(first, first)
        yield [line.outputs for line in form.nodes if line.output not in gone], instead


def brute_force(index: GraphIndex, pattern: Pattern) -> _Sets:
    """Return the nodes of every match, by trying each assignment of nodes to lines."""
    result: _Sets = set()
    for form in pattern.forms:
        for there, instead in forms(form):
            lines = [line for line in form.nodes if line.outputs in there]
            outputs = [instead.get(name, name) for name in form.outputs]
            if not {n for line in lines for n in line.outputs} >= set(outputs):
                continue
            for chosen in permutations(range(len(index.nodes)), len(lines)):
                if index.constant_nodes.isdisjoint(chosen):
                    ways = product(*(orders(index.nodes[i]) for i in chosen))
                    if any(fits(index, lines, chosen, way, instead, outputs) for way in ways):
                        result.add(frozenset(index.nodes[i].name for i in chosen))
    return result


def orders(node: NodeProto) -> list[tuple[str, ...]]:
    given = tuple(node.input)
    return [given, given[::-1]] if node.op_type in _COMMUTATIVE else [given]


def fits(  # noqa: PLR0917
    index: GraphIndex,
    lines: Sequence[PatternLine],
    chosen: Sequence[int],
    way: Sequence[tuple[str, ...]],
    instead: Mapping[str, str],
    outputs: Sequence[str],
) -> bool:
    bound: dict[str, str] = {}
    made = {name for i in chosen for name in index.nodes[i].output}
    for line, number, inputs in zip(lines, chosen, way, strict=True):
        node = index.nodes[number]
        if node.op_type not in line.ops or len(node.output) != len(line.outputs):
            return False
        if len(inputs) != len(line.operands):
            return False
        for operand, tensor in zip(line.operands, inputs, strict=True):
            if operand.constant and not index.is_constant(tensor):
                return False
        called = [instead.get(operand.name, operand.name) for operand in line.operands]
        pairs = [*zip(called, inputs, strict=True), *zip(line.outputs, node.output, strict=True)]
        if any(bound.setdefault(name, tensor) != tensor for name, tensor in pairs):
            return False
    named = {name for line in lines for name in line.outputs}
    leaving = {bound[name] for name in outputs}
    for name in made - leaving:
        if name in index.outputs or not set(readers(index, name)) <= set(chosen):
            return False
    return made.isdisjoint(t for n, t in bound.items() if n not in named) and convex(index, set(chosen))


@settings(deadline=None, max_examples=examples(150))
@given(st.integers(1, 7), st.randoms(use_true_random=False))
def test_the_same_as_brute_force(size: int, chance: random.Random) -> None:
    index = random_index(size, chance)
    for pattern in PATTERNS:
        assert found(index, pattern) == brute_force(index, pattern), pattern.name


@settings(deadline=None, max_examples=examples(150))
@given(st.integers(2, 20), st.randoms(use_true_random=False))
def test_the_order_of_the_nodes_in_the_file_is_nothing(size: int, chance: random.Random) -> None:
    index = random_index(size, chance)
    shuffled, pending, made = [], list(index.nodes), {"x", "w"}
    while pending:
        ready = [node for node in pending if made.issuperset(node.input)]
        shuffled.append(chance.choice(ready))
        pending.remove(shuffled[-1])
        made.update(shuffled[-1].output)
    other = index_of(shuffled, list(index.outputs))
    for pattern in PATTERNS:
        assert found(index, pattern) == found(other, pattern)


@settings(deadline=None, max_examples=examples(150))
@given(st.integers(1, 25), st.randoms(use_true_random=False), st.permutations(PATTERNS))
def test_units_form_no_cycle(size: int, chance: random.Random, patterns: list[Pattern]) -> None:
    """Composites of several outputs among them; each node is once in what comes out, and in order."""
    index = random_index(size, chance)
    marks = [Mark(refuse("no")) if chance.random() < 0.1 else mark for mark in taken(index)]
    units = group_units(index, patterns, marks)
    placed = sorted(node for unit in units for node in unit.nodes)
    assert placed == [i for i in range(len(index.nodes)) if i not in index.constant_nodes]
    done = set(index.constant_nodes)
    for unit in units:
        names = {name for node in unit.nodes for name in index.reads[node]}
        sources = {index.producers[name] for name in names if name in index.producers}
        assert sources <= done | set(unit.nodes)
        done.update(unit.nodes)
    assert units == group_units(index, patterns, marks)


WHOLE = [
    *(pattern for pattern in PATTERNS if pattern.name != "split"),
    parse_pattern("any", "a = Add(x, ...)\ny = *(a)"),
]


@settings(deadline=None, max_examples=examples(60))
@given(st.integers(2, 25), st.randoms(use_true_random=False), st.permutations(WHOLE))
def test_the_partitioned_model_computes_the_same(
    size: int, chance: random.Random, patterns: list[Pattern]
) -> None:
    """On plain onnxruntime, unoptimized: composites of several outputs, whatever is placed where."""
    index = random_index(size, chance, ("Neg", "Abs", "Add", "Mul", "Sub"))
    model = prepare_model(index.proto, "random")
    chosen = [pattern for pattern in patterns if chance.random() < 0.5]
    rules = [{"name": pattern.name, "pattern": pattern.texts} for pattern in chosen]
    every = {"target": "t", "cost_model": "dla", "dtype": "any", "ops": [{"op": "*"}]}
    strategy = Random(chance.randrange(1000)) if chance.random() < 0.5 else AllSupported()
    plan = planned(model, make_target({**every, "composites": rules}), strategy)
    onnx.checker.check_model(plan.proto, full_check=True)
    inputs = sample_inputs(model.index, 0)
    expected, actual = run_plain(model.proto, model, inputs), run_plain(plan.proto, model, inputs)
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value)
