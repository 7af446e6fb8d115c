"""Sessions whose regions run by drivers in C, in byoc's own runtime."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock
from typing import Any

from byoc.bundle import Bundle
from byoc.codegen import Artifact, Region
from byoc.codegen.drivers import DriverCounters, DriverError, DriverLibrary, OpenedRegion
from byoc.errors import InputError
from byoc.runtime._loading import load_bundle
from byoc.runtime._session import Session
from byoc.runtime._stage_program import Stage, StageValues


@dataclass(frozen=True, eq=False)
class DriverExecutor:
    """An executor that runs a region by a driver, for any number of threads at once.

    A region that is open serves one call at a time; a call opens one more where others have them all.
    `options` are the driver's.
    """

    library: DriverLibrary
    region: Region
    artifact: Artifact
    options: Mapping[str, str] = field(default_factory=dict)
    _opened: list[OpenedRegion] = field(default_factory=list)
    _free: list[OpenedRegion] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        """Open the region once, so that a driver which refuses it says so. Raises as `open_region`."""
        with self._take():
            pass

    def __call__(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the outputs by name. Raises InputError for a wrong input, and if the driver fails."""
        return self.run(inputs)

    def run(self, inputs: Mapping[str, Any], on_device: Sequence[str] = ()) -> Mapping[str, Any]:
        """Run the region, and leave the outputs in `on_device` there. Raises as a call does."""
        with self._take() as opened:
            try:
                return opened(inputs, on_device)
            except DriverError as error:
                raise InputError(str(error)) from error

    def read_counters(self) -> DriverCounters:
        """Return the sums over all open regions. Raises InputError where the driver does not count."""
        counted = [opened.read_counters() for opened in self._opened]
        return DriverCounters(*(sum(each) for each in zip(*map(_list_counts, counted), strict=True)))

    @contextmanager
    def _take(self) -> Iterator[OpenedRegion]:
        with self._lock:
            opened = self._free.pop() if self._free else None
        if opened is None:
            opened = self.library.open_region(self.region, self.artifact, self.options)
            self._opened.append(opened)
        try:
            yield opened
        finally:
            with self._lock:
                self._free.append(opened)


def _list_counts(counters: DriverCounters) -> Sequence[int]:
    return tuple(vars(counters).values())


def load_on_executors(bundle: Bundle, executors: Mapping[str, DriverExecutor]) -> Session:
    """Load a bundle whose regions run by drivers; tensors stay on the device where they can.

    A tensor does that only regions of one driver read and make, in the main graph, if the driver has
    buffers: it then passes from region to region without the host's memory.
    """
    session = load_bundle(bundle, executors)
    program = session.program
    makers = {name: stage.name for stage in program.stages for name in stage.output_names}
    readers: dict[str, list[Stage]] = {name: [] for name in makers}
    for stage in program.stages:
        for name in stage.inputs:
            readers.get(name, []).append(stage)

    def stays(stage: Stage, name: str) -> bool:
        library = executors[stage.name].library
        return (
            library.has_buffers
            and name not in program.outputs
            and bool(readers[name])
            and all(
                each.name in executors and executors[each.name].library is library
                for each in readers[name]
            )
        )

    stages = [
        _keep_on_device(stage, executors[stage.name], [*map(partial(stays, stage), stage.output_names)])
        if stage.name in executors
        else stage
        for stage in program.stages
    ]
    return replace(session, program=replace(program, stages=stages))


def _keep_on_device(stage: Stage, executor: DriverExecutor, stay: Sequence[bool]) -> Stage:
    """Return a region's stage that leaves some outputs on the device; others are as they were."""
    if not any(stay):
        return stage
    region = executor.region
    kept = [each.name for each, stays in zip(region.outputs, stay, strict=True) if stays]

    def run(values: StageValues) -> StageValues:
        given = (values[name] for name in stage.inputs)
        inside = {each.name: value for each, value in zip(region.inputs, given, strict=True)}
        made = executor.run(inside, kept)
        return {
            name: made[each.name] for each, name in zip(region.outputs, stage.output_names, strict=True)
        }

    return replace(stage, run=run)
