"""The measurements of each task over all models, and the cost table made of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from byoc.costs.file import HostLink, MeasuredMachine
from byoc.costs.table import Measurement, CostTable
from byoc.costs.task import Task
from byoc.profile.sampling import Samples


@dataclass(frozen=True, eq=False)
class MeasurementRecords:
    """Measurements in seconds by task; equal tasks of different models are merged."""

    _measurements: dict[tuple[str, str, str], tuple[Task, list[float]]] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of measured tasks."""
        return len(self._measurements)

    def __contains__(self, task: Task) -> bool:
        """Return whether a task was measured."""
        return task.key in self._measurements

    def add(self, task: Task, seconds: Sequence[float]) -> None:
        """Add measurements, at least one, of a task with known shapes."""
        self._measurements.setdefault(task.key, (task, []))[1].extend(seconds)

    def cheapest(self) -> float | None:
        """Return the smallest median, None without measurements."""
        return min((Samples.of(seconds).median for _, seconds in self._measurements.values()), default=None)

    def make_table(  # noqa: PLR0913 - what stands in the file
        self,
        name: str,
        description: str,
        machine: MeasuredMachine,
        *,
        link: HostLink | None = None,
        launch: float = 0.0,
        together: float = 1.0,
        otherwise: str | None = None,
    ) -> CostTable:
        """Make the cost table: an entry for each task, sorted, without the time of a launch."""
        return CostTable(
            kind="table",
            name=name,
            description=description,
            machine=machine,
            link=link,
            launch=launch,
            together=together,
            entries=tuple(
                _make_entry(task, Samples.of(seconds), launch)
                for _, (task, seconds) in sorted(self._measurements.items())
            ),
            **{"else": otherwise},
        )


def _make_entry(task: Task, samples: Samples, launch: float) -> Measurement:
    return Measurement(
        op=task.op,
        types=task.types,
        attributes=dict(task.attributes),
        seconds=max(samples.median - launch, 0.0),
        spread=samples.spread,
        samples=samples.count,
        operations=task.work.operations,
        bytes=task.work.bytes,
    )
