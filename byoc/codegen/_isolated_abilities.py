"""The abilities of codegens in worker processes, and the regions that are loaded there."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from onnx import ModelProto

from byoc import onnxrt
from byoc.codegen._calling import RemoteExecutor, run_executor, take_turns
from byoc.codegen._isolation import (
    IsolatedCodegen,
    copy_region,
    read_artifacts,
    read_context,
    read_driver,
    read_estimate,
    read_number,
    read_optional_artifact,
    read_outputs,
    read_pairs_of_texts,
    read_seconds,
    read_sentences,
    read_verdict,
    read_verdicts,
)
from byoc.codegen.byoc_worker.link import write_array, write_files

if TYPE_CHECKING:
    from byoc.codegen._abilities import Context, DriverSources
    from byoc.codegen._interface import AnyArray, Artifact, Cycles, Executor
    from byoc.codegen._isolation import Examine, Measure
    from byoc.codegen._region import Region
    from byoc.codegen._worker import Isolation, Worker
    from byoc.codegen.byoc_worker.link import SharedMemory
    from byoc.errors import Verdict


class _Loads(IsolatedCodegen):
    def load(self, region: Region, artifact: Artifact) -> Executor:
        return _IsolatedExecutor(self, copy_region(region), artifact)


class _Checks(IsolatedCodegen):
    def check(
        self, model: ModelProto, options: Mapping[str, str] = MappingProxyType({})
    ) -> Sequence[Verdict]:
        return self.call("check", read_verdicts, model=model, options=dict(options))


class _Measures(IsolatedCodegen):
    def cost(self, region: Region) -> float:
        return self.call("cost", read_seconds, region=copy_region(region))


class _Estimates(IsolatedCodegen):
    def estimate(self, region: Region, options: Mapping[str, str], artifact: Artifact) -> float | Cycles:
        asked = {"region": copy_region(region), "options": dict(options)}
        return self.call("estimate", read_estimate, partial(_write_artifact, artifact), **asked)


class _Stamps(IsolatedCodegen):
    def compatible(self, region: Region, artifact: Artifact) -> Verdict:
        copied = copy_region(region)
        return self.call("compatible", read_verdict, partial(_write_artifact, artifact), region=copied)


class _GivesKeys(IsolatedCodegen):
    def cache_key(self, options: Mapping[str, str]) -> Mapping[str, str]:
        return self.call("cache_key", read_pairs_of_texts, options=dict(options))


class _CompilesTogether(IsolatedCodegen):
    def compile_all(
        self, regions: Sequence[Region], options: Mapping[str, str]
    ) -> Mapping[str, Artifact]:
        copied = tuple(map(copy_region, regions))
        return self.call("compile_all", read_artifacts, regions=copied, options=dict(options))


class _TakesWeights(IsolatedCodegen):
    def take_weights(
        self, region: Region, first: Region, artifact: Artifact, options: Mapping[str, str]
    ) -> Artifact | None:
        regions = (copy_region(region), copy_region(first))
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


class _Recovers(IsolatedCodegen):
    @property
    def recovery_options(self) -> Sequence[Mapping[str, str]]:
        return self.description.recovery_options


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
    "recovery": _Recovers,
}


def add_abilities(codegen: IsolatedCodegen) -> None:
    """Give a codegen in a worker process the methods that it has there."""
    abilities = [ABILITY_CLASSES[ability] for ability in codegen.description.abilities]
    kind = type(codegen)
    codegen.__class__ = type(kind.__name__, (*abilities, kind), {})


def find_isolated(name: str, isolation: Isolation) -> IsolatedCodegen:
    """Return the installed codegen of a name, which runs in a worker process and is imported only there.

    Raises InputError as `find_codegen` does, and when no process can be started.
    """
    found = IsolatedCodegen(name, isolation)
    add_abilities(found)
    return found


class _IsolatedExecutor(RemoteExecutor):
    """A region that is loaded in a codegen's process, and loaded again in the next one after it died."""

    def __init__(self, codegen: IsolatedCodegen, region: Region, artifact: Artifact) -> None:
        self._codegen, self._region, self._artifact = codegen, region, artifact
        self._settings = onnxrt.get_session_settings()
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
            with onnxrt.with_session_settings(self._settings):
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


def _write_artifact(artifact: Artifact, memory: SharedMemory) -> dict[str, Any]:
    return {"files": write_files(artifact.files, memory), "metadata": dict(artifact.metadata)}


def _write_inputs(inputs: Mapping[str, Any], memory: SharedMemory) -> dict[str, Any]:
    return {"inputs": [(name, write_array(value, memory)) for name, value in inputs.items()]}
