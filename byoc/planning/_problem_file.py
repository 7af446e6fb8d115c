"""Files of placement problems: all numbers of a problem as JSON, which `byoc place` solves.

Unlike the public benchmark's format it can say all that a problem has: launches, accelerators that
differ, transfers that cost more in one direction, limits, fusions, and the conditions of a problem:
engines, contention, direct links, networks, a budget of other costs.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from byoc.errors import InputError
from byoc.placement import (
    UNLIMITED,
    Conditions,
    Fusion,
    Occupancy,
    PlacedNetwork,
    Problem,
    add_split,
)
from byoc.support import StrictModel, make_file_error, validate_content

FORMAT = "byoc-placement-problem"
_MOST = 1_000_000  # units of a problem file

_Whole = Annotated[int, Field(strict=True, ge=0, le=UNLIMITED)]
_Unit = Annotated[int, Field(strict=True, ge=-1, le=_MOST)]
_Cost = Annotated[float, Field(strict=True, ge=0, le=1e200)]
_Costs = Annotated[tuple[_Cost | None, ...], Field(max_length=257)]


class SavedUnit(StrictModel):
    """A unit: its costs on the host and each accelerator, null where it is refused.

    `split` is the extent of the axis along which two accelerators may share it, 0 for none.
    """

    name: str
    nodes: tuple[str, ...] = ()
    costs: _Costs
    must: bool = False
    size: Annotated[_Whole, Field(ge=1)] = 1
    memory: _Costs = ()
    network: _Whole | None = None
    split: _Whole = 0
    other_costs: _Costs = ()


class SavedLink(StrictModel):
    """A direct way of a tensor from one accelerator to another, both counted from 1."""

    origin: Annotated[_Whole, Field(ge=1)]
    to: Annotated[_Whole, Field(ge=1)]
    seconds: _Cost


class SavedTensor(StrictModel):
    """A tensor: the unit that makes it, -1 for the host, and the costs to move it, null for never."""

    name: str = ""
    producer: _Unit
    consumers: tuple[_Unit, ...]
    is_output: bool = False
    to_device: _Costs
    to_host: _Costs
    direct: tuple[SavedLink, ...] = ()
    other_to_device: _Costs = ()
    other_to_host: _Costs = ()


class SavedDevice(StrictModel):
    """An accelerator: the cost of a launch, and its limits, null for none.

    `reload` is what each byte beyond the capacity costs in each run, null where none may be.
    """

    name: str
    launch: _Cost
    connected: bool = False
    min_nodes: _Whole = 0
    max_nodes: _Whole | None = None
    max_regions: _Whole | None = None
    capacity: _Cost | None = None
    reload: _Cost | None = None
    occupies: Occupancy = Occupancy.nothing
    other_launch: _Cost = 0.0


class SavedFusion(StrictModel):
    """Units that a device runs as one, and what that saves."""

    members: tuple[_Unit, ...]
    device: _Whole
    saving: _Cost
    other_saving: _Cost = 0.0


class SavedEngine(StrictModel):
    """An engine, the share of its seconds for which each device occupies it, and what slows it.

    `slowed` has how many times as long work on it takes while another engine computes, by its name.
    """

    name: str
    shares: Annotated[
        tuple[Annotated[float, Field(strict=True, ge=0, le=1)], ...], Field(max_length=257)
    ]
    slowed: dict[str, Annotated[float, Field(strict=True, ge=1, le=1e6)]] = Field(default_factory=dict)


class SavedSplit(StrictModel):
    """Two accelerators, counted from 1, that work on one unit at once: one more accelerator."""

    name: str
    devices: tuple[Annotated[_Whole, Field(ge=1)], Annotated[_Whole, Field(ge=1)]]


class SavedNetwork(StrictModel):
    """A network: its period and deadline in seconds, null for none, and its weight."""

    name: str
    period: Annotated[float, Field(strict=True, gt=0, le=1e9)] | None = None
    deadline: Annotated[float, Field(strict=True, gt=0, le=1e9)] | None = None
    weight: Annotated[float, Field(strict=True, gt=0, le=1e9)] = 1.0


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
    engines: Annotated[tuple[SavedEngine, ...], Field(max_length=256)] = ()
    splits: Annotated[tuple[SavedSplit, ...], Field(max_length=64)] = ()
    networks: Annotated[tuple[SavedNetwork, ...], Field(max_length=256)] = ()
    budget: _Cost | None = None


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
    document = {
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
    if problem.conditions is not None:
        _add_conditions(document, problem, problem.conditions)
    return document


def _add_conditions(document: dict[str, Any], problem: Problem, conditions: Conditions) -> None:
    """Add the conditions of a problem to its document."""
    if conditions.engines is not None or conditions.slowdown is not None:
        shares = np.eye(1 + problem.devices) if conditions.engines is None else conditions.engines
        slowed = np.ones((shares.shape[1],) * 2) if conditions.slowdown is None else conditions.slowdown
        names = [f"engine {number}" for number in range(shares.shape[1])]
        document["engines"] = [
            {
                "name": name,
                "shares": shares[:, number].tolist(),
                "slowed": {
                    names[by]: float(factor) for by, factor in enumerate(slowed[number]) if factor > 1
                },
            }
            for number, name in enumerate(names)
        ]
    if conditions.network_of is not None:
        document["networks"] = [
            {
                "name": each.name,
                "period": _finite([each.period])[0],
                "deadline": _finite([each.deadline])[0],
                "weight": each.weight,
            }
            for each in conditions.networks
        ]
        for row, network in zip(document["units"], conditions.network_of.tolist(), strict=True):
            row["network"] = network
    if conditions.direct is not None:
        for row, links in zip(document["tensors"], conditions.direct, strict=True):
            row["direct"] = [
                {"origin": 1 + int(one), "to": 1 + int(other), "seconds": float(links[one, other])}
                for one, other in np.argwhere(np.isfinite(links))
            ]
    if conditions.reload is not None:
        for row, cost in zip(document["devices"], _finite(conditions.reload), strict=True):
            row["reload"] = cost
    if conditions.other is None:
        return
    other, document["budget"] = conditions.other, _finite([conditions.most])[0]
    for key, name, arrays in (
        ("units", "other_costs", other.seconds),
        ("tensors", "other_to_device", other.to_device),
        ("tensors", "other_to_host", other.to_host),
    ):
        for row, costs in zip(document[key], arrays, strict=True):
            row[name] = _finite(costs)
    for row, launch in zip(document["devices"], other.launch.tolist(), strict=True):
        row["other_launch"] = launch
    for row, fusion in zip(document["fusions"], other.fusions, strict=True):
        row["other_saving"] = fusion.saving


def parse_problem(content: object, path: Path) -> tuple[Problem, tuple[str, ...], float]:
    """Return the problem of a file's content, the names of its units, and its margin.

    Raises InputError with a line for each mistake.
    """
    file, mistakes = validate_content(content, SavedProblem)
    if file is None:
        raise make_file_error(path, mistakes)
    count = len(file.devices)
    has_budget = file.budget is not None
    other_costs = {"other_costs": 1 + count} if has_budget else {}
    other_transfers = {"other_to_device": count, "other_to_host": count} if has_budget else {}
    mistakes = [
        f"{kind}[{number}].{key}: expected {expected} numbers"
        for kind, rows, keys in (
            ("units", file.units, {"costs": 1 + count, "memory": count} | other_costs),
            ("tensors", file.tensors, {"to_device": count, "to_host": count} | other_transfers),
            ("engines", file.engines, {"shares": 1 + count}),
        )
        for number, row in enumerate(rows)
        for key, expected in keys.items()
        if len(getattr(row, key)) not in {expected, 0 if key == "memory" else expected}
    ]
    mistakes += [
        f"{kind}[{number}]: {_describe_stray(file, row)}"
        for kind, rows in (("units", file.units), ("tensors", file.tensors))
        for number, row in enumerate(rows)
        if _has_stray_conditions(file, row)
    ]
    engines = [each.name for each in file.engines]
    if len(set(engines)) < len(engines):
        mistakes.append("engines: two have the same name")
    mistakes += [
        f"engines[{number}].slowed: there is no engine '{name}'"
        for number, each in enumerate(file.engines)
        for name in each.slowed
        if name not in engines
    ]
    if mistakes:
        raise make_file_error(path, mistakes)
    try:
        return _build(file), tuple(unit.name for unit in file.units), file.margin
    except (ValueError, IndexError) as error:
        raise InputError(f"{path}: {error}") from None


def _describe_stray(file: SavedProblem, row: StrictModel) -> str:
    if file.networks and isinstance(row, SavedUnit) and row.network is None:
        return "it is of none of the networks that the file has"
    return "it is of the networks or the budget, which the file does not have"


def _has_stray_conditions(file: SavedProblem, row: StrictModel) -> bool:
    """Return whether a row has costs of a budget, or a network, that the file as a whole has not."""
    if isinstance(row, SavedUnit):
        has_network, spent = row.network is not None, row.other_costs
        return has_network != bool(file.networks) or (file.budget is None and bool(spent))
    assert isinstance(row, SavedTensor)
    return file.budget is None and bool(row.other_to_device or row.other_to_host)


def _build(file: SavedProblem) -> Problem:
    devices = file.devices
    shape = (len(file.tensors), len(devices))
    problem = Problem.build(
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
    conditions = _build_conditions(file, problem)
    problem = problem if conditions is None else replace(problem, conditions=conditions)
    for number, each in enumerate(file.splits):
        if max(each.devices) > len(devices):
            raise ValueError(f"splits[{number}].devices: a device is one of {len(devices)}")
        problem = add_split(problem, each.devices, [unit.split for unit in file.units])
    return problem


def _build_conditions(file: SavedProblem, problem: Problem) -> Conditions | None:
    """Return the conditions that a file states; None without any."""
    links = [(row, each) for row, tensor in enumerate(file.tensors) for each in tensor.direct]
    reload = _array([[device.reload for device in file.devices]], (1, problem.devices))[0]
    reloads = bool(np.isfinite(reload).any())
    if not (links or file.engines or file.networks or file.budget is not None or reloads):
        return None
    direct = None
    if links:
        direct = np.full((problem.tensors, problem.devices, problem.devices), np.inf)
        for row, each in links:
            if max(each.origin, each.to) > problem.devices:
                raise ValueError(f"tensors[{row}].direct: a device is one of {problem.devices}")
            direct[row, each.origin - 1, each.to - 1] = each.seconds
    names = [each.name for each in file.engines]
    slowdown = np.ones((len(names), len(names)))
    for row, engine in enumerate(file.engines):
        for name, factor in engine.slowed.items():
            slowdown[row, names.index(name)] = factor
    networks = tuple(
        PlacedNetwork(each.name, each.period or np.inf, each.deadline or np.inf, each.weight)
        for each in file.networks
    )
    return Conditions(
        engines=np.array([each.shares for each in file.engines]).T if names else None,
        slowdown=slowdown if (slowdown > 1).any() else None,
        direct=direct,
        reload=reload if reloads else None,
        networks=networks,
        network_of=np.array([unit.network for unit in file.units], np.int64) if networks else None,
        other=None if file.budget is None else _build_other(file, problem),
        most=np.inf if file.budget is None else file.budget,
    )


def _build_other(file: SavedProblem, problem: Problem) -> Problem:
    """Return the problem with the other costs of a file."""
    shape = problem.tensors, problem.devices
    costs = _array([unit.other_costs for unit in file.units], problem.seconds.shape)
    return replace(
        problem,
        seconds=np.where(np.isinf(problem.seconds), np.inf, costs),
        to_device=_array([tensor.other_to_device for tensor in file.tensors], shape),
        to_host=_array([tensor.other_to_host for tensor in file.tensors], shape),
        launch=np.array([device.other_launch for device in file.devices], np.float64),
        fusions=tuple(
            replace(fusion, saving=saved.other_saving)
            for fusion, saved in zip(problem.fusions, file.fusions, strict=True)
        ),
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
