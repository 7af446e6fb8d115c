"""Images as inputs: read with Pillow, resized, and normalized as `(pixel / scale - mean) / std`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from byoc._dataclasses import dataclass
from byoc.errors import InputError, shorten_text, suggest_nearest
from byoc.model import Dim, Model, StatePair, TensorType, choose_state_pairs, evaluate_dim
from byoc.samples._input_roles import Role
from byoc.samples._input_sizes import find_open_sizes
from byoc.samples._input_values import InputMaker
from byoc.samples._sample_source import numpy_dtype
from byoc.support import Flag, Syntax, declare_field, install_command

# The inputs of a decoder, step by step: tokens go in, what it gives as its state goes in again.

_CHOSEN_ONCE = (Role.numbers, Role.pixels, Role.indices, Role.flags, Role.choices, Role.image_size)
"""Roles whose values are the same in each step, as what an encoder gave; others count along."""

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class DecoderInputs:
    """Makes the inputs of a decoder for each step of a sequence of tokens.

    `tokens` is the input that takes token ids `[batch, sequence]`, `logits` the output that weighs the
    next ones `[batch, sequence, vocabulary]`, `pairs` the state. `sequence` is the open extent of the
    tokens, `past` those along which states grow.
    """

    maker: InputMaker
    tokens: str
    logits: str
    pairs: tuple[StatePair, ...]
    sequence: str
    past: tuple[str, ...]
    vocabulary: int

    @cached_property
    def others(self) -> tuple[str, ...]:
        """The inputs that are neither tokens nor state."""
        states = {pair.past for pair in self.pairs}
        types = self.maker.sizes.traced.types
        return tuple(name for name in types if name != self.tokens and name not in states)

    @cached_property
    def kept(self) -> tuple[str, ...]:
        """Those of the others whose values are the same in all steps."""
        types, roles = self.maker.sizes.traced.types, self.maker.roles
        return tuple(
            name
            for name in self.others
            if roles[name].role in _CHOSEN_ONCE and not _is_single(types[name], "bool")
        )

    def draw_prompt(self, seed: int, length: int) -> NDArray[np.int64]:
        """Return seeded tokens of a length, for each sequence of a batch."""
        shape = (self._make(seed, 0, length, [self.tokens])[self.tokens].shape[0], length)
        return np.random.default_rng(seed).integers(0, self.vocabulary, shape)

    def make_kept(self, seed: int, length: int) -> dict[str, NDArray[Any]]:
        """Return the seeded inputs that are the same in all steps of a sequence."""
        return self._make(seed, 0, length, self.kept)

    def make_empty_state(self, length: int) -> dict[str, NDArray[Any]]:
        """Return the state before the first tokens: 0 along what grows, zeros elsewhere."""
        made = self._make(0, 0, length, [pair.past for pair in self.pairs])
        return {name: np.zeros_like(array) for name, array in made.items()}

    def make_step(self, tokens: NDArray[Any], past: int, kept: Arrays) -> dict[str, NDArray[Any]]:
        """Return the inputs but for the state of a step that reads tokens behind `past` others.

        Raises InputError where an input of `kept` has another extent in this step.
        """
        length = tokens.shape[1]
        counting = [name for name in self.others if name not in kept]
        made = self._make(0, past, length, [self.tokens, *counting])
        shapes = self.find_shapes(past, length)
        for name, array in kept.items():
            if array.shape != shapes[name]:
                raise InputError(
                    f"input '{name}' changes with the length of the sequence, and nothing says how: it "
                    "is neither a mask, nor positions, nor state"
                )
        typed = tokens.astype(made[self.tokens].dtype)
        return {**made, **kept, self.tokens: typed}

    def _complete(self, past: int, length: int) -> dict[str, int]:
        given = {self.sequence: length, **dict.fromkeys(self.past, past)}
        sizes = self.maker.sizes
        free = {name: size for name, size in given.items() if name not in sizes.relations.meanings}
        return sizes.suggest(free)

    def find_shapes(self, past: int, length: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the inputs of a step that reads so many tokens behind `past` others."""
        sizes = self.maker.sizes.complete(self._complete(past, length))
        shapes = {name: (kind and kind.shape) or () for name, kind in self._types.items()}
        return {
            name: tuple(evaluate_dim(dim, sizes) or 0 for dim in shape) for name, shape in shapes.items()
        }

    @property
    def _types(self) -> Mapping[str, TensorType | None]:
        return self.maker.sizes.traced.types

    def _make(
        self, seed: int, past: int, length: int, names: Collection[str]
    ) -> dict[str, NDArray[Any]]:
        return self.maker.make(seed, self._complete(past, length), names=names)


