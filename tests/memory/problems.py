"""Random problems, and what the best answer to a small one is, by trying everything."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations

from hypothesis import strategies as st

from byoc.memory.arena import ArenaProblem, ArenaStep


def random_problem(
    seed: int, steps: int, *, near: int = 4, alignment: int = 1, extras: bool = True
) -> ArenaProblem:
    """Steps that read some of what the `near` ones before them made; `extras`: everything else too."""
    rng = random.Random(seed)
    sizes: list[int] = []
    made: list[list[int]] = []

    def buffer(size: int | None = None) -> int:
        sizes.append(alignment * rng.randint(1, 6) if size is None else size)
        return len(sizes) - 1

    inputs = [buffer() for _ in range(rng.randint(0, 2))]
    made.append(inputs)
    built: list[ArenaStep] = []
    for number in range(steps):
        around = [b for group in made[-near:] for b in group]
        reads = tuple(sorted(rng.sample(around, min(len(around), rng.choice([0, 1, 1, 2, 3])))))
        over: tuple[int, ...] = ()
        if extras and reads and rng.random() < 0.4:
            size = sizes[reads[0]]
            makes = [buffer(size), *(buffer() for _ in range(rng.choice([0, 0, 1])))]
            over = tuple(b for b in reads if sizes[b] == size)
        else:
            makes = [buffer() for _ in range(rng.choice([0, 1, 1, 1, 2]) if extras else 1)]
        scratch = alignment * rng.randint(1, 4) if extras and rng.random() < 0.2 else 0
        after = (rng.randrange(number),) if extras and number and rng.random() < 0.1 else ()
        built.append(ArenaStep(f"s{number}", reads, tuple(makes), over, scratch, after))
        made.append(makes)
    read = {b for step in built for b in step.reads}
    outputs = {b for b in range(len(sizes)) if b not in read and rng.random() < 0.7}
    outputs |= {b for b in range(len(sizes)) if extras and rng.random() < 0.1}
    names = tuple(f"b{number}" for number in range(len(sizes)))
    return ArenaProblem(
        names, tuple(sizes), tuple(built), frozenset(inputs), frozenset(outputs), (), alignment
    )


def problems(most_steps: int = 7) -> st.SearchStrategy[ArenaProblem]:
    """Small problems with everything in them but links."""
    return st.builds(
        random_problem,
        st.integers(0, 2**32),
        st.integers(0, most_steps),
        near=st.integers(1, 6),
        alignment=st.sampled_from([1, 16]),
    )


def orders(problem: ArenaProblem) -> Iterator[tuple[int, ...]]:
    """Every order in which the steps can run."""
    before = [
        {problem.maker[b] for b in step.reads if problem.maker[b] >= 0} | set(step.after)
        for step in problem.steps
    ]
    for order in permutations(range(len(problem.steps))):
        done: set[int] = set()
        for step in order:
            if not before[step] <= done:
                break
            done.add(step)
        else:
            yield order


def peak(problem: ArenaProblem, order: tuple[int, ...]) -> int:
    """The most bytes there while a step runs, counted as memory's definition says, buffer by buffer."""
    most = sum(problem.sizes[b] for b in problem.inputs)
    for at, number in enumerate(order):
        step, done, later = problem.steps[number], order[:at], order[at + 1 :]
        there = set(problem.inputs) | {b for s in done for b in problem.steps[s].writes}
        here = {b for s in (number, *later) for b in problem.steps[s].reads} | problem.outputs
        still = {b for s in later for b in problem.steps[s].reads} | problem.outputs
        alive = (there & here) | set(step.writes)
        taken = problem.sizes[step.writes[0]] if step.writes and set(step.may_overwrite) - still else 0
        most = max(most, sum(problem.sizes[b] for b in alive) - taken + step.scratch)
    return most


def least_peak(problem: ArenaProblem) -> int:
    """LB*: the least peak of all orders."""
    return min(peak(problem, order) for order in orders(problem))


def fewest_bytes_at(problem: ArenaProblem, step: int) -> int:
    """The fewest bytes with which a step can run, over all sets of steps that may have run before."""
    count = len(problem.steps)
    found = []
    for ran in range(1 << count):
        done = {s for s in range(count) if ran >> s & 1}
        if step in done or not all(problem.predecessors[s] <= done for s in {step, *done}):
            continue
        made = {b for b, maker in enumerate(problem.maker) if maker < 0 or maker in done}
        there = {b for b in made if b in problem.outputs or set(problem.readers[b]) - done}
        still = {b for b in there if b in problem.outputs or set(problem.readers[b]) - done - {step}}
        makes = problem.steps[step].writes
        shared = makes[:1] if set(problem.steps[step].may_overwrite) - still else ()
        bytes_there = sum(problem.sizes[b] for b in (*there, *makes))
        found.append(bytes_there - sum(problem.sizes[b] for b in shared) + problem.steps[step].scratch)
    return min(found)


def linked(problem: ArenaProblem, seed: int) -> ArenaProblem:
    """The same with up to two rows of buffers that have to lie side by side."""
    rng = random.Random(seed)
    buffers = rng.sample(range(len(problem.sizes)), len(problem.sizes))
    rows, at = [], 0
    for length in rng.sample([2, 2, 3], 2):
        rows.append(tuple(buffers[at : at + length]))
        at += length
    return replace(problem, links=tuple(row for row in rows if len(row) > 1))


def chain(*sizes: int, over: bool = False) -> ArenaProblem:
    """An input of the first size, and a step for each other size that reads what the one before made."""
    names = tuple(f"b{at}" for at in range(len(sizes)))
    steps = tuple(
        ArenaStep(f"s{at}", (at,), (at + 1,), (at,) if over and sizes[at] == sizes[at + 1] else ())
        for at in range(len(sizes) - 1)
    )
    return ArenaProblem(names, sizes, steps, frozenset({0}), frozenset({len(sizes) - 1}))


def branches(count: int, longest: int = 6) -> ArenaProblem:
    """A step whose result `count` branches of unequal length and sizes read, and one that joins them."""
    rng = random.Random(count)
    sizes, steps, ends = [1000, 900], [ArenaStep("fork", (0,), (1,))], []
    for branch in range(count):
        last = 1
        for depth in range(rng.randint(1, longest)):
            sizes.append(rng.randint(10, 900))
            steps.append(ArenaStep(f"s{branch}_{depth}", (last,), (len(sizes) - 1,)))
            last = len(sizes) - 1
        ends.append(last)
    sizes.append(500)
    steps.append(ArenaStep("join", tuple(ends), (len(sizes) - 1,)))
    names = tuple(f"b{at}" for at in range(len(sizes)))
    outputs = frozenset({len(sizes) - 1})
    return ArenaProblem(names, tuple(sizes), tuple(steps), frozenset({0}), outputs)


def total_bytes(problem: ArenaProblem) -> int:
    """Return the bytes without any reuse of memory: every buffer has its own offset."""
    return sum(problem.sizes) + max((step.scratch for step in problem.steps), default=0)
