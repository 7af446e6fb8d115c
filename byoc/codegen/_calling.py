"""Calls of a codegen's methods.

Whatever goes wrong in those that compile or time regions becomes a CompileError: a CodegenFailedError
unless the codegen refuses on purpose. The others pass on what a codegen raises, and check what it gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from math import inf
from numbers import Real
from typing import TYPE_CHECKING, Any
from weakref import finalize

import numpy as np
from onnx import ModelProto

from byoc.codegen._abilities import Context, DriverSources, Fit, can_find_fit
from byoc.codegen._interface import (
    Artifact,
    ArtifactError,
    ArtifactMetadata,
    CodegenFailedError,
    CompileError,
    Cycles,
    NotHereError,
    OperatorTime,
    ResourceError,
    to_seconds,
)
from byoc.codegen.byoc_worker.executors import InputCheck
from byoc.codegen.byoc_worker.link import takes_check_options
from byoc.errors import (
    ByocError,
    InputError,
    MissingRuntimeError,
    Verdict,
    find_message,
    get_error_text,
    must_propagate,
    shorten_text,
)
from byoc.long_calls import waiting_for
from byoc.support import describe_failure

if TYPE_CHECKING:
    from byoc.codegen._abilities import (
        ContextSource,
        Driven,
        Estimating,
        Executable,
        Keyed,
        Measured,
        Oracle,
        Profiling,
        Stamped,
        TakesWeights,
        Together,
        Tracing,
    )
    from byoc.codegen._interface import AnyArray, Codegen, Executor
    from byoc.codegen._region import Region

_NO_REASON = "it does not say why"


def compile_region(codegen: Codegen, region: Region, options: Any) -> Artifact:
    """Compile a region; return its artifact as plain dictionaries, with unchecked file names.

    Raises CompileError with one sentence when the codegen refuses the region or fails in any way, and
    MissingRuntimeError when it needs a package that is not installed.
    """
    artifact: Artifact = _call_codegen(
        codegen,
        f"compile of region {region.name}",
        lambda: _copy_artifact(codegen.compile(region, options)),
    )
    return artifact


def compile_together(codegen: Together, regions: Sequence[Region], options: Any) -> dict[str, Artifact]:
    """Compile several regions in one call; return the artifacts by name. Raises as `compile_region`."""
    names = [region.name for region in regions]
    try:
        given: dict[Any, Any] = _call_codegen(
            codegen,
            f"compile_all of {len(regions)} regions",
            lambda: _check_mapping(codegen.compile_all(tuple(regions), options)),
        )
    except ArtifactError as error:  # from a worker, which has done what follows
        if error.region in names:
            raise
        raise CodegenFailedError(str(error)) from error
    found = {}
    for name in names:
        if name not in given:
            raise ArtifactError("compile_all gave no artifact for it", name)
        try:
            found[name] = _call_codegen(codegen, "compile_all", partial(_copy_artifact, given[name]))
        except CompileError as error:
            raise ArtifactError(str(error), name) from error
    for name in given:
        if name not in names:
            shown = shorten_text(name, 100) if isinstance(name, str) else type(name).__name__
            raise CodegenFailedError(
                f"compile_all gave an artifact for '{shown}', which it was not asked for"
            )
    return found


def exchange_weights(
    codegen: TakesWeights, region: Region, first: Region, artifact: Artifact, options: Any
) -> Artifact | None:
    """Return the artifact of a region made of that of `first`, None where it is to be compiled.

    Raises as `compile_region`.
    """

    def ask() -> Artifact | None:
        given = codegen.take_weights(region, first, artifact, options)
        return None if given is None else _copy_artifact(given, "take_weights")

    found: Artifact | None = _call_codegen(codegen, f"take_weights of region {region.name}", ask)
    return found


def measure_seconds(codegen: Measured, region: Region) -> float:
    """Measure the seconds that a region takes on the device. Raises as `compile_region`."""
    seconds: float = _call_codegen(
        codegen, f"cost of region {region.name}", lambda: _check_seconds(codegen.cost(region))
    )
    return seconds


def estimate_region(
    codegen: Estimating, region: Region, options: Any, artifact: Artifact
) -> float | Cycles:
    """Return the seconds that a compiled region will take, by its compiler; raises as `compile_region`.

    They are a number, or cycles and a clock.
    """
    found: float | Cycles = _call_codegen(
        codegen,
        f"estimate of region {region.name}",
        lambda: _check_estimate(codegen.estimate(region, options, artifact)),
    )
    return found


def trace_region(
    codegen: Tracing, region: Region, artifact: Artifact, inputs: Mapping[str, Any]
) -> dict[str, AnyArray]:
    """Return the tensors that a compiled region computes of some inputs, by their names inside of it.

    Raises as `compile_region`, and NotHereError where this machine does not run the artifact.
    """
    found: dict[str, AnyArray] = _call_codegen(
        codegen,
        f"trace of region {region.name}",
        lambda: _check_tensors(codegen.trace(region, artifact, _copy_inputs(inputs))),
    )
    return found


def profile_region(
    codegen: Profiling, region: Region, artifact: Artifact, inputs: Mapping[str, Any]
) -> tuple[OperatorTime, ...]:
    """Return the time of each operation in a run of a compiled region. Raises as `trace_region`."""
    found: tuple[OperatorTime, ...] = _call_codegen(
        codegen,
        f"profile of region {region.name}",
        lambda: _check_times(codegen.profile(region, artifact, _copy_inputs(inputs))),
    )
    return found


def _copy_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies of inputs, which others read after a run that nobody checks."""
    return {name: np.array(value) for name, value in inputs.items()}


