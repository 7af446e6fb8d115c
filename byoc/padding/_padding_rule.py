"""The rule by which inputs are padded to the sizes of a variant, and its outputs cut."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from byoc.model import Dim

EDGE = "edge"
"""The value of a padded input that repeats the last entry along each padded axis."""


@dataclass(frozen=True)
class FirstValue:
    """A condition on an input: at index 0 of an axis it has this value everywhere."""

    axis: int
    value: float


@dataclass(frozen=True)
class PaddedInput:
    """How an input is padded: its unpadded shape, and the value behind it, a number or `edge`.

    The extents are numbers and expressions of the rule's dimensions. `first` is what the caller's array
    has to have at index 0 of an axis, None where anything will do.
    """

    shape: tuple[Dim, ...]
    value: float | str = EDGE
    first: FirstValue | None = None


@dataclass(frozen=True)
class PaddingRule:
    """The dimensions that may be smaller than a variant has them, and what is done then.

    `dims` has the largest size of each, that of the variant; the smallest is 1. Inputs that are not in
    `inputs`, and outputs that are not in `outputs`, do not depend on them. An output is cut to its shape
    here. `reads_values` says that the proof rests on what values are, not only on which elements each
    is computed from: it holds for the model's own dtypes alone.
    """

    dims: Mapping[str, int]
    inputs: Mapping[str, PaddedInput]
    outputs: Mapping[str, tuple[Dim, ...]]
    reads_values: bool = False


@dataclass(frozen=True)
class PaddingDecision:
    """The rule of a variant, None where nothing can be padded, and why other dimensions cannot."""

    rule: PaddingRule | None = None
    refusals: Mapping[str, str] = field(default_factory=dict)
