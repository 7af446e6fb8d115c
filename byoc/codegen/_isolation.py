"""Codegens whose methods run in worker processes, so that crashes and hangs do not affect byoc."""

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from threading import RLock
from typing import Any, TypeVar

from onnx import ModelProto

from byoc.codegen._abilities import Context, DriverSources
from byoc.codegen._calling import RemoteExecutor, run_executor, take_turns
from byoc.codegen._descriptions import CodegenDescription, read_description
from byoc.codegen._interface import AnyArray, Artifact, Cycles, Executor, Region
from byoc.codegen._refusals import CodegenFailedError
from byoc.codegen._results import (
    read_artifact,
    read_artifacts,
    read_context,
    read_driver,
    read_estimate,
    read_nothing,
    read_number,
    read_optional_artifact,
    read_outputs,
    read_pairs_of_texts,
    read_runs,
    read_seconds,
    read_sentences,
    read_verdict,
    read_verdicts,
)
from byoc.codegen._worker import Isolation, RaisedInWorkerError, Reader, Worker
from byoc.codegen._worker_program import PATH_VARIABLE
from byoc.codegen.byoc_worker.link import (
    SharedMemory,
    write_array,
    write_files,
)
from byoc.errors import InputError, Verdict
from byoc.onnxrt import get_session_settings, with_session_settings

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

    def add_abilities(self) -> None:
        """Give this object the methods that the codegen has."""
        abilities = [ABILITY_CLASSES[ability] for ability in self.description.abilities]
        kind = type(self)
        self.__class__ = type(kind.__name__, (*abilities, kind), {})

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
        return self.call("compile", read_artifact, region=_copy_region(region), options=dict(options))

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
    common = {"settings": get_session_settings(), "released": released}
    asked = {**request, **write(worker.memory), **common}
    return worker.call(method, asked, isolation.find_limit(method), read)


class _Loads(IsolatedCodegen):
    def load(self, region: Region, artifact: Artifact) -> Executor:
        return _IsolatedExecutor(self, _copy_region(region), artifact)


class _Checks(IsolatedCodegen):
    def check(self, model: ModelProto) -> Sequence[Verdict]:
        return self.call("check", read_verdicts, model=model)


class _Measures(IsolatedCodegen):
    def cost(self, region: Region) -> float:
        return self.call("cost", read_seconds, region=_copy_region(region))


class _Estimates(IsolatedCodegen):
    def estimate(self, region: Region, options: Mapping[str, str], artifact: Artifact) -> float | Cycles:
        asked = {"region": _copy_region(region), "options": dict(options)}
        return self.call("estimate", read_estimate, partial(_write_artifact, artifact), **asked)


class _Stamps(IsolatedCodegen):
    def compatible(self, region: Region, artifact: Artifact) -> Verdict:
        copied = _copy_region(region)
        return self.call("compatible", read_verdict, partial(_write_artifact, artifact), region=copied)


class _GivesKeys(IsolatedCodegen):
    def cache_key(self, options: Mapping[str, str]) -> Mapping[str, str]:
        return self.call("cache_key", read_pairs_of_texts, options=dict(options))


class _CompilesTogether(IsolatedCodegen):
    def compile_all(
        self, regions: Sequence[Region], options: Mapping[str, str]
    ) -> Mapping[str, Artifact]:
        copied = tuple(map(_copy_region, regions))
        return self.call("compile_all", read_artifacts, regions=copied, options=dict(options))


class _TakesWeights(IsolatedCodegen):
    def take_weights(
        self, region: Region, first: Region, artifact: Artifact, options: Mapping[str, str]
    ) -> Artifact | None:
        regions = (_copy_region(region), _copy_region(first))
        write = partial(_write_artifact, artifact)
        return self.call(
            "take_weights", read_optional_artifact, write, regions=regions, options=dict(options)
        )


class _GivesContexts(IsolatedCodegen):
    def context(self, artifact: Artifact) -> Context:
        return self.call("context", read_context, partial(_write_artifact, artifact))


class _HasDriver(IsolatedCodegen):
    def driver(self) -> DriverSources:
        return self.call("driver", read_driver)


