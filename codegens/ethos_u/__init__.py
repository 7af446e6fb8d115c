"""The codegen for Arm's Ethos-U NPUs: int8 and int16 regions as TOSA 1.0, compiled by Vela.

The artifact has Vela's command stream with the weights, which the NPU's driver loads, and the TOSA
graph, which Arm's reference model executes bit by bit as the NPU does. The model is kept alive over
runs, in an interpreter of its own: tosa-tools pins numpy and ml-dtypes to releases that byoc's
environment need not have. The environment variable BYOC_TOSA_PYTHON names that interpreter.
"""

import json
import os
import shutil
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx

from byoc.codegen import (
    SRAM,
    SRAM_LIMIT,
    YES,
    AnyArray,
    Artifact,
    CompileError,
    Cycles,
    Executor,
    Fit,
    InputError,
    NotHereError,
    PipeProcess,
    ProcessEndedError,
    Region,
    TensorContract,
    Verdict,
    find_library,
    find_version_in,
    format_options,
    refuse,
)

from . import lower_convolutions, lower_data, lower_elementwise, lower_pools, tosa_worker
from .lower_regions import (
    EthosUOptions,
    check_nodes,
    compile_graph,
    find_refused,
    lower_region,
    vela_version,
)

VARIABLE = "BYOC_TOSA_PYTHON"
_MISSING = (
    "the TOSA reference model, which executes graphs for Ethos-U, is not here: install tosa-tools into "
    f"an environment, and name its interpreter in {VARIABLE}"
)


class ReferenceModel:
    """A process that runs graphs one at a time, started at the first run, and again if it died."""

    def __init__(self, python: str) -> None:
        """Remember the interpreter."""
        self._process = PipeProcess(python, Path(tosa_worker.__file__))
        self._graph: tuple[int, bytes] = (0, b"")
        self._lock = threading.Lock()

    def run(self, graph: bytes, arrays: Sequence[AnyArray]) -> list[AnyArray]:
        """Return the results of a graph. Raises InputError with the reason if there are none."""
        with self._lock:
            life = self._process.start()
            is_known = self._graph[0] == life and self._graph[1] is graph
            sent = np.frombuffer(b"" if is_known else graph, np.uint8)
            try:
                answer, made = self._process.ask({}, [sent, *arrays])
            except ProcessEndedError:
                raise InputError("the process of the TOSA reference model ended") from None
            self._graph = (life, graph)
        if answer["error"]:
            raise InputError(answer["error"])
        return made


def describe_reference_model() -> Fit:
    """Return whether the reference model is here, as far as that is known without starting it."""
    python = os.environ.get(VARIABLE, "")
    if python:
        if shutil.which(python) is None:
            return Fit("", refuse(f"{_MISSING}; there is no '{python}'"))
        return Fit(f"TOSA reference model of {python}", unknown=f"whether {python} has the model")
    version = find_library("tosa_reference_model", "tosa-tools")
    if version is None:
        return Fit("", refuse(_MISSING))
    return Fit(f"TOSA reference model {version}".strip())


def find_reference_model() -> ReferenceModel:
    """Return the reference model of this machine. Raises NotHereError if there is none."""
    python = os.environ.get(VARIABLE, "")
    if not python and find_spec("tosa_reference_model") is not None:
        python = sys.executable
    if not python or _find_version(python) is None:
        raise NotHereError(_MISSING if not python else f"{_MISSING}; '{python}' lacks it")
    return _open_model(python)


_open_model = lru_cache(ReferenceModel)


@lru_cache
def _find_version(python: str) -> str | None:
    return find_version_in(python, "tosa_reference_model", "tosa-tools")


__all__ = ["EthosU"]


_STREAM = "region.npz"
_GRAPH = "region.tosa"


class EthosU:
    """Codegen that compiles regions with Vela, and runs them on the TOSA reference model."""

    name = "ethos_u"
    api = 4
    Options = EthosUOptions
    concurrent = True
    parallel = True  # most of the time goes by in Vela's process
    libraries = ("ethos-u-vela", "flatbuffers")

    def compile(self, region: Region, options: EthosUOptions) -> Artifact:
        """Return command stream and TOSA graph, with Vela's figures.

        Raises CompileError for what has no TOSA operators, and with Vela's reason for what it refuses,
        each with the nodes at fault, and MissingRuntimeError without Vela.
        """
        made_by = vela_version()
        graph, inputs = lower_region(region)
        try:
            made = compile_graph(graph, options)
        except CompileError as error:
            raise CompileError(
                str(error), find_refused(region, options), lasting=error.lasting
            ) from error
        metadata = {
            **format_options(options),
            "vela": made_by,
            "cycles": f"{made.cycles:.0f}",
            "hertz": f"{made.hertz:.0f}",
            SRAM: str(made.sram),
            **({} if made.sram_limit is None else {SRAM_LIMIT: str(made.sram_limit)}),
            "flash": str(made.flash),
            "inputs": json.dumps(inputs),
        }
        return Artifact({_STREAM: made.stream, _GRAPH: graph}, metadata)

    def load(self, region: Region, artifact: Artifact) -> Executor:
        """Return a function that runs the graph on the reference model.

        Raises NotHereError where the model is not installed.
        """
        model = find_reference_model()
        graph = artifact.files[_GRAPH]
        read = [region.inputs[position] for position in json.loads(artifact.metadata["inputs"])]

        def run(inputs: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
            arrays = [np.asarray(inputs[each.name]) for each in read]
            made = model.run(graph, [array.reshape(array.shape or (1,)) for array in arrays])
            return {
                each.name: array.reshape(_find_shape(each))
                for each, array in zip(region.outputs, made, strict=True)
            }

        return run

    def find_fit(self, files: Sequence[str], metadata: Mapping[str, str]) -> Fit:
        """Return whether the reference model is named or installed, and the memory that Vela counts.

        Raises InputError where the metadata is not this codegen's, as `load` does.
        """
        fit = describe_reference_model()
        memory = sum(int(metadata.get(name, "0")) for name in (SRAM, "flash"))
        made = metadata["vela"]
        return replace(fit, accepts=f"stream of Vela {made}", memory=memory or None)

    def compatible(self, region: Region, artifact: Artifact) -> Verdict:
        """Return whether the command stream is of the installed Vela; where there is none, it is."""
        try:
            here = vela_version()
        except Exception:
            return YES
        made = artifact.metadata.get("vela", "nothing")
        return YES if made == here else refuse(f"the stream was made by Vela {made}, but this is {here}")

    def estimate(self, region: Region, options: EthosUOptions, artifact: Artifact) -> Cycles:
        """Return Vela's estimate of a run, at the clock of the system configuration."""
        return Cycles(float(artifact.metadata["cycles"]), float(artifact.metadata["hertz"]))

    def cache_key(self, options: EthosUOptions) -> dict[str, str]:
        """Return Vela's version. Raises MissingRuntimeError as `compile` does."""
        return {"vela": vela_version()}

    def check(self, model: onnx.ModelProto, options: EthosUOptions) -> Sequence[Verdict]:
        """Return for each node whether Vela compiles it, or its reason."""
        return check_nodes(model, options)


def _find_shape(contract: TensorContract) -> list[int]:
    return [extent for extent in contract.type.shape or () if isinstance(extent, int)]
