"""Hard limits: the first that a placement breaks, and the repair of heuristic labels."""

import math

import numpy as np

from byoc._dataclasses import dataclass
from byoc.placement._conditions import (
    find_sharing_devices,
    fix_reloads,
    list_reloading,
    sum_direct_transfers,
)
from byoc.placement._form_regions import find_components, form_regions
from byoc.placement._problem import Bools, Floats, Ints, Occupancy, Problem

# The cost of a placement: execution, transfer and launch.


@dataclass(frozen=True)
class Cost:
    """Seconds of one inference that does one thing at a time; inf if a device refuses a unit."""

    execution: float
    transfer: float
    launch: float
    saved: float = 0.0
    """Seconds of execution saved by the chosen fusions."""

    @property
    def total(self) -> float:
        """Total seconds."""
        return self.execution + self.transfer + self.launch - self.saved


def evaluate(problem: Problem, labels: Ints, regions: Ints, fusions: tuple[int, ...] = ()) -> Cost:
    """Return the cost of running unit `v` on device `labels[v]` as part of region `regions[v]`.
    `labels` and `regions` are int64 (units,); a unit on the host has region -1. A tensor is paid for
    once per direction and device, however many consumers it has there, and travels from one accelerator
    to another by way of the host, or by a direct link where that is cheaper. Weights that are loaded
    anew in each run are part of the execution. `fusions` are the chosen
    ones, each within one region. Sums are rounded once (`math.fsum`), so they do not depend on the order
    of the units. Raises ValueError if the
    arguments do not fit the problem or one another.
    """
    devices = find_region_devices(problem, labels, regions)
    for number in fusions:
        members = list(problem.fusions[number].members)
        if (labels[members] != problem.fusions[number].device).any() or np.ptp(regions[members]):
            raise ValueError(f"fusion {number} is chosen and not in one region of its device")
    return Cost(
        math.fsum(fix_reloads(problem, labels).seconds[np.arange(problem.units), labels]),
        _transfer_seconds(problem, labels),
        math.fsum(problem.launch[devices - 1]),
        math.fsum(problem.fusions[number].saving for number in fusions),
    )


def count_transferred_bytes(problem: Problem, labels: Ints, sizes: Ints) -> int:
    """Return the bytes transferred between devices, each tensor once per direction and device.

    `labels` is int64 (units,), `sizes` int64 (tensors, devices) in bytes.
    """
    leaving, home, wanted = find_transfers(problem, labels)
    # Tensors of which each fits 64 bits may not do so together.
    return int(math.fsum(sizes[leaving, home[leaving] - 1]) + math.fsum(sizes[wanted[:, 1:]]))


def _transfer_seconds(problem: Problem, labels: Ints) -> float:
    leaving, home, wanted = find_transfers(problem, labels)
    direct = sum_direct_transfers(problem, leaving, home, wanted)
    if direct is not None:
        return direct
    return math.fsum(problem.to_host[leaving, home[leaving] - 1]) + math.fsum(
        problem.to_device[wanted[:, 1:]]
    )


def find_transfers(problem: Problem, labels: Ints) -> tuple[Ints, Ints, Bools]:
    """Return the tensors that leave their accelerator, the home of each tensor, and the copies needed.

    The last is bool (tensors, 1 + devices): the device needs the tensor and does not produce it.
    """
    wanted = np.zeros((problem.tensors, 1 + problem.devices), np.bool_)
    wanted[problem.consumed, labels[problem.consumers]] = True
    wanted[:, 0] |= problem.is_output
    # Producer -1 selects the appended 0, the host.
    home = np.append(labels, 0)[problem.producer]
    wanted[np.arange(problem.tensors), home] = False
    return np.flatnonzero((home > 0) & wanted.any(axis=1)), home, wanted


def find_region_devices(problem: Problem, labels: Ints, regions: Ints) -> Ints:
    """Return the device of each region, int64 (regions,), by rising region number.

    Raises ValueError if labels and regions do not fit the problem or one another.
    """
    if labels.shape != (problem.units,) or regions.shape != (problem.units,):
        raise ValueError(f"labels and regions must hold one number for each of {problem.units} units")
    if ((labels < 0) | (labels > problem.devices)).any():
        raise ValueError(f"a label is 0 (the host) or one of {problem.devices} accelerators")
    placed = np.flatnonzero(labels > 0)
    if not np.array_equal(labels > 0, regions >= 0):
        raise ValueError("a unit has a region exactly if it is placed on an accelerator")
    ids, first = np.unique(regions[placed], return_index=True)
    devices = labels[placed][first]
    if (devices[np.searchsorted(ids, regions[placed])] != labels[placed]).any():
        raise ValueError("a region holds units of more than one device")
    return devices


