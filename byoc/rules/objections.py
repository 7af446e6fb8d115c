"""Objections: constraints that a node does not meet, with their locations in the rule file."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum


class ObjectionKind(IntEnum):
    """The kind of an objection, the most severe first."""

    OPERATOR = 0
    OPSET = 1
    DTYPE = 2
    TENSOR = 3
    ATTRIBUTE = 4
    UNKNOWN = 5


@dataclass(frozen=True, slots=True)
class Objection:
    """A constraint that a node does not meet.

    `place` is its location in the rule file, `ops[0].attributes.kernel_shape.each.max`, with the name of
    the file if inherited (`dla.yaml: ops[0]...`), empty if no constraint is to blame; `text` is the
    sentence.
    """

    location: str
    text: str
    kind: ObjectionKind = field(default=ObjectionKind.TENSOR, compare=False)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A rule tried on a node: no objections if it accepts the node, else all, most severe first.

    `rule` is the location of the rule, empty if there was none to try. `fits` tells whether the rule is
    for such a node: one with `quantized: true` for a node next to DequantizeLinear or QuantizeLinear,
    any other for a node that is not.
    """

    rule: str
    objections: tuple[Objection, ...]
    fits: bool = field(default=True, compare=False)


def make_unknown(place: str, subject: str) -> Objection:
    """Make the objection that something must be known to apply a constraint."""
    return Objection(place, f"{subject} is not known", ObjectionKind.UNKNOWN)


def sort_objections(objections: Iterable[Objection]) -> tuple[Objection, ...]:
    """Return objections without repetitions, most severe first."""
    # A variadic input can fail many times for one reason.
    return tuple(sorted(dict.fromkeys(objections), key=lambda objection: objection.kind))


def rate_attempt(attempt: Attempt) -> tuple[bool, int, int]:
    """Return a key that sorts attempts, the nearest first.

    Attempts that fit precede others, then those with fewer objections, then with less severe ones.
    """
    kinds = [objection.kind for objection in attempt.objections]
    return not attempt.fits, len(kinds), -min(kinds, default=ObjectionKind.UNKNOWN)
