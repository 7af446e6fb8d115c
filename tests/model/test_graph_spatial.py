"""Which tensors are images, and which constants are weights of convolutions."""

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from helpers.support import parse, prepared
from onnx import TensorProto, helper, numpy_helper

from byoc.model import GraphIndex, find_images, find_weights, prepare_model


def of(text: str) -> set[str]:
    return set(find_images(prepared(text).index))


def test_images_are_what_reaches_a_convolution_and_what_it_reaches() -> None:
    found = of(
        """g (float[1, 2, 4, 4] x, float[1, 2, 4, 4] other, float[1] s)
            => (float[1, 2, 4, 4] y, float[1, 16, 4] f, float[1, 2, 4, 4] q)
            <float[2, 2, 1, 1] w = {1, 2, 3, 4}, float[1, 2, 1, 1] gain = {2, 3}, float floor = {0}> {
            a = Relu(x)
            b = Mul(a, gain)
            c = Conv(b, w)
            d = Clip(c, floor)
            y = Add(other, d)
            shape = Constant<value = int64[3] {1, -1, 4}>()
            lines = Reshape(c, shape)
            f = Concat<axis = 1>(lines, lines)
            q = Add(s, other)
        }"""
    )

    # Backwards through Mul and Relu, forwards through Clip and Add, and to whom shares an Add.
    assert found == {*("x", "a", "b", "c", "d"), *("y", "other", "q")}


def test_an_attention_has_no_images() -> None:
    assert not of(
        """g (float[1, 2, 4, 8] q, float[1, 2, 8, 4] k, float[1, 1, 4, 4] mask)
            => (float[1, 2, 4, 4] y) {
            s = MatMul(q, k)
            m = Add(s, mask)
            y = Softmax(m)
        }"""
    )


def test_what_moves_axes_is_a_border_of_images() -> None:
    found = of(
        """g (float[1, 4, 4, 2] x) => (float[1, 4, 4, 2] y) {
            a = Relu(x)
            b = Transpose<perm = [0, 3, 1, 2]>(a)
            c = AveragePool<kernel_shape = [1, 1]>(b)
            d = Sigmoid(c)
            y = Transpose<perm = [0, 2, 3, 1]>(d)
        }"""
    )

    assert found == {"b", "c", "d"}


def test_a_constant_does_not_join_what_reads_it() -> None:
    found = of(
        """g (float[1, 2, 4, 4] x, float[1, 2, 4, 4] attended)
            => (float[1, 2, 4, 4] y, float[1, 2, 4, 4] z)
            <float[1, 1, 1, 1] half = {0.5}> {
            p = MaxPool<kernel_shape = [1, 1]>(x)
            y = Mul(p, half)
            z = Mul(attended, half)
        }"""
    )

    assert found == {"x", "p", "y"}


def test_quantized_tensors_are_images_too() -> None:
    found = of(
        """g (float[1, 2, 4, 4] x, uint8[1, 2, 4, 4] given) => (uint8[1, 2, 4, 4] y, int32[1, 2, 4, 4] n)
            <float scale = {0.1}, uint8 zero = {3}, uint8[2, 2, 1, 1] w = {1, 2, 3, 4}> {
            xq = QuantizeLinear(x, scale, zero)
            xd = DequantizeLinear(xq, scale, zero)
            p = MaxPool<kernel_shape = [1, 1]>(xd)
            y = QuantizeLinear(p, scale, zero)
            n = ConvInteger(given, w)
        }"""
    )

    assert found == {"x", "xq", "xd", "p", "y", "given", "n"}


# An operator that speaks of height and width, alone: what of it is an image.
SPEAKING: Mapping[str, tuple[str, set[str]]] = {
    "indices of MaxPool": ("y, i = MaxPool<kernel_shape = [2, 2]>(x)", {"x", "y", "i"}),
    "GridSample": ("y = GridSample(x, grid)", {"x", "y"}),
    "BatchNormalization": ("y = BatchNormalization(x, v, v, v, v)", {"x", "y"}),
    "Resize": ("y = Resize(x, , scales)", {"x", "y"}),
    "SpaceToDepth": ("y = SpaceToDepth<blocksize = 2>(x)", {"x", "y"}),
    "MaxUnpool": ("y = MaxUnpool<kernel_shape = [2, 2]>(x, places)", {*"xy", "places"}),
    "LRN": ("y = LRN<size = 1>(x)", {"x", "y"}),
    "a Reduce that keeps ranks": ("m = ReduceMean<axes = [2, 3]>(x)\n y = LRN<size = 1>(m)", {*"xmy"}),
    "a Reduce that does not": (
        "m = ReduceMean<axes = [2, 3], keepdims = 0>(x)\n y = LRN<size = 1>(level)",
        {"level", "y"},
    ),
    "Split": ("a, b = Split<axis = 1>(x)\n y = LRN<size = 1>(a)", {*"xaby"}),
    "Gather with a list": ("m = Gather<axis = 1>(x, list)\n y = LRN<size = 1>(m)", {*"xmy"}),
    "Where": ("c = Greater(x, level)\n p = Where(c, x, x)\n y = LRN<size = 1>(p)", {*"xcpy", "level"}),
}


