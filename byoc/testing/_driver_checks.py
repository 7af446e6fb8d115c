"""The checks of a codegen's driver in C: what it computes of every compiled region, and on threads."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from byoc.codegen import Artifact, DriverSources, Region
from byoc.drivers import DriverError, DriverLibrary, OpenedRegion, build_driver
from byoc.errors import ByocError, InputError
from byoc.testing._case_compiler import CompiledCase
from byoc.testing._executor_checks import find_differences
from byoc.verification import Thresholds, quantized_tensors_of

_CALLS = 8  # of a region by each of two threads
_INCOMPATIBLE = "incompatible"  # the status of what is for another device than this machine has


class DriverChecks:
    """The checks of one driver, which runs in this process; `allow` has the thresholds of a region."""

    def __init__(
        self, name: str, sources: DriverSources, folder: Path, allow: Callable[[Region], Thresholds]
    ) -> None:
        """Build and load the driver of the codegen `name`.

        Raises InputError if it does not compile or is of another name, and MissingRuntimeError without a
        C compiler.
        """
        self.allow = allow
        self.library = DriverLibrary(build_driver(sources, folder / f"{name}.so"))
        if self.library.name != name:
            raise InputError(f"the driver says that it is for '{self.library.name}'")

    def check_results(self, cut: CompiledCase) -> Iterator[str]:
        """Check that the driver computes what plain onnxruntime does.

        Regions that do not cross to a driver are left out, and those for another device than is here.
        """
        for region, artifact in cut.regions:
            try:
                opened = self._open(region, artifact)
                if opened is None:
                    continue
                inputs, expected = cut.expected_runs[region.name].values[0]
                found = opened(inputs)
            except ByocError as error:
                yield f"{cut.name}: {error}"
                continue
            quantized = quantized_tensors_of(region)
            for problem in find_differences(expected, found, self.allow(region), quantized):
                yield f"{cut.name}: by the driver {problem}"

    def check_threads(self, cut: CompiledCase) -> Iterator[str]:
        """Check that two regions that are open compute their own results on two threads."""
        region, artifact = cut.regions[0]
        inputs, expected = cut.expected_runs[region.name].values[0]
        allowed, quantized = self.allow(region), quantized_tensors_of(region)

        def run(opened: OpenedRegion) -> list[str]:
            found = [opened(inputs) for _ in range(_CALLS)]
            problems = (find_differences(expected, each, allowed, quantized) for each in found)
            return [problem for each in problems for problem in each]

        opened = [each for _ in range(2) if (each := self._open(region, artifact)) is not None]
        with ThreadPoolExecutor(2) as threads:
            found = dict.fromkeys(problem for each in threads.map(run, opened) for problem in each)
        for problem in found:
            yield f"{cut.name}: by the driver on two threads {problem}"

    def _open(self, region: Region, artifact: Artifact) -> OpenedRegion | None:
        """Open a region; None for one that does not cross to a driver. Raises DriverError."""
        try:
            return self.library.open_region(region, artifact)
        except DriverError as error:
            if error.status == _INCOMPATIBLE:
                return None
            raise
        except InputError:  # extents that are not known, or elements of less than a byte
            return None
