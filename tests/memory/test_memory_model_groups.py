"""Steps of several nodes, and nodes that are steps of their own whatever is inside them."""

import onnx
import pytest
from helpers.support import prepared

from byoc.memory.reading import MemoryModel, find_quantized_groups, read_memory_model
from byoc.model import unshare_dequantize
from byoc.zoo import load_model

BLOCK = """g (float[1, 4, 6, 6] x, float[4, 4, 1, 1] w) => (float[1, 144] y) {
    a = Conv(x, w)
    b = Relu(a)
    c = Conv(b, w)
    d = Add(c, b)
    y = Flatten(d)
}"""


def _steps(model: MemoryModel) -> list[tuple[str, list[str], list[str], list[str]]]:
    """Return each step with the names of what it reads, makes, and may write over."""
    problem = model.problem
    return [
        (
            step.name,
            [problem.names[b] for b in step.reads],
            [problem.names[b] for b in step.writes],
            [problem.names[b] for b in step.may_overwrite],
        )
        for step in problem.steps
    ]


def test_a_node_with_bodies_is_one_step() -> None:
    text = """g (bool p, float[8] x) => (float[8] y) {
        outer = Exp(x)
        y = If (p) <
            then_branch = t () => (float[8] r) { one = Sin(outer) r = Cos(one) },
            else_branch = e () => (float[8] s) { s = Neg(outer) }
        >
    }"""
    model = read_memory_model(prepared(text).index)

    assert _steps(model)[-1] == ("y", ["p", "outer"], ["y"], [])
    assert model.notes == ("If 'y' is one step: what its bodies need is not counted",)


CALLS = """<ir_version: 8, opset_import: ["": 17, "own": 1]>
g (float[4] x, float[4] z) => (float[4] y) { y = own.mixed(x, z) }
<domain: "own", opset_import: ["": 17]>
mixed (a, b) => (c) { s = Softmax(b) t = Relu(a) c = Add(t, s) }"""


def test_a_call_is_one_step_that_may_write_over_what_is_read_element_by_element() -> None:
    model = read_memory_model(load_model(onnx.parser.parse_model(CALLS)).index)

    assert _steps(model) == [("y", ["x", "z"], ["y"], ["x"])]
    assert model.notes == (
        "calls of functions are one step each, what is inside not counted: 1 of mixed",
    )


def test_groups_are_steps() -> None:
    index = prepared(BLOCK).index
    model = read_memory_model(index, groups=[[2, 3]])

    assert model.nodes == ((0,), (1,), (2, 3))
    # Relu's result is read by the convolution as well as element by element.
    assert _steps(model)[2] == ("d", ["b", "w"], ["d"], [])
    with pytest.raises(ValueError, match="waits for itself"):
        read_memory_model(index, groups=[[0, 2]])
    for groups in ([[0, 1], [1, 2]], [[1, 2], [0, 1]]):  # the node is named that both have
        with pytest.raises(ValueError, match=r"'b' .*in two groups"):
            read_memory_model(index, groups=groups)


def test_a_group_waits_for_all_that_it_reads() -> None:
    text = "g (float[4] x) => (float[4] y) { a = Exp(x) b = Sin(x) c = Sin(b) y = Add(a, c) }"
    model = read_memory_model(prepared(text).index, groups=[[0, 3]])

    assert [step.name for step in model.problem.steps] == ["b", "c", "y"]


QDQ = """g (float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y) {
    scale = Constant <value_float = 0.5> ()
    zero = Constant <value = int8 {0}> ()
    xq = QuantizeLinear(x, scale, zero)
    x1 = DequantizeLinear(xq, scale, zero)
    pooled = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x1)
    sum = Add(pooled, x1)
    relu = Relu(sum)
    q = QuantizeLinear(relu, scale, zero)
    y = DequantizeLinear(q, scale, zero)
}"""


def test_qdq_groups_read_and_write_integers() -> None:
    index = unshare_dequantize(prepared(QDQ)).index
    groups = find_quantized_groups(index)
    model = read_memory_model(index, groups=groups)

    assert [[index.nodes[n].op_type for n in group] for group in groups] == [
        ["DequantizeLinear", "MaxPool", "Add", "Relu", "QuantizeLinear"]
    ]
    assert [(name, makes) for name, _, makes, _ in _steps(model)] == [
        ("xq", ["xq"]),
        ("q", ["q"]),
        ("y", ["y"]),
    ]
    assert model.problem.sizes == (128, 32, 32, 128)


def test_a_float_that_leaves_makes_no_qdq_group() -> None:
    text = QDQ.replace("(float[1, 2, 4, 4] y)", "(float[1, 2, 4, 4] y, float[1, 2, 4, 4] relu)")

    assert not find_quantized_groups(unshare_dequantize(prepared(text)).index)
