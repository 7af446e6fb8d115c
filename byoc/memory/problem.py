"""What is to be planned: steps that make buffers and read them. Numbers alone, no ONNX.

A tensor of a model is one buffer here, or several: a Concat that is written in place is the row of its
operands' buffers, which `links` keeps together, and a view is the buffer of what it views.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

Buffer = int
"""A buffer's position in `Problem.sizes`."""


@dataclass(frozen=True)
class Step:
    """One operation: the buffers that it reads and those that it makes.

    `over` are buffers among `reads` over which the first of `makes` can be written, element by element,
    where this step is the last to read them; each is of the same size as it. `scratch` are bytes that
    the step needs while it runs, and `after` steps that have to run before it although it reads
    nothing of theirs.
    """

    name: str
    reads: tuple[Buffer, ...] = ()
    makes: tuple[Buffer, ...] = ()
    over: tuple[Buffer, ...] = ()
    scratch: int = 0
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class Problem:
    """Buffers by number, and the steps that make and read them, in an order that can be executed.

    `sizes` are bytes, rounded up to `alignment` already, and `names` are for people. `inputs` are made
    before the first step and `outputs` read after the last one. Each other buffer is made by one step.
    Each of `links` is a row of buffers that have to lie one right behind the other, in that order.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    steps: tuple[Step, ...]
    inputs: frozenset[Buffer] = field(default_factory=frozenset)
    outputs: frozenset[Buffer] = field(default_factory=frozenset)
    links: tuple[tuple[Buffer, ...], ...] = ()
    alignment: int = 1

    @cached_property
    def maker(self) -> Sequence[int]:
        """For each buffer the step that makes it, -1 for an input."""
        makers = [-1] * len(self.sizes)
        for number, step in enumerate(self.steps):
            for buffer in step.makes:
                makers[buffer] = number
        return makers

    @cached_property
    def readers(self) -> Sequence[tuple[int, ...]]:
        """For each buffer the steps that read it, in their given order."""
        readers: list[list[int]] = [[] for _ in self.sizes]
        for number, step in enumerate(self.steps):
            for buffer in dict.fromkeys(step.reads):
                readers[buffer].append(number)
        return [tuple(each) for each in readers]

    @cached_property
    def before(self) -> Sequence[frozenset[int]]:
        """For each step those that have to run before it, only the nearest."""
        return [
            frozenset({self.maker[b] for b in step.reads if self.maker[b] >= 0} | set(step.after))
            for step in self.steps
        ]

    def part(self, steps: Sequence[int]) -> "Problem":
        """Return the problem of some of the steps, in their given order, as if nothing else were there.

        What they read of others is an input, what others read of theirs an output. Links are kept
        as far as both neighbours are there.
        """
        chosen = set(steps)
        order = sorted(chosen)
        seen = [b for number in order for b in (*self.steps[number].reads, *self.steps[number].makes)]
        kept = {buffer: at for at, buffer in enumerate(dict.fromkeys(seen))}
        at_step = {number: at for at, number in enumerate(order)}

        def renumbered(step: Step) -> Step:
            reads, makes, over = (
                tuple(kept[b] for b in each) for each in (step.reads, step.makes, step.over)
            )
            after = tuple(at_step[number] for number in step.after if number in chosen)
            return Step(step.name, reads, makes, over, step.scratch, after)

        inputs = {b for b in kept if self.maker[b] not in chosen}
        outputs = {b for b in kept if b in self.outputs or not chosen.issuperset(self.readers[b])}
        return Problem(
            names=tuple(self.names[b] for b in kept),
            sizes=tuple(self.sizes[b] for b in kept),
            steps=tuple(renumbered(self.steps[number]) for number in order),
            inputs=frozenset(kept[b] for b in inputs),
            outputs=frozenset(kept[b] for b in outputs - inputs),
            links=tuple(_runs(self.links, kept)),
            alignment=self.alignment,
        )

    @property
    def total(self) -> int:
        """Bytes when nothing is used twice: every buffer has a place of its own."""
        return sum(self.sizes) + max((step.scratch for step in self.steps), default=0)


def _runs(
    links: Sequence[tuple[Buffer, ...]], kept: Mapping[Buffer, Buffer]
) -> Iterator[tuple[Buffer, ...]]:
    """Yield the pieces of links whose buffers are all kept, by their new numbers."""
    for link in links:
        for there, run in groupby(link, kept.__contains__):
            piece = tuple(kept[b] for b in run) if there else ()
            if len(piece) > 1:
                yield piece


@dataclass(frozen=True)
class Plan:
    """An order of the steps and a place for each buffer.

    `order` are numbers of steps. `over` is for each buffer the one that it is written over, or None;
    such a pair shares its offset. `offsets` and `size` are bytes; what a step needs as scratch lies at
    `scratch`, one offset a step of the problem. `bound` are bytes below which no arena can be,
    whatever the order and the places; `proof` says how that is known: `cut` (a minimum cut at one
    step), `search` (all orders were tried or ruled out), `total` (what is there before the first
    step). `witness` is the step of the cut.
    """

    problem: Problem
    order: tuple[int, ...]
    over: tuple[Buffer | None, ...]
    offsets: tuple[int, ...]
    scratch: tuple[int, ...]
    size: int
    bound: int
    proof: str
    witness: int | None = None

    @property
    def is_minimal(self) -> bool:
        """Whether no smaller arena is possible, proven."""
        return self.size == self.bound
