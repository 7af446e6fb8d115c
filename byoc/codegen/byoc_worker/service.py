"""The worker of a codegen in another Python: it answers requests, and asks byoc about regions.

It needs numpy alone, from Python 3.8 on. byoc checks what it answers.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import distributions
from inspect import cleandoc
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from . import (
    Artifact,
    CompileError,
    Context,
    Cycles,
    DriverSources,
    NotHereError,
    Region,
    ResourceError,
    Verdict,
)
from .executors import ExecutorTable, InputCheck
from .link import (
    OptionsError,
    SharedMemory,
    describe_options,
    end_with_parent,
    make_options,
    read_files,
    read_value,
    receive_frame,
    send_frame,
    takes_check_options,
    write_array,
    write_files,
    write_time,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


# Failures of a codegen as JSON: the kind, the text, and the location in the codegen's code.


class WrongAnswerError(Exception):
    """A method of a codegen gave what it must not."""


_MAX_TEXT = 20_000  # characters of an exception's text; byoc keeps so many of a traceback
_KINDS = (
    *((ResourceError, "too large"), (CompileError, "refused"), (NotHereError, "not here")),
    *((OptionsError, "input"), (WrongAnswerError, "failed")),
)


def describe_failure(error: BaseException, module: str) -> dict[str, Any]:
    """Return an exception of the codegen in a module as JSON."""
    try:
        text = str(error)[-_MAX_TEXT:]
        if isinstance(error, (OptionsError, WrongAnswerError)):
            text = " ".join(text.split())
        lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception:  # the texts of exceptions are the codegen's own
        text = lines = ""
    nodes = getattr(error, "nodes", ()) if isinstance(error, CompileError) else ()
    return {
        "kind": next((kind for kinds, kind in _KINDS if isinstance(error, kinds)), "raised"),
        "type": type(error).__name__,
        "text": text,
        "nodes": [name for name in nodes if isinstance(name, str) and name],
        "lasting": bool(getattr(error, "lasting", True)),
        "region": "",
        "location": _locate(error, module),
        "traceback": lines,
    }


def _locate(error: BaseException, module: str) -> str:
    """Return the file and line that raised an exception: `acme/lowering.py:42`, empty if unknown.

    That is the innermost frame of the codegen's own package, else of any but byoc's and Python's own.
    """
    own = Path(getattr(sys.modules.get(module.partition(".")[0]), "__file__", None) or os.sep)
    package = f"{own.parent}{os.sep}" if own.name == "__init__.py" else str(own)
    found = list(_list_frames(error))
    chosen = [each for each in found if own.name and each[0].startswith(package)] or found
    if not chosen:
        return ""
    file, line = chosen[0]
    roots = [path + os.sep for path in sys.path if path and file.startswith(path + os.sep)]
    shown = file[len(max(roots, key=len)) :] if roots else Path(file).name
    return f"{shown}:{line}"


def _list_frames(error: BaseException) -> Iterator[tuple[str, int]]:
    """Yield the files and lines of a traceback, the innermost first, without byoc's and Python's own."""
    library, byoc = sysconfig.get_paths()["stdlib"] + os.sep, f"{Path(__file__).parent}{os.sep}"
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        file = frame.f_code.co_filename
        is_own = file.startswith(byoc) or file.startswith("<")
        if not is_own and (not file.startswith(library) or "-packages" in file):
            yield file, line


if TYPE_CHECKING:
    Request = Mapping[str, Any]


_METHODS = {
    "executable": "load",
    "oracle": "check",
    "measured": "cost",
    "estimate": "estimate",
    "trace": "trace",
    "profile": "profile",
    "stamped": "compatible",
    "keyed": "cache_key",
    "together": "compile_all",
    "weights": "take_weights",
    "context": "context",
    "driver": "driver",
}
_MAX_READ_BYTES = 4 << 20  # size and time stand for the content of a larger file
_LEFT_OUT = {"__pycache__", ".git"}


class Service:
    """The methods of one codegen, called by requests; loaded regions are kept under numbers."""

    def __init__(self, link: socket.socket, memory: SharedMemory) -> None:
        """Begin without a codegen; the first request names it."""
        self._link, self._memory = link, memory
        self._codegen: Any = None
        self._module = ""
        self._request = 0
        self._asking = Lock()
        self._table = ExecutorTable(memory)
        self._held: tuple[Callable[[Any], Any], Mapping[str, Any]] | None = None
        self._methods: Mapping[str, Callable[[Request], Any]] = {
            "import": self._find,
            "options": self._check_options,
            "describe compiler": self._describe_compiler,
            "cache_key": lambda asked: self._give_key(self._read_options(asked)),
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
            "hold": self._hold,
            "repeat": self._repeat,
            "compatible": self._compatible,
            "check": self._check,
            "cost": lambda asked: _read_number(self._codegen.cost(self._region(asked)), "cost"),
            "estimate": self._estimate,
            "trace": self._trace,
            "profile": self._profile,
            "context": self._describe_context,
            "driver": self._describe_driver,
        }

    def serve(self) -> None:
        """Answer requests until byoc closes the link."""
        while True:
            content = receive_frame(self._link)
            if not content:
                return
            self._request, method, request = json.loads(content)
            try:
                self._table.release(request.get("released", ()))
                result = self._methods[method](request)
                text = json.dumps({"number": self._request, "result": result})
            except BaseException as error:  # a plug-in can fail in any way
                failure = describe_failure(error, self._module)
                text = json.dumps({"number": self._request, "failure": failure})
            send_frame(self._link, text.encode())

    def ask(self, region: int, method: str, arguments: Mapping[str, Any]) -> Any:
        """Ask byoc for something of a region, while it waits for an answer."""
        question = {"region": region, "method": method, "arguments": arguments}
        with self._asking:
            text = json.dumps({"number": self._request, "question": question})
            send_frame(self._link, text.encode())
            reply = json.loads(receive_frame(self._link) or os._exit(0))
            if "failure" not in reply:
                return read_value(reply["value"], self._memory)
        failure = reply["failure"]
        if failure["kind"] == "missing":
            raise KeyError(failure["text"])
        if failure["kind"] == "raised":
            raise RuntimeError("byoc's {} failed with {}".format(method, failure["text"]))
        raise CompileError(failure["text"], failure["nodes"])

    def _region(self, request: Request) -> Region:
        return self._read_region(request["region"])

    def _read_region(self, entry: Mapping[str, Any]) -> Region:
        return Region(self.ask, entry["number"], read_value(entry["attributes"], self._memory))

    def _find(self, request: Request) -> Any:
        self._module, _, path = request["module"].partition(":")
        found: Any = import_module(self._module)
        for name in path.split("."):
            found = getattr(found, name)
        self._codegen = found()
        name = getattr(self._codegen, "name", None)
        if not callable(getattr(self._codegen, "compile", None)) or not isinstance(name, str):
            raise TypeError("it needs a `name` and a method `compile(region, options)`")
        if name != request["codegen"]:
            raise TypeError(f"it calls itself '{name}': rename either")
        if type(getattr(self._codegen, "api", 1)) is not int:
            raise TypeError(f"its `api` is {self._codegen.api!r}, and not the number of a version")
        return {
            "summary": _get_first_sentence(found),
            "api": getattr(self._codegen, "api", None),
            "abilities": [
                *(k for k, v in _METHODS.items() if callable(getattr(self._codegen, v, None))),
                *(["recovery"] if hasattr(self._codegen, "recovery_options") else []),
            ],
            "options": describe_options(getattr(self._codegen, "Options", None)),
            "flags": {
                name: bool(getattr(self._codegen, name, False))
                for name in (
                    *("open_shapes", "recompiles", "native", "calibrates", "model_driver"),
                    "refers_to_weights",
                )
            },
            "recovery_options": [
                {str(name): str(text) for name, text in each.items()}
                for each in getattr(self._codegen, "recovery_options", ())
            ],
            "interpreter": "Python {}.{}.{}, numpy {}".format(*sys.version_info[:3], np.__version__),
        }

    def _check_options(self, request: Request) -> Any:
        self._read_options(request)

    def _check(self, request: Request) -> Any:
        asked = [self._region(request)]
        if takes_check_options(self._codegen):
            asked.append(self._read_options(request))
        return [_write_verdict(verdict) for verdict in self._codegen.check(*asked)]

    def _read_options(self, request: Request) -> Any:
        return make_options(self._codegen, request["options"])

    def _describe_compiler(self, request: Request) -> Any:
        if not getattr(self._codegen, "cached", True):
            return []
        own = self._give_key(self._read_options(request)) if hasattr(self._codegen, "cache_key") else ()
        named = getattr(self._codegen, "libraries", None)
        found = {d.metadata["Name"]: d.version for d in distributions()}
        chosen = found if named is None else {name: found.get(name) for name in (*named, "numpy")}
        return [
            ["other python", sys.version],
            ["other libraries", repr(sorted((str(k), str(v)) for k, v in chosen.items()))],
            ["other sources", _hash_package(type(self._codegen).__module__)],
            *([f"own {name}", text] for name, text in own),
        ]

    def _give_key(self, options: Any) -> list[tuple[str, str]]:
        return list(self._codegen.cache_key(options).items())

    def _compile(self, request: Request) -> Any:
        region, options = self._region(request), self._read_options(request)
        return self._write_artifact(self._codegen.compile(region, options), "compile")

    def _compile_all(self, request: Request) -> Any:
        regions = [self._read_region(entry) for entry in request["regions"]]
        made = self._codegen.compile_all(regions, self._read_options(request))
        self._memory.clear()
        entries = self._write_artifact
        return [[name, entries(each, "compile_all", False)] for name, each in made.items()]

    def _take_weights(self, request: Request) -> Any:
        region, first = (self._read_region(entry) for entry in request["regions"])
        artifact, options = self._read_artifact(request), self._read_options(request)
        made = self._codegen.take_weights(region, first, artifact, options)
        return None if made is None else self._write_artifact(made, "take_weights")

    def _load(self, request: Request) -> Any:
        region, artifact = self._region(request), self._read_artifact(request)
        run = self._codegen.load(region, artifact)
        if not callable(run):
            raise TypeError(f"`load` gave a {type(run).__name__} instead of a function")
        return self._table.add(InputCheck(run), dict(request["region"]["output_dtypes"]))

    def _hold(self, request: Request) -> Any:
        self._held = self._table.find(request["executor"]), self._table.read_inputs(request)

    def _repeat(self, request: Request) -> Any:
        assert self._held is not None
        run, inputs = self._held
        run(inputs)

    def _compatible(self, request: Request) -> Any:
        region, artifact = self._region(request), self._read_artifact(request)
        return _write_verdict(self._codegen.compatible(region, artifact))

    def _estimate(self, request: Request) -> Any:
        region, artifact = self._region(request), self._read_artifact(request)
        found = self._codegen.estimate(region, self._read_options(request), artifact)
        numbers = [found.count, found.hertz] if isinstance(found, Cycles) else [found]
        return [_read_number(number, "estimate") for number in numbers]

    def _trace(self, request: Request) -> Any:
        found = self._codegen.trace(*self._read_call(request))
        if not isinstance(found, Mapping):
            raise WrongAnswerError(f"trace gave {type(found).__name__}, not tensors by name")
        self._memory.clear()
        return [[str(name), write_array(value, self._memory)] for name, value in found.items()]

    def _profile(self, request: Request) -> Any:
        found = self._codegen.profile(*self._read_call(request))
        try:
            return [write_time(each.name, each.nodes, each.time) for each in found]
        except (AttributeError, TypeError, ValueError):
            what = "profile gave something else than a sequence of OperatorTime"
            raise WrongAnswerError(what) from None

    def _read_call(self, request: Request) -> tuple[Region, Artifact, Mapping[str, Any]]:
        region, artifact = self._region(request), self._read_artifact(request)
        return region, artifact, self._table.read_inputs(request)

    def _describe_context(self, request: Request) -> Any:
        found = self._codegen.context(self._read_artifact(request))
        if not isinstance(found, Context):
            raise WrongAnswerError(f"context gave {type(found).__name__}, not a Context")
        return {**vars(found), "inputs": list(found.inputs), "outputs": list(found.outputs)}

    def _describe_driver(self, _: Request) -> Any:
        found = self._codegen.driver()
        if not isinstance(found, DriverSources):
            raise WrongAnswerError(f"driver gave {type(found).__name__}, not DriverSources")
        # Relative paths are of this process, whose folder another one need not be in.
        files = [str(Path(file).absolute()) for file in found.files]
        libraries = list(found.libraries)
        return {"name": found.name, "files": files, "libraries": libraries, "abi": found.abi}

    def _read_artifact(self, request: Request) -> Artifact:
        return Artifact(read_files(request["files"], self._memory), request["metadata"])

    def _write_artifact(self, artifact: Any, method: str, clear: bool = True) -> Any:
        if not isinstance(artifact, Artifact):
            raise WrongAnswerError(f"{method} gave {type(artifact).__name__}, not an Artifact")
        for name, content in artifact.files.items():
            if not isinstance(content, bytes):
                what = f"the content of '{name}' is {type(content).__name__}, not bytes"
                raise WrongAnswerError(what)
        for name, text in artifact.metadata.items():
            if not isinstance(name, str) or not isinstance(text, str):
                raise WrongAnswerError(f"the metadata '{name}' is not text")
        if clear:
            self._memory.clear()
        files = write_files(artifact.files, self._memory)
        return {"files": files, "metadata": list(artifact.metadata.items())}


def _write_verdict(verdict: Any) -> list[Any]:
    if not isinstance(verdict, Verdict):
        raise TypeError(f"it gave a {type(verdict).__name__} instead of a Verdict")
    return [list(verdict.reasons), bool(verdict.own_cpu)]


def _read_number(given: Any, method: str) -> float:
    try:
        number = float(given)
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number < float("inf"):
        raise WrongAnswerError(f"{method} gave {repr(given)[:100]}, not seconds above 0")
    return number


def _get_first_sentence(kind: type) -> str:
    paragraph = " ".join(cleandoc(kind.__doc__ or "").split("\n\n")[0].split())
    return paragraph.split(". ")[0].rstrip(".")


def _hash_package(module: str) -> str:
    """Return a hash of the files of a module's package."""
    found = sys.modules[module.partition(".")[0]]
    places = list(getattr(found, "__path__", ())) or [getattr(found, "__file__", None) or ""]
    digest = hashlib.sha256()
    for place in filter(None, places):
        for path in _walk_files(Path(place)):
            status = path.stat()
            digest.update(str(path.relative_to(Path(place).parent)).encode(errors="replace"))
            if status.st_size > _MAX_READ_BYTES:
                digest.update(f"{status.st_size} {status.st_mtime_ns}".encode())
            else:
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _walk_files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    found = (path for path in place.rglob("*") if not _LEFT_OUT.intersection(path.parts))
    return sorted(path for path in found if path.is_file())


def main(arguments: list[str]) -> None:
    """Serve: the arguments are descriptors of the socket, the memory and a pipe to byoc."""
    given = [int(number) for number in arguments]
    for descriptor in given:
        os.set_inheritable(descriptor, False)  # not for what the codegen starts
    end_with_parent(given[2])
    Service(socket.socket(fileno=given[0]), SharedMemory(given[1])).serve()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # crashes while libraries unload do not matter
