"""Search for the order with the least peak, segment by segment, with a lower bound on all peaks."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import heappop, heappush
from math import inf
from random import Random

from byoc._dataclasses import dataclass, replace
from byoc.errors import InputError, suggest_nearest
from byoc.memory.arena._arena_problem import (
    ArenaPlan,
    ArenaProblem,
    LiveRanges,
    find_live_ranges,
)
from byoc.memory.arena._packing import (
    GreedyPacking,
    build_compounds,
    place_quickly,
    search_offsets,
)
from byoc.memory.arena._segments import (
    Backward,
    Direction,
    Forward,
    Segment,
    State,
    find_cut_bound,
    find_least_bytes_at,
    find_witness,
    split_segments,
)
from byoc.numerics import SearchBudget

_MAX_STATES = 20_000  # sets of executed steps in one search
_MAX_DOUBTS = 4  # searches of a segment that may end without an answer


@dataclass(frozen=True)
class OrderResult:
    """An order, its peak, and a lower bound on the peak of any order, in bytes."""

    order: tuple[int, ...]
    peak: int
    bound: int


def find_best_order(
    problem: ArenaProblem, most_states: int = _MAX_STATES, limit: SearchBudget | None = None
) -> OrderResult:
    """Return an order of the steps with the least peak found.

    The search visits at most `most_states` states for each segment and size, and ends when its budget
    `limit` is spent; then the order may not be optimal, and `bound` is what is proven.
    """
    limit = limit or SearchBudget()
    floor = sum(problem.sizes[buffer] for buffer in problem.inputs)
    order: list[int] = []
    bound = floor
    for segment in split_segments(problem):
        within = max([bound, *_own_bytes(segment)])
        walked, proven = _order_segment(segment, within, most_states, limit)
        bound = max(bound, proven)
        order += [segment.start + step for step in walked]
    return OrderResult(tuple(order), find_live_ranges(problem, order).peak, bound)


def _own_bytes(segment: Segment) -> Iterator[int]:
    """Yield for each step the bytes that its own operands and results need, in any order."""
    items = segment.items
    for reads, makes, over, scratch in zip(
        segment.reads, segment.makes, segment.may_overwrite, segment.scratch, strict=True
    ):
        shared = items[makes[0]].size if over and makes else 0
        yield scratch - shared + sum(items[i].size for i in (*reads, *makes))


def _order_segment(
    segment: Segment, proven: int, most_states: int, limit: SearchBudget
) -> tuple[tuple[int, ...], int]:
    """Return the steps of a segment in order, and a proven lower bound on their peak."""
    forward, backward = Forward(segment), Backward(segment)
    best = tuple(range(segment.count))
    (high, _), low = _find_peak(forward, best), proven
    budget, doubts = proven, 0
    while low < high and doubts < _MAX_DOUBTS:
        answer = search_order(forward, backward, budget, most_states, limit)
        if answer.steps is not None:
            best = answer.steps
            peak, highest = _find_peak(forward, best)
            high = max(proven, peak)
            cut = min(high, find_least_bytes_at(segment, highest))
            if cut > low:
                low = proven = budget = cut  # most often no order needs more than that
                continue
        elif answer.next_budget is not None:
            low = proven = int(min(answer.next_budget, high))
        else:
            low, doubts = budget + 1, doubts + 1
        budget = (low + high) // 2
    return best, proven


def _find_peak(forward: Forward, steps: tuple[int, ...]) -> tuple[int, int]:
    """Return the peak of a sequence of steps and the step at which it occurs."""
    needed, now, state = [], forward.start, 0
    for step in steps:
        needed.append((now + forward.extra(step, state), step))
        now += forward.change(step, state)
        state |= 1 << step
    return max(needed)


_ROUNDS = 16  # of swaps for one variant


def vary_order(lives: LiveRanges, seed: int) -> LiveRanges:
    """Return another order without a higher peak, by swapping independent neighbouring steps.

    The same seed gives the same order; it may be the given one.
    """
    random = Random(seed)
    for _ in range(_ROUNDS):
        order = list(lives.order)
        for _ in range(max(1, len(order) // 4)):
            if len(order) < 2:
                break
            at = random.randrange(len(order) - 1)
            if order[at] not in lives.problem.predecessors[order[at + 1]]:
                order[at], order[at + 1] = order[at + 1], order[at]
        tried = find_live_ranges(lives.problem, order, last_operand=random.random() < 0.5)
        if tried.peak <= lives.peak:
            lives = tried
    return lives


# Search for an order of a segment within a budget of bytes, over sets of executed steps.
#
# One property keeps the number of states small. Live bytes are a submodular function of the set of
# executed steps, and the additional bytes of a step shrink as the set grows (see `Direction`).
#
# Take a state and a chain of steps, each made ready by the one before, that ends with no more live
# bytes than the state has and stays within the budget; let it be the shortest such prefix. If any
# path from the state stays within the budget, so does one that begins with the chain: remove the
# steps of the chain from the path, and none of its states has more live bytes than before. So the
# chain is executed at once and no alternative is tried. A single step that does not increase live
# bytes is the shortest such chain.
#
# The property holds in both directions. The search first follows chains from the beginning, then
# from the end, and explores only the steps in between.

_LONGEST_CHAIN = 64  # steps that are taken at once
_FIRST_STATES = 100  # the limit that is raised until a search is complete
# The seconds that a state takes for each step that is ready.
_SECONDS_OF_STATE = 4e-5


@dataclass(frozen=True)
class OrderState:
    """A state of the search: executed steps, live bytes, and the steps that are ready."""

    state: State
    live: int
    ready: tuple[int, ...]


@dataclass(frozen=True)
class OrderSearchResult:
    """The result of a search: the steps in order, or None and the smallest budget worth trying.

    `next_budget` is None if the search was not finished.
    """

    steps: tuple[int, ...] | None
    next_budget: float | None = None


class SegmentWalker:
    """Executes steps of `inside` in one direction, within a budget."""

    def __init__(self, way: Direction, budget: int, inside: State) -> None:
        """Take a direction through a segment, a budget in bytes and the steps allowed."""
        self._way, self._budget, self._inside = way, budget, inside
        self.least_blocked: float = inf
        """The least bytes, above the budget, that a step would have needed where it was free."""

    def start_state(self) -> OrderState:
        """Return the state in which no step is executed."""
        free = (s for s, needs in enumerate(self._way.needs) if not needs)
        return OrderState(0, self._way.start, tuple(s for s in free if self._inside >> s & 1))

    def fits(self, place: OrderState, step: int) -> bool:
        """Tell whether a ready step stays within the budget."""
        needed = place.live + self._way.extra(step, place.state)
        if needed > self._budget:
            self.least_blocked = min(self.least_blocked, needed)
        return needed <= self._budget

    def walk(self, place: OrderState, step: int) -> OrderState:
        """Execute a ready step."""
        state = place.state | 1 << step
        freed = self._newly_ready(step, state)
        return OrderState(
            state,
            place.live + self._way.change(step, place.state),
            (*(s for s in place.ready if s != step), *freed),
        )

    def follow_chains(self, place: OrderState) -> tuple[OrderState, list[int]]:
        """Execute all chains that need no alternative; return the state reached and the steps."""
        walked: list[int] = []
        going = True
        while going:
            going = False
            for step in place.ready:
                chain = self._find_chain(place, step)
                if chain:
                    for each in chain:
                        place = self.walk(place, each)
                    walked += chain
                    going = True
                    break
        return place, walked

    def _newly_ready(self, step: int, state: State) -> list[int]:
        needs, inside = self._way.needs, self._inside
        return [s for s in self._way.frees[step] if inside >> s & 1 and not needs[s] & ~state]

    def _find_chain(self, place: OrderState, step: int) -> list[int]:
        """Return a chain that begins with `step` and does not increase live bytes, or no steps."""
        way, budget = self._way, self._budget
        state, live, chain = place.state, place.live, [step]
        needed = live + way.extra(step, state)
        if needed > budget:
            self.least_blocked = min(self.least_blocked, needed)
            return []
        while len(chain) <= _LONGEST_CHAIN:
            live += way.change(step, state)
            if live <= place.live:
                return chain
            state |= 1 << step
            within = [s for s in self._newly_ready(step, state) if live + way.extra(s, state) <= budget]
            if not within:
                return []
            # Of several, the one that leaves least: any would be right.
            step = min(within, key=lambda s: way.change(s, state))
            chain.append(step)
        return []


def search_order(
    forward: Direction, backward: Direction, budget: int, most_states: int, limit: SearchBudget
) -> OrderSearchResult:
    """Search for an order of all steps within a budget.

    If there is none, `next_budget` is the smallest budget that may have one. The search gives up after
    `most_states` states in each direction, and when its budget is spent.
    """
    everything = (1 << len(forward.needs)) - 1
    front = SegmentWalker(forward, budget, everything)
    begun, first = front.follow_chains(front.start_state())
    back = SegmentWalker(backward, budget, everything & ~begun.state)
    ended, last = back.follow_chains(back.start_state())
    middle = everything & ~ended.state
    if begun.state == middle:
        return OrderSearchResult((*first, *reversed(last)))
    inside = middle & ~begun.state
    outside = min(front.least_blocked, back.least_blocked)
    for most in _growing_limits(most_states):
        for way, start, goal in ((forward, begun, middle), (backward, ended, ended.state | inside)):
            found = _explore(SegmentWalker(way, budget, goal), start, goal, (most, limit))
            if found.steps is not None:
                between = found.steps if way is forward else tuple(reversed(found.steps))
                return OrderSearchResult((*first, *between, *reversed(last)))
            if found.next_budget is not None:
                return OrderSearchResult(None, min(outside, found.next_budget))
    return OrderSearchResult(None)


def _growing_limits(most_states: int) -> Iterator[int]:
    """Yield growing limits: one direction may need few states where the other needs very many."""
    limit = _FIRST_STATES
    while limit < most_states:
        yield limit
        limit *= 4
    yield most_states


def _explore(
    walker: SegmentWalker, start: OrderState, goal: State, limits: tuple[int, SearchBudget]
) -> OrderSearchResult:
    """Explore states, those with the fewest live bytes and the most executed steps first."""
    parents: dict[State, tuple[State, tuple[int, ...]]] = {start.state: (start.state, ())}
    start = OrderState(start.state, start.live, tuple(s for s in start.ready if goal >> s & 1))
    waiting: list[tuple[int, int, int, OrderState]] = [(start.live, 0, 0, start)]
    while waiting:
        if len(parents) > limits[0] or limits[1].is_spent:
            return OrderSearchResult(None)
        *_, place = heappop(waiting)
        limits[1].spend(_SECONDS_OF_STATE * (1 + len(place.ready)))
        for step in place.ready:
            if not walker.fits(place, step):
                continue
            reached, walked = walker.follow_chains(walker.walk(place, step))
            if reached.state in parents:
                continue
            parents[reached.state] = (place.state, (step, *walked))
            if reached.state == goal:
                return OrderSearchResult(tuple(_trace_steps(parents, goal)))
            heappush(waiting, (reached.live, -reached.state.bit_count(), len(parents), reached))
    return OrderSearchResult(None, walker.least_blocked)


def _trace_steps(parents: dict[State, tuple[State, tuple[int, ...]]], state: State) -> Iterator[int]:
    pieces: list[tuple[int, ...]] = []
    while parents[state][1]:
        state, walked = parents[state]
        pieces.append(walked)
    for walked in reversed(pieces):
        yield from walked


# Planning of an arena: an order of the steps, offsets, and a lower bound on its size.

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
