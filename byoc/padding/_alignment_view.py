"""A node as the rules of alignment ask about it."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from byoc.model import Dim
from byoc.model.ranges import Interval
from byoc.padding._padded_graph import NotAlignedError, PaddedNode, Shape, require_shape
from byoc.padding._value_bounds import ValueBounds
from byoc.padding._zones import Zone


@dataclass(frozen=True, eq=False)
class AlignmentView(PaddedNode):
    """A node whose inputs are the same, aligned or sized; rules raise NotAlignedError."""

    bounds: ValueBounds
    same: Collection[str]
    sized: Collection[str]

    def require_data(self, *positions: int) -> None:
        """Raise NotAlignedError where one of some inputs, all unless given, is sized."""
        chosen = positions or range(len(self.node.input))
        for position in chosen:
            name = self.get_input(position)
            if name in self.sized:
                raise NotAlignedError(f"the value of '{name}' depends on the size")

    def require_same(self, *positions: int) -> None:
        """Raise NotAlignedError where one of some inputs is not the same in both runs."""
        for position in positions:
            name = self.get_input(position)
            if name and name not in self.same:
                raise NotAlignedError(f"'{name}' is not the same for every size")

    def require_unpadded(self, position: int, axes: Sequence[int], what: str) -> None:
        """Raise NotAlignedError where one of some axes of an input is padded; `what` is done over it."""
        shape = self.get_shape(position)
        for axis in axes:
            if not -len(shape) <= axis < len(shape):
                raise NotAlignedError("it has an axis that its input has not")
            if self.graph.is_padded(shape[axis]):
                raise NotAlignedError(f"{what} axis {axis % len(shape)}, which is {shape[axis]} long")

    def require_equal(self, a: Dim, b: Dim) -> None:
        """Raise NotAlignedError unless two extents are equal at all sizes."""
        if a != b:
            raise NotAlignedError(f"an axis is {a} long here and {b} there")

    def find_bounds(self, position: int, zone: Zone) -> Interval | None:
        """Return the bounds of an input in a zone, None where none are known."""
        self.bounds.used = True
        return self.bounds.find(self.get_input(position), zone)

    def check_broadcast(self, positions: Sequence[int], output: Shape) -> None:
        """Raise NotAlignedError unless inputs are broadcast to an output alike at all sizes.

        Along a padded axis each input has the extent of the output, or 1.
        """
        for position in positions:
            if not self.get_input(position):
                continue
            shape = self.get_shape(position)
            if len(shape) > len(output):
                raise NotAlignedError("it broadcasts to fewer dimensions")
            for dim, other in zip(shape[::-1], output[::-1], strict=False):
                padded = self.graph.is_padded(dim) or self.graph.is_padded(other)
                if padded and dim not in {1, other}:
                    raise NotAlignedError(f"it broadcasts an axis that is {dim} long to {other}")

    def check_outputs(self, names: Sequence[str]) -> None:
        """Raise NotAlignedError unless outputs are known to be no longer in the unpadded run."""
        for name in names:
            if not self.graph.index.is_used(name):
                continue
            for dim in require_shape(self.graph, name):
                if not self.graph.is_largest_padded(dim):
                    raise NotAlignedError(f"'{name}' has an axis of {dim}, which padding may shorten")


AlignmentRule = Callable[[AlignmentView], None]
