"""The table of functions of an emitter, for codegens in this Python."""

from typing import TypeVar

from byoc.codegen._interface import CompileError
from byoc.codegen.byoc_worker.emitters import EmitterTable

T = TypeVar("T")


class Emitters(EmitterTable[T]):
    """A table of functions that emit code for an operation, by operator or composite.

    `emit = Emitters()`, `@emit.op("Conv")` or `@emit.composite("conv_relu")` over each function, and
    `emit(region)` calls them in order of execution.
    """

    refusal = CompileError
