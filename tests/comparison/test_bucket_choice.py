"""The best buckets are those of an exhaustive search; files of lengths are read or refused."""

from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import pytest
from comparison_parts import choose_row, choose_sizes, make_log_normal, pick_candidates, read_lengths

import byoc
from byoc.errors import InputError


def search(seconds: dict[int, float], lengths: dict[int, float], count: int) -> float:
    """Return the least expected seconds of all choices of at most so many sizes."""
    total, best = sum(lengths.values()), float("inf")
    for number in range(1, count + 1):
        for sizes in combinations(sorted(seconds), number):
            if sizes[-1] >= max(lengths):
                held = ((seconds[min(s for s in sizes if s >= n)], w) for n, w in lengths.items())
                best = min(best, sum(cost * weight for cost, weight in held) / total)
    return best


def check(random: Random) -> None:
    longest = random.randint(1, 12)
    lengths = {random.randint(1, longest): random.choice([1.0, 2.0, 0.25]) for _ in range(6)}
    extra = random.sample(range(1, 16), random.randint(0, 5))
    sizes = {max(lengths), *extra}
    grows = random.random() < 0.7
    seconds = {n: n**1.5 + 3 if grows else random.uniform(1, 9) for n in sizes}
    count = random.randint(1, 4)
    rows = choose_sizes(seconds, lengths, count)
    assert len(rows) <= count
    assert rows[-1].seconds == pytest.approx(search(seconds, lengths, count), rel=1e-12)
    for number, row in enumerate(rows):
        alone = search({size: seconds[size] for size in row.sizes}, lengths, len(row.sizes))
        assert row.seconds == pytest.approx(alone, rel=1e-12) or not grows
        assert row.saved is None or row.saved == pytest.approx(rows[number - 1].seconds - row.seconds)


def test_1000_distributions_give_what_exhaustive_search_does() -> None:
    for seed in range(1000):
        check(Random(seed))


def test_a_row_says_what_is_padding_and_a_bucket_may_cost_by_itself() -> None:
    seconds = {2: 2.0, 4: 4.0, 8: 8.0}
    rows = choose_sizes(seconds, {2: 2, 4: 1, 8: 1})
    assert [row.sizes for row in rows] == [(8,), (2, 8), (2, 4, 8)]
    assert [row.seconds for row in rows] == [8, 5, 4]
    assert [row.saved for row in rows] == [None, 3, 1]
    assert [round(row.padded, 3) for row in rows] == [0.5, 0.2, 0]
    assert choose_row(rows).sizes == (2, 4, 8)
    assert choose_row(rows, 2.0).sizes == (2, 8)
    assert choose_row(rows, 9.0).sizes == (8,)


def test_lengths_are_read(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("# tokens\n3\n\n3\n10 4\n12,2\n")
    assert read_lengths(path) == {3: 2, 10: 4, 12: 2}
    assert pick_candidates({3: 2, 10: 4, 12: 2}, 2) == [10, 12]
    assert read_lengths("log-normal") == make_log_normal(128, 1.0, 2048)
    found = make_log_normal(16, 0.5, 64)
    assert sum(found.values()) == pytest.approx(0.997, abs=0.001)
    assert sum(weight for n, weight in found.items() if n <= 16) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("3\nx\n", "line 2: neither a length nor a length and its count"),
        ("0\n", "line 1: neither a length nor a length and its count"),
        ("# none\n", "there are no lengths"),
    ],
)
def test_a_file_without_lengths_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=f"lengths.txt: {problem}"):
        read_lengths(path)
    with pytest.raises(InputError, match="missing: cannot be read"):
        read_lengths(tmp_path / "missing")
    with pytest.raises(InputError, match="no bucket holds the length 9"):
        choose_sizes({4: 1.0}, {9: 1.0})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("log-normal:128,0.01,4", "no length up to 4 has a probability"),
        ("log-normal:128,1,99999999", "lengths are at most 16777216"),
        ("log-normal:0,1,9", "each has to be above 0"),
    ],
)
def test_a_distribution_without_lengths_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=f"^{text}: {problem}$"):
        read_lengths(text)


@pytest.mark.parametrize(
    ("lengths", "problem"),
    [
        ([], "lengths: there are none"),
        ({8: 0.0}, "lengths: there are none"),
        ({8: float("inf")}, "lengths: 8 with the weight inf"),
        ({0: 1.0}, "lengths: 0 with the weight 1"),
    ],
)
def test_lengths_that_are_none_are_refused(lengths: Any, problem: str) -> None:
    with pytest.raises(InputError, match=f"^{problem}$"):
        byoc.choose_buckets("no such model", along="n", lengths=lengths, interpolate=True)
