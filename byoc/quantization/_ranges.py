"""The ranges of tensors, and the file that holds them: `calibration.yaml`.

A calibrator writes the range of each tensor's values. A user may edit the file, or give scale and zero
point explicitly, which are then used exactly. Scales and zero points are those of ONNX's QuantizeLinear:
`real = scale * (quantized - zero_point)`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, model_validator

from byoc.errors import suggest_nearest
from byoc.model import Model
from byoc.quantization._channel_statistics import CHANNELS
from byoc.support import StrictModel, dump_yaml, make_file_error, read_yaml, write_text

DTYPES = {
    f"{sign}int{bits}": (0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for bits in (4, 8, 16)
    for sign in ("", "u")
}
"""The types that tensors are quantized to, with their least and largest value."""

EIGHT_BITS = ("int8", "uint8")
"""Those of 8 bits."""

Dtype = Literal["int4", "uint4", "int8", "uint8", "int16", "uint16"]

_FORMAT: Final = 2  # the first one had no ranges of channels
_HEAD = """\
# The range of each tensor's values. Edit it and pass it to `byoc partition --calibration`. Instead of
# `low` and `high` there may be `scale`, `zero_point`, `dtype` and, for one scale per channel, `axis`.
"""
_MAX_HINTS = 5


@dataclass(frozen=True, slots=True)
class Range:
    """The range of a tensor's values that a calibrator chose; both ends are finite."""

    low: float
    high: float


@dataclass(frozen=True, eq=False, slots=True)
class ChannelRange:
    """The ranges of a tensor's channels (axis 1): `low` and `high` are float64, `[C]`."""

    low: NDArray[Any]
    high: NDArray[Any]


@dataclass(frozen=True, slots=True)
class GivenQuantization:
    """A quantization of a tensor given by the user, which is used exactly.

    One scale and zero point for the whole tensor if `axis` is None, otherwise one for each index on that
    axis (negative axes count from the end). `dtype` is one of `DTYPES`.
    """

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    dtype: str
    axis: int | None = None


@dataclass(frozen=True)
class Ranges:
    """The ranges of a model's tensors, and their origin.

    `method` is the calibrator's name with its `options`, `samples` the number of samples, `source` the
    name of the data, `random` whether it was random data, `model` the model's name. `notes` are
    sentences for the user. A tensor that is not in `tensors` has no range and cannot be quantized.
    `channels` are the ranges of the channels of tensors that may have a scale for each, `usual` those
    that nine tenths of the values of outputs lie in. `shifts` are
    taken from biases, `[C]` by what the node that reads one makes; `weights`, by their names, are
    quantized in the place of the model's, with their scales. Files have neither.
    """

    method: str
    samples: int
    source: str
    tensors: Mapping[str, Range | GivenQuantization]
    random: bool = False
    model: str = ""
    options: Mapping[str, bool | int | float] = field(default_factory=dict)
    notes: Sequence[str] = ()
    shifts: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    weights: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    channels: Mapping[str, ChannelRange] = field(default_factory=dict)
    usual: Mapping[str, Range] = field(default_factory=dict)

    def check_names(self, model: Model, path: Path) -> None:
        """Raise InputError if a model lacks a named tensor, or has it with another number of channels.

        Tensors in the bodies of If, Loop and Scan count as well, and those that clean-up dropped. `path`
        is the file for the message.
        """
        known = {
            name
            for graph in model.index.walk()
            for name in (*graph.inputs, *graph.producers, *graph.stored_tensors)
        }
        unknown = [name for name in self.tensors if name not in known and name not in model.lost]
        if len(unknown) == len(self.tensors) > _MAX_HINTS:
            raise make_file_error(
                path, ["tensors: the model has none of them; are they those of another model?"]
            )
        if unknown:
            hints = {name: suggest_nearest(name, known) for name in unknown[:_MAX_HINTS]}
            reason = "the model has no such tensor"
            raise make_file_error(
                path, [f"tensors.{name}: {reason}{hints.get(name, '')}" for name in unknown]
            )
        problems = []
        for name, each in self.channels.items():
            found = (model.index.get_shape(name) or ())[CHANNELS : CHANNELS + 1]
            if found and isinstance(found[0], int) and found[0] != len(each.low):
                given = f"{len(each.low)} ranges, and the tensor has {found[0]} channels"
                problems.append(f"tensors.{name}.channels: {given}")
        if problems:
            raise make_file_error(path, problems)


