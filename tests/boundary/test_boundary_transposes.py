"""Transposes on the host: as few bytes as can be, and the numbers that there were before."""

import numpy as np
import onnx
import pytest
from helpers.support import examples
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from transposed_graphs import (
    IMAGE_BYTES,
    KINDS,
    SHAPE,
    arranged,
    host_graphs,
    inverse_pairs,
    least,
    opened_ports,
    transposed_bytes,
    transposes,
)
from transposing import NEG, operators, parsed, same

from byoc.boundary.convert import TransposeShares
from byoc.model import get_metadata, get_purpose, parse_layout
from byoc.onnxrt import open_session, run_session, without_optimizations

_SLOW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=examples(150))
_LAYOUTS = ("NHWC", "NHCW", "CHWN")


@_SLOW
@given(host_graphs((*KINDS, "user")), st.sampled_from(_LAYOUTS))
def test_the_numbers_are_the_same_and_no_inverse_pair_is_left(model, layout):
    changed = arranged(model, parse_layout(layout))
    same(model, changed)
    assert not inverse_pairs(changed)
    before = arranged(model, parse_layout(layout), remove=False)
    assert transposed_bytes(changed) <= transposed_bytes(before)


@_SLOW
@given(host_graphs(most=8), st.sampled_from(_LAYOUTS))
def test_no_choice_of_forms_transposes_fewer_bytes(model, layout):
    before = arranged(model, parse_layout(layout), remove=False)
    assume(sum(n.domain == "" and n.op_type != "Transpose" for n in before.graph.node) <= 9)
    assert transposed_bytes(arranged(model, parse_layout(layout))) == least(before)


@_SLOW
@given(
    host_graphs(most=7),
    st.sampled_from(_LAYOUTS),
    st.sampled_from([0.125, 0.5, 0.75]),
    st.sampled_from([0.125, 0.5, 0.75]),
)
def test_no_choice_is_cheaper_where_regions_may_transpose_as_well(model, layout, entering, leaving):
    shares = TransposeShares(entering, leaving)
    before = arranged(model, parse_layout(layout), remove=False)
    nodes = before.graph.node
    ports = sum(len(node.input) + len(node.output) for node in nodes if node.domain)
    assume(ports and ports + sum(not n.domain and n.op_type != "Transpose" for n in nodes) <= 12)
    changed = arranged(model, parse_layout(layout), shares=shares)
    same(model, changed)
    inside = sum(np.multiply(opened_ports(changed), [entering, leaving])) * IMAGE_BYTES
    assert transposed_bytes(changed) + inside == least(before, shares=shares)


def test_onnxruntime_18128_a_residual_addition_between_regions_of_nhwc_costs_no_transpose():
    """An Add and a Relu between NHWC regions, whose other operand skips one: the graph of that issue."""
    model = parsed(
        """g (float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y) {
          a = byoc.dla.dla_0(x)
          b = byoc.dla.dla_1(a)
          s = Add(b, a)
          r = Relu(s)
          y = byoc.dla.dla_2(r)
        }""",
        dla_0=NEG,
        dla_1=NEG,
        dla_2=NEG,
    )
    before, changed = arranged(model, remove=False), arranged(model)
    same(model, changed)
    assert len(transposes(before)) == 5
    assert [(node.input[0], node.output[0]) for node in transposes(changed)] == [
        ("x", "x_NHWC"),
        ("y_NHWC", "y"),
    ]


def test_what_the_user_transposed_for_a_region_is_not_transposed_at_all():
    """A model from a framework that keeps the channels last, all of it within the user's Transposes."""
    model = parsed(
        """g (float[1, 4, 6, 3] x) => (float[1, 4, 6, 3] y) {
          h = Relu(x)
          a = Transpose <perm = [0, 3, 1, 2]> (h)
          b = byoc.dla.dla_0(a)
          c = Transpose <perm = [0, 2, 3, 1]> (b)
          y = Identity(c)
        }""",
        dla_0="(a) => (b) { b = GlobalAveragePool(a) c = Sub(a, b) b2 = Neg(c) }".replace(
            "(a) => (b)", "(a) => (b2)"
        ),
    )
    changed = arranged(model)
    same(model, changed)
    assert not transposes(changed)
    assert not any(get_metadata(node, "byoc.layout") for node in changed.graph.node)


def test_a_transpose_of_the_users_that_is_no_layout_merges_with_the_one_before_it():
    model = parsed(
        """g (float[1, 2, 3, 4] x) => (float[4, 3, 2, 1] y) {
          a = byoc.dla.dla_0(x)
          t = Transpose <perm = [3, 2, 1, 0]> (a)
          y = Neg(t)
        }""",
        dla_0=NEG,
    )
    changed = arranged(model)
    same(model, changed)
    assert [list(node.attribute[0].ints) for node in transposes(changed)] == [[0, 2, 3, 1], [2, 1, 3, 0]]