def find_decoder_inputs(model: Model, state: Mapping[str, str] | None = None) -> DecoderInputs:
    """Find what takes the tokens of a decoder, what weighs the next one, and its state.

    `state` maps inputs to the outputs whose values they take, where that is declared. Raises InputError,
    which says what is missing, for a model that is no decoder with open lengths.
    """
    maker = InputMaker(find_open_sizes(model.index))
    types = maker.sizes.traced.types
    pairs = choose_state_pairs(model.proto, state)
    if not pairs:
        raise InputError(f"{model.source}: no input takes what an output gave, so it keeps no state")
    tokens = _find_tokens(model, maker, {pair.past for pair in pairs})
    sequence = (_get_shape(types[tokens]))[1]
    if not isinstance(sequence, str):
        raise InputError(
            f"{model.source}: input '{tokens}' takes {sequence} tokens at a time; for a prompt and then "
            "one token at a time its length has to be open"
        )
    logits, vocabulary = _find_logits(model, {pair.present for pair in pairs})
    limits = [vocabulary, *(dim for dim in maker.roles[tokens].limits if isinstance(dim, int))]
    read = {d for n, kind in types.items() if n not in {p.past for p in pairs} for d in _get_shape(kind)}
    past = {
        dim: None
        for pair in pairs
        for dim in _get_shape(types[pair.past])
        if isinstance(dim, str) and dim not in read
    }
    return DecoderInputs(maker, tokens, logits, pairs, sequence, tuple(past), min(limits))


def _find_tokens(model: Model, maker: InputMaker, states: Collection[str]) -> str:
    types = maker.sizes.traced.types
    found = [
        name
        for name, role in maker.roles.items()
        if role.role is Role.indices and name not in states and len(_get_shape(types[name])) == 2
    ]
    if len(found) > 1:  # such as token types, or what an encoder reads
        found = [name for name in found if _get_shape(types[name])[1] == maker.sizes.sequence]
    if len(found) != 1:
        told = ", ".join(found) or "none looks up rows of a table"
        raise InputError(f"{model.source}: which input takes the tokens cannot be seen: {told}")
    return found[0]


def _find_logits(model: Model, presents: Collection[str]) -> tuple[str, int]:
    """Return the output that weighs tokens, and how many there are."""
    kinds = {name: model.index.types.get(name) for name in model.index.outputs if name not in presents}
    shapes = {name: _get_shape(kind) for name, kind in kinds.items() if kind and "float" in kind.dtype}
    found = {
        name: shape[2] for name, shape in shapes.items() if len(shape) == 3 and isinstance(shape[2], int)
    }
    name = "logits" if "logits" in found else next(iter(found), "")
    if (len(found) > 1 and name != "logits") or not found:
        hint = suggest_nearest("logits", kinds)
        raise InputError(f"{model.source}: which output weighs the next token cannot be seen{hint}")
    return name, found[name]


def _get_shape(kind: TensorType | None) -> tuple[Dim, ...]:
    return (kind.shape or ()) if kind is not None else ()


def _is_single(kind: TensorType | None, dtype: str) -> bool:
    return kind is not None and kind.dtype == dtype and kind.elements == 1


SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp")
# By what is in a file Pillow finds others, too, and has Ghostscript run the programs in PostScript.
_FORMATS = ("PNG", "JPEG", "BMP")
_DTYPES = ("float32", "float16", "uint8")


def _read_numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"'{text}': numbers with commas are expected") from None


