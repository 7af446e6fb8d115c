"""Every feature of the pattern language, with a graph that has it and graphs that nearly do.

What is found is outlined, and the partitioned model computes on plain onnxruntime, unoptimized, the very
numbers that the original does.
"""

from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from helpers.cutting import planned
from helpers.ruling import make_target
from helpers.strategies import Random
from helpers.support import parse as onnx_text

from byoc.errors import YES
from byoc.model import prepare_model
from byoc.patterns import Mark, group_units, parse_pattern
from byoc.placement.strategies import AllSupported
from byoc.rules import Target
from byoc.samples import sample_inputs
from byoc.verification import run_plain

HEAD = """g (float[1,4,2,2] x, float[1,4,2,2] z) => (float[1,4,2,2] out)
<float[4,4,1,1] w = {0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8},
 float[4] b = {1,2,3,4},
 float half = {0.5}, float[1] near = {0.5002}, float[1,1,1] cube = {0.5}, float[2] two = {0.5,0.5},
 double wide = {0.5}, float third = {0.333},
 int64[4] same = {0,0,0,-1}, int64[4] flat = {1,4,2,2}, int64[3] col = {4,1,1},
 float tenth = {0.1}, float hi = {6}, float lo = {0}, float[1] sq = {2}, int64[1] axis = {1}> {
"""


@dataclass(frozen=True)
class Case:
    """A pattern, bodies in which it is found (each with the function's name), and others."""

    pattern: str | tuple[str, ...]
    found: tuple[tuple[str, str], ...]
    refused: tuple[str, ...] = ()
    where: tuple[str | tuple[str, str], ...] = ()