def _number_or_list(kind: type[float], thing: str) -> AfterValidator:
    """Return a validator for a number or a list of numbers, without booleans."""

    def read(value: Any) -> Any:
        items = value if isinstance(value, list) else [value]
        if any(isinstance(item, bool) or not isinstance(item, (int, kind)) for item in items):
            raise ValueError(f"expected {thing}, or a list of such")
        try:
            return [kind(item) for item in items] if isinstance(value, list) else kind(value)
        except OverflowError:
            raise ValueError(f"expected {thing} of a usual size") from None

    return AfterValidator(read)


_Number = Annotated[float, Field(strict=True)]
_NOT_REAL = "'low' and 'high' must be finite in float32"


def _is_real(value: float) -> bool:
    """Return whether a tensor may have a value; all that have ranges are of float32 or less."""
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.float32(value)))


class _Channels(StrictModel):
    """The ranges of a tensor's channels in the file."""

    low: Annotated[list[_Number], Field(min_length=1)]
    high: Annotated[list[_Number], Field(min_length=1)]

    @model_validator(mode="after")
    def _check_consistency(self) -> "_Channels":
        if len(self.low) != len(self.high):
            raise ValueError(f"{len(self.low)} values of 'low' and {len(self.high)} of 'high'")
        if not all(map(_is_real, (*self.low, *self.high))):
            raise ValueError(_NOT_REAL)
        for number, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            if low > high:
                raise ValueError(
                    f"of channel {number} 'low' is {low:g}, above 'high', which is {high:g}"
                )
        return self

    def read(self) -> ChannelRange:
        """Return the ranges."""
        return ChannelRange(np.asarray(self.low, np.float64), np.asarray(self.high, np.float64))


class _Entry(StrictModel):
    """A tensor in the file: a range, or a quantization given by the user."""

    low: _Number | None = None
    high: _Number | None = None
    channels: _Channels | None = None
    usual: Annotated[list[_Number], Field(min_length=2, max_length=2)] | None = None
    scale: Annotated[Any, _number_or_list(float, "a number")] = None
    zero_point: Annotated[Any, _number_or_list(int, "a whole number")] = 0
    dtype: Dtype | None = None
    axis: Annotated[int, Field(strict=True)] | None = None

    @model_validator(mode="after")
    def _check_consistency(self) -> "_Entry":
        problems = list(_find_range_problems(self) if self.scale is None else _find_scale_problems(self))
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def read(self) -> Range | GivenQuantization:
        """Return the range or quantization of the entry."""
        if self.low is not None and self.high is not None:
            return Range(self.low, self.high)
        scale = _as_tuple(self.scale)
        points = _as_tuple(self.zero_point)
        if len(points) == 1:
            points *= len(scale)
        return GivenQuantization(scale, points, str(self.dtype), self.axis)


def _find_range_problems(entry: _Entry) -> list[str]:
    others = entry.model_fields_set - {"low", "high", "channels", "usual"}
    if others:
        return [f"'scale' must be given where there is '{min(others)}'"]
    if entry.low is None or entry.high is None:
        return ["expected 'low' and 'high', or 'scale' and 'dtype'"]
    if not _is_real(entry.low) or not _is_real(entry.high):
        return [_NOT_REAL]
    if entry.low > entry.high:
        return [f"'low' is {entry.low:g}, above 'high', which is {entry.high:g}"]
    if entry.usual and not (all(map(_is_real, entry.usual)) and entry.usual[0] <= entry.usual[1]):
        return ["the two values of 'usual' must be finite in float32, and ascend"]
    return []


