"""The process of `byoc.codegen._worker`: `python -m byoc.codegen._worker_process LINK MEMORY LIFE`.

The arguments are descriptors: a socket to byoc, the shared memory, and a pipe whose other end is closed
when byoc ends.
"""

import faulthandler
import json
import os
import pickle
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from threading import RLock
from typing import Any

from byoc.codegen._calling import (
    ask_cache_key,
    ask_compatible,
    ask_driver,
    ask_fit,
    ask_verdicts,
    compile_region,
    compile_together,
    estimate_region,
    exchange_weights,
    find_detail,
    list_node_names,
    load_region,
    measure_seconds,
    profile_region,
    read_context,
    run_executor,
    take_turns,
    trace_region,
)
from byoc.codegen._codegens import find_wrong_options, load_installed, parse_codegen_options
from byoc.codegen._compiler_identity import describe_compiler, write_description
from byoc.codegen._interface import (
    Artifact,
    ArtifactError,
    CodegenFailedError,
    CompileError,
    Cycles,
    NotHereError,
    ResourceError,
)
from byoc.codegen._worker import PATH_VARIABLE
from byoc.codegen.byoc_worker.executors import ExecutorTable
from byoc.codegen.byoc_worker.link import (
    SharedMemory,
    end_with_parent,
    read_files,
    receive_frame,
    send_frame,
    write_array,
    write_files,
    write_time,
)
from byoc.errors import ByocError, InputError, MissingRuntimeError, Verdict, find_message, get_error_text
from byoc.onnxrt import with_session_settings
from byoc.support import locate_error

Request = Mapping[str, Any]

_OWN_ERRORS = (
    *(InputError, CompileError, ResourceError, CodegenFailedError),
    *(ArtifactError, NotHereError),
)


class CodegenService:
    """The methods of one codegen, called by requests; loaded regions are kept under numbers."""

    def __init__(self, memory: SharedMemory) -> None:
        """Begin without a codegen; the first request names it."""
        self._memory = memory
        self._codegen: Any = None
        self._table = ExecutorTable(memory)

    def answer(self, method: str, request: Request) -> Any:
        """Return the result of a request as JSON; its large parts are in the memory."""
        self._table.release(request.get("released", ()))
        methods: Mapping[str, Callable[[Request], Any]] = {
            "import": self._find,
            "options": self._check_options,
            "find wrong options": self._find_wrong_options,
            "describe compiler": self._describe_compiler,
            "cache_key": self._give_key,
            "compile": self._compile,
            "compile_all": self._compile_all,
            "take_weights": self._take_weights,
            "load": self._load,
            "run": self._table.run,
            "bind": self._table.bind,
            "allocate": self._table.allocate,
            "reset": self._table.reset,
            "step": self._table.step,
            "read": self._table.read,
            "measure": self._measure,
            "examine": self._examine,
            "find_fit": self._find_fit,
            "compatible": self._compatible,
            "check": self._check,
            "cost": lambda asked: measure_seconds(self._codegen, asked["region"]),
            "estimate": self._estimate,
            "trace": self._trace,
            "profile": self._profile,
            "context": self._context,
            "driver": lambda _: self._describe_driver(),
        }
        with with_session_settings(request["settings"]):
            return methods[method](request)

    def _find(self, request: Request) -> Any:
        os.environ.pop(PATH_VARIABLE, None)
        if request["path"] is not None:
            os.environ[PATH_VARIABLE] = request["path"]
        self._codegen = load_installed(request["codegen"])
        return write_description(self._codegen)

    def _check_options(self, request: Request) -> Any:
        parse_codegen_options(self._codegen, request["options"])

    def _find_wrong_options(self, request: Request) -> Any:
        return list(find_wrong_options(self._codegen, request["options"]).items())

    def _describe_compiler(self, request: Request) -> Any:
        options = parse_codegen_options(self._codegen, request["options"])
        return list((describe_compiler(self._codegen, options) or {}).items())

    def _give_key(self, request: Request) -> Any:
        options = parse_codegen_options(self._codegen, request["options"])
        return list(ask_cache_key(self._codegen, options).items())

    def _compile(self, request: Request) -> Any:
        options = parse_codegen_options(self._codegen, request["options"])
        artifact = compile_region(self._codegen, request["region"], options)
        self._memory.clear()
        return self._write_artifact(artifact)

    def _compile_all(self, request: Request) -> Any:
        options = parse_codegen_options(self._codegen, request["options"])
        made = compile_together(self._codegen, request["regions"], options)
        self._memory.clear()
        return [[name, self._write_artifact(artifact)] for name, artifact in made.items()]

    def _take_weights(self, request: Request) -> Any:
        options = parse_codegen_options(self._codegen, request["options"])
        (region, first), artifact = request["regions"], self._read_artifact(request)
        made = exchange_weights(self._codegen, region, first, artifact, options)
        self._memory.clear()
        return None if made is None else self._write_artifact(made)

    def _load(self, request: Request) -> Any:
        region, artifact = request["region"], self._read_artifact(request)
        run = load_region(self._codegen, region, artifact)
        return self._table.add(run, dict.fromkeys((value.name for value in region.outputs), ""))

    def _measure(self, request: Request) -> Any:
        run, inputs = self._table.find(request["executor"]), self._table.read_inputs(request)
        return list(request["measure"](lambda: run_executor(run, inputs)))

    def _examine(self, request: Request) -> Any:
        is_concurrent = getattr(self._codegen, "concurrent", False)
        lock = nullcontext() if is_concurrent else RLock()
        run = take_turns(self._table.find(request["executor"]), lock)
        return list(request["examine"](run, self._table.read_inputs(request)))

    def _find_fit(self, request: Request) -> Any:
        found = ask_fit(self._codegen, request["files"], request["metadata"])
        return {**vars(found), "verdict": _write_verdict(found.verdict)}

    def _compatible(self, request: Request) -> Any:
        artifact = self._read_artifact(request)
        return _write_verdict(ask_compatible(self._codegen, request["region"], artifact))

    def _check(self, request: Request) -> Any:
        options = parse_codegen_options(self._codegen, request["options"])
        verdicts = ask_verdicts(self._codegen, request["model"], options)
        return list(map(_write_verdict, verdicts))

    def _estimate(self, request: Request) -> Any:
        options = parse_codegen_options(self._codegen, request["options"])
        artifact = self._read_artifact(request)
        found = estimate_region(self._codegen, request["region"], options, artifact)
        return [found.count, found.hertz] if isinstance(found, Cycles) else [found]

    def _trace(self, request: Request) -> Any:
        artifact, inputs = self._read_artifact(request), self._table.read_inputs(request)
        found = trace_region(self._codegen, request["region"], artifact, inputs)
        self._memory.clear()
        return [[name, write_array(value, self._memory)] for name, value in found.items()]

    def _profile(self, request: Request) -> Any:
        artifact, inputs = self._read_artifact(request), self._table.read_inputs(request)
        found = profile_region(self._codegen, request["region"], artifact, inputs)
        return [write_time(each.name, each.nodes, each.time) for each in found]

    def _context(self, request: Request) -> Any:
        return asdict(read_context(self._codegen, self._read_artifact(request)))

    def _describe_driver(self) -> Any:
        sources = ask_driver(self._codegen)
        files = list(map(str, sources.files))
        return {
            "name": sources.name,
            "files": files,
            "libraries": list(sources.libraries),
            "abi": sources.abi,
        }

    def _read_artifact(self, request: Request) -> Artifact:
        return Artifact(read_files(request["files"], self._memory), request["metadata"])

    def _write_artifact(self, artifact: Artifact) -> Any:
        files = write_files(artifact.files, self._memory)
        return {"files": files, "metadata": list(artifact.metadata.items())}


