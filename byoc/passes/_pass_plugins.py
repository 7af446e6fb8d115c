"""Lookup of passes by name, with their options; the protocol that they implement."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from onnx import ModelProto

from byoc.errors import InputError
from byoc.support import (
    PASSES,
    UnsuitablePluginError,
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
