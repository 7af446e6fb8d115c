"""Choice among overlapping fusions for given labels and regions."""

import numpy as np

from byoc.placement._form_regions import is_contraction_acyclic
from byoc.placement._problem import Ints, Problem

# Up to so many candidates are searched exhaustively: at most 2**12 choices.
_MAX_CANDIDATES = 12


def choose_fusions(problem: Problem, labels: Ints, regions: Ints) -> tuple[int, ...]:
    """Return the fusions that save most: disjoint, each in one region, acyclic together.
    Optimal if at most 12 candidates depend on one another (weighted set packing, NP-hard); for more,
    greedy by saving per member (Hurkens and Schrijver, SIAM Journal on Discrete Mathematics 2, 1989:
    within a factor of the number of members).
    """
    open_to = [
        number
        for number, fusion in enumerate(problem.fusions)
        if fusion.saving > 0
        and (labels[list(fusion.members)] == fusion.device).all()
        and not np.ptp(regions[list(fusion.members)])
    ]
    if not open_to:
        return ()
    groups = _group_overlapping(problem, open_to)
    chosen = sorted(number for group in groups for number in _choose(problem, group))
    if are_fusions_acyclic(problem, chosen):
        return tuple(chosen)
    if len(open_to) <= _MAX_CANDIDATES:
        return tuple(sorted(_choose(problem, open_to, acyclic=True)))
    return tuple(sorted(_choose_greedily(problem, chosen, acyclic=True)))


def are_fusions_acyclic(problem: Problem, chosen: list[int]) -> bool:
    """Return whether the graph stays acyclic when each chosen fusion is contracted to one node."""
    groups = np.full(problem.units, -1, np.int64)
    for place, number in enumerate(chosen):
        groups[list(problem.fusions[number].members)] = place
    return is_contraction_acyclic(problem, groups)


def _group_overlapping(problem: Problem, numbers: list[int]) -> list[list[int]]:
    """Group fusions that share members, directly or through other fusions."""
    group_of: dict[int, list[int]] = {}
    for number in numbers:
        met = {id(group_of[m]): group_of[m] for m in problem.fusions[number].members if m in group_of}
        merged = sorted([number, *(other for group in met.values() for other in group)])
        for other in merged:
            for member in problem.fusions[other].members:
                group_of[member] = merged
    return list({id(group): group for group in group_of.values()}.values())


def _choose(problem: Problem, numbers: list[int], acyclic: bool = False) -> list[int]:
    if len(numbers) > _MAX_CANDIDATES:
        return _choose_greedily(problem, numbers, acyclic)
    order = sorted(numbers, key=lambda number: (-problem.fusions[number].saving, number))
    rest = [sum(problem.fusions[number].saving for number in order[i:]) for i in range(len(order) + 1)]
    best: tuple[float, list[int]] = (0.0, [])

    def search(place: int, taken: list[int], members: frozenset[int], saved: float) -> None:
        nonlocal best
        if saved > best[0]:
            best = saved, taken
        if place == len(order) or saved + rest[place] <= best[0]:
            return
        fusion = problem.fusions[order[place]]
        if members.isdisjoint(fusion.members):
            more = [*taken, order[place]]
            if not acyclic or are_fusions_acyclic(problem, more):
                search(place + 1, more, members.union(fusion.members), saved + fusion.saving)
        search(place + 1, taken, members, saved)

    search(0, [], frozenset(), 0.0)
    return best[1]


def _choose_greedily(problem: Problem, numbers: list[int], acyclic: bool) -> list[int]:
    def worth(number: int) -> tuple[float, int]:
        fusion = problem.fusions[number]
        return -fusion.saving / len(fusion.members), number

    chosen: list[int] = []
    members: set[int] = set()
    for number in sorted(numbers, key=worth):
        if not members.isdisjoint(problem.fusions[number].members):
            continue
        if acyclic and not are_fusions_acyclic(problem, [*chosen, number]):
            continue
        chosen.append(number)
        members.update(problem.fusions[number].members)
    return chosen
