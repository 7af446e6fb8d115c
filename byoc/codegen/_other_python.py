"""Codegens that run in another Python, which the user's settings name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields, is_dataclass, make_dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from weakref import WeakValueDictionary, finalize

import numpy as np
import onnx
from google.protobuf.message import Message

from byoc.codegen._abilities import DriverSources, is_in_version
from byoc.codegen._calling import wait_for_codegen
from byoc.codegen._compiler_identity import CodegenDescription, describe_byoc, describe_options
from byoc.codegen._interface import API_VERSION
from byoc.codegen._isolated_abilities import ABILITY_CLASSES, add_abilities
from byoc.codegen._isolation import IsolatedCodegen, ask_worker, read_nothing, read_pairs_of_texts
from byoc.codegen._region import Region, read_region
from byoc.codegen._worker import PATH_VARIABLE, RaisedInWorkerError, Worker
from byoc.codegen.byoc_worker.link import BrokenMessageError, write_array
from byoc.errors import InputError, describe_error
from byoc.model import to_numpy_dtype
from byoc.support import Bytes, find_executing_options, find_option_problems, read_options
from byoc.support.trust import get_settings_file

if TYPE_CHECKING:
    from byoc.codegen._isolation import Measure
    from byoc.codegen._worker import Isolation, Reader
    from byoc.codegen.byoc_worker.link import SharedMemory
    from byoc.support.trust import InterpreterSettings

T = TypeVar("T")

_TYPES: Mapping[str, Any] = {"str": str, "int": int, "bytes": Bytes, "float": float, "bool": bool}
_PLAIN = (str, int, float, bool, type(None))


class OtherPythonCodegen(IsolatedCodegen):
    """A codegen whose methods run in another interpreter; a subclass has the abilities that it has."""

    examines = False

    def __init__(self, name: str, isolation: Isolation, interpreter: InterpreterSettings) -> None:
        """Keep the interpreter."""
        super().__init__(name, isolation)
        self.interpreter = interpreter
        self._program = OtherPythonProgram(name, interpreter)

    def start(self) -> tuple[Worker, CodegenDescription]:
        """Start the interpreter and import the codegen there. Raises InputError where that fails."""
        python, module = self.interpreter.python, self.interpreter.module
        if not os.path.isfile(python) or not os.access(python, os.X_OK):  # noqa: PTH113
            what = "cannot be executed" if os.path.exists(python) else "there is no such file"  # noqa: PTH110
            raise InputError(f"{get_settings_file()}: codegens.{self.name}.python: {python}: {what}")
        worker = Worker(self.isolation.environment, self._program)
        request = {"codegen": self.name, "module": module}
        try:
            with wait_for_codegen(f"codegen {self.name}", "import", self.isolation.find_limit("import")):
                return worker, ask_worker(worker, self.isolation, "import", self._read_import, request)
        except BaseException as error:
            worker.close()
            if not isinstance(error, (InputError, RaisedInWorkerError)):
                raise
            kind = f"{type(error).__name__}: " if isinstance(error, RaisedInWorkerError) else ""
            hint = "; import from byoc_worker there" if "No module named 'byoc'" in str(error) else ""
            raise InputError(
                f"codegen {self.name} cannot be loaded ({module} in {python}): {kind}{error}{hint}"
            ) from error

    def find_wrong_options(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the options that the codegen does not take, each with the end of a sentence."""
        _ = self.worker
        kind = self._program.options
        if kind is None:
            return {}
        return find_option_problems(kind, given) | find_executing_options(kind, given)

    def describe_compiler(self, options: Mapping[str, str]) -> dict[str, str] | None:
        """Describe it as far as its artifacts depend on it; None if unknown."""
        there = self.call("describe compiler", read_pairs_of_texts, options=dict(options))
        if not there:
            return None
        settings = repr(self.interpreter.model_dump(mode="json"))
        own = {"interpreter": settings, "options": repr(sorted(options.items()))}
        return {**describe_byoc(self.name), **own, **there}

    def call(
        self,
        method: str,
        read: Reader[T],
        write: Callable[[SharedMemory], Mapping[str, Any]] = lambda _: {},
        **request: Any,
    ) -> T:
        """Call a method in the process, which may ask for more of the request's regions meanwhile."""
        with self.lock:
            try:
                return super().call(method, read, write, **request)
            finally:
                self._program.forget_request()

    def measure(
        self, executor: int, write: Callable[[SharedMemory], Mapping[str, Any]], measure: Measure
    ) -> list[float]:
        """Measure runs of an executor on inputs that its process keeps, a message each way included."""
        self.call("hold", read_nothing, write, executor=executor)
        return list(measure(lambda: self.call("repeat", read_nothing)))

    def _read_import(self, result: Any, _: SharedMemory) -> CodegenDescription:
        """Return the description of a codegen. Raises BrokenMessageError."""
        try:
            options = result["options"]
            self._program.options = None if options is None else _make_options(options)
            flags: dict[str, Any] = {n: result["flags"][n] is True for n in result["flags"]}
            api = API_VERSION if result["api"] is None else int(result["api"])
            known = {name for name in ABILITY_CLASSES if is_in_version(name, api)}
            has = known.intersection(result["abilities"])
            if self.interpreter.driver is not None:
                has.add("driver")
            return CodegenDescription(
                str(result["summary"]),
                api,
                tuple(name for name in ABILITY_CLASSES if name in has),
                describe_options(self._program.options),
                interpreter=str(result["interpreter"]),
                recovery_options=tuple(
                    {str(name): str(text) for name, text in each.items()}
                    for each in result["recovery_options"]
                ),
                **flags,
            )
        except (AttributeError, LookupError, TypeError, ValueError):
            raise BrokenMessageError("a description is missing") from None


