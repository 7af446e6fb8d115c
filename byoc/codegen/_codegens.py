"""The codegens of one program, each found once: in this process, or in worker processes."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from byoc.codegen._codegen_lookup import find_codegen, find_configured
from byoc.codegen._descriptions import describe_codegen
from byoc.codegen._isolated_abilities import find_isolated
from byoc.codegen._isolation import IsolatedCodegen, import_codegen
from byoc.codegen._worker import UNLESS_TRUSTED, Isolation, Worker, has_worker_processes
from byoc.errors import InputError

if TYPE_CHECKING:
    from byoc.codegen._descriptions import CodegenDescription
    from byoc.codegen._interface import Codegen


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
                return find_codegen(name)
            else:
                self._found[name] = find_isolated(name, self.isolation)
        return self._found[name]

    def close(self) -> None:
        """End the worker processes; the next call of a codegen starts another."""
        for codegen in self._found.values():
            if isinstance(codegen, IsolatedCodegen):
                codegen.close()


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
                    found[name] = describe_codegen(find_codegen(name))
                    continue
                if worker is None or not worker.is_alive:
                    worker = opened.enter_context(closing(Worker({})))
                found[name] = import_codegen(worker, name, UNLESS_TRUSTED)
            except InputError as error:
                found[name] = error
    return found
