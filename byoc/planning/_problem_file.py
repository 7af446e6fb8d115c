"""Files of placement problems: all numbers of a problem as JSON, which `byoc place` solves.

Unlike the public benchmark's format it can say all that a problem has: launches, accelerators that
differ, transfers that cost more in one direction, limits, fusions.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from byoc.errors import InputError
from byoc.placement import UNLIMITED, Fusion, Occupancy, Problem
from byoc.support import StrictModel, make_file_error, validate_content

FORMAT = "byoc-placement-problem"
_MOST = 1_000_000  # units of a problem file

_Whole = Annotated[int, Field(strict=True, ge=0, le=UNLIMITED)]
_Unit = Annotated[int, Field(strict=True, ge=-1, le=_MOST)]
_Cost = Annotated[float, Field(strict=True, ge=0, le=1e200)]
_Costs = Annotated[tuple[_Cost | None, ...], Field(max_length=257)]


class SavedUnit(StrictModel):
    """A unit: its costs on the host and each accelerator, null where it is refused."""

    name: str
    nodes: tuple[str, ...] = ()
    costs: _Costs
    must: bool = False
    size: Annotated[_Whole, Field(ge=1)] = 1
    memory: _Costs = ()


class SavedTensor(StrictModel):
    """A tensor: the unit that makes it, -1 for the host, and the costs to move it, null for never."""

    name: str = ""
    producer: _Unit
    consumers: tuple[_Unit, ...]
    is_output: bool = False
    to_device: _Costs
    to_host: _Costs


class SavedDevice(StrictModel):
    """An accelerator: the cost of a launch, and its limits, null for none."""

    name: str
    launch: _Cost
    connected: bool = False
    min_nodes: _Whole = 0
    max_nodes: _Whole | None = None
    max_regions: _Whole | None = None
    capacity: _Cost | None = None
    occupies: Occupancy = Occupancy.nothing


class SavedFusion(StrictModel):
    """Units that a device runs as one, and what that saves."""

    members: tuple[_Unit, ...]
    device: _Whole
    saving: _Cost


class SavedProblem(StrictModel):
    """The content of the file."""

    format: Literal["byoc-placement-problem"]
    version: Literal[1] = 1
    model: str = ""
    objective: str = "latency"
    cores: Annotated[_Whole, Field(ge=1)] = 1
    margin: Annotated[float, Field(strict=True, ge=0, lt=1)] = 0.0
    devices: Annotated[tuple[SavedDevice, ...], Field(max_length=256)]
    units: Annotated[tuple[SavedUnit, ...], Field(max_length=_MOST)]
    tensors: Annotated[tuple[SavedTensor, ...], Field(max_length=_MOST)]
    fusions: tuple[SavedFusion, ...] = ()


def is_problem_document(content: object) -> bool:
    """Return whether the content of a JSON file says that it is such a problem."""
    return isinstance(content, dict) and "format" in content


def format_problem(  # noqa: PLR0913, PLR0917 - the names of all that a problem has
    problem: Problem,
    model: str,
    objective: str,
    devices: Sequence[str],
    units: Sequence[str],
    nodes: Sequence[Sequence[str]],
    tensors: Sequence[str],
    margin: float = 0.0,
) -> dict[str, Any]:
    """Return a problem as plain JSON; `devices` are the names of the accelerators.

    `margin` is the share that several devices have to save for `launch-aware` to choose them.
    """
    start = problem.consumer_start.tolist()
    consumers = problem.consumers.tolist()
    return {
        "format": FORMAT,
        "version": 1,
        "model": model,
        "objective": objective,
        "cores": problem.cores,
        "margin": margin,
        "devices": [
            {
                "name": name,
                "launch": float(problem.launch[number]),
                "connected": bool(problem.connected[number]),
                "min_nodes": int(problem.min_nodes[number]),
                "max_nodes": _format_limit(int(problem.max_nodes[number])),
                "max_regions": _format_limit(int(problem.max_regions[number])),
                "capacity": _finite([problem.capacity[number]])[0],
                "occupies": problem.occupies[number].value,
            }
            for number, name in enumerate(devices)
        ],
        "units": [
            {
                "name": name,
                "nodes": list(nodes[row]),
                "costs": _finite(problem.seconds[row]),
                "must": bool(problem.must[row]),
                "size": int(problem.size[row]),
                "memory": _finite(problem.memory[row]),
            }
            for row, name in enumerate(units)
        ],
        "tensors": [
            {
                "name": name,
                "producer": int(problem.producer[row]),
                "consumers": consumers[start[row] : start[row + 1]],
                "is_output": bool(problem.is_output[row]),
                "to_device": _finite(problem.to_device[row]),
                "to_host": _finite(problem.to_host[row]),
            }
            for row, name in enumerate(tensors)
        ],
        "fusions": [
            {"members": list(each.members), "device": each.device, "saving": each.saving}
            for each in problem.fusions
        ],
    }


def parse_problem(content: object, path: Path) -> tuple[Problem, tuple[str, ...], float]:
    """Return the problem of a file's content, the names of its units, and its margin.

    Raises InputError with a line for each mistake.
    """
    file, mistakes = validate_content(content, SavedProblem)
    if file is None:
        raise make_file_error(path, mistakes)
    count = len(file.devices)
    mistakes = [
        f"{kind}[{number}].{key}: expected {expected} numbers"
        for kind, rows, keys in (
            ("units", file.units, {"costs": 1 + count, "memory": count}),
            ("tensors", file.tensors, {"to_device": count, "to_host": count}),
        )
        for number, row in enumerate(rows)
        for key, expected in keys.items()
        if len(getattr(row, key)) not in {expected, 0 if key == "memory" else expected}
    ]
    if mistakes:
        raise make_file_error(path, mistakes)
    try:
        return _build(file), tuple(unit.name for unit in file.units), file.margin
    except (ValueError, IndexError) as error:
        raise InputError(f"{path}: {error}") from None


def _build(file: SavedProblem) -> Problem:
    devices = file.devices
    shape = (len(file.tensors), len(devices))
    return Problem.build(
        seconds=_array([unit.costs for unit in file.units], (len(file.units), 1 + len(devices))),
        producer=[tensor.producer for tensor in file.tensors],
        consumers=[tensor.consumers for tensor in file.tensors],
        is_output=[tensor.is_output for tensor in file.tensors],
        to_device=_array([tensor.to_device for tensor in file.tensors], shape),
        to_host=_array([tensor.to_host for tensor in file.tensors], shape),
        launch=[device.launch for device in devices],
        connected=[device.connected for device in devices],
        must=[unit.must for unit in file.units],
        size=[unit.size for unit in file.units],
        min_nodes=[device.min_nodes for device in devices],
        max_nodes=[_read_limit(device.max_nodes) for device in devices],
        max_regions=[_read_limit(device.max_regions) for device in devices],
        memory=_array(
            [unit.memory or (0.0,) * len(devices) for unit in file.units],
            (len(file.units), len(devices)),
        ),
        capacity=[np.inf if device.capacity is None else device.capacity for device in devices],
        fusions=[Fusion(each.members, each.device, each.saving) for each in file.fusions],
        occupies=[device.occupies for device in devices],
        cores=file.cores,
    )


def _array(rows: Sequence[Sequence[float | None]], shape: tuple[int, int]) -> NDArray[np.float64]:
    numbers = [[np.inf if value is None else value for value in row] for row in rows]
    return np.array(numbers, np.float64).reshape(shape)


def _finite(values: Any) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def _format_limit(value: int) -> int | None:
    return None if value >= UNLIMITED else value


def _read_limit(value: int | None) -> int:
    return UNLIMITED if value is None else value
