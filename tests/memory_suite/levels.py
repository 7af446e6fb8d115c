"""Plans two levels of memory for twelve networks: `python tests/memory_suite/levels.py [NAME ...]`.

Scratchpads of 128 KiB, 512 KiB and 2 MiB, activations alone (convention C), in the order with the
smallest arena. Prints the bytes moved: with nothing kept, by the plan, its proven bound, with no end of
room; and the seconds. The exit code is 1 when the independent replay refuses a plan.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from checkers.scratchpad_check import objections  # noqa: E402 - needs the path
from networks import twelve  # noqa: E402

from byoc.memory.arena import plan_buffers  # noqa: E402
from byoc.memory.reading import read_memory_model  # noqa: E402
from byoc.memory.report._memory_report import plan_for_scratchpad  # noqa: E402
from byoc.model import prepare_model  # noqa: E402

_SIZES = (128, 512, 2048)
_ALIGNMENT = 64


def main(names: Sequence[str]) -> int:
    """Print the table, and return the exit code."""
    networks = twelve()
    sys.stdout.write(f"{'model':<14}{'KiB':>5}{'unkept':>11}{'moved':>11}{'bound':>11}{'gap':>9}")
    sys.stdout.write(f"{'unlimited':>11}{'loads':>7}{'stores':>7}{'arena':>10}{'seconds':>9}\n")
    refused = 0
    for name in names or networks:
        index = prepare_model(networks[name](), name).index
        whole = plan_buffers(read_memory_model(index, alignment=_ALIGNMENT).problem)
        for size in _SIZES:
            start = time.perf_counter()
            levels = plan_for_scratchpad(whole, size * 1024)
            seconds = time.perf_counter() - start
            gap = (levels.moved - levels.bound) / levels.moved if levels.moved else 0.0
            sys.stdout.write(
                f"{name:<14}{size:>5}{levels.unkept:>11}{levels.moved:>11}{levels.bound:>11}"
                f"{gap:>9.4%}{levels.unlimited:>11}{levels.loads:>7}{levels.stores:>7}{levels.arena:>10}"
                f"{seconds:>9.2f}\n"
            )
            for objection in objections(levels):
                refused += 1
                sys.stdout.write(f"REFUSED {objection}\n")
            sys.stdout.flush()
    return int(refused > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
