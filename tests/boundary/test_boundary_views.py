"""Views, types and scales of contracts, function by function: what each returns, in numbers."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from contract_views import ContractError
from helpers.support import parse
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, TypeProto, helper

from byoc.boundary.contracts import RegionContext, TensorContract, is_conversion, read_region_contracts
from byoc.boundary.contracts._boundary_nodes import (
    AxisTerm,
    AxisTerms,
    ConversionPath,
    Scales,
    find_rank,
    find_shape,
    find_user_name,
    layout_after,
    layout_before,
    read_scales,
)
from byoc.boundary.contracts._contract_check import HostGraph, _check_types, _has_differing_scales
from byoc.boundary.contracts._region_view import TensorView, types_agree
from byoc.boundary.convert._casting_rewrite import FunctionVariants
from byoc.boundary.convert._short_dtypes import (
    OperatorSchemas,
    _inference_inputs,
    find_extent_arithmetic,
    round_values,
)
from byoc.model import (
    CAST,
    LAYOUT,
    QUANTIZE,
    TENSOR_KEY,
    GraphIndex,
    TensorType,
    mark_inserted,
    prepare_model,
)

N, C, H, W = AxisTerms.of_plain(4)


FLOAT, BYTES = TensorType("float32", (2, 3)), TensorType("int8", (2, 3))


@pytest.mark.parametrize(
    ("one", "other", "agree"),
    [
        (FLOAT, FLOAT, True),
        (FLOAT, BYTES, False),
        (FLOAT, TensorType("float32", (2, 4)), False),
        (FLOAT, TensorType("float32", (2, 3, 1)), False),
        (FLOAT, TensorType("float32", None), True),
        (TensorType("float32", None), FLOAT, True),
        (BYTES, TensorType("float32", None), False),
        (FLOAT, TensorType("float32", ("n", 3)), True),
        (TensorType("float32", (None, 3)), FLOAT, True),
        (TensorType("float32", ("n", 3)), TensorType("float32", ("m", 4)), False),
    ],
)
def test_types_agree_unless_dtypes_ranks_or_extents_differ(
    one: TensorType, other: TensorType, agree: bool
) -> None:
    assert types_agree(one, other) is agree
    assert types_agree(other, one) is agree


SCALED = TensorView(BYTES, "NHWC", (0.5,), (3,), None)


@pytest.mark.parametrize(
    ("other", "agree"),
    [
        (SCALED, True),
        (TensorView(), True),
        (TensorView(FLOAT, "NHWC", (0.5,), (3,)), False),
        (TensorView(BYTES, "", (0.5,), (3,)), False),
        (TensorView(BYTES, "NHWC", (0.25,), (3,)), False),
        (TensorView(BYTES, "NHWC", (0.5,), (4,)), False),
        (TensorView(BYTES, "NHWC", (0.5,), (3,), 0), False),
        (TensorView(BYTES, "NHWC"), True),  # says nothing of scales
        (TensorView(None, "NHWC", (0.5,), (3,)), True),
        (TensorView(BYTES, None, (0.5,), (3,)), True),
    ],
)
def test_views_agree_unless_what_both_know_differs(other: TensorView, agree: bool) -> None:
    assert SCALED.agrees(other) is agree
    assert other.agrees(SCALED) is agree


def test_same_views_know_the_same() -> None:
    assert SCALED.is_same(TensorView(None, "NHWC", (0.5,), (3,)))
    assert not SCALED.is_same(TensorView(BYTES, None, (0.5,), (3,)))
    assert not SCALED.is_same(TensorView(BYTES, "NHWC"))
    assert not SCALED.is_same(TensorView(FLOAT, "NHWC", (0.5,), (3,)))


def test_few_numbers_are_all_written_and_of_many_the_first_that_differs() -> None:
    four = TensorView(BYTES, "", (1.0, 2.0, 3.0, 0.1), (0, 1, 2, 3), 0)
    assert four.describe(TensorView()) == "int8[2, 3] scale 1, 2, 3, 0.1 zero point 0, 1, 2, 3 axis 0"
    many = TensorView(None, None, (1.0, 2.0, 3.0, 4.0, 5.0))
    assert many.describe(TensorView()) == "unknown scale 1, 2, ... (5) zero point "
    other = TensorView(None, None, (1.0, 2.5, 3.0, 4.5, 5.0))
    assert many.describe(other) == "unknown scale [1] 2, ... (5) zero point "
    assert TensorView(None, None, (16777217 / 16777216,)).describe(TensorView()) == (
        "unknown scale 1.00000006 zero point "
    )


CHANNELS = """g (float[2, 3, 4] x, float s0) => (int8[2, 3, 4] y, int8[2, 3, 4] u, uint8[2, 3, 4] v)
    <float s = {0.5}, int8 z = {3}, float[3] t = {1, 2, 4}, int8[3] k = {5, 6, 7}, float[1] o = {2}> {
    y = QuantizeLinear(x, s, z)
    u = QuantizeLinear <axis = -2> (x, t, k)
    v = QuantizeLinear(x, t)
    w = QuantizeLinear(x, o)
    p = QuantizeLinear <output_dtype = 3> (x, s)
    d = DequantizeLinear(y, s)
    q = QuantizeLinear(x, s0, z)
}"""


@pytest.mark.parametrize(
    ("name", "scales"),
    [
        ("y", Scales("int8", (0.5,), (3,), None, False)),
        ("u", Scales("int8", (1, 2, 4), (5, 6, 7), 1, False)),
        ("v", Scales("uint8", (1, 2, 4), (0, 0, 0), 1, False)),
        ("w", Scales("uint8", (2,), (0,), None, False)),
        ("p", Scales("int8", (0.5,), (0,), None, False)),
        ("d", Scales("int8", (0.5,), (0,), None, True)),
        ("q", None),
    ],
)
def test_scales_are_read_off_their_node(name: str, scales: Scales | None) -> None:
    proto = parse(CHANNELS, ir=10, opset=21)
    mark_inserted(next(node for node in proto.graph.node if node.output[0] == "d"), QUANTIZE)
    index = prepare_model(proto, "test").index
    node = next(node for node in index.nodes if node.output[0] == name)
    assert read_scales(index, node, None) == scales


@pytest.mark.parametrize(("known", "axis"), [("x", 1), ("y", 1), ("", -2)])
def test_an_axis_is_counted_from_the_front_where_the_rank_is_known(known: str, axis: int) -> None:
    model = parse(CHANNELS.replace("y = ", "y0 = ").replace("u = ", "y = "), ir=10, opset=21)
    types = {known: helper.make_tensor_type_proto(TensorProto.FLOAT, (2, 3, 4))}
    index = GraphIndex(model, types)
    node = next(node for node in index.nodes if node.output[0] == "y")
    found = read_scales(index, node, None)
    assert found is not None
    assert found.axis == axis


@pytest.mark.parametrize(
    ("op", "purpose", "expected"),
    [
        ("Transpose", LAYOUT, True),
        ("Reshape", LAYOUT, True),
        ("Pad", LAYOUT, True),
        ("Cast", LAYOUT, True),
        ("Relu", LAYOUT, False),
        ("Cast", CAST, True),
        ("Transpose", CAST, False),
        ("Cast", QUANTIZE, False),
        ("Transpose", "", False),
        ("Cast", "", False),
    ],
)
def test_conversions_are_byocs_own_nodes(op: str, purpose: str, expected: bool) -> None:
    node = helper.make_node(op, ["x"], ["y"])
    if purpose:
        mark_inserted(node, purpose)
    assert is_conversion(node) is expected


TURNED = """g (float[2, 3, 6, 8] x) => (float[2, 6, 8, 3] y) {
    a = Identity(x)
    y = Transpose <perm = [0, 2, 3, 1]> (a)
}"""


def test_the_layout_before_steps_is_that_of_their_input() -> None:
    index = prepare_model(parse(TURNED), "test").index
    assert layout_before(index, index.nodes, AxisTerms.of_plain(4), {}) == (N, W, C, H)
    assert layout_before(index, index.nodes, None, {}) is None
    assert layout_before(index, [], AxisTerms((N, H, W, C)), {}) == (N, H, W, C)


def test_the_layout_before_steps_needs_no_shape() -> None:
    bare = GraphIndex(
        parse("g (x) => (y) { a = Identity(x)  y = Transpose <perm = [0, 2, 1]> (a) }"), {}
    )
    assert layout_before(bare, bare.nodes, AxisTerms.of_plain(3), {}) == (N, H, C)
    none = GraphIndex(parse("g (x) => (y) { y = Transpose(x) }"), {})  # turns all axes: how many?
    assert layout_before(none, none.nodes, AxisTerms.of_plain(3), {}) is None


def test_a_reshape_has_a_layout_where_both_shapes_are_known() -> None:
    text = "g (x, t) => (y, z) <int64[5] s = {1, 0, 2, 4, 5}> { y = Reshape(x, s) z = Reshape(x, t) }"
    known = {"x": TensorType("float32", (1, 3, 8, 5))}
    blocks = {"x": TensorType("float32", (1, 3, 2, 4, 5))}
    index = GraphIndex(parse(text), {})
    fixed, other = index.nodes[:1], index.nodes[1:]
    plain, split = AxisTerms.of_plain(4), AxisTerms((N, C, H, AxisTerm(2, 4), W))
    assert layout_after(index, fixed, plain, known) == split
    assert layout_before(index, fixed, split, known) == plain
    assert layout_after(index, fixed, split, blocks) == split  # the same shape
    for nodes, types in ((fixed, {}), (other, known), (other, {})):
        assert layout_after(index, nodes, plain, types) is None
        assert layout_before(index, nodes, split, types) is None


def test_shapes_are_completed_and_ranks_found() -> None:
    text = """g (float[N, 3, M, 8] x, float[K] k) => (float[8, M, 3, N] y) {
        a = Identity(x)
        y = Transpose (a)
    }"""
    index = prepare_model(parse(text), "test").index
    known = {"x": TensorType("float32", (2, 4, 6, 9)), "k": TensorType("float32", (1, 1))}
    assert find_shape(index, "x", known) == (2, 3, 6, 8)
    assert find_shape(index, "k", known) == ("K",)  # of another rank: not believed
    assert find_shape(index, "none", {"none": TensorType("int8", (7,))}) == (7,)
    assert find_rank(index, index.nodes, {}, before=True) == 4
    assert find_rank(index, index.nodes[:1], {}, before=True) is None  # nothing that has a rank
    bare = GraphIndex(parse("g (x) => (y) { a = Identity(x)  y = Transpose <perm = [1, 0]> (a) }"), {})
    assert [find_rank(bare, bare.nodes, {}, before=before) for before in (True, False)] == [2, 2]
    cast = GraphIndex(parse("g (x) => (y) { a = Identity(x)  b = Reshape(a, s)  y = Identity(b) }"), {})
    for known, ranks in (({"a": 3}, [3, None]), ({"b": 4}, [None, 4]), ({"x": 3, "y": 5}, [3, 5])):
        types = {name: TensorType("float32", (2,) * rank) for name, rank in known.items()}
        found = [find_rank(cast, cast.nodes, types, before=before) for before in (True, False)]
        assert found == ranks


def test_the_user_named_what_byocs_node_reads() -> None:
    """Also where a body quantizes what is made outside of it; the user's own nodes give no names."""
    branch = "() => (int8[2] o) { o = QuantizeLinear(c, s, z) }"
    model = parse(f"""g (bool k, float[2] x) => (int8[2] y, int8[2] q, int8[2] r)
        <float s = {{0.5}}, int8 z = {{3}}> {{
        a = Relu(x)
        b = Neg(x)
        c = Abs(x)
        q = QuantizeLinear(a, s, z)
        r = QuantizeLinear(b, s, z)
        y = If(k) <then_branch = t {branch}, else_branch = e {branch}>
    }}""")
    for node in model.graph.node:
        if node.output[0] in {"q", "r"}:
            node.metadata_props.add(key=TENSOR_KEY, value=f"{node.input[0]}_user")
    mark_inserted(model.graph.node[3], QUANTIZE)
    index = GraphIndex(model, {})
    assert [find_user_name(index, name) for name in "abcx"] == ["a_user", "b", "c", "x"]
    inside = index.bodies[5][0].index
    assert [find_user_name(inside, name) for name in "abco"] == ["a_user", "b", "c", "o"]
    assert find_user_name(None, "a") == "a"


