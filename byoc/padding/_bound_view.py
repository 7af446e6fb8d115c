"""A node as the rules of bounds ask about it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from byoc.model.ranges import Interval
from byoc.padding._padded_graph import PaddedNode, Shape, require_shape
from byoc.padding._zones import Zone

if TYPE_CHECKING:
    from byoc.padding._value_bounds import ValueBounds


@dataclass(frozen=True, eq=False)
class BoundView(PaddedNode):
    """A node with the output and the zone that bounds are wanted of."""

    output: str
    zone: Zone
    bounds: "ValueBounds"

    @property
    def shape(self) -> Shape:
        """The shape of the output. Raises NotAlignedError where it is not known."""
        return require_shape(self.graph, self.output)

    def find(self, position: int, zone: Zone) -> Interval | None:
        """Return the bounds of an input in a zone of it."""
        return self.bounds.find(self.get_input(position), zone)

    def find_broadcast(self, position: int) -> Interval | None:
        """Return the bounds of an input that is broadcast to the output, where it meets the zone."""
        shape, rank = self.get_shape(position), len(self.shape)
        axes = {
            axis + rank - len(shape): axis
            for axis, dim in enumerate(shape)
            if dim != 1 and axis + rank >= len(shape)
        }
        return self.find(position, self.zone.move(axes))

    def find_constant_magnitude(self, position: int) -> float | None:
        """Return the largest absolute value of a constant input, None for any other; 0 if left out."""
        name = self.get_input(position)
        if not name:
            return 0.0
        array = self.graph.read_constant(name)
        if array is None or array.dtype.kind not in "biuf":
            return None
        return float(abs(array.astype("float64")).max(initial=0.0))


BoundRule = Callable[[BoundView], Interval | None]
