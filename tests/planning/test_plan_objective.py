"""What is optimized, and what is done where a cost is not known."""

import sys
from importlib.metadata import EntryPoint
from math import nan
from types import ModuleType
from typing import Any, ClassVar

import pytest
from accelerators import Files, everywhere, notes
from helpers.installing import add_entry_points
from helpers.support import parse

from byoc.costs import Price, Task, Unknown
from byoc.errors import InputError
from byoc.pipeline import partition
from byoc.support import COSTS

TEXT = "g (float[1000] x) => (float[1000] y) { a = Relu(x)\n b = Neg(a)\n y = Abs(b) }"


class Model:
    """A cost model of somebody else's: seconds and joules by operator, nothing for moving data."""

    name = "model"
    prices: ClassVar[dict[str, tuple[float, float]]] = {}
    start = Price(0.0, 0.0)

    def execution(self, task: Task) -> Price | Unknown:
        if task.op not in self.prices:
            return Unknown(f"{task.op} was never tried")
        return Price(*self.prices[task.op])

    def transfer(self, size: int, converted: int = 0) -> Price:
        return Price(0.0, 0.0)

    def launching(self) -> Price:
        return self.start


class Slow(Model):
    """The host: each operator takes 4 s and 10 J."""

    name = "slow"
    prices = dict.fromkeys(("Relu", "Neg", "Abs"), (4.0, 10.0))


class Hungry(Model):
    """Twice as fast, at twice the joules."""

    name = "hungry"
    prices = dict.fromkeys(("Relu", "Neg", "Abs"), (2.0, 20.0))


class Frugal(Model):
    """Slower, at a tenth of the joules; Abs was never tried."""

    name = "frugal"
    prices = dict.fromkeys(("Relu", "Neg"), (5.0, 1.0))
    start = Price(0.25, 0.5)

    def estimate(self, task: Task) -> Price:
        return Price(1.0, 1.0)


class Mute(Hungry):
    """The same as `Hungry`, but for joules."""

    name = "mute"

    def execution(self, task: Task) -> Price:
        return Price(2.0, nan)


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("models_of_this_test")
    classes = (Slow, Hungry, Frugal, Mute)
    for made in classes:
        setattr(module, made.name, made)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    points = [EntryPoint(c.name, f"{module.__name__}:{c.name}", COSTS) for c in classes]
    add_entry_points(monkeypatch, points)


def where(files: Files, objective: str, *costs: str, unknown: str = "estimate") -> dict[str, str]:
    rules = [files.rules(name, "Relu", "Neg", "Abs", costs=name) for name in costs]
    options: dict[str, Any] = {"host_cost_model": "slow", "unknown_costs": unknown}
    return everywhere(partition(parse(TEXT), rules, objective=objective, **options))


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        ("latency", "hungry"),
        ("energy", "host"),
        ("latency=1", "hungry"),
        ("latency=1,energy=0.1", "hungry"),  # 4 against 5
        ("latency=1,energy=0.5", "host"),  # 12 against 9
        ("latency=10, energy=1", "hungry"),
        ("energy=3", "host"),
        ("latency=0,energy=2", "host"),
    ],
)
def test_fast_or_frugal(objective: str, expected: str, files: Files) -> None:
    assert set(where(files, objective, "hungry").values()) == {expected}


def test_the_report_has_all_three_numbers(files: Files) -> None:
    rules = files.rules("frugal", "Relu", "Neg", costs="frugal")
    result = partition(parse(TEXT), rules, objective="energy=2", host_cost_model="slow")
    predicted = result.report.predicted
    assert everywhere(result) == {"a": "frugal", "b": "frugal", "y": "host"}
    assert predicted.objective == "energy=2"
    assert predicted.joules == pytest.approx(0.5 + 1 + 1 + 10)
    assert predicted.optimized == pytest.approx(2 * predicted.joules)
    assert predicted.seconds == pytest.approx(0.25 + 5 + 5 + 4)
    assert predicted.host_only == pytest.approx(12)
    assert predicted.bound == pytest.approx(predicted.optimized)


