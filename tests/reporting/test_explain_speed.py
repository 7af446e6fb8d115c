"""The work of explaining stays within a budget, whatever the graph and the patterns."""

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.support import count_calls
from onnx import NodeProto, TensorProto, helper

from byoc.errors import YES
from byoc.model import Model, prepare_model
from byoc.patterns import Mark, Pattern, find_near_misses, parse_pattern
from byoc.reporting import explain, make_explanation_document
from byoc.rules import load_rules, read_library
from byoc.zoo import load_model

SIZE = 5_000
_MAX_CALLS = 5_000_000  # of functions; graphs of four times the size need about as many


def graph(nodes: list[NodeProto]) -> Model:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "z", "out")]
    made = helper.make_graph(nodes, "g", values[:2], values[2:])
    return prepare_model(
        helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "t"
    )


def chain(other: Callable[[int], str]) -> Model:
    names = ["x", *(f"t{i}" for i in range(SIZE - 1)), "out"]
    return graph(
        [
            helper.make_node("Add", [names[i], other(i)], [names[i + 1]], names[i + 1])
            for i in range(SIZE)
        ]
    )


def fan() -> Model:
    ends = [f"f{i}" for i in range(5_000)]
    ops = (helper.make_node("Neg" if i % 2 else "Abs", ["h"], [end], end) for i, end in enumerate(ends))
    return graph([helper.make_node("Relu", ["x"], ["h"]), *ops, helper.make_node("Sum", ends, ["out"])])


def adds(last: str) -> Pattern:
    """Return a pattern of 50 lines, the order of whose operands can be chosen at each."""
    lines = [f"a{i} = Add({f'a{i - 1}' if i else 'x'}, z{i})" for i in range(49)]
    return parse_pattern("adds", "\n".join([*lines, f"y = {last}(a48, z)"]))


@pytest.mark.parametrize(
    ("model", "pattern"),
    [
        (lambda: chain(lambda _: "z"), adds("Add")),
        pytest.param(lambda: chain(lambda _: "z"), adds("Mul"), marks=pytest.mark.thorough),
        pytest.param(
            lambda: chain(lambda i: f"t{i - 2}" if i > 1 else "z"),
            adds("Add"),
            marks=pytest.mark.thorough,
        ),
        (fan, parse_pattern("p", "r = Relu(x)\nn = Neg(r)\ny = Exp(n)")),
        (fan, parse_pattern("p", "r = Relu(x)\nn = Neg(r)\na = Abs(r)\ny = Mul(n, a)")),
        (fan, parse_pattern("p", "n = Neg(r)\na = Abs(r)\ne = Exp(a)\nreturn n, e")),
    ],
)
def test_what_nearly_matched_is_found_within_a_budget(
    model: Callable[[], Model], pattern: Pattern
) -> None:
    index = model().index
    marks = [Mark(YES, "ops[0]")] * len(index.nodes)

    def explain() -> None:
        find_near_misses(index, [pattern], marks, matches=())

    assert count_calls(explain, most=_MAX_CALLS) > len(index.nodes)


@pytest.mark.thorough
def test_ten_thousand_nodes_and_the_whole_library(tmp_path: Path) -> None:
    """Most of the nodes refused, each by some constraint."""
    composites = "".join(f"  - library: {name}\n" for name in sorted(read_library().entries))
    (tmp_path / "t.yaml").write_text(
        "target: t\ncost_model: dla\ndtype: float32\nlimits: {batch: 4096}\nops:\n"
        "  - {op: MatMul, tensors: {B: {constant: true}}}\n"
        "  - {op: Add, tensors: {A: {rank: 2}}}\n"
        "  - {op: [Mul, Div, Softmax, Erf], opset: {min: 99}}\n"
        "  - {op: '*', where: ['opset > 99']}\n"
        f"composites:\n{composites}"
    )
    model, target = load_model("zoo:transformer_10k"), load_rules(str(tmp_path / "t.yaml"))
    found = make_explanation_document(explain(model, target, no_passes="all", keep_open=True))
    assert found.nodes.refused > 5_000
    assert found.relax
