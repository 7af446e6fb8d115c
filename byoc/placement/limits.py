"""Hard limits: what a placement breaks, and taking regions away until nothing is broken."""

import math

import numpy as np

from byoc.placement.problem import Bools, Floats, Ints, Problem
from byoc.placement.regions import form_regions


def breach(problem: Problem, labels: Ints, regions: Ints) -> str:
    """Return a sentence on the first hard limit that is broken, empty when none is."""
    stray = np.flatnonzero(problem.must & (labels == 0))
    if stray.size:
        return f"it left unit {stray[0]} on the host, and it must be on an accelerator"
    device, nodes = _regions(problem, labels, regions)
    small = np.flatnonzero(nodes < problem.min_nodes[device - 1])
    if small.size:
        least = problem.min_nodes[device[small[0]] - 1]
        return f"region {small[0]} has {nodes[small[0]]} nodes, and {least} is the least"
    large = np.flatnonzero(nodes > problem.max_nodes[device - 1])
    if large.size:
        most = problem.max_nodes[device[large[0]] - 1]
        return f"region {large[0]} has {nodes[large[0]]} nodes, and {most} is the most"
    count = np.bincount(device, minlength=1 + problem.devices)[1:]
    for d in np.flatnonzero(count > problem.max_regions):
        return f"device {1 + d} has {count[d]} regions, and {problem.max_regions[d]} is the most"
    for d in np.flatnonzero(exceeds_capacity(problem, labels)):
        taken = math.fsum(problem.memory[labels == 1 + d, d])
        return f"device {1 + d} holds {taken:g} bytes, and {problem.capacity[d]:g} is its capacity"
    return ""


def exceeds_capacity(problem: Problem, labels: Ints) -> Bools:
    """Tell which devices hold more bytes than they have, bool (devices,); rounding is forgiven."""
    taken = [math.fsum(problem.memory[labels == 1 + d, d]) for d in range(problem.devices)]
    return np.array(taken, np.float64) > problem.capacity * (1 + 2.0**-40)


def repaired(problem: Problem, labels: Ints) -> Ints:
    """Return labels whose regions keep the limits, int64 (units,), by moving units to the host.

    Too small regions go first; then those that lose least, per byte where memory is short, until
    the rest fits. Units that must be on an accelerator stay where they are, and what they break
    remains broken: `breach` tells.
    """
    labels = np.where(np.take_along_axis(problem.allowed, labels[:, np.newaxis], 1)[:, 0], labels, 0)
    labels = _musts_placed(problem, labels)
    # Every round moves a unit; a handful is usual.
    for _ in range(_MOST_ROUNDS):
        regions = form_regions(problem, labels)
        leaving = _too_many(problem, labels, regions)
        if not leaving.size:
            return labels
        labels = labels.copy()
        labels[leaving] = 0
    return np.where(problem.must, labels, 0)


_MOST_ROUNDS = 64


def _musts_placed(problem: Problem, labels: Ints) -> Ints:
    """Send what must be on an accelerator to the one where it is fastest."""
    costs = problem.costs[:, 1:]
    if not costs.shape[1]:
        return labels
    fastest: Ints = 1 + costs.argmin(axis=1)
    return np.where(problem.must & (labels == 0), fastest, labels)


def _regions(problem: Problem, labels: Ints, regions: Ints) -> tuple[Ints, Ints]:
    """Return device and nodes of every region, int64 (regions,) each."""
    placed = regions >= 0
    device = np.zeros(int(regions.max(initial=-1)) + 1, np.int64)
    device[regions[placed]] = labels[placed]
    nodes = np.bincount(regions[placed], problem.size[placed], minlength=len(device))
    return device, nodes.astype(np.int64)


def _too_many(problem: Problem, labels: Ints, regions: Ints) -> Ints:
    """Return units to move to the host in this round, int64, none where all limits are kept."""
    device, nodes = _regions(problem, labels, regions)
    placed = np.flatnonzero(regions >= 0)
    stays = np.zeros(len(device), np.bool_)
    stays[regions[placed[problem.must[placed]]]] = True
    small = (nodes < problem.min_nodes[device - 1]) & ~stays
    if small.any():
        return placed[small[regions[placed]]]
    loss = _losses(problem, labels, regions, device)
    for number, most in enumerate(problem.max_regions.tolist(), 1):
        here = np.flatnonzero((device == number) & ~stays)
        excess = np.count_nonzero(device == number) - most
        if excess > 0 and here.size:
            least = here[np.argsort(loss[here], kind="stable")][:excess]
            return placed[np.isin(regions[placed], least)]
    for d in np.flatnonzero(exceeds_capacity(problem, labels)):
        return _evicted(problem, labels, regions, loss, int(d))
    return placed[:0]


def _losses(problem: Problem, labels: Ints, regions: Ints, device: Ints) -> Floats:
    """Return what each region saves against the host, transfers left out, float64 (regions,)."""
    placed = regions >= 0
    gain = problem.seconds[placed, 0] - problem.seconds[placed, labels[placed]]
    saved = np.bincount(regions[placed], gain, minlength=len(device))
    return saved - problem.launch[device - 1]


def _evicted(problem: Problem, labels: Ints, regions: Ints, loss: Floats, d: int) -> Ints:
    """Return units that make room on accelerator `d`: regions of least loss per byte, from the end."""
    memory = problem.memory[:, d]
    here = np.flatnonzero((labels == 1 + d) & ~problem.must & (memory > 0))
    taken = np.bincount(regions[here], memory[here], minlength=len(loss))
    worth = np.divide(loss, taken, out=np.full(len(loss), np.inf), where=taken > 0)
    # The region worth least first, and in it the last units: what stays of it is still a prefix.
    order = here[np.lexsort((-here, regions[here], worth[regions[here]]))]
    over = math.fsum(memory[labels == 1 + d]) - problem.capacity[d]
    enough = int(np.searchsorted(np.cumsum(memory[order]), over)) + 1
    return order[:enough]
