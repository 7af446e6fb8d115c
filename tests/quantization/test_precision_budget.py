"""Accuracy budgets: how they are read, what units cost, and the least predicted cost that keeps them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise, product
from math import inf, log10, nan
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from choosing import find_cost
from helpers.support import VANILLA, examples, parse
from numpy.typing import NDArray
from onnx import numpy_helper

from byoc.errors import InputError
from byoc.model import Model, prepare_model
from byoc.placement import Fusion, Problem
from byoc.planning import TradePoint
from byoc.quantization import (
    Budget,
    KeptAccuracy,
    PlanTrial,
    QuantizedModel,
    TradeSearch,
    UnitPrecisions,
    calibrate,
    quantize,
)
from byoc.quantization._accuracy_measures import measure_accuracy, run_samples
from byoc.quantization._accuracy_test import measure_roundings, measure_sensitivities, quantize_only
from byoc.quantization._choose_precision import BoundaryCosts, Level, PrecisionProblem
from byoc.quantization._trade_search import CheapestSearch, PrecisionChoice
from byoc.rules import load_rules
from byoc.support import show_progress


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
    budget = Budget.parse(text)
    assert (budget.measure, budget.least) == (measure, least)
    assert Budget.parse(str(budget)) == budget == Budget(budget.measure, least)


@pytest.mark.parametrize(
    "text", ["", "30", "-3dB", "dB", "30 dBm", "top1", "top1=", "top1=99%", "top5=1"]
)
def test_what_is_no_budget(text: str) -> None:
    with pytest.raises(InputError) as error:
        Budget.parse(text)
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
        Budget.parse("top1=1.01")


def db(noise: float) -> float:
    return -10 * log10(noise) if noise else inf


class Chain:
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
        self.asked: list[UnitPrecisions] = []

    def plan(self, left: Collection[str]) -> PlanTrial:
        """Return the trial with some units left in floating point."""
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
        return PlanTrial(KeptAccuracy(db(noise), 1.0, (noise,)), seconds)

    def build(self) -> PrecisionProblem:
        """Return the problem of the chain: one accelerator, and conversions in its regions."""
        count = len(self.names)
        problem = Problem.build(
            seconds=[[100.0, seconds] for seconds in self.float],
            producer=[*range(-1, count)],
            consumers=[*([unit] for unit in range(count)), []],
            is_output=[False] * count + [True],
            to_device=np.zeros((count + 1, 1)),
            to_host=[[0.0], *([100.0] for _ in self.names[1:]), [0.0]],
            launch=[0.0],
        )
        alone = [self.plan({*self.names} - {name}).accuracy.noise for name in self.names]
        conversions = np.zeros((2, 2, count + 1, 1))
        conversions[:, :, 1:, 0] = self.change
        transfers = (np.stack([each, each]) for each in (problem.to_device, problem.to_host))
        return PrecisionProblem(
            problem,
            self.names,
            rows=[[row] for row in range(count)],
            costs=np.array(self.integer)[np.newaxis, :, np.newaxis],
            noise=np.array(alone)[np.newaxis, :, np.newaxis],
            rounding=np.zeros((count + 1, 1)),
            boundary=BoundaryCosts(*transfers, conversions, np.array([True])),
        )

    def search(self, budget: Budget) -> TradeSearch:
        """Answer each proposal of a search, and return it at its end."""
        search = TradeSearch(budget, self.names, self.build)
        proposals = search.propose()
        proposal = next(proposals)
        while proposal is not None:
            self.asked.append(proposal)
            proposal = proposals.send(self.plan(proposal.in_float))
        return search

    def find_cheapest(self, search: TradeSearch, least: float) -> float:
        """Return the cost of the cheapest trial of a search that keeps so many decibels."""
        return min(each.cost for each in search.tried.values() if each.accuracy.signal_to_noise >= least)

    def list_all(self) -> list[PlanTrial]:
        """Return the trials of all sets of units."""
        count = len(self.names)
        sizes = range(count + 1)
        return [self.plan(left) for size in sizes for left in combinations(self.names, size)]


def test_plans_are_within_five_per_cent_of_exhaustive_search() -> None:
    """Chains of six units; the most sensitive ones alone are up to several times as dear."""
    ratios = []
    for seed in range(examples(2)):
        chain = Chain(seed, 6)
        every = chain.list_all()
        search = chain.search(Budget("dB", 30))
        assert search.gap < 0.03
        costs = []
        for least in (15, 20, 25, 30):
            best = min(each.cost for each in every if each.accuracy.signal_to_noise >= least)
            costs.append(chain.find_cheapest(search, least))
            ratios.append(costs[-1] / best)
        assert costs == sorted(costs)
    assert min(ratios) == pytest.approx(1)
    assert np.mean(np.array(ratios) <= 1.05) >= 0.95
    assert max(ratios) < 1.25


def test_a_larger_budget_finds_what_a_smaller_one_found() -> None:
    chain = Chain(3, 4)
    found = [{*chain.search(Budget("dB", least)).tried} for least in (15, 20, 25, 30)]
    for smaller, larger in pairwise(found):
        assert smaller <= larger


@pytest.mark.parametrize("budget", [Budget("dB", 22.5), Budget("top1", 0.9)])
def test_no_set_is_proposed_twice_and_few_are(budget: Budget) -> None:
    chain = Chain(5, 4)
    search = chain.search(budget)
    assert len(set(chain.asked)) == len(chain.asked) == len(search.tried) < 64
    assert chain.asked[:2] == [UnitPrecisions(), UnitPrecisions(in_float=frozenset(chain.names))]


def search(problem: PrecisionProblem) -> CheapestSearch:
    """Return a search that knows the choice with nothing in integers."""
    floats = np.zeros(len(problem.units), np.int64)
    cost = float(problem.placement.seconds[:, 1].sum())
    return CheapestSearch(problem, [PrecisionChoice(floats, cost, problem.sum_noise(floats))])


def test_the_cheapest_choice_is_that_of_exhaustive_search_and_its_bound_is_below() -> None:
    """With noises that do add up, of two outputs, each within a limit of its own."""
    for seed in range(examples(3)):
        chain = Chain(seed, 6)
        problem = chain.build()
        generator = np.random.default_rng(seed)
        problem = replace(problem, noise=problem.noise * generator.uniform(0, 1, (6, 2)))
        allowed = problem.noise[0].sum(axis=0) * [0.2, 0.05]
        found = search(problem).find(allowed)
        best = inf
        for each in product([False, True], repeat=6):
            left = [name for name, one in zip(chain.names, each, strict=True) if not one]
            if (problem.noise[0, np.array(each)].sum(axis=0) <= allowed).all():
                best = min(best, chain.plan(left).cost)
        assert (found.noise <= allowed * (1 + 1e-5)).all()
        assert found.bound <= best * (1 + 1e-9)
        assert best * (1 - 1e-9) <= found.cost <= best * 1.01


class ThreeWays(Chain):
    """A chain of units in floating point, 8 bits or 16, with conversions between these two."""

    def __init__(self, seed: int, count: int) -> None:
        super().__init__(seed, count)
        random = Random(seed + 1000)
        self.wide = [seconds * random.uniform(1.2, 2) for seconds in self.integer]
        self.quiet = [noise * random.uniform(0.001, 0.3) for noise in self.noises]
        self.conversion = [random.uniform(0.05, 0.4) for _ in self.names]
        self.rounding = [random.choice([0, 0.5]) * noise for noise in self.noises]

    def build(self) -> PrecisionProblem:
        """Return the problem with both types, whose noises add up."""
        found = super().build()
        conversions = np.zeros((3, 3, len(self.names) + 1, 1))
        conversions[:, :, 1:, 0] = self.change
        conversions[1:, 1:, 1:, 0] = self.conversion
        boundary = found.boundary
        boundary = replace(
            boundary,
            to_device=boundary.to_device[[0, 1, 1]],
            to_host=boundary.to_host[[0, 1, 1]],
            conversions=conversions,
        )
        costs, noise = ([[*narrow], [*wide]] for narrow, wide in self._types)
        return replace(
            found,
            costs=np.array(costs)[..., np.newaxis],
            noise=np.array(noise)[..., np.newaxis],
            rounding=np.array([*self.rounding, 0.0])[:, np.newaxis],
            boundary=boundary,
        )

    @property
    def _types(self) -> list[tuple[list[float], list[float]]]:
        return [(self.integer, self.wide), (self.noises, self.quiet)]

    def price(self, levels: tuple[int, ...]) -> tuple[float, float]:
        """Return cost and noise of units at levels: 0 for floating point, 1, or 2 for 16 bits."""
        (narrow, wide), (noisy, quiet) = self._types
        cost = noise = 0.0
        for unit, level in enumerate(levels):
            cost += (self.float, narrow, wide)[level][unit]
            noise += (0.0, noisy[unit], quiet[unit])[level]
            if 1 in levels[max(unit - 1, 0) : unit + 1]:  # the tensor between the two is rounded
                noise += self.rounding[unit]
        for unit, (one, other) in enumerate(pairwise(levels)):
            if one != other:
                cost += self.conversion[unit] if one and other else self.change[unit]
        return cost, noise


def test_the_cheapest_choice_of_three_precisions_is_that_of_exhaustive_search() -> None:
    """All 729 choices of six units; tensors are rounded where one of their ends is in 8 bits."""
    for seed in range(examples(3)):
        chain = ThreeWays(seed, 6)
        every = {levels: chain.price(levels) for levels in product(range(3), repeat=6)}
        cheapest = search(chain.build())
        for share in (0.5, 0.1, 0.02, 0.003):
            allowed = share * sum(chain.noises)
            best = min(cost for cost, noise in every.values() if noise <= allowed)
            found = cheapest.find(np.array([allowed]))
            cost, noise = every[tuple(found.levels.tolist())]
            assert (cost, noise) == pytest.approx((found.cost, float(found.noise[0])))
            assert noise <= allowed * (1 + 1e-5)
            assert best * (1 - 1e-9) <= cost <= best * 1.01
            assert best * 0.989 <= found.bound <= best * (1 + 1e-9)


@pytest.mark.parametrize("level", [Level.floating, Level.narrow])
def test_a_fusion_saves_where_its_units_are_in_its_precision(level: Level) -> None:
    chain = Chain(1).build()
    seconds = chain.placement.seconds[:, 1] if level == Level.floating else chain.costs[0, :, 0]
    fused = Fusion((0, 1), 1, 0.9 * float(seconds[:2].sum()))
    if level == Level.floating:
        other = replace(chain, placement=replace(chain.placement, fusions=(fused,)))
    else:
        other = replace(chain, fusions=[fused])
    for each in Level.floating, Level.narrow:
        levels = np.full(len(chain.units), each)
        saved = find_cost(chain, levels) - find_cost(other, levels)
        assert saved == pytest.approx(fused.saving if each == level else 0.0)


def test_more_than_floating_point_keeps() -> None:
    units = ["a", "b"]
    search = TradeSearch(Budget("dB", 120), units, lambda: pytest.fail("not needed"))
    proposals = search.propose()
    assert next(proposals) == UnitPrecisions()
    answer = proposals.send(PlanTrial(KeptAccuracy(20.0, 1.0), 1.0))
    assert answer == UnitPrecisions(in_float=frozenset(units))
    with pytest.raises(InputError) as error:
        proposals.send(PlanTrial(KeptAccuracy(110.0, 1.0), 3.0))
    assert str(error.value) == "accuracy budget 120dB: not met even with nothing quantized"


def test_what_is_exact_costs_no_search() -> None:
    search = TradeSearch(Budget("dB", 30), ["a"], lambda: pytest.fail("not needed"))
    proposals = search.propose()
    assert next(proposals) == UnitPrecisions()
    answer = proposals.send(PlanTrial(KeptAccuracy(inf, 1.0), 1.0))
    assert answer == UnitPrecisions(in_float=frozenset("a"))
    assert proposals.send(PlanTrial(KeptAccuracy(inf, 1.0), 3.0)) is None


def test_the_front_has_what_no_cheaper_plan_keeps() -> None:
    points = [
        TradePoint(reached, cost, cost, ())
        for reached, cost in (
            (20.0, 2.0),
            (15.0, 1.0),
            (18.0, 2.5),
            (30.0, 4.0),
            (inf, 5.0),
            (15.0, 1.5),
        )
    ]
    assert [point.reached for point in TradeSearch.list_front(points, points[0])] == [
        15.0,
        20.0,
        30.0,
        inf,
    ]


def test_what_is_hardly_dearer_and_quantized_is_taken() -> None:
    """A plan without anything in integers that costs a hair less is no surprise to anyone."""
    floats = TradePoint(110.0, 0.99, 0.99, ("a", "b"))
    mixed = TradePoint(35.0, 1.0, 1.0, ("a",))
    wide = TradePoint(50.0, 1.0, 1.0, (), ("a", "b"))
    narrow = TradePoint(30.0, 1.0, 1.0, ())
    assert TradeSearch.choose([floats, mixed, wide, narrow]) == narrow
    assert TradeSearch.choose([floats, mixed, wide]) == wide
    assert TradeSearch.choose([floats, mixed]) == mixed
    assert TradeSearch.choose([floats, replace(narrow, cost=1.02)]) == floats
    assert TradeSearch.list_front([floats, narrow], narrow) == (floats, narrow)
    with pytest.raises(ValueError, match="empty"):
        TradeSearch.choose([])


def test_what_is_not_a_number_is_not_met() -> None:
    assert not Budget("dB", 0).is_met(KeptAccuracy(float("nan"), 1.0))


# Composites, a residual, a host operator that reads what is quantized, a Relu that stands alone.
TEXT = """g (float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] side, float[1, 5] y) {
    [first] c = Conv <pads = [1, 1, 1, 1]> (x, w, b)
    r = Relu(c)
    s = Sigmoid(r)
    n = Conv <pads = [1, 1, 1, 1]> (s, w2)
    side = Add(n, r)
    k = Relu(side)
    p = GlobalAveragePool(k)
    f = Flatten(p)
    y = Gemm(f, v)
}"""
Values = Mapping[str, Any]


def network() -> onnx.ModelProto:
    proto = parse(TEXT)
    generator = np.random.default_rng(5)
    for name, shape in {"w": (4, 3, 3, 3), "b": (4,), "w2": (4, 4, 3, 3), "v": (4, 5)}.items():
        made = generator.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        proto.graph.initializer.append(numpy_helper.from_array(made.astype(np.float32), name))
    return proto


def samples(count: int = 3, seed: int = 0) -> list[dict[str, NDArray[Any]]]:
    generator = np.random.default_rng(seed)
    return [{"x": generator.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(count)]


@pytest.fixture(scope="module")
def model() -> Model:
    return prepare_model(network(), "net")


@pytest.fixture(scope="module")
def done(model: Model) -> QuantizedModel:
    return quantize(model, [load_rules(str(VANILLA))], calibrate(model, samples(8, seed=1)))


def every(done: QuantizedModel) -> set[str]:
    return {node for nodes in done.units.values() for node in nodes}


def run(done: QuantizedModel, nodes: Collection[str]) -> list[Values]:
    return run_samples(quantize_only(done.model.proto, nodes, every(done)), done.model, samples())


def equal(one: Sequence[Values], other: Sequence[Values]) -> bool:
    return all(np.array_equal(a[name], b[name]) for a, b in zip(one, other, strict=True) for name in a)


def test_what_is_quantized_here(done: QuantizedModel) -> None:
    assert set(done.units) == {"r", "n", "side", "k", "p", "f", "y"}
    assert done.units["r"] == ("first", "r")


def test_with_nothing_kept_it_is_the_float_model(model: Model, done: QuantizedModel) -> None:
    found = run(done, ())
    assert equal(found, run_samples(model.proto, model, samples()))
    onnx.checker.check_model(quantize_only(done.model.proto, (), every(done)))


def test_with_all_kept_it_is_the_quantized_model(model: Model, done: QuantizedModel) -> None:
    found = run(done, every(done))
    assert equal(found, run_samples(done.model.proto, done.model, samples()))
    assert not equal(found, run_samples(model.proto, model, samples()))


def fake(value: NDArray[Any], scale: float, point: int) -> NDArray[Any]:
    """Return what QuantizeLinear and DequantizeLinear of int8 leave of a value."""
    inside = np.clip(np.rint(value / np.float32(scale)) + point, -128, 127)
    return ((inside - point) * np.float32(scale)).astype(np.float32)


def pair(done: QuantizedModel, name: str) -> tuple[float, int]:
    """Return scale and zero point of a tensor by its own name."""
    for node in done.model.index.nodes:
        told = {entry.key: entry.value for entry in node.metadata_props}
        if node.op_type == "QuantizeLinear" and told.get("byoc.tensor") == name:
            stored = done.model.index.initializers
            scale, point = (numpy_helper.to_array(stored[read]) for read in node.input[1:])
            return float(scale), int(point)
    raise KeyError(name)


def test_one_unit_alone_quantizes_what_it_reads(model: Model, done: QuantizedModel) -> None:
    """The Relu `k` reads `side`, which is quantized for it alone; what it makes is read by a unit."""
    every_tensor = prepare_model(network(), "net").proto
    every_tensor.graph.output.extend(onnx.ValueInfoProto(name=name) for name in ("k", "v"))
    del every_tensor.graph.output[-1]
    floats = run_samples(every_tensor, model, samples())
    weights = numpy_helper.to_array(next(t for t in network().graph.initializer if t.name == "v"))
    for got, real in zip(run(done, ["k"]), floats, strict=True):
        np.testing.assert_array_equal(got["side"], real["side"])
        side = fake(real["side"], *pair(done, "side"))
        y = np.maximum(side, 0).mean(axis=(2, 3)) @ weights
        np.testing.assert_allclose(got["y"], y, rtol=1e-4, atol=1e-5)
        assert not np.allclose(y, real["y"], rtol=1e-4, atol=1e-5)


def test_a_unit_pays_for_what_floating_point_reads_of_it(model: Model, done: QuantizedModel) -> None:
    """What `side` makes is an output of the model: it is quantized there, and only `k` is not paid."""
    real = run_samples(model.proto, model, samples())
    for got, wanted in zip(run(done, ["y"]), real, strict=True):
        scale, point = pair(done, "y")
        np.testing.assert_array_equal(got["y"], fake(got["y"], scale, point))
        np.testing.assert_array_equal(got["side"], wanted["side"])
    for got in run(done, ["side"]):
        np.testing.assert_array_equal(got["side"], fake(got["side"], *pair(done, "side")))


def test_one_tensor_alone_is_rounded_for_all_that_read_it(model: Model, done: QuantizedModel) -> None:
    variant = quantize_only(done.model.proto, (), every(done), "side")
    real = run_samples(model.proto, model, samples())
    weights = numpy_helper.to_array(next(t for t in network().graph.initializer if t.name == "v"))
    for got, wanted in zip(run_samples(variant, done.model, samples()), real, strict=True):
        side = fake(wanted["side"], *pair(done, "side"))
        np.testing.assert_array_equal(got["side"], side)
        y = np.maximum(side, 0).mean(axis=(2, 3)) @ weights
        np.testing.assert_allclose(got["y"], y, rtol=1e-4, atol=1e-5)
    expected = run_samples(model.proto, model, samples())
    alone = measure_roundings(done.model, done.units, expected, samples())
    assert set(alone) == {"x", "r", "s", "n", "side", "k", "p", "f", "y"}
    got = run_samples(variant, done.model, samples())
    assert alone["side"] == measure_accuracy(expected, got)


def test_noise_roughly_adds_up(model: Model, done: QuantizedModel) -> None:
    many = samples(16, seed=2)
    expected = run_samples(model.proto, model, many)
    steps: list[str] = []
    with show_progress(steps.append):
        alone = measure_sensitivities(done.model, done.units, expected, many)
    assert list(alone) == list(done.units)
    assert len(steps) == len(done.units)
    whole = measure_accuracy(expected, run_samples(done.model.proto, done.model, many))
    together = -10 * np.log10(sum(unit.noise for unit in alone.values()))
    assert whole.signal_to_noise == pytest.approx(together, abs=2.5)
    assert all(unit.signal_to_noise > whole.signal_to_noise - 0.5 for unit in alone.values())


def test_what_is_kept_is_that_of_the_worst_output() -> None:
    one, two = np.array([[3.0, 4.0]], np.float32), np.array([[6.0, 8.0]], np.float32)
    expected = [{"a": one, "b": one, "n": np.array([7])}, {"a": two, "b": two, "n": np.array([7])}]
    actual = [
        {"a": one, "b": one + 1, "n": np.array([9])},  # whole numbers do not count
        {"a": two[:, ::-1], "b": two, "n": np.array([9])},
    ]
    found = measure_accuracy(expected, actual)
    assert found.signal_to_noise == pytest.approx(10 * np.log10(125 / 8))  # of `a`, over both samples
    assert found.same_class == 0.5
    assert found.noise == pytest.approx(8 / 125)
    assert measure_accuracy(expected, expected) == KeptAccuracy(np.inf, 1.0)
