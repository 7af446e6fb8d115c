"""The worker program of a codegen in another Python: requests as JSON, and answers to its questions."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary, finalize

import numpy as np
import onnx
from google.protobuf.message import Message

from byoc.codegen._region import Region
from byoc.codegen._region_files import read_region
from byoc.codegen._worker_program import PATH_VARIABLE
from byoc.codegen.byoc_worker.link import BrokenMessageError, write_array
from byoc.errors import InputError, describe_error
from byoc.model import to_numpy_dtype
from byoc.support import read_options

if TYPE_CHECKING:
    from byoc.codegen.byoc_worker.link import SharedMemory
    from byoc.trust import InterpreterSettings

_PACKAGE = Path(__file__).parent / "byoc_worker"
_QUESTIONS = {"operations", "type", "constant", "samples", "arena", "save"}
_LARGE_BYTES = 1 << 12  # a constant of more bytes is in a file beside the model

# What makes Python look elsewhere for packages would give the interpreter those of byoc's.
_NOT_INHERITED = (PATH_VARIABLE, "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")

# Runs in any Python: it says what is missing, as an answer to the first request.
_START = """
import sys
sys.path = [entry for entry in sys.path if entry]
def refuse(text):
    import json, os, struct
    failure = {"kind": "input", "text": text, "nodes": [], "lasting": False}
    failure.update(dict.fromkeys(("type", "region", "traceback"), ""))
    content = json.dumps({"number": 1, "failure": failure}).encode()
    os.write(int(sys.argv[2]), struct.pack("<Q", len(content)) + content)
    sys.exit()
if sys.version_info < (3, 8):
    refuse("it is Python %d.%d, and a codegen needs 3.8 or later" % sys.version_info[:2])
try:
    import numpy
except Exception as error:
    refuse("numpy cannot be imported there: %s" % error)
import importlib.util
places = [sys.argv[1]]
spec = importlib.util.spec_from_file_location("byoc_worker", places[0] + "/__init__.py",
                                              submodule_search_locations=places)
sys.modules["byoc_worker"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["byoc_worker"])
from byoc_worker.service import main
main(sys.argv[2:])
"""


class OtherPythonProgram:
    """The worker program of a codegen whose interpreter is in the user's settings.

    Regions cross as their attributes and a number, by which the program asks for the rest: it is decoded
    here, since the other interpreter may have no onnx, or another one. `options` is the dataclass of the
    codegen's options, whose values cross; without one, texts do.
    """

    def __init__(self, codegen: str, interpreter: InterpreterSettings) -> None:
        """Begin without regions."""
        self.options: type | None = None
        self._codegen = codegen
        self._interpreter = interpreter
        self._numbers = count(1)
        self._regions: WeakValueDictionary[int, Region] = WeakValueDictionary()
        self._asked: list[Region] = []  # of the present request, kept while it is answered

    @property
    def command(self) -> Sequence[str]:
        """The command that starts it."""
        return [self._interpreter.python, "-c", _START, str(_PACKAGE)]

    def make_environment(self) -> dict[str, str]:
        """Return byoc's environment without the folders of its packages, and what the settings add."""
        inherited = {name: text for name, text in os.environ.items() if name not in _NOT_INHERITED}
        return {**inherited, **self._interpreter.environment}

    def write_request(self, number: int, method: str, request: Mapping[str, Any]) -> bytes:
        """Return a request as JSON. Raises InputError for wrong options."""
        asked = dict(request)
        if "options" in asked and self.options is not None:
            asked["options"] = self._parse_options(self.options, asked["options"])
        if "model" in asked:
            asked["region"] = _write_model(asked.pop("model"))
        return json.dumps((number, method, asked), default=self._write_region).encode()

    def answer_question(self, question: Any, memory: SharedMemory) -> bytes:
        """Answer a question about a region, as JSON. Raises BrokenMessageError for nonsense."""
        try:
            region = self._regions.get(question["region"])
            method, arguments = question["method"], dict(question["arguments"])
        except (KeyError, TypeError, ValueError):
            raise BrokenMessageError("a question is missing") from None
        if region is None or method not in _QUESTIONS:
            raise BrokenMessageError("it asks for what is not there")
        memory.clear()
        failure = {"kind": "refused", "nodes": list[str]()}
        try:
            if method == "save":
                value = _save_region(region, **arguments)
            else:
                value = getattr(region, method)(**arguments)
            return json.dumps({"value": write_value(value, memory)}).encode()
        except InputError as error:
            failure |= {"text": str(error), "nodes": list(getattr(error, "nodes", ()))}
        except KeyError as error:
            failure |= {"text": str(error.args[0]), "kind": "missing"}
        except Exception as error:  # wrong arguments, most likely
            failure |= {"text": describe_error(error), "kind": "raised"}
        return json.dumps({"failure": failure}).encode()

    def forget_request(self) -> None:
        """Drop the regions of the last request, but those that an executor has."""
        self._asked.clear()

    def _parse_options(self, kind: type, given: Mapping[str, str]) -> dict[str, Any]:
        try:
            options: Any = read_options(kind, given)
        except InputError as error:
            raise InputError(f"codegen {self._codegen} {error}") from None
        return {name: getattr(options, name) for name in given}

    def _write_region(self, region: Any) -> Any:
        if not isinstance(region, Region):
            raise TypeError(f"{type(region).__name__} cannot be sent to another Python")
        number = next(self._numbers)
        self._regions[number] = region
        self._asked.append(region)
        names = ("name", "target", "inputs", "outputs", "composites", "constants")
        attributes = {name: getattr(region, name) for name in names} | {"path": str(region.path)}
        dtypes = [(each.name, str(to_numpy_dtype(each.type.dtype))) for each in region.outputs]
        return {
            "number": number,
            "attributes": write_value(attributes, None),
            "output_dtypes": dtypes,
        }


