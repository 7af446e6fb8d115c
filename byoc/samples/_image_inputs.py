"""Images as inputs: read with Pillow, resized, and normalized as `(pixel / scale - mean) / std`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from byoc._dataclasses import dataclass
from byoc.errors import InputError, shorten_text
from byoc.support import Flag, Syntax, declare_field, install_command

if TYPE_CHECKING:
    from byoc.model import TensorType

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
    return np.ascontiguousarray(pixels[np.newaxis], kind.dtype)


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
