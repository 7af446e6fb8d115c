"""The suite's tools on small models whose answers are known, and on a few of the zoo."""

import numpy as np
import pytest
from data_dependence import find_data_dependence
from helpers.support import parse
from operation_counts import count_multiplications, count_operations
from reference_run import Execution, run_profiled, walk_nodes
from unknown_shapes import Row, fix_inputs, format_comparison, measure

from byoc import zoo

_CHOSEN = """g (float[4, 8] x) => (float[n, m] y) {
    where = NonZero(x)
    row = Constant<value_int: int = 0>()
    rows = Gather(where, row)
    y = Gather(x, rows)
}"""
_FOLLOWS = """g (float[4, 8] x) => (float[a, b] y) {
    extents = Shape(x)
    twice = Add(extents, extents)
    zeros = ConstantOfShape(twice)
    y = Relu(zeros)
}"""
_LOOP = """g (float[2, 3] x, int64 n) => (float[2, 3] y, float[k, 2, 3] all) {
    go = Constant<value = bool {1}>()
    y, all = Loop(n, go, x) <
        body = b (int64 i, bool c, float[2, 3] v) => (bool d, float[2, 3] w, float[2, 3] s) {
        d = Identity(c)
        w = Relu(v)
        s = Neg(w)
    }>
}"""


def test_data_decide_behind_nonzero_and_nowhere_behind_shape() -> None:
    chosen = find_data_dependence(parse(_CHOSEN))
    assert chosen.sources == ("NonZero",)
    assert chosen.nodes == {"0", "2", "3"}
    assert not find_data_dependence(parse(_FOLLOWS)).nodes


def test_data_decide_how_often_a_loop_runs_and_not_what_it_carries() -> None:
    found = find_data_dependence(parse(_LOOP))
    assert found.sources == ("Loop",)
    assert found.nodes == {"1"}


def test_a_profile_states_each_run_of_a_body() -> None:
    runs = run_profiled(parse(_LOOP), {"x": np.ones((2, 3), np.float32), "n": np.array(5)})
    assert len(runs["1"]) == 1
    assert runs["1/body/0/1"] == [Execution(((2, 3),), ((2, 3),), ("float",))] * 5


def test_work_is_that_of_the_formula() -> None:
    model = parse(
        "g (float[1, 3, 8, 8] x, float[4, 3, 3, 3] w, float[4, 7] m) => (float[a, b] y) {"
        "c = Conv(x, w) f = Flatten<axis = 3>(c) t = Transpose(f) "
        "y = Gemm<transA = 1>(m, m) unused = Relu(t) }"
    )
    nodes = dict(walk_nodes(model.graph))
    rng = np.random.default_rng(0)
    shapes = {"x": (1, 3, 8, 8), "w": (4, 3, 3, 3), "m": (4, 7)}
    runs = run_profiled(model, {n: rng.random(s, np.float32) for n, s in shapes.items()})
    found = {nodes[key].op_type: count_operations(nodes[key], run) for key, (run,) in runs.items()}
    assert found == {
        "Conv": 2 * 4 * 36 * 27,
        "Flatten": 0,
        "Transpose": 0,
        "Gemm": 2 * 7 * 7 * 4,
        "Relu": 144,
    }
    assert count_multiplications(nodes["0"], runs["0"][0]) == 4 * 36 * 27


def test_work_of_unknown_shape_is_what_the_run_had() -> None:
    inputs = {"x": np.eye(4, 8, dtype=np.float32)}
    row = measure("chosen", parse(_CHOSEN), inputs)
    assert (row.nodes, row.unknown_nodes, row.avoidable_nodes) == (3, 3, 0)
    assert (row.unknown_work, row.avoidable_work) == (1.0, 0.0)
    assert row.unknown_operators == ("NonZero",)


def test_extents_are_those_of_the_inputs() -> None:
    model = parse("g (float[n, ?] x) => (float[n, m] y) { y = Relu(x) }")
    fixed = fix_inputs(model, {"x": np.ones((3, 5), np.float32)})
    dims = [dim.dim_value for dim in fixed.graph.input[0].type.tensor_type.shape.dim]
    assert dims == [3, 5]
    assert fixed.graph.output[0].type.tensor_type.shape.dim[0].dim_value == 3


def test_two_measurements_stand_side_by_side() -> None:
    before = Row("a", 10, 5, 0.5, 5, 0.25, ("NonZero",), ())
    after = Row("a", 10, 1, 0.0, 0, 0.0, ("NonZero",), ())
    table = format_comparison([before], [after])
    assert "5 -> 1" in table
    assert "50.00% -> 0.00%" in table
    assert "25.00% -> 0.00%" in table
    assert "after: no unknown work in 1 of 1 models" in table


@pytest.mark.parametrize("name", ["squeezenet", "decoder_int4", "decoder_fp16_decode", "transformer_1k"])
def test_nothing_is_unknown(name: str) -> None:
    row = measure(name, zoo.load(name), zoo.sample_inputs(name))
    assert row.nodes > 30
    assert (row.unknown_nodes, row.unknown_work) == (0, 0.0)
