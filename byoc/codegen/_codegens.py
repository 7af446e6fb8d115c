"""The codegens of one program, each found once: in this process, or in worker processes."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

from byoc._dataclasses import dataclass, field
from byoc.codegen._abilities import has_driver, has_model_driver
from byoc.codegen._calling import ask_driver, wait_for_codegen
from byoc.codegen._compiler_identity import describe_codegen
from byoc.codegen._interface import API_VERSION, Codegen
from byoc.codegen._isolated_abilities import escape_line, find_isolated
from byoc.codegen._isolation import IsolatedCodegen, import_codegen
from byoc.codegen._worker import UNLESS_TRUSTED, Isolation, Worker, has_worker_processes
from byoc.errors import InputError
from byoc.support import (
    CODEGENS,
    UnsuitablePluginError,
    find_executing_options,
    find_option_problems,
    list_options,
    load_plugin,
    read_options,
)
from byoc.support.trust import find_interpreter, read_settings

if TYPE_CHECKING:
    from byoc.codegen._abilities import DriverSources
    from byoc.codegen._compiler_identity import CodegenDescription
    from byoc.codegen._other_python import OtherPythonCodegen
    from byoc.support import OptionDescription
    from byoc.support.trust import InterpreterSettings


# Lookup of a codegen by name, and the options that it declares.


def find_codegen(name: str) -> Codegen:
    """Return the codegen of a name: in another Python if the settings say so, else in this process.

    It is the look-up of `Codegens`, for who needs one codegen. Raises InputError when there is none,
    when it cannot be loaded or is not a codegen, when it implements an unsupported version of the
    interface, or when its `name` is another one.
    """
    return Codegens().find(name)


def load_installed(name: str) -> Codegen:
    """Return the installed codegen of a name, in this process. Raises InputError as `find_codegen`."""
    with wait_for_codegen(f"codegen {name}", "import"):
        found: Codegen = load_plugin(
            CODEGENS, name, lambda kind: _instantiate(kind, name), read_settings().codegens
        )
    return found


def find_configured(name: str, isolation: Isolation) -> OtherPythonCodegen | None:
    """Return the codegen of a name that the user's settings have in another Python, None without one.

    Raises InputError as `find_codegen` does.
    """
    interpreter = find_interpreter(name)
    if interpreter is None:
        return None
    # Few users have codegens in other Pythons, which need half the room.
    from byoc.codegen._other_python import find_in_other_python  # noqa: PLC0415

    found = find_in_other_python(name, isolation, interpreter)
    try:
        _check_version(found.description)
    except UnsuitablePluginError as error:
        raise InputError(f"codegen '{name}' in {interpreter.python} {error}") from None
    return found


def parse_codegen_options(codegen: Codegen, given: Mapping[str, str]) -> Any:
    """Parse options given as text; return the `options` argument of the codegen's `compile`.

    Raises InputError naming the codegen and the option when one is wrong.
    """
    if isinstance(codegen, IsolatedCodegen):
        codegen.check_options(given)
        return given
    options = getattr(codegen, "Options", None)
    if options is None:
        return given
    try:
        return read_options(options, given)
    except InputError as error:
        raise InputError(f"codegen {codegen.name} {error}") from None


def find_wrong_options(codegen: Codegen, given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a file that a codegen does not take, each with the end of a sentence."""
    if isinstance(codegen, IsolatedCodegen):
        return codegen.find_wrong_options(given)
    options = getattr(codegen, "Options", None)
    if options is None:
        return {}
    return find_option_problems(options, given) | find_executing_options(options, given)


def has_options(codegen: Codegen) -> bool:
    """Return whether a codegen declares its options; one that does not takes any."""
    if isinstance(codegen, IsolatedCodegen):
        return codegen.description.options is not None
    return getattr(codegen, "Options", None) is not None


def drop_executing_options(codegen: object, given: Mapping[str, str]) -> dict[str, str]:
    """Return the options that a file has for a codegen, without those that execute."""
    executing = list_executing_options(codegen)
    return {name: text for name, text in given.items() if name not in executing}


def list_executing_options(codegen: object) -> list[str]:
    """Return the names of a codegen's options whose values are executed."""
    if isinstance(codegen, IsolatedCodegen):
        return codegen.description.executing_options
    options = getattr(codegen, "Options", None)
    return [] if options is None else [each.name for each in list_options(options) if each.executes]


def list_load_options(codegen: object) -> list[str]:
    """Return the names of a codegen's options that may be given when a bundle is loaded."""
    if isinstance(codegen, IsolatedCodegen):
        known: Iterable[OptionDescription] = codegen.description.options or ()
    else:
        options = getattr(codegen, "Options", None)
        known = [] if options is None else list_options(options)
    return [each.name for each in known if each.at_load]


