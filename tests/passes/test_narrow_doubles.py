"""float64 becomes float32 where that loses no digit, for all operators, and where it is allowed."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.failing import rules
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

BOTH = {"float32", "float64"}
DOUBLE, FLOAT = onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT


def narrow(model: onnx.ModelProto, lossy: bool = False) -> onnx.ModelProto:
    form = load_pass("narrow-doubles", {"lossy": str(lossy).lower()}).implementation
    return clean_model(prepare_model(model, "m"), [form]).model.proto  # type: ignore[list-item]


# All operators, by the tests of ONNX: a type variable that may be float64 is that.


def double_model(
    case: Case, schema: OperatorSchema, variable: str, back: bool
) -> tuple[onnx.ModelProto, dict[str, NDArray[Any]]] | None:
    """Return a model in which a type variable is float64, cast from float32; None where there is none.

    With `back` what is made is cast to float32. All else is constant.
    """
    (node,) = case.model.graph.node
    values, inputs = case.data_sets[0][0], {}
    nodes, stored, behind = [], [], []
    for formal, name in zip(schema.list_input_formals(len(node.input)), node.input, strict=True):
        value = values.get(name)
        if not name:
            continue
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
            return None
        if formal.type_str != variable:
            stored.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
            continue
        inputs[f"{name}_given"] = value.astype(np.float32)
        nodes.append(build_node("Cast", [f"{name}_given"], [name], to=DOUBLE))
    if not inputs:
        return None
    given = [helper.make_tensor_value_info(n, FLOAT, v.shape) for n, v in inputs.items()]
    copied = onnx.NodeProto()
    copied.CopyFrom(node)
    made = []
    formals = schema.list_output_formals(len(node.output))
    for name, formal in zip(node.output, formals, strict=True):
        if name and formal.type_str == variable and back:
            behind.append(build_node("Cast", [name], [f"{name}_back"], to=FLOAT))
        if name:
            own = back and formal.type_str == variable
            made.append(onnx.ValueInfoProto(name=f"{name}_back" if own else name))
    graph = helper.make_graph([*nodes, copied, *behind], "g", given, made, stored)
    model = helper.make_model(graph, opset_imports=case.model.opset_import, ir_version=10)
    try:
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    except onnx.shape_inference.InferenceError:
        return None
    if not all(value.type.tensor_type.elem_type for value in inferred.graph.output):
        return None
    return inferred, inputs


def narrow_all(back: bool, lossy: bool) -> tuple[set[str], set[str]]:
    """Narrow each variant, compare what it computes, and return the operators narrowed and left."""
    narrowed, left = set(), set()
    for case, schema, variable in variants(BOTH):
        found = double_model(case, schema, variable, back)
        # Of masks that are shorter than the keys onnxruntime has a kernel for float64 alone.
        if found is None or (lossy and schema.op_type == "Attention"):
            continue
        model, inputs = found
        try:
            wanted = run(model, inputs)
        except InputError:  # onnxruntime does not compute this in float64
            continue
        made = narrow(model, lossy)
        if "float64" in dtypes_of(made, schema.op_type):
            left.add(schema.op_type)
            continue
        got = run(made, inputs)
        for name, value in wanted.items():
            before, after = np.asarray(value), np.asarray(got[name])
            assert (after.dtype, after.shape) == (before.dtype, before.shape), (case.name, variable)
            if lossy:
                finite = np.abs(before[np.isfinite(before)]) if before.dtype.kind == "f" else before
                bound = 1e-4 + 1e-4 * float(np.max(finite, initial=0))
                np.testing.assert_allclose(after, before, rtol=1e-3, atol=bound, err_msg=case.name)
            else:
                assert np.array_equal(after, before, equal_nan=before.dtype.kind == "f"), case.name
        narrowed.add(schema.op_type)
    return narrowed, left - narrowed


MOVED = """
    Abs ArgMax ArgMin Ceil Clip Compress Concat Equal Expand Flatten Floor Gather
    GatherElements GatherND Greater GreaterOrEqual Identity IsInf IsNaN Less LessOrEqual Max
    Min Neg Pad ReduceMax ReduceMin Relu Reshape Round ScatterElements ScatterND Shape
    Sign Size Slice Split Squeeze Tile TopK Transpose Trilu Unsqueeze Where
