"""The codegens of one program, each found once: in this process, or in worker processes."""

from dataclasses import dataclass, field

from byoc.codegen._codegen_lookup import find_codegen
from byoc.codegen._interface import Codegen
from byoc.codegen._isolation import IsolatedCodegen, find_isolated
from byoc.codegen._worker import Isolation


@dataclass(frozen=True, eq=False)
class Codegens:
    """The codegens that are found by name; with `isolation` each in a worker process of its own.

    Worker processes end with `close`, or with this object and all executors that they loaded.
    """

    isolation: Isolation | None = None
    _found: dict[str, Codegen] = field(default_factory=dict)

    def find(self, name: str) -> Codegen:
        """Return the installed codegen of a name. Raises InputError as `find_codegen` does."""
        if self.isolation is None:
            return find_codegen(name)
        if name not in self._found:
            self._found[name] = find_isolated(name, self.isolation)
        return self._found[name]

    def close(self) -> None:
        """End the worker processes; the next call of a codegen starts another."""
        for codegen in self._found.values():
            if isinstance(codegen, IsolatedCodegen):
                codegen.close()
