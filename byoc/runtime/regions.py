"""Regions run by their codegen, which is somebody else's code: what it gives is held to its word."""

from collections.abc import Mapping
from contextlib import nullcontext
from threading import RLock
from typing import Any

import numpy as np

from byoc.bundle.compile import Compiler
from byoc.codegen import (
    Artifact,
    Codegen,
    Contract,
    Executable,
    Executor,
    Region,
    Stamped,
    find_codegen,
)
from byoc.errors import ByocError, InputError, MissingRuntimeError, described, goes_on, told
from byoc.runtime.values import mismatch
from byoc.verdict import Verdict

_SILENT = "it does not say why"


class RegionFailedError(InputError):
    """A region cannot be loaded, or failed as it ran: which one, and why, without what names it."""

    def __init__(self, message: str, region: str, reason: str) -> None:
        """Keep both beside the message."""
        super().__init__(message)
        self.region = region
        self.reason = reason


def executable(name: str) -> Executable:
    """Return a codegen that can run its artifacts. Raises InputError when it is missing or cannot."""
    codegen = find_codegen(name)
    if not isinstance(codegen, Executable):
        raise InputError(f"codegen {name} cannot run what it compiles here (it has no `load`)")
    return codegen


_TURNS: dict[str, RLock] = {}  # of all sessions of this process, by codegen


def takes_turns(codegen: object) -> bool:
    """Return whether a codegen's executors are to be called by one thread at a time.

    A codegen whose executors may run at the same time says so by `concurrent = True` in its class.
    """
    return not getattr(codegen, "concurrent", False)


def executor(
    codegen: Executable,
    codegen_name: str,
    region: Region,
    artifact: Artifact,
    options: Mapping[str, str] | None = None,
) -> Executor:
    """Return what runs a region; at each run its outputs are checked against their declared types.

    An artifact that was stored comes with the `options` that it was compiled with, as text: where the
    codegen says that it does not fit here, the region is compiled anew with them, in memory.

    Raises RegionFailedError when the codegen fails to load it, and so does the run when it fails.
    """
    who = f"codegen {codegen_name}"
    try:
        if options is not None:
            artifact = _fitting(codegen, region, artifact, options)
        run = codegen.load(region, artifact)
        if not callable(run):
            raise TypeError(f"`load` gave a {type(run).__name__} instead of a function")
    except MissingRuntimeError:
        raise
    except ByocError as error:
        why = told(error) or _SILENT
        raise RegionFailedError(f"{who}: {region.name}: {why}", region.name, why) from error
    except BaseException as error:  # a plug-in can fail in any way; say whose fault it was
        if goes_on(error):
            raise
        why = f"loading failed with {described(error)}"
        raise RegionFailedError(f"{who}: {region.name}: {why}", region.name, why) from error

    turn = _TURNS.setdefault(codegen_name, RLock()) if takes_turns(codegen) else nullcontext()

    def checked(inputs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            with turn:
                given = run(inputs)
            if not isinstance(given, Mapping):
                raise TypeError(f"it gave a {type(given).__name__} instead of outputs by name")
            return {value.name: _output(value, given) for value in region.outputs}
        except ByocError as error:
            why = told(error) or _SILENT
            raise RegionFailedError(f"{who}: {why}", region.name, why) from error
        except BaseException as error:  # as above
            if goes_on(error):
                raise
            why = f"failed with {described(error)}"
            raise RegionFailedError(f"{who}: {why}", region.name, why) from error

    return checked


def _fitting(
    codegen: Executable, region: Region, artifact: Artifact, options: Mapping[str, str]
) -> Artifact:
    """Return an artifact, or another of its region where it does not fit the library or machine here."""
    if not isinstance(codegen, Stamped) or getattr(codegen, "recompiles", False):
        return artifact
    verdict = codegen.compatible(region, artifact)
    if not isinstance(verdict, Verdict):
        raise TypeError(f"`compatible` gave a {type(verdict).__name__} instead of a Verdict")
    if verdict:
        return artifact
    try:
        assert isinstance(codegen, Codegen)
        return Compiler(codegen, options).compile(region)
    except ByocError as error:  # a compiler that is not installed is one more reason
        why = f"its artifact does not fit here ({verdict}) and compiling it anew failed"
        raise InputError(f"{why}: {told(error) or _SILENT}") from error


def twin(run: Executor, own: Region, other: Region) -> Executor:
    """Return what runs a region that is the same as `own` but for names, given what runs that one."""
    inputs = [(theirs.name, mine.name) for theirs, mine in zip(own.inputs, other.inputs, strict=True)]
    outputs = [(mine.name, theirs.name) for theirs, mine in zip(own.outputs, other.outputs, strict=True)]

    def renamed(given: Mapping[str, Any]) -> dict[str, Any]:
        made = run({theirs: given[mine] for theirs, mine in inputs})
        return {mine: made[theirs] for mine, theirs in outputs}

    return renamed


def _output(value: Contract, given: Mapping[str, Any]) -> Any:
    """Return an output, which must have the dtype and, as far as it is known, the shape of its type."""
    if value.name not in given:
        raise InputError(f"gave no output '{value.name}'")
    made = mismatch(given[value.name], value.type)
    if made:
        raise InputError(f"gave output '{value.name}' as {made}, but it is declared {value.type}")
    return np.asarray(given[value.name], order="C")
