"""Striped execution of the twelve networks of ONNC's study: planned, checked, and executed.

    python tests/memory_suite/striped.py [NAME ...]

For each network: the bound on any arena that executes layer by layer (LB* of convention C, proven by
`byoc.memory.arena`), the bytes of the striped arena with scratch, their ratio, the seconds that planning
took, and the largest error against onnxruntime when the plan was executed in an arena of that size.
"""

import sys
import time
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("memory_suite", "memory", "")]

from arena import error, execute, plan_rows, random_feeds, read_rows, reference  # noqa: E402
from checkers.stripes_check import check  # noqa: E402
from networks import twelve  # noqa: E402 - needs the path

from byoc.memory.arena import plan_buffers as plan_layers  # noqa: E402
from byoc.memory.reading import CONVENTIONS, read_memory_model  # noqa: E402

_ALIGNMENT = 64


def main(names: list[str]) -> None:
    """Print the table."""
    ratios = []
    sys.stdout.write(
        f"{'network':<14}{'LB*(C)':>10}{'striped':>10}{'ratio':>8}{'seconds':>9}{'error':>10}"
    )
    sys.stdout.write(f"{'cascades':>10}\n")
    for name, make in twelve().items():
        if names and name not in names:
            continue
        model = make()
        index, rows = read_rows(model)
        whole = plan_layers(read_memory_model(index, CONVENTIONS["C"], _ALIGNMENT).problem, "exact")
        begin = time.perf_counter()
        plan = plan_rows(rows, _ALIGNMENT)
        seconds = time.perf_counter() - begin
        check(rows.tensors, rows.layers, rows.inputs, rows.outputs, plan)
        feeds = random_feeds(index)
        apart = error(execute(index, rows, plan, feeds), reference(model, feeds))
        ratios.append(plan.size / whole.bound)
        sys.stdout.write(
            f"{name:<14}{whole.bound:>10}{plan.size:>10}{ratios[-1]:>8.3f}{seconds:>9.2f}{apart:>10.1e}"
            f"{len(plan.groups):>10}\n"
        )
        sys.stdout.flush()
    sys.stdout.write(f"geometric mean of the ratios: {np.exp(np.mean(np.log(ratios))):.3f}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
