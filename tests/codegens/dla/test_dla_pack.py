"""Weights of the dla: one piece of bytes, and the parameters of convolutions."""

from dataclasses import replace

import numpy as np
from byoc.codegens.dla.compiler.emission import WeightsImage
from byoc.codegens.dla.compiler.emit_tiles import conv_parameters
from byoc.codegens.dla.compiler.layers import ConvLayer
from byoc.codegens.dla.compiler.output_shapes import Clamp, LayerTensor, SlidingWindow


def test_arrays_lie_one_behind_the_other() -> None:
    weights = WeightsImage()
    one, other = np.arange(5, dtype=np.int8), np.arange(3, dtype=np.float32)

    places = [weights.add(one), weights.add(other)]
    content = weights.content()

    assert places == [0, 16]
    assert content[:5] == one.tobytes()
    assert content[16:28] == other.tobytes()
    assert len(content) == 32


def test_the_same_tile_is_stored_once() -> None:
    weights = WeightsImage()

    places = [weights.add(np.arange(4)), weights.add(np.ones(3)), weights.add(np.arange(4))]

    assert places[0] == places[2] != places[1]


def test_an_array_lies_in_its_own_order() -> None:
    weights = WeightsImage()
    weights.add(np.arange(6, dtype=np.int8).reshape(2, 3).T)

    assert list(weights.content()[:6]) == [0, 3, 1, 4, 2, 5]


def layer(dtype: str, bias: list[float], multipliers: list[float]) -> ConvLayer:
    """Return a pointwise convolution of one channel to two."""
    x = LayerTensor("x", (1, 1, 1, 1), dtype, 0.5, 3 if dtype == "int8" else 0)
    weights = np.ones((2, 1, 1, 1), "int8" if dtype == "int8" else "float32")
    units = np.array(bias, "int32" if dtype == "int8" else "float32")
    y = x.like("y", (1, 1, 1, 2))
    return ConvLayer("y", (), y, x, weights, units, np.array(multipliers), SlidingWindow())


def test_parameters_of_floats_are_biases() -> None:
    found = conv_parameters(layer("float32", [1.5, -2.0], []), slice(0, 2))

    assert (found.dtype, found.tolist()) == (np.dtype("<f4"), [1.5, -2.0])


def test_parameters_of_integers_are_biases_mantissas_and_shifts() -> None:
    found = conv_parameters(layer("int8", [7, -8], [0.5, 3.0]), slice(0, 2))

    assert found.dtype == np.dtype("<i4")
    bias, mantissas, shifts = found.astype(np.int64)
    assert bias.tolist() == [7, -8]
    assert (mantissas / 2.0**shifts).tolist() == [0.5, 3.0]


def test_parameters_of_scales_by_channel_have_zero_points_and_limits_too() -> None:
    one = layer("int8", [7, -8], [0.5, 3.0])
    y = one.y.encoded_by(np.array([0.25, 2.0]), np.array([-5, 6]))

    found = conv_parameters(replace(one, y=y, clamp=Clamp(0.0, 6.0)), slice(1, 2))

    assert found.shape == (9, 1)
    x_zero, y_zero, low, high, mantissa, shift = found[3:, 0].astype(np.int64)
    assert (x_zero, y_zero, low, high) == (3, 6, 6, 9)
    assert mantissa / 2.0**shift == 0.5
