"""Codegens that run in another Python, which the user's settings name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import field, make_dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from byoc.codegen._abilities import is_in_version
from byoc.codegen._compiler_identity import describe_byoc
from byoc.codegen._descriptions import CodegenDescription, describe_options
from byoc.codegen._interface import API_VERSION
from byoc.codegen._isolated_abilities import ABILITY_CLASSES, add_abilities
from byoc.codegen._isolation import IsolatedCodegen, ask_worker
from byoc.codegen._other_python_program import OtherPythonProgram
from byoc.codegen._results import read_nothing, read_pairs_of_texts
from byoc.codegen._worker import RaisedInWorkerError, Worker
from byoc.codegen.byoc_worker.link import BrokenMessageError
from byoc.errors import InputError
from byoc.support import Bytes, find_executing_options, find_option_problems
from byoc.trust import get_settings_file

if TYPE_CHECKING:
    from byoc.codegen._isolation import Measure
    from byoc.codegen._worker import Isolation, Reader
    from byoc.codegen.byoc_worker.link import SharedMemory
    from byoc.trust import InterpreterSettings

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
            known = [name for name in ABILITY_CLASSES if is_in_version(name, api)]
            return CodegenDescription(
                str(result["summary"]),
                api,
                tuple(name for name in known if name in result["abilities"]),
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
    return found


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