ABILITY_CLASSES: Mapping[str, type[IsolatedCodegen]] = {
    "executable": _Loads,
    "oracle": _Checks,
    "measured": _Measures,
    "estimate": _Estimates,
    "stamped": _Stamps,
    "keyed": _GivesKeys,
    "together": _CompilesTogether,
    "weights": _TakesWeights,
    "context": _GivesContexts,
    "driver": _HasDriver,
}


def find_isolated(name: str, isolation: Isolation) -> IsolatedCodegen:
    """Return the installed codegen of a name, which runs in a worker process and is imported only there.

    Raises InputError as `find_codegen` does, and when no process can be started.
    """
    found = IsolatedCodegen(name, isolation)
    found.add_abilities()
    return found


class _IsolatedExecutor(RemoteExecutor):
    """A region that is loaded in a codegen's process, and loaded again in the next one after it died."""

    def __init__(self, codegen: IsolatedCodegen, region: Region, artifact: Artifact) -> None:
        self._codegen, self._region, self._artifact = codegen, region, artifact
        self._settings = get_session_settings()
        self._loaded_in: Worker | None = None
        self._number = 0
        self._load()

    def __call__(self, inputs: Mapping[str, Any]) -> Mapping[str, AnyArray]:
        codegen, write = self._codegen, partial(_write_inputs, inputs)
        with codegen.lock:
            self._load_again()
            return codegen.call("run", read_outputs, write, executor=self._number)

    def measure(self, inputs: Mapping[str, Any], measure: Measure) -> list[float]:
        codegen, write = self._codegen, partial(_write_inputs, inputs)
        with codegen.lock:
            self._load_again()
            return codegen.measure(self._number, write, measure)

    def examine(self, inputs: Mapping[str, Any], examine: Examine) -> list[str]:
        codegen, write = self._codegen, partial(_write_inputs, inputs)
        if not codegen.examines:
            return list(examine(self, inputs))
        with codegen.lock:
            self._load_again()
            return codegen.call("examine", read_sentences, write, executor=self._number, examine=examine)

    def _load_again(self) -> None:
        """Load the region where the process is not the one that it was loaded in."""
        if self._loaded_in is not self._codegen.worker:
            with with_session_settings(self._settings):
                self._load()

    def _load(self) -> None:
        codegen = self._codegen
        with codegen.lock:
            worker = codegen.worker
            write = partial(_write_artifact, self._artifact)
            self._number = codegen.call("load", read_number, write, region=self._region)
            self._loaded_in = worker
            weakref.finalize(self, worker.released.append, self._number).atexit = False


def measure_executor(run: Executor, inputs: Mapping[str, Any], measure: Measure) -> list[float]:
    """Measure an executor on some inputs: return the seconds of its runs.

    It is called where the codegen is, so that runs in a worker process do not count the way there.
    """
    if isinstance(run, _IsolatedExecutor):
        return run.measure(inputs, measure)
    return list(measure(lambda: run_executor(run, inputs)))


def examine_executor(
    run: Executor,
    inputs: Mapping[str, Any],
    examine: Examine,
    lock: AbstractContextManager[Any],
) -> list[str]:
    """Examine an executor on some inputs: return the sentences. Each run holds `lock`.

    It is called where the codegen is, so that it sees what becomes of arrays and threads there; here for
    one in another Python, which has no functions of byoc.
    """
    if isinstance(run, _IsolatedExecutor):
        return run.examine(inputs, examine)
    return list(examine(take_turns(run, lock), inputs))


def _copy_region(region: Region) -> Region:
    """Return a region without what was read of it, its path absolute: a codegen may change folders."""
    return replace(region, path=region.path.absolute())


def _write_artifact(artifact: Artifact, memory: SharedMemory) -> dict[str, Any]:
    return {"files": write_files(artifact.files, memory), "metadata": dict(artifact.metadata)}


def _write_inputs(inputs: Mapping[str, Any], memory: SharedMemory) -> dict[str, Any]:
    return {"inputs": [(name, write_array(value, memory)) for name, value in inputs.items()]}
