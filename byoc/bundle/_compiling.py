"""Compilation of a plan's regions by the targets' codegens: identical ones once, several at a time."""

import hashlib
import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from contextvars import copy_context
from functools import cached_property
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from byoc._dataclasses import dataclass, field, replace
from byoc.codegen import (
    Artifact,
    ArtifactCache,
    ArtifactError,
    Codegen,
    CodegenFailedError,
    Codegens,
    CompileError,
    Refusal,
    RefusedError,
    Region,
    ResourceError,
    TakesWeights,
    Together,
    choose_worker_isolation,
    compile_region,
    compile_together,
    exchange_weights,
    find_alike,
    find_identical,
    find_same_paths,
    is_plain_name,
    parse_codegen_options,
    quote_name,
    resolve_node_names,
)
from byoc.errors import ByocError
from byoc.support import format_part, report_step

if TYPE_CHECKING:
    from byoc.bundle._target_compilers import EarlierRegions

# Regions of one target compiled several at a time.
#
# A codegen whose class says `parallel = True` is called by several threads. Of any other there are
# further worker processes, each with a codegen of its own, which costs the start of a process. What
# is compiled is the same in any case, and is asked for in the order of the regions.


class CompilePool:
    """Compiles up to `jobs` regions at a time; use as a context manager.

    Without `jobs` there are as many as processors where threads can share the codegen, else one.
    """

    def __init__(self, compiler: "RegionCompiler", jobs: int | None) -> None:
        """Start nothing yet."""
        self._compiler = compiler
        self._shared = bool(getattr(compiler.codegen, "parallel", False))
        self._jobs = jobs or (count_processors() if self._shared else 1)
        self._begun: dict[str, Future[Artifact]] = {}
        self._free: SimpleQueue[RegionCompiler] = SimpleQueue()
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
        return self._compile(region) if begun is None else begun.result()

    def take_weights(self, region: Region, first: Region, artifact: Artifact) -> Artifact | None:
        """Call `RegionCompiler.take_weights` of a compiler that is free."""
        with self._lend() as compiler:
            return compiler.take_weights(region, first, artifact)

    def _compile(self, region: Region) -> Artifact:
        with self._lend() as compiler:
            return compiler.compile(region)

    @contextmanager
    def _lend(self) -> Iterator["RegionCompiler"]:
        """Lend a compiler: one thread at a time calls its codegen, unless threads can share it."""
        if self._threads is None:
            yield self._compiler
            return
        compiler = self._free.get()
        try:
            yield compiler
        finally:
            self._free.put(compiler)

    def _start_process(self) -> None:
        """Start another process of the codegen; where that is not possible, the others do its work."""
        try:
            codegens = self._opened.enter_context(
                closing(Codegens(choose_worker_isolation(self._compiler.codegen)))
            )
            self._free.put(replace(self._compiler, codegen=codegens.find(self._compiler.codegen.name)))
        except ByocError:
            return


def count_processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# File systems take 255 bytes; some, such as encrypted ones, fewer.
_MAX_NAME_BYTES = 200


@dataclass(frozen=True, eq=False)
class RegionCompiler:
    """A codegen with the user's options, which compiles the regions of a target.

    `cache` has the artifacts so far, and perhaps those of earlier programs. `recoveries` compile with
    the codegen's options to recover with, in order: regions that were computed wrong. `earlier` are
    regions of a bundle, whose artifacts are given other weights instead of compiling anew.
    """

    codegen: Codegen
    options: Mapping[str, str]
    cache: ArtifactCache = field(default_factory=ArtifactCache)
    recoveries: tuple["RegionCompiler", ...] = ()
    earlier: "EarlierRegions | None" = None

    @cached_property
    def parsed_options(self) -> Any:
        """The parsed `options` argument of `compile`. Raises InputError when an option is wrong."""
        return parse_codegen_options(self.codegen, self.options)

    def choose(self, attempt: int) -> "RegionCompiler":
        """Return the compiler of an attempt: 0 is itself, others recover."""
        return self.recoveries[attempt - 1] if attempt else self

    def index_added(self) -> None:
        """Make the caches find what was compiled since the last round of planning."""
        for compiler in (self, *self.recoveries):
            compiler.cache.index_added()

    def compile(self, region: Region) -> Artifact:
        """Compile a region. Raises CompileError with one sentence, whatever goes wrong."""
        with _forbid_changes((region,)):
            return _check_file_names(compile_region(self.codegen, region, self.parsed_options))

    def take_weights(self, region: Region, first: Region, artifact: Artifact) -> Artifact | None:
        """Return a region's artifact made of that of `first`, None where it has to be compiled.

        Raises as `compile`.
        """
        with _forbid_changes((region, first)):
            assert isinstance(self.codegen, TakesWeights)
            made = exchange_weights(self.codegen, region, first, artifact, self.parsed_options)
        return None if made is None else _check_file_names(made)

    def compile_all(self, regions: Sequence[Region]) -> dict[str, Artifact]:
        """Compile regions in one call; return the artifacts by region name. Raises as `compile`."""
        with _forbid_changes(regions):
            assert isinstance(self.codegen, Together)
            found = compile_together(self.codegen, regions, self.parsed_options)
        for name, artifact in found.items():
            try:
                _check_file_names(artifact)
            except CompileError as error:
                raise ArtifactError(str(error), name) from None
        return found


