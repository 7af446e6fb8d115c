"""Weights of the dla: one piece of bytes, and the parameters of convolutions."""

import numpy as np
from byoc.codegens.dla.compiler.emission import WeightsImage, conv_parameters


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


def test_parameters_of_floats_are_biases() -> None:
    found = conv_parameters(np.array([1.5, -2.0], np.float32), np.zeros(0))

    assert (found.dtype, found.tolist()) == (np.dtype("<f4"), [1.5, -2.0])


def test_parameters_of_integers_are_biases_mantissas_and_shifts() -> None:
    found = conv_parameters(np.array([7, -8], np.int32), np.array([0.5, 3.0]))

    assert found.dtype == np.dtype("<i4")
    bias, mantissas, shifts = found.reshape(3, 2).astype(np.int64)
    assert bias.tolist() == [7, -8]
    assert (mantissas / 2.0**shifts).tolist() == [0.5, 3.0]
