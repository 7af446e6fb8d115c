"""Searches are limited by what they do, never by a clock, so that plans depend on no machine."""

import ast
from math import inf
from pathlib import Path

import pytest
from memory_levels_random import random_schedule
from problems import branches

import byoc
from byoc.memory.arena import Compound, GreedyPacking, plan_buffers, search_offsets
from byoc.memory.scratchpad import plan_scratchpad
from byoc.numerics import SearchBudget

ROOT = Path(byoc.__file__).parents[1]
DECIDING = ("memory", "model", "numerics", "patterns", "placement", "planning", "rules", "stages")


def _names_of_imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    return found | {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}


def test_nothing_that_decides_a_plan_reads_a_clock() -> None:
    rooms = [ROOT / "byoc" / room for room in DECIDING] + [ROOT / "codegens/dla"]
    clocks = {
        path.relative_to(ROOT).as_posix()
        for room in rooms
        for path in room.rglob("*.py")
        if _names_of_imports(path) & {"time", "datetime", "timeit"}
    }
    assert not clocks


def test_a_part_of_a_budget_is_spent_from_the_whole() -> None:
    whole = SearchBudget(3.0)
    part, other = whole.limit(1.0), whole.limit(10.0)
    part.spend(1.0)
    assert (part.left, part.is_spent, whole.left, other.left) == (0.0, True, 2.0, 2.0)
    other.spend(2.5)
    assert (whole.left, whole.is_spent, other.is_spent) == (0.0, True, True)
    assert SearchBudget().left == inf


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.01])
def test_a_search_that_its_budget_ends_finds_the_same(seconds: float) -> None:
    compounds = [Compound.of_block(7 + n * 37 % 50, n % 23, n % 23 + n % 11) for n in range(60)]
    packing = GreedyPacking(compounds)
    found = []
    for _ in range(2):
        limit = SearchBudget(seconds)
        found.append(search_offsets(packing, packing.peak - 1, limit))
        assert limit.is_spent
    assert found[0] == found[1]
    arenas = [plan_buffers(branches(24), time_limit=seconds) for _ in range(2)]
    assert arenas[0].offsets == arenas[1].offsets
    schedule = random_schedule(1, turns=60, largest=40)
    plans = [plan_scratchpad(schedule, 120, seconds=seconds) for _ in range(2)]
    assert plans[0].actions == plans[1].actions


def test_a_larger_budget_finds_no_larger_arena() -> None:
    compounds = [Compound.of_block(7 + n * 37 % 50, n % 23, n % 23 + n % 11) for n in range(60)]
    packing = GreedyPacking(compounds)
    heights = [
        packing.height(search_offsets(packing, packing.peak, SearchBudget(seconds)))
        for seconds in (0.0, 0.01, 0.1, 1.0)
    ]
    assert heights == sorted(heights, reverse=True)
    assert heights[-1] >= packing.peak
