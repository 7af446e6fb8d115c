"""The load of each device when several inferences are in flight, as in a pipeline."""

import math

import numpy as np

from byoc.placement._placement_cost import find_region_devices, find_transfers
from byoc.placement._problem import Floats, Ints, Occupancy, Problem


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
