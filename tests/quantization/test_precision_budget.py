"""Accuracy budgets: how they are read, and that as few units as it takes are left in floating point."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf, log10, nan
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples

from byoc.errors import InputError
from byoc.quantization import Budget, FloatTrial, KeptAccuracy, read_budget, search_float_units


@pytest.mark.parametrize(
    ("text", "measure", "least"),
    [
        ("30dB", "dB", 30),
        (" 30.5 db ", "dB", 30.5),
        ("snr=0dB", "dB", 0),
        ("top1=0.99", "top1", 0.99),
        ("TOP1=1", "top1", 1),
        ("top1=0", "top1", 0),
    ],
)
def test_what_is_a_budget(text: str, measure: str, least: float) -> None:
    budget = read_budget(text)
    assert (budget.measure, budget.least) == (measure, least)
    assert read_budget(str(budget)) == budget == Budget(budget.measure, least)


@pytest.mark.parametrize(
    "text", ["", "30", "-3dB", "dB", "30 dBm", "top1", "top1=", "top1=99%", "top5=1"]
)
def test_what_is_no_budget(text: str) -> None:
    with pytest.raises(InputError) as error:
        read_budget(text)
    assert str(error.value) == (f"accuracy budget: '{text}' is neither like 30dB nor like top1=0.99")


@pytest.mark.parametrize(
    ("measure", "least", "problem"),
    [
        ("db", 45, "'db' is neither dB nor top1"),
        ("dB", "45", "'45' is no number from 0 on"),
        ("dB", -1, "-1 is no number from 0 on"),
        ("dB", nan, "nan is no number from 0 on"),
        ("top1", 99, "'top1=99': a share is at most 1"),
    ],
)
def test_a_budget_that_is_none(measure: Any, least: Any, problem: str) -> None:
    with pytest.raises(InputError) as error:
        Budget(measure, least)
    assert str(error.value) == f"accuracy budget: {problem}"


def test_a_share_above_one() -> None:
    with pytest.raises(InputError, match=r"^accuracy budget: 'top1=1.01': a share is at most 1$"):
        read_budget("top1=1.01")


def db(noise: float) -> float:
    return -10 * log10(noise) if noise else inf


class Fake:
    """Units of which each adds its noise; what is kept with so many left out may be given instead."""

    def __init__(self, noises: Sequence[float], kept: Sequence[float] | None = None) -> None:
        self.noises = {f"u{i}": noise for i, noise in enumerate(noises)}
        self.kept = kept
        self.tried: list[int] = []

    def keep_without(self, names: Sequence[str]) -> KeptAccuracy:
        self.tried.append(len(names))
        assert len(set(names)) == len(names)
        left = sum(noise for name, noise in self.noises.items() if name not in names)
        found = db(left) if self.kept is None else self.kept[len(names)]
        return KeptAccuracy(found, found)

    def rank(self) -> dict[str, KeptAccuracy]:
        return {name: KeptAccuracy(db(noise), 1.0) for name, noise in self.noises.items()}

    def enough(self, budget: Budget) -> list[int]:
        """Return how many of the noisiest may be left out for the budget to be met."""
        order = sorted(self.noises, key=lambda name: (db(self.noises[name]), name))
        return [n for n in range(len(order) + 1) if budget.is_met(self.keep_without(order[:n]))]


@dataclass(frozen=True)
class Found:
    """The end of a search: the units left in floating point, what is kept, what was at first."""

    left: tuple[str, ...]
    kept: KeptAccuracy
    all_quantized: KeptAccuracy


def search(
    budget: Budget, fake: Fake, rank: Callable[[], Mapping[str, KeptAccuracy]] | None = None
) -> Found:
    """Answer each proposal with what the fake keeps, a second for each unit; the cheapest counts."""
    proposals = search_float_units(budget, [*fake.noises], rank or fake.rank)
    proposal = next(proposals)
    found = first = None
    while proposal is not None:
        accuracy = fake.keep_without(proposal)
        first = first or accuracy
        if budget.is_met(accuracy) and (found is None or len(proposal) < len(found[0])):
            found = proposal, accuracy
        proposal = proposals.send(FloatTrial(accuracy, float(len(proposal))))
    assert found is not None
    assert first is not None
    return Found(*found, first)


_noises = st.lists(st.floats(1e-9, 1e-1), min_size=1, max_size=12)


@given(_noises, st.integers(0, 100))
def test_as_few_as_brute_force_finds(noises: list[float], least: int) -> None:
    budget = Budget("dB", least)
    fewest = min(Fake(noises).enough(budget))  # with all left out nothing is noisy
    fake = Fake(noises)
    met = search(budget, fake)
    assert len(met.left) == fewest
    assert budget.is_met(met.kept)
    assert met.all_quantized.signal_to_noise == pytest.approx(db(sum(noises)))


@given(_noises, st.integers(0, 100))
def test_no_set_is_proposed_twice_and_few_are(noises: list[float], least: int) -> None:
    proposals: list[tuple[str, ...]] = []

    class Noted(Fake):
        def keep_without(self, names: Sequence[str]) -> KeptAccuracy:
            proposals.append(tuple(names))
            return super().keep_without(names)

    search(Budget("dB", least), Noted(noises))
    assert len(set(proposals)) == len(proposals) <= 2 + 3 * 6 + 64


class Network:
    """A chain of units that each take time, and more in floating point, and where precision changes.

    A tensor is rounded unless both the unit that makes it and the one that reads it are in floats.
    """

    def __init__(self, seed: int, count: int = 7) -> None:
        random = Random(seed)
        self.names = [f"u{i}" for i in range(count)]
        self.noises = [10 ** random.uniform(-4, -1) for _ in self.names]
        self.integer = [random.uniform(0.1, 1) for _ in self.names]
        self.float = [seconds * random.uniform(2, 4) for seconds in self.integer]
        self.change = [random.uniform(0.2, 2) for _ in self.names]

    def plan(self, left: Collection[str]) -> FloatTrial:
        floats = [name in left for name in self.names]
        pairs = list(zip(floats, [True, *floats], strict=False))
        noise = sum(each for each, pair in zip(self.noises, pairs, strict=True) if not all(pair))
        each = zip(floats, self.float, self.integer, strict=True)
        seconds = sum(long if floating else short for floating, long, short in each)
        seconds += sum(
            cost
            for cost, one, other in zip(self.change, floats, floats[1:], strict=False)
            if one != other
        )
        return FloatTrial(KeptAccuracy(db(noise), 1.0), seconds)

    def rank(self) -> dict[str, KeptAccuracy]:
        return {name: self.plan({*self.names} - {name}).accuracy for name in self.names}

    def search(self, budget: Budget) -> float:
        """Return the cost of the cheapest proposal that meets a budget."""
        proposals = search_float_units(budget, self.names, self.rank)
        proposal, least = next(proposals), inf
        while proposal is not None:
            found = self.plan(proposal)
            least = min(least, found.cost if budget.is_met(found.accuracy) else inf)
            proposal = proposals.send(found)
        return least


def test_the_cheapest_plan_is_that_of_exhaustive_search_but_for_few() -> None:
    """Chains of seven units; the most sensitive ones alone are up to several times as dear."""
    ratios = []
    for seed in range(examples(60)):
        network = Network(seed)
        every = [
            network.plan(left)
            for count in range(len(network.names) + 1)
            for left in combinations(network.names, count)
        ]
        for least in (15, 20, 25, 30):
            budget = Budget("dB", least)
            best = min(plan.cost for plan in every if budget.is_met(plan.accuracy))
            ratios.append(network.search(budget) / best)
    assert min(ratios) == pytest.approx(1)
    assert np.mean(np.array(ratios) <= 1.05) >= 0.99
    assert max(ratios) < 1.2


@settings(max_examples=examples(300))
@given(st.lists(st.integers(0, 50), min_size=2, max_size=14), st.integers(1, 50), st.booleans())
def test_what_does_not_grow_steadily_ends_where_it_is_met(
    steps: list[int], least: int, classes: bool
) -> None:
    """By chance one unit more in floating point may keep less: what is returned meets the budget."""
    unit = 1 / 50 if classes else 1.0  # shares end at 1
    kept, limit = [step * unit for step in (*steps, 50)], least * unit
    fake = Fake([1e-3 / (i + 1) for i in range(len(steps))], kept)
    met = search(Budget("top1" if classes else "dB", limit), fake)
    number = len(met.left)
    assert kept[number] >= limit
    assert number == 0 or kept[number - 1] < limit  # one fewer would not do
    assert met.kept.signal_to_noise == kept[number]


def test_one_trial_where_all_may_be_quantized() -> None:
    fake = Fake([1e-4, 1e-5])
    met = search(Budget("dB", 30), fake, lambda: pytest.fail("not needed"))
    assert (fake.tried, met.left) == ([0], ())


def test_more_than_floating_point_keeps() -> None:
    fake = Fake([1e-4, 1e-5], [20.0, 40.0, 110.0])
    with pytest.raises(InputError) as error:
        search(Budget("dB", 120), fake)
    assert str(error.value) == "accuracy budget 120dB: not met even with nothing quantized"
    assert fake.tried == [0, 2]


def test_what_is_not_a_number_is_not_met() -> None:
    assert not Budget("dB", 0).is_met(KeptAccuracy(float("nan"), 1.0))
