"""The file of ranges, `calibration.yaml`: its schema, reading and writing.

`byoc calibrate` writes it, and a user may edit it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import AfterValidator, Field, model_validator

import byoc.samples
from byoc._dataclasses import KW_ONLY, dataclass, field
from byoc.model import DimensionOptions
from byoc.quantization._calibrators import (
    CALIBRATORS,
    DTYPES,
    ChannelRange,
    GivenQuantization,
    Range,
    Ranges,
)
from byoc.support import (
    Flag,
    StrictModel,
    Syntax,
    declare,
    declare_field,
    dump_yaml,
    read_yaml,
    write_text,
)

# The choices of a calibration, for `byoc.calibrate` and the flags of `byoc calibrate` alike.

DEFAULT_METHOD = "minmax"


@dataclass(frozen=True)
class CalibrationOptions(DimensionOptions):
    """All choices of a calibration."""

    data: str | Path | Iterable[byoc.samples.Inputs] = field(
        metadata=declare(
            "a folder of samples (arrays or images), the word `random`, or samples: arrays by the names "
            "of the inputs.",
            Flag(
                "A folder of .npy, .npz or image files; or random, for random samples.",
                metavar="FOLDER|random",
            ),
        )
    )
    output: str | Path | None = declare_field(
        None,
        "path of the `calibration.yaml` to write. The progress is kept beside it in a file with "
        "`.partial` added; after an interruption the same call continues from there, unless the "
        "samples are in memory.",
        Flag("Write the ranges here.", Syntax.PATH, ("--output", "-o"), required=True),
    )
    _: KW_ONLY
    method: str = declare_field(
        DEFAULT_METHOD,
        "`minmax`, `percentile`, `entropy` or `mse`.",
        Flag("How ranges are chosen.", choices=tuple(CALIBRATORS)),
    )
    percentile: float | None = declare_field(
        None,
        "per cent of the values inside the range, for the method `percentile`; 99.99 by default.",
        Flag(
            "For the method percentile: the per cent of values inside the range; 99.99 unless given.",
            Syntax.NUMBER,
        ),
    )
    bits: int | None = declare_field(
        None,
        "bits to quantize to, for the method `mse`; 8 by default.",
        Flag("For the method mse: the bits to quantize to; 8 unless given.", Syntax.INTEGER),
    )
    symmetric: bool = declare_field(
        False, "each range is symmetric around zero.", Flag("Ranges from -x to x.", Syntax.SWITCH)
    )
    samples: int | None = declare_field(
        None,
        "the greatest number of samples to use; for random data 32 by default.",
        Flag(
            "Use at most so many samples; all of a folder, or 32 random ones, unless given.",
            Syntax.INTEGER,
            minimum=1,
        ),
    )
    tensors: Sequence[str] | None = declare_field(
        None,
        "names of the tensors to calibrate; by default all float32 and float16 tensors of the main "
        "graph that are not constant.",
        Flag("Calibrate this one; all unless given.", Syntax.LIST, ("--tensor",), "NAME"),
    )
    images: byoc.samples.Preprocessing = declare_field(
        byoc.samples.NO_PREPROCESSING, "normalization of pixels, if the data is images."
    )
    progress: Callable[[str], None] | None = declare_field(
        None, "called with a line of text at each step."
    )


_FORMAT: Final = 2  # the first one had no ranges of channels
_HEAD = """\
# The range of each tensor's values. Edit it and pass it to `byoc partition --calibration`. Instead of
# `low` and `high` there may be `scale`, `zero_point`, `dtype` and, for one scale per channel, `axis`.
# Where the range is not that of the data, `data` has the least and the greatest value, and `clipped`
# the share of the values outside of the range. Pages show them, and no scale depends on them.
"""

Dtype = Literal["int4", "uint4", "int8", "uint8", "int16", "uint16"]


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
    def _check_consistency(self) -> _Channels:
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
    data: Annotated[list[_Number], Field(min_length=2, max_length=2)] | None = None
    clipped: Annotated[_Number, Field(ge=0, le=1)] = 0.0
    channels: _Channels | None = None
    usual: Annotated[list[_Number], Field(min_length=2, max_length=2)] | None = None
    scale: Annotated[Any, _number_or_list(float, "a number")] = None
    zero_point: Annotated[Any, _number_or_list(int, "a whole number")] = 0
    dtype: Dtype | None = None
    axis: Annotated[int, Field(strict=True)] | None = None

    @model_validator(mode="after")
    def _check_consistency(self) -> _Entry:
        problems = list(_find_range_problems(self) if self.scale is None else _find_scale_problems(self))
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def read(self) -> Range | GivenQuantization:
        """Return the range or quantization of the entry."""
        if self.low is not None and self.high is not None:
            data = None if self.data is None else (self.data[0], self.data[1])
            return Range(self.low, self.high, data, self.clipped)
        scale = _as_tuple(self.scale)
        points = _as_tuple(self.zero_point)
        if len(points) == 1:
            points *= len(scale)
        return GivenQuantization(scale, points, str(self.dtype), self.axis)


def _find_range_problems(entry: _Entry) -> list[str]:
    others = entry.model_fields_set - {"low", "high", "data", "clipped", "channels", "usual"}
    if others:
        return [f"'scale' must be given where there is '{min(others)}'"]
    if entry.low is None or entry.high is None:
        return ["expected 'low' and 'high', or 'scale' and 'dtype'"]
    if not _is_real(entry.low) or not _is_real(entry.high):
        return [_NOT_REAL]
    if entry.low > entry.high:
        return [f"'low' is {entry.low:g}, above 'high', which is {entry.high:g}"]
    return [
        f"the two values of '{key}' must be finite in float32, and ascend"
        for key, ends in (("usual", entry.usual), ("data", entry.data))
        if ends and not (all(map(_is_real, ends)) and ends[0] <= ends[1])
    ]


def _find_scale_problems(entry: _Entry) -> list[str]:
    scales, points = _as_tuple(entry.scale), _as_tuple(entry.zero_point)
    problems = []
    if entry.low is not None or entry.high is not None:
        problems.append("either 'low' and 'high' or 'scale' may be given, not both")
    problems += [
        f"either '{key}' or 'scale' may be given, not both"
        for key in ("channels", "usual", "data", "clipped")
        if key in entry.model_fields_set and not problems
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
    """The model that ranges are of."""

    name: str


class _File(StrictModel):
    """The file. `data` names the samples, and `samples` counts them, 0 where that is not known."""

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
        usual={
            name: Range(each.usual[0], each.usual[1])
            for name, each in file.tensors.items()
            if each.usual
        },
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
        more: dict[str, Any] = {} if entry.data is None else {"data": list(entry.data)}
        if entry.clipped:
            more["clipped"] = entry.clipped
        return {"low": entry.low, "high": entry.high, **more}
    if entry.axis is None:
        return {"scale": entry.scale[0], "zero_point": entry.zero_point[0], "dtype": entry.dtype}
    return {
        "scale": list(entry.scale),
        "zero_point": list(entry.zero_point),
        "dtype": entry.dtype,
        "axis": entry.axis,
    }
