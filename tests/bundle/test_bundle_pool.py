"""Several regions at a time: how many are compiled at once, by whom, and what becomes of the rest."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from byoc.bundle import _compiling as module
from byoc.bundle._compiling import CompilePool
from byoc.codegen import Artifact, Codegen, Region
from byoc.errors import InputError

WAIT = 60
"""Seconds after which a test gives up."""


def list_regions(count: int) -> list[Region]:
    return [cast("Any", SimpleNamespace(name=f"r{number}")) for number in range(count)]


@dataclass
class Compiler:
    """Notes what it compiles, and how many of all compilers are at work at once."""

    codegen: Any
    wait: Callable[[str], object] = lambda _: None
    done: list[tuple[str, str]] = field(default_factory=list)

    def compile(self, region: Region) -> Artifact:
        self.wait(region.name)
        self.done.append((self.codegen.name, region.name))
        return Artifact({"code": region.name.encode()})


def make_pool(compiler: Compiler, jobs: int) -> CompilePool[Compiler]:
    def with_codegen(codegen: Codegen) -> Compiler:
        return Compiler(codegen, compiler.wait, compiler.done)

    return CompilePool(compiler, jobs, with_codegen)


def codegen(name: str = "acme", parallel: bool = True) -> Any:
    return SimpleNamespace(name=name, parallel=parallel)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The codegens that were started in processes, `-` for each that was ended."""
    names: list[str] = []

    class Codegens:
        def __init__(self, isolation: object) -> None:
            assert isolation == "limits"

        def find(self, name: str) -> Any:
            names.append(f"{name}{len(names)}")
            return codegen(names[-1])

        def close(self) -> None:
            names.append("-")

    monkeypatch.setattr(module, "Codegens", Codegens)
    monkeypatch.setattr(module, "choose_worker_isolation", lambda _: "limits")
    return names


@pytest.mark.parametrize(("jobs", "count"), [(1, 4), (4, 1), (4, 0)])
@pytest.mark.parametrize("parallel", [True, False])
def test_one_at_a_time_nothing_is_begun(
    jobs: int, count: int, parallel: bool, started: Sequence[str]
) -> None:
    compiler = Compiler(codegen(parallel=parallel))
    with make_pool(compiler, jobs) as pool:
        pool.begin(list_regions(count))
        assert not compiler.done
        assert pool.compile(list_regions(1)[0]).files == {"code": b"r0"}
        assert pool._threads is None
    assert (compiler.done, started) == ([("acme", "r0")], [])


@pytest.mark.parametrize(("jobs", "count", "at_once"), [(2, 2, 2), (3, 6, 3), (9, 4, 4)])
def test_so_many_are_compiled_at_once(jobs: int, count: int, at_once: int) -> None:
    """Each waits until so many are at work; no other is then."""
    meeting, lock, working = threading.Barrier(at_once), threading.Lock(), [0]

    def wait(_: str) -> None:
        with lock:
            working[0] += 1
            assert working[0] <= at_once
        meeting.wait(WAIT)
        with lock:
            working[0] -= 1
        meeting.wait(WAIT)

    regions = list_regions(count)
    with make_pool(Compiler(codegen(), wait), jobs) as pool:
        pool.begin(regions)
        for region in regions:
            assert pool.compile(region).files == {"code": region.name.encode()}
        assert pool._begun == {}
        assert pool._free.qsize() == at_once


def test_of_a_codegen_that_threads_do_not_share_there_are_further_processes(
    started: list[str],
) -> None:
    meeting = threading.Barrier(3)
    compiler = Compiler(codegen(parallel=False), lambda _: meeting.wait(WAIT))
    regions = list_regions(3)
    with make_pool(compiler, 3) as pool:
        pool.begin(regions)
        for region in regions:
            pool.compile(region)
        meeting.reset()
        pool.begin(regions)  # of another round: by those that are there
        for region in regions:
            pool.compile(region)
        assert sorted(started) == ["acme0", "acme1"]
        assert pool._threads is not None
        assert pool._threads._max_workers == 3 + 2  # what starts a process keeps no job waiting
        assert {name for name, _ in compiler.done} == {"acme", "acme0", "acme1"}
        assert pool._free.qsize() == 3
    assert started[2:] == ["-", "-"]


def test_where_no_process_starts_the_codegen_does_all(
    started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise InputError("no more processes")

    monkeypatch.setattr(module, "Codegens", refuse)
    compiler = Compiler(codegen(parallel=False))
    with make_pool(compiler, 3) as pool:
        pool.begin(list_regions(4))
        for region in list_regions(4):
            pool.compile(region)
    assert compiler.done == [("acme", f"r{number}") for number in range(4)]  # in order


def test_at_the_end_what_runs_is_awaited_and_what_waits_is_dropped(started: list[str]) -> None:
    begun, end = threading.Event(), threading.Event()

    def wait(name: str) -> None:
        begun.set()
        assert end.wait(WAIT)
        assert "-" not in started  # the processes end after what they compile

    compiler = Compiler(codegen(), wait)
    pool = make_pool(compiler, 2)
    pool.begin(list_regions(40))
    begun.wait(WAIT)
    threading.Timer(0.05, end.set).start()
    pool.__exit__(None, None, None)
    finished = len(compiler.done)
    assert 1 <= finished < 40
    assert all(future.done() for future in pool._begun.values())
    assert sum(not future.cancelled() for future in pool._begun.values()) == finished


def test_an_error_is_that_of_its_region_and_the_compiler_is_free_again() -> None:
    def refuse(name: str) -> None:
        if name == "r1":
            raise InputError(name)

    regions = list_regions(5)
    with make_pool(Compiler(codegen(), refuse), 2) as pool:
        pool.begin(regions)
        for region in regions:
            if region.name == "r1":
                with pytest.raises(InputError, match=r"^r1$"):
                    pool.compile(region)
            else:
                assert pool.compile(region).files == {"code": region.name.encode()}
        assert pool._free.qsize() == 2
