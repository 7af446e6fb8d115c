"""QDQ groups: their nodes, what prevents them, and unchanged results."""

import numpy as np
import onnx
import pytest
from helpers.cutting import planned
from helpers.ruling import make_target
from helpers.strategies import Alternating, Random
from helpers.support import prepared

from byoc.costs import CostSettings, PlacementDevice, build_problem, load_device_costs, load_host_costs
from byoc.errors import YES, refuse
from byoc.model import GraphIndex, Model, prepare_model, unshare_dequantize
from byoc.patterns import Mark, Pattern, Unit, group_units, join_units, parse_pattern
from byoc.placement.strategies import AllSupported
from byoc.rules import Target
from byoc.samples import sample_inputs
from byoc.verification import run_plain

HEAD = """g (float[1,2,4,4] x) => (float[1,2,4,4] out)
<float s = {0.1}, int8 z = {0}, int8[2,2,1,1] wq = {1,2,3,4}, float ws = {0.05},
 int64[4] shape = {1,2,4,4}> {
 xq = QuantizeLinear (x, s, z)
 xd = DequantizeLinear (xq, s, z)
 wd = DequantizeLinear (wq, ws, z)
"""
CONV_RELU = parse_pattern("conv_relu", "c = Conv(x, w!, b?)\ny = Relu(c)")
CHAIN = """ c = Conv (xd, wd)
 r = Relu (c)
 rq = QuantizeLinear (r, s, z)
 rd = DequantizeLinear (rq, s, z)
 c2 = Conv (rd, wd)
 c2q = QuantizeLinear (c2, s, z)
 c2d = DequantizeLinear (c2q, s, z)
 a = Add (c2d, rd)
 aq = QuantizeLinear (a, s, z)
 out = DequantizeLinear (aq, s, z)
"""
QUANTIZED = Mark(YES, "ops[0]", accepts_plain=False, accepts_quantized=True)
BOTH = Mark(YES, "ops[0]", accepts_plain=True, accepts_quantized=True)
PLAIN = Mark(YES, "ops[1]")
NO = Mark(refuse("no"))
BORDERS = ("QuantizeLinear", "DequantizeLinear")


def model(body: str, opset: int = 17) -> Model:
    return prepared(f"{HEAD}{body}}}", opset=opset)


def marks(index: GraphIndex, **special: Mark) -> list[Mark]:
    """Return marks that take every operator inside a QDQ group, and neither Q nor DQ alone."""
    return [
        special.get(node.output[0], NO if node.op_type in BORDERS else QUANTIZED) for node in index.nodes
    ]


def group_by_name(body: str, *patterns: Pattern, **special: Mark) -> dict[str, Unit]:
    index = unshare_dequantize(model(body)).index
    return {unit.name: unit for unit in group_units(index, patterns, marks(index, **special))}


def outputs(index: GraphIndex, unit: Unit) -> set[str]:
    return {index.nodes[node].output[0] for node in unit.nodes}


def test_what_belongs_to_a_group() -> None:
    index = unshare_dequantize(model(CHAIN)).index
    units = {unit.name: unit for unit in group_units(index, [CONV_RELU], marks(index))}
    assert outputs(index, units["r"]) == {"xd", "c", "r", "rq"}
    assert outputs(index, units["c2"]) == {"rd", "c2", "c2q"}
    assert outputs(index, units["a"]) == {"c2d", "rd_for_1", "a", "aq"}
    assert [units[name].kind for name in ("r", "c2", "a", "xq")] == ["qdq", "qdq", "qdq", "node"]
    assert (units["r"].composite, units["c2"].composite) == ("conv_relu", None)
    assert units["r"].rules == ("ops[0]", "ops[0]")


def test_without_copies_a_shared_one_breaks_both() -> None:
    index = model(CHAIN).index
    units = {unit.name: unit for unit in group_units(index, [CONV_RELU], marks(index))}
    assert str(units["c2"].verdict) == (
        "Conv is no whole QDQ group: its input 'rd' is read by Add 'a', too"
    )
    assert units["r"].kind == "qdq"