# The load of each device when several inferences are in flight, as in a pipeline.


def measure_loads(
    problem: Problem, labels: Ints, regions: Ints, fusions: tuple[int, ...] = ()
) -> Floats:
    """Return the seconds for which one inference occupies each device, float64 (1 + devices,).

    With shared engines they are those of each engine, float64 (engines,); direct links are not used.

    A pipeline that works on several inputs at once finishes one in every `max` of them, the maximal
    load (Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph Operators, NeurIPS
    2020). The host takes the execution of its units, divided by its cores, and the transfers of
    accelerators whose transfers occupy it. An accelerator takes execution, less what its fusions save,
    and launches. Transfers come on top where they occupy the device; where they occupy the link the
    load is that of the busier of the two. Arguments as in `evaluate`.
    """
    parts: list[list[float]] = [[] for _ in range(problem.devices + 1)]
    seconds = problem.seconds[np.arange(problem.units), labels].tolist()
    for label, each in zip(labels.tolist(), seconds, strict=True):
        parts[label].append(each)
    for device in find_region_devices(problem, labels, regions).tolist():
        parts[device].append(float(problem.launch[device - 1]))
    for number in fusions:
        parts[problem.fusions[number].device].append(-problem.fusions[number].saving)
    leaving, home, wanted = find_transfers(problem, labels)
    loads = [math.fsum(parts[0]) / problem.cores]
    for number, occupies in enumerate(problem.occupies):
        transfers = problem.to_host[leaving[home[leaving] == 1 + number], number].tolist()
        transfers += problem.to_device[wanted[:, 1 + number], number].tolist()
        if occupies is Occupancy.device:
            parts[1 + number] += transfers
        elif occupies is Occupancy.host:
            loads[0] += math.fsum(transfers)
        load = math.fsum(parts[1 + number])
        loads.append(max(load, math.fsum(transfers)) if occupies is Occupancy.link else load)
    engines = None if problem.conditions is None else problem.conditions.engines
    return np.array(loads) if engines is None else np.array(loads) @ engines


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
        taken = _sum_bytes(problem, labels)[d]
        return f"device {1 + d} holds {taken:g} bytes, and {problem.capacity[d]:g} is its capacity"
    return _find_barred_transfer(problem, labels) or _find_broken_condition(problem, labels, regions)


def _find_broken_condition(problem: Problem, labels: Ints, regions: Ints) -> str:
    """Return a sentence on the first broken condition that no schedule is needed for."""
    conditions = problem.conditions
    if conditions is None:
        return ""
    if conditions.network_of is not None:
        placed = regions >= 0
        pairs = np.unique(np.column_stack([regions, conditions.network_of])[placed], axis=0)
        if len(pairs) > len(np.unique(pairs[:, 0])):
            return "one of its regions is of two networks"
    if conditions.other is not None:
        spent = evaluate(conditions.other, labels, regions).total
        if spent > conditions.most * (1 + 2.0**-40):
            unit = conditions.other_unit and f" {conditions.other_unit}"
            amounts = f"{spent:g}{unit}, and {conditions.most:g}{unit}"
            return f"{conditions.other_name} is {amounts} is the most"
    return ""


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
    exceeds: Bools = _sum_bytes(problem, labels) > problem.capacity * (1 + 2.0**-40)
    for devices, _ in list_reloading(problem):
        exceeds[devices] = False
    return exceeds


def _sum_bytes(problem: Problem, labels: Ints) -> Floats:
    """Return the bytes that units take on each accelerator, float64 (devices,).

    On one that shares an engine with others they are those of all of these.
    """
    taken = [math.fsum(problem.memory[labels == 1 + d, d]) for d in range(problem.devices)]
    sharing = find_sharing_devices(problem)
    together: Floats = np.array(taken, np.float64)
    return together if sharing is None else sharing.astype(np.float64) @ together


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
