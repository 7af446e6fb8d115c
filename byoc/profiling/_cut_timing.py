"""The cost of cuts: models run as two regions instead of one, and a link fitted to the difference.

A library that sees a whole keeps tensors in layouts of its own, and fuses across operators; at a cut
it loses that, and a tensor is copied. On the host it is the same, so that leaving the device and coming
back to it, which is what is measured, stands for one crossing between host and device.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from byoc.costs import HostLink
from byoc.errors import ByocError
from byoc.model import Model
from byoc.profiling._codegen_timing import (
    MeasuredCodegen,
    RegionCall,
    cut_regions,
    list_units,
    open_call,
)
from byoc.profiling._sampling import Patience
from byoc.rules import Target
from byoc.support import report_step

_PLACES = (1 / 3, 2 / 3)  # of a model's operations that stand before the cut
_LEAST_CUTS = 4
_ROUNDS = 11
_LEAST_ROUNDS = 3
_RUNS = Patience(warmup=0, least=2, most=2)  # of a region in a round


@dataclass(frozen=True, slots=True)
class MeasuredCut:
    """A model in two regions: what crosses between them, and the seconds more than as one region.

    `whole` has the seconds as one. Noise may make `seconds` negative.
    """

    tensors: int
    size: int
    seconds: float
    whole: float


def time_cuts(
    model: Model, target: Target | None, device: MeasuredCodegen, launch: float
) -> list[MeasuredCut]:
    """Measure a model in two regions, cut after a third and after two thirds of its operations.

    The whole and both parts run in turn, so that load on the machine slows all of them; the medians of
    the rounds count. A cut that cannot be made is left out. The device has to run all of the model.
    """
    units, tasks = list_units(model, target)
    work = np.cumsum([task.work.operations for task in tasks])
    places = {int(np.searchsorted(work, share * work[-1])) + 1 for share in _PLACES}
    found = []
    for place in sorted(places & set(range(1, len(units)))):
        report_step(f"{model.source}: cut at {place} of {len(units)}")
        try:
            (whole,) = cut_regions(model, target, {"whole": units}).values()
            calls = cut_regions(model, target, {"before": units[:place], "after": units[place:]})
            rounds = _measure_rounds(model, target, device, {"whole": whole, **calls})
        except ByocError:
            continue
        crossing = {*calls["before"][1].output} & {*calls["after"][1].input}
        sizes = [kind.bytes or 0 for n in crossing if (kind := model.index.types.get(n)) is not None]
        extra = float(np.median(rounds[:, 1] + rounds[:, 2] - rounds[:, 0])) - launch
        found.append(MeasuredCut(len(sizes), sum(sizes), extra, float(np.median(rounds[:, 0]))))
    return found


def _measure_rounds(
    model: Model, target: Target | None, device: MeasuredCodegen, calls: Mapping[str, RegionCall]
) -> NDArray[np.float64]:
    """Return the seconds of regions that run in turn, float64 (rounds, regions)."""
    with ExitStack() as opened:
        regions = [
            opened.enter_context(open_call(model, target, device, name, call))
            for name, call in calls.items()
        ]
        rounds: list[list[float]] = []
        spent = 0.0
        while len(rounds) < _ROUNDS and (
            len(rounds) < _LEAST_ROUNDS or spent < len(regions) * device.patience.seconds
        ):
            rounds.append([min(region.measure(_RUNS, device.clock)) for region in regions])
            spent += sum(rounds[-1])
        return np.array(rounds)


def fit_link(cuts: Sequence[MeasuredCut], copies: HostLink) -> HostLink:
    """Return the link that explains cuts best; with fewer than four cuts that of copying arrays.

    Non-negative least squares of what is left, as shares of the seconds of wholes. A crossing takes no
    less than a copy.
    """

    if len(cuts) < _LEAST_CUTS:
        return copies
    rows = np.array([[cut.tensors / cut.whole, cut.size / cut.whole] for cut in cuts])
    targets = np.array([cut.seconds / cut.whole for cut in cuts])
    scale = np.maximum(rows.max(axis=0), 1e-300)
    latency, byte = (scipy.optimize.nnls(rows / scale, targets)[0] / scale).tolist()
    byte = max(byte, 1 / copies.bandwidth)
    bandwidth = 1 / byte if byte else float("inf")
    return HostLink(bandwidth=bandwidth, latency=max(latency, copies.latency))


def describe_link(link: HostLink, cuts: int) -> list[str]:
    """Return a sentence that says what crossing takes, if it was fitted to cuts."""
    if cuts < _LEAST_CUTS:
        return []
    byte = f"{1e9 / link.bandwidth:.2g} ns for each byte"
    return [f"{cuts} cuts: what crosses takes {byte} and {link.latency * 1e6:.2g} us for each tensor"]
