"""Planning of an arena: an order of the steps, offsets, and a lower bound on its size."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from byoc.errors import InputError, suggest_nearest
from byoc.memory.arena._arena_problem import ArenaPlan, ArenaProblem, LiveRanges, find_live_ranges
from byoc.memory.arena._best_order import find_best_order, vary_order
from byoc.memory.arena._packing import GreedyPacking, build_compounds, place_quickly, search_offsets
from byoc.memory.arena._segments import find_cut_bound, find_witness
from byoc.numerics import SearchBudget

METHODS = ("no-reuse", "best-fit", "by-size", "reordered", "exact")
"""The methods of `plan_buffers`: an offset of its own for each buffer; the given order with offsets step
by step or from the largest buffer on; the best order with quick offsets, or with the best ones."""

_MAX_ORDERS = 4  # variants of the order, by seed, beside the two it begins with


@dataclass(frozen=True)
class _OrderAndBound:
    """The order found for a problem, and the lower bound proven for all orders."""

    order: tuple[int, ...]
    bound: int
    proof: str
    witness: int | None


def plan_buffers(problem: ArenaProblem, method: str = "exact", time_limit: float = 10.0) -> ArenaPlan:
    """Plan the arena of a problem. The lower bound belongs to the problem, whatever the method.

    The same problem gives the same plan. `time_limit` is in seconds of an ordinary computer, counted by
    the steps of the search (`SearchBudget`): after that the plan is the best found until then, and
    `is_minimal` says whether it is proven.

    Raises InputError for an unknown method, and ValueError for an invalid problem: steps in an order
    that cannot be executed, a size or scratch that is not a multiple of the alignment, an operand to
    overwrite of another size, or links that contradict each other.
    """
    return plan_by_methods(problem, (method,), time_limit)[method]


def plan_by_methods(
    problem: ArenaProblem, methods: Sequence[str], time_limit: float = 10.0
) -> dict[str, ArenaPlan]:
    """Plan the arena of a problem by several methods, as `plan_buffers` does by one.

    The order is searched once, and all plans have the same bound. `time_limit` is in counted seconds
    for each plan.
    """
    for method in methods:
        if method not in METHODS:
            near = suggest_nearest(method, METHODS)
            what = f"no memory planning method is named '{method}'{near}"
            raise InputError(f"{what}: there are {', '.join(METHODS)}")
    _check_problem(problem)
    common = SearchBudget(time_limit)
    known = _find_order_and_bound(problem, time_limit, common)
    left = common.left
    return {method: _plan_by_method(problem, known, method, left) for method in methods}


def _plan_by_method(
    problem: ArenaProblem, known: _OrderAndBound, method: str, seconds: float
) -> ArenaPlan:
    given = tuple(range(len(problem.steps)))
    if method == "no-reuse":
        return _place_without_reuse(known, find_live_ranges(problem, given))
    if method == "best-fit":
        return _place_buffers(
            known, find_live_ranges(problem, given), lambda p: p.place(p.by_start(), best_fit=True)
        )
    if method == "by-size":
        return _place_buffers(
            known, find_live_ranges(problem, given), lambda p: p.place(p.by_size(), best_fit=True)
        )
    if method == "reordered":
        return _place_buffers(
            known, find_live_ranges(problem, known.order), lambda p: place_quickly(p, known.bound)
        )
    return _find_smallest_plan(known, problem, SearchBudget(seconds))


def _check_problem(problem: ArenaProblem) -> None:
    unit, sizes = problem.alignment, problem.sizes
    for name, size in zip(problem.names, sizes, strict=True):
        if size % unit:
            raise ValueError(f"{name} has {size} bytes, which is no multiple of {unit}")
    for number, step in enumerate(problem.steps):
        if max(problem.predecessors[number], default=-1) >= number:
            raise ValueError(f"{step.name} stands in front of a step that it waits for")
        if step.scratch % unit:
            raise ValueError(f"{step.name} has scratch that is no multiple of {unit}")
        if step.writes and any(sizes[b] != sizes[step.writes[0]] for b in step.may_overwrite):
            raise ValueError(f"{step.name} cannot be written over an operand of another size")


def _find_order_and_bound(
    problem: ArenaProblem, time_limit: float, common: SearchBudget
) -> _OrderAndBound:
    ordered = find_best_order(problem, limit=common.limit(time_limit / 2))
    lives = find_live_ranges(problem, ordered.order)
    bound, step = ordered.bound, None
    if bound == ordered.peak:
        step = find_witness(lives, bound)
    else:
        above, step = find_cut_bound(lives, bound - 1, common.limit(common.left - time_limit / 4))
        bound = max(bound, above)
    before = sum(problem.sizes[buffer] for buffer in problem.inputs)
    proof = "cut" if step is not None else "total" if bound == before else "search"
    return _OrderAndBound(ordered.order, bound, proof, step)


def _find_smallest_plan(known: _OrderAndBound, problem: ArenaProblem, limit: SearchBudget) -> ArenaPlan:
    """Return the smallest arena over several orders with the least peak; usually the first has it."""
    best: ArenaPlan | None = None
    for lives in _candidate_orders(problem, known.order):
        if best is not None and (best.size == known.bound or limit.is_spent):
            break
        climb = partial(search_offsets, goal=lives.peak, limit=limit.limit(limit.left / 2))
        found = _place_buffers(known, lives, climb)
        if best is None or found.size < best.size:
            best = found
    assert best is not None
    return best


def _candidate_orders(problem: ArenaProblem, order: Sequence[int]) -> Iterator[LiveRanges]:
    first = find_live_ranges(problem, order)
    yield first
    other = find_live_ranges(problem, order, last_operand=True)
    if other.overwrites != first.overwrites:
        yield other
    for seed in range(_MAX_ORDERS):
        yield vary_order(first, seed)


def _place_buffers(
    known: _OrderAndBound, lives: LiveRanges, place: Callable[[GreedyPacking], list[int]]
) -> ArenaPlan:
    together = build_compounds(lives)
    packing = GreedyPacking(together.all)
    offsets = place(packing)
    places, scratch = [0] * len(lives.problem.sizes), [0] * len(lives.order)
    for compound, at in zip(together.all, offsets, strict=True):
        for buffer, inside in compound.members:
            places[buffer] = at + inside
        if compound.step is not None:
            scratch[compound.step] = at
    return ArenaPlan(
        problem=lives.problem,
        order=lives.order,
        overwrites=together.overwrites,
        offsets=tuple(places),
        scratch=tuple(scratch),
        size=packing.height(offsets),
        bound=known.bound,
        proof=known.proof,
        witness=known.witness,
    )


def _place_without_reuse(known: _OrderAndBound, lives: LiveRanges) -> ArenaPlan:
    """Return a plan without reuse: only the scratch of different steps shares bytes."""
    alone = replace(lives, overwrites=(None,) * len(lives.overwrites))

    def stack_compounds(packing: GreedyPacking) -> list[int]:
        offsets, end = [], 0
        for compound in packing.compounds:
            offsets.append(end)
            end += compound.size if compound.step is None else 0
        return offsets

    return _place_buffers(known, alone, stack_compounds)
