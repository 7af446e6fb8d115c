"""A plan of a model as two levels: what moves between a scratchpad of a given size and system memory."""

from byoc.memory.levels import Access, Levels, Schedule, Turn, plan_levels
from byoc.memory.problem import Plan

# What is not kept in the scratchpad is streamed through a piece of it: a part of it, and at most so
# many bytes.
_PART, _MOST = 16, 4096


def two_levels(plan: Plan, size: int, seconds: float = 5.0) -> Levels:
    """Return what a plan's order moves with a scratchpad of `size` bytes, as few bytes as was found.

    Each step reads its operands and writes its results in the scratchpad, or streams them through a
    sixteenth of it (at most 4 KiB), once. Weights are not counted. Raises InputError where a step does
    not fit.
    """
    unit = plan.problem.alignment
    piece = max(min(size // _PART, _MOST) // unit, 1) * unit
    return plan_levels(schedule(plan, piece), size, seconds=seconds)


def schedule(plan: Plan, piece: int) -> Schedule:
    """Return a plan's steps in their order, with what each touches, `piece` bytes at a time or whole.

    Raises ValueError for a problem in which buffers have to lie in rows.
    """
    problem = plan.problem
    if problem.links:
        raise ValueError("a Concat in place has no plan for two levels")
    used = [buffer for buffer, size in enumerate(problem.sizes) if size]
    number = {buffer: place for place, buffer in enumerate(used)}

    def access(buffer: int, writes: bool) -> Access:
        return Access(number[buffer], writes, staging=min(problem.sizes[buffer], piece))

    turns = []
    for step in (problem.steps[place] for place in plan.order):
        over = [(step.makes[0], under) for under in step.over if step.makes[0] in number]
        turns.append(
            Turn(
                name=step.name,
                accesses=(
                    *(access(b, False) for b in dict.fromkeys(step.reads) if b in number),
                    *(access(b, True) for b in step.makes if b in number),
                ),
                staging=_rounded(step.scratch, problem.alignment),
                over=tuple((number[one], number[other]) for one, other in over),
            )
        )
    return Schedule(
        names=tuple(problem.names[buffer] for buffer in used),
        sizes=tuple(problem.sizes[buffer] for buffer in used),
        turns=tuple(turns),
        inputs=frozenset(number[b] for b in problem.inputs if b in number),
        outputs=frozenset(number[b] for b in problem.outputs if b in number),
        alignment=problem.alignment,
    )


def _rounded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