def _find_scale_problems(entry: _Entry) -> list[str]:
    scales, points = _as_tuple(entry.scale), _as_tuple(entry.zero_point)
    problems = []
    if entry.low is not None or entry.high is not None:
        problems.append("either 'low' and 'high' or 'scale' may be given, not both")
    problems += [
        f"either '{key}' or 'scale' may be given, not both"
        for key in ("channels", "usual")
        if getattr(entry, key) is not None and not problems
    ]
    if not scales:
        problems.append("'scale' must not be empty")
    if any(not _is_real(scale) or np.float32(scale) <= 0 for scale in scales):
        problems.append("each 'scale' must be finite and greater than zero in float32")
    if len(scales) > 1 and entry.axis is None:
        problems.append(f"'axis' must be given where there are {len(scales)} scales")
    if entry.axis is not None and not isinstance(entry.scale, list):
        problems.append("'scale' must be a list where there is an 'axis'")
    if len(points) not in {1, len(scales)}:
        problems.append(f"{len(points)} zero points for {len(scales)} scales")
    if entry.dtype is None:
        problems.append(f"'dtype' must be given: one of {', '.join(DTYPES)}")
    else:
        low, high = DTYPES[entry.dtype]
        outside = [point for point in points if not low <= point <= high]
        if outside:
            problems.append(
                f"zero point {outside[0]} is outside the range of {entry.dtype}, {low} to {high}"
            )
    return problems


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list) else (value,)


class _Model(StrictModel):
    name: str


class _File(StrictModel):
    """The schema of the file."""

    format: Literal[1, 2] = _FORMAT
    method: str = ""
    options: dict[str, bool | int | float] = Field(default_factory=dict)
    samples: Annotated[int, Field(ge=0)] = 0
    data: str = ""
    random: bool = False
    model: _Model | None = None
    notes: list[str] = Field(default_factory=list)
    tensors: Annotated[dict[str, _Entry], Field(min_length=1)]


def read_ranges(path: Path) -> Ranges:
    """Return the ranges in a file. Raises InputError with a line for every mistake in it."""
    file = read_yaml(path, _File)
    return Ranges(
        file.method,
        file.samples,
        file.data,
        {name: entry.read() for name, entry in file.tensors.items()},
        file.random,
        file.model.name if file.model else "",
        file.options,
        tuple(file.notes),
        channels={name: each.channels.read() for name, each in file.tensors.items() if each.channels},
        usual={name: Range(*each.usual) for name, each in file.tensors.items() if each.usual},
    )


def write_ranges(path: Path, ranges: Ranges) -> None:
    """Write a file that `read_ranges` reads to the same value. Raises InputError if that fails."""
    write_text(path, format_ranges(ranges))


def format_ranges(ranges: Ranges) -> str:
    """Return the text of a file; floats are written such that they are read back exactly."""
    head: dict[str, Any] = {"format": _FORMAT, "method": ranges.method}
    if ranges.options:
        head["options"] = dict(ranges.options)
    head |= {"samples": ranges.samples, "data": ranges.source}
    if ranges.random:
        head["random"] = True
    if ranges.model:
        head["model"] = {"name": ranges.model}
    if ranges.notes:
        head["notes"] = list(ranges.notes)
    tensors = {name: _entry_document(entry) for name, entry in ranges.tensors.items()}
    for name, each in ranges.channels.items():
        tensors[name]["channels"] = {"low": each.low.tolist(), "high": each.high.tolist()}
    for name, usual in ranges.usual.items():
        tensors[name]["usual"] = [usual.low, usual.high]
    return _HEAD + dump_yaml(head) + dump_yaml({"tensors": tensors}, flow=None)


def _entry_document(entry: Range | GivenQuantization) -> dict[str, Any]:
    if isinstance(entry, Range):
        return {"low": entry.low, "high": entry.high}
    if entry.axis is None:
        return {"scale": entry.scale[0], "zero_point": entry.zero_point[0], "dtype": entry.dtype}
    return {
        "scale": list(entry.scale),
        "zero_point": list(entry.zero_point),
        "dtype": entry.dtype,
        "axis": entry.axis,
    }
