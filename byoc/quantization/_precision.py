"""The precision that a user asks for: integers, float16, 4-bit weights, a budget of accuracy."""

from __future__ import annotations

import re
from math import inf
from pathlib import Path
from typing import Literal

from byoc import quantization, samples
from byoc._dataclasses import dataclass, field
from byoc.errors import InputError
from byoc.support import Flag, Panel, Syntax, check_types, declare_field

# Accuracy budgets, and what a model keeps of its accuracy.

_TEXT = re.compile(r"(?:snr=)?(?P<db>[0-9]+(?:\.[0-9]+)?) ?dB|top1=(?P<share>[01](?:\.[0-9]+)?)", re.I)
_MEASURES = {"dB": "signal_to_noise", "top1": "same_class"}  # the fields of `KeptAccuracy`


@dataclass(frozen=True, slots=True)
class KeptAccuracy:
    """The accuracy that a variant of a model keeps, over some samples.

    `signal_to_noise` (dB) is that of the worst output, with the powers of all samples added up;
    `same_class` the share of rows (all axes but the last), of the worst output, whose largest element is
    where it was. `noises` has the power of the error of each output over that of its signal.
    """

    signal_to_noise: float
    same_class: float
    noises: tuple[float, ...] = field(default=(), compare=False)

    @property
    def noise(self) -> float:
        """The power of the error over that of the signal."""
        return float(10 ** (-self.signal_to_noise / 10))