def test_a_path_leads_backwards_where_its_step_makes_what_it_starts_from() -> None:
    step = helper.make_node("Transpose", ["x"], ["x_NHWC"])
    assert not ConversionPath("x", ("x",)).is_backward
    assert ConversionPath("x", ("x_NHWC", "x"), (step,)).is_backward
    assert not ConversionPath("x", ("x", "x_NHWC"), (step,)).is_backward


@pytest.mark.parametrize(
    ("dtype", "shape", "sentence"),
    [
        (TensorProto.FLOAT, (2, 4), ""),
        (TensorProto.FLOAT, ("n", 4), ""),
        (TensorProto.INT8, (2, 4), "region r: 'a' is float32[2, 4], but int8[2, 4] in the user's model"),
        (
            TensorProto.FLOAT,
            (2, 5),
            "region r: 'a' is float32[2, 4], but float32[2, 5] in the user's model",
        ),
    ],
)
def test_a_tensor_has_the_type_that_it_has_in_the_users_model(
    dtype: int, shape: tuple[int | str, ...], sentence: str
) -> None:
    text = "g (float[2, 4] x) => (float[2, 4] y) { a = Relu(x)  y = Neg(a) }"
    index = prepare_model(parse(text), "test").index
    users = {"a": helper.make_tensor_type_proto(dtype, shape), "unread": TypeProto()}
    if not sentence:
        _check_types("region r", index, users)
        return
    with pytest.raises(ContractError) as caught:
        _check_types("region r", index, users)
    assert str(caught.value) == sentence


