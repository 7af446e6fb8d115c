"""Numbers formatted for people."""

import pytest

from byoc.console import format_count, format_quantity, format_share
from byoc.costs import objective_unit


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "s", "0 s"),
        (0.0041, "s", "4.10 ms"),
        (0.0123, "s", "12.3 ms"),
        (0.123, "s", "123 ms"),
        (1, "s", "1 s"),
        (59.96, "s", "60.0 s"),
        (1234.5, "s", "1234 s"),
        (1e-3, "s", "1 ms"),
        (52.3e-6, "s", "52.3 µs"),
        (1.5e-9, "s", "1.50 ns"),
        (2.5e-10, "s", "2.5e-10 s"),
        (0.009996, "s", "10.0 ms"),
        (0.09996, "s", "100 ms"),
        (0, "B", "0 B"),
        (1, "B", "1 B"),
        (1023, "B", "1023 B"),
        (1024, "B", "1 KiB"),
        (1536, "B", "1.50 KiB"),
        (602112, "B", "588 KiB"),
        (2**20, "B", "1 MiB"),
        (574671192, "B", "548 MiB"),
        (2**40, "B", "1 TiB"),
        (2**50, "B", "1 PiB"),
        (2**82, "B", "4 YiB"),
        (2**92, "B", "4096 YiB"),
        (0.0041, "J", "4.10 mJ"),
        (12, "J", "12 J"),
        (0.0041, "", "0.0041"),
        (1234.56, "", "1235"),
        (0, "", "0"),
    ],
)
def test_quantities(value: float, unit: str, text: str) -> None:
    assert format_quantity(value, unit) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.0 %"),
        (0.5, "50.0 %"),
        (0.9876, "98.8 %"),
        (0.9994, "99.9 %"),
        (0.99999999, "99.9 %"),
        (1, "100 %"),
        (1.0, "100 %"),
    ],
)
def test_a_share_is_never_rounded_up_to_the_whole(value: float, text: str) -> None:
    assert format_share(value) == text


@pytest.mark.parametrize(
    ("objective", "unit"),
    [
        ("latency", "s"),
        ("latency=1", "s"),
        ("energy", "J"),
        ("energy=1", "J"),
        ("energy=2", ""),
        ("latency=1,energy=0.5", ""),
    ],
)
def test_the_unit_of_an_objective(objective: str, unit: str) -> None:
    assert objective_unit(objective) == unit


@pytest.mark.parametrize(("number", "text"), [(0, "0 regions"), (1, "1 region"), (2, "2 regions")])
def test_counts(number: int, text: str) -> None:
    assert format_count(number, "region") == text
