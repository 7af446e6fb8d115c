"""Compiling regions: which calls a codegen gets, which at once, and what happens to refusals."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import onnx
import pytest
from helpers.support import parse

from byoc.bundle import RegionCompiler, compile_bundle, spread_refusal
from byoc.bundle import _compiling as module
from byoc.bundle._compiling import CompilePool, compile_regions, count_processors
from byoc.codegen import (
    Artifact,
    CompileError,
    Refusal,
    RefusedError,
    Region,
    ResourceError,
    read_region,
)
from byoc.errors import InputError

Compile = Callable[[Sequence[Region]], Mapping[str, Artifact]]


class Single:
    """Compiles a region by a function; notes those that it was asked for."""

    name = "acme"

    def __init__(self, answer: Callable[[Region], Artifact]) -> None:
        self.answer, self.asked = answer, list[Any]()

    def compile(self, region: Region, options: object) -> Artifact:
        self.asked.append(region.name)
        return self.answer(region)


class All(Single):
    """Compiles regions in one call, by another function."""

    def __init__(self, together: Compile, answer: Callable[[Region], Artifact]) -> None:
        super().__init__(answer)
        self.together = together

    def compile_all(self, regions: Sequence[Region], options: object) -> Mapping[str, Artifact]:
        self.asked.append([region.name for region in regions])
        return self.together(regions)


class Exchanging(Single):
    """Gives an artifact other weights, unless it is asked not to."""

    takes = True

    def take_weights(
        self, region: Region, first: Region, artifact: Artifact, options: object
    ) -> Artifact | None:
        self.asked.append((region.name, first.name))
        return Artifact({"code": artifact.files["code"] + b"+"}) if self.takes else None


def name_it(region: Region) -> Artifact:
    return Artifact({"code": region.name.encode()})


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Region]:
    def build(name: str, body: str, weight: float | None = None) -> Region:
        model = parse(f"g (float[4] x_{name}) => (float[4] y_{name}) {{ {body.replace('@', name)} }}")
        for number, node in enumerate(model.graph.node):
            node.name = f"{name}/{number}"
        if weight is not None:
            value = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [4], [weight] * 4)
            model.graph.initializer.append(value)
        onnx.save(model, tmp_path / f"{name}.onnx")
        return read_region(tmp_path / f"{name}.onnx", name, "dla")

    return build


THREE = {"a": "y_@ = Relu(x_@)", "b": "t_@ = Relu(x_@) y_@ = Sin(t_@)", "c": "y_@ = Cos(x_@)"}


@pytest.fixture
def three(make: Callable[..., Region]) -> list[Region]:
    return [make(name, body) for name, body in THREE.items()]


def test_regions_are_compiled_together_where_the_codegen_does(three: list[Region]) -> None:
    codegen = All(lambda regions: {each.name: name_it(each) for each in regions}, name_it)
    found = compile_regions(three, RegionCompiler(codegen, {}), strict=True, jobs=1)
    assert codegen.asked == [["a", "b", "c"]]
    assert {name: each.artifact.files["code"] for name, each in found.items()} == {
        "a": b"a",
        "b": b"b",
        "c": b"c",
    }
    assert [each.same_as for each in found.values()] == ["", "", ""]


def test_of_several_regions_those_are_refused_whose_nodes_are_named(three: list[Region]) -> None:
    def refuse(regions: Sequence[Region]) -> Mapping[str, Artifact]:
        raise ResourceError("too much", ["b/1", "y_c", "nobody"])

    codegen = All(refuse, name_it)
    with pytest.raises(RefusedError) as caught:
        compile_regions(three, RegionCompiler(codegen, {}), strict=False, jobs=1)
    assert [(each.region, each.nodes) for each in caught.value.refusals] == [
        ("b", ("b/1",)),
        ("c", ("y_c",)),
    ]
    for each in caught.value.refusals:
        assert (each.target, each.codegen, each.reason) == ("dla", "acme", "too much")
        assert (each.too_large, each.failed) == (True, False)
    with pytest.raises(ResourceError, match=r"^codegen acme: a, b, c: too much$"):
        compile_regions(three, RegionCompiler(codegen, {}), strict=True, jobs=1)


def test_where_none_is_named_they_are_compiled_one_by_one(
    three: list[Region], caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(regions: Sequence[Region]) -> Mapping[str, Artifact]:
        raise CompileError("some of them")

    def compile_most(region: Region) -> Artifact:
        if region.name == "b":
            raise CompileError("not b", ["b/0"])
        return name_it(region)

    codegen = All(refuse, compile_most)
    caplog.set_level(logging.INFO, "byoc")
    with pytest.raises(RefusedError) as caught:
        compile_regions(three, RegionCompiler(codegen, {}), strict=False, jobs=1)
    assert codegen.asked == [["a", "b", "c"], "a", "b", "c"]
    (refusal,) = caught.value.refusals
    assert (refusal.region, refusal.nodes, refusal.too_large) == ("b", ("b/0",), False)
    assert [record.message for record in caplog.records] == [
        "compile a, b, c with acme",
        *(f"compile {name} with acme ({number} of 3)" for number, name in enumerate("abc", 1)),
    ]


def test_an_artifact_that_is_wrong_names_its_region(three: list[Region]) -> None:
    def forget(regions: Sequence[Region]) -> Mapping[str, Artifact]:
        return {each.name: name_it(each) for each in regions[:2]}

    def misname(regions: Sequence[Region]) -> Mapping[str, Artifact]:
        return {each.name: Artifact({f"{'../' * (each.name == 'b')}x": b""}) for each in regions}

    def overwrite(regions: Sequence[Region]) -> Mapping[str, Artifact]:
        regions[0].path.write_bytes(b"")
        return {each.name: name_it(each) for each in regions}

    for together, region, reason in (
        (forget, "c", "compile_all gave no artifact for it"),
        (misname, "b", "'../x' is not a plain file name for an artifact"),
        (overwrite, "a", "it changed the file it was handed, a.onnx"),
    ):
        with pytest.raises(RefusedError) as caught:
            compile_regions(three, RegionCompiler(All(together, name_it), {}), strict=False, jobs=1)
        (refusal,) = caught.value.refusals
        assert (refusal.region, refusal.failed) == (region, True)
        assert reason in refusal.reason


def test_weights_are_exchanged_in_what_is_else_the_same(
    make: Callable[..., Region], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "byoc")
    body = "y_@ = Mul(x_@, w)"
    regions = [make("a", body, 1), make("b", body, 2), make("c", body, 1), make("d", "y_@ = Sin(x_@)")]
    codegen = Exchanging(name_it)
    found = compile_regions(regions, RegionCompiler(codegen, {}), strict=True, jobs=1)
    assert codegen.asked == ["a", ("b", "a"), "d"]
    assert [record.message for record in caplog.records] == [
        "compile a with acme (1 of 3)",
        "take the weights of b with acme",
        "compile d with acme (3 of 3)",
    ]
    assert [found[name].artifact.files["code"] for name in "abcd"] == [b"a", b"a+", b"a", b"d"]
    assert [found[name].same_as for name in "abcd"] == ["", "", "a", ""]
    codegen = Exchanging(name_it)
    codegen.parallel = True  # type: ignore[attr-defined]
    compile_regions(regions, RegionCompiler(codegen, {}), strict=True, jobs=3)
    assert sorted(map(str, codegen.asked)) == ["('b', 'a')", "a", "d"]  # nothing is compiled beside
    codegen = Exchanging(name_it)
    codegen.takes = False
    found = compile_regions(regions, RegionCompiler(codegen, {}), strict=True, jobs=1)
    assert codegen.asked == ["a", ("b", "a"), "b", "d"]
    assert found["b"].artifact.files["code"] == b"b"


@pytest.mark.parametrize("takes", [True, False])
def test_one_thread_at_a_time_calls_a_codegen_that_threads_do_not_share(
    takes: bool, make: Callable[..., Region], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither `take_weights` nor the `compile` behind it meets a region that is compiled beside it."""

    def refuse(isolation: object) -> None:
        raise InputError("no further process")

    monkeypatch.setattr(module, "Codegens", refuse)
    at_work, overlapping, called = threading.Lock(), list[str](), threading.Event()

    class Alone(Exchanging):
        def take_weights(self, region: Region, *given: Any) -> Artifact | None:
            return self.work(region, lambda: super(Alone, self).take_weights(region, *given))

        def compile(self, region: Region, options: object) -> Artifact:
            return self.work(region, lambda: super(Alone, self).compile(region, options))

        def work(self, region: Region, call: Callable[[], Any]) -> Any:
            if not at_work.acquire(blocking=False):
                overlapping.append(region.name)
                called.set()
                return call()
            if region.name == "c":
                called.wait(0.2)  # a call that does not wait for its turn comes meanwhile
            made = call()
            at_work.release()
            return made

    codegen = Alone(name_it)
    codegen.takes = takes
    regions = [make(name, "y_@ = Add(x_@, w)", weight) for name, weight in (("a", 1.0), ("b", 2.0))]
    found = compile_regions(
        [*regions, make("c", "y_@ = Cos(x_@)")], RegionCompiler(codegen, {}), True, 2
    )
    assert not overlapping
    assert {name: each.artifact.files["code"] for name, each in found.items()} == {
        "a": b"a",
        "b": b"a+" if takes else b"b",
        "c": b"c",
    }


