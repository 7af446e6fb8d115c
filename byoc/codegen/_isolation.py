"""Compilation in a separate process, so that a crash or hang of a codegen does not affect byoc.

The request goes to the process as a pickle in a private folder; artifacts come back as plain files and
JSON, which are checked.
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

from byoc.codegen._calling import ArtifactError
from byoc.codegen._interface import Artifact, CompileError, Region, ResourceError
from byoc.errors import InputError, MissingRuntimeError

REQUEST_FILE = "request"
RESULT_FILE = "result.json"
PATH_VARIABLE = "PYTHONPATH"

_WORKER = "byoc.codegen._compile_worker"
_SIGNAL_HINTS = {"SIGKILL": ", as happens when memory runs out"}


@dataclass(frozen=True)
class Isolation:
    """The request to compile in separate processes, with at most `timeout` seconds for each."""

    timeout: float | None = None


@dataclass(frozen=True, eq=False)
class CompileRequest:
    """The task of a process: regions to compile, in one call where `together`.

    `path` is the caller's PYTHONPATH, which is restored for processes that the codegen starts.
    """

    codegen: str
    options: Mapping[str, str]
    regions: tuple[Region, ...]
    together: bool
    path: str | None


def compile_isolated(
    codegen: str,
    regions: Sequence[Region],
    options: Mapping[str, str],
    timeout: float | None = None,
    *,
    together: bool = False,
) -> dict[str, Artifact]:
    """Compile regions by the codegen of a name in a fresh process; return the artifacts by region name.

    With `together`, the codegen compiles all of them in one call. Raises CompileError with one sentence
    when the codegen refuses or fails, takes longer than `timeout` seconds, or its process dies;
    InputError when the process cannot be started, or does not find the codegen.
    """
    bare = tuple(Region(**{f.name: getattr(each, f.name) for f in fields(each)}) for each in regions)
    request = CompileRequest(codegen, dict(options), bare, together, os.environ.get(PATH_VARIABLE))
    with tempfile.TemporaryDirectory(prefix="byoc-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / REQUEST_FILE).write_bytes(pickle.dumps(request))
        code = _run_worker(folder, timeout)
        if not (folder / RESULT_FILE).is_file():
            raise CompileError(_describe_exit(code))
        try:
            result = json.loads((folder / RESULT_FILE).read_text(encoding="utf-8"))
            if "error" not in result:
                return {
                    each.name: _read_artifact(result["artifacts"][each.name], folder) for each in bare
                }
            failure = _read_failure(result["error"], [each.name for each in bare])
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            raise CompileError("its process left a result that cannot be read") from None
    raise failure


def _run_worker(folder: Path, timeout: float | None) -> int:
    """Run the worker on a folder and return its exit code; kill all processes that it started."""
    # -P: modules in the working directory are not imported, as with the `byoc` command.
    command = [sys.executable, "-P", "-m", _WORKER, str(folder)]
    path = os.pathsep.join(dict.fromkeys(entry for entry in sys.path if entry))
    try:
        process = subprocess.Popen(
            command,
            env={**os.environ, PATH_VARIABLE: path},
            stdin=subprocess.DEVNULL,
            stdout=_stderr_or_null(),  # standard output is for byoc's results
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise InputError(f"no process can be started to compile in: {error}") from None
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        raise CompileError(f"took longer than {timeout:g} s and was stopped") from None
    finally:
        with suppress(OSError):  # the group is gone with all that it started
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _stderr_or_null() -> int:
    try:
        os.fstat(2)
    except OSError:  # closed
        return subprocess.DEVNULL
    return 2


def _describe_exit(code: int) -> str:
    """Describe the end of a process that left no result, as a sentence."""
    if code >= 0:
        return f"its process ended with exit code {code} and without a result"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"its process was killed by {name}{_SIGNAL_HINTS.get(name, '')}"


def _read_failure(failure: Any, names: Sequence[str]) -> Exception:
    """Return the error that a result describes."""
    kind, reason = str(failure["kind"]), str(failure["reason"])
    if kind == "missing":
        return MissingRuntimeError(reason)
    if kind == "unusable":
        return InputError(reason)
    if failure["region"]:
        return ArtifactError(reason, names[names.index(failure["region"])])
    nodes = [name for name in failure["nodes"] if isinstance(name, str)]
    return (ResourceError if kind == "too large" else CompileError)(reason, nodes)


def _read_artifact(entry: Any, folder: Path) -> Artifact:
    files = {str(name): (folder / str(int(number))).read_bytes() for name, number in entry["files"]}
    return Artifact(files, {str(key): str(value) for key, value in entry["metadata"]})
