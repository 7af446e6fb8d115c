"""The precision that a user asks for: a type, what scales are concluded from, an accuracy budget."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from byoc import quantization, samples
from byoc.errors import InputError
from byoc.support import Flag, Panel, Syntax, check_types, declare_field

if TYPE_CHECKING:
    from byoc.planning import TradePoint
    from byoc.quantization._accuracy_measures import KeptAccuracy


# Accuracy budgets, and the choice among plans of what they keep and cost.

_TEXT = re.compile(r"(?:snr=)?(?P<db>[0-9]+(?:\.[0-9]+)?) ?dB|top1=(?P<share>[01](?:\.[0-9]+)?)", re.I)
_SAME_COST = 0.02  # share of the cost that is as good as none
_MEASURES = {"dB": "signal_to_noise", "top1": "same_class"}  # the fields of `KeptAccuracy`


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


def read_budget(text: str) -> Budget:
    """Return a budget from text: `30dB` or `top1=0.99`. Raises InputError for other text."""
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise InputError(f"accuracy budget: '{text}' is neither like 30dB nor like top1=0.99")
    if match["db"] is not None:
        return Budget("dB", float(match["db"]))
    return Budget("top1", float(match["share"]))


def list_cheap_plans(points: Iterable[TradePoint]) -> list[TradePoint]:
    """Return the plans that cost hardly more than the cheapest: none of them is worth a surprise."""
    found = list(points)
    least = min((point.cost for point in found), default=0.0)
    return [point for point in found if point.cost <= least * (1 + _SAME_COST)]


def choose_plan(points: Iterable[TradePoint]) -> TradePoint:
    """Return the plan to take of those that meet a budget.

    Of those that cost hardly more than the cheapest it is the one with the fewest units in floating
    point, then in 16 bits: quantizing is what was asked for. Raises ValueError if there is no plan.
    """
    return min(
        list_cheap_plans(points),
        key=lambda point: (len(point.in_float), len(point.wide), point.cost, -point.reached),
    )


def choose_front(points: Iterable[TradePoint], taken: TradePoint) -> tuple[TradePoint, ...]:
    """Return the plans that keep more than every cheaper one, and the one that is taken, by cost."""
    front: list[TradePoint] = []
    most = -inf
    for each in sorted(points, key=lambda point: (point.cost, -point.reached)):
        if each not in front and (each.reached > most or each == taken):
            front.append(each)
            most = max(most, each.reached)
    return tuple(front)


def update_taken(front: Iterable[TradePoint], taken: TradePoint) -> tuple[TradePoint, ...]:
    """Return plans, by cost, with new figures of the one that has its units in the same precisions."""
    others = (point for point in front if (point.in_float, point.wide) != (taken.in_float, taken.wide))
    return tuple(sorted((*others, taken), key=lambda point: (point.cost, point.reached)))


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
    def may_quantize(self) -> bool:
        """Whether a target that computes in integers may get a quantized model."""
        given = self.calibration is not None or self.data is not None
        return self.quantize in INTEGERS or (self.quantize is None and given)

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