CASES = {
    "attribute": Case(
        "c = Conv <group = 1, kernel_shape = [1, 1], pads = [0,0,0,0], auto_pad = 'NOTSET'> (x, w)",
        (("p", "out = Conv (x, w)"), ("p", "out = Conv <group = 1, strides = [1, 1]> (x, w)")),
        ('out = Conv <auto_pad = "SAME_UPPER"> (x, w)',),
    ),
    "attribute as a float": Case(
        "y = LeakyRelu <alpha = 0.1> (x)",
        (("p", "out = LeakyRelu <alpha = 0.1> (x)"),),
        ("out = LeakyRelu (x)", "out = LeakyRelu <alpha = 0.1001> (x)"),
    ),
    "attribute by default": Case(
        "y = LeakyRelu <alpha = 0.01> (x)", (("p", "out = LeakyRelu (x)"),), ("out = Relu (x)",)
    ),
    "attribute in a range or a set": Case(
        "y = Softmax <axis = 2..3|-1> (x)",
        (("p", "out = Softmax <axis = 3> (x)"), ("p", "out = Softmax (x)")),
        ("out = Softmax <axis = 1> (x)", "out = Softmax <axis = -2> (x)"),
    ),
    "attribute that is absent": Case(
        "s = Shape <end = absent> (x)\ny = Expand(z, s)",
        (("p", "s0 = Shape (x)\n out = Expand (z, s0)"),),
        ("s0 = Shape <end = 4> (x)\n out = Expand (z, s0)",),
    ),
    "constant": Case(
        "y = Conv(x, w!)",
        (("p", "out = Conv (x, w)"), ("p", "k = Neg (w)\n out = Conv (x, k)")),
        ("out = Add (x, z)",),
    ),
    "scalar": Case(
        "y = Mul(x, 0.5)",
        tuple(
            ("p", body)
            for body in (
                "out = Mul (x, half)",
                "out = Mul (near, x)",
                "out = Mul (x, cube)",
                "c = Constant <value_float = 0.5> ()\n out = Mul (x, c)",
                "c = Constant <value = float {0.5}> ()\n out = Mul (c, x)",
                "c = Cast <to = 1> (wide)\n out = Mul (x, c)",
                "o = Neg (half)\n c = Neg (o)\n out = Mul (x, c)",
            )
        ),
        ("out = Mul (x, third)", "out = Mul (x, z)", "t = Sum (half, half)\n out = Mul (x, t)"),
    ),
    "scalar that has more elements": Case(
        "y = Add(x, 1)",
        (("p", "c = Constant <value_float = 1.0> ()\n out = Add (x, c)"),),
        ("k = Reshape (b, col)\n out = Add (x, k)",),
    ),
    "vector": Case(
        "y = Reshape(x, [0, 0, 0, -1])",
        (("p", "out = Reshape (x, same)"),),
        ("out = Reshape (x, flat)",),
    ),
    "optional line": Case(
        "c = Conv(x, w)\nn = Neg(c)?\ny = Relu(n)",
        (
            ("p", "c0 = Conv (x, w)\n n0 = Neg (c0)\n out = Relu (n0)"),
            ("p_no_n", "c0 = Conv (x, w)\n out = Relu (c0)"),
        ),
        ("c0 = Conv (x, w)\n n0 = Exp (c0)\n out = Relu (n0)",),
    ),
    "optional last line": Case(
        "c = Conv(x, w)\ny = Relu|Tanh(c)?",
        (
            ("p", "c0 = Conv (x, w)\n out = Relu (c0)"),
            ("p_tanh", "c0 = Conv (x, w)\n out = Tanh (c0)"),
            ("p_no_y", "c0 = Conv (x, w)\n out = Exp (c0)"),
        ),
        ("out = Relu (x)",),
    ),
    "optional lines with a line of their own": Case(
        "c = Conv(x, w)\ns = Sigmoid(c)\nm = Mul(c, s)?\ny = Neg(m)",
        (
            ("p", "c0 = Conv (x, w)\n s0 = Sigmoid (c0)\n m0 = Mul (s0, c0)\n out = Neg (m0)"),
            ("p_no_m", "c0 = Conv (x, w)\n out = Neg (c0)"),
        ),
        ("c0 = Conv (x, w)\n s0 = Sigmoid (c0)\n m0 = Mul (s0, s0)\n out = Neg (m0)",),
    ),
    "optional lines before an input": Case(
        "a = Neg(x)?\nb = Abs(a)?\ny = Relu(b)",
        (
            ("p", "a0 = Neg (x)\n b0 = Abs (a0)\n out = Relu (b0)"),
            ("p_no_b", "a0 = Neg (x)\n out = Relu (a0)"),
            ("p_no_a", "b0 = Abs (x)\n out = Relu (b0)"),
            ("p_no_a_no_b", "out = Relu (x)"),
        ),
    ),
    "several outputs of a node": Case(
        "a, b = Split <axis = 1> (x)\nn = Neg(a)\ny = Concat <axis = 1> (n, b)",
        (("p", "s, t = Split <axis = 1> (x)\n n0 = Neg (s)\n out = Concat <axis = 1> (n0, t)"),),
        (
            "s, t = Split <axis = 1> (x)\n n0 = Neg (t)\n out = Concat <axis = 1> (n0, s)",
            "s, t, u, v = Split <axis = 1> (x)\n n0 = Neg (s)\n n1 = Concat <axis = 1> (n0, t)\n"
            " out = Concat <axis = 1> (n1, u, v)",
        ),
    ),
    "an output without a name": Case(
        "a, _ = Split <axis = 1> (x)\ny = Relu(a)",
        (("p", "s, t = Split <axis = 1> (x)\n r = Relu (s)\n out = Concat <axis = 1> (r, r)"),),
        ("s, t = Split <axis = 1> (x)\n r = Relu (s)\n out = Concat <axis = 1> (r, t)",),
    ),
    "several outputs": Case(
        "c = Conv(x, w)\ny = Relu(c)\nreturn c, y",
        (
            ("p", "c0 = Conv (x, w)\n r0 = Relu (c0)\n out = Add (r0, c0)"),
            ("p", "c0 = Conv (x, w)\n n = Neg (c0)\n r0 = Relu (c0)\n out = Add (n, r0)"),
        ),
        ("c0 = Conv (x, w)\n out = Neg (c0)",),
    ),
    "branches from one input": Case(
        "a = Conv(x, v!)\nb = Conv(x, w!)\nn = Neg(b)\nreturn a, n",
        (
            (
                "p",
                "k = Abs (w)\n a0 = Conv (x, k)\n b0 = Conv (x, w)\n n0 = Neg (b0)\n out = Add (a0, n0)",
            ),
        ),
        (
            "a0 = Conv (x, w)\n b0 = Conv (a0, w)\n n0 = Neg (b0)\n out = Add (a0, n0)",
            "a0 = Conv (x, w)\n b0 = Conv (z, w)\n n0 = Neg (b0)\n out = Add (a0, n0)",
        ),
    ),
    "a path that leaves and comes back": Case(
        "a = Neg(x)\ny = Add(a, z)\nreturn a, y",
        (("p", "a0 = Neg (x)\n b0 = Exp (a0)\n y0 = Add (a0, z)\n out = Mul (b0, y0)"),),
        ("a0 = Neg (x)\n b0 = Exp (a0)\n y0 = Add (a0, b0)\n out = Mul (a0, y0)",),
    ),
    "alternatives of differing operands": Case(
        "c = Conv(x, w)\ny = Relu|Clip|LeakyRelu <alpha = 0.1> (c, low?, high?)",
        (
            ("p", "c0 = Conv (x, w)\n out = Relu (c0)"),
            ("p_clip", "c0 = Conv (x, w)\n out = Clip (c0, lo, hi)"),
            ("p_clip", "c0 = Conv (x, w)\n out = Clip (c0, , hi)"),
            ("p_leakyrelu", "c0 = Conv (x, w)\n out = LeakyRelu <alpha = 0.1> (c0)"),
        ),
        ("c0 = Conv (x, w)\n out = LeakyRelu (c0)", "c0 = Conv (x, w)\n out = Tanh (c0)"),
    ),
    "literals that may be left out": Case(
        "y = Clip(x, 0?, 6)",
        (("p", "out = Clip (x, lo, hi)"), ("p", "out = Clip (x, , hi)")),
        ("out = Clip (x, lo)", "out = Clip (x, hi, hi)"),
    ),
    "any operator": Case(
        "c = Conv(x, w)\ny = *(c)\nr = Relu(y)",
        (
            ("p_exp", "c0 = Conv (x, w)\n e = Exp (c0)\n out = Relu (e)"),
            ("p_softmax", "c0 = Conv (x, w)\n e = Softmax <axis = 1> (c0)\n out = Relu (e)"),
        ),
        ("c0 = Conv (x, w)\n e = Add (c0, z)\n out = Relu (e)",),
    ),
    "further operands": Case(
        "a = Neg(x)\ny = Sum|Add(a, ...)\nr = Relu(y)",
        (
            ("p", "a0 = Neg (x)\n s = Sum (a0)\n out = Relu (s)"),
            ("p_sum_plus3", "a0 = Neg (x)\n s = Sum (a0, z, x, z)\n out = Relu (s)"),
            ("p_add_plus1", "a0 = Neg (x)\n s = Add (z, a0)\n out = Relu (s)"),
        ),
        (
            "a0 = Neg (x)\n s = Sum (z, a0, x)\n out = Relu (s)",
            "a0 = Neg (x)\n s = Sum (a0, a0, x)\n out = Relu (s)",
        ),
    ),
    "variants": Case(
        ("s = Sigmoid(x)\ny = Mul(x, s)", "y = Elu(x)"),
        (("p", "s0 = Sigmoid (x)\n out = Mul (x, s0)"), ("p_v2", "out = Elu (x)")),
        ("s0 = Sigmoid (x)\n out = Add (x, s0)",),
    ),
    "where": Case(
        "c = Conv(x, w)\nn = Neg(c)?\ny = Relu(n)",
        (("p", "c0 = Conv (x, w)\n n0 = Neg (c0)\n out = Relu (n0)"),),
        ("c0 = Conv (x, w)\n out = Relu (c0)",),
        ("n.given", "c.attr.group == 1 && w.constant && x.shape[1] == 4 && y.op == 'Relu'"),
    ),
    "two of one operator": Case(
        "a = Mul(x, 0.5)\ny = Mul(a, 0.333)",
        (("p", "a0 = Mul (x, half)\n out = Mul (third, a0)"),),
        ("a0 = Mul (x, third)\n out = Mul (a0, half)",),
    ),
}