def test_bodies_count_in_joules(files: Files) -> None:
    text = """g (float[4] x, int64 n, bool c) => (float[4] y, float[4] w) {
      w = Abs (x)
      [round] y = Loop <body = l (int64 i, bool k, float[4] p) => (bool m, float[4] q)
        { m = Identity (k) r = Neg (p) q = Relu (r) }> (n, c, x) }"""
    rules = files.rules("frugal", "Relu", "Neg", costs="frugal")
    options: dict[str, Any] = {"objective": "energy", "host_cost_model": "slow", "trips": {"round": 3}}
    result = partition(parse(text), rules, **options)
    assert {name for name, device in everywhere(result).items() if device == "frugal"} == {"r", "q"}
    assert result.report.predicted.joules == pytest.approx(10 + 3 * (0.5 + 1 + 1))
    assert result.report.predicted.seconds == pytest.approx(4 + 3 * (0.25 + 5 + 5))


def test_the_best_of_two(files: Files) -> None:
    assert set(where(files, "latency", "frugal", "hungry", unknown="host").values()) == {"hungry"}
    assert where(files, "energy", "frugal", "hungry", unknown="host") == {
        "a": "frugal",
        "b": "frugal",
        "y": "host",
    }


def test_joules_that_no_model_gives(files: Files) -> None:
    for objective in ("energy", "latency=1,energy=1"):
        with pytest.raises(InputError) as caught:
            where(files, objective, "mute")
        assert str(caught.value) == (
            f"objective {objective}: not all of the cost models slow, mute give joules"
        )
    rules = files.rules("mute", "Relu", costs="mute")
    assert partition(parse(TEXT), rules, host_cost_model="slow").report.predicted.joules is None


@pytest.mark.parametrize(
    ("objective", "sentence"),
    [
        ("speed", "objective speed: no such objective; known: latency, energy, latency=1,energy=0.5"),
        ("latencie", "objective latencie: no such objective (did you mean latency?); known: "),
        ("", "objective : no such objective"),
        ("latency=x", "objective latency=x: the weight of latency is a number, 0 or more"),
        ("latency=-1", "objective latency=-1: the weight of latency is a number, 0 or more"),
        ("energy=inf", "objective energy=inf: the weight of energy is a number, 0 or more"),
        ("energy=nan", "objective energy=nan: the weight of energy is a number, 0 or more"),
        ("latency=1,latency=2", "objective latency=1,latency=2: the weight of latency stands twice"),
        ("latency=1_0", "objective latency=1_0: the weight of latency is a number, 0 or more"),
        ("latency=\u0661", "objective latency=\u0661: the weight of latency is a number, 0 or more"),
        (
            "latency=1e308",
            "objective latency=1e308: the weight of latency is 0 or between 1e-100 and 1e+100",
        ),
        ("latency=0,energy=0", "objective latency=0,energy=0: some weight must be greater than 0"),
    ],
)
def test_what_is_no_objective(objective: str, sentence: str, files: Files) -> None:
    with pytest.raises(InputError) as caught:
        where(files, objective, "hungry")
    assert str(caught.value).startswith(sentence)


def test_an_unknown_cost_is_estimated_and_counted(files: Files) -> None:
    rules = files.rules("frugal", "Relu", "Neg", "Abs", costs="frugal")
    options: dict[str, Any] = {"objective": "energy", "host_cost_model": "slow"}
    result = partition(parse(TEXT), rules, **options)
    assert set(everywhere(result).values()) == {"frugal"}
    assert [note for note in notes(result) if note.startswith("the cost of 1 unit is an estimate")]


def test_an_unknown_cost_stays_on_the_host_with_its_reason(files: Files) -> None:
    rules = files.rules("frugal", "Relu", "Neg", "Abs", costs="frugal")
    result = partition(
        parse(TEXT), rules, objective="energy", host_cost_model="slow", unknown_costs="host"
    )
    assert everywhere(result) == {"a": "frugal", "b": "frugal", "y": "host"}
    assert [(row.reason, row.nodes) for row in result.report.host_reasons] == [
        ("what it costs on frugal is not known: Abs was never tried", 1)
    ]


def test_an_unknown_cost_is_refused(files: Files) -> None:
    with pytest.raises(InputError) as caught:
        where(files, "latency", "frugal", unknown="refuse")
    assert str(caught.value) == "1 of 3 units have no known cost on frugal: y: Abs was never tried"
    assert set(where(files, "latency", "hungry", unknown="refuse").values()) == {"hungry"}


def test_a_policy_that_is_none(files: Files) -> None:
    with pytest.raises(InputError) as caught:
        where(files, "latency", "hungry", unknown="guess")
    assert str(caught.value) == (
        "guess: no such policy for unknown costs; there are refuse, host, estimate"
    )