def find_in_other_python(
    name: str, isolation: Isolation, interpreter: InterpreterSettings
) -> OtherPythonCodegen:
    """Return a codegen of the user's settings. Raises InputError where it cannot be loaded."""
    found = OtherPythonCodegen(name, isolation, interpreter)
    add_abilities(found)
    if interpreter.driver is not None:
        kind = type(found)
        found.__class__ = type(kind.__name__, (_DriverInSettings, kind), {})
    return found


class _DriverInSettings(OtherPythonCodegen):
    """A codegen whose driver the user's settings name."""

    def driver(self) -> DriverSources:
        """Return the sources, without asking the interpreter."""
        found = read_driver_settings(self.name, self.interpreter)
        assert found is not None
        return found


def read_driver_settings(codegen: str, interpreter: InterpreterSettings) -> DriverSources | None:
    """Return the driver that the settings name for a codegen, None where they name none."""
    named = interpreter.driver
    if named is None:
        return None
    return DriverSources(codegen, tuple(map(Path, named.sources)), tuple(named.libraries), named.abi)


def _make_options(described: list[dict[str, Any]]) -> type:
    """Make a dataclass of options with the fields that the codegen's own has."""
    return make_dataclass(
        "Options", [_make_option(each) for each in described], frozen=True, kw_only=True
    )


def _make_option(described: Mapping[str, Any]) -> tuple[str, Any, Any]:
    choices = described["choices"]
    if not all(isinstance(each, _PLAIN) for each in (*choices, described["default"])):
        raise TypeError
    kind = Literal[tuple(choices)] if choices else _TYPES[described["type"]]
    metadata = {"help": str(described["help"]), "executes": described["executes"] is True}
    given = {} if described["required"] else {"default": described["default"]}
    annotation = kind | None if described["optional"] else kind
    return str(described["name"]), annotation, field(metadata=metadata, **given)


# The worker program of a codegen in another Python: requests as JSON, and answers to its questions.

_PACKAGE = Path(__file__).parent / "byoc_worker"
_QUESTIONS = {"operations", "type", "constant", "samples", "arena", "save"}
_MOST_BYTES_IN_A_FILE = 1 << 30  # of constants; ONNX's files, which are protobuf, end at 2 GiB
_LARGE_BYTES = 1 << 12  # above that, a constant of more bytes is in a file beside the model

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
    """Write a region's model to a file, which is there as long as the region is; return its path.

    Constants are in the file, because some importers find no external data and say nothing. Where they
    are too many for one file of ONNX, large ones are beside it.
    """
    model = region.load(**arguments)
    path = _make_folder(region) / "model.onnx"
    weights = sum(len(each.raw_data) for each in model.graph.initializer)
    onnx.save(
        model,
        path,
        save_as_external_data=weights > _MOST_BYTES_IN_A_FILE,
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
