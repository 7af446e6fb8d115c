"""Operators of the host between two regions: which move to another layout, in every spelling."""

import numpy as np
import pytest
from transposed_graphs import arranged, transposes
from transposing import NEG, parsed, same

from byoc.model import get_metadata, get_purpose
from byoc.onnxrt import open_session, run_session, without_optimizations

# Operators in the spelling of several operator sets: what is between two regions, and what it costs.
_SPELLINGS = {
    "pad-2": (10, "b = Pad <pads = [0, 1, 2, 3, 1, 0, 0, 1]> (a)", True),
    "pad-18": (18, "b = Pad(a, pads, , axes)", True),
    "slice-1": (9, "b = Slice <starts = [0, 1], ends = [1, 3], axes = [-3, 2]> (a)", True),
    "slice-1-no-axes": (9, "b = Slice <starts = [0, 1], ends = [1, 2]> (a)", True),
    "slice-13": (17, "b = Slice(a, ones, many, axes)", True),
    "slice-13-no-axes": (17, "b = Slice(a, zeros, ones)", True),
    "reduce-13-max": (17, "b = ReduceMax <axes = [2, -1]> (a)", True),
    "reduce-18-min": (18, "b = ReduceMin(a, axes)", True),
    "reduce-13-mean": (17, "b = ReduceMean <axes = [2, -1]> (a)", False),
    "reduce-18-mean": (18, "b = ReduceMean(a, axes)", False),
    "reduce-13-sum": (13, "b = ReduceSum(a, axes)", False),
    "reduce-integers": (
        13,
        "c = Cast <to = 6> (a) d = ReduceSum(c, axes) b = Cast <to = 1> (d)",
        True,
    ),
    "reduce-all": (13, "b = ReduceMax(a)", True),
    "reduce-none": (13, "b = ReduceSum <noop_with_empty_axes = 1> (a)", True),
    "reduce-dropping": (
        17,
        "c = ReduceMax <axes = [1], keepdims = 0> (a) b = Unsqueeze(c, axis)",
        False,
    ),
    "argmax": (17, "c = ArgMax <axis = -3> (a) b = Cast <to = 1> (c)", True),
    "split-2": (11, "c, d = Split <axis = 2, split = [1, 2]> (a) b = Concat <axis = -2> (d, c)", True),
    "split-13": (17, "c, d = Split <axis = 1> (a) b = Mul(c, d)", True),
    "softmax-13": (17, "b = Softmax <axis = 1> (a)", True),
    "softmax-11": (11, "b = Softmax <axis = 1> (a)", False),
    "log-softmax": (17, "b = LogSoftmax(a)", True),
    "quantize": (17, "c = QuantizeLinear(a, scale) b = DequantizeLinear(c, scale)", True),
    "quantize-3": (
        17,
        "c = QuantizeLinear<axis=-3>(a, scales) b = DequantizeLinear(c, scales)",
        True,
    ),
    "dropout": (17, "b, m = Dropout(a)", True),
    "prelu": (17, "b = PRelu(a, slope)", True),
    "clip-6": (9, "b = Clip <min = -2.0, max = 3.0> (a)", True),
    "where": (17, "c = Greater(a, one) b = Where(c, a, one)", True),
    "instance": (17, "b = InstanceNormalization(a, scales, scales)", False),
    "pad-13": (17, "b = Pad(a, pads8)", True),
    "slice-13-last": (17, "b = Slice(a, ones, many, last)", True),
    "reduce-13-prod": (17, "c = Cast <to = 6> (a) d = ReduceProd(c) b = Cast <to = 1> (d)", True),
    "reduce-18-all": (18, "b = ReduceMax(a)", True),
    "reduce-18-none": (18, "b = ReduceMean <noop_with_empty_axes = 1> (a)", True),
    "reduce-18-mean-all": (18, "b = ReduceMean(a)", False),
    "argmax-first": (17, "c = ArgMax(a) b = Cast <to = 1> (c)", True),
    "argmin-dropping": (
        17,
        "c = ArgMin <axis = 1, keepdims = 0> (a) d = Cast <to = 1> (c) b = Unsqueeze(d, axis)",
        False,
    ),
    "softmax-11-last": (11, "b = Softmax(a)", False),
    "hardmax-13": (17, "b = Hardmax <axis = 2> (a)", True),
    "concat": (17, "b = Concat <axis = -1> (a, wide)", True),
    "concat-one-row": (17, "b = Concat <axis = 3> (a, tall, a)", True),
    "quantize-first": (
        17,
        "c = QuantizeLinear <axis = 0> (a, scales) b = DequantizeLinear <axis = 0> (c, scales)",
        True,
    ),
    "quantize-one-of-many": (17, "c = QuantizeLinear(a, scale1) b = DequantizeLinear(c, scale1)", True),
    "quantize-blocks": (
        21,
        "c = QuantizeLinear <axis = 3, block_size = 2> (a, blocks) "
        "b = DequantizeLinear <axis = 3, block_size = 2> (c, blocks)",
        False,
    ),
    "dropout-training": (17, "b = Dropout(a, , no)", True),
    "dropout-mask": (17, "c, m = Dropout(a) d = Cast <to = 1> (m) b = Mul(c, d)", True),
    "add-row": (17, "b = Add(a, row)", True),
    "add-computed-one": (17, "o = Sqrt(one) b = Add(a, o)", True),
    "add-computed-row": (17, "o = Sqrt(row) b = Add(a, o)", False),
    "add-computed-square": (17, "o = Sqrt(a) c = Mul(o, a) b = Sum(a, c, o)", True),
    "add-higher": (17, "d = Add(a, five) b = Squeeze(d, zero1)", False),
    "max-of-one": (17, "b = Max(a)", True),
    "mod": (17, "b = Mod <fmod = 1> (a, row)", True),
    "shape": (17, "s = Shape(a) c = Expand(one, s) d = Shape(c) b = Relu(a)", True),
}


