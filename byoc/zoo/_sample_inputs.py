"""Seeded numbers, the same on every machine: sample inputs like photographs or voices, and weights."""

import hashlib
from collections.abc import Mapping
from math import prod, sqrt
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from byoc._dataclasses import dataclass
from byoc.support import StrictModel

# Seeded weights, the same numbers on every machine and with every numpy version.
#
# numpy promises a stable stream of raw bits from a bit generator, but not from `Generator.uniform`
# and its like. So only raw bits are taken, and what follows is exact or rounded by IEEE 754.

# 64-bit words drawn at once: one mebibyte, so that a draw is still in the cache when it is scaled.
_CHUNK = 1 << 17
_PER_WORD = 4  # numbers of 16 bits in a word of the generator


@dataclass(frozen=True)
class UniformSpread:
    """A uniform distribution over `[centre - reach, centre + reach)`.

    Its standard deviation is `reach / sqrt(3)`.
    """

    centre: float
    reach: float


def derive_seed(*parts: str) -> int:
    """Return a 64-bit seed that depends on the names given and on nothing else."""
    digest = hashlib.sha256("\0".join(parts).encode()).digest()
    return int.from_bytes(digest[:8], "little")


def draw_uniform(seed: int, shape: tuple[int, ...], spread: UniformSpread) -> NDArray[np.float32]:
    """Draw float32 values of `shape` from `spread`.

    A value is a signed 16-bit integer times `reach * 2**-15`, plus the centre. The integer and the
    power of two are exact in float32, which leaves one rounding for the product and one for the
    sum. Sixteen bits are plenty for a weight: 144 million of them take a fraction of a second.
    """
    bits = np.random.PCG64(seed)
    values = np.empty(prod(shape), np.float32)
    step = np.float32(spread.reach) * np.float32(2.0**-15)
    for start in range(0, values.size, _CHUNK * _PER_WORD):
        part = values[start : start + _CHUNK * _PER_WORD]
        words = np.asarray(bits.random_raw(-(-part.size // _PER_WORD)), "<u8")
        np.multiply(words.view("<i2")[: part.size], step, out=part, dtype=np.float32)
    if spread.centre:
        values += np.float32(spread.centre)
    return values.reshape(shape)


Floats = NDArray[np.float32]

# Edge lengths in pixels of the squares of which an image is laid, one layer over the other. Photos
# hold about equal power in each octave; the largest layer gives the image its light and colour.
_SQUARES = (256, 32, 16, 8, 4, 2, 1)

_LETTERS, _LETTER, _DOT = 40, (7, 5), 2  # how many, dots high and wide, pixels a dot

_RATE = 16_000  # samples a second
_PITCHES = (110, 240)  # of speech, in hertz


def make_photo(seed: int, channels: int, height: int, width: int) -> Floats:
    """Return an image `[1, channels, height, width]` of about zero mean and unit variance.

    Squares of random colour lie over each other. One seed gives the same image on every machine.
    """
    image = np.zeros((channels, height, width), np.float32)
    layer = UniformSpread(0.0, sqrt(3.0 / len(_SQUARES)))  # a uniform value's variance is reach**2 / 3
    for edge in _SQUARES:
        shape = (channels, -(-height // edge), -(-width // edge))
        colours = draw_uniform(derive_seed("sample", str(seed), str(edge)), shape, layer)
        laid = colours.repeat(edge, axis=1).repeat(edge, axis=2)
        image += laid[:, :height, :width]
    return image[np.newaxis]


def make_page(seed: int, height: int, width: int) -> Floats:
    """Return a page with lines of writing, `[1, 1, height, width]`: near 1 the paper, near -1 the ink.

    The letters of its alphabet are of random dots, enough to look like writing to a detector of it.
    """
    letters = draw_uniform(derive_seed("alphabet"), (_LETTERS, *_LETTER), UniformSpread(0.0, 1.0)) > 0
    sheet = np.ones((height, width), np.float32)
    rows, columns = (length * _DOT for length in _LETTER)
    tops = range(rows // 2, height - rows, 2 * rows)
    across = max(width // (columns + _DOT) - 2, 0)
    text = make_integers(seed, (len(tops), across), 0, _LETTERS + _LETTERS // 4)
    for top, line in zip(tops, text, strict=True):
        for column, letter in enumerate(line):
            if letter < _LETTERS:  # the rest are spaces
                left = (column + 1) * (columns + _DOT)
                ink = letters[letter].repeat(_DOT, axis=0).repeat(_DOT, axis=1)
                sheet[top : top + rows, left : left + columns] -= 2.0 * ink
    return sheet[np.newaxis, np.newaxis]


def make_voice(seed: int, samples: int) -> Floats:
    """Return a hum as of vocal cords, `[samples]` at 16 kHz, within -1 and 1: a sawtooth in noise."""
    low, high = _PITCHES
    pitch = low + derive_seed("pitch", str(seed)) % (high - low)
    phase = np.arange(samples, dtype=np.float64) * pitch / _RATE
    saw = 0.6 * (phase % 1.0) - 0.3
    breath = draw_uniform(derive_seed("breath", str(seed)), (samples,), UniformSpread(0.0, 0.03))
    return (saw + breath).astype(np.float32)


def make_integers(seed: int, shape: tuple[int, ...], low: int, high: int) -> NDArray[np.int64]:
    """Return integers from `low` to `high`, both included."""
    halves = draw_uniform(derive_seed("integers", str(seed)), shape, UniformSpread(0.5, 0.5)).astype(
        np.float64
    )
    return low + np.minimum(halves * (high - low + 1), high - low).astype(np.int64)


# Unevenness of paper and ink in a photograph.
_TEXTURE = np.float32(0.1)


class InputSpec(StrictModel):
    """One input: its kind of values (`like`) and their range.

    `photo` (spectrograms, too, are smooth) and `noise` have the mean `centre` and the deviation
    `scale`; a `page` with writing lies that far to both sides of it; `voice` is a wave within -1 and
    1; `integers` run from `low` to `high`; `count` goes up from `low` along the last axis; `value` is
    the same everywhere. `low` and `high` also clip a photo and a page.
    """

    like: Literal["photo", "page", "voice", "noise", "integers", "count", "value"]
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
        case "count":
            return np.broadcast_to((feed.low or 0) + np.arange(feed.shape[-1]), feed.shape)
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
