"""What speaks against a node: objections, each with its place in the rule file, worst first."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum


class Kind(IntEnum):
    """How far an objection is from being met; the first is the furthest."""

    OPERATOR = 0
    OPSET = 1
    DTYPE = 2
    TENSOR = 3
    ATTRIBUTE = 4
    UNKNOWN = 5


@dataclass(frozen=True, slots=True)
class Objection:
    """A constraint that does not hold.

    `place` is its path in the rule file, `ops[0].attributes.kernel_shape.each.max`, behind the name of
    the file where it was inherited (`dla.yaml: ops[0]...`), empty where no constraint is to blame;
    `text` is the sentence.
    """

    place: str
    text: str
    kind: Kind = field(default=Kind.TENSOR, compare=False)


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a rule says of a node: nothing when it accepts it, else its objections, the worst first.

    `rule` is the place of the rule, empty when no rule was to be asked; `fits` whether it speaks of
    such a node at all: one with `quantized: true` of one with DequantizeLinear or QuantizeLinear beside
    it, any other of one without.
    """

    rule: str
    objections: tuple[Objection, ...]
    fits: bool = field(default=True, compare=False)


def ordered(objections: Iterable[Objection]) -> tuple[Objection, ...]:
    """Return objections without repetitions, the worst first."""
    # A variadic input may fail many times for one reason.
    return tuple(sorted(dict.fromkeys(objections), key=lambda objection: objection.kind))


def nearness(attempt: Attempt) -> tuple[bool, int, int]:
    """Return what sorts attempts, the nearest first.

    Those that fit, of these fewer objections, and of as many lighter ones.
    """
    kinds = [objection.kind for objection in attempt.objections]
    return not attempt.fits, len(kinds), -min(kinds, default=Kind.UNKNOWN)
