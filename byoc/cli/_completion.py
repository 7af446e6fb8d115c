"""Completion in shells: the values of options and arguments that name something installed."""

from collections.abc import Callable, Iterable
from typing import Any

import typer
from typer import completion

from byoc.support import (
    ANNOTATIONS,
    CODEGENS,
    COST_MODELS,
    PASSES,
    STRATEGIES,
    find_files,
    list_installed,
)


def _list_files(group: str) -> Iterable[str]:
    """Return the names of the files of a group; nothing is read."""
    return find_files(group)[0]


_VALUES: dict[str, Callable[[], Iterable[str]]] = {
    "rules": lambda: _list_files(ANNOTATIONS),
    "rules check files": lambda: _list_files(ANNOTATIONS),
    "rules composites name": lambda: _list_files(ANNOTATIONS),
    "cost_model": lambda: _list_files(COST_MODELS),
    "host_cost_model": lambda: _list_files(COST_MODELS),
    "codegen": lambda: list_installed(CODEGENS),
    "codegens name": lambda: list_installed(CODEGENS),
    "strategy": lambda: list_installed(STRATEGIES),
    "strategies": lambda: list_installed(STRATEGIES),
    "passes": lambda: list_installed(PASSES),
    "passes name": lambda: list_installed(PASSES),
}
"""The names that a parameter takes: by its own name, or by its verb's and its own.

Most take files of the user's, too: where no name fits, the shell completes paths."""


def prepare_completion() -> None:
    """Let the command line answer shells that ask it to complete a line (`_BYOC_COMPLETE`)."""
    completion.completion_init()


def complete_values(command: Any, verb: str) -> None:
    """Give the parameters of a verb, and of its own verbs, the names that they take."""
    for parameter in command.params:
        names = _VALUES.get(f"{verb} {parameter.name}") or _VALUES.get(parameter.name)
        if names is not None:
            parameter._custom_shell_complete = _make_completer(names)
    for name, inner in getattr(command, "commands", {}).items():
        complete_values(inner, f"{verb} {name}")


def _make_completer(names: Callable[[], Iterable[str]]) -> Callable[..., Any]:
    def complete(_context: typer.Context, _parameter: Any, incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete
