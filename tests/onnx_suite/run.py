"""Runs all of ONNX's backend tests through byoc: `python tests/onnx_suite/run.py [JOBS]`.

Prints a table and every failure; the exit code is 1 when there is one.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from partitioned import WAYS, Outcome, check  # noqa: E402 - needs the path
from suite import Case, collect, operators  # noqa: E402

_JOBS = 2
_RANDOM = {"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"}
_cases: list[Case] = []


def run(jobs: int = _JOBS) -> list[Outcome]:
    """Return the outcome of every case, in the order of `collect`, found by a number of processes."""
    count = len(collect())
    outcomes = {}
    # Each process makes the cases anew: fresh ones, since onnxruntime's threads do not outlive a fork.
    with ProcessPoolExecutor(jobs, get_context("spawn"), _collect) as pool:
        asked = {pool.submit(_check, number): number for number in range(count)}
        for done in as_completed(asked):
            number = asked[done]
            try:
                outcomes[number] = done.result()
            except BrokenProcessPool:  # a crash in native code takes the process along
                outcomes[number] = Outcome(str(number), "", failures=dict.fromkeys(WAYS, "not finished"))
    return [outcomes[number] for number in range(count)]


def summary(outcomes: Sequence[Outcome], random: Iterable[str]) -> Iterator[str]:
    """Yield the lines of the table, the reasons for what does not count, and the failures."""
    fit = [outcome for outcome in outcomes if not outcome.unfit]
    unfit = Counter(map(_kind, (outcome.unfit for outcome in outcomes if outcome.unfit)))
    drawn = {outcome.case for outcome in outcomes if outcome.unfit} & set(random)
    yield f"{len(outcomes)} cases: " + ", ".join(
        f"{number} {kind}" for kind, number in Counter(o.kind for o in outcomes).items()
    )
    yield (
        f"{len(fit)} count; {len(outcomes) - len(fit)} do not, since plain onnxruntime does not give "
        f"what is expected; {len(drawn)} of these are random; "
        f"{sum(o.lowered for o in fit)} of those that count run in an older operator set"
    )
    yield from (f"{number:6} {reason}" for reason, number in unfit.most_common())
    yield f"{'placement':<15}{'bundle':>14}{'whole model':>14}{'regions':>9}{'cases with one':>16}"
    for way in WAYS:
        bundles, wholes = (
            f"{len(fit) - sum(way in failed for failed in found)}/{len(fit)}"
            for found in ([o.failures for o in fit], [o.whole for o in fit])
        )
        regions = [outcome.regions.get(way, 0) for outcome in fit]
        cut = sum(number > 0 for number in regions)
        yield f"{way:<15}{bundles:>14}{wholes:>14}{sum(regions):>9}{cut:>16}"
    for outcome in fit:
        for what, found in (("bundle", outcome.failures), ("whole model", outcome.whole)):
            yield from (f"FAILED {outcome.case} {way}, {what}: {why}" for way, why in found.items())


def main(arguments: Sequence[str]) -> int:
    """Run everything, print, and return the exit code."""
    start = time.monotonic()
    outcomes = run(int(arguments[0]) if arguments else _JOBS)
    random = [case.name for case in collect() if operators(case.model) & _RANDOM]
    for line in summary(outcomes, random):
        sys.stdout.write(f"{line}\n")
    sys.stdout.write(f"{time.monotonic() - start:.0f} s\n")
    return int(any(outcome.failures or outcome.whole for outcome in outcomes))


def _collect() -> None:
    _cases.extend(collect())


def _check(number: int) -> Outcome:
    return check(_cases[number])


def _kind(reason: str) -> str:
    """Return a reason without what is different in each case."""
    for mark in ("Numpy_type", "NOT_IMPLEMENTED", "INVALID_GRAPH", "operator set 27", "operator set 28"):
        if mark in reason:
            return mark
    return "off, or of another type" if "output '" in reason else "onnxruntime failed otherwise"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
