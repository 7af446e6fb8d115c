"""Extents that follow from the file are known before anything is decided, and are those of a run."""

import numpy as np
import onnx
import pytest
from model.settling import list_contradictions, read, shapes

from byoc.model import prepare_model

PAD_CHAIN = """
<ir_version: 8, opset_import: ["" : 17]>
pad (float[1,4,8,8] x) => (float[N,C,H,W] y)
<int64[4] four = {0,1,0,1}, int64[4] zero = {0,0,0,0}, int64[2] shp = {-1,2}, int64[1] m1 = {-1},
 int64[1] far = {-9223372036854775807}, int64[1] ax = {0}> {
   c = Concat <axis = 0> (four, zero)
   r = Reshape (c, shp)
   s = Slice (r, m1, far, ax, m1)
   t = Transpose <perm = [1, 0]> (s)
   pads = Reshape (t, m1)
   p = Pad (x, pads)
   y = MaxPool <kernel_shape = [3, 3]> (p)
}
"""


def test_pads_that_the_file_computes_are_known():
    """PyTorch's exporter writes them so."""
    model = read(PAD_CHAIN)
    assert shapes(model)["p"] == (1, 4, 9, 9)
    assert shapes(model)["y"] == (1, 4, 7, 7)
    assert not list_contradictions(model, {"x": np.ones((1, 4, 8, 8), np.float32)})


def test_a_slice_that_ends_at_a_shape_is_known():
    model = read("""
    <ir_version: 7, opset_import: ["" : 12]>
    crop (float[1,4,16,16] x, float[1,4,15,15] y) => (float[N,C,H,W] z) <int64[4] st = {0,0,0,0}> {
       s = Shape (y)
       c = Slice (x, st, s)
       z = Add (c, y)
    }
    """)
    assert shapes(model)["c"] == shapes(model)["z"] == (1, 4, 15, 15)


def test_normalizations_without_an_inference_function_keep_the_shape():
    model = read(""" <ir_version: 10, opset_import: ["" : 21]> g (float[N,8,4,4] x) => (float[?,?,?,?]
    y) <float[8] s = {1,1,1,1,1,1,1,1}, float[8] b = {0,0,0,0,0,0,0,0}> { t = GroupNormalization
    <num_groups = 2> (x, s, b) u = MeanVarianceNormalization (t) y = Relu (u) }
    """)
    assert set(shapes(model).values()) == {("N", 8, 4, 4)}


def test_a_stft_of_one_side_has_half_of_the_bins():
    """ONNX's inference takes a missing `onesided` for 0, its documentation and onnxruntime for 1."""
    model = read("""
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[1,1024] x) => (float[A,B,C,D] y) <int64 hop = {128}, int64 size = {512}> {
       s = STFT (x, hop, , size)
       y = Relu (s)
    }
    """)
    assert shapes(model)["y"] == (1, 5, 257, 2)
    assert not list_contradictions(model, {"x": np.ones((1, 1024), np.float32)})


@pytest.mark.parametrize("size", [0, 1, 5, 8])
def test_symbolic_extents_are_those_of_a_run(size):
    model = read(
        """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[batch, seq, 8] x, float[batch, past, 8] p) => (float[?,?,?,?] y)
    <int64[1] one = {1}, int64[1] two = {2}, int64 i = {1}, int64[1] axes = {1}, int64[1] last = {-1},
     int64[1] far = {9223372036854775807}, int64[1] zero = {0}> {
       c = Concat <axis = 1> (p, x)
       s = Shape (c)
       total = Gather <axis = 0> (s, i)
       row = Unsqueeze (total, zero)
       head = Constant <value = int64[2] {4, 2}> ()
       rest = Concat <axis = 0> (row, head)
       batch1 = Shape <start = 0, end = 1> (x)
       target = Concat <axis = 0> (batch1, rest)
       r = Reshape (c, target)
       half = Div (row, two)
       h = Slice (r, zero, half, axes)
       shifted = Slice (c, one, far, axes)
       cut = Slice (c, zero, last, axes)
       stepped = Slice (c, zero, far, axes, two)
       back = Slice (c, last, zero, axes, last)
       f = Flatten (r)
       e = Expand (x, row)
       y = Transpose <perm = [0, 2, 1, 3]> (h)
    }
    """.replace("       e = Expand (x, row)\n", "")
    )
    assert shapes(model)["c"] == ("batch", "past + seq", 8)
    assert shapes(model)["r"] == ("batch", "past + seq", 4, 2)
    assert shapes(model)["y"] == ("batch", 4, "(past + seq) // 2", 2)
    assert shapes(model)["stepped"] == ("batch", "(past + seq + 1) // 2", 8)
    assert shapes(model)["cut"] == ("batch", "max(0, past + seq - 1)", 8)
    assert shapes(model)["shifted"] == ("batch", "max(0, past + seq - 1)", 8)
    feeds = {"x": np.ones((2, size, 8), np.float32), "p": np.ones((2, 3, 8), np.float32)}
    assert not list_contradictions(model, feeds)