@dataclass(frozen=True, eq=False)
class CompiledRegion:
    """A compiled region: its artifact, which may be that of an identical earlier region, `same_as`."""

    artifact: Artifact
    same_as: str = ""


def compile_regions(
    regions: Sequence[Region], compiler: RegionCompiler, strict: bool, jobs: int | None
) -> dict[str, CompiledRegion]:
    """Compile the regions of one target, `jobs` at a time; return the results by region name.

    Of regions that are identical except for names only the first is compiled, of those that differ in
    constants as well, too, if the codegen takes weights; and cached artifacts are reused. Without `jobs`
    there are as many as `CompilePool` says.

    Raises RefusedError with all regions that the codegen refuses or gives no artifact for; with
    `strict`, CompileError for the first.
    """
    same = find_identical(regions)
    first = [region for region in regions if region.name not in same]
    together = isinstance(compiler.codegen, Together)
    refitted: dict[str, Artifact] = {}
    if compiler.earlier is not None and not together:
        refitted = compiler.earlier.refit(first, compiler)
        first = [region for region in first if region.name not in refitted]
    alike = find_alike(first) if isinstance(compiler.codegen, TakesWeights) and not together else {}
    calls = [_CodegenCall(tuple(first), True)] if together and first else _single_calls(first, alike)
    with CompilePool(compiler, jobs) as pool:
        artifacts, refusals = _compile_calls(calls, compiler, strict, pool)
    artifacts |= refitted
    if refusals:
        raise RefusedError([*refusals, *_refusals_of_identical(refusals, regions, same)])
    return {
        region.name: CompiledRegion(
            artifacts[same.get(region.name, region.name)], same.get(region.name, "")
        )
        for region in regions
    }


def _compile_calls(
    calls: Sequence["_CodegenCall"],
    compiler: RegionCompiler,
    strict: bool,
    pool: CompilePool,
) -> tuple[dict[str, Artifact], list[Refusal]]:
    """Return the artifacts by region name, and the refusals; with `strict`, raise the first."""
    artifacts: dict[str, Artifact] = {}
    refusals: list[Refusal] = []
    waiting = _begin_calls(calls, compiler, pool)
    total = len(waiting)
    while waiting:
        part = format_part(total - len(waiting) + 1, total)
        call = waiting.pop(0)
        try:
            artifacts |= call.compile(compiler, pool, artifacts, part)
        except CompileError as error:
            if strict:
                refusal = call.refusal(compiler, error)
                kind = ResourceError if refusal.too_large else CompileError
                raise kind(str(refusal), refusal.nodes) from error
            if os.environ.get("BYOC_DEBUG"):
                traceback.print_exception(error)
            found = call.refusals(compiler, error)
            refusals += found
            if not found:  # compiled together and none named: compile one by one
                waiting = _begin_calls(_single_calls(call.regions), compiler, pool)
                total = len(waiting)
    return artifacts, refusals


def _begin_calls(
    calls: Sequence["_CodegenCall"], compiler: RegionCompiler, pool: CompilePool
) -> list["_CodegenCall"]:
    """Look calls up in the cache, begin the others where several go at a time, and return them all."""
    looked_up = [replace(call, known=call.look_up(compiler)) for call in calls]
    alone = (call for call in looked_up if not call.together and call.made_of is None)
    pool.begin([call.regions[0] for call in alone if call.known is None])
    return looked_up


