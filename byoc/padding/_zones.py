"""Zones of padded tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Part(StrEnum):
    """A part of an axis of the padded run: index 0, what padding added, or the whole."""

    first = "first"
    rest = "rest"
    whole = "whole"


@dataclass(frozen=True)
class Zone:
    """The elements of a tensor whose index along some axes is in a part of them.

    Along any other padded axis it is one of the unpadded run.
    """

    parts: tuple[tuple[int, Part], ...] = ()

    @classmethod
    def of(cls, parts: Mapping[int, Part]) -> "Zone":
        """Return the zone of some parts by axis."""
        return cls(tuple(sorted(parts.items())))

    def get(self, axis: int) -> Part | None:
        """Return the part of an axis, None where it is that of the unpadded run."""
        return dict(self.parts).get(axis)

    def with_part(self, axis: int, part: Part | None) -> "Zone":
        """Return the zone with another part of an axis, None for that of the unpadded run."""
        parts = dict(self.parts)
        parts.pop(axis, None)
        return Zone.of(parts if part is None else {**parts, axis: part})

    def move(self, axes: Mapping[int, int]) -> "Zone":
        """Return the zone of a tensor whose axes these are, by those of this one; others are dropped."""
        return Zone.of({axes[axis]: part for axis, part in self.parts if axis in axes})

    @property
    def is_unpadded(self) -> bool:
        """Whether all its elements are those of the unpadded run."""
        return all(part is Part.first for _, part in self.parts)


UNPADDED = Zone()
