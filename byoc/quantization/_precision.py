"""The precision that a user asks for: a type, what scales are concluded from, an accuracy budget."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from byoc import quantization, samples
from byoc.errors import InputError
from byoc.quantization._accuracy_budget import Budget, read_budget
from byoc.support import Flag, Panel, Syntax, check_types, declare_field

FLOATS = ("float16", "bfloat16")
INTEGERS = ("int8", "uint8", "int16", "uint16")
WEIGHTS = "int4-weights"
DEFAULT_BLOCK = 32  # weights in 4 bits that share a scale
LEAST_BLOCK = 16  # the smallest that MatMulNBits has


@dataclass(frozen=True)
class Precision:
    """The precision that the user wants for regions.

    `quantize` is one of `INTEGERS` or `FLOATS`, None for what suits each target, or `int4-weights`: the
    weights of matrix products alone, with a scale for each `block` of them. Ranges come from
    `calibration`, a file of them, or are measured on `data`, a folder or `random`: `method` chooses
    them, None compares several. With a `budget` units are in 16 bits or in floating point, at the least
    predicted cost, so that outputs on `data` stay so accurate.
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
        Flag("Samples to measure ranges on, instead of --calibration.", metavar="FOLDER|random"),
    )
    method: str | None = None
    images: samples.Preprocessing | None = None
    budget: Budget | None = declare_field(
        None,
        "the accuracy that is to be kept.",
        Flag(
            "Compute units in 16 bits or in floating point, at the least predicted cost, so that "
            "outputs on --data stay so accurate.",
            names=("--accuracy-budget",),
            metavar="30dB|top1=0.99",
            read=read_budget,
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

    @property
    def record(self) -> dict[str, str | None]:
        """The precision as the manifest records it, files by their names alone."""
        given = self.calibration
        file = Path(given).name if isinstance(given, (str, Path)) else None
        block = {} if self.quantize != WEIGHTS else {"block": str(self.block or DEFAULT_BLOCK)}
        return block | {
            "quantize": self.quantize,
            "calibration": file if given is None or file is not None else "ranges in memory",
            "data": None if self.data is None else Path(self.data).name,
            "method": (self.method or "measured") if self.data is not None and given is None else None,
            "accuracy_budget": None if self.budget is None else str(self.budget),
        }


NATIVE: Precision = Precision()
"""The precision that suits each target, without anything to conclude scales from."""


def _check_block(block: int) -> None:
    """Raise InputError for a block that MatMulNBits does not have."""
    if block < LEAST_BLOCK or block & (block - 1):
        raise InputError(f"--block {block}: must be a power of two of at least {LEAST_BLOCK}")
