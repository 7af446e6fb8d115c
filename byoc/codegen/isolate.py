"""Compiling in a process of its own, so that what kills or hangs a codegen does not take byoc along.

The request goes to the process as a file that it is the only one to read; artifacts come back as plain
files and JSON, of which nothing is believed that is not there.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from byoc.codegen.api import Artifact, CompileError, Region, ResourceError
from byoc.codegen.asking import ArtifactError
from byoc.errors import InputError, MissingRuntimeError

REQUEST = "request"
RESULT = "result.json"
PATH = "PYTHONPATH"

_WORKER = "byoc.codegen.worker"
_KILLED = {"SIGKILL": ", as happens when memory runs out"}


@dataclass(frozen=True)
class Isolation:
    """That regions are compiled in processes of their own, which may take `timeout` seconds each."""

    timeout: float | None = None


@dataclass(frozen=True, eq=False)
class Request:
    """What a process is asked for: artifacts of regions, by one call where `together`.

    `path` is what PYTHONPATH was before, which what the codegen starts has to see again.
    """

    codegen: str
    options: Mapping[str, str]
    regions: tuple[Region, ...]
    together: bool
    path: str | None


def compile_isolated(
    codegen: str, region: Region, options: Mapping[str, str], timeout: float | None = None
) -> Artifact:
    """Return a region's artifact, compiled by the codegen of that name in a fresh process.

    Raises CompileError with one sentence when it is refused, fails, takes longer than `timeout` seconds,
    or its process dies; InputError when there can be no such process, or it does not find the codegen.
    """
    return _isolated(codegen, (region,), options, timeout, together=False)[region.name]


def compile_all_isolated(
    codegen: str, regions: Sequence[Region], options: Mapping[str, str], timeout: float | None = None
) -> dict[str, Artifact]:
    """Return the artifacts of some regions by name, compiled in one call; as `compile_isolated`."""
    return _isolated(codegen, regions, options, timeout, together=True)


def _isolated(
    codegen: str,
    regions: Sequence[Region],
    options: Mapping[str, str],
    timeout: float | None,
    *,
    together: bool,
) -> dict[str, Artifact]:
    bare = tuple(Region(**{f.name: getattr(each, f.name) for f in fields(each)}) for each in regions)
    request = Request(codegen, dict(options), bare, together, os.environ.get(PATH))
    with tempfile.TemporaryDirectory(prefix="byoc-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / REQUEST).write_bytes(pickle.dumps(request))
        code = _run(folder, timeout)
        if not (folder / RESULT).is_file():
            raise CompileError(_ended(code))
        try:
            result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
            if "error" not in result:
                return {each.name: _artifact(result["artifacts"][each.name], folder) for each in bare}
            failure = _failure(result["error"], [each.name for each in bare])
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            raise CompileError("its process left a result that cannot be read") from None
    raise failure


def _run(folder: Path, timeout: float | None) -> int:
    """Run the worker on a folder and return its exit code; nothing that it started stays behind."""
    # -P: what lies in the working directory is not imported, no more than it is by `byoc`.
    command = [sys.executable, "-P", "-m", _WORKER, str(folder)]
    path = os.pathsep.join(dict.fromkeys(entry for entry in sys.path if entry))
    try:
        process = subprocess.Popen(
            command,
            env={**os.environ, PATH: path},
            stdin=subprocess.DEVNULL,
            stdout=_errors(),  # standard output is for byoc's results
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise InputError(f"no process can be started to compile in: {error}") from None
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        raise CompileError(f"took longer than {timeout:g} s and was stopped") from None
    finally:
        with suppress(OSError):  # the group of what is gone with all that it started
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _errors() -> int:
    try:
        os.fstat(2)
    except OSError:  # closed
        return subprocess.DEVNULL
    return 2


def _ended(code: int) -> str:
    """Return how a process ended that left no result, as a sentence."""
    if code >= 0:
        return f"its process ended with exit code {code} and without a result"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"its process was killed by {name}{_KILLED.get(name, '')}"


def _failure(told: Any, names: Sequence[str]) -> Exception:
    """Return the error that a result tells of."""
    kind, reason = str(told["kind"]), str(told["reason"])
    if kind == "missing":
        return MissingRuntimeError(reason)
    if kind == "unusable":
        return InputError(reason)
    if told["region"]:
        return ArtifactError(reason, names[names.index(told["region"])])
    nodes = [name for name in told["nodes"] if isinstance(name, str)]
    return (ResourceError if kind == "too large" else CompileError)(reason, nodes)


def _artifact(told: Any, folder: Path) -> Artifact:
    files = {str(name): (folder / str(int(number))).read_bytes() for name, number in told["files"]}
    return Artifact(files, {str(key): str(value) for key, value in told["metadata"]})
