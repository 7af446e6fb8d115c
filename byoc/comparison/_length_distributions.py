"""Distributions of lengths: from a file of lengths or a histogram, or log-normal."""

import re
from collections import Counter
from collections.abc import Mapping
from math import erf, log, sqrt
from pathlib import Path

from byoc.errors import InputError
from byoc.support import read_limited

MAX_LENGTH = 1 << 24
_MAX_BYTES = 1 << 26
_LINE = re.compile(r"(\d{1,9})(?:[\s,;]+(\d{1,12}))?")
_LOG_NORMAL = re.compile(r"log-normal(?::(\d{1,8}),(\d+(?:\.\d+)?),(\d{1,8}))?")


def read_lengths(text: str | Path) -> dict[int, float]:
    """Return the weights of lengths of a file, or of `log-normal:MEDIAN,SIGMA,MAX`.

    A file has a length on each line, or a length and how often it occurs; empty lines and those that
    begin with `#` are left out. A log-normal distribution has the median 128, sigma 1 and lengths up to
    2048 unless given; what is beyond is left out. Raises InputError for a line that is neither.
    """
    found = _LOG_NORMAL.fullmatch(str(text))
    if found is not None:
        median, sigma, most = found.groups()
        return make_log_normal(int(median or 128), float(sigma or 1), int(most or 2048))
    path = Path(text)
    try:
        with path.open("rb") as file:
            lines = read_limited(file, _MAX_BYTES).decode("utf-8", "replace").splitlines()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    counts: Counter[int] = Counter()
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        read = _LINE.fullmatch(stripped)
        if read is None or not 1 <= int(read[1]) <= MAX_LENGTH:
            raise InputError(f"{path}: line {number}: neither a length nor a length and its count")
        counts[int(read[1])] += int(read[2] or 1)
    if not any(counts.values()):
        raise InputError(f"{path}: there are no lengths")
    return {length: float(count) for length, count in counts.items() if count}


def make_log_normal(median: int, sigma: float, most: int) -> dict[int, float]:
    """Return the weights of the lengths from 1 to `most` whose logarithms are normally distributed.

    A length has the probability of what rounds up to it. `median` is that of the whole distribution,
    `sigma` the standard deviation of the natural logarithm. Raises InputError where one is not above 0.
    """
    if median < 1 or not sigma > 0 or not 1 <= most <= MAX_LENGTH:
        raise InputError(f"log-normal:{median},{sigma:g},{most}: each has to be above 0")
    ends = [0.5 * (1 + erf(log(n / median) / (sigma * sqrt(2)))) for n in range(1, most + 1)]
    return {n: end - before for n, (before, end) in enumerate(zip([0.0, *ends], ends, strict=False), 1)}


def pick_candidates(lengths: Mapping[int, float], count: int) -> list[int]:
    """Return at most so many sizes for buckets: all lengths, or those at equal steps of the weights.

    The longest is always among them.
    """
    known = sorted(length for length, weight in lengths.items() if weight > 0)
    if len(known) <= count:
        return known
    total = sum(lengths[length] for length in known)
    picked: list[int] = []
    passed = 0.0
    for length in known:
        passed += lengths[length]
        if passed >= total * (len(picked) + 1) / count:
            picked.append(length)
    return sorted({*picked[: count - 1], known[-1]})
