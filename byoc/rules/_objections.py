"""Objections: constraints on numbers and attributes that a node does not meet, with their locations."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import islice
from math import ceil, isnan
from typing import Any

from byoc.errors import Cause, CauseKind
from byoc.model import Dim, floor_divide_dims, is_dim_at_least, list_dim_names, multiply_dims
from byoc.rules._schema_values import AttributeRule, Bounds, ElementRule, SizeBounds
from byoc.support import format_short


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

    `location` is its location in the rule file, `ops[0].attributes.kernel_shape.each.max`, with the
    name of the file if inherited (`dla.yaml: ops[0]...`), empty if no constraint is to blame; `text` is
    the sentence. Where it is that a type is not known, `origin` says behind what, and what settles it.
    `value` and `allowed` are what the node has and what is supported, `flags` the flags of the command
    line that settle it, `names` the nodes and tensors that the sentence quotes, `cause` the kind of
    cause where the kind of objection does not tell, `advice` what settles it besides flags.
    """

    location: str
    text: str
    kind: ObjectionKind = field(default=ObjectionKind.TENSOR, compare=False)
    origin: str = ""
    value: str = field(default="", compare=False)
    allowed: str = field(default="", compare=False)
    flags: tuple[str, ...] = field(default=(), compare=False)
    names: tuple[str, ...] = field(default=(), compare=False)
    cause: CauseKind | None = field(default=None, compare=False)
    advice: str = field(default="", compare=False)

    @property
    def is_about_dtype(self) -> bool:
        """Whether a tensor has another dtype than is supported."""
        return self.kind is ObjectionKind.DTYPE

    @property
    def reason(self) -> str:
        """The sentence for users: the origin, which many nodes share, or what the constraint says."""
        return self.origin or self.text

    def make_cause(self, operator: str = "", *, named: bool = False) -> Cause:
        """Return the objection as the cause of a node's refusal; `named` puts the operator in front."""
        kind = self.cause
        if kind is None and self.kind is ObjectionKind.UNKNOWN:
            kind = CauseKind.SIZE if self.flags else CauseKind.TYPE
        if kind is None:
            kind = CauseKind.CONSTRAINT if self.location else CauseKind.OTHER
        text = f"{operator}: {self.text}" if named and not self.origin else self.reason
        return Cause(
            kind=kind,
            text=text,
            operator=operator,
            constraint="" if self.origin else self.location,
            value=self.value,
            allowed=self.allowed,
            flags=self.flags,
            names=self.names,
            advice=self.advice,
        )


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


def make_unknown(place: str, subject: str, *dims: Dim) -> Objection:
    """Make the objection that something must be known to apply a constraint.

    `dims` are the extents that it depends on: the text says how to give those that are open.
    """
    return object_to_open(place, f"{subject} is not known", *dims)


def object_to_open(place: str, sentence: str, *dims: Dim) -> Objection:
    """Make the objection of a sentence that sizes of open dimensions settle, which it says, too."""
    flags = list_size_flags(*dims)
    given = f" ({' '.join(flags)})" if flags else ""
    return Objection(place, f"{sentence}{given}", ObjectionKind.UNKNOWN, flags=flags)


def list_size_flags(*dims: Dim) -> tuple[str, ...]:
    """Return `--dim N=SIZE` for each open dimension that extents depend on, if these have names."""
    names = sorted({name for dim in dims if isinstance(dim, str) for name in list_dim_names(dim)})
    return tuple(f"--dim {format_short(name)}=SIZE" for name in names if name.isidentifier())


def is_for_want_of_sizes(cause: Cause) -> bool:
    """Return whether a node is refused since something is open or unknown.

    Sizes of open dimensions may settle it, and those of some do not.
    """
    return cause.kind in {CauseKind.SIZE, CauseKind.TYPE}


def is_multiple(extent: Dim, number: int | None) -> bool:
    """Return whether an extent is a multiple of a number, whatever its names turn out to be."""
    return number is None or (
        extent is not None and multiply_dims(floor_divide_dims(extent, number), number) == extent
    )


def is_at_least(extent: Dim, least: float | None) -> bool:
    """Return whether an extent has a least size, whatever its names turn out to be."""
    return least is None or is_dim_at_least(extent, ceil(least))


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


