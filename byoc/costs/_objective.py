"""The objective of a placement: seconds, joules, or a weighted sum; the policy for unknown costs."""

import re
from enum import StrEnum
from typing import Any

import numpy as np

from byoc._dataclasses import dataclass
from byoc.errors import InputError, suggest_nearest

_NAMES = ("latency", "energy")
_NUMBER = re.compile(r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
# Far from weights at which sums of costs overflow or vanish.
_LEAST, _MOST = 1e-100, 1e100


@dataclass(frozen=True, slots=True)
class Objective:
    """Weights of a second and of a joule; the unit of all costs in the placement problem."""

    latency: float = 1.0
    energy: float = 0.0

    def combine(self, seconds: Any, joules: Any) -> Any:
        """Return the cost of seconds and joules, numbers or arrays."""
        if not self.energy:
            return seconds if self.latency == 1.0 else self.latency * np.asarray(seconds)
        return self.latency * np.asarray(seconds) + self.energy * np.asarray(joules)

    def __str__(self) -> str:
        """Return `latency`, `energy`, or for instance `latency=1,energy=0.5`."""
        if self == LATENCY:
            return "latency"
        if self == ENERGY:
            return "energy"
        return f"latency={self.latency:g},energy={self.energy:g}"


LATENCY = Objective()
ENERGY = Objective(0.0, 1.0)


def parse_objective(text: str) -> Objective:
    """Return the objective of `latency`, `energy`, or weights such as `latency=1,energy=0.5`.

    Raises InputError for anything else.
    """
    if text in _NAMES:
        return LATENCY if text == "latency" else ENERGY
    weights = dict.fromkeys(_NAMES, 0.0)
    given: set[str] = set()
    for part in text.split(","):
        name, equals, number = (piece.strip() for piece in part.partition("="))
        if name not in weights:
            known = ", ".join((*_NAMES, "latency=1,energy=0.5"))
            raise InputError(
                f"objective {text}: no such objective{suggest_nearest(name, _NAMES)}; known: {known}"
            )
        if name in given:
            raise InputError(f"objective {text}: the weight of {name} stands twice")
        given.add(name)
        weights[name] = _weight(number) if equals else 1.0
        if weights[name] < 0:
            raise InputError(f"objective {text}: the weight of {name} is a number, 0 or more")
        if weights[name] and not _LEAST <= weights[name] <= _MOST:
            raise InputError(
                f"objective {text}: the weight of {name} is 0 or between {_LEAST:g} and {_MOST:g}"
            )
    if not any(weights.values()):
        raise InputError(f"objective {text}: some weight must be greater than 0")
    return Objective(**weights)


_UNITS = {
    "latency": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9},
    "energy": {"J": 1.0, "mJ": 1e-3, "uJ": 1e-6, "nJ": 1e-9},
}
_AMOUNT = re.compile(r"([0-9.eE+-]+) *([a-zA-Z]+)")


@dataclass(frozen=True, slots=True)
class Within:
    """The most that a placement may take: seconds of latency, or joules of energy."""

    name: str
    most: float


def parse_within(text: str) -> Within:
    """Return the limit of `latency=5ms` or `energy=2mJ`. Raises InputError for anything else."""
    name, _, amount = (part.strip() for part in text.partition("="))
    if name not in _NAMES:
        raise InputError(
            f"within {text}: no such cost{suggest_nearest(name, _NAMES)}; known: latency=5ms, energy=2mJ"
        )
    return Within(name, parse_amount(amount, name, f"within {text}"))


def parse_amount(text: str, name: str, where: str) -> float:
    """Return the seconds of `5ms`, or the joules of `2mJ` for the name `energy`; above 0.

    Raises InputError, whose message begins with `where`, for anything else.
    """
    units = _UNITS[name]
    found = _AMOUNT.fullmatch(text)
    number = _weight(found[1]) if found else -1.0
    if found is None or found[2] not in units or not _LEAST <= number <= _MOST:
        example = "2mJ" if name == "energy" else "5ms"
        raise InputError(
            f"{where}: expected a number above 0 and one of {', '.join(units)}, as in {example}"
        )
    return number * units[found[2]]


def _weight(number: str) -> float:
    """Parse a plain decimal number; return -1 if it is none (Python also accepts 1_0)."""
    return float(number) if _NUMBER.fullmatch(number) else -1.0


class Policy(StrEnum):
    """The treatment of unknown costs."""

    refuse = "refuse"
    """stop with an error that names them"""
    host = "host"
    """keep units on the host if the accelerator's model does not know their cost"""
    estimate = "estimate"
    """use an estimate, and count it"""

    @property
    def on_host(self) -> "Policy":
        """The policy for the host's own costs: `host` becomes `estimate`."""
        return Policy.estimate if self is Policy.host else self


def objective_unit(objective: str) -> str:
    """Return the unit of the values of an objective: `s`, `J`, none for a weighted sum.

    Raise InputError for an unknown objective.
    """
    return {LATENCY: "s", ENERGY: "J"}.get(parse_objective(objective), "")
