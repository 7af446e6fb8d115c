"""Regions of one target compiled several at a time.

A codegen whose class says `parallel = True` is called by several threads. Of any other there are further
worker processes, each with a codegen of its own, which costs the start of a process. What is compiled is
the same in any case, and is asked for in the order of the regions.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from contextvars import copy_context
from queue import SimpleQueue
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from byoc.codegen import Artifact, Codegen, Codegens, Region, choose_worker_isolation
from byoc.errors import ByocError


class Compiler(Protocol):
    """A compiler of regions, which calls their codegen."""

    @property
    def codegen(self) -> Codegen:
        """The codegen."""
        ...

    def compile(self, region: Region) -> Artifact:
        """Compile a region. Raises CompileError."""
        ...


C = TypeVar("C", bound=Compiler)


class CompilePool(Generic[C]):
    """Compiles up to `jobs` regions at a time; use as a context manager.

    `compiler` compiles by a codegen, and `with_codegen` makes one that does so by the same codegen in
    another process. Without `jobs` there are as many as processors where threads can share the codegen,
    else one.
    """

    def __init__(self, compiler: C, jobs: int | None, with_codegen: Callable[[Codegen], C]) -> None:
        """Start nothing yet."""
        self._compiler, self._with_codegen = compiler, with_codegen
        self._shared = bool(getattr(compiler.codegen, "parallel", False))
        self._jobs = jobs or (count_processors() if self._shared else 1)
        self._begun: dict[str, Future[Artifact]] = {}
        self._free: SimpleQueue[C] = SimpleQueue()
        self._opened = ExitStack()
        self._threads: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for what is being compiled, drop what is not begun, and end further processes."""
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
        self._opened.close()

    def begin(self, regions: Sequence[Region]) -> None:
        """Begin to compile regions, unless one is compiled at a time."""
        jobs = min(self._jobs, len(regions))
        if jobs < 2:
            return
        if self._threads is None:
            # A thread for each job, and one for each process that is being started.
            self._threads = ThreadPoolExecutor(2 * jobs - 1)
            self._free.put(self._compiler)
            for _ in range(jobs - 1):
                if self._shared:
                    self._free.put(self._compiler)
                else:
                    self._threads.submit(copy_context().run, self._start_process)
        for region in regions:
            self._begun[region.name] = self._threads.submit(copy_context().run, self._compile, region)

    def compile(self, region: Region) -> Artifact:
        """Return the artifact of a region. Raises CompileError."""
        begun = self._begun.pop(region.name, None)
        return self._compiler.compile(region) if begun is None else begun.result()

    def _compile(self, region: Region) -> Artifact:
        compiler = self._free.get()
        try:
            return compiler.compile(region)
        finally:
            self._free.put(compiler)

    def _start_process(self) -> None:
        """Start another process of the codegen; where that is not possible, the others do its work."""
        try:
            codegens = self._opened.enter_context(
                closing(Codegens(choose_worker_isolation(self._compiler.codegen)))
            )
            self._free.put(self._with_codegen(codegens.find(self._compiler.codegen.name)))
        except ByocError:
            return


def count_processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