@pytest.mark.parametrize("title", SPEAKING)
def test_operators_that_speak_and_that_keep(title: str) -> None:
    lines, expected = SPEAKING[title]
    found = of(
        f"""g (float[1, 2, 4, 4] x, float[1, 4, 4, 2] grid, int64[1, 2, 4, 4] places, int64[1] list,
              float[1, 2, 4, 4] level) => (float[a, b, c, d] y)
            <float[2] v = {{1, 2}}, float[4] scales = {{1, 1, 2, 2}}> {{ {lines} }}"""
    )

    assert found == expected


def test_ranks_other_than_four_are_no_images() -> None:
    assert not of(
        """g (float[1, 2, 4] x, float[1, 2, 3, 4, 5] v) => (float[1, 2, 4] y, float[1, 2, 3, 4, 5] z) {
            y = MaxPool<kernel_shape = [1]>(x)
            z = MaxPool<kernel_shape = [1, 1, 1]>(v)
        }"""
    )


def test_bodies_are_asked_alone_and_say_it_of_what_they_capture() -> None:
    model = prepared(
        """g (float[1, 2, 4, 4] x, float[1, 2, 4, 4] z, bool c) => (float[1, 2, 4, 4] y) {
            a = Relu(x)
            b = Relu(z)
            y = If (c) <
                then_branch = t () => (float[1, 2, 4, 4] u) { u = LRN<size = 1>(a) },
                else_branch = e () => (float[1, 2, 4, 4] w) { w = Neg(b) }
            >
        }"""
    )
    bodies = {body.attribute: body.index for body in model.index.bodies[2]}

    assert find_images(model.index) == {"x", "a"}
    assert find_images(bodies["then_branch"]) == {"a", "u"}
    assert find_images(bodies["else_branch"]) == set()


def test_weights_are_found_behind_what_makes_them() -> None:
    model = prepared(
        """g (float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y)
            <int8[2, 2, 1, 1] q = {1, 2, 3, 4}, float scale = {0.5},
             float16[2, 2, 1, 1] h = {1, 2, 3, 4},
             float[2, 2, 1, 1] both = {1, 2, 3, 4}, float[2, 2, 1, 1] plain = {1, 2, 3, 4}> {
            d = DequantizeLinear(q, scale)
            a = Conv(x, d)
            f = Cast<to = 1>(h)
            b = ConvTranspose(a, f)
            c = Conv(b, both)
            e = ConvTranspose(c, both)
            g = Add(e, plain)
            computed = Mul(plain, plain)
            y = Conv(g, computed)
        }"""
    )

    found = find_weights(model.index)

    assert found == {"q": "OIHW", "d": "OIHW", "h": "IOHW", "f": "IOHW", "computed": "OIHW"}


def test_the_weight_of_a_quantized_convolution_is_its_fourth_input() -> None:
    model = prepared(
        """g (uint8[1, 2, 4, 4] x) => (uint8[1, 2, 4, 4] y)
            <float s = {0.5}, uint8 z = {1}, uint8[2, 2, 1, 1] w = {1, 2, 3, 4}> {
            y = QLinearConv(x, s, z, w, s, z, s, z)
        }"""
    )

    assert find_weights(model.index) == {"w": "OIHW"}
    assert find_images(model.index) == {"x", "y"}


def test_a_long_chain_is_all_one_group() -> None:
    nodes = [helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"]) for i in range(5000)]
    nodes.append(helper.make_node("Conv", ["t0", "w"], ["y"]))
    kind = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("t0", kind, [1, 1, 2, 2])],
        [helper.make_tensor_value_info(name, kind, [1, 1, 2, 2]) for name in ("y", "t5000")],
        [numpy_helper.from_array(np.ones((1, 1, 1, 1), np.float32), "w")],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])

    assert find_images(prepare_model(model, "long").index) == {*(f"t{i}" for i in range(5001)), "y"}


def test_unknown_types_are_no_images() -> None:
    model = parse("g (float[1, 2, 4, 4] x) => (y) { a = acme.Mystery(x)\n y = LRN<size = 1>(a) }")
    model.opset_import.append(onnx.helper.make_opsetid("acme", 1))
    index = GraphIndex.of_model(model)

    assert find_images(index) == set()
