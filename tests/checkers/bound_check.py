"""Whether no arena can be below a plan's bound, worked out anew: no code is shared with the planner."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from byoc.memory.arena import ArenaPlan, ArenaProblem, Buffer

_MAX_STATES = 100_000


@dataclass(frozen=True)
class Proof:
    """What came of checking a bound: reasons against it, and whether the check was finished."""

    reasons: list[str]
    is_checked: bool = True


def refuted(plan: ArenaPlan, most_states: int = _MAX_STATES) -> Proof:
    """Check the proof that a plan names; a search gives up at `most_states` sets of steps."""
    proofs: dict[str, Callable[[ArenaPlan], Proof]]
    proofs = {"total": _total, "cut": _cut, "search": lambda it: _search(it, most_states)}
    if plan.proof not in proofs:
        return Proof([f"there is no proof called {plan.proof}"])
    return proofs[plan.proof](plan)


def _total(plan: ArenaPlan) -> Proof:
    before = sum(plan.problem.sizes[buffer] for buffer in plan.problem.inputs)
    wrong = f"the inputs have {before} bytes together, the bound says {plan.bound}"
    return Proof([] if plan.bound == before else [wrong])


def _cut(plan: ArenaPlan) -> Proof:
    if plan.witness is None:
        return Proof(["the plan does not say at which step the cut is"])
    cut = _Around(plan.problem, plan.witness).fewest()
    name = plan.problem.steps[plan.witness].name
    wrong = f"while {name} runs {cut} bytes can be enough, the bound says {plan.bound}"
    return Proof([] if cut == plan.bound else [wrong])


def _search(plan: ArenaPlan, most_states: int) -> Proof:
    if sum(plan.problem.sizes[buffer] for buffer in plan.problem.inputs) >= plan.bound:
        return Proof([])
    below = _order_below(plan.problem, plan.bound, most_states)
    if below is None:
        return Proof([], is_checked=False)
    return Proof([f"there is an order that needs less than the bound of {plan.bound}"] if below else [])


class _Around:
    """The steps around one of them, and what can have run before it does."""

    def __init__(self, problem: ArenaProblem, step: int) -> None:
        self._problem, self._step = problem, step
        self._late = {step}
        for number, before in enumerate(problem.predecessors):  # in an order in which they can run
            if before & self._late:
                self._late.add(number)

    def fewest(self) -> int:
        """Return the fewest bytes with which the step can run, over all that may have run before."""
        problem, step = self._problem, self._problem.steps[self._step]
        made = step.scratch + sum(problem.sizes[b] for b in step.writes)
        found = [made + self._live(set())]
        for operand in step.may_overwrite if step.writes else ():
            others = set(problem.readers[operand]) - {self._step}
            if operand not in problem.outputs and not others & self._late:
                found.append(made - problem.sizes[operand] + self._live(others))
        return min(found)

    def _live(self, early: set[int]) -> int:
        """Return the fewest bytes live where the step can run next, and `early` have run."""
        problem, sizes = self._problem, self._problem.sizes
        flow = _Flow()
        flow.join(self._step, "waits", math.inf)
        for number in early | problem.predecessors[self._step]:
            flow.join("ran", number, math.inf)
        for number, before in enumerate(problem.predecessors):
            for other in before:
                flow.join(number, other, math.inf)
        for buffer, maker in enumerate(problem.maker):
            alive = ("alive", buffer)
            flow.join("ran" if maker < 0 else maker, alive, sizes[buffer])
            for reader in problem.readers[buffer]:
                flow.join(alive, reader, math.inf)
            if buffer in problem.outputs:
                flow.join(alive, "waits", math.inf)
        return flow.most()


class _Flow:
    """The most that flows from "ran" to "waits", by augmenting shortest ways."""

    def __init__(self) -> None:
        self._room: dict[object, dict[object, float]] = {"ran": {}, "waits": {}}

    def join(self, tail: object, head: object, room: float) -> None:
        """Let `room` flow from tail to head; joins of the same two add up."""
        rooms = self._room.setdefault(tail, {})
        rooms[head] = rooms.get(head, 0) + room
        self._room.setdefault(head, {}).setdefault(tail, 0)

    def most(self) -> int:
        total = 0
        while way := self._way():
            pushed = min(self._room[tail][head] for tail, head in way)
            for tail, head in way:
                self._room[tail][head] -= pushed
                self._room[head][tail] += pushed
            total += int(pushed)
        return total

    def _way(self) -> list[tuple[object, object]]:
        """Return the edges of a shortest way that has room, the last first; none without one."""
        came: dict[object, object] = {"ran": None}
        todo: list[object] = ["ran"]
        for node in todo:
            for head, room in self._room[node].items():
                if room and head not in came:
                    came[head] = node
                    todo.append(head)
        way: list[tuple[object, object]] = []
        at: object = "waits"
        while (tail := came.get(at)) is not None:
            way.append((tail, at))
            at = tail
        return way


def _order_below(problem: ArenaProblem, bound: int, most_states: int) -> bool | None:
    """Tell whether some order needs less than the bound, None where that takes too many states.

    A step that leaves no more than was there, and fits, is run at once: running it earlier than some
    order does never makes that order need more.
    """
    walk = _Walk(problem)
    everything = (1 << len(problem.steps)) - 1
    seen = {0}
    todo = [(0, sum(problem.sizes[b] for b in problem.inputs if walk.is_live(b, 0)))]
    while todo:
        ran, live = todo.pop()
        if ran == everything:
            return True
        if len(seen) > most_states:
            return None
        fitting = [s for s in walk.ready(ran) if live + walk.more(ran, s) < bound]
        at_once = next((step for step in fitting if walk.change(ran, step) <= 0), None)
        for step in fitting if at_once is None else [at_once]:
            after = ran | 1 << step
            if after not in seen:
                seen.add(after)
                todo.append((after, live + walk.change(ran, step)))
    return False


class _Walk:
    """What is ready, needed and left at sets of steps that have run; a set is a bit for each step."""

    def __init__(self, problem: ArenaProblem) -> None:
        self._problem = problem
        self._before = [sum(1 << other for other in before) for before in problem.predecessors]
        self._readers = [sum(1 << reader for reader in readers) for readers in problem.readers]

    def ready(self, ran: int) -> list[int]:
        """Return the steps that can run next."""
        return [s for s, before in enumerate(self._before) if not ran >> s & 1 and not before & ~ran]

    def more(self, ran: int, number: int) -> int:
        """Return the bytes that are there while a step runs beside those that were there before."""
        sizes, step = self._problem.sizes, self._problem.steps[number]
        after = ran | 1 << number
        dies = bool(step.writes) and any(not self.is_live(b, after) for b in step.may_overwrite)
        return step.scratch + sum(sizes[b] for b in step.writes[dies:])

    def change(self, ran: int, number: int) -> int:
        """Return how many bytes more are there after a step."""
        sizes, step = self._problem.sizes, self._problem.steps[number]
        after = ran | 1 << number
        made = sum(sizes[b] for b in step.writes if self.is_live(b, after))
        return made - sum(sizes[b] for b in set(step.reads) if not self.is_live(b, after))

    def is_live(self, buffer: Buffer, ran: int) -> bool:
        """Tell whether a buffer that has been made is still needed."""
        return buffer in self._problem.outputs or bool(self._readers[buffer] & ~ran)
