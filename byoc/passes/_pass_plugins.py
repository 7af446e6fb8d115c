"""Lookup of passes by name, with their options; the protocol that they implement."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, runtime_checkable

import onnx
from onnx import ModelProto, TensorProto, ValueInfoProto

from byoc._dataclasses import dataclass, field
from byoc.errors import ByocError, InputError, PluginFailedError, describe_error, must_propagate
from byoc.model import get_operator_name, walk_nodes
from byoc.support import (
    PASSES,
    UnsuitablePluginError,
    describe_exit,
    end_with_parent,
    format_options,
    get_distribution,
    list_installed,
    list_plugin_options,
    load_plugin,
    make_with_options,
    select_options,
)

# The effect of a pass: the nodes before and after it by operator, and how it was verified.


@dataclass(frozen=True)
class PassEffect:
    """The effect of a pass on the model, or on the regions of one target.

    `distribution` is the package it comes from, with its version. `nodes_before` and `nodes_after` count
    nodes by operator, those in bodies and functions included; `rewritten` is how many nodes changed and
    kept their operator, where the pass counts them. `changed` is the number of regions (or
    models) that it changed, of `applied`. `compared` is the number of samples on which the original and
    the rewritten form were compared, `equal` says that all outputs had the same bits, and
    `largest_error` is the largest as a share of the output's range. `not_compared` says why nothing was
    compared.
    """

    name: str
    distribution: str
    scope: str
    target: str = ""
    options: dict[str, str] = field(default_factory=dict)
    nodes_before: dict[str, int] = field(default_factory=dict)
    nodes_after: dict[str, int] = field(default_factory=dict)
    rewritten: int = 0
    applied: int = 1
    changed: int = 0
    compared: int = 0
    equal: bool = False
    largest_error: float = 0.0
    not_compared: str = ""


def count_operators(model: ModelProto) -> dict[str, int]:
    """Count the nodes of a model by operator, those in bodies and functions included, sorted by name.

    An operator of another domain than ONNX's is named with its domain.
    """
    inside = (function.node for function in model.functions)
    found = Counter(map(get_operator_name, walk_nodes(chain(model.graph.node, *inside))))
    return dict(sorted(found.items()))


def is_changed(before: ModelProto, after: ModelProto) -> bool:
    """Return whether a pass changed anything but metadata; content of files is not compared."""
    for one, other in (
        (before.graph.node, after.graph.node),
        (before.graph.input, after.graph.input),
        (before.graph.output, after.graph.output),
        (before.functions, after.functions),
        (before.opset_import, after.opset_import),
    ):
        if list(one) != list(other):
            return True
    stored = {tensor.name: tensor for tensor in before.graph.initializer}
    return len(stored) != len(after.graph.initializer) or any(
        tensor.name not in stored or _is_other(stored[tensor.name], tensor)
        for tensor in after.graph.initializer
    )


def _is_other(before: TensorProto, after: TensorProto) -> bool:
    if before.data_location == TensorProto.EXTERNAL:
        return (before.data_type, before.dims) != (after.data_type, after.dims)
    return before != after


def merge_effects(effects: Iterable[PassEffect]) -> tuple[PassEffect, ...]:
    """Merge the effects of each pass on the regions of a target into one, in the order of the first."""
    found: dict[tuple[str, str], list[PassEffect]] = {}
    for each in effects:
        found.setdefault((each.name, each.target), []).append(each)
    return tuple(_merge(group) for group in found.values())


def _merge(group: list[PassEffect]) -> PassEffect:
    first = group[0]
    return PassEffect(
        name=first.name,
        distribution=first.distribution,
        scope=first.scope,
        target=first.target,
        options=first.options,
        nodes_before=_add(each.nodes_before for each in group),
        nodes_after=_add(each.nodes_after for each in group),
        rewritten=sum(each.rewritten for each in group),
        applied=sum(each.applied for each in group),
        changed=sum(each.changed for each in group),
        compared=sum(each.compared for each in group),
        equal=all(each.equal for each in group),
        largest_error=max(each.largest_error for each in group),
        not_compared=next((each.not_compared for each in group if each.not_compared), ""),
    )


def _add(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(sorted(total.items()))


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
_MODULE = "byoc.passes._pass_plugins"
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


# A process that runs one pass: `python -m byoc.passes._pass_plugins FOLDER LIFE`.
#
# The folder has the model and the request; the result, or the reason why there is none, is written
# there. `LIFE` is the descriptor of a pipe whose other end is closed when byoc ends.


def run_request(folder: Path) -> None:
    """Run the pass that a folder's request names on the folder's model."""
    request = json.loads((folder / REQUEST_FILE).read_text(encoding="utf-8"))
    try:
        asked = load_pass(request["name"], request["options"])
        made = apply_pass(asked, onnx.load(folder / MODEL_FILE))
        onnx.save(made, folder / RESULT_FILE, save_as_external_data=True, location="result.bin")
    except ByocError as error:
        (folder / FAILURE_FILE).write_text(str(error), encoding="utf-8")


if __name__ == "__main__":
    end_with_parent(int(sys.argv[2]))
    run_request(Path(sys.argv[1]))
