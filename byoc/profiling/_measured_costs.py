"""Measurements of all models as a cost table, and its file with a description of the machine."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from byoc.costs import CostFile, CostTable, HostLink, MeasuredMachine, Measurement, Task
from byoc.profiling._sampling import Samples
from byoc.support import dump_yaml, write_text

_PACKAGES = {"byoc": "onnx-byoc", "onnx": "onnx", "onnxruntime": "onnxruntime", "numpy": "numpy"}


def describe_machine(threads: int = 0) -> MeasuredMachine:
    """Describe the processor, usable cores, system and package versions of this machine.

    `threads` is the number of threads that are measured, 0 for all cores.
    """
    versions = {"python": platform.python_version()}
    for name, package in _PACKAGES.items():
        try:
            versions[name] = version(package)
        except PackageNotFoundError:
            continue
    return MeasuredMachine(
        cpu=_cpu_name(),
        cores=_count_cores(),
        threads=threads,
        os=f"{platform.system()} {platform.machine()}",
        versions=versions,
    )


def _count_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 0


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor()


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
        return min(
            (Samples.of(seconds).median for _, seconds in self._measurements.values()), default=None
        )

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


_ROWS = ("entries", "operators")
_DIGITS = 6


def write_costs(path: Path, costs: CostFile) -> None:
    """Write a cost model to a file, which is replaced as a whole or left as it was."""
    write_text(path, format_costs(costs))


def format_costs(costs: CostFile) -> str:
    """Format a cost model as YAML, fractions to six digits."""
    content = _round_floats(costs.model_dump(mode="python", by_alias=True, exclude_defaults=True))
    kind = content.pop("kind")
    rows = {name: content.pop(name) for name in _ROWS if name in content}
    lines = [dump_yaml({"kind": kind, **content}, flow=None)]
    for name, found in rows.items():
        lines.append(f"{name}:\n")
        if isinstance(found, dict):
            lines += [f"  {dump_yaml({key: value}, flow=True)[1:-2]}\n" for key, value in found.items()]
        else:
            lines += [f"- {dump_yaml(entry, flow=True)}" for entry in found]
    return "".join(lines)


def _round_floats(value: Any) -> Any:
    if isinstance(value, dict):  # attributes are looked up, and must stay exact
        return {key: item if key == "attributes" else _round_floats(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_round_floats(item) for item in value]
    if isinstance(value, StrEnum):
        return value.value
    if not isinstance(value, float):
        return value
    return int(value) if value.is_integer() else float(f"{value:.{_DIGITS}g}")