ENDING = " yq = QuantizeLinear (y, s, z)\n out = DequantizeLinear (yq, s, z)\n"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("c = Conv (x, wd)\n y = Neg (c)\n", "its input 'x' comes from outside the graph"),
        (
            "n = Neg (x)\n c = Conv (n, wd)\n y = Neg (c)\n",
            "its input 'n' is made by Neg 'n', not by a DequantizeLinear",
        ),
        (
            "c = Conv (xd, wd)\n y = Tanh (c)\n",
            "its output 'c' is read by Tanh 'y', not by a QuantizeLinear alone",
        ),
        (
            "c = Conv (xd, wd)\n q = QuantizeLinear (c, s, z)\n d = DequantizeLinear (q, s, z)\n"
            " t = Tanh (c)\n y = Add (d, t)\n",
            "its output 'c' is read by Tanh 't', not by a QuantizeLinear alone",
        ),
        (
            "c = Conv (xd, wd)\n m = ReduceMax <keepdims = 0> (c)\n q = QuantizeLinear (x, m, z)\n"
            " y = DequantizeLinear (q, s, z)\n",
            "its output 'c' is read by ReduceMax 'm', not by a QuantizeLinear alone",
        ),
    ],
)
def test_what_breaks_a_group(body: str, reason: str) -> None:
    """ONNX Runtime #27545: a group with one member that is not supported is refused whole."""
    other = dict.fromkeys(("n", "t", "y", "m"), NO)
    units = group_by_name(body + ENDING, CONV_RELU, **other)
    assert not units["c"].verdict
    assert str(units["c"].verdict).startswith(f"Conv is no whole QDQ group: {reason}")
    assert all(unit.kind == "node" for unit in units.values())


def test_an_output_of_the_graph() -> None:
    units = group_by_name("out = Conv (xd, wd)\n")
    assert str(units["out"].verdict).endswith(
        "its output 'out' is an output of the graph, and is not quantized"
    )


def test_an_input_that_is_an_output_of_the_graph_as_well() -> None:
    body = CHAIN.replace("out =", "y =")
    text = f"{HEAD}{body}}}".replace("[1,2,4,4] out)", "[1,2,4,4] y, float[1,2,4,4] xd)")
    index = prepared(text, opset=17).index
    units = {unit.name: unit for unit in group_units(index, [CONV_RELU], marks(index))}
    assert str(units["r"].verdict) == (
        "conv_relu is no whole QDQ group: its input 'xd' is an output of the graph, too"
    )


def test_a_group_takes_every_quantizer_of_its_output_and_what_is_inside_is_none() -> None:
    body = """ c = Conv (xd, wd)
 r = Relu (c)
 s1 = Add (r, c)
 q1 = QuantizeLinear (s1, s, z)
 q2 = QuantizeLinear (s1, s, z)
 d1 = DequantizeLinear (q1, s, z)
 d2 = DequantizeLinear (q2, s, z)
 t1 = Tanh (d1)
 out = Mul (t1, d2)
"""
    pattern = parse_pattern("both", "c = Conv(x, w!)\ny = Relu(c)\ns = Add(y, c)")
    index = unshare_dequantize(model(body)).index
    special = marks(index, t1=PLAIN, out=PLAIN)
    units = {unit.name: unit for unit in group_units(index, [pattern], special)}
    assert outputs(index, units["s1"]) == {"xd", "c", "r", "s1", "q1", "q2"}
    several = parse_pattern("two", "c = Conv(x, w!)\ny = Relu(c)\ns = Add(y, c)\nreturn c, s")
    end = """u = QuantizeLinear (c, s, z)
 v = DequantizeLinear (u, s, z)
 n1 = Mul (t1, d2)
 out = Add (n1, v)"""
    more = model(body.replace("out = Mul (t1, d2)", end))
    index = unshare_dequantize(more).index
    special = marks(index, t1=PLAIN, n1=PLAIN, out=PLAIN)
    units = {unit.name: unit for unit in group_units(index, [several], special)}
    assert outputs(index, units["s1"]) == {"xd", "c", "r", "s1", "q1", "q2", "u"}