@pytest.mark.parametrize("names", [["../a"], ["a" * 201], ["A", "a"]])
def test_a_codegen_that_names_files_badly_has_failed(
    names: list[str], make: Callable[..., Region]
) -> None:
    """It is no refusal of what the region is."""
    codegen = Single(lambda region: Artifact(dict.fromkeys(names, b"1")))
    with pytest.raises(RefusedError) as caught:
        compile_regions([make("a", "y_@ = Relu(x_@)")], RegionCompiler(codegen, {}), False, 1)
    assert [each.failed for each in caught.value.refusals] == [True]


def test_the_refusal_of_a_region_is_that_of_its_twins(make: Callable[..., Region]) -> None:
    body = "t_@ = Relu(x_@) u_@ = Sin(t_@) y_@ = Relu(u_@)"
    first, second, third = (make(name, body) for name in "abc")

    def refuse(region: Region) -> Artifact:
        raise CompileError("no", [f"{region.name}/1", f"y_{region.name}"])

    codegen = Single(refuse)
    with pytest.raises(RefusedError) as caught:
        compile_regions([first, second, third], RegionCompiler(codegen, {}), strict=False, jobs=1)
    assert codegen.asked == ["a"]
    assert [(each.region, each.nodes) for each in caught.value.refusals] == [
        (name, (f"{name}/1", f"y_{name}")) for name in "abc"
    ]
    refusal = Refusal("dla", "acme", "a", "no", ("a/0", "nobody"))
    (spread,) = spread_refusal(refusal, first, [third])
    assert (spread.region, spread.nodes) == ("c", ())  # one has no node that is its own
    (spread,) = spread_refusal(replace(refusal, nodes=()), first, [third])
    assert (spread.region, spread.nodes) == ("c", ())