@dataclass(frozen=True)
class Budget:
    """The least accuracy to keep: `Budget("dB", 45)` or `Budget("top1", 0.99)`.

    `dB` is the signal-to-noise ratio of the outputs, at least 0; `top1` the share of rows with the
    largest element where it was, from 0 to 1. Raises InputError for another measure, or such a number.
    """

    measure: Literal["dB", "top1"]
    least: float

    def __post_init__(self) -> None:
        """Raise InputError for a measure that there is not, or a number outside its range."""
        if self.measure not in _MEASURES:
            raise InputError(f"accuracy budget: {self.measure!r} is neither dB nor top1")
        if not isinstance(self.least, (int, float)) or not 0 <= self.least < inf:
            raise InputError(f"accuracy budget: {self.least!r} is no number from 0 on")
        if self.measure == "top1" and self.least > 1:
            raise InputError(f"accuracy budget: '{self}': a share is at most 1")

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Return a budget from text: `30dB` or `top1=0.99`. Raises InputError for other text."""
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise InputError(f"accuracy budget: '{text}' is neither like 30dB nor like top1=0.99")
        if match["db"] is not None:
            return cls("dB", float(match["db"]))
        return cls("top1", float(match["share"]))

    def __str__(self) -> str:
        """Return it as it is written on the command line."""
        return f"{self.least:g}dB" if self.measure == "dB" else f"top1={self.least:g}"

    def is_met(self, found: KeptAccuracy) -> bool:
        """Return whether an accuracy is within the budget."""
        return self.measure_of(found) >= self.least

    def measure_of(self, found: KeptAccuracy) -> float:
        """Return an accuracy in the measure of the budget."""
        value: float = getattr(found, _MEASURES[self.measure])
        return value


FLOATS = ("float16", "bfloat16")
INTEGERS = ("int8", "uint8", "int16", "uint16")
WEIGHTS = "int4-weights"
EFFORTS = ("quick", "normal", "thorough")
DEFAULT_BLOCK = 32  # weights in 4 bits that share a scale
LEAST_BLOCK = 16  # the smallest that MatMulNBits has


@dataclass(frozen=True)
class Precision:
    """The precision that the user wants for regions.

    `quantize` is one of `INTEGERS` or `FLOATS`, None for what suits each target, or `int4-weights`: the
    weights of matrix products alone, with a scale for each `block` of them, in at most `weight_bits` on
    average where these are given. Ranges come from
    `calibration`, a file of them, or are measured on `data`, a folder or `random`: `method` chooses
    them, None compares several. `effort` is how much is tried on data, `normal` unless given. With a
    `budget` units are in 16 bits or in floating point, at the least predicted cost, so that outputs on
    `data` stay so accurate.
    """

    quantize: str | None = declare_field(
        None,
        "the type that accelerators compute in, or `int4-weights`: weights of products in 4 bits.",
        Flag(
            "Compute in this type on accelerators, or store weights in 4 bits; unless given, as the "
            "model does.",
            choices=(*INTEGERS, *FLOATS, WEIGHTS),
        ),
    )
    calibration: str | Path | quantization.Ranges | None = declare_field(
        None,
        "the ranges of tensors, or a file of them.",
        Flag(
            "The file of tensor ranges, by byoc calibrate, that scales are computed from.",
            Syntax.PATH,
            panel=Panel.PRECISION,
        ),
    )
    data: str | Path | None = declare_field(
        None,
        "a folder of samples, or `random`.",
        Flag(
            "Samples to measure ranges on, instead of --calibration, or to round int4-weights on.",
            metavar="FOLDER|random",
        ),
    )
    method: str | None = None
    effort: str | None = declare_field(
        None,
        "how much is tried on `data`: `quick`, `normal`, which is the default, or `thorough`.",
        Flag(
            "With --data: how much is tried; normal unless given.",
            choices=EFFORTS,
            panel=Panel.PRECISION,
        ),
    )
    images: samples.Preprocessing | None = None
    budget: Budget | None = declare_field(
        None,
        "the accuracy that is to be kept.",
        Flag(
            "Compute units in 16 bits or in floating point, at the least predicted cost, so that "
            "outputs on --data stay so accurate.",
            names=("--accuracy-budget",),
            metavar="30dB|top1=0.99",
            read=Budget.parse,
            panel=Panel.PRECISION,
        ),
    )
    block: int | None = declare_field(
        None,
        "how many weights share a scale with `int4-weights`: a power of two from 16 on, by default 32.",
        Flag(
            "With --quantize int4-weights: so many weights share a scale; 32 unless given.",
            Syntax.INTEGER,
            metavar="NUMBER",
            panel=Panel.PRECISION,
        ),
    )

    weight_bits: float | None = declare_field(
        None,
        "how many bits a weight takes on average at most with `int4-weights`, scales included.",
        Flag(
            "With --quantize int4-weights: store weights in 2, 4 or 8 bits or as they are, by tensor, "
            "so that each takes at most so many bits on average, scales included.",
            Syntax.NUMBER,
            metavar="NUMBER",
            panel=Panel.PRECISION,
        ),
    )

    def __post_init__(self) -> None:
        """Raise InputError for a value of another type than declared, or a type nothing computes in."""
        check_types(Precision, vars(self))
        if self.quantize is not None and self.quantize not in (*INTEGERS, *FLOATS, WEIGHTS):
            known = ", ".join((*INTEGERS, *FLOATS, WEIGHTS))
            raise InputError(f"quantize: {self.quantize} is not among {known}")
        if self.block is not None:
            _check_block(self.block)
            if self.quantize != WEIGHTS:
                raise InputError(f"--block {self.block}: is for --quantize {WEIGHTS} alone")
        if self.weight_bits is not None:
            if not 0 < self.weight_bits < inf:
                raise InputError(f"--weight-bits {self.weight_bits:g}: must be a number above 0")
            if self.quantize != WEIGHTS:
                raise InputError(
                    f"--weight-bits {self.weight_bits:g}: is for --quantize {WEIGHTS} alone"
                )
        if self.effort is not None:
            if self.effort not in EFFORTS:
                raise InputError(f"effort: {self.effort} is not among {', '.join(EFFORTS)}")
            if self.data is None:
                raise InputError(f"--effort {self.effort}: is for --data alone")

    @property
    def may_quantize(self) -> bool:
        """Whether a target that computes in integers may get a quantized model."""
        given = self.calibration is not None or self.data is not None
        return self.quantize in INTEGERS or (self.quantize is None and given)

    @property
    def quantizes_activations(self) -> bool:
        """Whether accelerators may compute in integers: not in 16-bit floats, nor with weights alone."""
        return self.quantize not in (*FLOATS, WEIGHTS)

    @property
    def record(self) -> dict[str, str | None]:
        """The precision as the manifest records it, files by their names alone."""
        given = self.calibration
        file = Path(given).name if isinstance(given, (str, Path)) else None
        block = {} if self.quantize != WEIGHTS else {"block": str(self.block or DEFAULT_BLOCK)}
        effort = {} if self.effort is None else {"effort": self.effort}
        if self.weight_bits is not None:
            block["weight_bits"] = f"{self.weight_bits:g}"
        return (
            block
            | effort
            | {
                "quantize": self.quantize,
                "calibration": file if given is None or file is not None else "ranges in memory",
                "data": None if self.data is None else Path(self.data).name,
                "method": (self.method or "measured")
                if self.data is not None and given is None
                else None,
                "accuracy_budget": None if self.budget is None else str(self.budget),
            }
        )


NATIVE: Precision = Precision()
"""The precision that suits each target, without anything to conclude scales from."""


def _check_block(block: int) -> None:
    """Raise InputError for a block that MatMulNBits does not have."""
    if block < LEAST_BLOCK or block & (block - 1):
        raise InputError(f"--block {block}: must be a power of two of at least {LEAST_BLOCK}")
