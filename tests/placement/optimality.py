"""Every strategy against every placement, on random problems of up to 14 units.

As a program, `python tests/placement/optimality.py [problems [first seed [accelerators]]]` examines
1,000 from seed 0 on, or those with at least so many accelerators, and prints a table.
"""

import itertools
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from helpers.placement_random import FEATURES, count_devices, random_problem
from placement_searches import is_contraction_acyclic, restore_order

from byoc.errors import InputError
from byoc.placement import Fusion, Placement, Problem, Strategy, find_violation, order_canonically
from byoc.placement.strategies import (
    AllSupported,
    Exact,
    Exhaustive,
    FasterOps,
    FasterOpsTransfer,
    HostOnly,
    LaunchAware,
    MinCut,
    TreeDP,
)

CHEAP: tuple[Strategy, ...] = (
    HostOnly(), AllSupported(), FasterOps(), FasterOpsTransfer(), TreeDP(), MinCut()
)  # fmt: skip
OPTIMAL: tuple[Strategy, ...] = (Exact(), LaunchAware())
PRICES = LaunchAware(small=0)
TOLERANCE = 1e-9

# How many units can be searched one and all, by accelerators; regions that may be any set take longer.
_MOST = {1: 14, 2: 10, 3: 8, 4: 6}
_MAX_SETS = {1: 9, 2: 8, 3: 6, 4: 5}
_SETS = {"connected", "region size", "fusions"}


@dataclass
class Finding:
    """What was found about one problem; `wrong` is a sentence for each property that is broken."""

    features: frozenset[str]
    optimum: float
    wrong: list[str] = field(default_factory=list)
    gap: float = 0.0
    """Of the bound by prices, as a share of the optimum."""
    worse: float = 0.0
    """What the answer by prices costs more than the optimum, as a share."""


def features_of(seed: int) -> frozenset[str]:
    rng = random.Random(f"features {seed}")
    return frozenset(name for name in FEATURES if rng.random() < 0.35)


def examine(seed: int) -> Finding:
    features = features_of(seed)
    devices = count_devices(features)
    most = (_MAX_SETS if features & _SETS else _MOST)[devices]
    problem = random_problem(seed, most, features)
    best = attempt(Exhaustive(), problem)
    optimum = best.cost.total if best else math.inf
    finding = Finding(features, optimum)
    answers = {strategy.name: attempt(strategy, problem) for strategy in (*CHEAP, *OPTIMAL)}
    answers |= {"exhaustive": best, "prices": attempt(PRICES, problem)}
    for name, answer in answers.items():
        if answer is not None:
            _hold(finding, problem, name, answer)
    for strategy in OPTIMAL:
        answer = answers[strategy.name]
        total = answer.cost.total if answer else math.inf
        if not math.isclose(total, optimum, rel_tol=TOLERANCE):
            finding.wrong.append(f"{strategy.name} gives {total} instead of {optimum}")
        if answer and (answer.bound is None or answer.bound < optimum * (1 - 1e-8)):
            finding.wrong.append(f"{strategy.name} proves {answer.bound} of {optimum}")
    _compare(finding, answers)
    _reorder(finding, problem, seed)
    return finding


def attempt(strategy: Strategy, problem: Problem) -> Placement | None:
    """Return a lawful placement, None where the strategy has none."""
    try:
        placement = strategy.solve(problem)
    except InputError:
        return None
    return placement


def _hold(finding: Finding, problem: Problem, name: str, answer: Placement) -> None:
    if not is_contraction_acyclic(problem, answer.regions):
        finding.wrong.append(f"{name}: regions wait for one another")
    if answer.bound is not None and answer.bound > finding.optimum:
        finding.wrong.append(f"{name}: bound {answer.bound} above the optimum {finding.optimum}")
    broken = find_violation(problem, answer)
    if not broken and answer.cost.total < finding.optimum * (1 - TOLERANCE):
        finding.wrong.append(f"{name}: {answer.cost.total} below the optimum {finding.optimum}")
    if broken and name in {"exhaustive", "prices", *(strategy.name for strategy in OPTIMAL)}:
        finding.wrong.append(f"{name}: {broken}")


def _compare(finding: Finding, answers: dict[str, Placement | None]) -> None:
    by_prices = answers["prices"]
    if by_prices is None or by_prices.bound is None or not finding.optimum:
        return
    finding.gap = 1 - by_prices.bound / finding.optimum
    finding.worse = by_prices.cost.total / finding.optimum - 1