def test_a_refusal_goes_to_its_own_twins_alone(make: Callable[..., Region]) -> None:
    bodies = {"a": "y_@ = Relu(x_@)", "b": "y_@ = Sin(x_@)", "c": "y_@ = Cos(x_@)"}
    regions = [
        make(name, bodies[name[0]].replace("@", name)) for name in ("b", "a", "a2", "c", "c2", "b2")
    ]

    def refuse(region: Region) -> Artifact:
        if region.name == "a":
            return name_it(region)
        raise CompileError(f"no {region.name}")

    with pytest.raises(RefusedError) as caught:
        compile_regions(regions, RegionCompiler(Single(refuse), {}), strict=False, jobs=1)
    assert [(each.region, each.reason) for each in caught.value.refusals] == [
        ("b", "no b"),
        ("c", "no c"),
        ("b2", "no b"),
        ("c2", "no c"),
    ]


def test_a_bundle_that_is_compiled_strictly_ends_at_the_first_refusal(
    make: Callable[..., Region], tmp_path: Path
) -> None:
    def refuse(region: Region) -> Artifact:
        raise CompileError(f"no {region.name}")

    regions = [make("a", "y_@ = Relu(x_@)"), make("b", "y_@ = Sin(x_@)")]
    codegen = Single(refuse)
    chosen = dict.fromkeys(("a", "b"), RegionCompiler(codegen, {}))
    with pytest.raises(CompileError, match=r"^codegen acme: a: no a$"):
        compile_bundle(tmp_path, regions, chosen)
    assert codegen.asked == ["a"]
    with pytest.raises(RefusedError) as caught:
        compile_bundle(tmp_path, regions, chosen, strict=False)
    assert [each.region for each in caught.value.refusals] == ["a", "b"]
    assert not (tmp_path / "artifacts").exists()


def test_what_was_compiled_in_one_round_is_found_in_the_next(make: Callable[..., Region]) -> None:
    """Also by what recovers; each compiles with options of its own."""
    codegen = Single(name_it)
    other = RegionCompiler(codegen, {"level": "2"})
    compiler = RegionCompiler(codegen, {}, recoveries=(other,))
    regions = [make("a", "y_@ = Relu(x_@)")]
    for number, each in enumerate((compiler, other), 1):
        for _ in range(2):
            compile_regions(regions, each, strict=True, jobs=1)
            compiler.index_added()
        assert codegen.asked == ["a"] * number
    renamed = [make("b", "y_@ = Relu(x_@)")]
    assert compile_regions(renamed, other, strict=True, jobs=1)["b"].artifact.files["code"] == b"b"


def test_without_a_number_of_jobs_processors_count_only_where_threads_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {4, 5, 9} if process == 0 else {1})
    assert count_processors() == 3
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: 7)
    assert count_processors() == 7
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert count_processors() == 1
    monkeypatch.setattr("os.cpu_count", lambda: 5)
    codegen = Single(name_it)
    assert CompilePool(RegionCompiler(codegen, {}), None)._jobs == 1
    codegen.parallel = True  # type: ignore[attr-defined]
    assert CompilePool(RegionCompiler(codegen, {}), None)._jobs == 5
    assert CompilePool(RegionCompiler(codegen, {}), 2)._jobs == 2


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


def make_pool(compiler: Compiler, jobs: int) -> CompilePool:
    return CompilePool(cast("RegionCompiler", compiler), jobs)


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