def test_what_the_user_states_comes_before_what_was_inserted() -> None:
    one, other = (helper.make_tensor_type_proto(TensorProto.FLOAT, (size,)) for size in (1, 2))
    assert RegionContext(added={"a": one}).stated_types == {"a": one}
    users = GraphIndex(parse("g (float[2] a) => (float[2] b) { b = Relu(a) }"), {"a": other, "b": other})
    context = RegionContext(users, added={"a": one, "c": one})
    assert context.stated_types == {"a": other, "b": other, "c": one}


def test_a_node_that_reads_another_form_is_looked_up_in_the_users_model() -> None:
    users = prepare_model(parse("g (float[2] x) => (float[2] y) { a = Relu(x)  y = Neg(a) }"), "t").index
    host = HostGraph(users, {}, RegionContext(users), None)
    here = helper.make_node("Neg", ["a_NHWC"], ["y"])
    assert host._find_user_tensor("a_NHWC", here) == "a"
    assert host._find_user_tensor("other", here) == "other"
    assert host._find_user_tensor("x", helper.make_node("Neg", ["x"], ["y"])) == "x"  # the user's own
    assert host._find_user_tensor("a_NHWC", helper.make_node("Abs", ["a_NHWC"], ["y"])) == "a_NHWC"
    assert host._find_user_tensor("a_NHWC", helper.make_node("Neg", ["a_NHWC"], ["new"])) == "a_NHWC"
    assert host._find_user_tensor("a_NHWC", None) == "a_NHWC"
    bare = HostGraph(users, {}, RegionContext(), None)
    assert bare._find_user_tensor("a_NHWC", here) == "a_NHWC"


