"""What is done about costs that are not known: refuse, keep on the host, estimate and count."""

from math import inf, nan
from typing import Any

import numpy as np
import pytest
from helpers.support import prepared

from byoc.costs import (
    CostSettings,
    GraphProblem,
    PlacementDevice,
    Policy,
    Price,
    Task,
    Unknown,
    Work,
    build_problem,
    price_graph,
    price_launch,
    price_task,
    transfer_prices,
)
from byoc.errors import YES, InputError, refuse
from byoc.patterns import Mark, Unit, group_units, join_units, parse_pattern

TEXT = """
g (float[4] x) => (float[4] y) {
  a = Relu (x)
  b = Tanh (a)
  c = Reshape (b, s)
  y = Relu (c)
}
""".replace("{\n  a", "<int64[1] s = {4}> {\n  a", 1)


class Knows:
    """A model of somebody else's that knows some operators and guesses at nothing."""

    def __init__(self, name: str, **seconds: float) -> None:
        self.name = name
        self.seconds = seconds

    def execution(self, task: Task) -> Price | Unknown:
        assert not task.view
        if task.op not in self.seconds:
            return Unknown(f"{task.op} was never tried")
        return Price(self.seconds[task.op], 2 * self.seconds[task.op])

    def transfer(self, size: int, converted: int = 0) -> Price:
        return Price(float(size), nan)

    def launching(self) -> Price:
        return Price(1.0)


class Guesses(Knows):
    """The same, but for guesses."""

    def estimate(self, task: Task) -> Price:
        return Price(77.0)


HOST = Knows("host", Relu=10.0, Tanh=20.0)
DEVICE = Guesses("acc", Relu=1.0)
GIVES = Knows("acc", Relu=1.0, Tanh=20.0)


def units_of(text: str = TEXT, *patterns: str, refused: tuple[int, ...] = ()) -> tuple[Any, list[Unit]]:
    index = prepared(text).index
    marks = [Mark(refuse("no")) if i in refused else Mark(YES, "r") for i in range(len(index.nodes))]
    return index, group_units(index, [parse_pattern(f"p{i}", p) for i, p in enumerate(patterns)], marks)


def posed(
    policy: Policy, host: Any = HOST, device: Any = DEVICE, refused: tuple[int, ...] = ()
) -> GraphProblem:
    index, units = units_of(refused=refused)
    joined = join_units(index, [units], [[Mark(YES, "r")] * len(index.nodes)])
    return build_problem(index, joined, CostSettings(host, [PlacementDevice("acc", device)], policy))


def test_estimates_are_counted_and_views_are_free_without_asking() -> None:
    result = posed(Policy.estimate)
    assert result.problem.seconds.tolist() == [[10, 1], [20, 77], [0, 0], [10, 1]]
    assert (result.estimated, result.kept_on_host) == (1, ({},))
    assert result.problem.to_device.ravel().tolist() == [16.0] * 5
    assert result.problem.launch.tolist() == [1.0]


def test_what_is_not_known_stays_on_the_host() -> None:
    result = posed(Policy.host)
    assert result.problem.seconds.tolist() == [[10, 1], [20, inf], [0, 0], [10, 1]]
    (kept,) = result.kept_on_host
    assert {row: str(cause) for row, cause in kept.items()} == {
        1: "what it costs on acc is not known: Tanh was never tried"
    }
    assert result.estimated == 0


def test_the_answers_of_each_cost_model_are_kept() -> None:
    host, device = posed(Policy.estimate, refused=(0,)).answers
    assert (host.model, host.asked, host.unknown) == ("host", 3, {})  # nobody is asked about Reshape
    assert (device.model, device.asked, device.unknown) == ("acc", 2, {"Tanh was never tried": 1})


def test_refusing_names_what_is_not_known_and_where() -> None:
    with pytest.raises(InputError) as caught:
        posed(Policy.refuse)
    assert str(caught.value) == "1 of 4 units have no known cost on acc: b: Tanh was never tried"
    with pytest.raises(
        InputError, match="2 of 4 units have no known cost on host: a: Relu was never tried"
    ):
        posed(Policy.refuse, host=Knows("host", Tanh=1.0))
    # What the device does not take need not be known there.
    assert posed(Policy.refuse, refused=(1,)).problem.seconds[1].tolist() == [20, inf]


def test_a_unit_that_is_refused_anyhow_is_no_estimate() -> None:
    assert posed(Policy.estimate, refused=(1,)).estimated == 0
    assert posed(Policy.host, refused=(1,)).kept_on_host == ({},)


def test_the_host_is_estimated_where_the_policy_is_the_host() -> None:
    result = posed(Policy.host, host=Guesses("host", Relu=10.0))
    assert result.problem.seconds[:, 0].tolist() == [10, 77, 0, 10]
    assert result.estimated == 1
    assert [policy.on_host for policy in Policy] == [Policy.refuse, Policy.estimate, Policy.estimate]


def test_prices_of_units_one_by_one_and_as_a_composite() -> None:
    index, units = units_of(TEXT, "b = Relu(x)\ny = Tanh(b)")
    joined = join_units(index, [units], [[Mark(YES, "r")] * len(index.nodes)])

    def price(**known: float) -> list[list[float]]:
        settings = CostSettings(HOST, [PlacementDevice("acc", Knows("acc", **known))])
        found: list[list[float]] = build_problem(index, joined, settings).problem.seconds.tolist()
        return found

    assert price(p0=5.0, Relu=1.0) == [[30, 5], [0, 0], [10, 1]]
    assert price(Relu=1.0, Tanh=2.0) == [[30, 3], [0, 0], [10, 1]]  # the sum of its parts


