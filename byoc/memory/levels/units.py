"""Residencies that share an address, and which of them are loaded."""

from collections.abc import Sequence
from dataclasses import dataclass

from byoc.memory.levels.choice import Choice, taken_over
from byoc.memory.levels.pack import Block
from byoc.memory.levels.schedule import Schedule
from byoc.memory.problem import Buffer

Stay = tuple[Buffer, int, int]
"""A buffer is resident from one turn to another, both included."""


@dataclass(frozen=True)
class Unit:
    """Residencies that share an address, each buffer written over the one before it.

    `earliest` is the first turn before which the first of them can be loaded, its own where it is made.
    """

    stays: tuple[Stay, ...]
    size: int
    earliest: int

    @property
    def first(self) -> int:
        """The turn with which the first residency begins."""
        return self.stays[0][1]

    @property
    def last(self) -> int:
        """The turn with which the last residency ends."""
        return self.stays[-1][2]

    def block(self, first: int) -> Block:
        """Return what it takes when it is there from that turn on."""
        return Block(first, self.last, self.size)


def units(schedule: Schedule, choice: Choice, prefetch: int = 0) -> Sequence[Unit]:
    """Return the residencies of a choice, joined where one is written over another.

    What is loaded can be there up to `prefetch` turns earlier, after the turn that touched it last.
    """
    chains: dict[tuple[Buffer, int], list[Stay]] = {}
    earliest: dict[tuple[Buffer, int], int] = {}
    for buffer, keep in enumerate(choice):
        events = schedule.events[buffer]
        for first, last in keep.stays():
            start = events[first].turn
            chains[buffer, first] = [(buffer, start, events[last].turn)]
            before = events[first - 1].turn + 1 if first else 0
            loaded = schedule.has_content(buffer, first)
            earliest[buffer, first] = max(before, start - prefetch) if loaded else start
    over = taken_over(schedule, choice)
    for written in sorted(over, key=lambda b: -schedule.events[b][0].turn):  # the last ones first
        read = over[written]
        *_, (first, _) = choice[read].stays()
        chains[read, first] += chains.pop((written, 0))
    return [Unit(tuple(chain), schedule.sizes[key[0]], earliest[key]) for key, chain in chains.items()]
