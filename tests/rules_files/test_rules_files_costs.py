"""The cost models of the shipped rule files say what their published figures come to."""

import pytest
from shipped_rules import target

from byoc.costs import Roofline, Task, Work, load_device_costs


def costs_of(name: str) -> Roofline:
    """Return the cost model that a rule file names."""
    costs = load_device_costs(target(name).cost_model)
    assert isinstance(costs, Roofline)
    return costs


@pytest.mark.parametrize(
    ("name", "dtype", "rate"),
    [
        ("tensorrt-dla", "int8", 105e12 / 2 / 2),  # of two cores; dense work at half the sparse rate
        ("ethos-u55", "int8", 256 * 2 * 500e6),  # multiply-accumulates a cycle, two operations, 500 MHz
        ("ethos-u65", "int8", 256 * 2 * 1e9),
        ("ethos-u85", "int8", 256 * 2 * 1e9),
        ("nnpa", "float32", 6e12),
        ("nnpa", "float16", 6e12),
    ],
)
def test_a_peak_rate_is_the_published_one(name: str, dtype: str, rate: float) -> None:
    costs = costs_of(name)
    bound = (
        costs.estimate(Task("Conv", Work(operations=10**15, bytes=0), dtype)).seconds - costs.overhead
    )
    assert bound == pytest.approx(1e15 / rate)


@pytest.mark.parametrize("name", ["tensorrt-dla", "ethos-u55", "ethos-u65", "ethos-u85"])
def test_memory_that_is_shared_costs_nothing_to_cross(name: str) -> None:
    assert costs_of(name).transfer(10**9).seconds == 0


def test_crossing_to_the_nnpa_is_a_conversion_of_each_element() -> None:
    costs = costs_of("nnpa")
    stick, unstick = 2 * 97.4e-12, 2 * 104.8e-12
    assert costs.transfer(4 * 10**6).seconds == pytest.approx((stick + unstick) / 2 * 1e6, rel=0.02)


def test_an_addition_on_the_nnpa_takes_what_was_measured() -> None:
    costs = costs_of("nnpa")
    found = costs.estimate(Task("Add", Work(operations=10**7, bytes=12 * 10**7), "float32"))
    assert found.seconds == pytest.approx(2.1e-6 + 2 * 38.84e-12 * 1e7, rel=0.01)
