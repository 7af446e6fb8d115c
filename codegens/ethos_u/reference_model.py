"""Arm's TOSA reference model in an interpreter of its own: bit-exact, and kept alive over runs.

tosa-tools pins numpy and ml-dtypes to releases that byoc's environment need not have. So it may be in
another environment, whose interpreter the environment variable BYOC_TOSA_PYTHON names.
"""

import atexit
import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import IO

import numpy as np

from byoc.codegen import AnyArray, Fit, InputError, NotHereError, find_library, refuse

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
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None
        self._graph: object = None
        self._lock = threading.Lock()

    def run(self, graph: bytes, arrays: Sequence[AnyArray]) -> list[AnyArray]:
        """Return the results of a graph. Raises InputError with the reason if there are none."""
        with self._lock:
            process = self._start()
            assert process.stdin is not None
            assert process.stdout is not None
            sent = b"" if self._graph is graph else graph
            arrays = [np.ascontiguousarray(array) for array in arrays]
            head = {"graph": len(sent), "arrays": [[each.dtype.name, each.shape] for each in arrays]}
            try:
                process.stdin.write(json.dumps(head).encode() + b"\n" + sent)
                for array in arrays:
                    process.stdin.write(array.tobytes())
                process.stdin.flush()
                self._graph = graph
                answer = json.loads(process.stdout.readline())
                made = [_read_array(process.stdout, *kind) for kind in answer["arrays"]]
            except (OSError, ValueError):
                self.close()
                raise InputError("the process of the TOSA reference model ended") from None
        if answer["error"]:
            raise InputError(answer["error"])
        return made

    def close(self) -> None:
        """End the process."""
        process, self._process, self._graph = self._process, None, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # what was to be written has no reader
                        pipe.close()

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = subprocess.Popen(
                [self._python, "-I", tosa_worker.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        return self._process


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
    if not python or not _has_model(python):
        raise NotHereError(_MISSING if not python else f"{_MISSING}; '{python}' lacks it")
    return _open_model(python)


@lru_cache
def _open_model(python: str) -> ReferenceModel:
    model = ReferenceModel(python)
    atexit.register(model.close)
    return model


@lru_cache
def _has_model(python: str) -> bool:
    """Return whether an interpreter has the reference model."""
    code = (
        "import importlib.util as u; assert u.find_spec('tosa_reference_model') and u.find_spec('numpy')"
    )
    try:
        ran = subprocess.run([python, "-I", "-c", code], capture_output=True, timeout=60, check=False)
    except OSError:
        return False
    return ran.returncode == 0


def _read_array(stream: IO[bytes], dtype: str, shape: Sequence[int]) -> AnyArray:
    kind = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    data = stream.read(size)
    if len(data) < size:
        raise ValueError("half an answer")
    return np.frombuffer(data, kind).reshape(shape).copy()