def test_what_another_composite_has_is_not_free() -> None:
    taken = parse_pattern("ends", "q = QuantizeLinear(a, b, c)\ny = DequantizeLinear(q, d, e)")
    body = " c = Conv (xd, wd)\n cq = QuantizeLinear (c, s, z)\n out = DequantizeLinear (cq, s, z)\n"
    every = dict.fromkeys(("cq", "out"), BOTH)
    units = group_by_name(body, taken, **every)
    assert units["out"].composite == "ends"
    assert str(units["c"].verdict) == (
        "Conv is no whole QDQ group: QuantizeLinear 'cq' belongs to another composite"
    )

    units = group_by_name(body, taken, xq=BOTH, xd=BOTH)
    assert units["xd"].composite == "ends"
    assert str(units["c"].verdict) == (
        "Conv is no whole QDQ group: DequantizeLinear 'xd' belongs to another composite"
    )


def test_the_first_other_reader_of_an_input_is_named() -> None:
    body = """ c = Conv (xd, wd)
 cq = QuantizeLinear (c, s, z)
 cd = DequantizeLinear (cq, s, z)
 t = Tanh (xd)
 u = Sin (xd)
 v = Add (t, u)
 out = Add (cd, v)
"""
    index = model(body).index  # whose DequantizeLinear is shared
    every = dict.fromkeys(("t", "u", "v", "out"), PLAIN)
    units = {unit.name: unit for unit in group_units(index, [], marks(index, **every))}
    assert str(units["c"].verdict) == (
        "Conv is no whole QDQ group: its input 'xd' is read by Tanh 't', too"
    )


def test_nothing_that_is_quantized_is_no_group() -> None:
    body = " k = Shape (x)\n c = Abs (k)\n d = Cast <to = 1> (c)\n out = Expand (x, k)\n"
    units = group_by_name(body, c=QUANTIZED, k=PLAIN, d=PLAIN, out=PLAIN)
    assert str(units["c"].verdict) == (
        "Abs is no whole QDQ group: nothing that it reads or makes is quantized"
    )


def test_a_composite_is_refused_whole() -> None:
    units = group_by_name("c = Conv (xd, wd)\n y = Relu (c)\n out = Abs (y)\n", CONV_RELU, out=NO)
    assert units["y"].composite == "conv_relu"
    assert str(units["y"].verdict) == (
        "conv_relu is no whole QDQ group: its output 'y' is read by Abs 'out', "
        "not by a QuantizeLinear alone"
    )


@pytest.mark.parametrize("plain", ["c", "y"])
def test_a_composite_with_an_operator_for_floats_alone_is_no_group(plain: str) -> None:
    """Such as a Conv whose weights are floats beside a Relu that has both kinds of rules."""
    body = "c = Conv (xd, wd)\n y = Relu (c)\n" + ENDING
    units = group_by_name(body, CONV_RELU, **{plain: PLAIN})
    kinds = {unit.kind for unit in units.values() if unit.name in {"c", "y"} and unit.verdict}
    assert "qdq" not in kinds
    assert group_by_name(body, CONV_RELU)["y"].kind == "qdq"


def test_what_is_accepted_as_it_stands_needs_no_group() -> None:
    units = group_by_name("c = Conv (xd, wd)\n y = Tanh (c)\n" + ENDING, c=BOTH, y=NO)
    assert units["c"].verdict
    assert units["c"].kind == "node"


def test_must_is_of_the_whole_unit() -> None:
    index = unshare_dequantize(model(CHAIN)).index
    given = marks(
        index, c=Mark(YES, "ops[1]", is_required=True, accepts_plain=False, accepts_quantized=True)
    )
    units = {unit.name: unit for unit in group_units(index, [CONV_RELU], given)}
    assert [units[name].must for name in ("r", "c2")] == [True, False]