def test_a_condition_that_the_file_decides_takes_its_branch():
    model = read("""
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[4,1,8] x) => (float[?,?] y) <int64 i = {1}, int64 one = {1}, int64[1] axes = {1}> {
       s = Shape (x)
       n = Gather <axis = 0> (s, i)
       c = Equal (n, one)
       y = If (c) <then_branch = t () => (float[?,?] a) { a = Squeeze (x, axes) },
                   else_branch = e () => (float[?,?,?] b) { b = Relu (x) }>
    }
    """)
    assert shapes(model)["y"] == (4, 8)
    then = model.index.bodies[3][0].index
    assert then.get_shape("a") == (4, 8)


def test_branches_that_differ_leave_open_what_they_differ_in():
    model = read("""
    <ir_version: 8, opset_import: ["" : 17]>
    g (bool c, float[4,6] x) => (float[?,?] y, float[?,?] z) <int64[1] zero = {0}, int64[1] two = {2}> {
       y, z = If (c) <
          then_branch = t () => (float[?,?] a, float[?,?] b) { a = Relu (x)  b = Slice (x, zero, two) },
          else_branch = e () => (float[?,?] d, float[?,?,?] f) { d = Slice (x, zero, two)  f = Unsqueeze
          (x, zero) }> }
    """)
    assert shapes(model)["y"] == (None, 6)
    assert shapes(model)["z"] is None


LOOP = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[4,6] x, int64 n) => (float[?,?] same, float[?,?] grown, float[?,?,?] stack)
<int64 five = {5}, bool yes = {1}> {
   same, grown, stack = Loop (COUNT, yes, x, x) <body = b (int64 i, bool c, float[?,?] u, float[?,?] v)
   => (bool d, float[?,?] w, float[?,?] g, float[?,?] out) { d = Identity (c) w = Relu (u) g = Concat
   <axis = 0> (v, u) out = Transpose (w) }> }
"""


def test_a_loop_keeps_the_extents_that_do_not_change():
    model = read(LOOP.replace("COUNT", "five"))
    assert shapes(model) == {"same": (4, 6), "grown": (None, 6), "stack": (5, 6, 4)}
    body = model.index.bodies[0][0].index
    assert body.get_shape("w") == (4, 6)
    assert body.get_shape("g") == (None, 6)
    assert not list_contradictions(model, {"x": np.ones((4, 6), np.float32), "n": np.array(3)})


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_loop_that_runs_as_often_as_an_input_says(count):
    model = read(LOOP.replace("COUNT", "n"))
    assert shapes(model) == {"same": (4, 6), "grown": (None, 6), "stack": (None, 6, 4)}
    found = list_contradictions(model, {"x": np.ones((4, 6), np.float32), "n": np.array(count)})
    # What a loop stacks that never runs is empty in any case; onnxruntime gives it no extents at all.
    assert found == ([] if count else ["stack: float32[?, 6, 4] is not float32[0, 0, 0] at {}"])


def test_a_scan_stacks_along_its_axis():
    model = read("""
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[6] s, float[N,6] x) => (float[?] last, float[?,?] y) {
       last, y = Scan <num_scan_inputs = 1, scan_output_axes = [1], body = b (float[?] a, float[?] e) =>
          (float[?] n, float[?] o) { n = Add (a, e)  o = Relu (n) }> (s, x)
    }
    """)
    assert shapes(model) == {"last": (6,), "y": (6, "N")}
    feeds = {"s": np.ones(6, np.float32), "x": np.ones((3, 6), np.float32)}
    assert not list_contradictions(model, feeds)


def test_calls_settle_the_bodies_of_functions():
    model = read("""
    <ir_version: 9, opset_import: ["" : 17, "own" : 1]>
    g (float[2,6] x) => (float[?,?,?] y) <int64[2] target = {3, 4}> {
       y = own.outer <k = 1> (x, target)
    }
    <domain: "own", opset_import: ["" : 17, "own" : 1]>
    outer <k> (a, t) => (r) {
       s = own.inner <axis: int = @k> (a)
       both = Concat <axis = 0> (s, t)
       m1 = Constant <value = int64[1] {-1}> ()
       u = Concat <axis = 0> (m1, t)
       r = Reshape (a, u)
    }
    <domain: "own", opset_import: ["" : 17]>
    inner <axis> (a) => (n) {
       all = Shape (a)
       i = Constant <value_int: int = @axis> ()
       j = Constant <value_ints = [0]> ()
       e = Gather (all, i)
       n = Unsqueeze (e, j)
    }
    """)
    assert shapes(model)["y"] == (1, 3, 4)
    assert not list_contradictions(model, {"x": np.ones((2, 6), np.float32)})


def test_a_call_has_the_extents_of_what_is_doubtful_inside():
    """ONNX's inference counts output padding of automatic pads through functions, too: 9 for 8."""
    model = read("""
        <ir_version: 8, opset_import: ["" : 18, "own" : 1]>
        calls (float[1, 2, 4, 4] x, float[2, 3, 3, 3] w) => (float[1, 3, 8, 8] y) { y = own.outer(x, w) }
        <domain: "own", opset_import: ["own" : 1, "" : 18]>
        outer (a, k) => (b) { b = own.inner(a, k) }
        <domain: "own", opset_import: ["" : 18]>
        inner (a, k) => (b) {
          b = ConvTranspose<auto_pad = "SAME_UPPER", strides = [2, 2], output_padding = [1, 1]>(a, k)
        }""")
    feeds = {"x": np.ones((1, 2, 4, 4), np.float32), "w": np.ones((2, 3, 3, 3), np.float32)}

    assert shapes(model) == {"y": (1, 3, 8, 8)}
    assert not list_contradictions(model, feeds)


