"""The distinct units of a model as data, so that any tool can price them for a table of costs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from byoc.costs import Task, build_tasks, count_trips, find_device_tasks
from byoc.model import GraphIndex, Model
from byoc.options import UnitOptions, list_files
from byoc.patterns import Unit
from byoc.planning import GraphUnits, find_graphs, load_units
from byoc.rules import Target
from byoc.stages import load_targets
from byoc.support import take_keywords
from byoc.zoo import Source

HOST = "host"

TASK_KEYS = (
    "device",
    "op",
    "types",
    "attributes",
    "dtype",
    "operations",
    "bytes",
    "count",
    "runs",
    "nodes",
)
"""The keys of a row."""


@dataclass(frozen=True, eq=False)
class TaskRow:
    """A distinct task of a device: what its cost model is asked when the model is partitioned.

    `device` is a target's name, or `host`. `types` and `attributes` are as cost tables write them, and
    `operations` and `bytes` are counted from the shapes. `count` is the number of units that have this
    task, `runs` how often these run for one run of the model, all together. `nodes` are the operators
    inside a composite or a QDQ group.
    """

    device: str
    task: Task
    count: int
    runs: float

    def to_json(self) -> dict[str, Any]:
        """Return the row as data, with the keys `TASK_KEYS`."""
        task = self.task
        values = (
            *(self.device, task.op, task.types, dict(task.attributes), task.dtype),
            *(task.work.operations, task.work.bytes, self.count, self.runs),
            [part.op for part in task.parts],
        )
        return dict(zip(TASK_KEYS, values, strict=True))


@take_keywords(UnitOptions)
def list_tasks(model: Source | Model, options: UnitOptions) -> tuple[TaskRow, ...]:
    """Return the distinct tasks that cost models are asked for when a model is partitioned.

    `model` is as `partition` takes it. For each accelerator these are the units that its rules
    accept, composites and QDQ groups whole; for the host every node. Left out is what nobody is asked
    for (views, constants, nodes with bodies) and what no table can have (tasks with unknown shapes).
    The bodies of an If, Loop or Scan are in it, with how often they run. No cost model is loaded, so
    the one that a rule file names need not be there yet.

    Raises InputError when the model, a rule file or an option is at fault.
    """
    targets = load_targets(list_files(options.rules))
    trips = options.trips or {}
    given = options.dims, options.shapes, trips, options.no_passes
    loaded, units = load_units(model, targets, *given)
    index = loaded.index
    runs = dict(_count_runs(index, trips, 1.0))
    found: dict[tuple[str, object], TaskRow] = {}
    for graph in find_graphs(index):
        for device, task in _find_tasks(graph, units[id(graph)], targets):
            if task.view or not task.sized:
                continue
            key = device, (*task.key, task.work)
            before = found.get(key)
            count, total = (before.count, before.runs) if before else (0, 0.0)
            found[key] = TaskRow(device, task, count + 1, total + runs[id(graph)])
    return tuple(sorted(found.values(), key=lambda row: row.device == HOST))


def _count_runs(
    index: GraphIndex, trips: Mapping[str, float], runs: float
) -> Iterator[tuple[int, float]]:
    """Yield the number of times that each graph runs, by the id of its index; this one runs `runs`."""
    yield id(index), runs
    for node, bodies in index.bodies.items():
        times = runs * count_trips(index, node, trips).count
        for body in bodies:
            yield from _count_runs(body.index, trips, times)


def _find_tasks(
    graph: GraphIndex, units: GraphUnits, targets: Sequence[Target]
) -> Iterator[tuple[str, Task]]:
    """Yield the device and the task of every unit and of every node on the host."""
    tasks = build_tasks(graph)
    for device, target in enumerate(targets):
        compute = target.compute_dtype
        accepted: list[Unit] = [
            part
            for unit in units.units
            if unit.is_supported(device) and unit.nodes[0] not in graph.bodies
            for part in unit.on_device[device]
        ]
        of_device = [each.unit for each in units.alternatives if each.device == device + 1]
        distinct, numbers = find_device_tasks(
            build_tasks(graph, compute) if compute else tasks, [*accepted, *of_device]
        )
        for each in numbers.tolist():
            if each >= 0:
                yield target.name, distinct[each]
    for number in range(len(graph.nodes)):
        if tasks.task_of_node[number] >= 0 and number not in graph.bodies:
            yield HOST, tasks[number]
