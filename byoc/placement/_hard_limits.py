"""Hard limits: the first that a placement breaks, and the repair of heuristic labels."""

import math

import numpy as np

from byoc.placement._form_regions import find_components, form_regions
from byoc.placement._placement_cost import find_transfers
from byoc.placement._problem import Bools, Floats, Ints, Problem


def find_broken_limit(problem: Problem, labels: Ints, regions: Ints) -> str:
    """Return a sentence on the first hard limit that is broken; empty if none is."""
    stray = np.flatnonzero(problem.must & (labels == 0))
    if stray.size:
        return f"it left unit {stray[0]} on the host, and it must be on an accelerator"
    device, nodes = _region_sizes(problem, labels, regions)
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
    return _find_barred_transfer(problem, labels)


def _find_barred_transfer(problem: Problem, labels: Ints) -> str:
    """Return a sentence on the first tensor that is needed where it cannot be sent; empty if none is."""
    if not problem.bars_transfers:
        return ""
    leaving, home, wanted = find_transfers(problem, labels)
    barred = leaving[np.isinf(problem.to_host[leaving, home[leaving] - 1])]
    if barred.size:
        made, device = problem.producer[barred[0]], home[barred[0]]
        return f"a result of unit {made} is needed elsewhere and cannot leave device {device}"
    for tensor, device in np.argwhere(wanted[:, 1:] & np.isinf(problem.to_device)):
        made = problem.producer[tensor]
        what = f"a result of unit {made}" if made >= 0 else "a graph input"
        return f"{what} is needed on device {1 + device} and cannot be sent there"
    return ""


def exceeds_capacity(problem: Problem, labels: Ints) -> Bools:
    """Mark devices whose units need more bytes than they have, bool (devices,), rounding tolerated."""
    taken = [math.fsum(problem.memory[labels == 1 + d, d]) for d in range(problem.devices)]
    return np.array(taken, np.float64) > problem.capacity * (1 + 2.0**-40)


def repair_labels(problem: Problem, labels: Ints) -> Ints:
    """Return labels whose regions keep the limits, int64 (units,), by moving units to the host.
    Regions that are too small go first, then those that lose least (per byte if memory is short) until
    the rest fits. Units that must be on an accelerator are not moved, so limits that they break stay
    broken (see `find_broken_limit`).
    """
    labels = np.where(np.take_along_axis(problem.allowed, labels[:, np.newaxis], 1)[:, 0], labels, 0)
    labels = _place_required(problem, labels)
    # Every round moves a unit; a few rounds are usual.
    for _ in range(_MAX_REPAIRS):
        regions = form_regions(problem, labels)
        leaving = _units_to_move(problem, labels, regions)
        if not leaving.size:
            return labels
        labels = labels.copy()
        labels[leaving] = 0
    return np.where(problem.must, labels, 0)


_MAX_REPAIRS = 64  # rounds, after which all that may goes to the host


def _place_required(problem: Problem, labels: Ints) -> Ints:
    """Move units that must be on an accelerator and are not to the fastest one."""
    costs = problem.costs[:, 1:]
    if not costs.shape[1]:
        return labels
    fastest: Ints = 1 + costs.argmin(axis=1)
    return np.where(problem.must & (labels == 0), fastest, labels)


def _region_sizes(problem: Problem, labels: Ints, regions: Ints) -> tuple[Ints, Ints]:
    """Return the device and the number of nodes of every region, int64 (regions,) each."""
    placed = regions >= 0
    device = np.zeros(int(regions.max(initial=-1)) + 1, np.int64)
    device[regions[placed]] = labels[placed]
    nodes = np.bincount(regions[placed], problem.size[placed], minlength=len(device))
    return device, nodes.astype(np.int64)


def _units_to_move(problem: Problem, labels: Ints, regions: Ints) -> Ints:
    """Return units to move to the host in this round, int64; empty if all limits are kept."""
    device, nodes = _region_sizes(problem, labels, regions)
    placed = np.flatnonzero(regions >= 0)
    stays = np.zeros(len(device), np.bool_)
    stays[regions[placed[problem.must[placed]]]] = True
    small = (nodes < problem.min_nodes[device - 1]) & ~stays
    if small.any():
        return placed[small[regions[placed]]]
    gain = _region_gains(problem, labels, regions, device)
    for number, most in enumerate(problem.max_regions.tolist(), 1):
        here = np.flatnonzero((device == number) & ~stays)
        excess = np.count_nonzero(device == number) - most
        if excess > 0 and here.size:
            least = here[np.argsort(gain[here], kind="stable")][:excess]
            return placed[np.isin(regions[placed], least)]
    for d in np.flatnonzero(exceeds_capacity(problem, labels)):
        return _units_to_evict(problem, labels, regions, gain, int(d))
    return placed[:0]