def target(case: Case) -> Target:
    where = [w if isinstance(w, str) else {"expr": w[0], "reason": w[1]} for w in case.where]
    composite = {"name": "p", "pattern": case.pattern, "where": where}
    every = {"target": "t", "cost_model": "dla", "dtype": "any", "ops": [{"op": "*"}]}
    return make_target({**every, "composites": [composite]})


@pytest.mark.parametrize(
    ("case", "name", "body"),
    [(case, name, body) for case in CASES.values() for name, body in case.found],
    ids=[f"{key}-{i}" for key, case in CASES.items() for i in range(len(case.found))],
)
def test_found_outlined_and_equal(case: Case, name: str, body: str) -> None:
    model = prepare_model(onnx_text(f"{HEAD}{body}\n}}"), "test")
    for strategy in (AllSupported(), Random(1)):
        plan = planned(model, target(case), strategy)
        assert [unit.on_device[0][0].composite for unit in plan.units].count("p") >= 1
        onnx.checker.check_model(plan.proto, full_check=True)
        inputs = sample_inputs(model.index, 0)
        expected = run_plain(model.proto, model, inputs)
        actual = run_plain(plan.proto, model, inputs)
        for key, value in expected.items():
            np.testing.assert_array_equal(actual[key], value)
        if strategy == AllSupported():
            functions = {f.name: f for f in plan.proto.functions}
            assert name in functions
            noted = [
                entry.value for entry in functions[name].metadata_props if entry.key == "byoc.composite"
            ]
            assert noted == ["p"]
            calls = [n for f in plan.proto.functions for n in f.node if n.op_type == name]
            assert [e.value for n in calls for e in n.metadata_props if e.key == "byoc.composite"] == [
                "p"
            ] * len(calls)


@pytest.mark.parametrize(
    ("case", "body"),
    [(case, body) for case in CASES.values() for body in case.refused],
    ids=[f"{key}-{i}" for key, case in CASES.items() for i in range(len(case.refused))],
)
def test_not_found(case: Case, body: str) -> None:
    index = prepare_model(onnx_text(f"{HEAD}{body}\n}}"), "test").index
    pattern = parse_pattern(
        "p", case.pattern if isinstance(case.pattern, str) else list(case.pattern), case.where
    )
    units = group_units(index, [pattern], [Mark(YES, "ops[0]")] * len(index.nodes))
    assert [unit.composite for unit in units if unit.composite] == []
