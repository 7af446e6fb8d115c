"""The arena planning problem and its plan: buffers, the steps that use them, and how long each is live.

Only numbers, no ONNX. A tensor of a model is one buffer, or several: a Concat computed in place is a row
of its operands' buffers, which `links` keeps adjacent, and a view has the buffer of the tensor it views.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby

from byoc._dataclasses import dataclass, field

Buffer = int
"""A buffer's position in `ArenaProblem.sizes`."""


@dataclass(frozen=True)
class ArenaStep:
    """One operation, with the buffers it reads and the buffers it writes.

    `may_overwrite` are buffers in `reads` that the first buffer of `writes` may overwrite, element by
    element, if this step is their last reader; their sizes are equal to its size. `scratch`
    are bytes the step needs while it runs. `after` are steps that have to run before it for another
    reason than a buffer.
    """

    name: str
    reads: tuple[Buffer, ...] = ()
    writes: tuple[Buffer, ...] = ()
    may_overwrite: tuple[Buffer, ...] = ()
    scratch: int = 0
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class ArenaProblem:
    """Numbered buffers and the steps that write and read them, in an executable order.

    `sizes` are in bytes, already rounded up to `alignment`; `names` are for messages. `inputs` exist
    before the first step, `outputs` are read after the last one, and every other buffer is written by
    one step. Each of `links` is a row of buffers that have to be adjacent in memory, in that order.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    steps: tuple[ArenaStep, ...]
    inputs: frozenset[Buffer] = field(default_factory=frozenset)
    outputs: frozenset[Buffer] = field(default_factory=frozenset)
    links: tuple[tuple[Buffer, ...], ...] = ()
    alignment: int = 1

    @cached_property
    def maker(self) -> Sequence[int]:
        """For each buffer the step that writes it, -1 for an input."""
        makers = [-1] * len(self.sizes)
        for number, step in enumerate(self.steps):
            for buffer in step.writes:
                makers[buffer] = number
        return makers

    @cached_property
    def readers(self) -> Sequence[tuple[int, ...]]:
        """For each buffer the steps that read it, in the given order."""
        readers: list[list[int]] = [[] for _ in self.sizes]
        for number, step in enumerate(self.steps):
            for buffer in dict.fromkeys(step.reads):
                readers[buffer].append(number)
        return [tuple(each) for each in readers]

    @cached_property
    def predecessors(self) -> Sequence[frozenset[int]]:
        """For each step its direct predecessors."""
        return [
            frozenset({self.maker[b] for b in step.reads if self.maker[b] >= 0} | set(step.after))
            for step in self.steps
        ]

    def subproblem(self, steps: Sequence[int]) -> "ArenaProblem":
        """Return the problem of some of the steps, in their given order, on their own.

        Buffers from other steps become inputs, buffers that other steps read become outputs. Links are
        kept where both neighbours are part of the result.
        """
        chosen = set(steps)
        order = sorted(chosen)
        seen = [b for number in order for b in (*self.steps[number].reads, *self.steps[number].writes)]
        kept = {buffer: at for at, buffer in enumerate(dict.fromkeys(seen))}
        at_step = {number: at for at, number in enumerate(order)}

        def renumber(step: ArenaStep) -> ArenaStep:
            reads, makes, over = (
                tuple(kept[b] for b in each) for each in (step.reads, step.writes, step.may_overwrite)
            )
            after = tuple(at_step[number] for number in step.after if number in chosen)
            return ArenaStep(step.name, reads, makes, over, step.scratch, after)

        inputs = {b for b in kept if self.maker[b] not in chosen}
        outputs = {b for b in kept if b in self.outputs or not chosen.issuperset(self.readers[b])}
        return ArenaProblem(
            names=tuple(self.names[b] for b in kept),
            sizes=tuple(self.sizes[b] for b in kept),
            steps=tuple(renumber(self.steps[number]) for number in order),
            inputs=frozenset(kept[b] for b in inputs),
            outputs=frozenset(kept[b] for b in outputs - inputs),
            links=tuple(_kept_links(self.links, kept)),
            alignment=self.alignment,
        )


def _kept_links(
    links: Sequence[tuple[Buffer, ...]], kept: Mapping[Buffer, Buffer]
) -> Iterator[tuple[Buffer, ...]]:
    """Yield the pieces of links whose buffers are all kept, with their new numbers."""
    for link in links:
        for there, run in groupby(link, kept.__contains__):
            piece = tuple(kept[b] for b in run) if there else ()
            if len(piece) > 1:
                yield piece


@dataclass(frozen=True)
class ArenaPlan:
    """An order of the steps and an offset for each buffer.

    `order` are step numbers. `overwrites` gives for each buffer the one it overwrites, or None; such a
    pair has the same offset. `offsets` and `size` are in bytes; `scratch` has one offset for each step
    of the problem. `bound` is a lower bound in bytes on the size of any arena, for any order and any
    offsets. `proof` names its origin: `cut` (a minimum cut at one step, `witness`), `search` (all orders
    were tried or ruled out) or `total` (the inputs together).
    """

    problem: ArenaProblem
    order: tuple[int, ...]
    overwrites: tuple[Buffer | None, ...]
    offsets: tuple[int, ...]
    scratch: tuple[int, ...]
    size: int
    bound: int
    proof: str
    witness: int | None = None

    @property
    def is_minimal(self) -> bool:
        """Whether the arena is proven to be as small as possible."""
        return self.size == self.bound


# Live ranges of buffers, and bytes in use at each step, for a given order of the steps.

BEFORE_FIRST = -1
"""The position before the first step, at which all the inputs are there."""


@dataclass(frozen=True)
class LiveRanges:
    """The live ranges for one order of the steps.

    `overwrites` gives for each buffer the one it overwrites, or None. A buffer is live from position
    `first` to position `last` of the order, both included; an input from `BEFORE_FIRST` on, and a
    buffer without readers only where it is written. `bytes_at` are the bytes in use at each position,
    scratch included. `peak` is their maximum, with the inputs before the first step.
    """

    problem: ArenaProblem
    order: tuple[int, ...]
    overwrites: tuple[Buffer | None, ...]
    first: tuple[int, ...]
    last: tuple[int, ...]
    bytes_at: tuple[int, ...]
    peak: int


def find_live_ranges(
    problem: ArenaProblem, order: Sequence[int], last_operand: bool = False
) -> LiveRanges:
    """Compute the live ranges for an order.

    A step that may overwrite several operands overwrites the first of them, or the last one with
    `last_operand`: the peak is the same, the live ranges differ.
    """
    position = {step: at for at, step in enumerate(order)}
    end = len(order) - 1
    first = tuple(position[maker] if maker >= 0 else BEFORE_FIRST for maker in problem.maker)
    last = tuple(
        max(end, first[buffer])
        if buffer in problem.outputs
        else max((position[reader] for reader in readers), default=first[buffer])
        for buffer, readers in enumerate(problem.readers)
    )
    over = _choose_overwrites(problem, position, last, last_operand)
    bytes_at = _sum_live_bytes(problem, order, first, last, over)
    before = sum(problem.sizes[buffer] for buffer in problem.inputs)
    return LiveRanges(problem, tuple(order), over, first, last, bytes_at, max((before, *bytes_at)))


def _choose_overwrites(
    problem: ArenaProblem, position: dict[int, int], last: Sequence[int], last_operand: bool
) -> tuple[Buffer | None, ...]:
    over: list[Buffer | None] = [None] * len(problem.sizes)
    for number, step in enumerate(problem.steps):
        dying = [
            b for b in step.may_overwrite if last[b] == position[number] and b not in problem.outputs
        ]
        if dying and step.writes:
            over[step.writes[0]] = dying[-1 if last_operand else 0]
    return tuple(over)


def _sum_live_bytes(
    problem: ArenaProblem,
    order: Sequence[int],
    first: Sequence[int],
    last: Sequence[int],
    over: Sequence[Buffer | None],
) -> tuple[int, ...]:
    change = Counter[int]()
    for buffer, size in enumerate(problem.sizes):
        starts = max(first[buffer], 0) + (over[buffer] is not None)  # shared while it is written
        if last[buffer] >= 0:
            change[starts] += size
            change[last[buffer] + 1] -= size
    bytes_at, now = [], 0
    for at, number in enumerate(order):
        now += change[at]
        bytes_at.append(now + problem.steps[number].scratch)
    return tuple(bytes_at)