def numbers(count: int) -> str:
    return ", ".join(str(1 + number / 4) for number in range(count))


@pytest.mark.parametrize("which", _SPELLINGS)
def test_an_operator_moves_as_its_version_is_defined(which):
    opset, middle, moves = _SPELLINGS[which]
    model = parsed(
        f"""g (float[2, 2, 3, 4] x) => (float[p, q, r, s] y)
          <int64[8] pads8 = {{0, 1, 0, 0, 0, 0, 1, 2}}, int64[4] pads = {{1, 0, 2, 3}},
           int64[2] axes = {{2, -3}}, int64[2] ones = {{1, 1}}, int64[2] zeros = {{0, 0}},
           int64[2] many = {{9, 9}}, int64[1] axis = {{1}}, float scale = {{0.5}}, float one = {{1}},
           int64[2] last = {{-1, 1}}, float[1] scale1 = {{0.5}}, bool no = {{0}}, int64[1] zero1 = {{0}},
           float[4] row = {{1, 2, 3, 4}}, float[2, 2, 3, 1] wide = {{{numbers(12)}}},
           float[2, 2, 3, 2] tall = {{{numbers(24)}}}, float[2, 2, 3, 2] blocks = {{{numbers(24)}}},
           float[1, 1, 1, 1, 1] five = {{2}},
           float[2] scales = {{0.5, 2}}, float[2, 1, 1] slope = {{0.25, 4}}> {{
          a = byoc.dla.dla_0(x)
          {middle}
          y = byoc.dla.dla_1(b)
        }}""",
        opset,
        dla_0=NEG,
        dla_1=NEG,
    )
    changed = arranged(model)
    same(model, changed, 1e-6)
    assert len(transposes(changed)) == (2 if moves else 4)
    assert (
        any(get_metadata(n, "byoc.layout") and not get_purpose(n) for n in changed.graph.node) == moves
    )


def test_a_sum_on_the_host_is_to_the_bit_what_it_was():
    """Moved, it would add the 2,310 numbers in another order."""
    model = parsed(
        """g (float[1, 22, 15, 7] x) => (float[1, 1, 1, 1] y, float[1, 22, 1, 1] z) {
          a = byoc.dla.dla_0(x)
          s = ReduceSum(a)
          t = ReduceL2 <axes = [2, 3]> (a)
          y = byoc.dla.dla_1(s)
          z = byoc.dla.dla_2(t)
        }""",
        dla_0=NEG,
        dla_1=NEG,
        dla_2=NEG,
    )
    x = np.random.default_rng(3).normal(size=(1, 22, 15, 7)).astype(np.float32)
    with without_optimizations():
        expected, found = (run_session(open_session(m), {"x": x}) for m in (model, arranged(model)))
    assert {name: value.tobytes() for name, value in found.items()} == {
        name: value.tobytes() for name, value in expected.items()
    }


def test_a_reduction_over_an_unknown_list_of_axes_stays():
    model = parsed(
        """g (float[2, 2, 3, 4] x, int64[1] axes) => (float[p, q, r, s] y) {
          a = byoc.dla.dla_0(x)
          b = ReduceMax(a, axes)
          y = byoc.dla.dla_1(b)
        }""",
        dla_0=NEG,
        dla_1=NEG,
    )
    assert not any(
        get_metadata(n, "byoc.layout") and not get_purpose(n) for n in arranged(model).graph.node
    )


def test_what_computes_in_another_layout_says_so():
    """A Shape as well, whose extents are put in order behind it."""
    model = parsed(
        """g (float[2, 2, 3, 4] x) => (float[2, 2, 3, 4] y, int64[2] s) {
          a = byoc.dla.dla_0(x)
          b = Abs(a)
          s = Shape <start = 1, end = 3> (b)
          y = byoc.dla.dla_1(b)
        }""",
        dla_0=NEG,
        dla_1=NEG,
    )
    changed = arranged(model)
    same(model, changed, 1e-6)
    said = {n.op_type: get_metadata(n, "byoc.layout") for n in changed.graph.node if not get_purpose(n)}
    assert {"Abs": "NHWC", "Shape": "NHWC"}.items() <= said.items()


def test_who_reads_extents_alone_keeps_no_image_in_the_models_layout():
    """Of what is made of `a` the smaller one is transposed, whatever Shape reads."""
    model = parsed(
        """g (float[2, 2, 3, 4] x) => (float[2, 2, 1, 1] m, int64[4] s) {
          a = byoc.dla.dla_0(x)
          m = ReduceMax <axes = [2, 3]> (a)
          s = Shape(a)
        }""",
        dla_0=NEG,
    )
    changed = arranged(model)
    same(model, changed, 1e-6)
    said = {n.op_type: get_metadata(n, "byoc.layout") for n in changed.graph.node if not get_purpose(n)}
    assert said["ReduceMax"] == said["Shape"] == "NHWC"
    assert len(transposes(changed)) == 2


def test_an_output_that_is_left_out_has_no_layout():
    model = parsed(
        """g (float[2, 2, 3, 4] x) => (float[2, 2, 3, 4] y) {
          a = byoc.dla.dla_0(x)
          b = Dropout(a)
          y = byoc.dla.dla_1(b)
        }""",
        dla_0=NEG,
        dla_1=NEG,
    )
    next(node for node in model.graph.node if node.op_type == "Dropout").output.append("")
    changed = arranged(model)
    same(model, changed, 1e-6)
    assert len(transposes(changed)) == 2
