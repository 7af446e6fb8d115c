"""Whether a plan is right, from first principles: no code is shared with what made it.

`check` replays the order byte by byte; `check_bound` has the proof behind the bound.
"""

from collections.abc import Iterable, Iterator
from itertools import combinations, pairwise

from checkers.bound_check import refuted

from byoc.memory.arena import ArenaPlan, Buffer


def check(plan: ArenaPlan) -> list[str]:
    """Return what is wrong with a plan, a sentence each; empty where it is right.

    A bound that is proven by a search is searched again within a limit of states; one that takes more is
    taken on trust here, and `check_bound.refuted` tells.
    """
    order = _order_faults(plan)
    if order:
        return order
    problems = [*_place_faults(plan), *_over_faults(plan), *_link_faults(plan), *_meetings(plan)]
    if plan.bound > plan.size:
        problems.append(f"the arena has {plan.size} bytes, less than the bound of {plan.bound}")
    return problems + refuted(plan).reasons


def _order_faults(plan: ArenaPlan) -> list[str]:
    steps = plan.problem.steps
    if sorted(plan.order) != list(range(len(steps))):
        return ["the order does not hold each step once"]
    there, ran, faults = set(plan.problem.inputs), set[int](), []
    for number in plan.order:
        step = steps[number]
        faults += [f"{step.name} runs before {steps[s].name}" for s in step.after if s not in ran]
        for buffer in step.reads:
            if buffer not in there:
                faults.append(f"{step.name} reads {plan.problem.names[buffer]} before it is made")
        there |= set(step.writes)
        ran.add(number)
    return faults


def _place_faults(plan: ArenaPlan) -> Iterator[str]:
    problem = plan.problem
    places = [*zip(problem.names, plan.offsets, problem.sizes, strict=True)]
    for step, at in zip(problem.steps, plan.scratch, strict=True):
        places.append((f"scratch of {step.name}", at, step.scratch))
    for name, at, size in places:
        if at < 0 or at + size > plan.size:
            yield f"{name} lies at bytes {at} to {at + size}, outside of the arena"
        if at % problem.alignment:
            yield f"{name} lies at byte {at}, which is no multiple of {problem.alignment}"


def _over_faults(plan: ArenaPlan) -> Iterator[str]:
    problem = plan.problem
    last = _last_reads(plan)
    for buffer, under in enumerate(plan.overwrites):
        if under is None:
            continue
        pair = f"{problem.names[buffer]} over {problem.names[under]}"
        maker = next((s for s, step in enumerate(problem.steps) if buffer in step.writes), None)
        if maker is None or under not in problem.steps[maker].may_overwrite:
            yield f"{pair}: the step does not allow it"
        elif problem.steps[maker].writes[0] != buffer:
            yield f"{pair}: only what a step makes first is written over an operand"
        elif last[under] != plan.order.index(maker):
            yield f"{pair}: that is still needed later"
        if plan.offsets[buffer] != plan.offsets[under]:
            yield f"{pair}: they lie at different places"
        if problem.sizes[buffer] != problem.sizes[under]:
            yield f"{pair}: they have different sizes"


def _link_faults(plan: ArenaPlan) -> Iterator[str]:
    problem = plan.problem
    for row in problem.links:
        for left, right in pairwise(row):
            if plan.offsets[right] != plan.offsets[left] + problem.sizes[left]:
                yield f"{problem.names[right]} does not lie right behind {problem.names[left]}"


def _last_reads(plan: ArenaPlan) -> dict[Buffer, int]:
    """Return the position at which each buffer is read last; behind the end for an output."""
    last: dict[Buffer, int] = {}
    for at, number in enumerate(plan.order):
        last |= dict.fromkeys(plan.problem.steps[number].reads, at)
    return last | dict.fromkeys(plan.problem.outputs, len(plan.order))


def _meetings(plan: ArenaPlan) -> Iterable[str]:
    """Return the pairs whose bytes overlap while both are needed, a sentence for each."""
    problem = plan.problem
    last = _last_reads(plan)
    there = set(problem.inputs)
    found: dict[str, None] = dict.fromkeys(_overlaps(_bytes(plan, there), set()))
    for at, number in enumerate(plan.order):
        step = problem.steps[number]
        there = {buffer for buffer in there if last.get(buffer, -1) >= at} | set(step.writes)
        row = _bytes(plan, there)
        if step.scratch:
            scratch = plan.scratch[number]
            row.append((scratch, scratch + step.scratch, f"scratch of {step.name}", -1))
        over = {step.writes[0], plan.overwrites[step.writes[0]]} if step.writes else set()
        found |= dict.fromkeys(_overlaps(row, over))
    return found


def _bytes(plan: ArenaPlan, buffers: set[Buffer]) -> list[tuple[int, int, str, Buffer]]:
    problem = plan.problem
    return [
        (plan.offsets[b], plan.offsets[b] + problem.sizes[b], problem.names[b], b)
        for b in buffers
        if problem.sizes[b]
    ]


def _overlaps(row: list[tuple[int, int, str, Buffer]], over: set[Buffer | None]) -> Iterator[str]:
    """Yield a sentence for each two that share bytes, except for the two that may (`_over_faults`)."""
    for one, other in combinations(sorted(row), 2):
        if other[0] < one[1] and {one[3], other[3]} != over:
            yield f"{one[2]} and {other[2]} overlap while both are needed"