def test_what_the_file_states_helps_where_nothing_is_inferred():
    proto = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 17, "vendor" : 1]>
    g (float[N,6] x) => (float[?,?] z) <float[M, 6] y> {
       y = vendor.Twice (x)
       z = Relu (y)
    }
    """)
    proto.graph.value_info[0].type.tensor_type.shape.dim[0].dim_param = "N*2"
    assert shapes(prepare_model(proto, "model"))["z"] == ("2*N", 6)
    proto.graph.value_info[0].type.tensor_type.shape.dim[0].dim_param = "K*2"  # no input has a K
    assert shapes(prepare_model(proto, "model"))["z"] == (None, 6)


def test_what_is_inferred_wins_over_what_the_file_states():
    model = read(PAD_CHAIN.replace("<int64[4] four", "<float[1,4,11,11] p, int64[4] four"))
    assert shapes(model)["p"] == (1, 4, 9, 9)
    assert shapes(model)["y"] == (1, 4, 7, 7)
    assert model.notes == (
        "the model says that 'p' is float32[1, 4, 11, 11], but it is float32[1, 4, 9, 9]",
    )


def test_settling_does_not_change_the_model():
    proto = onnx.parser.parse_model(LOOP.replace("COUNT", "five"))
    before = proto.SerializeToString(deterministic=True)
    prepare_model(proto, "model")
    assert proto.SerializeToString(deterministic=True) == before


def test_what_is_open_is_not_what_the_file_states():
    # As in files of which only the inputs were opened after the export.
    model = read("""
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[N,4] x) => (float[1,4] y) <float[1,4] a, float[1,4] s> {
       a = Add (x, x)
       s = Neg (a)
       y = Relu (a)
    }
    """)
    assert shapes(model) == {"a": ("N", 4), "s": ("N", 4), "y": ("N", 4)}


def test_a_scale_that_is_not_known_leaves_the_extent_open():
    model = read("""
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[1,1,H,6] x) => (float[?,?,?,?] y)
    <int64[2] hw={2,3}, float[2] one={1.0,1.0}, float[2] size={5.0,9.0}> {
       s = Shape (x)
       t = Gather (s, hw)
       f = Cast <to=1> (t)
       r = Div (size, f)
       c = Concat <axis=0> (one, r)
       y = Resize <mode="nearest"> (x, , c)
    }
    """)
    assert shapes(model)["y"] == (1, 1, None, None)
    assert not list_contradictions(model, {"x": np.ones((1, 1, 7, 6), np.float32)})


def test_a_name_with_a_hyphen_is_one_open_dimension():
    proto = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[N,4] x) => (float[?,4] y) { y = Concat <axis=0> (x, x) }
    """)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch-size"
    model = prepare_model(proto, "model")
    assert shapes(model) == {"y": ("2*'batch-size'", 4)}
    assert not list_contradictions(model, {"x": np.ones((3, 4), np.float32)})


def test_an_extent_beyond_64_bits_leaves_the_others_known():
    model = read("""
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[4,4] x) => (float[?,?] y, float[8,32] z)
    <int64[2] many={4611686018427387904,4611686018427387904}, int64[2] k={2,8}> {
       y = Tile (x, many)
       s = Shape (x)
       t = Mul (s, k)
       z = ConstantOfShape (t)
    }
    """)
    assert shapes(model)["y"] == (None, None)
    assert shapes(model)["z"] == (8, 32)
    assert not model.notes
