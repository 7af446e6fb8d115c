"""Plans the twelve networks of ONNC's study: `python tests/memory_suite/twelve.py [NAME ...]`.

Prints bytes and the ratio to the proven bound for each method and convention, the seconds, and whether
the independent checker takes each plan. `--no-striped` leaves striped execution out. The exit code is 1
when a best plan is not proven minimal or a plan is refused.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from checkers.arena_check import check  # noqa: E402 - needs the path
from networks import twelve  # noqa: E402

from byoc.memory.arena import plan_buffers  # noqa: E402
from byoc.memory.reading import CONVENTIONS, read_memory_model  # noqa: E402
from byoc.memory.report._memory_report import plan_striped  # noqa: E402
from byoc.model import prepare_model  # noqa: E402

_WAYS = (
    *(("A", "exact"), ("A", "no-reuse"), ("A", "best-fit"), ("A", "by-size"), ("A", "reordered")),
    *(("B", "exact"), ("C", "exact"), ("C", "best-fit"), ("D", "exact")),
)


@dataclass(frozen=True)
class Line:
    """One plan of a network; `bound` is that of its convention, that of C for striped execution."""

    model: str
    convention: str
    method: str
    size: int
    bound: int
    seconds: float
    verdict: str


def lines(names: Sequence[str], with_stripes: bool) -> Iterator[Line]:
    """Yield the plans of the networks."""
    for name, make in twelve().items():
        if names and name not in names:
            continue
        index = prepare_model(make(), name).index
        bounds: dict[str, int] = {}
        for letter, method in _WAYS:  # the exact plan first: others profit from what it proves
            start = time.perf_counter()
            problem = read_memory_model(index, CONVENTIONS[letter], source=name).problem
            made = plan_buffers(problem, method)
            seconds = time.perf_counter() - start
            wrong = check(made)
            verdict = f"REFUSED: {wrong[0]}" if wrong else f"accepted, bound by {made.proof}"
            bounds[letter] = max(made.bound, bounds.get(letter, 0))
            yield Line(name, letter, method, made.size, bounds[letter], seconds, verdict)
        if with_stripes:
            start = time.perf_counter()
            banded = plan_striped(index, name, 1)
            seconds = time.perf_counter() - start
            if isinstance(banded, str):
                continue
            cascades = f"{len(banded.plan.groups)} cascades, {len(banded.plan.bands)} bands"
            yield Line(name, "C", "striped", banded.plan.size, bounds["C"], seconds, cascades)


def main(arguments: Sequence[str]) -> int:
    """Print the table, and return the exit code."""
    names = [name for name in arguments if not name.startswith("--")]
    sys.stdout.write(f"{'model':<14}{'counts':<7}{'method':<11}{'bytes':>11}{'bound':>11}")
    sys.stdout.write(f"{'ratio':>8}{'seconds':>9}  certificate\n")
    found = []
    for line in lines(names, "--no-striped" not in arguments):
        found.append(line)
        sys.stdout.write(
            f"{line.model:<14}{line.convention:<7}{line.method:<11}{line.size:>11}{line.bound:>11}"
            f"{line.size / line.bound:>8.3f}{line.seconds:>9.2f}  {line.verdict}\n"
        )
        sys.stdout.flush()
    best = [line for line in found if line.method == "exact"]
    minimal = [line for line in best if line.size == line.bound]
    refused = [line for line in found if line.verdict.startswith("REFUSED")]
    sys.stdout.write(f"{len(minimal)} of {len(best)} exact plans are minimal, {len(refused)} refused\n")
    return int(len(minimal) < len(best) or bool(refused))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