def test_transfers_are_asked_once_a_size_and_come_in_order() -> None:
    asked = []

    class Counting(Knows):
        def transfer(self, size: int, converted: int = 0) -> Price:
            asked.append(size)
            return Price(size / 2, size * 3.0)

    seconds, joules = transfer_prices(Counting("acc"), [8, 2, 8, 2**70])
    assert seconds.tolist() == [4, 1, 4, 3.2e10]
    assert joules.tolist()[:3] == [24, 6, 24]
    assert asked == [8, 2, 2**62]


def test_what_is_converted_is_told_the_model_by_tensor() -> None:
    asked = []

    class Counting(Knows):
        def transfer(self, size: int, converted: int = 0) -> Price:
            asked.append((size, converted))
            return Price(size + 10.0 * converted)

    seconds, _ = transfer_prices(Counting("acc"), [8, 8, 2, 8], [0, 4, 2, 4])
    assert seconds.tolist() == [8, 48, 22, 48]
    assert asked == [(8, 0), (8, 4), (2, 2)]


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (3.0, "cost model odd: gave a float, not a Price"),
        (Price("a"), "cost model odd: gave a Price of str and float, not of two numbers"),  # type: ignore[arg-type]
        (Price(1.0, None), "cost model odd: gave a Price of float and NoneType, not of two numbers"),  # type: ignore[arg-type]
        (Price(np.ones(2)), "cost model odd: gave a Price of ndarray and float, not of two numbers"),  # type: ignore[arg-type]
        (SystemExit(0), "cost model odd: execution failed with SystemExit: 0"),
        (None, "cost model odd: gave a NoneType, not a Price"),
        (Price(-1.0), "cost model odd: gave -1.0 s, nan J"),
        (Price(nan), "cost model odd: gave nan s, nan J"),
        (Price(1.0, -2.0), "cost model odd: gave 1.0 s, -2.0 J"),
        (KeyError("k"), "cost model odd: execution failed with KeyError: 'k'"),
    ],
)
def test_models_that_misbehave(answer: Any, sentence: str) -> None:
    class Odd(Knows):
        def execution(self, task: Task) -> Any:
            if isinstance(answer, BaseException):
                raise answer
            return answer

    with pytest.raises(InputError) as caught:
        price_task(Odd("odd"), Task("Relu", Work(1, 1)))
    assert str(caught.value) == sentence


def test_no_price_is_more_than_sums_can_hold() -> None:
    assert price_task(Knows("slow", Relu=inf), Task("Relu", Work(1, 1)))[0].seconds == 3.2e10
    assert price_task(HOST, Task("Reshape", Work(0, 0), view=True)) == (Price(0.0, 0.0), "")
    assert price_launch(HOST).seconds == 1.0


def test_joules_are_no_more_than_sums_can_hold() -> None:
    class Hungry(Knows):
        def execution(self, task: Task) -> Price:
            return Price(np.float32(1), inf)  # type: ignore[arg-type]

        def launching(self) -> Price:
            return Price(inf, inf)

    found = price_task(Hungry("acc"), Task("Relu", Work(1, 1)))[0]
    assert (type(found.seconds), found) == (float, Price(1.0, 1e30))
    assert price_launch(Hungry("acc")) == Price(3.2e10, 1e30)


def test_why_a_cost_is_not_known_is_a_short_sentence() -> None:
    class Vague(Knows):
        def execution(self, task: Task) -> Unknown:
            return Unknown("" if task.op == "Relu" else "no\nidea " * 1000)

    assert price_task(Vague("acc"), Task("Relu", Work(1, 1)))[1] == "acc does not say why"
    why = price_task(Vague("acc"), Task("Tanh", Work(1, 1)))[1]
    assert why.startswith("no idea no idea")
    assert len(why) == 200


def test_a_graph_all_on_one_device() -> None:
    index, _ = units_of()
    assert price_graph(index, GIVES) == (Price(1 + 20 + 0 + 1, 2 + 40 + 0 + 2), 4 + 4 + 0 + 4)
    assert price_graph(index, DEVICE)[0].seconds == 1 + 77 + 0 + 1
    assert price_graph(index, DEVICE, unknown=Policy.host)[0] == Price(inf, inf)
    with pytest.raises(InputError, match="1 of 4 units have no known cost on acc: Tanh 'b'"):
        price_graph(index, DEVICE, unknown=Policy.refuse)


def test_bodies_count_by_how_often_they_run() -> None:
    """Each branch of an If by half."""
    index = prepared("""
        g (float[4] x, bool c) => (float[4] y) {
          a = Relu (x)
          y = If <then_branch = t () => (float[4] u) { u = Tanh (a) },
                  else_branch = e () => (float[4] v) { v = Relu (a) }> (c)
        }""").index
    assert price_graph(index, HOST)[0] == Price(10 + 20 / 2 + 10 / 2, 20 + 40 / 2 + 20 / 2)
    assert price_graph(index, HOST)[1] == 4 + 4 / 2 + 4 / 2
    assert price_graph(index, DEVICE, unknown=Policy.host)[0] == Price(inf, inf)
