"""What rules say of single operators is what onnxruntime computes, with fixed and with open extents."""

from typing import Any

import numpy as np
import onnxruntime
import pytest
from helpers.support import examples
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from model.settling import list_contradictions, read
from onnx import TensorProto, helper, numpy_helper

from byoc.errors import InputError
from byoc.model import evaluate_dim, prepare_model

SETTINGS = settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
# What onnxruntime says of a model or inputs that it does not run.
REFUSALS = (
    onnxruntime.capi.onnxruntime_pybind11_state.Fail,
    onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument,
    onnxruntime.capi.onnxruntime_pybind11_state.InvalidGraph,
    onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented,
    onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException,
)


def check(
    op_type: str,
    inputs: list[np.ndarray[Any, Any] | None],
    constants: list[np.ndarray[Any, Any] | None] = (),  # type: ignore[assignment]
    outputs: int = 1,
    opset: int = 21,
    **attributes: object,
) -> bool:
    """Compare a node's settled types with a run, at fixed and at open extents; False if it does not run.

    `inputs` are data, `constants` initializers behind them.
    """
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    stored = [f"c{i}" if c is not None else "" for i, c in enumerate(constants)]
    made = [f"y{i}" for i in range(outputs)]
    attributes = {name: value for name, value in attributes.items() if value is not None}
    node = helper.make_node(op_type, [*names, *stored], made, **attributes)
    after = helper.make_node("Shape", ["y0"], ["z"])
    data = {f"x{i}": x for i, x in enumerate(inputs) if x is not None}
    for is_open in (False, True):
        values = [
            helper.make_tensor_value_info(
                name,
                helper.np_dtype_to_tensor_dtype(x.dtype),
                [f"{name}_{axis}" if is_open else extent for axis, extent in enumerate(x.shape)],
            )
            for name, x in data.items()
        ]
        graph = helper.make_graph(
            [node, after],
            "g",
            values,
            [helper.make_tensor_value_info("z", TensorProto.INT64, [None])],
            [numpy_helper.from_array(c, f"c{i}") for i, c in enumerate(constants) if c is not None],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
        try:
            found = list_contradictions(prepare_model(model, "model"), data)
        except (InputError, *REFUSALS):
            return False
        assert not found, (helper.printable_node(node), found)
    return True


extents = st.integers(1, 9)


@st.composite
def windows(draw: st.DrawFn, pools: bool) -> dict[str, Any]:
    """Draw the attributes of a convolution or a pool with two spatial axes."""
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    found: dict[str, Any] = {"kernel_shape": kernel}
    found["strides"] = draw(st.none() | st.tuples(st.integers(1, 4), st.integers(1, 4)))
    found["dilations"] = draw(st.none() | st.tuples(st.integers(1, 3), st.integers(1, 3)))
    found["auto_pad"] = draw(st.sampled_from(["NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    if found["auto_pad"] == "NOTSET":
        found["pads"] = draw(st.none() | st.tuples(*[st.integers(0, k - 1) for k in (*kernel, *kernel)]))
    if pools:
        found["ceil_mode"] = draw(st.integers(0, 1))
    return found


def ones(*shape: int) -> np.ndarray[Any, Any]:
    return np.ones(shape, np.float32)


@SETTINGS
@given(windows(pools=True), extents, extents, st.sampled_from(["MaxPool", "AveragePool", "LpPool"]))
def test_pools(window, height, width, op_type):
    # With open extents an image smaller than the window is no case.
    reach = [
        (k - 1) * d + 1
        for k, d in zip(window["kernel_shape"], window["dilations"] or [1, 1], strict=True)
    ]
    assume(reach[0] <= height and reach[1] <= width)
    check(
        op_type,
        [ones(1, 2, height, width)],
        outputs=1,
        opset=22 if op_type == "LpPool" else 21,
        **window,
    )


@SETTINGS
@given(windows(pools=False), extents, extents)
def test_convolutions(window, height, width):
    check("Conv", [ones(1, 2, height, width)], [ones(3, 2, *window["kernel_shape"])], **window)


@SETTINGS
@given(windows(pools=False), extents, extents, st.data())
def test_transposed_convolutions(window, height, width, data):
    window["output_padding"] = data.draw(st.none() | st.tuples(st.integers(0, 1), st.integers(0, 1)))
    check("ConvTranspose", [ones(1, 2, height, width)], [ones(2, 3, *window["kernel_shape"])], **window)


@SETTINGS
@given(
    extents,
    extents,
    st.tuples(*[st.sampled_from([0.25, 0.3, 0.5, 0.75, 1.0, 1.5, 1.7, 2.0, 3.1])] * 2),
    st.sampled_from(["half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize"]),
)
def test_resize_by_scales(height, width, scales, mode):
    roi = np.array([0, 0, 0.25, 0.25, 1, 1, 0.75, 0.75], np.float32)
    factors = np.array([1, 1, *scales], np.float32)
    check("Resize", [ones(1, 2, height, width)], [roi, factors], coordinate_transformation_mode=mode)


@SETTINGS
@given(
    extents,
    extents,
    st.tuples(extents, extents),
    st.sampled_from(["stretch", "not_larger", "not_smaller"]),
)
def test_resize_to_sizes(height, width, sizes, policy):
    goal = np.array(sizes, np.int64)
    check(
        "Resize",
        [ones(1, 2, height, width)],
        [None, None, goal],
        axes=[2, 3],
        keep_aspect_ratio_policy=policy,
    )


@SETTINGS
@given(st.tuples(*[st.integers(0, 6)] * 3), st.data())
def test_slices(shape, data):
    far = [-(2**63), -(2**31), 2**31 - 1, 2**63 - 1]
    position = st.integers(-8, 8) | st.sampled_from(far)
    axes = data.draw(st.lists(st.integers(0, 2), unique=True, min_size=1))
    starts, ends = ([data.draw(position) for _ in axes] for _ in range(2))
    steps = [data.draw(st.sampled_from([-(2**31), -3, -2, -1, 1, 2, 3])) for _ in axes]
    parts = [np.array(part, np.int64) for part in (starts, ends, axes, steps)]
    # Of these ends ONNX's inference and onnxruntime differ where a step is negative.
    assume(all(step > 0 or end not in far[2:] for end, step in zip(ends, steps, strict=True)))
    check("Slice", [ones(*shape)], parts)


@pytest.mark.parametrize("start", [-6, -5, -1, 5])
@pytest.mark.parametrize("end", [-100, -5, 0])
def test_slices_backwards_begin_at_an_element(start, end):
    # The start is computed, so that ONNX's inference does not see it.
    model = read(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[5,3] x) => (float[?,3] y)
        <int64[1] start={START}, int64[1] end={END}, int64[1] axis={0}, int64[1] back={-1},
         int64[5] sizes={1,2,3,4,5}> {
           s = Shape <start = 0, end = 1> (x)
           z = Sub (s, s)
           first = Add (start, z)
           y = Slice (x, first, end, axis, back)
           values = Slice (sizes, first, end, axis, back)
           filled = ConstantOfShape (values)
        }
        """.replace("START", str(start)).replace("END", str(end))
    )
    assert model.index.get_shape("y")[0] is not None
    assert not list_contradictions(model, {"x": ones(5, 3)})


@pytest.mark.parametrize("scale", [0.7, 1.1, 1.3, 1.4, 2.3])
def test_scales_are_multiplied_in_float32(scale):
    # ONNX's inference makes 12 of 10 times 1.3.
    factors = np.array([1, 1, scale, 1], np.float32)
    for height in (7, 10, 20, 30):
        assert check("Resize", [ones(1, 1, height, 2)], [np.zeros(0, np.float32), factors], opset=13)
        assert scale < 1 or check("Upsample", [ones(1, 1, height, 2)], [factors], opset=9)


@SETTINGS
@given(st.tuples(*[st.integers(0, 4)] * 3), st.data())
def test_reshapes(shape, data):
    target = data.draw(st.lists(st.sampled_from([-1, 0, 0, 1, 2, 3, 4, 6, 8]), max_size=4))
    goal = np.array(target, np.int64)
    check("Reshape", [ones(*shape)], [goal], allowzero=data.draw(st.integers(0, 1)))
    if 0 not in shape:
        check("Reshape", [ones(*shape)], [np.array([0, -1, shape[2]], np.int64)])


@SETTINGS
@given(st.tuples(*[st.integers(0, 4)] * 2), st.lists(st.integers(-1, 4), min_size=4, max_size=4))
def test_pads(shape, pads):
    check("Pad", [ones(*shape)], [np.array(pads, np.int64)])
    check("Pad", [ones(*shape)], [np.array(pads[:2], np.int64), None, np.array([-1], np.int64)])


@SETTINGS
@given(st.integers(0, 9), st.integers(1, 4), st.sampled_from([13, 18, 21]))
def test_splits(extent, count, opset):
    stated = {"num_outputs": count} if opset >= 18 else {}
    check("Split", [ones(2, extent)], outputs=count, opset=opset, axis=1, **stated)


@SETTINGS
@given(st.data())
def test_broadcasts(data):
    shape = data.draw(st.lists(st.sampled_from([0, 1, 2, 3]), max_size=4))
    others = [
        [
            data.draw(st.sampled_from([1, extent]))
            for extent in shape[data.draw(st.integers(0, len(shape))) :]
        ]
        for _ in range(2)
    ]
    check("Add", [ones(*others[0]), ones(*others[1])])
    check("Where", [np.asarray(ones(*others[0]) > 0), ones(*others[1]), ones(*shape)])
    check("Expand", [ones(*others[0])], [np.array(shape, np.int64)])
    check("Less", [ones(*shape), ones(*others[1])])


@SETTINGS
@given(st.data())
def test_products(data):
    batch = data.draw(st.lists(st.sampled_from([1, 2]), max_size=2))
    other = [data.draw(st.sampled_from([1, extent])) for extent in batch]
    n, k, m = (data.draw(st.integers(1, 3)) for _ in range(3))
    left = data.draw(st.sampled_from([(k,), (n, k), (*batch, n, k)]))
    right = data.draw(st.sampled_from([(k,), (k, m), (*other, k, m)]))
    assert check("MatMul", [ones(*left), ones(*right)])
    assert check("Gemm", [ones(k, n), ones(m, k)], transA=1, transB=1)


EINSUMS = {
    "ij,jk->ik": [(2, 3), (3, 4)],
    "bij,bjk": [(2, 3, 4), (2, 4, 5)],
    "...ij,...jk->...ik": [(2, 3, 4), (1, 4, 5)],
    "ii->i": [(3, 3)],
    "ij->": [(3, 2)],
    "bhqd,bhkd->bhqk": [(1, 2, 3, 4), (1, 2, 5, 4)],
}


@pytest.mark.parametrize("equation", EINSUMS)
def test_einsums(equation):
    assert check("Einsum", [ones(*shape) for shape in EINSUMS[equation]], equation=equation)


@SETTINGS
@given(st.data())
def test_reductions(data):
    shape = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    axes = data.draw(st.none() | st.lists(st.integers(0, len(shape) - 1), unique=True))
    goal = None if axes is None else np.array(axes, np.int64)
    settings_ = {
        "keepdims": data.draw(st.integers(0, 1)),
        "noop_with_empty_axes": data.draw(st.integers(0, 1)),
    }
    check("ReduceMean", [ones(*shape)], [goal], **settings_)
    check("ReduceMax", [ones(*shape)], opset=13, axes=axes or None, keepdims=settings_["keepdims"])
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    assert check("ArgMax", [ones(*shape)], axis=axis, keepdims=settings_["keepdims"])
    assert check("Flatten", [ones(*shape)], axis=axis)
    k = np.array([1], np.int64)
    assert check("TopK", [ones(*shape)], [k], outputs=2, axis=axis)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("gates", [1, 3, 4])
@pytest.mark.parametrize("layout", [0, 1])
def test_recurrent_networks(direction, gates, layout):
    count = 2 if direction == "bidirectional" else 1
    weights = [ones(count, gates * 5, 3), ones(count, gates * 5, 5)]
    op_type, outputs = {1: ("RNN", 2), 3: ("GRU", 2), 4: ("LSTM", 3)}[gates]
    ran = check(
        op_type, [ones(7, 2, 3)], weights, outputs, direction=direction, hidden_size=5, layout=layout
    )
    assert ran or layout  # onnxruntime has no kernel of the other layout


@pytest.mark.parametrize(
    ("op_type", "inputs", "constants", "attributes"),
    [
        ("Transpose", [ones(1, 2, 3)], [], {"perm": [2, 0, 1]}),
        ("Transpose", [ones(1, 2, 3)], [], {}),
        ("Concat", [ones(2, 3), ones(2, 0), ones(2, 1)], [], {"axis": -1}),
        ("Gather", [ones(4, 3)], [np.zeros((2, 5), np.int64)], {"axis": -1}),
        ("Gather", [ones(4, 3)], [np.array(1)], {}),
        ("GatherElements", [ones(4, 3)], [np.zeros((2, 3), np.int64)], {}),
        ("GatherND", [ones(2, 3, 4)], [np.zeros((2, 5, 1), np.int64)], {"batch_dims": 1}),
        ("ScatterND", [ones(4, 3)], [np.zeros((2, 1), np.int64), ones(2, 3)], {}),
        ("Tile", [ones(2, 3)], [np.array([2, 0])], {}),
        ("Squeeze", [ones(1, 2, 1)], [np.array([-1])], {}),
        ("Squeeze", [ones(1, 2, 1)], [], {}),
        ("Unsqueeze", [ones(2, 3)], [np.array([-1, 0])], {}),
        ("OneHot", [np.zeros((2, 3), np.int64)], [np.array(5), ones(2)], {"axis": 1}),
        ("NonZero", [ones(2, 3)], [], {}),
        ("NonZero", [ones()], [], {}),
        ("DepthToSpace", [ones(1, 8, 2, 3)], [], {"blocksize": 2}),
        ("SpaceToDepth", [ones(1, 2, 4, 6)], [], {"blocksize": 2}),
        ("GlobalAveragePool", [ones(1, 2, 4, 6)], [], {}),
        ("QuantizeLinear", [ones(2, 3)], [np.array(1.0, np.float32), np.array(0, np.int8)], {}),
        ("QuantizeLinear", [ones(2, 3)], [np.array(1.0, np.float32)], {}),
        ("DynamicQuantizeLinear", [ones(2, 3)], [], {"outputs": 3}),
        ("CumSum", [ones(2, 3)], [np.array(1)], {}),
        ("Cast", [ones(2, 3)], [], {"to": TensorProto.INT32}),
        ("IsNaN", [ones(2, 3)], [], {}),
        ("GridSample", [ones(1, 2, 4, 6), ones(1, 3, 5, 2)], [], {}),
        ("RoiAlign", [ones(1, 2, 4, 6), ones(3, 4)], [np.zeros(3, np.int64)], {"output_height": 2}),
        ("Pow", [ones(2, 1), np.ones((1, 3), np.int64)], [], {}),
        ("MeanVarianceNormalization", [ones(1, 2, 3, 3)], [], {}),
        ("Upsample", [ones(1, 2, 4, 6)], [np.array([1, 1, 1.5, 2], np.float32)], {"opset": 9}),
        ("STFT", [ones(1, 64)], [np.array(8), ones(16)], {"onesided": 0}),
        ("STFT", [ones(2, 64, 1)], [np.array(8), None, np.array(16)], {}),
        ("Trilu", [ones(2, 3)], [], {}),
        ("Range", [], [np.array(0), np.array(7), np.array(2)], {}),
        ("Range", [], [np.array(7), np.array(0), np.array(-3)], {}),
        ("Range", [], [np.float32(0), np.float32(1), np.float32(0.1)], {}),
        ("ConstantOfShape", [], [np.array([2, 0, 3])], {}),
        ("Shape", [ones(2, 3, 4)], [], {"start": -2}),
        ("LayerNormalization", [ones(2, 3, 4)], [ones(4)], {}),
        ("Attention", [ones(1, 2, 3, 8), ones(1, 2, 5, 8), ones(1, 2, 5, 6)], [], {"opset": 23}),
    ],
)  # fmt: skip
def test_other_operators(op_type, inputs, constants, attributes):
    stored = [None if c is None else np.asarray(c) for c in constants]
    assert check(op_type, inputs, stored, **attributes)


def test_the_mean_and_deviation_of_a_layer_normalization():
    assert check("LayerNormalization", [ones(2, 3, 4)], [ones(3, 4)], outputs=3, axis=1)


def test_a_model_that_does_not_run_is_no_comparison():
    assert not check("MatMul", [ones(2, 3), ones(2, 3)])


FAR = [-(2**63), -(2**31), 2**31 - 1, 2**63 - 1]


def count_taken(extent: int, start: int, end: int, step: int) -> int:
    """Count what a Slice takes, with its ends clamped as ONNX says.

    onnxruntime takes the largest int32 and int64 as an end for all that there is, backwards, too.
    """
    if step < 0 and end in FAR[2:]:
        end = FAR[0]
    start, end = (at + extent if at < 0 else at for at in (start, end))
    if step > 0:
        return len(range(min(max(start, 0), extent), min(max(end, 0), extent), step))
    return len(range(min(max(start, 0), extent - 1), min(max(end, -1), extent - 1), step))


@pytest.mark.parametrize("step", [-3, -2, -1, 1, 2, 3])
def test_what_a_slice_leaves_of_an_open_axis_is_known(step):
    tried = [*range(-5, 6), *FAR]
    ends = ", ".join(f"int64[1] e{at} = {{{value}}}" for at, value in enumerate(tried))
    sliced = {f"y{a}_{b}": (a, b) for a in range(len(tried)) for b in range(len(tried))}
    outputs = ", ".join(f"float[k] {name}" for name in sliced)
    nodes = " ".join(f"{name} = Slice(x, e{a}, e{b}, zero, s)" for name, (a, b) in sliced.items())
    model = read(
        f"""<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => ({outputs})
            <{ends}, int64[1] zero = {{0}}, int64[1] s = {{{step}}}> {{ {nodes} }}"""
    )
    for name, (a, b) in sliced.items():
        (found,) = model.index.get_shape(name)
        for extent in range(8):
            right = count_taken(extent, tried[a], tried[b], step)
            assert evaluate_dim(found, {"n": extent}) == right, (tried[a], tried[b], extent, found)


@pytest.mark.parametrize(("first", "last"), [("m", "big"), ("zero", "m"), ("m", "zero")])
@pytest.mark.parametrize("step", [1, 2])
def test_a_slice_may_begin_and_end_at_an_extent_from_the_back(first, last, step):
    model = read(
        f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1,n,4] x, float[n,3] s) => (float[?,?,?] y)
        <int64[1] zero={{0}}, int64[1] big={{{FAR[-1]}}},
         int64[1] axis={{1}}, int64[1] step={{{step}}}> {{
           d = Shape <start = 0, end = 1> (s)
           m = Neg (d)
           y = Slice (x, {first}, {last}, axis, step)
        }}
        """
    )
    assert model.index.get_shape("y")[1] is not None
    for n in range(1, 5):
        assert not list_contradictions(model, {"x": ones(1, n, 4), "s": ones(n, 3)})


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("condition", [[True, False, True], [False], [True, True, True, True]])
def test_a_constant_condition_says_how_many_are_taken(axis, condition):
    taken = np.array(condition[: (4 if axis is None else 3)])
    assert check("Compress", [ones(3, 4)], [taken], opset=13, axis=axis)


def test_a_pool_is_undone_to_the_shape_that_is_asked_for():
    indices = np.array([[[[5, 7], [13, 15]]]], np.int64)
    shape = np.array([1, 1, 5, 5], np.int64)
    assert check(
        "MaxUnpool", [ones(1, 1, 2, 2)], [indices, shape], opset=13, kernel_shape=[2, 2], strides=[2, 2]
    )


def test_columns_become_an_image():
    image, block = np.array([5, 4], np.int64), np.array([1, 2], np.int64)
    assert check("Col2Im", [ones(2, 6, 15)], [image, block], opset=18)
