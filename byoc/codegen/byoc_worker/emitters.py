"""An emitter made of small functions, one for each operator and composite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Generic, TypeVar

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_MAX_NODES = 3  # nodes that a message names


class EmitterTable(Generic[T]):
    """A table of functions that emit code for an operation, by operator or composite.

    `emit = Emitters()`, `@emit.op("Conv")` or `@emit.composite("conv_relu")` over each function, and
    `emit(region)` calls them in order of execution. A subclass names the class of a refusal.
    """

    refusal: Any

    def __init__(self) -> None:
        """Make an empty table."""
        self._ops: dict[str, Callable[..., T]] = {}
        self._composites: dict[str, Callable[..., T]] = {}

    def op(self, *names: str) -> Callable[[F], F]:
        """Register a function for operators; outside ONNX's domain the name is `com.acme.Gelu`."""
        return _register(self._ops, names)

    def composite(self, *names: str) -> Callable[[F], F]:
        """Register a function for composites, by their names in the rule file."""
        return _register(self._composites, names)

    def find(self, operation: Any) -> Callable[..., T] | None:
        """Return the function for an operation, or None."""
        if operation.composite:
            return self._composites.get(operation.composite)
        return self._ops.get(_display_name(operation))

    def __call__(
        self,
        region: Any,
        *context: Any,
        fold: bool = True,
        boundary: bool = False,
        quantized: bool = False,
    ) -> list[T]:
        """Call the functions for all operations of a region; return the results in order of execution.

        Each function gets the operation, followed by `context`; `fold`, `boundary` and
        `quantized` are passed to `Region.operations`. Raises CompileError naming
        all operators without a function, before any function is called; a CompileError of a function
        that names no nodes gets the operation's name.
        """
        operations = region.operations(fold=fold, boundary=boundary, quantized=quantized)
        lacking = [operation for operation in operations if self.find(operation) is None]
        if lacking:
            raise self.refusal(_describe_missing(lacking), [operation.name for operation in lacking])
        return [self._emit(operation, context) for operation in operations]

    def _emit(self, operation: Any, context: Sequence[Any]) -> T:
        function = self.find(operation)
        assert function is not None
        try:
            return function(operation, *context)
        except self.refusal as error:
            if not error.nodes:
                error.nodes = (operation.name,)
            raise


def _register(table: dict[str, Callable[..., Any]], names: Sequence[str]) -> Callable[[F], F]:
    def enter(function: F) -> F:
        for name in names:
            if name in table:
                raise ValueError(f"there are two functions for {name}")
            table[name] = function
        return function

    return enter


def _display_name(operation: Any) -> str:
    if operation.composite:
        return str(operation.composite)
    return f"{operation.domain}.{operation.op}" if operation.domain else str(operation.op)


def _describe_missing(lacking: Sequence[Any]) -> str:
    names = ", ".join(dict.fromkeys(map(_display_name, lacking)))
    nodes = ", ".join(operation.name for operation in lacking[:_MAX_NODES])
    more = f" and {len(lacking) - _MAX_NODES} more" if len(lacking) > _MAX_NODES else ""
    return f"no code is emitted for {names} ({nodes}{more})"