def _region_gains(problem: Problem, labels: Ints, regions: Ints, device: Ints) -> Floats:
    """Return the time that each region saves against the host without transfers, float64 (regions,)."""
    placed = regions >= 0
    gain = problem.seconds[placed, 0] - problem.seconds[placed, labels[placed]]
    saved = np.bincount(regions[placed], gain, minlength=len(device))
    return saved - problem.launch[device - 1]


def _units_to_evict(problem: Problem, labels: Ints, regions: Ints, gain: Floats, d: int) -> Ints:
    """Return units to evict from accelerator `d`, from the regions that save least per byte."""
    memory = problem.memory[:, d]
    here = np.flatnonzero((labels == 1 + d) & ~problem.must & (memory > 0))
    taken = np.bincount(regions[here], memory[here], minlength=len(gain))
    worth = np.divide(gain, taken, out=np.full(len(gain), np.inf), where=taken > 0)
    # The least valuable region first, its last units first: the rest of it is a prefix.
    order = here[np.lexsort((-here, regions[here], worth[regions[here]]))]
    over = math.fsum(memory[labels == 1 + d]) - problem.capacity[d]
    enough = int(np.searchsorted(np.cumsum(memory[order]), over)) + 1
    return order[:enough]


# Each round sends units to the host; few are needed.
_MAX_ROUNDS = 8


def make_feasible(problem: Problem, labels: Ints) -> Ints:
    """Return labels, int64 (units,), that keep the hard limits and split no inseparable units.
    Units connected by a tensor that cannot be transferred go to the device that is fastest for all of
    them. Units that exceed an accelerator's memory go, in topological order so that neighbours stay
    together, to the fastest accelerator with room for them (first fit), or to the host. Then regions
    that break a limit are dissolved (`repair_labels`).
    """
    group = find_inseparable_groups(problem)
    costs = _group_costs(problem, group)
    labels = _unite_groups(group, costs, labels)
    if exceeds_capacity(problem, labels).any():
        labels = _fit_memory(problem, group, costs, labels)
    for _ in range(_MAX_ROUNDS):
        labels = repair_labels(problem, labels)
        split = _is_split(group, labels)
        if not split.any():
            break
        labels = np.where(split[group] & ~problem.must, 0, labels)
    return labels


def find_inseparable_groups(problem: Problem) -> Ints:
    """Return a group number for each unit, int64 (units,), equal for inseparable units."""
    stuck = np.isinf(problem.to_device).all(axis=1) & np.isinf(problem.to_host).all(axis=1)
    stuck &= (problem.producer >= 0) & (problem.devices > 0)
    entry = stuck[problem.consumed]
    source, target = problem.producer[problem.consumed][entry], problem.consumers[entry]
    return find_components(problem.units, source, target, "weak")[1]


def _group_costs(problem: Problem, group: Ints) -> Floats:
    """Return the execution time of each group on each device, float64 (groups, 1 + devices)."""
    costs = np.zeros((int(group.max(initial=-1)) + 1, problem.devices + 1))
    np.add.at(costs, group, problem.costs)
    return costs


def _is_split(group: Ints, labels: Ints) -> Bools:
    """Mark groups that are on several devices, bool (groups,)."""
    count = int(group.max(initial=-1)) + 1
    least, most = np.full(count, np.iinfo(np.int64).max), np.zeros(count, np.int64)
    np.minimum.at(least, group, labels)
    np.maximum.at(most, group, labels)
    split: Bools = least < most
    return split


def _unite_groups(group: Ints, costs: Floats, labels: Ints) -> Ints:
    fastest: Ints = costs.argmin(axis=1).astype(np.int64)
    return np.where(_is_split(group, labels)[group], fastest[group], labels)


def _fit_memory(problem: Problem, group: Ints, costs: Floats, labels: Ints) -> Ints:
    memory = np.zeros((len(costs), problem.devices))
    np.add.at(memory, group, problem.memory)
    room = problem.capacity.copy()
    label_of = np.zeros(len(costs), np.int64)
    label_of[group] = labels
    _, first = np.unique(group, return_index=True)
    for number in np.argsort(first, kind="stable").tolist():
        if not label_of[number]:
            continue
        fits = np.isfinite(costs[number, 1:]) & (memory[number] <= room)
        if not fits[label_of[number] - 1]:
            label_of[number] = (
                1 + np.where(fits, costs[number, 1:], np.inf).argmin() if fits.any() else 0
            )
        if label_of[number]:
            room[label_of[number] - 1] -= memory[number, label_of[number] - 1]
    return label_of[group]
