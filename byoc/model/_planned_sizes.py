"""The sizes of open dimensions that a plan counts with."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PlannedSizes:
    """The sizes of open dimensions that a plan counts with.

    `sizes` has them by name, `ranges` the least and the largest size of those that the user gave as a
    range. Sizes of the other names were chosen by what the dimensions seem to be, and by what the model
    asks for; `reasons` says for some what that is.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def chosen(self) -> dict[str, int]:
        """The sizes that the user did not give."""
        return {name: size for name, size in self.sizes.items() if name not in self.ranges}

    def describe(self) -> str:
        """Return the sizes that the user did not give, with their reasons."""
        told = {name: f" ({reason})" for name, reason in self.reasons.items()}
        return ", ".join(f"{name} = {size}{told.get(name, '')}" for name, size in self.chosen.items())


NOTHING_OPEN = PlannedSizes()
"""The planned sizes of a model without open dimensions."""
