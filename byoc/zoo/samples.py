"""Inputs to try a zoo model with: seeded, and with the statistics of a photograph."""

from math import sqrt

import numpy as np
from numpy.typing import NDArray

from byoc.zoo.catalog import structure
from byoc.zoo.light import data_input
from byoc.zoo.weights import Spread, seed_of, uniform

# Edge lengths in pixels of the squares of which an image is laid, one layer over the other. Photos
# hold about equal power in each octave; the largest layer gives the image its light and colour.
_SQUARES = (256, 32, 16, 8, 4, 2, 1)


def sample_inputs(name: str, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Return one image for the model called `name`, keyed by the name of the model's input.

    The image is float32, `[1, channels, height, width]`, normalized: about zero mean and unit
    variance. One seed gives the same image on every machine and to every model of the same size.

    Raises `InputError` for an unknown name.
    """
    value = data_input(structure(name).graph, name)
    _, *shape = (dim.dim_value for dim in value.type.tensor_type.shape.dim)
    return {value.name: _image(seed, *shape)}


def _image(seed: int, channels: int, height: int, width: int) -> NDArray[np.float32]:
    """Lay squares of random colour over each other, `[1, channels, height, width]`."""
    image = np.zeros((channels, height, width), np.float32)
    layer = Spread(0.0, sqrt(3.0 / len(_SQUARES)))  # a uniform value's variance is reach**2 / 3
    for edge in _SQUARES:
        shape = (channels, -(-height // edge), -(-width // edge))
        colours = uniform(seed_of("sample", str(seed), str(edge)), shape, layer)
        laid = colours.repeat(edge, axis=1).repeat(edge, axis=2)
        image += laid[:, :height, :width]
    return image[np.newaxis]