def _write_verdict(verdict: Verdict) -> list[Any]:
    return [list(verdict.reasons), verdict.own_cpu]


def describe_failure(error: BaseException) -> dict[str, Any]:
    """Return an exception as JSON."""
    kind = "raised"
    for name, kinds in (
        ("too large", ResourceError),
        ("failed", CodegenFailedError),
        ("refused", CompileError),
        ("missing", MissingRuntimeError),
        ("not here", NotHereError),
        ("input", ByocError),
    ):
        if isinstance(error, kinds):
            kind = name
            break
    return {
        "kind": kind,
        "type": type(error).__name__,
        "text": _write_text(error),
        "nodes": list_node_names(error) if isinstance(error, CompileError) else [],
        "lasting": bool(getattr(error, "lasting", True)),
        "region": error.region if isinstance(error, ArtifactError) else "",
        "location": locate_error(error),
        "traceback": _format_traceback(error),
    }


def _write_text(error: BaseException) -> str:
    """Return the text of an exception, whole where byoc is to find a traceback's last line in it."""
    if isinstance(error, CompileError) and error.detail:
        return error.detail if str(error) == find_message(error.detail) else str(error)
    if type(error) in _OWN_ERRORS:
        return str(error)
    return find_detail(error) or get_error_text(error)


def _format_traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception:  # the texts of exceptions are the codegen's own
        return ""


def serve(link: socket.socket, memory: SharedMemory) -> None:
    """Answer requests until byoc closes the link."""
    service = CodegenService(memory)
    while content := receive_frame(link):
        number, method, request = pickle.loads(content)  # noqa: S301 - byoc wrote it
        try:
            answer = {"number": number, "result": service.answer(method, request)}
            text = json.dumps(answer)
        except BaseException as error:  # a plug-in can fail in any way
            text = json.dumps({"number": number, "failure": describe_failure(error)})
        send_frame(link, text.encode())


if __name__ == "__main__":
    given = [int(number) for number in sys.argv[1:4]]
    for descriptor in given:
        os.set_inheritable(descriptor, False)  # not for what the codegen starts
    end_with_parent(given[2])
    if os.environ.get("BYOC_DEBUG"):
        faulthandler.enable()
    serve(socket.socket(fileno=given[0]), SharedMemory(given[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # crashes while libraries unload do not matter
