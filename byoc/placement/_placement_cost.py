"""The cost of a placement: execution, transfer and launch."""

import math
from dataclasses import dataclass

import numpy as np

from byoc.placement._problem import Bools, Floats, Ints, Occupancy, Problem


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
    to another by way of the host. `fusions` are the chosen ones, each within one region. Sums are
    rounded once (`math.fsum`), so they do not depend on the order of the units. Raises ValueError if the
    arguments do not fit the problem or one another.
    """
    devices = find_region_devices(problem, labels, regions)
    for number in fusions:
        members = list(problem.fusions[number].members)
        if (labels[members] != problem.fusions[number].device).any() or np.ptp(regions[members]):
            raise ValueError(f"fusion {number} is chosen and not in one region of its device")
    return Cost(
        math.fsum(problem.seconds[np.arange(problem.units), labels]),
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
    return np.array(loads)
