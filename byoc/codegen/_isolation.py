"""Codegens whose methods run in worker processes, and the readers of what these answer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from math import inf
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar

from byoc import onnxrt
from byoc.codegen._abilities import Context, DriverSources, Fit
from byoc.codegen._calling import wait_for_codegen
from byoc.codegen._compiler_identity import read_description
from byoc.codegen._interface import Artifact, CodegenFailedError, Cycles, Executor, OperatorTime
from byoc.codegen._worker import PATH_VARIABLE, RaisedInWorkerError, Worker
from byoc.codegen.byoc_worker.link import (
    BrokenMessageError,
    read_array,
    read_files,
    read_pairs,
    read_texts,
)
from byoc.errors import InputError, Verdict

if TYPE_CHECKING:
    from byoc.codegen._compiler_identity import CodegenDescription
    from byoc.codegen._interface import AnyArray
    from byoc.codegen._region import Region
    from byoc.codegen._worker import Isolation, Reader
    from byoc.codegen.byoc_worker.link import SharedMemory


# Readers of the results that a worker process answers with; all of them raise BrokenMessageError.


def read_nothing(_: Any, __: SharedMemory) -> None: ...


def read_pairs_of_texts(result: Any, _: SharedMemory) -> dict[str, str]:
    pairs = read_pairs(result)
    read_texts([value for _, value in pairs])
    return dict(pairs)


def read_artifact(result: Any, memory: SharedMemory) -> Artifact:
    if not isinstance(result, dict):
        raise BrokenMessageError("an artifact is missing")
    files = read_files(result.get("files"), memory)
    return Artifact(files, read_pairs_of_texts(result.get("metadata"), memory))


def read_optional_artifact(result: Any, memory: SharedMemory) -> Artifact | None:
    return None if result is None else read_artifact(result, memory)


def read_artifacts(result: Any, memory: SharedMemory) -> dict[str, Artifact]:
    return {name: read_artifact(entry, memory) for name, entry in read_pairs(result)}


def read_number(result: Any, _: SharedMemory) -> int:
    if type(result) is not int:
        raise BrokenMessageError("a number is missing")
    return result


def read_optional_number(result: Any, memory: SharedMemory) -> int | None:
    return None if result is None else read_number(result, memory)


def read_outputs(result: Any, memory: SharedMemory) -> dict[str, AnyArray]:
    return {name: read_array(entry, memory) for name, entry in read_pairs(result)}


def read_verdict(result: Any, _: SharedMemory) -> Verdict:
    match result:
        case [list(reasons), bool(own_cpu)]:
            return Verdict(tuple(read_texts(reasons)), own_cpu)
        case _:
            raise BrokenMessageError("a verdict is missing")


def read_fit(result: Any, memory: SharedMemory) -> Fit:
    """Return whether a compiled region loads here."""
    if not isinstance(result, dict) or result.keys() != {entry.name for entry in fields(Fit)}:
        raise BrokenMessageError("whether it fits is missing")
    others = {"verdict", "memory", "missing"}
    read_texts([value for name, value in result.items() if name not in others])
    if not isinstance(result["missing"], bool):
        raise BrokenMessageError("whether a library is missing is not said")
    verdict = read_verdict(result["verdict"], memory)
    return Fit(
        **{**result, "verdict": verdict, "memory": read_optional_number(result["memory"], memory)}
    )


def read_verdicts(result: Any, memory: SharedMemory) -> list[Verdict]:
    if not isinstance(result, list):
        raise BrokenMessageError("a list of verdicts is missing")
    return [read_verdict(each, memory) for each in result]


def read_seconds(result: Any, _: SharedMemory) -> float:
    if not isinstance(result, float) or not 0 < result < inf:
        raise BrokenMessageError("a number of seconds is missing")
    return result


def read_estimate(result: Any, _: SharedMemory) -> float | Cycles:
    numbers = result if isinstance(result, list) else []
    if not all(isinstance(each, float) and 0 < each < inf for each in numbers):
        raise BrokenMessageError("an estimate is missing")
    match numbers:
        case [seconds]:
            return float(seconds)
        case [count, hertz] if 0 < Cycles(count, hertz).seconds < inf:
            return Cycles(count, hertz)
    raise BrokenMessageError("an estimate is missing")


def read_times(result: Any, _: SharedMemory) -> tuple[OperatorTime, ...]:
    """Return the times of operations."""
    if not isinstance(result, list):
        raise BrokenMessageError("the times of operations are missing")
    return tuple(map(_read_time, result))


def _read_time(entry: Any) -> OperatorTime:
    match entry:
        case [str(name), list(nodes), [float(seconds)]] if 0 <= seconds < inf:
            return OperatorTime(tuple(read_texts(nodes)), seconds, name)
        case [str(name), list(nodes), [float(count), float(hertz)]] if 0 <= count < inf > hertz > 0:
            return OperatorTime(tuple(read_texts(nodes)), Cycles(count, hertz), name)
    raise BrokenMessageError("the time of an operation is missing")


def read_runs(result: Any, _: SharedMemory) -> list[float]:
    runs = result if isinstance(result, list) else []
    if not runs or not all(isinstance(each, float) and 0 <= each < inf for each in runs):
        raise BrokenMessageError("the seconds of runs are missing")
    return runs


def read_sentences(result: Any, _: SharedMemory) -> list[str]:
    return read_texts(result)


def read_driver(result: Any, _: SharedMemory) -> DriverSources:
    """Return the sources of a driver."""
    if not isinstance(result, dict) or result.keys() != {"name", "files", "libraries", "abi"}:
        raise BrokenMessageError("the sources of a driver are missing")
    (name,) = read_texts([result["name"]])
    files = tuple(map(Path, read_texts(result["files"])))
    if result["abi"] not in (1, 2):
        raise BrokenMessageError("the version of a driver's table is neither 1 nor 2")
    return DriverSources(name, files, tuple(read_texts(result["libraries"])), result["abi"])


def read_context(result: Any, _: SharedMemory) -> Context:
    names = {entry.name for entry in fields(Context)}
    if not isinstance(result, dict) or result.keys() != names or not isinstance(result["more"], dict):
        raise BrokenMessageError("a context is missing")
    texts = {"inputs", "outputs"}
    read_texts([value for name, value in result.items() if name not in {*texts, "more"}])
    return Context(**{**result, **{name: tuple(read_texts(result[name])) for name in texts}})


T = TypeVar("T")
Measure = Callable[[Callable[[], object]], Sequence[float]]
"""Measures a function: gives the seconds of each run that counts. One for a worker can be pickled."""
Examine = Callable[[Executor, Mapping[str, Any]], Iterable[str]]
"""Examines an executor on some inputs: gives sentences. One for a worker can be pickled."""


class IsolatedCodegen:
    """A codegen whose methods run in a worker process; a subclass has the abilities that it has.

    The process is started when it is needed, serves one call at a time, and ends with this object. After
    it died, the next call starts another.
    """

    concurrent = False
    examines = True  # its process can run functions of byoc

    def __init__(self, name: str, isolation: Isolation) -> None:
        """Keep the name and the limits."""
        self.name, self.isolation, self.lock = name, isolation, RLock()
        self._worker: Worker | None = None
        self._description: CodegenDescription | None = None

    @property
    def description(self) -> CodegenDescription:
        """The description of the codegen. Raises InputError when it cannot be loaded."""
        if self._description is None:
            _ = self.worker
        assert self._description is not None
        return self._description

    @property
    def open_shapes(self) -> bool:
        """Whether its executors take inputs of other extents than declared."""
        return self.description.open_shapes

    @property
    def recompiles(self) -> bool:
        """Whether its `load` itself handles an artifact that does not fit."""
        return self.description.recompiles

    @property
    def native(self) -> bool:
        """Whether its `load` executes what an artifact holds."""
        return self.description.native

    @property
    def calibrates(self) -> bool:
        """Whether its `compile` reads the samples of regions."""
        return self.description.calibrates

    @property
    def model_driver(self) -> bool:
        """Whether a driver that byoc makes of its regions' models runs them."""
        return self.description.model_driver

    @property
    def refers_to_weights(self) -> bool:
        """Whether its artifacts depend on where constants lie."""
        return self.description.refers_to_weights

    @property
    def worker(self) -> Worker:
        """The process, started unless it runs. Raises InputError when the codegen cannot be loaded."""
        with self.lock:
            if self._worker is None or not self._worker.is_alive:
                self._worker, self._description = self.start()
            return self._worker

    def start(self) -> tuple[Worker, CodegenDescription]:
        """Start a process and import the codegen there. Raises InputError where that fails."""
        worker = Worker(self.isolation.environment)
        try:
            return worker, import_codegen(worker, self.name, self.isolation)
        except BaseException:
            worker.close()
            raise

    def close(self) -> None:
        """End the process."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def check_options(self, given: Mapping[str, str]) -> None:
        """Raise InputError when an option is wrong, or reading the options fails."""
        with self._naming_failures():
            self.call("options", read_nothing, options=dict(given))

    def find_wrong_options(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the options that the codegen does not take, each with the end of a sentence.

        Raises InputError when reading the options fails.
        """
        with self._naming_failures():
            return self.call("find wrong options", read_pairs_of_texts, options=dict(given))

    @contextmanager
    def _naming_failures(self) -> Iterator[None]:
        """Raise InputError that names the codegen where it fails."""
        try:
            yield
        except (CodegenFailedError, RaisedInWorkerError) as error:
            raise InputError(f"codegen {self.name}: {error}") from error

    def compile(self, region: Region, options: Mapping[str, str]) -> Artifact:
        """Compile a region with options as text. Raises CompileError."""
        return self.call("compile", read_artifact, region=copy_region(region), options=dict(options))

    def describe_compiler(self, options: Mapping[str, str]) -> dict[str, str] | None:
        """Describe it with options as text, as far as its artifacts depend on it; None if unknown."""
        return self.call("describe compiler", read_pairs_of_texts, options=dict(options)) or None

    def call(
        self,
        method: str,
        read: Reader[T],
        write: Callable[[SharedMemory], Mapping[str, Any]] = lambda _: {},
        **request: Any,
    ) -> T:
        """Call a method in the process: `write` gives what is in the memory, `read` reads the result.

        Raises what the method raises, and CodegenFailedError when the process fails.
        """
        with self.lock:
            return ask_worker(self.worker, self.isolation, method, read, request, write)

    def measure(
        self, executor: int, write: Callable[[SharedMemory], Mapping[str, Any]], measure: Measure
    ) -> list[float]:
        """Measure an executor on inputs in the process; return the seconds of its runs."""
        return self.call("measure", read_runs, write, executor=executor, measure=measure)