def test_indices_need_no_quantizing() -> None:
    """Integers are no part of the scheme: the shape of a Reshape, the result of an ArgMax."""
    body = "y = Reshape (xd, shape)\n" + ENDING
    assert group_by_name(body)["y"].kind == "qdq"
    units = group_by_name(
        "i = ArgMax <axis = 1> (xd)\n f = Cast <to = 1> (i)\n out = Add (f, x)\n", f=NO, out=NO
    )
    assert units["i"].kind == "qdq"
    assert len(units["i"].nodes) == 2


def test_two_patterns_that_share_a_node() -> None:
    """TVM #5552: one of them gets it, and the other's nodes are units of their own."""
    add = parse_pattern("relu_add", "r = Relu(x)\ny = Add(r, z)")
    body = "c = Conv (x, wd)\n r = Relu (c)\n out = Add (r, x)\n"
    index = model(body).index
    taken = [Mark(YES, "ops[0]")] * len(index.nodes)
    for patterns, expected in (([CONV_RELU, add], "conv_relu"), ([add, CONV_RELU], "relu_add")):
        units = group_units(index, patterns, taken)
        assert [unit.composite for unit in units if unit.composite] == [expected]
        placed = sorted(node for unit in units for node in unit.nodes)
        assert placed == [i for i in range(len(index.nodes)) if i not in index.constant_nodes]


def test_it_costs_what_its_dtype_costs() -> None:
    index = unshare_dequantize(model(CHAIN)).index
    units = group_units(index, [CONV_RELU], marks(index))
    host, dla = load_host_costs("host"), PlacementDevice("dla", load_device_costs("dla"))
    said = marks(index)
    posed = build_problem(index, join_units(index, [units], [said]), CostSettings(host, [dla]))
    rows = {unit.name: row for row, unit in enumerate(units)}
    plain = group_units(index, [CONV_RELU], [Mark(YES, "ops[0]")] * len(index.nodes))
    apart = build_problem(index, join_units(index, [plain], [said]), CostSettings(host, [dla]))
    alone = {unit.name: row for row, unit in enumerate(plain)}
    parts = sum(apart.problem.seconds[alone[name], 1] for name in ("xd", "r", "rq"))
    assert posed.problem.seconds[rows["r"], 1] < parts
    assert np.isinf(posed.problem.seconds[rows["xq"], 1])


def target(*ops: str) -> Target:
    composite = {"name": "conv_relu", "pattern": "c = Conv(x, w!, b?)\ny = Relu(c)"}
    rules = {"op": list(ops or ("Conv", "Add", "Relu")), "quantized": True}
    content = {"target": "t", "cost_model": "dla", "dtype": "int8", "ops": [rules]}
    return make_target({**content, "composites": [composite]})


@pytest.mark.parametrize("strategy", [AllSupported(), Alternating(), Random(5)])
def test_the_partitioned_model_computes_the_same(strategy: Random) -> None:
    given = model(CHAIN)
    plan = planned(given, target(), strategy)
    onnx.checker.check_model(plan.proto, full_check=True)
    inputs = sample_inputs(given.index, 0)
    expected = run_plain(given.proto, given, inputs)
    actual = run_plain(plan.proto, given, inputs)
    np.testing.assert_array_equal(actual["out"], expected["out"])
    inner = [
        n for f in plan.proto.functions for n in f.node for e in n.metadata_props if e.key == "byoc.qdq"
    ]
    placed = [unit for region in plan.regions for unit in region.units]
    assert len(inner) == sum(len(unit.nodes) - (unit.composite is not None) for unit in placed)
    assert {unit.kind for unit in placed} == {"qdq"}


def test_constants_go_with_their_readers() -> None:
    """ONNX Runtime #26325: a DequantizeLinear of a weight is where its reader is, in each region."""
    plan = planned(model(CHAIN), target(), Alternating())
    regions = {f.name: f for f in plan.proto.functions if f.name.startswith("t_")}
    with_conv = [f for f in regions.values() if any(n.op_type in ("Conv", "conv_relu") for n in f.node)]
    assert with_conv
    assert all(any("wd" in node.output for node in function.node) for function in with_conv)