@dataclass(frozen=True)
class Preprocessing:
    """Normalization of pixels, 0 to 255: `(pixel / scale - mean) / std`.

    `mean` and `std` are one number, or one for each channel in the order of `color`.
    """

    mean: tuple[float, ...] = declare_field(
        (0.0,),
        "of the scaled pixels.",
        Flag(
            "Subtracted from the pixels after they are divided by --image-scale.",
            names=("--image-mean",),
            metavar="X,X,X",
            default="0",
            read=_read_numbers,
        ),
    )
    std: tuple[float, ...] = declare_field(
        (1.0,),
        "of the scaled pixels.",
        Flag(
            "Divides the pixels after --image-mean is subtracted.",
            names=("--image-std",),
            metavar="X,X,X",
            default="1",
            read=_read_numbers,
        ),
    )
    scale: float = declare_field(
        255.0,
        "what pixels are divided by.",
        Flag("Divides the pixels, which are 0 to 255.", Syntax.NUMBER, ("--image-scale",)),
    )
    color: Literal["rgb", "bgr"] = declare_field(
        "rgb",
        "the order of channels.",
        Flag("The order of channels.", names=("--image-color",), choices=("rgb", "bgr")),
    )

    def __post_init__(self) -> None:
        """Raise InputError for numbers that cannot normalize an image."""
        for name, values in (("mean", self.mean), ("std", self.std), ("scale", (self.scale,))):
            if not values or not all(map(isfinite, values)):
                raise InputError(f"the images' {name}: expected finite numbers")
            if name != "mean" and any(value <= 0 for value in values):
                raise InputError(f"the images' {name}: must be greater than zero")
        if self.color not in {"rgb", "bgr"}:
            raise InputError(f"the images' color: expected rgb or bgr, not '{self.color}'")

    def refuse_for(self, data: str) -> None:
        """Raise InputError, beginning with `data`, for data other than images, unless nothing is set."""
        if self != NO_PREPROCESSING:
            raise InputError(
                f"{data}: mean, std, scale and color are for images (.png, .jpg, .jpeg, .bmp), and these"
                " are none"
            )

    def check(self, channels: int, where: str) -> None:
        """Raise InputError, beginning with `where`, unless the numbers suit the number of channels."""
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in {1, channels}:
                raise InputError(
                    f"{where}: {len(values)} numbers are the images' {name}, and their input is of"
                    f" {channels} channels"
                )


NO_PREPROCESSING: Preprocessing = Preprocessing()
"""Pixels divided by 255."""


@dataclass(frozen=True)
class ImageShape:
    """The shape of an image for an input: 1 or 3 channels, height and width in pixels."""

    channels: int
    height: int
    width: int
    channels_last: bool


def find_image_shape(kind: TensorType, name: str, where: str) -> ImageShape:
    """Return the shape that an image must have for an input of some type.

    Raises InputError, beginning with `where`, for an input that is no image `[N, C, H, W]` or `[N, H, W,
    C]` of 1 or 3 channels, or of open height and width.
    """
    refused = f"{where}: images cannot be the input '{name}', which is {kind}"
    if kind.dtype not in _DTYPES or kind.shape is None or len(kind.shape) != 4:
        raise InputError(f"{refused}: expected four dimensions of {', '.join(_DTYPES)}")
    batch, *dims = kind.shape
    if isinstance(batch, int) and batch != 1:
        raise InputError(f"{refused}: one image is a batch of 1")
    last = dims[0] not in {1, 3}
    channels, height, width = (dims[2], *dims[:2]) if last else dims
    if channels not in {1, 3} or not isinstance(channels, int):
        raise InputError(f"{refused}: neither its second nor its last dimension is 1 or 3 channels")
    if not isinstance(height, int) or not isinstance(width, int):
        raise InputError(f"{refused}: its height and width must be fixed (--dim)")
    return ImageShape(channels, height, width, last)


def read_image(path: Path, kind: TensorType, shape: ImageShape, how: Preprocessing) -> NDArray[Any]:
    """Read an image as an input of a type: a batch of one, resized bilinearly to its shape.

    An input of one channel gets the image in grey (ITU-R 601-2), one of uint8 the pixels as they are.
    Raises InputError if the file cannot be read as an image, or Pillow is missing.
    """
    with _open_image(path) as image:
        mode = "L" if shape.channels == 1 else "RGB"
        size = (shape.width, shape.height)
        pixels = np.asarray(image.convert(mode).resize(size, _import_pillow().Resampling.BILINEAR))
    pixels = pixels.reshape(shape.height, shape.width, shape.channels)
    if how.color == "bgr":
        pixels = pixels[:, :, ::-1]
    if kind.dtype != "uint8":
        mean, std = np.array(how.mean, np.float32), np.array(how.std, np.float32)
        pixels = (pixels.astype(np.float32) / np.float32(how.scale) - mean) / std
    if not shape.channels_last:
        pixels = pixels.transpose(2, 0, 1)
    return np.ascontiguousarray(pixels[np.newaxis], numpy_dtype(kind))


@contextmanager
def _open_image(path: Path) -> Iterator[Any]:
    pillow = _import_pillow()
    try:
        with pillow.open(path, formats=_FORMATS) as image:
            yield image
    except (InputError, MemoryError):
        raise
    except Exception as error:  # each format fails in its own ways
        raise InputError(
            f"{path}: cannot be read as an image: {shorten_text(str(error), 200)}"
        ) from None


def _import_pillow() -> Any:
    try:
        from PIL import Image  # noqa: PLC0415 - optional
    except ImportError:
        raise InputError(
            f"images need Pillow, which is not installed ({install_command('images')})"
        ) from None
    return Image
