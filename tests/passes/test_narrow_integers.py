"""int64 becomes int32 where it provably computes the same, for all operators that may have both."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import parse
from narrowing import dtypes_of, run, variants
from numpy.typing import NDArray
from onnx import helper, numpy_helper

sys.path.append(str(Path(__file__).parents[1] / "onnx_suite"))
from suite import Case

import byoc
from byoc.errors import InputError
from byoc.model import build_node, prepare_model
from byoc.model.schemas import OperatorSchema
from byoc.passes import clean_model, count_operators, load_pass

BOTH = {"int32", "int64"}
CLIP_OPSET = 12


def narrow(model: onnx.ModelProto) -> onnx.ModelProto:
    form = load_pass("narrow-integers").implementation
    return clean_model(prepare_model(model, "m"), [form]).model.proto  # type: ignore[list-item]


# All operators, by the tests of ONNX: a type variable that may be int64 is that.


def integer_model(
    case: Case, schema: OperatorSchema, variable: str
) -> tuple[onnx.ModelProto, dict[str, NDArray[Any]]] | None:
    """Return a model in which a type variable is int64, and its inputs; None where there is none.

    What is of the variable is an input of the model behind a Clip, which says what it is at most. All
    else is constant.
    """
    (node,) = case.model.graph.node
    values, inputs = case.data_sets[0][0], {}
    nodes, stored = [], []
    for formal, name in zip(schema.list_input_formals(len(node.input)), node.input, strict=True):
        value = values.get(name)
        if not name:
            continue
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
            return None
        if formal.type_str != variable:
            stored.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
            continue
        whole = np.nan_to_num(value.astype(np.float64) * (1 if value.dtype.kind in "biu" else 5))
        whole = np.clip(whole, -1000, 1000).astype(np.int64)
        inputs[f"{name}_given"] = whole
        ends = (whole.min(), whole.max()) if whole.size else (0, 0)
        for which, end in zip(("low", "high"), ends, strict=True):
            stored.append(numpy_helper.from_array(np.array(end, np.int64), f"{name}_{which}"))
        nodes.append(build_node("Clip", [f"{name}_given", f"{name}_low", f"{name}_high"], [name]))
    if not inputs:
        return None
    given = [
        helper.make_tensor_value_info(n, onnx.TensorProto.INT64, v.shape) for n, v in inputs.items()
    ]
    made = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([*nodes, node], "g", given, made, stored)
    model = helper.make_model(graph, opset_imports=case.model.opset_import, ir_version=10)
    try:
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    except onnx.shape_inference.InferenceError:
        return None
    if not all(value.type.tensor_type.elem_type for value in inferred.graph.output):
        return None
    return inferred, inputs


def narrow_all() -> tuple[set[str], set[str]]:
    """Narrow each variant, compare what it computes, and return the operators narrowed and left."""
    narrowed, left = set(), set()
    for case, schema, variable in variants(BOTH, CLIP_OPSET):
        found = integer_model(case, schema, variable)
        if found is None:
            continue
        model, inputs = found
        try:
            wanted = run(model, inputs)
        except InputError:  # onnxruntime does not compute this in int64
            continue
        made = narrow(model)
        if count_operators(made) == count_operators(model):
            left.add(schema.op_type)
            continue
        got = run(made, inputs)
        for name, value in wanted.items():
            before, after = np.asarray(value), np.asarray(got[name])
            assert (after.dtype, after.shape) == (before.dtype, before.shape), (case.name, variable)
            assert after.tobytes() == before.tobytes(), (case.name, variable, before, after)
        narrowed.add(schema.op_type)
    return narrowed, left - narrowed


NARROWED = """
    Abs Add ArgMax ArgMin BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast Clip Compress Concat
    CumSum Div Equal Expand Flatten Gather GatherElements GatherND Greater GreaterOrEqual Identity
    Less LessOrEqual MatMul Max Min Mod Mul Neg NonZero OneHot Pad Pow ReduceL1 ReduceMax ReduceMin
    ReduceProd ReduceSum ReduceSumSquare Reshape ReverseSequence ScatterElements ScatterND Shape
    Sign Size Slice Split Squeeze Sub Tile TopK Transpose Trilu Unsqueeze Where
