"""The plan of an arena: an order of the steps, offsets, and bytes that no arena can be below."""

from byoc.errors import InputError, nearest
from byoc.memory.live import live
from byoc.memory.offsets.compounds import compounds
from byoc.memory.offsets.packing import Packing
from byoc.memory.problem import Plan, Problem

METHODS = ("no-reuse", "best-fit", "by-size", "reordered", "exact")


def plan(problem: Problem, method: str = "exact", time_limit: float = 10.0) -> Plan:
    """Plan the arena of a problem.

    Raises:
        InputError: there is no such method.
    """
    if method not in METHODS:
        raise InputError(f"memory method {method!r} is unknown{nearest(method, METHODS)}")
    lives = live(problem, range(len(problem.steps)))
    together = compounds(lives)
    packing = Packing(together.all)
    tried = [packing.placed(packing.by_size(), True), packing.placed(packing.by_start(), True)]
    offsets = min(tried, key=packing.height)
    places, scratch = [0] * len(problem.sizes), [0] * len(problem.steps)
    for compound, at in zip(together.all, offsets, strict=True):
        for buffer, inside in compound.members:
            places[buffer] = at + inside
        if compound.step is not None:
            scratch[compound.step] = at
    bound = max((sum(problem.sizes[b] for b in step.makes) for step in problem.steps), default=0)
    return Plan(
        problem, lives.order, together.over, tuple(places), tuple(scratch),
        packing.height(offsets), bound, "cut",
    )  # fmt: skip