def test_a_region_reads_its_input_as_the_users_tensor_in_its_layout() -> None:
    region = parse("""g (float[N, K, L, M] a_NHWC) => (float[N, P, Q, R] y) {
        a = Transpose <perm = [0, 3, 1, 2]> (a_NHWC)
        y = Relu(a)
    }""")
    mark_inserted(region.graph.node[0], LAYOUT)
    types = {"a": helper.make_tensor_type_proto(TensorProto.FLOAT, (2, 3, 6, 8))}
    (contract,) = read_region_contracts(region, types).inputs
    assert str(contract) == "float32[2, 6, 8, 3] in NHWC"
    types["a"] = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    (contract,) = read_region_contracts(region, types).inputs
    assert str(contract) == "float32[N, K, L, M] in NHWC"


def test_of_many_scales_the_one_that_differs_is_told() -> None:
    kind = TensorType("int8", (1, 9))
    one = TensorView(kind, "", (1.0,) * 9, (0,) * 9, 1)
    other = TensorView(kind, "", (1.0,) * 7 + (0.5, 1.0), (0,) * 9, 1)
    assert not one.agrees(other)
    assert other.describe(one) == "int8[1, 9] scale [7] 0.5, ... (9) zero point 0, 0, ... (9) axis 1"


@pytest.mark.parametrize(("name", "differ"), [("q", False), ("w", True), ("x", False), ("", False)])
def test_scales_differ_where_a_tensor_is_read_by_others_than_it_was_made(
    name: str, differ: bool
) -> None:
    text = """g (float[2] x) => (float[2] y, float[2] z) <float s = {0.5}, float t = {1}, int8 k = {3}> {
        q = QuantizeLinear(x, s, k)
        y = DequantizeLinear(q, s, k)
        w = QuantizeLinear(x, s, k)
        z = DequantizeLinear(w, t, k)
    }"""
    users = GraphIndex(parse(text), {})
    host = HostGraph(users, {}, RegionContext(users if name else None), None)
    kind = TensorType("int8", (2,))
    assert _has_differing_scales(host, TensorContract(name, name, name, kind, kind)) is differ


