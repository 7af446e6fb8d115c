"""The measurements of each task over all models, and the cost table made of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from byoc.costs.file import Link, Machine
from byoc.costs.table import Entry, Table
from byoc.costs.task import Task
from byoc.profile.sampling import Samples


@dataclass(frozen=True, eq=False)
class Records:
    """Measurements in seconds by task; equal tasks of different models are merged."""

    _found: dict[tuple[str, str, str], tuple[Task, list[float]]] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of measured tasks."""
        return len(self._found)

    def __contains__(self, task: Task) -> bool:
        """Return whether a task was measured."""
        return task.key in self._found

    def add(self, task: Task, seconds: Sequence[float]) -> None:
        """Add measurements, at least one, of a task with known shapes."""
        self._found.setdefault(task.key, (task, []))[1].extend(seconds)

    def cheapest(self) -> float | None:
        """Return the smallest median, None without measurements."""
        return min((Samples.of(seconds).median for _, seconds in self._found.values()), default=None)

    def table(  # noqa: PLR0913 - what stands in the file
        self,
        name: str,
        description: str,
        machine: Machine,
        *,
        link: Link | None = None,
        launch: float = 0.0,
        together: float = 1.0,
        otherwise: str | None = None,
    ) -> Table:
        """Make the cost table: an entry for each task, sorted, without the time of a launch."""
        return Table(
            kind="table",
            name=name,
            description=description,
            machine=machine,
            link=link,
            launch=launch,
            together=together,
            entries=tuple(
                _entry(task, Samples.of(seconds), launch)
                for _, (task, seconds) in sorted(self._found.items())
            ),
            **{"else": otherwise},
        )


def _entry(task: Task, samples: Samples, launch: float) -> Entry:
    return Entry(
        op=task.op,
        types=task.types,
        attributes=dict(task.attributes),
        seconds=max(samples.median - launch, 0.0),
        spread=samples.spread,
        samples=samples.count,
        operations=task.work.operations,
        bytes=task.work.bytes,
    )
