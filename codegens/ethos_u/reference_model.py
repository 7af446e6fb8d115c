"""Arm's TOSA reference model in an interpreter of its own: bit-exact, and kept alive over runs.

tosa-tools pins numpy and ml-dtypes to releases that byoc's environment need not have. So it may be in
another environment, whose interpreter the environment variable BYOC_TOSA_PYTHON names.
"""

import os
import shutil
import sys
import threading
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from byoc.codegen import (
    AnyArray,
    Fit,
    InputError,
    NotHereError,
    PipeProcess,
    ProcessEndedError,
    find_library,
    find_version_in,
    refuse,
)

from . import tosa_worker

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