def import_codegen(worker: Worker, name: str, isolation: Isolation) -> CodegenDescription:
    """Import a codegen in a worker process, which is then its own; return its description.

    Raises InputError when it cannot be loaded.
    """
    request = {"codegen": name, "path": os.environ.get(PATH_VARIABLE)}
    try:
        with wait_for_codegen(f"codegen {name}", "import", isolation.find_limit("import")):
            return ask_worker(
                worker, isolation, "import", lambda result, _: read_description(result), request
            )
    except (CodegenFailedError, RaisedInWorkerError) as error:
        raise InputError(f"codegen {name} cannot be loaded: {error}") from error


def ask_worker(  # noqa: PLR0913, PLR0917 - a call and its two ends
    worker: Worker,
    isolation: Isolation,
    method: str,
    read: Reader[T],
    request: Mapping[str, Any],
    write: Callable[[SharedMemory], Mapping[str, Any]] = lambda _: {},
) -> T:
    """Call a method in a worker process; raises as `Worker.call`."""
    worker.memory.clear()
    released, worker.released[:] = list(worker.released), []
    common = {"settings": onnxrt.get_session_settings(), "released": released}
    asked = {**request, **write(worker.memory), **common}
    return worker.call(method, asked, isolation.find_limit(method), read)


def copy_region(region: Region) -> Region:
    """Return a region without what was read of it, its path absolute: a codegen may change folders."""
    return replace(region, path=region.path.absolute())
