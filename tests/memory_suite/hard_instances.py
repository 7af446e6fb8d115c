"""Solves MiniMalloc's hard instances: `python tests/memory_suite/hard_instances.py FOLDER [SECONDS]`.

FOLDER holds files such as `A.1048576.csv`, the number being the bytes to reach; those of the paper
(Moffitt, ASPLOS 2023) are `benchmarks/challenging` of https://github.com/google/minimalloc. Each gets
SECONDS, 60 unless given. The exit code is 1 when an answer is wrong.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

sys.path[:0] = [str(Path(__file__).parents[1] / "memory")]

from arena_searches import CompoundPart  # noqa: E402 - needs the path
from minimalloc import Instance, read_instance  # noqa: E402

from byoc.memory.arena import Compound, GreedyPacking, search_offsets  # noqa: E402
from byoc.numerics import SearchBudget  # noqa: E402


def main(arguments: Sequence[str]) -> int:
    """Print the table, and return the exit code."""
    seconds = float(arguments[1]) if len(arguments) > 1 else 60.0
    reached = wrong = 0
    files = sorted(Path(arguments[0]).glob("*.csv"))
    sys.stdout.write(f"{'instance':<14}{'buffers':>9}{'capacity':>10}{'found':>10}{'seconds':>9}\n")
    for path in files:
        instance = read_instance(path)
        capacity = int(path.stem.rsplit(".", 1)[-1])
        began = monotonic()
        offsets = search_offsets(GreedyPacking(_compounds(instance)), capacity, SearchBudget(seconds))
        took = monotonic() - began
        height = max(at + size for at, size in zip(offsets, instance.sizes, strict=True))
        wrong += _is_wrong(instance, offsets)
        reached += height <= capacity
        buffers = len(instance.sizes)
        sys.stdout.write(f"{path.stem:<14}{buffers:>9}{capacity:>10}{height:>10}{took:>9.1f}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{reached} of {len(files)} reach their capacity, {wrong} answers are wrong\n")
    return int(wrong > 0)


def _compounds(instance: Instance) -> list[Compound]:
    times = zip(instance.sizes, instance.lower, instance.upper, strict=True)
    return [Compound((CompoundPart(0, size, lower, upper - 1),)) for size, lower, upper in times]


def _is_wrong(instance: Instance, offsets: Sequence[int]) -> bool:
    rows = list(zip(instance.lower, instance.upper, offsets, instance.sizes, strict=True))
    return any(
        one[0] < other[1] and other[0] < one[1]
        and one[2] < other[2] + other[3] and other[2] < one[2] + one[3]
        for index, one in enumerate(rows)
        for other in rows[:index]
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