def ask_cache_key(codegen: Keyed, options: Any) -> dict[str, str]:
    """Return the texts of a codegen's `cache_key` by name. Raises as `compile_region`."""
    found: dict[str, str] = _call_codegen(
        codegen, "cache_key", lambda: _check_texts(codegen.cache_key(options))
    )
    return found


class RemoteExecutor:
    """An executor in another process, where its first call is checked: a base class of such."""

    @property
    def call_limit(self) -> float:
        """The most seconds that a run may take."""
        raise NotImplementedError


def load_region(codegen: Executable, region: Region, artifact: Artifact) -> Executor:
    """Load an artifact; return its executor, whose first call is checked to leave its inputs alone.

    Raises TypeError unless it is a function.
    """
    run = codegen.load(region, artifact)
    if not callable(run):
        raise TypeError(f"`load` gave a {type(run).__name__} instead of a function")
    return run if isinstance(run, RemoteExecutor) else InputCheck(run)


def run_executor(run: Executor, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Run an executor; return its outputs by name. Raises TypeError unless that is what it gives."""
    given: Any = run(inputs)
    if type(given) is not dict and not isinstance(given, Mapping):  # the latter takes longer
        raise TypeError(f"it gave a {type(given).__name__} instead of outputs by name")
    return given


def take_turns(run: Executor, lock: AbstractContextManager[Any]) -> Executor:
    """Return an executor whose runs hold a lock."""

    def execute(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        with lock:
            return run_executor(run, inputs)

    return execute


def ask_compatible(codegen: Stamped, region: Region, artifact: Artifact) -> Verdict:
    """Return whether an artifact fits this machine. Raises TypeError unless that is what it gives."""
    with _wait_for(codegen, f"compatible of region {region.name}"):
        verdict: Any = codegen.compatible(region, artifact)
    if not isinstance(verdict, Verdict):
        raise TypeError(f"`compatible` gave a {type(verdict).__name__} instead of a Verdict")
    return verdict


def ask_fit(codegen: object, files: Sequence[str], metadata: Mapping[str, str]) -> Fit:
    """Return whether a compiled region loads here; of a codegen that does not say, only loading tells.

    An object of a codegen is asked once for each artifact: the choice of a variant and its loading want
    the same answer. Raises TypeError unless that is what it gives.
    """
    if not can_find_fit(codegen):
        name = getattr(codegen, "name", type(codegen).__name__)
        return Fit("", unknown=f"codegen {name} does not say what it needs")
    if id(codegen) not in _FITS:
        try:
            finalize(codegen, _FITS.pop, id(codegen), None)
        except TypeError:  # nothing may refer to it weakly, so nobody would say when it is gone
            return _ask_fit(codegen, files, metadata)
        _FITS[id(codegen)] = {}
    known, asked = _FITS[id(codegen)], (*files, None, *metadata.items())
    if asked not in known:
        known[asked] = _ask_fit(codegen, files, metadata)
    return known[asked]


_FITS: dict[int, dict[tuple[object, ...], Fit]] = {}
"""The answers of codegens, by the identity of the object that gave them, as long as it is there."""


def _ask_fit(codegen: Any, files: Sequence[str], metadata: Mapping[str, str]) -> Fit:
    with _wait_for(codegen, "find_fit"):
        found: Any = codegen.find_fit(tuple(files), ArtifactMetadata(metadata))
    if not isinstance(found, Fit):
        raise TypeError(f"`find_fit` gave a {type(found).__name__} instead of a Fit")
    return found


def ask_verdicts(codegen: Oracle, model: ModelProto, options: Any) -> list[Verdict]:
    """Return the verdicts on a model's nodes. Raises TypeError unless there is one for each.

    `options` are as in `compile`, and left out where `check` takes none.
    """
    asked = (model, options) if takes_check_options(codegen) else (model,)
    with _wait_for(codegen, "check"):
        verdicts: Any = codegen.check(*asked)
    if not isinstance(verdicts, Sequence) or len(verdicts) != len(model.graph.node):
        raise TypeError("`check` did not give a Verdict for each node of the main graph")
    for verdict in verdicts:
        if not isinstance(verdict, Verdict):
            raise TypeError(f"`check` gave a {type(verdict).__name__} instead of a Verdict")
    return list(verdicts)


def read_context(codegen: ContextSource, artifact: Artifact) -> Context:
    """Return a provider's context for an artifact. Raises TypeError if it gives something else."""
    with _wait_for(codegen, "context"):
        context: Any = codegen.context(artifact)
    if not isinstance(context, Context):
        raise TypeError(f"`context` gave a {type(context).__name__} instead of a Context")
    return context


def ask_driver(codegen: Driven) -> DriverSources:
    """Return the sources of a codegen's driver. Raises InputError where it gives something else."""
    who = f"codegen {getattr(codegen, 'name', type(codegen).__name__)}"
    try:
        with _wait_for(codegen, "driver"):
            given: Any = codegen.driver()
    except ByocError as error:
        raise InputError(f"{who}: {get_error_text(error)}") from error
    except BaseException as error:  # a plug-in can fail in any way
        if must_propagate(error):
            raise
        raise InputError(f"{who}: driver failed with {describe_failure(error)}") from error
    if not isinstance(given, DriverSources):
        raise InputError(f"{who}: driver gave {type(given).__name__}, not DriverSources")
    if given.abi not in (1, 2):
        raise InputError(f"{who}: driver gave the table's version (abi) {given.abi!r}, not 1 or 2")
    return given


def _wait_for(codegen: object, what: str) -> AbstractContextManager[None]:
    """Return a block around a call of a codegen, in which it is said what takes long.

    `what` begins with the name of the method.
    """
    isolation = getattr(codegen, "isolation", None)
    limit = None if isolation is None else isolation.find_limit(what.split(maxsplit=1)[0])
    return wait_for_codegen(f"codegen {getattr(codegen, 'name', type(codegen).__name__)}", what, limit)


def wait_for_codegen(who: str, what: str, limit: float | None = None) -> AbstractContextManager[None]:
    """Return a block around a call of `codegen NAME`, in which it is said what takes long.

    `limit` is the most seconds that its process has for the call, None where it runs in byoc's own.
    """
    if limit is None:
        hint = "; it cannot be stopped in byoc's own process (--call-timeout SECONDS gives it another)"
    else:
        hint = f"; it is stopped after {limit:g} s (--call-timeout SECONDS sets another limit)"
    return waiting_for(f"{shorten_text(who, 100)}: {what}", hint)


def find_call_limit(run: object) -> float | None:
    """Return the most seconds that a run of an executor may take, None in byoc's own process."""
    return run.call_limit if isinstance(run, RemoteExecutor) else None


def _call_codegen(codegen: object, what: str, ask: Callable[[], Any]) -> Any:
    try:
        with _wait_for(codegen, what):
            return ask()
    except ArtifactError:
        raise
    except CompileError as error:
        kinds = (ResourceError, CodegenFailedError, CompileError)
        kind = next(kind for kind in kinds if isinstance(error, kind))
        reason, nodes = get_error_text(error) or _NO_REASON, list_node_names(error)
        lasting, detail = bool(getattr(error, "lasting", True)), str(getattr(error, "detail", ""))
        raise kind(reason, nodes, lasting=lasting, detail=detail) from error
    except MissingRuntimeError as error:
        raise MissingRuntimeError(get_error_text(error) or _NO_REASON) from error
    except NotHereError as error:
        raise NotHereError(get_error_text(error) or _NO_REASON) from error
    except ByocError as error:
        raise CompileError(get_error_text(error) or _NO_REASON, lasting=False) from error
    except BaseException as error:  # a plug-in can fail in any way
        if must_propagate(error):
            raise
        raise CodegenFailedError(
            f"failed with {describe_failure(error)}", detail=find_detail(error)
        ) from error


def find_detail(error: BaseException) -> str:
    """Return the text of an exception that has a traceback in it, else nothing."""
    try:
        text = str(error)
        return "" if find_message(text) == text else text
    except Exception:  # its class is the codegen's own
        return ""


def list_node_names(error: CompileError) -> list[str]:
    """Return the names in a codegen's error, skipping anything that is not a name."""
    try:
        given = error.nodes if isinstance(error.nodes, (list, tuple, set, frozenset)) else ()
        return [str.__str__(name) for name in given if isinstance(name, str) and name]
    except Exception:  # the error's class is the codegen's own
        return []


def _check_seconds(given: Any) -> float:
    if not _is_positive(given):
        raise CodegenFailedError(f"cost gave {shorten_text(repr(given), 100)}, not seconds above 0")
    return float(given)


def _check_estimate(given: Any) -> float | Cycles:
    if isinstance(given, Cycles) and _is_positive(given.count) and _is_positive(given.hertz):
        cycles = Cycles(float(given.count), float(given.hertz))
        if 0 < cycles.seconds < inf:
            return cycles
    if not _is_positive(given):
        what = shorten_text(repr(given), 100)
        raise CodegenFailedError(f"estimate gave {what}, not seconds above 0 or Cycles")
    return float(given)


def _check_tensors(given: Any) -> dict[str, AnyArray]:
    if not isinstance(given, Mapping):
        raise CodegenFailedError(f"trace gave {type(given).__name__}, not tensors by name")
    for name in given:
        if not isinstance(name, str):
            raise CodegenFailedError(f"trace gave {shorten_text(repr(name), 100)} as a tensor's name")
    return {_plain_str(name): np.asarray(value) for name, value in given.items()}


def _check_times(given: Any) -> tuple[OperatorTime, ...]:
    if not isinstance(given, Sequence) or not all(isinstance(each, OperatorTime) for each in given):
        raise CodegenFailedError("profile gave something else than a sequence of OperatorTime")
    return tuple(map(_copy_time, given))


def _copy_time(given: OperatorTime) -> OperatorTime:
    time: Any = given.time
    seconds = to_seconds(time) if isinstance(time, Cycles) else time
    if not isinstance(seconds, Real) or isinstance(seconds, bool) or not 0 <= float(seconds) < inf:
        what = shorten_text(repr(time), 100)
        raise CodegenFailedError(f"profile gave {what}, not seconds of at least 0 or Cycles")
    texts = (given.name, *given.nodes)
    if isinstance(given.nodes, str) or not all(isinstance(each, str) for each in texts):
        raise CodegenFailedError("profile gave names of nodes that are not texts")
    name, *nodes = map(_plain_str, texts)
    own = Cycles(float(time.count), float(time.hertz)) if isinstance(time, Cycles) else float(time)
    return OperatorTime(tuple(nodes), own, name)


def _is_positive(given: Any) -> bool:
    # numpy's floats and whole numbers are real numbers, too; True is one by inheritance alone.
    return isinstance(given, Real) and not isinstance(given, bool) and 0 < float(given) < inf


def _check_texts(given: Any) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise CodegenFailedError(f"cache_key gave {type(given).__name__}, not texts by name")
    for name, text in given.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise CodegenFailedError(f"cache_key gave '{name}', which is not text")
    return {_plain_str(name): _plain_str(text) for name, text in given.items()}


def _check_mapping(given: Any) -> dict[Any, Any]:
    if not isinstance(given, Mapping):
        raise CodegenFailedError(f"compile_all gave {type(given).__name__}, not artifacts by region")
    return {_plain_str(name): artifact for name, artifact in given.items()}


def _copy_artifact(artifact: Any, method: str = "compile") -> Artifact:
    """Copy an artifact into Python's built-in types. Raises CompileError when it is not an artifact.

    The methods of a subclass could fail later, when the codegen is no longer known to be at fault.
    """
    if not isinstance(artifact, Artifact):
        raise CodegenFailedError(f"{method} gave {type(artifact).__name__}, not an Artifact")
    given = {"files": artifact.files, "metadata": artifact.metadata}
    for what, entries in given.items():
        if not isinstance(entries, Mapping):
            raise CodegenFailedError(
                f"the artifact's {what} are {type(entries).__name__}, not a mapping"
            )
    files: dict[str, bytes] = {}
    for name, content in given["files"].items():
        if not isinstance(name, str):
            raise CodegenFailedError(f"{name!r} is not a plain file name for an artifact")
        files[_check_encodable(_plain_str(name), "file name")] = _check_content(name, content)
    metadata: dict[str, str] = {}
    for key, value in given["metadata"].items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise CodegenFailedError(f"the metadata '{key}' is not text")
        for text in (key, value):
            _check_encodable(_plain_str(text), "metadata")
        metadata[_plain_str(key)] = _plain_str(value)
    return Artifact(files, metadata)


def _check_content(name: str, content: Any) -> bytes:
    if not isinstance(content, bytes):
        raise CodegenFailedError(f"the content of '{name}' is {type(content).__name__}, not bytes")
    return content if type(content) is bytes else bytes(memoryview(content))


def _plain_str(text: Any) -> Any:
    """Return a string as a plain `str`, anything else unchanged."""
    return str.__str__(text) if isinstance(text, str) else text


def _check_encodable(text: str, what: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        raise CodegenFailedError(
            f"the {what} '{shorten_text(text, 100)}' is not text that can be stored"
        ) from None
    return text
