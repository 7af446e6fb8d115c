"""Emission of commands: tiles are loaded into the scratchpad, computed, and stored.

Each layer is a sequence of steps, one for each tile. The loads of a step precede the stores of the step
before it in the program, so they run while the machine computes.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

from byoc.codegen import ResourceError

from .arena import Arena, Place
from .boxes import Span
from .isa import Command, Load, Store
from .layers import Array, Layer
from .operand import DType, Memory, Operand
from .pack import Weights
from .slots import Need, Scratchpad, dense
from .tensors import Tensor, dtype_of
from .tiles import Budget, Tiling, slots_of

LayerT = TypeVar("LayerT", bound=Layer)


@dataclass
class Step:
    """The commands of one tile."""

    loads: list[Load] = field(default_factory=list)
    computes: list[Command] = field(default_factory=list)
    stores: list[Command] = field(default_factory=list)


def pipelined(steps: Iterable[Step]) -> Iterator[Command]:
    """Yield the commands of steps, with each tile loaded before the previous tile is stored."""
    stores: list[Command] = []
    for step in steps:
        yield from step.loads
        yield from stores
        yield from step.computes
        stores = step.stores
    yield from stores


@dataclass(eq=False)
class Machine:
    """The state that the emitters of all layers share: addresses, weights so far, numbers of tiles."""

    arena: Arena
    weights: Weights
    budget: Budget
    numbers: "count[int]"
    scratchpad: int
    near: Mapping[str, Place] = field(default_factory=dict)
    """Tensors that are in the scratchpad while the current layer runs, by name of the storage."""
    area: int = 0
    """First byte of the scratchpad for the tiles of the current layer."""
    _tilings: dict[tuple[int, int], Tiling | None] = field(default_factory=dict)
    _packed: dict[Hashable, int] = field(default_factory=dict)

    def tiling(
        self,
        find: Callable[[LayerT, int, Budget], Tiling | None],
        number: int,
        layer: LayerT,
        rows: int,
    ) -> Tiling:
        """Return the tiling of so many rows of a layer, from `find` or from the calls before.

        Raises ResourceError if there is none.
        """
        key = (number, rows)
        if key not in self._tilings:
            self._tilings[key] = find(layer, rows, self.budget)
        return required(self._tilings[key], layer, self.budget)

    def fix(self, number: int, rows: int, tiling: Tiling | None) -> None:
        """Set the tiling for so many rows of a layer."""
        if tiling is not None:
            self._tilings[number, rows] = tiling

    def packed(self, key: Hashable, array: Callable[[], Array]) -> int:
        """Return the address of constants in WEIGHTS; they are added the first time."""
        if key not in self._packed:
            self._packed[key] = self.weights.add(array())
        return self._packed[key]


@dataclass(eq=False)
class Emission:
    """The emission of one layer: its number, its slots, and the current step."""

    machine: Machine
    number: int
    layer: Layer
    scratchpad: Scratchpad
    step: Step = field(default_factory=Step)

    def begin(self) -> Step:
        """Begin the next step."""
        self.step = Step()
        return self.step

    def load(self, slot: str, tensor: Tensor, rows: Span, cols: Span, channels: Span) -> Operand:
        """Return a tile with a box of a tensor, rows over all images; load it unless it is there."""
        if self.is_near(tensor):
            return self._near(tensor, rows, cols, channels)
        source = self.machine.arena.box(tensor, rows, cols, channels)
        return self.fetch(
            slot, (tensor, rows, cols, channels), source, self.machine.arena.memory(tensor)
        )

    def constant(
        self, slot: str, key: Hashable, array: Callable[[], Array], count: int, dtype: DType
    ) -> Operand:
        """Return a tile with `count` constants, which become weights; load it unless it is there."""
        address = self.machine.packed((self.number, slot, key), array)
        source = dense(1, address, (1, 1, count), dtype)
        return self.fetch(slot, key, source, Memory.WEIGHTS)

    def fetch(self, slot: str, key: Hashable, source: Operand, memory: Memory) -> Operand:
        """Return a tile with a copy of `source`; load it unless it is there under that key."""
        found = self.scratchpad.slots[slot].find(key)
        if found is not None:
            return found
        extents = (source.rows, source.cols, source.channels)
        tile = self.scratchpad.tile(slot, key, extents, source.dtype)
        self.step.loads.append(Load(self.number, memory, source, tile))
        return tile

    def room(self, slot: str, extents: tuple[int, int, int], dtype: DType) -> Operand:
        """Return a new tile for a result."""
        return self.scratchpad.tile(slot, object(), extents, dtype)

    def made(self, tensor: Tensor, rows: Span, cols: Span, channels: Span) -> Operand:
        """Return the operand for a box of the result: a new tile, or its place in the scratchpad."""
        if self.is_near(tensor):
            return self._near(tensor, rows, cols, channels)
        return self.room("y", (rows.count, cols.count, channels.count), dtype_of(tensor))

    def is_near(self, tensor: Tensor) -> bool:
        """Whether a whole tensor is in the scratchpad."""
        return tensor.held in self.machine.near

    def _near(self, tensor: Tensor, rows: Span, cols: Span, channels: Span) -> Operand:
        return Arena(self.machine.near, {}).box(tensor, rows, cols, channels)

    def compute(self, command: Command) -> None:
        """Append a command that computes to the current step."""
        self.step.computes.append(command)

    def store(self, tile: Operand, tensor: Tensor, rows: Span, cols: Span, channels: Span) -> None:
        """Append the store of a tile to a box of a tensor, unless the tensor is in the scratchpad."""
        if self.is_near(tensor):
            return
        target = self.machine.arena.box(tensor, rows, cols, channels)
        self.put([Store(self.number, tile, target)])

    def put(self, stores: Iterable[Store]) -> None:
        """Append stores; if tiles have only one place, they precede the loads of the next step."""
        late = self.step.stores if self.scratchpad.doubled else self.step.computes
        late.extend(stores)


def emission(
    machine: Machine, number: int, layer: Layer, needs: dict[str, Need], tiling: Tiling
) -> Emission:
    """Return the emission of a layer, with slots for the tensors that are not in the scratchpad."""
    near = {slot for slot, tensor in slots_of(layer).items() if tensor.held in machine.near}
    wanted = {slot: need for slot, need in needs.items() if slot not in near}
    return Emission(
        machine, number, layer, Scratchpad(wanted, machine.numbers, tiling.doubled, machine.area)
    )


def required(tiling: Tiling | None, layer: Layer, budget: Budget) -> Tiling:
    """Return a tiling. Raises ResourceError if it is None."""
    if tiling is None:
        what = f"no tile of '{layer.y.name}' fits into a scratchpad of {budget.scratchpad} bytes"
        raise ResourceError(what, layer.nodes)
    return tiling


def over_images(rows: Span, image: int, height: int) -> Span:
    """Convert rows of an image to rows counted over all images."""
    return Span(image * height + rows.start, rows.count)
