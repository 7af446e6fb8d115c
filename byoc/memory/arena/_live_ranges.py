"""Live ranges of buffers, and bytes in use at each step, for a given order of the steps."""

from collections.abc import Sequence
from dataclasses import dataclass

from byoc.memory.arena._arena_problem import ArenaProblem, Buffer

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
    change = [0] * (len(order) + 1)
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
