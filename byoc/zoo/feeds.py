"""A model's sample inputs as data: the shape of each input and the kind of its values."""

from collections.abc import Mapping
from math import prod
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from byoc.yamlfile import StrictModel
from byoc.zoo.samples import Floats, make_integers, make_page, make_photo, make_voice
from byoc.zoo.weights import UniformSpread, derive_seed, draw_uniform

# Unevenness of paper and ink in a photograph.
_TEXTURE = np.float32(0.1)


class InputSpec(StrictModel):
    """One input: its kind of values (`like`) and their range.

    `photo` (spectrograms, too, are smooth) and `noise` have the mean `centre` and the deviation
    `scale`; a `page` with writing lies that far to both sides of it; `voice` is a wave within -1 and
    1; `integers` run from `low` to `high`; `value` is the same everywhere. `low` and `high` also clip
    a photo and a page.
    """

    like: Literal["photo", "page", "voice", "noise", "integers", "value"]
    shape: tuple[int, ...]
    type: Literal["float32", "int32", "int64"] = "float32"
    centre: float = 0.0
    scale: float = 1.0
    low: int | None = None
    high: int | None = None
    value: float = 0.0

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if self.like == "integers" and (self.low is None or self.high is None):
            raise ValueError("integers need low and high")
        return self


def make_inputs(feeds: Mapping[str, InputSpec], seed: int) -> dict[str, NDArray[Any]]:
    """Return an array for each input; two inputs of the same kind get different values."""
    seeds = (seed if i == 0 else derive_seed(name, str(seed)) for i, name in enumerate(feeds))
    return {
        name: _make_values(feed, own).reshape(feed.shape).astype(feed.type)
        for own, (name, feed) in zip(seeds, feeds.items(), strict=True)
    }


def _make_values(feed: InputSpec, seed: int) -> NDArray[Any]:
    match feed.like:
        case "photo" | "page":
            low = -np.inf if feed.low is None else feed.low
            high = np.inf if feed.high is None else feed.high
            image = _make_images(feed.like, seed, feed.shape)
            return (image * np.float32(feed.scale) + np.float32(feed.centre)).clip(low, high)
        case "voice":
            return make_voice(seed, prod(feed.shape))
        case "noise":
            return draw_uniform(seed, feed.shape, UniformSpread(feed.centre, feed.scale * 3.0**0.5))
        case "integers":
            return make_integers(seed, feed.shape, feed.low or 0, feed.high or 0)
        case "value":
            return np.full(feed.shape, feed.value)


def _make_images(like: str, seed: int, shape: tuple[int, ...]) -> Floats:
    """Return one image for each of the batch; trailing extents of 1 (`[1, 76, 32, 1]`) are ignored."""
    batch, *sizes = shape
    while len(sizes) > 2 and sizes[-1] == 1:
        sizes.pop()
    *channels, height, width = sizes
    seeds = (seed if i == 0 else derive_seed(str(seed), str(i)) for i in range(batch))
    return np.concatenate([_make_image(like, own, prod(channels), height, width) for own in seeds])


def _make_image(like: str, seed: int, channels: int, height: int, width: int) -> Floats:
    seen = make_photo(seed, channels, height, width)
    return seen if like == "photo" else make_page(seed, height, width) + _TEXTURE * seen
