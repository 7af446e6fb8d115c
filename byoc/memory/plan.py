"""Planning of an arena: an order of the steps, offsets, and a lower bound on its size."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic

from byoc.errors import InputError, nearest
from byoc.memory.bound.cut import cut_bound, witness
from byoc.memory.live import Live, live
from byoc.memory.offsets.climb import climbed, quick
from byoc.memory.offsets.compounds import compounds
from byoc.memory.offsets.packing import Packing
from byoc.memory.order.best import best_order, varied
from byoc.memory.problem import Plan, Problem

METHODS = ("no-reuse", "best-fit", "by-size", "reordered", "exact")
"""What `plan` can do: a place for each buffer; the given order with offsets step by step or from the
largest buffer on; the best order with quick offsets, or with the best ones."""

_MOST_ORDERS = 4


@dataclass(frozen=True)
class _Known:
    """The order found for a problem, and the lower bound proven for all orders."""

    order: tuple[int, ...]
    bound: int
    proof: str
    witness: int | None


def plan(problem: Problem, method: str = "exact", time_limit: float = 10.0) -> Plan:
    """Plan the arena of a problem. The lower bound belongs to the problem, whatever the method.

    The same problem gives the same plan, unless the search reaches `time_limit`, in seconds: then the
    plan is the best found until then, and `is_minimal` says whether it is proven.

    Raises InputError for an unknown method, and ValueError for an invalid problem: steps in an order
    that cannot be executed, a size or scratch that is not a multiple of the alignment, an operand to
    overwrite of another size, or links that contradict each other.
    """
    return plans(problem, (method,), time_limit)[method]


def plans(problem: Problem, methods: Sequence[str], time_limit: float = 10.0) -> dict[str, Plan]:
    """Plan the arena of a problem by several methods, as `plan` does by one.

    The order is searched once, and all plans have the same bound. `time_limit` is in seconds for each
    plan.
    """
    for method in methods:
        if method not in METHODS:
            near = nearest(method, METHODS)
            what = f"no memory planning method is named '{method}'{near}"
            raise InputError(f"{what}: there are {', '.join(METHODS)}")
    _refuse(problem)
    began = monotonic()
    known = _known(problem, time_limit)
    spent = monotonic() - began
    return {method: _planned(problem, known, method, time_limit - spent) for method in methods}


def _planned(problem: Problem, known: _Known, method: str, seconds: float) -> Plan:
    given = tuple(range(len(problem.steps)))
    if method == "no-reuse":
        return _apart(known, live(problem, given))
    if method == "best-fit":
        return _placed(known, live(problem, given), lambda p: p.placed(p.by_start(), best_fit=True))
    if method == "by-size":
        return _placed(known, live(problem, given), lambda p: p.placed(p.by_size(), best_fit=True))
    if method == "reordered":
        return _placed(known, live(problem, known.order), lambda p: quick(p, known.bound))
    return _best(known, problem, monotonic() + seconds)


def _refuse(problem: Problem) -> None:
    unit, sizes = problem.alignment, problem.sizes
    for name, size in zip(problem.names, sizes, strict=True):
        if size % unit:
            raise ValueError(f"{name} has {size} bytes, which is no multiple of {unit}")
    for number, step in enumerate(problem.steps):
        if max(problem.before[number], default=-1) >= number:
            raise ValueError(f"{step.name} stands in front of a step that it waits for")
        if step.scratch % unit:
            raise ValueError(f"{step.name} has scratch that is no multiple of {unit}")
        if step.makes and any(sizes[b] != sizes[step.makes[0]] for b in step.over):
            raise ValueError(f"{step.name} cannot be written over an operand of another size")


def _known(problem: Problem, time_limit: float) -> _Known:
    deadline = monotonic() + time_limit / 2
    ordered = best_order(problem, deadline=deadline)
    lives = live(problem, ordered.order)
    bound, step = ordered.bound, None
    if bound == ordered.peak:
        step = witness(lives, bound)
    else:
        above, step = cut_bound(lives, bound - 1, deadline + time_limit / 4)
        bound = max(bound, above)
    before = sum(problem.sizes[buffer] for buffer in problem.inputs)
    proof = "cut" if step is not None else "total" if bound == before else "search"
    return _Known(ordered.order, bound, proof, step)


def _best(known: _Known, problem: Problem, deadline: float) -> Plan:
    """Return the smallest arena over several orders with the least peak; usually the first has it."""
    best: Plan | None = None
    for lives in _lives(problem, known.order):
        left = deadline - monotonic()
        if best is not None and (best.size == known.bound or left <= 0):
            break
        climb = partial(climbed, goal=lives.peak, deadline=monotonic() + left / 2)
        found = _placed(known, lives, climb)
        if best is None or found.size < best.size:
            best = found
    assert best is not None
    return best


def _lives(problem: Problem, order: Sequence[int]) -> Iterator[Live]:
    first = live(problem, order)
    yield first
    other = live(problem, order, last_operand=True)
    if other.over != first.over:
        yield other
    for seed in range(_MOST_ORDERS):
        yield varied(first, seed)


def _placed(known: _Known, lives: Live, place: Callable[[Packing], list[int]]) -> Plan:
    together = compounds(lives)
    packing = Packing(together.all)
    offsets = place(packing)
    places, scratch = [0] * len(lives.problem.sizes), [0] * len(lives.order)
    for compound, at in zip(together.all, offsets, strict=True):
        for buffer, inside in compound.members:
            places[buffer] = at + inside
        if compound.step is not None:
            scratch[compound.step] = at
    return Plan(
        problem=lives.problem,
        order=lives.order,
        over=together.over,
        offsets=tuple(places),
        scratch=tuple(scratch),
        size=packing.height(offsets),
        bound=known.bound,
        proof=known.proof,
        witness=known.witness,
    )


def _apart(known: _Known, lives: Live) -> Plan:
    """Return a plan without reuse: only the scratch of different steps shares bytes."""
    alone = replace(lives, over=(None,) * len(lives.over))

    def placed(packing: Packing) -> list[int]:
        offsets, end = [], 0
        for compound in packing.compounds:
            offsets.append(end)
            end += compound.size if compound.step is None else 0
        return offsets

    return _placed(known, alone, placed)
