"""How random graphs are grouped, whatever is right about it: units, rivals, near misses, and the work.

What may not be is tested elsewhere: circles, nodes in two units, matches that are none. Here it is which
of several right answers is taken, and after how many attempts: read the difference, then `pytest
--regenerate`.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
from onnx import NodeProto, helper, numpy_helper

from byoc.errors import YES, refuse
from byoc.model import GraphIndex
from byoc.patterns import (
    ContractionOrder,
    Mark,
    Pattern,
    Unit,
    find_matches,
    find_near_misses,
    group_units,
    group_with_alternatives,
    join_units,
    open_units,
    parse_pattern,
)

Golden = Callable[[str, str], None]
ONE, TWO = ("Relu", "Neg", "Abs"), ("Add", "Mul", "Sum")
TEXTS = {
    "long": "a = Relu(x)\nb = Add(a, y)\nc = Neg(b)?",
    "pair": "a = Add|Mul(x, y)\nb = Relu|Abs(a)",
    "fork": "a = Relu(x)\nb = Neg(a)\nc = Abs(a)\nreturn b, c",
    "any": "a = *(x)\nb = Mul(a, a)",
    "sum": "a = Sum(x, ...)\nb = Neg(a)?\nc = Relu(b)",
    "leaky": "a = LeakyRelu<alpha = 0.1..0.3 | 0.5>(x)\nb = Add(a, y!)",
    "deep": "a = Relu(x)\nb = Neg(a)\nc = Add(b, y)\nd = Mul(c, z)\ne = Relu(d)",
    "quantized": "a = DequantizeLinear(x, s, z)\nb = Add(a, y)\nc = QuantizeLinear(b, t, u)",
}
PATTERNS = [parse_pattern(name, text) for name, text in TEXTS.items()]


def make_index(seed: int, size: int, quantized: bool = False) -> GraphIndex:
    """A random graph, also with QDQ nodes, of which a few have a scale that is computed."""
    chance = random.Random(seed)
    names, nodes = ["x0", "x1"], list[NodeProto]()

    def add(op: str, inputs: Sequence[str], **more: object) -> str:
        name = f"t{len(nodes)}"
        nodes.append(helper.make_node(op, inputs, [name], name=f"n{len(nodes)}", **more))  # type: ignore[arg-type]
        names.append(name)
        return name

    def pick() -> str:
        kind = chance.random()
        return names[-1] if kind < 0.6 else chance.choice(names[-4:] if kind < 0.9 else names)

    while len(nodes) < size:
        kind = chance.random()
        if quantized and kind < 0.45:
            first = add("QuantizeLinear", [pick(), "s", "z"])
            scale = pick() if chance.random() < 0.05 else "s"
            read = add("DequantizeLinear", [first, scale, "z"])
            two = [read, chance.choice([read, "w", pick()])]
            made = add(chance.choice(TWO), two) if kind < 0.3 else add(chance.choice(ONE), [read])
            if kind < 0.4:
                add("DequantizeLinear", [add("QuantizeLinear", [made, "s", "z"]), "s", "z"])
        elif kind < 0.6:
            add(chance.choice(ONE), [pick()])
        elif kind < 0.9:
            add(chance.choice(TWO), [pick(), chance.choice([pick(), "w"])])
        elif kind < 0.95:
            add("Sum", [pick() for _ in range(chance.randint(1, 4))])
        else:
            add("LeakyRelu", [pick()], alpha=chance.choice([0.05, 0.2, 0.5]))
    outputs = {names[-1], *(name for name in names[2:] if chance.random() < 0.05)}
    values = [helper.make_tensor_value_info(name, 1, [2]) for name in ("x0", "x1", *sorted(outputs))]
    stored = {"w": np.ones(2, np.float32), "s": np.float32(0.5), "z": np.uint8(3)}
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items()]
    graph = helper.make_graph(nodes, "g", values[:2], values[2:], tensors)
    return GraphIndex(helper.make_model(graph), {})


def make_marks(index: GraphIndex, seed: int, quantized: bool = False) -> list[Mark]:
    """Nodes that are taken, some of them in composites alone, or in integers alone."""
    chance = random.Random(seed)
    marks = []
    for number, node in enumerate(index.nodes):
        if node.op_type in {"QuantizeLinear", "DequantizeLinear"}:
            marks.append(Mark(refuse("no rule takes it")))
            continue
        taken = YES if chance.random() < 0.9 else refuse(f"refused {number}")
        mark = Mark(taken, f"ops[{number % 3}]", chance.random() < 0.9, chance.random() < 0.1)
        if quantized:
            kind = chance.random()
            mark = replace(
                mark,
                accepts_quantized=kind < 0.7,
                accepts_plain=kind > 0.3,
                not_quantized="a scale is none" if kind > 0.7 else "",
            )
        marks.append(mark)
    return marks


def describe(units: Iterable[Unit]) -> str:
    return " ".join(
        f"{unit.composite or unit.kind}{list(unit.nodes)}".replace(" ", "")
        + ("!" if unit.must else "")
        + ("" if unit.verdict else "-")
        for unit in units
    )


@pytest.mark.parametrize("quantized", [False, True])
def test_units(quantized: bool, golden: Golden) -> None:
    rows = []
    for seed in range(24):
        index = make_index(seed, 10 + 2 * seed, quantized)
        marks = make_marks(index, seed, quantized)
        units = group_units(index, PATTERNS, marks)
        rows.append(f"{seed}: {describe(units)}")
        told = {str(unit.verdict) for unit in units if not unit.verdict}
        rows += [f"    {text}" for text in sorted(told) if "refused" not in text]
        kept, rivals = group_with_alternatives(index, PATTERNS, marks)
        rows.append(f"    {describe(kept)} | {describe(rivals)}")
    golden(f"patterns/units{'_quantized' * quantized}.txt", "\n".join(rows) + "\n")


@pytest.mark.parametrize("quantized", [False, True])
def test_units_of_several_accelerators(quantized: bool, golden: Golden) -> None:
    rows = []
    for seed in range(24):
        index = make_index(seed, 10 + 2 * seed, quantized)
        every = [make_marks(index, seed + 100 * number, quantized) for number in range(2 + seed % 2)]
        few: list[Sequence[Pattern]] = [PATTERNS, PATTERNS[::-1], PATTERNS[::2]]
        units = [
            group_units(index, patterns, marks) for patterns, marks in zip(few, every, strict=False)
        ]
        divided, rivals = open_units(index, units, every)
        rows += [
            f"{seed}: {describe(own)} | {describe(rival)}"
            for own, rival in zip(divided, rivals, strict=True)
        ]
        for name, given in (("joint", units), ("opened", divided)):
            joint = join_units(index, given, every)
            parts = " ".join(
                f"{list(each.nodes)}".replace(" ", "")
                + "!" * each.must
                + "".join("+-"[not each.is_supported(device)] for device in range(len(every)))
                for each in joint
            )
            rows.append(f"    {name}: {parts}")
    golden(f"patterns/joint{'_quantized' * quantized}.txt", "\n".join(rows) + "\n")


@pytest.mark.parametrize("quantized", [False, True])
def test_near_misses(quantized: bool, golden: Golden) -> None:
    rows = []
    for seed in range(16):
        index = make_index(seed, 10 + 2 * seed, quantized)
        marks = make_marks(index, seed, quantized)
        for node in (None, seed % len(index.nodes)):
            rows.append(f"{seed}, {node}:")
            rows += [
                f"    {each.node} {each.matched}/{each.lines} {sorted(each.nodes)} {each.blocked} {each}"
                for each in find_near_misses(index, PATTERNS, marks, node)
            ]
    text = "\n".join(rows) + "\n"
    assert text.count("\n    ") > 50
    golden(f"patterns/near_misses{'_quantized' * quantized}.txt", text)


@pytest.mark.parametrize(("depth", "count"), [(2, 4), (3, 8), (4, 8)])
def test_of_many_matches_that_begin_at_a_node_eight_are_found(depth: int, count: int) -> None:
    """A line of sums is found along each way from the root of a binary tree to a leaf."""
    nodes = [helper.make_node("Relu", ["x0"], [f"t{2**depth + leaf}"]) for leaf in range(2**depth)]
    for number in reversed(range(1, 2**depth)):
        inputs = [f"t{2 * number}", f"t{2 * number + 1}"]
        nodes.append(helper.make_node("Add", inputs, [f"t{number}"]))
    values = [helper.make_tensor_value_info(name, 1, [2]) for name in ("x0", "t1")]
    index = GraphIndex(helper.make_model(helper.make_graph(nodes, "g", values[:1], values[1:])), {})
    lines = [f"a{number + 1} = Add(a{number}, y{number})" for number in range(depth)]
    pattern = parse_pattern("p", "\n".join(["a0 = Relu(x)", *lines]))
    matches = find_matches(index, [pattern], set(range(len(nodes))))
    assert [len(match.nodes) for match in matches] == [depth + 1] * count


def digest(values: Iterable[object]) -> str:
    return sha256(" ".join(map(str, values)).encode()).hexdigest()[:8]


def test_orders_after_joining(golden: Golden) -> None:
    rows = []
    for seed in range(40):
        chance = random.Random(seed)
        size = 8 + seed
        order = ContractionOrder(make_index(seed, size))
        found = []
        for _ in range(size // 2):
            near = chance.randrange(size)
            nodes = {near, *(min(size - 1, near + chance.randrange(9)) for _ in range(2))}
            found.append(order.find_returning_node(nodes))
            found.append(order.join(nodes))
        groups = sorted({tuple(sorted(group)) for group in order.group_of.values()})
        rows.append(
            f"{seed}: {order._visited_edges} edges, {order._positions_differ}, {digest(found)} "
            f"{digest(order.position)} {digest(groups)}"
        )
    golden("patterns/orders.txt", "\n".join(rows) + "\n")