def _reorder(finding: Finding, problem: Problem, seed: int) -> None:
    """The labels are the same whatever the order in which units and tensors came."""
    keys = [f"unit {number}" for number in random.Random(seed).sample(range(999), problem.units)]
    other, place = reordered(problem, seed)
    moved_keys = [""] * problem.units
    for unit, where in enumerate(place):
        moved_keys[where] = keys[unit]
    for strategy in OPTIMAL:
        one, order = order_canonically(problem, keys)
        two, other_order = order_canonically(other, moved_keys)
        first, second = attempt(strategy, one), attempt(strategy, two)
        if first is None or second is None:
            if first is not second:
                finding.wrong.append(f"{strategy.name}: a placement for one order alone")
            continue
        here = restore_order(problem, first, order)
        there = restore_order(other, second, other_order)
        if find_violation(problem, here) or find_violation(other, there):
            finding.wrong.append(f"{strategy.name}: unlawful once put back in order")
        if here.labels.tolist() != there.labels[place].tolist():
            finding.wrong.append(f"{strategy.name}: labels depend on the order of units")


def reordered(problem: Problem, seed: int) -> tuple[Problem, list[int]]:
    """Shuffle tensors and fusions, and units as far as they may; return each unit's new place."""
    rng = random.Random(seed)
    edges = list(zip(*(side.tolist() for side in problem.edges), strict=True))
    order: list[int] = []
    waiting = set(range(problem.units))
    while waiting:
        free = sorted(waiting - {v for u, v in edges if u in waiting})
        order.append(rng.choice(free))
        waiting.remove(order[-1])
    place = [order.index(unit) for unit in range(problem.units)]
    tensors = rng.sample(range(problem.tensors), problem.tensors)
    start = problem.consumer_start
    return (
        Problem.build(
            seconds=problem.seconds[order],
            producer=[place[p] if p >= 0 else -1 for p in problem.producer[tensors].tolist()],
            consumers=[[place[u] for u in problem.consumers[start[t] : start[t + 1]]] for t in tensors],
            is_output=problem.is_output[tensors],
            to_device=problem.to_device[tensors],
            to_host=problem.to_host[tensors],
            launch=problem.launch,
            connected=problem.connected,
            must=problem.must[order],
            size=problem.size[order],
            min_nodes=problem.min_nodes,
            max_nodes=problem.max_nodes,
            max_regions=problem.max_regions,
            memory=problem.memory[order],
            capacity=problem.capacity,
            fusions=[
                Fusion(tuple(place[unit] for unit in fusion.members), fusion.device, fusion.saving)
                for fusion in rng.sample(problem.fusions, len(problem.fusions))
            ],
        ),
        place,
    )


def table(findings: Sequence[Finding]) -> str:
    head = f"{'with':16} {'problems':>8} {'lawful':>7} {'wrong':>6}"
    head += f"  {'prices: gap mean':>16} {'worst':>7}  {'answer mean':>11} {'worst':>7}"
    rows = [head]
    for name in ("none of these", *FEATURES, "all"):
        some = [
            each
            for each in findings
            if name == "all" or name in each.features or (name == "none of these" and not each.features)
        ]
        lawful = [each for each in some if math.isfinite(each.optimum)]
        gaps, worse = [each.gap for each in lawful] or [0.0], [each.worse for each in lawful] or [0.0]
        rows.append(
            f"{name:16} {len(some):8} {len(lawful):7} {sum(bool(each.wrong) for each in some):6}"
            f"  {np.mean(gaps):16.2%} {max(gaps):7.1%}  {np.mean(worse):11.2%} {max(worse):7.1%}"
        )
    return "\n".join(rows)


def main(count: int = 1000, first: int = 0, devices: int = 1) -> int:
    findings = []
    wanted = (seed for seed in itertools.count(first) if count_devices(features_of(seed)) >= devices)
    for seed in itertools.islice(wanted, count):
        findings.append(examine(seed))
        for sentence in findings[-1].wrong:
            sys.stdout.write(f"seed {seed}, {sorted(findings[-1].features)}: {sentence}\n")
    sys.stdout.write(f"{table(findings)}\n")
    return int(any(finding.wrong for finding in findings))


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
