"""Checks of a placement problem: shapes, costs, the order of the units, limits, fusions."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from byoc.placement._problem import Problem


def check_problem(problem: "Problem") -> None:
    """Raise ValueError that describes the first mistake."""
    _check_shapes(problem)
    _check_costs(problem, "seconds", "to_device", "to_host", "launch")
    _check_order(problem)
    _check_limits(problem)
    _check_fusions(problem)


def check_seconds(problem: "Problem") -> None:
    """Raise ValueError as `check_problem` where nothing but the seconds of units may be wrong."""
    shape = problem.units, 1 + problem.devices
    if problem.seconds.dtype != np.float64 or problem.seconds.shape != shape:
        raise ValueError(f"seconds are {problem.seconds.dtype} of shape {problem.seconds.shape}")
    _check_costs(problem, "seconds")
    _check_homes(problem)
    _check_fusions(problem)


def _check_shapes(problem: "Problem") -> None:
    """Raise ValueError if an array does not have the documented shape and dtype."""
    units, devices, tensors = len(problem.seconds), problem.launch.size, problem.producer.size
    expected: dict[str, tuple[type[np.generic], tuple[int, ...]]] = {
        "seconds": (np.float64, (units, 1 + devices)),
        "producer": (np.int64, (tensors,)),
        "consumer_start": (np.int64, (tensors + 1,)),
        "consumers": (np.int64, (problem.consumers.size,)),
        "is_output": (np.bool_, (tensors,)),
        "to_device": (np.float64, (tensors, devices)),
        "to_host": (np.float64, (tensors, devices)),
        "launch": (np.float64, (devices,)),
        "connected": (np.bool_, (devices,)),
        "must": (np.bool_, (units,)),
        "size": (np.int64, (units,)),
        "min_nodes": (np.int64, (devices,)),
        "max_nodes": (np.int64, (devices,)),
        "max_regions": (np.int64, (devices,)),
        "memory": (np.float64, (units, devices)),
        "capacity": (np.float64, (devices,)),
    }
    for name, (dtype, shape) in expected.items():
        array = getattr(problem, name)
        if array.dtype != dtype or array.shape != shape:
            raise ValueError(
                f"{name} is {array.dtype} of shape {array.shape}; {np.dtype(dtype)} of shape "
                f"{shape} is needed for {tensors} tensors and {devices} devices beside the host"
            )


def _check_costs(problem: "Problem", *names: str) -> None:
    """Raise ValueError if a cost is negative, not a number, or infinite where that is not allowed."""
    for name in names:
        costs = getattr(problem, name)
        # Written so that a NaN fails too.
        if not (costs >= 0).all():
            place = [int(index) for index in np.argwhere(~(costs >= 0))[0]]
            raise ValueError(f"{name}{place} is {costs[tuple(place)]}; a cost is 0 or more seconds")
    if not np.isfinite(problem.launch).all():
        raise ValueError("launch is infinite; refuse the units of that device instead")
    stranded = np.flatnonzero(np.isinf(problem.seconds[:, 0]))
    if stranded.size:
        raise ValueError(f"unit {stranded[0]}: the host must be able to run every unit")


def _check_order(problem: "Problem") -> None:
    """Raise ValueError if a tensor names a missing unit, or units are not in topological order."""
    start, units = problem.consumer_start, problem.units
    if start[0] != 0 or start[-1] != len(problem.consumers) or (np.diff(start) < 0).any():
        raise ValueError("consumer_start must rise from 0 to the number of consumers")
    if ((problem.producer < -1) | (problem.producer >= units)).any():
        raise ValueError(f"a producer is -1 (the host) or one of the {units} units")
    if ((problem.consumers < 0) | (problem.consumers >= units)).any():
        raise ValueError(f"a consumer is one of the {units} units")
    entries = problem.consumed * units + problem.consumers
    rising = bool((entries[1:] > entries[:-1]).all())  # as they mostly are, and then distinct
    if not rising and len(np.unique(entries)) < len(entries):
        raise ValueError("a tensor names a consumer twice")
    late = np.flatnonzero(problem.producer[problem.consumed] >= problem.consumers)
    if late.size:
        tensor, consumer = problem.consumed[late[0]], problem.consumers[late[0]]
        raise ValueError(
            f"tensor {tensor}: its producer, unit {problem.producer[tensor]}, does not come before "
            f"its consumer, unit {consumer}; units must stand in topological order"
        )


def _check_limits(problem: "Problem") -> None:
    """Raise ValueError if a limit is negative."""
    if (problem.size < 1).any():
        raise ValueError("a unit has a size of 1 node or more")
    for name in ("min_nodes", "max_nodes", "max_regions", "capacity"):
        if not (getattr(problem, name) >= 0).all():
            raise ValueError(f"{name} is negative or not a number")
    finite = np.isfinite(problem.memory)
    if not (finite & (problem.memory >= 0)).all():
        unit, device = (int(index) for index in np.argwhere(~(finite & (problem.memory >= 0)))[0])
        raise ValueError(f"memory[{unit}, {device}] is not 0 or more bytes")
    if len(problem.occupies) != problem.devices or problem.cores < 1:
        raise ValueError("each accelerator's transfers occupy one resource; the host has a core or more")
    _check_homes(problem)


def _check_homes(problem: "Problem") -> None:
    """Raise ValueError if no accelerator takes a unit that needs one."""
    homeless = np.flatnonzero(problem.must & ~problem.allowed[:, 1:].any(axis=1))
    if homeless.size:
        raise ValueError(f"unit {homeless[0]} must be on an accelerator, and none takes it")


def _check_fusions(problem: "Problem") -> None:
    """Raise ValueError if a device refuses a member of a fusion, or the fusion saves too much."""
    for number, fusion in enumerate(problem.fusions):
        members = fusion.members
        if len(set(members)) < 2 or tuple(sorted(set(members))) != members:
            raise ValueError(f"fusion {number}: two members or more, in rising order, are needed")
        if members[0] < 0 or members[-1] >= problem.units:
            raise ValueError(f"fusion {number}: a member is one of the {problem.units} units")
        if not 1 <= fusion.device <= problem.devices:
            raise ValueError(f"fusion {number}: a device is one of {problem.devices} accelerators")
        apart = float(problem.seconds[list(members), fusion.device].sum())
        if not np.isfinite(apart):
            raise ValueError(f"fusion {number}: device {fusion.device} refuses one of its members")
        if not 0 <= fusion.saving <= apart:
            raise ValueError(
                f"fusion {number}: saves {fusion.saving:g} s; its members take {apart:g} s apart"
            )
