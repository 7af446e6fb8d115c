"""A segment walked from its beginning or from its end, with one face for the search.

A state is the set of steps walked, a bit each; `live` are the bytes that are there between two steps.
In both directions `live` is submodular in the set, and what a step needs beside it (`extra`) falls as
the set grows; the search relies on both.
"""

from typing import Protocol

from byoc.memory.order.segments import Segment

State = int


class Direction(Protocol):
    """What the search asks of a way through a segment."""

    start: int
    """Live bytes where nothing has been walked."""
    needs: list[int]
    """For each step those that have to be walked before it, as a mask."""
    frees: list[list[int]]
    """For each step those that need it."""

    def extra(self, step: int, state: State) -> int:
        """Return the bytes that the step needs beside what is live."""

    def change(self, step: int, state: State) -> int:
        """Return by how many bytes `live` grows with the step."""


class Forward:
    """From the beginning: steps run."""

    def __init__(self, segment: Segment) -> None:
        """Prepare what is asked again and again."""
        self.start = segment.base
        self.needs = list(segment.before)
        self.frees = _inverse(self.needs)
        items = segment.items
        self._makes = [
            sum(items[i].size for i in makes) + scratch
            for makes, scratch in zip(segment.makes, segment.scratch, strict=True)
        ]
        self._grows = [
            sum(items[i].size for i in makes if items[i].read or items[i].stays)
            for makes in segment.makes
        ]
        self._dies = [
            [(items[i].size, items[i].read & ~(1 << step)) for i in reads if not items[i].stays]
            for step, reads in enumerate(segment.reads)
        ]
        self._over = [
            [items[i].read & ~(1 << step) for i in over if makes and not items[i].stays]
            for step, (over, makes) in enumerate(zip(segment.over, segment.makes, strict=True))
        ]
        self._first = [items[makes[0]].size if makes else 0 for makes in segment.makes]

    def extra(self, step: int, state: State) -> int:
        """Return the bytes that the step makes, and its scratch, less what it writes over."""
        for others in self._over[step]:
            if not others & ~state:
                return self._makes[step] - self._first[step]
        return self._makes[step]

    def change(self, step: int, state: State) -> int:
        """Return the bytes that the step leaves less those that it was the last to read."""
        grown = self._grows[step]
        for size, others in self._dies[step]:
            if not others & ~state:
                grown -= size
        return grown


class Backward:
    """From the end: steps are taken back. A buffer comes with its last reader, goes with its maker."""

    def __init__(self, segment: Segment) -> None:
        """Prepare what is asked again and again."""
        self.start = segment.left
        self.frees = [_bits(before) for before in segment.before]
        self.needs = [sum(1 << other for other in each) for each in _inverse(list(segment.before))]
        items = segment.items
        self._unread = [
            scratch + sum(items[i].size for i in makes if not items[i].read and not items[i].stays)
            for makes, scratch in zip(segment.makes, segment.scratch, strict=True)
        ]
        self._goes = [
            sum(items[i].size for i in makes if items[i].read or items[i].stays)
            for makes in segment.makes
        ]
        self._comes = [
            [(items[i].size, items[i].read) for i in reads if not items[i].stays]
            for reads in segment.reads
        ]
        self._over = [
            [items[i].read for i in over if makes and not items[i].stays]
            for over, makes in zip(segment.over, segment.makes, strict=True)
        ]
        self._first = [items[makes[0]].size if makes else 0 for makes in segment.makes]

    def extra(self, step: int, state: State) -> int:
        """Return the bytes that come with the step and its scratch, less what it writes over."""
        extra = self._unread[step] + self._coming(step, state)
        for readers in self._over[step]:
            if not readers & state:
                return extra - self._first[step]
        return extra

    def change(self, step: int, state: State) -> int:
        """Return the bytes that come with the step, which reads them, less those that it makes."""
        return self._coming(step, state) - self._goes[step]

    def _coming(self, step: int, state: State) -> int:
        return sum(size for size, readers in self._comes[step] if not readers & state)


def _inverse(needs: list[int]) -> list[list[int]]:
    frees: list[list[int]] = [[] for _ in needs]
    for step, mask in enumerate(needs):
        for other in _bits(mask):
            frees[other].append(step)
    return frees


def _bits(mask: int) -> list[int]:
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found