def write_value(value: Any, memory: SharedMemory | None) -> Any:
    """Return a value as JSON that `byoc_worker.values` reads; arrays and bytes go into the memory.

    A dataclass becomes a record of its fields and properties, without nodes and functions.
    """
    if value is None or (isinstance(value, (str, int, float)) and not isinstance(value, np.generic)):
        return value
    if isinstance(value, Mapping):
        return {"map": [[str(name), write_value(each, memory)] for name, each in value.items()]}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [write_value(each, memory) for each in value]}
    if is_dataclass(value) and not isinstance(value, type):
        own = {each.name: getattr(value, each.name) for each in fields(value)}
        own |= {name: getattr(value, name) for name in _list_properties(type(value))}
        sent = {
            name: write_value(each, memory)
            for name, each in own.items()
            if not isinstance(each, onnx.NodeProto) and not callable(each)
        }
        return {"record": [type(value).__name__, sent]}
    assert memory is not None
    return _write_data(value, memory)


def _write_data(value: Any, memory: SharedMemory) -> Any:
    if isinstance(value, onnx.TensorProto):
        value = onnx.numpy_helper.to_array(value)
    if isinstance(value, Message):
        value = value.SerializeToString()
    if isinstance(value, bytes):
        return {"bytes": memory.write(value)}
    return {"array": write_array(value, memory)}


def _list_properties(kind: type) -> list[str]:
    return [
        name
        for name, each in vars(kind).items()
        if isinstance(each, property) and not name.startswith("_")
    ]


def _save_region(region: Region, **arguments: Any) -> str:
    """Write a region's model to a file, which is there as long as the region is; return its path."""
    model = region.load(**arguments)
    path = _make_folder(region) / "model.onnx"
    onnx.save(
        model,
        path,
        save_as_external_data=True,
        location="model.weights",
        size_threshold=_LARGE_BYTES,
    )
    return str(path)


def _write_model(model: onnx.ModelProto) -> Region:
    """Return a region of a model in memory; the model's composites are those of one target."""
    domains = (function.domain for function in model.functions)
    target = next((each.removeprefix("byoc.") for each in domains if each.startswith("byoc.")), "")
    folder = TemporaryDirectory(prefix="byoc-")
    path = Path(folder.name) / "model.onnx"
    onnx.save(model, path)
    region = read_region(path, "model", target)
    finalize(region, folder.cleanup)
    return region


def _make_folder(region: Region) -> Path:
    folder = TemporaryDirectory(prefix="byoc-")
    finalize(region, folder.cleanup)
    return Path(folder.name)