"""
ROUNDED_ONCE = "Add Div Mul Reciprocal Sqrt Sub"


@pytest.mark.thorough
def test_operators_that_move_or_compare_are_exact() -> None:
    narrowed, left = narrow_all(back=False, lossy=False)
    assert narrowed >= {*MOVED.split()}
    assert left >= {*ROUNDED_ONCE.split(), "Exp", "MatMul", "ReduceSum", "Pow"}


def test_operators_that_round_once_are_exact_where_they_are_cast_back() -> None:
    narrowed, left = narrow_all(back=True, lossy=False)
    assert narrowed >= {*MOVED.split(), *ROUNDED_ONCE.split()}
    assert left >= {"Exp", "MatMul", "ReduceSum", "Pow"}


def test_all_operators_compute_about_the_same_where_that_is_allowed() -> None:
    narrowed, _ = narrow_all(back=True, lossy=True)
    assert narrowed >= {*MOVED.split(), *ROUNDED_ONCE.split(), "Exp", "MatMul", "ReduceSum", "Pow"}


# Single models.


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
def test_one_rounding_is_that_of_float32_at_the_ends_of_its_range(op: str) -> None:
    model = parse(
        f"""m (float[N] x, float[N] y) => (float[N] z) {{
          a = Cast <to = 11> (x) b = Cast <to = 11> (y) c = {op}(a, b) z = Cast <to = 1> (c)
        }}"""
    )
    bits = np.random.default_rng(1).integers(0, 2**32, (2, 100_000), np.uint64).astype(np.uint32)
    x, y = bits.view(np.float32)
    with np.errstate(all="ignore"):
        y[:1000] = x[:1000] * np.float32(1 + 2**-23)
        x[1000:30_000] *= np.float32(1e-20)
    made = narrow(model)
    assert dtypes_of(made, op) == {"float32"}
    given = {"x": x, "y": y}
    np.testing.assert_array_equal(run(made, given)["z"], run(model, given)["z"])


@pytest.mark.parametrize(
    ("text", "narrowed"),
    [
        (
            "a = Cast <to = 11> (x) b = Add(a, a) c = Mul(b, b) y = Cast <to = 1> (c)",
            "Mul",
        ),  # b is rounded
        ("a = Cast <to = 11> (x) b = Add(a, tenth) y = Cast <to = 1> (b)", "Add"),  # no float32 number
        (
            "a = Cast <to = 11> (x) b = Sqrt(a) y = Cast <to = 10> (b)",
            "Sqrt",
        ),  # to float16
        ("a = Cast <to = 11> (i) b = Neg(a) y = Cast <to = 1> (b)", "Neg"),  # int64 of any size
        ("a = Cast <to = 11> (i) b = Floor(a) y = Cast <to = 7> (b)", "Floor"),
    ],
)
def test_what_may_lose_digits_stays(text: str, narrowed: str) -> None:
    model = parse(
        f"""m (float[4] x, int64[4] i) => (float[4] y)
        <double tenth = {{0.1}}> {{ {text} }}"""
    )
    number = {"10": 10, "7": 7}.get(text.rsplit("to = ", 1)[1].split(">", maxsplit=1)[0], 1)
    model.graph.output[0].type.tensor_type.elem_type = number
    assert "float64" in dtypes_of(narrow(model), narrowed)
    assert dtypes_of(narrow(model, lossy=True), narrowed) == {"float32"}


def test_whole_numbers_that_are_small_enough() -> None:
    model = parse(
        """m (int64[4] i) => (int64[4] y) <int64 low = {0}, int64 high = {1000}, double two = {2}> {
          c = Clip(i, low, high)
          a = Cast <to = 11> (c)
          b = Mul(a, two)
          d = Add(b, a)
          y = Cast <to = 7> (d)
        }"""
    )
    made = narrow(model)
    assert dtypes_of(made, "Mul") == dtypes_of(made, "Add") == {"float32"}
    given = {"i": np.array([-5, 3, 999, 1 << 40])}
    np.testing.assert_array_equal(run(made, given)["y"], run(model, given)["y"])
    large = parse(onnx.printer.to_text(model.graph).replace("1000", "9000000"))
    assert "float64" in dtypes_of(narrow(large), "Add")


LOSSY = (
    """m (double[64, 64] x) => (double[64, 64] y) { a = MatMul(x, x) b = Relu(a) y = MatMul(b, x) }"""
)


def test_doubles_are_floats_for_a_target_only_where_its_rules_want_that(tmp_path: Path) -> None:
    path = Path(rules(tmp_path, "npu", "MatMul", "Relu"))
    path.write_text(path.read_text().replace("dtype: any", "dtype: float32"))
    plain = byoc.partition(parse(LOSSY), path, strategy="all-supported")
    assert not plain.report.regions
    assert "narrow-doubles" not in {each.name for each in plain.plan.passes}
    allowed = tmp_path / "allowed.yaml"
    allowed.write_text(path.read_text() + "\nwants: narrow_doubles\n")
    output = tmp_path / "b"
    result = byoc.partition(parse(LOSSY), allowed, strategy="all-supported", output=output)
    (region,) = result.report.regions
    assert {tensor.dtype for tensor in (*region.inputs, *region.outputs)} == {"float32"}
    assert "narrow-doubles" in {each.name for each in result.plan.passes}
    assert count_operators(result.model)["Cast"] == 2
    other = tmp_path / "other.yaml"
    other.write_text(path.read_text().replace("target: npu", "target: other"))
    both = byoc.partition(parse(LOSSY), [allowed, other], strategy="all-supported")
    assert not both.report.regions  # the other does not allow it


def test_a_user_may_ask_for_it(tmp_path: Path) -> None:
    path = rules(tmp_path, "npu", "MatMul", "Relu")
    given = {"passes": ["narrow-doubles"], "pass_options": {"lossy": "true"}}
    result = byoc.partition(parse(LOSSY), path, strategy="all-supported", **given)
    assert [region.nodes for region in result.report.regions] == [3]
