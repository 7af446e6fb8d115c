"""The ranges of a model's tensors, which scales are computed from.

A calibrator measures the range of each tensor's values. A user may give scale and zero point instead,
which are then used exactly. Scales and zero points are those of ONNX's QuantizeLinear:
`real = scale * (quantized - zero_point)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from numpy.typing import NDArray

from byoc.errors import suggest_nearest
from byoc.quantization._channel_statistics import CHANNELS
from byoc.support import make_file_error

if TYPE_CHECKING:
    from byoc.model import Model

DTYPES = {
    f"{sign}int{bits}": (0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for bits in (4, 8, 16)
    for sign in ("", "u")
}
"""The types that tensors are quantized to, with their least and largest value."""

EIGHT_BITS = ("int8", "uint8")
"""Those of 8 bits."""

EIGHT_BIT_STEPS = 255
"""The steps of 8 bits, from the least integer to the largest."""

T = TypeVar("T")
_MAX_HINTS = 5  # names with a suggestion, in a sentence


@dataclass(frozen=True, slots=True)
class Range:
    """The range of a tensor's values that a calibrator chose; both ends are finite."""

    low: float
    high: float

    @property
    def width(self) -> float:
        """The width that the steps of integers divide: that of the range extended to 0."""
        return max(self.high, 0.0) - min(self.low, 0.0)


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

    def add_twins(self, twins: Mapping[str, str]) -> Ranges:
        """Return the ranges with those of twins: tensors with one more axis of 1 before the last.

        `twins` maps each to the tensor whose values it has.
        """

        def add(known: Mapping[str, T]) -> dict[str, T]:
            return {**{twin: known[name] for twin, name in twins.items() if name in known}, **known}

        moved = {
            twin: replace(given, axis=_move_axis(given.axis))
            for twin, given in add(self.tensors).items()
            if twin in twins and isinstance(given, GivenQuantization) and given.axis is not None
        }
        return replace(
            self,
            tensors={**add(self.tensors), **moved},
            channels=add(self.channels),
            usual=add(self.usual),
        )


def _move_axis(axis: int) -> int:
    """Return an axis of a tensor of rank 3 in its twin of rank 4."""
    return {-3: 0, -2: 1, 2: 3}.get(axis, axis)