"""
# Those that onnxruntime runs in int64 alone, those whose dtype an attribute says, and those of whose
# sums byoc has no bound.
LEFT = """
    Attention BitCast BitShift CastLike CenterCropPad CumProd DepthToSpace Einsum EyeLike
    NegativeLogLikelihoodLoss PRelu ReduceL2 ReduceMean SoftmaxCrossEntropyLoss SpaceToDepth
    TensorScatter Unique
"""


def test_all_operators_compute_the_same() -> None:
    narrowed, left = narrow_all()
    assert narrowed >= {*NARROWED.split()}
    assert left <= {*LEFT.split()}


# Single models.

TABLE = numpy_helper.from_array(np.arange(40, dtype=np.float32).reshape(10, 4), "table")


def gather(text: str, opset: int = 17) -> onnx.ModelProto:
    """Return a model that looks up rows of a table of 10 by `ids`, int64 of [3], as made by a text."""
    model = parse(f"m (int64[3] i) => (float[3, 4] y) {{ {text} y = Gather(table, ids) }}", opset=opset)
    model.graph.initializer.append(TABLE)
    return model


BIG = 1 << 32


@pytest.mark.parametrize(
    ("text", "offset", "scale"),
    [
        ("ids = Identity(i)", 0, 1),
        ("two = Constant <value_int = 2> () ids = Add(i, two)", 2, 1),
        ("two = Constant <value_int = 2> () ids = Sub(i, two)", -2, 1),
        ("s = Constant <value_ints = [1, 3]> () t = Constant <value_ints = [3]> ()"
         " a = Reshape(i, s) b = Transpose(a) ids = Reshape(b, t)", 0, 1),
    ],
)  # fmt: skip
def test_an_index_beyond_its_table_stays_one(text: str, offset: int, scale: int) -> None:
    model = gather(text)
    made = narrow(model)
    assert dtypes_of(made, "Gather") == {"float32", "int32"}
    for index in range(-13, 13):
        for beyond in (0, BIG, -BIG, 3 * BIG, 1 << 62, -(1 << 62), BIG // 2, -BIG // 2):
            ids = np.array([0 - offset, index + beyond - offset, 9 - offset])
            try:
                wanted = run(model, {"i": ids})["y"]
            except InputError:
                assert not -10 <= index + beyond < 10
                with pytest.raises(InputError):
                    run(made, {"i": ids})
            else:
                np.testing.assert_array_equal(run(made, {"i": ids})["y"], wanted)


@pytest.mark.parametrize(
    ("text", "narrowed"),
    [
        # Bounded by what indices may be, by constants, by shapes, by other operators.
        ("ids = Identity(i)", True),
        ("c = Constant <value_ints = [0, 2147483647, -2147483647]> () ids = Where(b, c, c)", True),
        ("c = Constant <value_ints = [0, 2147483648, 1]> () ids = Where(b, c, c)", False),
        ("c = Constant <value_ints = [0, 1, -2147483648]> () ids = Where(b, c, c)", False),
        ("s = Shape(x) a = Add(s, s) ids = Mul(a, a)", False),
        ("s = Shape(x) a = Add(s, s) ids = Sub(a, s)", True),
        ("a = ArgMax <keepdims = 0, axis = 1> (x) ids = Abs(a)", True),
        # Not bounded, or beyond what int32 holds on the way.
        ("a = Add(i, i) t = Mul(a, a) ids = Abs(t)", False),
    ],
)
def test_what_is_narrowed(text: str, narrowed: bool) -> None:
    model = parse(
        f"""m (int64[3] i, bool[3] b, float[N, 5, 7] x) => (int64[M] y, int64[K] z) {{
          {text}
          y = Identity(ids)
          zero = Constant <value_int = 0> ()
          z = Max(ids, zero)
        }}"""
    )
    if text.startswith("ids"):
        model = gather(text)
    ops = {"Gather"} if text.startswith("ids") else {"Max"}
    made = narrow(model)
    assert all(("int32" in dtypes_of(made, op)) == narrowed for op in ops)


def test_constants_are_stored_as_int32() -> None:
    model = parse(
        """m (int64[3] i) => (float[3, 4] y) <int64[3] c = {1, 2, 3}, int64[3] unread = {1, 2, 3}> {
          ids = Mul(i, c)
          y = Gather(table, ids)
        }"""
    )
    model.graph.initializer.append(TABLE)
    model.graph.node.insert(0, build_node("Clip", ["j", "lo", "hi"], ["i"]))
    model.graph.input[0].name = "j"
    for name, value in (("lo", -3), ("hi", 3)):
        model.graph.initializer.append(numpy_helper.from_array(np.array(value, np.int64), name))
    made = narrow(model)
    stored = {each.name: each.data_type for each in made.graph.initializer}
    assert stored["c_int32"] == onnx.TensorProto.INT32
    assert "c" not in stored
    ids = np.array([1, 2, 3])
    np.testing.assert_array_equal(run(made, {"j": ids})["y"], run(model, {"j": ids})["y"])


def test_before_clip_takes_integers_only_what_always_fits_is_narrowed() -> None:
    assert "int32" not in dtypes_of(narrow(gather("ids = Identity(i)", opset=11)), "Gather")
    model = parse(
        """m (float[3, 9] x) => (float[3, 4] y) {
          a = ArgMax <axis = 1, keepdims = 0> (x)
          y = Gather(table, a)
        }""",
        opset=11,
    )
    model.graph.initializer.append(TABLE)
    made = narrow(model)
    assert dtypes_of(made, "Gather") == {"float32", "int32"}
    assert "Clip" not in count_operators(made)


def test_a_body() -> None:
    model = parse(
        """m (bool c, int64[3] i) => (float[3, 4] y) {
          y = If (c) <then_branch = t () => (float[3, 4] u) { u = Gather(table, i) },
                      else_branch = e () => (float[3, 4] v) { one = Constant <value_int = 1> ()
                                                              a = Add(i, one) v = Gather(table, a) }>
        }"""
    )
    model.graph.initializer.append(TABLE)
    made = narrow(model)
    assert count_operators(made)["Cast"] == 2
    for chosen in (True, False):
        inputs = {"c": np.array(chosen), "i": np.array([1, -2, 5])}
        np.testing.assert_array_equal(run(made, inputs)["y"], run(model, inputs)["y"])


# By rule files.


def rule_file(folder: Path, more: str = "", dtype: str = "float32") -> str:
    (folder / "fast.yaml").write_text(
        "kind: roofline\nname: fast\npeak: {default: 1.0e+13}\nbandwidth: 1.0e+12\nlaunch: 1.0e-7\n"
        "link: {bandwidth: 1.0e+12, latency: 1.0e-9}\n"
    )
    path = folder / "vx.yaml"
    path.write_text(
        f"target: vx\ncost_model: fast.yaml\ndtype: {dtype}\n{more}ops:\n"
        "  - {op: Gather, tensors: {indices: {dtype: int32}}}\n  - op: Relu\n"
    )
    return str(path)


LOOK_UP = "m (int64[3] i) => (float[3, 4] y) { g = Gather(table, i) y = Relu(g) }"


def look_up() -> onnx.ModelProto:
    model = parse(LOOK_UP)
    model.graph.initializer.append(TABLE)
    return model


def test_a_gather_is_offloaded_by_rules_for_int32(tmp_path: Path) -> None:
    result = byoc.partition(look_up(), rule_file(tmp_path), output=tmp_path / "b")
    (region,) = result.report.regions
    assert region.nodes == 2
    assert [tensor.dtype for tensor in region.inputs] == ["int32"]
    session = byoc.load(tmp_path / "b")
    rows = session({"i": np.array([1, -1, 9])})["y"]
    np.testing.assert_array_equal(rows, numpy_helper.to_array(TABLE)[[1, -1, 9]])
    with pytest.raises(InputError, match="indices element out of data bounds"):
        session({"i": np.array([1, BIG + 1, 9])})


@pytest.mark.parametrize(
    "more", ["unwanted_forms: narrow-integers\n", "unwanted_forms: [narrow-integers]\n"]
)
def test_a_rule_file_may_opt_out(tmp_path: Path, more: str) -> None:
    result = byoc.partition(look_up(), rule_file(tmp_path, more), strategy="all-supported")
    assert [region.nodes for region in result.report.regions] == [1]
    assert "Cast" not in {node.op_type for node in result.model.graph.node}


def test_a_form_that_there_is_not_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"vx\.yaml: unwanted_forms.*'narrow-integers', 'planar-form' or 'pooled-mean'"
    ):
        byoc.partition(look_up(), rule_file(tmp_path, "unwanted_forms: [narrow]\n"))


def test_on_the_host_a_node_stays_as_it_is(tmp_path: Path) -> None:
    model = look_up()
    result = byoc.partition(model, rule_file(tmp_path), strategy="host-only")
    assert [node.op_type for node in result.model.graph.node] == ["Gather", "Relu"]
    assert not result.plan.passes