def check_attribute(place: str, name: str, value: Any, rule: AttributeRule) -> Iterator[Objection]:
    """Yield the objections to the value of an attribute, which is None if it has none."""
    if rule.absent is not None and (value is None) != rule.absent:
        text = f"{name} must be absent" if rule.absent else f"{name} must be given"
        yield Objection(f"{place}.absent", text, ObjectionKind.ATTRIBUTE)
    if value is None or rule.absent:
        return
    yield from check_value(place, name, value, rule, ObjectionKind.ATTRIBUTE)
    keys = [key for key in ("length", "each") if getattr(rule, key) is not None]
    if keys and not isinstance(value, list):  # possible in a rule for any operator
        yield Objection(
            f"{place}.{keys[0]}",
            f"{name} is {_format_value(value)}, not a list",
            ObjectionKind.ATTRIBUTE,
        )
        return
    if rule.length is not None and len(value) not in rule.length:
        allowed = format_list(rule.length)
        text = f"{name} has {len(value)} elements; supported: {allowed}"
        length = str(len(value))
        yield Objection(f"{place}.length", text, ObjectionKind.ATTRIBUTE, value=length, allowed=allowed)
    if rule.each is not None:
        yield from islice(_check_elements(f"{place}.each", name, value, rule.each), 1)  # one is enough


def _check_elements(place: str, name: str, values: Any, rule: ElementRule) -> Iterator[Objection]:
    for position, value in enumerate(values):
        yield from check_value(place, f"{name}[{position}]", value, rule, ObjectionKind.ATTRIBUTE)


def check_value(
    place: str, name: str, value: Any, rule: ElementRule | AttributeRule, kind: ObjectionKind
) -> Iterator[Objection]:
    """Yield the objections to a single value."""
    if rule.one_of is not None and not any(equals_allowed(value, one) for one in rule.one_of):
        yield object_to_choice(f"{place}.one_of", name, _format_value(value), rule.one_of, kind)
    yield from check_bounds(place, name, value, rule, kind)


def check_bounds(
    place: str, name: str, value: Any, rule: Bounds | SizeBounds, kind: ObjectionKind
) -> Iterator[Objection]:
    """Yield the objections of a minimum and a maximum to a value."""
    low, high = rule.min, rule.max
    if low is None and high is None:
        return
    is_number = isinstance(value, (int, float))  # Cast's `to` was text before opset 6
    if not is_number or isnan(value):
        first = "max" if low is None else "min"
        text = "is not a number (NaN)" if is_number else f"is {_format_value(value)}, not a number"
        yield Objection(f"{place}.{first}", f"{name} {text}", kind)
        return
    for key, word, limit in (("min", "at least", low), ("max", "at most", high)):
        if limit is not None and (value < limit if key == "min" else value > limit):
            allowed = f"{word} {format_limit(limit)}"
            text = f"{name} is {value}, {allowed} is supported"
            yield Objection(f"{place}.{key}", text, kind, value=str(value), allowed=allowed)


def object_to_choice(
    place: str, name: str, value: str, choices: Any, kind: ObjectionKind = ObjectionKind.TENSOR
) -> Objection:
    """Make the objection that a value is none of those that are supported."""
    allowed = format_list(choices)
    return Objection(
        place, f"{name} is {value}; supported: {allowed}", kind, value=value, allowed=allowed
    )


def _format_value(value: Any) -> str:
    """Return a value for messages; anything but a number, text or list by its type."""
    if not isinstance(value, (int, float, str, list)):
        return f"a {type(value).__name__}"
    return format_short(value)


def equals_allowed(value: Any, one: Any) -> bool:
    """Return whether a value equals one in a rule; true does not equal 1."""
    return bool(value == one) and isinstance(value, bool) == isinstance(one, bool)


def format_limit(number: float) -> str:
    """Format a limit as a person writes it: 11 and 2.5, and 1048576 in full."""
    return str(int(number)) if number == int(number) and abs(number) < 1e15 else f"{number:g}"


def format_list(values: Any) -> str:
    """Format values for messages, with commas."""
    return ", ".join(map(format_short, values))