def test_copies_leave_outputs_bodies_and_constants_alone() -> None:
    body = """ y = Relu (xd)
 v = Neg (xd)
 t = Add (y, v)
 k = Cast <to = 9> (shape)
 k0 = ReduceMax <keepdims = 0> (shape)
 k1 = Cast <to = 9> (k0)
 u = If <then_branch = th () => (float[1,2,4,4] p) { p = Neg (xd) },
         else_branch = el () => (float[1,2,4,4] q) { q = Abs (xd) }> (k1)
 out = Add (t, u)
"""
    before = model(body)
    text = before.proto.SerializeToString(deterministic=True)
    after = unshare_dequantize(before)
    assert before.proto.SerializeToString(deterministic=True) == text
    nodes = {node.output[0]: node for node in after.index.nodes}
    assert (nodes["y"].input[0], nodes["v"].input[0]) == ("xd_for_1", "xd_for_1")
    assert str(after.index.types["xd_for_1"]) == "float32[1, 2, 4, 4]"
    assert unshare_dequantize(after) is after
    again = prepare_model(after.proto, "again")
    inputs = sample_inputs(before.index, 0)
    expected = run_plain(before.proto, before, inputs)["out"]
    np.testing.assert_array_equal(run_plain(again.proto, again, inputs)["out"], expected)
    assert after.index.bodies[next(i for i, n in enumerate(after.index.nodes) if n.op_type == "If")]


def test_a_model_with_nothing_to_copy_is_the_same() -> None:
    given = model("out = Conv (xd, wd)\n")
    assert unshare_dequantize(given) is given


SCALED = """ r = Relu (xd)
 q1 = QuantizeLinear (r, s, z)
 d1 = DequantizeLinear (q1, s, z)
 m = ReduceMax <keepdims = 0> (d1)
 q2 = QuantizeLinear (r, m, z)
 out = DequantizeLinear (q2, m, z)
"""


def test_a_scale_that_is_computed_from_the_group_itself() -> None:
    """The group would wait for its own scale; once it ended with 'units form a cycle'."""
    units = group_by_name(SCALED)
    assert str(units["r"].verdict).startswith(
        "Relu is no whole QDQ group: a path leaves it and comes back through "
    )
    assert sum(len(unit.nodes) for unit in units.values()) == 8
    given = model(SCALED)
    plan = planned(given, target("Relu", "ReduceMax"), AllSupported())
    inputs = sample_inputs(given.index, 0)
    expected = run_plain(given.proto, given, inputs)["out"]
    np.testing.assert_array_equal(run_plain(plan.proto, given, inputs)["out"], expected)


def test_what_can_only_be_a_group_together_shares_a_dequantizelinear() -> None:
    """A pattern that reads one input twice was lost as soon as any rule was for quantized operators."""
    body = """ g = Sigmoid (xd)
 u = Mul (xd, g)
 uq = QuantizeLinear (u, s, z)
 n = Neg (xd)
 nq = QuantizeLinear (n, s, z)
 nd = DequantizeLinear (nq, s, z)
 ud = DequantizeLinear (uq, s, z)
 a = Add (nd, ud)
 aq = QuantizeLinear (a, s, z)
 out = DequantizeLinear (aq, s, z)
"""
    silu = parse_pattern("silu", "g = Sigmoid(x)\ny = Mul(x, g)")
    index = unshare_dequantize(model(body)).index
    units = {unit.name: unit for unit in group_units(index, [silu], marks(index))}
    assert (units["u"].composite, units["u"].kind) == ("silu", "qdq")
    assert outputs(index, units["u"]) == {"xd", "g", "u", "uq"}
    assert outputs(index, units["n"]) == {"xd_for_1", "n", "nq"}
    assert (outputs(index, units["a"]), units["a"].kind) == ({"nd", "ud", "a", "aq"}, "qdq")
    plain = {unit.name: unit for unit in group_units(index, [silu], marks(index, g=PLAIN, u=PLAIN))}
    assert plain["u"].composite == "silu"
