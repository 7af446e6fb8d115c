"""The rule by which inputs are padded to the sizes of a variant, and its outputs cut."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from byoc.model import Dim, evaluate_dim, subtract_dims

EDGE: Literal["edge"] = "edge"
"""The value of a padded input that repeats the last entry along each padded axis."""


@dataclass(frozen=True)
class FirstValue:
    """A condition on an input: at index 0 of an axis it has this value everywhere."""

    axis: int
    value: Literal[0, 1]


@dataclass(frozen=True)
class PaddedInput:
    """The padding of an input: its unpadded shape, and the value of padding, a number or `edge`.

    The extents are numbers and expressions of the rule's dimensions. The number is filled in along the
    last padded axis; along any other, and where it is `edge`, the last entries are repeated. `first` is
    what the caller's array has to have at index 0 of an axis, None where anything will do.

    `room` is how many entries the caller's array lacks at the end of its last padded axis: the model
    writes there. One that is `made` is no array of a caller's, but ones of that shape.
    """

    shape: tuple[Dim, ...]
    value: Literal["edge", 0, 1] = EDGE
    first: FirstValue | None = None
    room: int = 0
    made: bool = False

    @property
    def own_shape(self) -> tuple[Dim, ...]:
        """The shape of the caller's array."""
        if not self.room:
            return self.shape
        axis = max(axis for axis, dim in enumerate(self.shape) if isinstance(dim, str))
        return tuple(
            subtract_dims(dim, self.room) if i == axis else dim for i, dim in enumerate(self.shape)
        )


@dataclass(frozen=True)
class PaddingRule:
    """The dimensions that may be smaller than a variant has them, and what is done then.

    `dims` has the largest size of each, that of the variant; the smallest is 1, and 0 where the model
    writes to a cache. `equal` has dimensions that are to be of the size of another, with the name of
    that one or an expression of it. Inputs that are not in `inputs`, and outputs that are not in
    `outputs`, are the same for all sizes. An output is cut to its shape here. `reads_values` says that
    the proof rests on what values are, not only on which elements each is computed from: it holds for
    the model's own dtypes alone.
    """

    dims: Mapping[str, int]
    inputs: Mapping[str, PaddedInput]
    outputs: Mapping[str, tuple[Dim, ...]]
    equal: Mapping[str, str] = field(default_factory=dict)
    reads_values: bool = False

    @property
    def is_static(self) -> bool:
        """Whether it is that of a model which writes to a cache of a fixed length."""
        return any(each.made for each in self.inputs.values())

    @property
    def least(self) -> int:
        """The smallest size of a dimension."""
        return 0 if self.is_static else 1

    def complete(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return sizes of the dimensions together with those that follow from them."""
        return {**sizes, **{name: evaluate_dim(other, sizes) or 0 for name, other in self.equal.items()}}

    def list_trial_sizes(self) -> list[dict[str, int]]:
        """Return sizes to verify the rule at: all at 1, and all at half of the largest.

        Where the model writes to a cache, none and the largest are among them, since it is another model
        than the caller's.
        """
        found: list[dict[str, int]] = []
        halves = {n: max(s // 2, 1) for n, s in self.dims.items()}
        trials = [dict.fromkeys(self.dims, 1), halves]
        if self.is_static:
            trials = [dict.fromkeys(self.dims, 0), *trials, dict(self.dims)]
        for sizes in trials:
            if sizes not in found and (self.is_static or sizes != dict(self.dims)):
                found.append(sizes)
        return found


@dataclass(frozen=True)
class PaddingDecision:
    """The rule of a variant, None where nothing can be padded, and why other dimensions cannot."""

    rule: PaddingRule | None = None
    refusals: Mapping[str, str] = field(default_factory=dict)

    def describe(self) -> str:
        """Return it as people read it: `seq 1 to 16; not batch: REASON`. Empty where nothing is open."""
        told = (
            []
            if self.rule is None
            else [f"{n} {self.rule.least} to {size}" for n, size in self.rule.dims.items()]
        )
        parts = [", ".join(told)] if told else []
        return "; ".join([*parts, *(f"not {name}: {why}" for name, why in self.refusals.items())])