def test_the_users_own_transposes_far_from_regions_stay():
    model = parsed(
        """g (float[1, 2, 3, 4] x, float[1, 2, 3, 4] z) => (float[1, 2, 3, 4] y, float[1, 2, 3, 4] w) {
          y = byoc.dla.dla_0(x)
          t = Transpose <perm = [0, 2, 3, 1]> (z)
          u = Relu(t)
          w = Transpose <perm = [0, 3, 1, 2]> (u)
        }""",
        dla_0=NEG,
    )
    changed = arranged(model)
    same(model, changed)
    assert {"t", "u", "w"} <= {node.output[0] for node in changed.graph.node}
    assert len(transposes(changed)) == 4


def test_a_tensor_that_meets_its_own_transpose_stays_right():
    """Neither form suits both operands, so the user's Transpose is an operator like any other."""
    model = parsed(
        """g (float[3, 3, 3, 3] x) => (float[3, 3, 3, 3] y) {
          a = byoc.dla.dla_0(x)
          t = Transpose <perm = [0, 2, 3, 1]> (a)
          s = Sub(a, t)
          y = byoc.dla.dla_1(s)
        }""",
        dla_0=NEG,
        dla_1=NEG,
    )
    changed = arranged(model)
    same(model, changed)
    assert len(transposes(changed)) == 3


def test_what_moves_keeps_its_name_and_says_its_layout():
    model = parsed(
        """g (float[1, 2, 3, 4] x) => (float[1, 2, 3, 4] y) {
          a = byoc.dla.dla_0(x)
          r = Relu(a)
          y = byoc.dla.dla_1(r)
        }""",
        dla_0=NEG,
        dla_1=NEG,
    )
    relu = model.graph.node[1]
    relu.name, relu.doc_string = "mine", "about it"
    relu.metadata_props.add(key="theirs", value="kept")
    (moved,) = (node for node in arranged(model).graph.node if node.op_type == "Relu")
    assert (moved.name, moved.doc_string) == ("mine", "about it")
    assert {e.key: e.value for e in moved.metadata_props} == {"theirs": "kept", "byoc.layout": "NHWC"}
    assert not get_purpose(moved)


def test_outputs_of_the_model_keep_their_names_and_layout():
    model = parsed(
        """g (float[1, 2, 3, 4] x) => (float[1, 2, 3, 4] r, float[1, 2, 3, 4] y) {
          a = byoc.dla.dla_0(x)
          r = Relu(a)
          y = byoc.dla.dla_1(r)
        }""",
        dla_0=NEG,
        dla_1=NEG,
    )
    changed = arranged(model)
    same(model, changed)
    kinds = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in changed.graph.value_info
    }
    assert kinds == {f"{name}_NHWC": [1, 3, 4, 2] for name in ("x", "a", "r", "y")}
    assert len(transposes(changed)) == 3


def test_constants_are_transposed_when_compiling_and_the_old_ones_go():
    model = parsed(
        """g (float[1, 2, 3, 4] x) => (float[1, 2, 3, 4] y)
          <float[2, 1, 1] bias = {1, 2}, float two = {2}, float[1] one = {1}> {
          a = byoc.dla.dla_0(x)
          k = Constant <value = float[1, 2, 1, 1] {3, 5}> ()
          b = Add(bias, a)
          c = Mul(b, k)
          d = Mul(c, two)
          e = Sub(d, one)
          y = byoc.dla.dla_1(e)
        }""",
        dla_0=NEG,
        dla_1=NEG,
    )
    changed = arranged(model)
    same(model, changed)
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in changed.graph.initializer}
    assert sorted(values) == ["bias_NHWC", "k_NHWC", "one", "two"]
    np.testing.assert_array_equal(values["bias_NHWC"], [[[[1, 2]]]])
    np.testing.assert_array_equal(values["k_NHWC"], [[[[3, 5]]]])
    assert operators(changed)["Constant"] == 0
    assert len(transposes(changed)) == 2


def test_a_weight_as_large_as_the_image_is_not_in_the_bundle_twice():
    model = parsed(
        """g (float[1, 2, 3, 4] x) => (float[1, 2, 3, 4] y) {
          a = byoc.dla.dla_0(x)
          b = Add(a, w)
          y = byoc.dla.dla_1(b)
        }""",
        dla_0=NEG,
        dla_1=NEG,
    )
    large = np.zeros((1, 2, 3, 4), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(large, "w"))
    model.graph.initializer[0].data_location = onnx.TensorProto.EXTERNAL
    model.graph.initializer[0].ClearField("raw_data")
    changed = arranged(model)
    assert [tensor.name for tensor in changed.graph.initializer] == ["w"]