@dataclass(frozen=True, eq=False)
class _CodegenCall:
    """One call of a codegen: its regions, and whether they are compiled together.

    `made_of` is the region of whose artifact that of the only region can be made. `known` is what the
    cache has of it: artifacts by region name, or the error of a refusal.
    """

    regions: tuple[Region, ...]
    together: bool
    made_of: Region | None = None
    known: Mapping[str, Artifact] | CompileError | None = None

    @property
    def display_name(self) -> str:
        return ", ".join(region.name for region in self.regions)

    def look_up(self, compiler: RegionCompiler) -> Mapping[str, Artifact] | CompileError | None:
        """Return the cached artifacts or refusal, None if nothing is cached."""
        try:
            return compiler.cache.find(self.regions, self.made_of)
        except CompileError as error:
            return error

    def compile(
        self,
        compiler: RegionCompiler,
        pool: CompilePool,
        artifacts: Mapping[str, Artifact],
        part: str,
    ) -> Mapping[str, Artifact]:
        """Return the artifacts by region name, those of the cache where it has them.

        `artifacts` are those of earlier calls; `part` says which of how many this is.
        """
        if isinstance(self.known, CompileError):
            raise self.known
        if self.known is not None:
            return self.known
        made = self._take_weights(compiler, pool, artifacts)
        if made is not None:
            found = {self.regions[0].name: made}
            compiler.cache.add(self.regions, found, self.made_of)
            return found
        report_step(f"compile {self.display_name} with {compiler.codegen.name}{part}")
        try:
            if self.together:
                found = compiler.compile_all(self.regions)
            else:
                found = {self.regions[0].name: pool.compile(self.regions[0])}
        except CompileError as error:
            compiler.cache.add_refusal(self.regions, error, self.made_of)
            raise
        compiler.cache.add(self.regions, found, self.made_of)
        return found

    def _take_weights(
        self, compiler: RegionCompiler, pool: CompilePool, artifacts: Mapping[str, Artifact]
    ) -> Artifact | None:
        """Return the only region's artifact made of another's, None where it has to be compiled."""
        if self.made_of is None or self.made_of.name not in artifacts:
            return None
        report_step(f"take the weights of {self.display_name} with {compiler.codegen.name}")
        return pool.take_weights(self.regions[0], self.made_of, artifacts[self.made_of.name])

    def refusals(self, compiler: RegionCompiler, error: CompileError) -> list[Refusal]:
        """Return the refusals of a failed call; none when any of several regions may be at fault."""
        if len(self.regions) == 1 or isinstance(error, ArtifactError):
            return [self.refusal(compiler, error)]
        whole = self.refusal(compiler, error)
        named = [
            (
                region.name,
                tuple(
                    n for n in resolve_node_names(region, error.nodes) if n in _name_positions(region)
                ),
            )
            for region in self.regions
        ]
        return [replace(whole, region=region, nodes=nodes) for region, nodes in named if nodes]

    def refusal(self, compiler: RegionCompiler, error: CompileError) -> Refusal:
        """Return the refusal of the call as a whole."""
        return Refusal(
            self.regions[0].target,
            compiler.codegen.name,
            error.region if isinstance(error, ArtifactError) else self.display_name,
            str(error),
            resolve_node_names(self.regions[0], error.nodes)
            if len(self.regions) == 1
            else tuple(error.nodes),
            isinstance(error, ResourceError),
            isinstance(error, CodegenFailedError),
            lasting=error.lasting,
            detail=error.detail,
        )


def _single_calls(
    regions: Sequence[Region], alike: Mapping[str, Region] | None = None
) -> list[_CodegenCall]:
    return [_CodegenCall((region,), False, (alike or {}).get(region.name)) for region in regions]


def _name_positions(region: Region) -> dict[str, tuple[int, int]]:
    """Map each name of a node or its outputs to (node number, position: 0 for the node's name)."""
    found: dict[str, tuple[int, int]] = {}
    for number, node in enumerate(region.nodes):
        for place, name in enumerate((node.name, *node.output)):
            if name:
                found.setdefault(name, (number, place))
    return found


def _refusals_of_identical(
    refusals: Sequence[Refusal], regions: Sequence[Region], same: Mapping[str, str]
) -> Iterator[Refusal]:
    """Yield the refusals of regions identical to a refused one, with nodes mapped by position."""
    of_name = {region.name: region for region in regions}
    for refusal in refusals:
        twins = [of_name[twin] for twin, first in same.items() if first == refusal.region]
        yield from spread_refusal(refusal, of_name[refusal.region], twins)


def spread_refusal(refusal: Refusal, region: Region, twins: Sequence[Region]) -> Iterator[Refusal]:
    """Yield the refusal of a region for those identical to it, with nodes mapped by position."""
    places = _name_positions(region)
    for twin in twins:
        there = list(twin.nodes)
        nodes = [
            (there[number].name, *there[number].output)[place]
            for number, place in (places[each] for each in refusal.nodes if each in places)
        ]
        whole = len(nodes) < len(refusal.nodes)
        yield replace(refusal, region=twin.name, nodes=() if whole else tuple(nodes))


@contextmanager
def _forbid_changes(regions: Sequence[Region]) -> Iterator[None]:
    """Raise ArtifactError for the first region whose file the codegen changed or removed inside."""
    before = [_file_digest(region) for region in regions]
    yield
    for region, digest in zip(regions, before, strict=True):
        if _file_digest(region) != digest:
            raise ArtifactError(f"it changed the file it was handed, {region.path.name}", region.name)


def _file_digest(region: Region) -> bytes | None:
    try:
        with region.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return None


def _check_file_names(artifact: Artifact) -> Artifact:
    """Return an artifact. Raises CodegenFailedError unless its files have plain, short names."""
    for name in artifact.files:
        if not is_plain_name(name):
            raise CodegenFailedError(f"{name!r} is not a plain file name for an artifact")
        if len(name.encode()) > _MAX_NAME_BYTES:
            raise CodegenFailedError(
                f"the file name {quote_name(name[:40])}... is longer than {_MAX_NAME_BYTES} bytes"
            )
    same = find_same_paths(artifact.files)
    if same is not None:
        raise CodegenFailedError(
            f"the files {' and '.join(map(quote_name, same))} are one on some systems"
        )
    return artifact