SCHEMAS = OperatorSchemas({"": 17})


@pytest.mark.parametrize(
    ("op", "inputs", "known", "made"),
    [
        ("Relu", ["x"], {"x": "float16"}, "float16"),
        ("Relu", ["x"], {}, None),
        ("Add", ["x", "y"], {"y": "float16"}, "float16"),
        ("Shape", ["x"], {"x": "float16"}, "int64"),  # fixed by the operator
        ("Shape", ["x"], {}, None),
        ("Greater", ["x", "y"], {"x": "float16", "y": "float16"}, "bool"),
        ("Clip", ["x", "", "high"], {"x": "float16"}, "float16"),
        ("Resize", ["x", "", "scales"], {"x": "bfloat16", "scales": "float32"}, "bfloat16"),
        ("Own", ["a", "x"], {"x": "float16"}, "float16"),  # of no schema: that of what it reads
        ("Own", ["a"], {}, None),
    ],
)
def test_what_a_node_makes(op: str, inputs: list[str], known: Mapping[str, str], made: str) -> None:
    node = helper.make_node(op, inputs, ["z"], domain="acme" if op == "Own" else "")
    assert SCHEMAS.infer_output(node, 0, known) == made
    shown = _inference_inputs(node, {**known, "other": "int8"})
    assert shown == {name: dtype for name, dtype in known.items() if name in inputs}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_what_a_cast_makes_is_what_it_says(dtype: str) -> None:
    number = {"float32": 1, "float16": 10, "bfloat16": 16}[dtype]
    node = helper.make_node("Cast", ["x"], ["z"], to=number)
    assert SCHEMAS.infer_output(node, 0, {"x": "int64"}) == dtype