def _instantiate(kind: Any, name: str) -> Codegen:
    """Instantiate a codegen class. Raises UnfitError with the end of a sentence."""
    _check_version(kind)
    found = kind()
    _check_version(found)
    if not isinstance(found, Codegen) or not callable(found.compile):
        raise UnsuitablePluginError(
            "is not one: it needs a `name` and a method `compile(region, options)`"
        )
    try:
        inspect.signature(found.compile).bind(None, None)
    except TypeError:
        raise UnsuitablePluginError(
            "is not one: its `compile` does not take (region, options)"
        ) from None
    except ValueError:  # not written in Python, so its signature is unknown
        pass
    if getattr(found, "Options", None) is not None:
        try:
            list_options(found.Options)  # type: ignore[attr-defined]
        except TypeError as error:
            raise UnsuitablePluginError(f"cannot be used: {error}") from None
    if found.name != name:  # a bundle stores the name to find its codegen again
        raise UnsuitablePluginError(f"calls itself '{found.name}': rename either")
    return found


def _check_version(kind: Any) -> None:
    version = getattr(kind, "api", API_VERSION)
    if isinstance(version, property):  # known only from an instance
        return
    if not isinstance(version, int) or isinstance(version, bool):
        raise UnsuitablePluginError(
            f"is not one: its `api` is {version!r}, and not the number of a version"
        )
    if version > API_VERSION:
        raise UnsuitablePluginError(
            f"speaks version {version} of the codegen interface and this byoc no newer one than "
            f"{API_VERSION}: install a newer onnx-byoc, or an older version of it"
        )
    if version < 1:
        raise UnsuitablePluginError(
            f"speaks version {version} of the codegen interface, which this byoc does not: the oldest "
            "is 1; install a newer version of it"
        )


@dataclass(frozen=True, eq=False)
class Codegens:
    """The codegens that are found by name; with `isolation` each in a worker process of its own.

    Worker processes end with `close`, or with this object and all executors that they loaded.
    """

    isolation: Isolation | None = None
    _found: dict[str, Codegen] = field(default_factory=dict)

    def find(self, name: str) -> Codegen:
        """Return the codegen of a name. Raises InputError as `find_codegen` does."""
        if name not in self._found:
            configured = find_configured(name, self.isolation or Isolation())
            if configured is not None:
                self._found[name] = configured
            elif self.isolation is None or (
                self.isolation.unless_trusted and not has_worker_processes()
            ):
                self._found[name] = load_installed(name)
            else:
                self._found[name] = find_isolated(name, self.isolation)
        return self._found[name]

    def find_driver(self, name: str) -> DriverSources | None:
        """Return the sources of a codegen's driver, None where it has none.

        A driver that the user's settings name needs no interpreter. Raises InputError as `find_codegen`
        does, where `driver` fails, and for a driver of another name or whose files are not there.
        """
        interpreter = find_interpreter(name)
        sources = None if interpreter is None else _read_driver_settings(name, interpreter)
        if sources is None:
            codegen = self.find(name)
            if not has_driver(codegen):
                return None
            sources = ask_driver(codegen)
        _check_driver(name, sources)
        return sources

    def needs_model_driver(self, name: str) -> bool:
        """Return whether the driver of a codegen is made of the models of a bundle's regions.

        Raises InputError as `find_codegen` does.
        """
        return not self.has_driver_in_settings(name) and has_model_driver(self.find(name))

    def has_driver_in_settings(self, name: str) -> bool:
        """Return whether the user's settings name a codegen's driver."""
        interpreter = find_interpreter(name)
        return interpreter is not None and interpreter.driver is not None

    def close(self) -> None:
        """End the worker processes; the next call of a codegen starts another."""
        for codegen in self._found.values():
            if isinstance(codegen, IsolatedCodegen):
                codegen.close()


def _read_driver_settings(name: str, interpreter: InterpreterSettings) -> DriverSources | None:
    if interpreter.driver is None:
        return None
    from byoc.codegen._other_python import read_driver_settings  # noqa: PLC0415 - as above

    return read_driver_settings(name, interpreter)


def _check_driver(name: str, sources: DriverSources) -> None:
    """Raise InputError for a driver of another name, or whose sources are not there."""
    if sources.name != name:
        raise InputError(
            f"codegen {name}: its driver calls itself '{escape_line(sources.name)}': rename either"
        )
    for file in sources.files:
        if not file.is_file():
            raise InputError(f"codegen {name}: its driver's source {file}: there is no such file")


def choose_worker_isolation(codegen: Codegen) -> Isolation:
    """Return the request for another worker process of a codegen, with the limits that it has."""
    return codegen.isolation if isinstance(codegen, IsolatedCodegen) else Isolation()


def describe_codegens(names: Iterable[str]) -> dict[str, CodegenDescription | InputError]:
    """Describe installed codegens by name; one that cannot be loaded has its error instead.

    One worker process imports them all; after a codegen at which it died, another one imports the next.
    On systems without worker processes they are imported in this one.
    """
    found: dict[str, CodegenDescription | InputError] = {}
    worker: Worker | None = None
    with ExitStack() as opened:
        for name in names:
            try:
                configured = find_configured(name, UNLESS_TRUSTED)
                if configured is not None:
                    found[name] = opened.enter_context(closing(configured)).description
                    continue
                if not has_worker_processes():
                    found[name] = describe_codegen(load_installed(name))
                    continue
                if worker is None or not worker.is_alive:
                    worker = opened.enter_context(closing(Worker({})))
                found[name] = import_codegen(worker, name, UNLESS_TRUSTED)
            except InputError as error:
                found[name] = error
    return found
