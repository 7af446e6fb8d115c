"""The oracle: every placement is tried."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from byoc.errors import InputError
from byoc.placement.objective import evaluate
from byoc.placement.problem import Floats, Ints, Problem
from byoc.placement.regions import form_regions
from byoc.placement.strategy import CHEAPER_ON_HOST, Placement

_MOST = 2**16


@dataclass(frozen=True)
class Exhaustive:
    """Try every placement, for problems of up to 16 units on one accelerator and fewer on several.

    With `include_launch` the objective is the whole of it, with regions as `form_regions` makes
    them; without, execution plus transfer.
    """

    name: ClassVar[str] = "exhaustive"
    include_launch: bool = True

    def solve(self, problem: Problem) -> Placement:
        """Return the best placement. Raises InputError where there are too many to try."""
        count = (1 + problem.devices) ** problem.units
        if count > _MOST:
            raise InputError(
                f"strategy exhaustive tries at most {_MOST} placements (16 units with one "
                f"accelerator); {problem.units} units and {problem.devices} accelerators have "
                f"{1 + problem.devices}^{problem.units}: choose another strategy"
            )
        weights = (1 + problem.devices) ** np.arange(problem.units)
        labels = np.arange(count)[:, np.newaxis] // weights % (1 + problem.devices)
        seconds = _execution_and_transfer(problem, labels)
        # Ties stay on the host.
        best = int(np.lexsort((np.count_nonzero(labels, axis=1), seconds))[0])
        least = float(seconds[best])
        if not problem.launch.any():
            return Placement.of(problem, labels[best], least, why_host=CHEAPER_ON_HOST)
        if not self.include_launch:
            notes = ("launches played no part in the choice",)
            return Placement.of(problem, labels[best], least, notes, why_host=CHEAPER_ON_HOST)
        best, total = _with_launch(problem, labels, seconds)
        if problem.devices == 1 and not problem.connected[0]:
            return Placement.of(problem, labels[best], total, why_host=CHEAPER_ON_HOST)
        notes = ("the same labels may allow fewer regions, so the bound leaves launches out",)
        return Placement.of(problem, labels[best], least, notes, why_host=CHEAPER_ON_HOST)


def _execution_and_transfer(problem: Problem, labels: Ints) -> Floats:
    """Cost many placements at once: int64 (placements, units) to float64 (placements,)."""
    seconds: Floats = problem.seconds[np.arange(problem.units), labels].sum(axis=1)
    for tensor, producer in enumerate(problem.producer.tolist()):
        first, last = problem.consumer_start[tensor : tensor + 2]
        at = labels[:, problem.consumers[first:last]]
        home = labels[:, producer] if producer >= 0 else np.zeros(len(labels), np.int64)
        leaves = ((at != home[:, np.newaxis]).any(axis=1) | problem.is_output[tensor]) & (home > 0)
        seconds[leaves] += problem.to_host[tensor, home[leaves] - 1]
        for device in range(1, 1 + problem.devices):
            arrives = (at == device).any(axis=1) & (home != device)
            seconds[arrives] += problem.to_device[tensor, device - 1]
    return seconds


def _with_launch(problem: Problem, labels: Ints, seconds: Floats) -> tuple[int, float]:
    """Return the best placement with launches counted, and its total."""
    used = np.stack([(labels == 1 + d).any(axis=1) for d in range(problem.devices)], axis=1)
    at_least = seconds + used @ problem.launch
    best, total = 0, float(seconds[0])
    for number in np.lexsort((np.count_nonzero(labels, axis=1), at_least)).tolist():
        if at_least[number] >= total:
            break
        regions = form_regions(problem, labels[number])
        candidate = float(seconds[number]) + evaluate(problem, labels[number], regions).launch
        if candidate < total:
            best, total = number, candidate
    return best, total