EXTENTS = """g (float[2,3] x, float[4] v) => (float[2,3] y) <int64 one = {1}, int64[1] half = {2}> {
    shape = Shape(x)
    first = Gather(shape, one)
    more = Add(first, one)
    both = Mul(more, half)
    fixed = Add(one, one)
    count = Size(v)
    cast = Cast <to = 1> (more)
    mixed = Mul(cast, v)
    y = Identity(x)
}"""


@pytest.mark.parametrize(
    ("small", "expected"),
    [
        ({"first", "more", "both", "cast"}, {"first", "more", "both", "cast"}),
        ({"first", "more", "both", "fixed", "count", "shape"}, {"first", "more", "both"}),
        ({"first", "both"}, {"first"}),  # what is between is not small
        ({"more"}, set[str]()),
        ({"mixed", "y", "v", "fixed"}, set[str]()),
        (set[str](), set[str]()),
    ],
)
def test_integers_that_are_computed_from_extents(small: set[str], expected: set[str]) -> None:
    nodes = list(parse(EXTENTS).graph.node)
    assert find_extent_arithmetic(nodes, {"one", "half"}, small) == expected


@given(st.lists(st.floats(width=32, allow_nan=True), min_size=1, max_size=20))
def test_float16_is_rounded_as_numpy_does_but_for_what_is_beyond(values: list[float]) -> None:
    x = np.array(values, np.float32)
    bits, beyond = round_values(x, "float16")
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    lost = np.isinf(expected) & np.isfinite(x)
    expected[lost] = np.copysign(np.float16(65504), np.sign(x[lost]).astype(np.float16))
    np.testing.assert_array_equal(bits.view(np.float16), expected)
    assert beyond == lost.sum()


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_bfloat16_is_the_nearest_of_its_neighbours_even_ones_in_a_tie(value: float) -> None:
    def meant(bits: int) -> float:
        return float(np.array([bits << 16], np.uint32).view(np.float32)[0])

    bits, beyond = round_values(np.array([value], np.float32), "bfloat16")
    (found,) = bits.tolist()
    largest = meant(0x7F7F)
    if abs(value) > largest:
        assert abs(meant(found)) == largest
        assert np.sign(meant(found)) == np.sign(value)
        assert beyond == (abs(value) >= largest + (largest - meant(0x7F7E)) / 2)
        return
    magnitude = found & 0x7FFF
    error = abs(meant(found) - value)
    for other in (magnitude - 1, magnitude + 1):
        if 0 <= other <= 0x7F7F:
            away = abs(meant(other) - abs(value))
            assert error < away or (error == away and magnitude % 2 == 0)
    assert beyond == 0


def test_bfloat16_keeps_what_is_no_number() -> None:
    x = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-40], np.float32)
    bits, beyond = round_values(x, "bfloat16")
    back = (bits.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(back[:4], x[:4])
    assert np.signbit(back[3])
    assert back[4] == pytest.approx(1e-40, rel=2**-6)  # a subnormal number
    assert beyond == 0


CALLS = """<ir_version: 8, opset_import: ["": 17, "own": 1]>
g (float[4] x) => (float[4] y) { y = own.outer(x) }
<domain: "own", opset_import: ["": 17, "own": 1]>
outer (a) => (b) { b = own.inner(a) }
<domain: "own", opset_import: ["": 17]>
inner (a) => (b) { b = Relu(a) }"""


def test_a_dropped_function_keeps_none_that_it_calls(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(CALLS)
    outer, inner = model.functions
    region = model.graph.node[0]
    variants = FunctionVariants(model, tmp_path)
    for function in (inner, outer):
        new = onnx.FunctionProto()
        new.CopyFrom(function)
        new.node[0].op_type = "Neg" if function is inner else "inner_float16"
        region.op_type = variants.add(function, new, "float16")

    variants.finish(model, model.graph.node, ())

    assert [f.name for f in model.functions] == ["inner_float16", "outer_float16"]