def test_bodies_are_graphs_of_their_own_and_what_they_read_keeps_its_name():
    model = parsed(
        """g (float[1, 2, 3, 4] x, bool c) => (float[1, 2, 3, 4] y) {
          a = byoc.dla.dla_0(x)
          r = Relu(a)
          i = If (c) <
            then_branch = t () => (float[1, 2, 3, 4] p) {
              b = byoc.dla.dla_1(r)
              d = Add(b, r)
              p = byoc.dla.dla_2(d)
            },
            else_branch = e () => (float[1, 2, 3, 4] q) { q = Abs(r) }
          >
          y = byoc.dla.dla_3(i)
        }""",
        dla_0=NEG,
        dla_1=NEG,
        dla_2=NEG,
        dla_3=NEG,
    )
    changed = arranged(model)
    onnx.checker.check_model(changed, full_check=True)
    image = np.random.default_rng(1).integers(-8, 8, SHAPE).astype(np.float32)
    for flag in (True, False):
        inputs = {"x": image, "c": np.array(flag)}
        with without_optimizations():
            expected = run_session(open_session(model), inputs)
            found = run_session(open_session(changed), inputs)
        np.testing.assert_array_equal(found["y"], expected["y"])
    (branch,) = (n for n in changed.graph.node if n.op_type == "If")
    then = next(a.g for a in branch.attribute if a.name == "then_branch")
    assert [n.op_type for n in then.node].count("Transpose") == 2


def test_a_symbolic_batch_is_no_obstacle():
    model = parsed(
        """g (float[N, 2, 3, 4] x) => (float[N, 2, 3, 4] y) {
          a = byoc.dla.dla_0(x)
          r = Add(a, x)
          y = byoc.dla.dla_1(r)
        }""",
        dla_0=NEG,
        dla_1=NEG,
    )
    changed = arranged(model)
    same(model, changed)
    assert len(transposes(changed)) == 2


@pytest.mark.parametrize(("channels", "steps"), [(8, 2), (6, 2)])
def test_blocks_that_are_joined_and_split_again_cancel(channels, steps):
    model = parsed(
        f"""g (float[1, {channels}, 3, 4] x) => (float[1, {channels}, 3, 4] y) {{
          a = byoc.dla.dla_0(x)
          y = byoc.dla.dla_1(a)
        }}""",
        dla_0=NEG,
        dla_1=NEG,
    )
    changed = arranged(model, parse_layout("NCHW4c"), apart=True)
    same(model, changed)
    assert operators(changed)["Transpose"] == steps
    assert operators(changed)["Reshape"] == 2
    assert operators(changed)["Pad"] == operators(changed)["Slice"] == (channels % 4 > 0)


def test_two_outputs_of_the_model_that_are_one_tensor_are_both_there():
    model = parsed(
        """g (float[1, 2, 3, 4] x) => (float[1, 3, 4, 2] y, float[1, 3, 4, 2] z) {
          a = byoc.dla.dla_0(x)
          y = Transpose <perm = [0, 2, 3, 1]> (a)
          z = Transpose <perm = [0, 2, 3, 1]> (a)
        }""",
        dla_0=NEG,
    )
    changed = arranged(model)
    same(model, changed)
    assert [node.input[0] for node in transposes(changed)] == ["x"]
    assert operators(changed)["Identity"] == 1


def test_a_region_that_reads_one_tensor_as_an_image_and_as_it_is_has_two_inputs():
    model = parsed(
        """g (float[1, 4, 6, 3] x) => (float[1, 3, 4, 6] y) {
          a = Transpose <perm = [0, 3, 1, 2]> (x)
          y = byoc.dla.dla_0(a, x)
        }""",
        dla_0="(a, x) => (y) { t = Transpose <perm = [0, 3, 1, 2]> (x) y = Sub(t, a) }",
    )
    changed = arranged(model, plain=["x"])
    same(model, changed)
    (call,) = (node for node in changed.graph.node if node.op_type == "dla_0")
    assert len(set(call.input)) == 2
    assert list(call.input) == list(changed.functions[0].input)
    assert [node.output[0] for node in transposes(changed)] == ["y"]


@pytest.mark.parametrize("span", ["", "<start = 1>", "<start = -3, end = 3>", "<end = -1>"])
def test_nothing_is_transposed_for_its_shape_alone(span):
    model = parsed(
        f"""g (float[2, 3, 4, 5] x) => (int64[n] s) {{
          a = byoc.dla.dla_0(x)
          s = Shape {span} (a)
        }}""",
        dla_0=NEG,
    )
    changed = arranged(model)
    same(model, changed)
    assert [node.input[0] for node in transposes(changed)] == ["x"]
