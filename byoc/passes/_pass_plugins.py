"""Lookup of passes by name, with their options; the protocol that they implement."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, runtime_checkable

import onnx
from onnx import ModelProto, ValueInfoProto

from byoc.errors import InputError, PluginFailedError, describe_error, must_propagate
from byoc.support import (
    PASSES,
    UnsuitablePluginError,
    describe_exit,
    format_options,
    get_distribution,
    list_installed,
    list_plugin_options,
    load_plugin,
    make_with_options,
    select_options,
)

MODEL_SCOPE, REGION_SCOPE = "model", "region"
_SCOPES = (MODEL_SCOPE, REGION_SCOPE)


@runtime_checkable
class Pass(Protocol):
    """A pass: a frozen dataclass, whose fields are its options.

    `scope` says what it rewrites: `"model"`, the user's model before it is annotated, or `"region"`, the
    model of each region before its codegen gets it.
    """

    scope: str

    def run(self, model: ModelProto) -> ModelProto:
        """Return the rewritten model, which may be the given one, edited: it is a copy.

        All weights are in memory. Inputs and outputs must stay as they are: names, types and shapes.
        """
        ...


@dataclass(frozen=True, eq=False)
class LoadedPass:
    """A pass with its options, as the user or a rule file asked for it.

    `distribution` is the name and version of the package that it comes from.
    """

    name: str
    distribution: str
    implementation: Pass

    @property
    def scope(self) -> str:
        """Its scope: `model` or `region`."""
        return self.implementation.scope

    @property
    def options(self) -> dict[str, str]:
        """All its options as text, with their defaults."""
        names = [option.name for option in list_plugin_options(type(self.implementation))]
        texts = format_options(self.implementation) if names else {}
        return {name: texts[name] for name in names}


def load_pass(name: str, given: Mapping[str, str] | None = None) -> LoadedPass:
    """Load an installed pass with some options, as text.

    Raises InputError when there is none of that name, it is not a pass, or an option is wrong.
    """
    loaded = load_plugin(PASSES, name, lambda kind: _instantiate(kind, given or {}))
    return LoadedPass(name, get_distribution(list_installed(PASSES)[name]), loaded)


def load_passes(names: Sequence[str], given: Mapping[str, str]) -> tuple[LoadedPass, ...]:
    """Load passes in the order of their names; options are given by `name` or `pass:name`.

    Raises InputError as `load_pass` and `select_options` do, and for a pass that is named twice.
    """
    for name in names:
        if list(names).count(name) > 1:
            raise InputError(f"pass {name}: it is asked for twice")
    if not names and given:
        raise InputError(f"pass option {next(iter(given))}: no pass is asked for (--pass)")
    return tuple(
        load_pass(name, select_options(given, name, names, "pass option", "pass")) for name in names
    )


def load_region_pass(name: str, given: Mapping[str, str]) -> LoadedPass:
    """Load a pass that a rule file names, with the options there.

    Raises InputError as `load_pass` does, for a pass that rewrites models, and for an option that
    executes what it names, since that comes from the user alone.
    """
    loaded = load_pass(name, given)
    if loaded.scope != REGION_SCOPE:
        raise InputError(
            f"pass {name} rewrites whole models, and a rule file names passes for regions: use --pass"
        )
    for option in list_plugin_options(type(loaded.implementation)):
        if option.executes and option.name in given:
            raise InputError(
                f"pass {name} takes '{option.name}' from the user alone, since it may run any command: "
                f"--pass-option {name}:{option.name}=..."
            )
    return loaded


def _instantiate(kind: Any, given: Mapping[str, str]) -> Pass:
    """Make a pass. Raises UnsuitablePluginError with the end of a sentence."""
    made = make_with_options(kind, given)
    if not isinstance(made, Pass) or not callable(made.run):
        raise UnsuitablePluginError("is not one: it needs a `scope` and a method `run(model)`")
    if made.scope not in _SCOPES:
        raise UnsuitablePluginError(
            f"is not one: its `scope` is {made.scope!r}, and not {_list_words(_SCOPES)}"
        )
    return made


def _list_words(words: Iterable[str]) -> str:
    return " or ".join(f"'{word}'" for word in words)


# Running a pass on a copy of a model: in this process, or in a process of its own.

MODEL_FILE, RESULT_FILE = "model.onnx", "result.onnx"
REQUEST_FILE, FAILURE_FILE = "request.json", "failure.txt"
_MODULE = "byoc.passes._pass_process"
_MOST_CHARACTERS = 2000  # of what a failed pass says


class PassFailedError(PluginFailedError):
    """A pass raised an exception, or its process died; the message does not name the pass."""


@dataclass(frozen=True)
class PassProcess:
    """The request to run passes in processes of their own, for at most `seconds` each, if given."""

    seconds: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


def apply_pass(asked: LoadedPass, model: ModelProto, process: PassProcess | None = None) -> ModelProto:
    """Run a pass on a model, which it may edit; return the rewritten one, weights in memory.

    Raises PassFailedError when it raises, returns no model, or its process dies or takes too long.
    """
    if process is not None:
        return _run_in_process(asked, model, process)
    try:
        made = asked.implementation.run(model)
    except (Exception, SystemExit) as error:  # it can fail in any way
        if must_propagate(error) and not isinstance(error, Exception):
            raise
        raise PassFailedError(f"failed with {describe_error(error)}") from error
    if not isinstance(made, ModelProto):
        raise PassFailedError(f"returned a {type(made).__name__}, and not a model")
    return made


def _run_in_process(asked: LoadedPass, model: ModelProto, process: PassProcess) -> ModelProto:
    with TemporaryDirectory(prefix="byoc-pass-") as name:
        folder = Path(name)
        onnx.save(model, folder / MODEL_FILE, save_as_external_data=True, location="model.bin")
        request = {"name": asked.name, "options": asked.options}
        (folder / REQUEST_FILE).write_text(json.dumps(request), encoding="utf-8")
        code = _wait_for_process(folder, process)
        failure = folder / FAILURE_FILE
        if failure.is_file():
            raise PassFailedError(failure.read_text(encoding="utf-8")[:_MOST_CHARACTERS])
        if code:
            raise PassFailedError(f"failed: its process {describe_exit(code)}")
        try:
            return onnx.load(folder / RESULT_FILE)
        except Exception as error:  # whatever it left there
            raise PassFailedError(f"left no model: {describe_error(error)}") from None


def _wait_for_process(folder: Path, process: PassProcess) -> int:
    """Run the process to its end, and end all that it started; return its exit code.

    It ends when this one does: also when this one is killed, since the kernel then closes a pipe.
    """
    path = os.pathsep.join(dict.fromkeys(entry for entry in sys.path if entry))
    watched, life = os.pipe()
    try:
        child = subprocess.Popen(
            # -P: modules in the working directory are not imported, as with the `byoc` command.
            [sys.executable, "-P", "-m", _MODULE, str(folder), str(watched)],
            env={**os.environ, **process.environment, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=sys.__stderr__,  # standard output is for byoc's results
            start_new_session=True,
            pass_fds=(watched,),
        )
    except BaseException:
        os.close(life)
        raise
    finally:
        os.close(watched)
    try:
        return child.wait(process.seconds)
    except subprocess.TimeoutExpired:
        raise PassFailedError(f"took longer than {process.seconds:g} s and was stopped") from None
    finally:
        with suppress(OSError):  # the group is gone with all that it started
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        os.close(life)


# The check that a pass left the inputs and outputs of a model as they were.


def find_interface_change(before: ModelProto, after: ModelProto) -> str:
    """Describe the first change of a model's inputs and outputs, as a sentence's end; "" for none.

    Names, their order, types and stated shapes are compared. Inputs that have an initializer (as before
    IR version 4) are constants, and may go.
    """
    for what, old, new in (
        ("input", _list_inputs(before), _list_inputs(after)),
        ("output", before.graph.output, after.graph.output),
    ):
        problem = _compare(what, list(old), list(new))
        if problem:
            return problem
    return ""


def _list_inputs(model: ModelProto) -> Iterable[ValueInfoProto]:
    stored = {tensor.name for tensor in model.graph.initializer}
    return (value for value in model.graph.input if value.name not in stored)


def _compare(what: str, old: list[ValueInfoProto], new: list[ValueInfoProto]) -> str:
    before, after = ([value.name for value in values] for values in (old, new))
    for name in before:
        if name not in after:
            return f"it removes the {what} '{name}'"
    for name in after:
        if name not in before:
            return f"it adds the {what} '{name}'"
    if before != after:
        return f"it changes the order of the {what}s"
    for one, other in zip(old, new, strict=True):
        if one.type != other.type:
            return f"it changes the type or shape of the {what} '{one.name}'"
    return ""
