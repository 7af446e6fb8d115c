"""Regions compiled several at a time: the same bundle, the same refusals, by threads or processes."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers import vendors
from helpers.cutting import cut, files, without_what_ifs
from helpers.noting_vendor import Vendor
from helpers.support import parse

from byoc.codegen import Artifact, CompileError, Region
from byoc.errors import InputError

# Four regions that all differ.
FOUR = """
four (float[1, 4] x) => (float[1, 4] y) {
  a = Relu(x)
  b = Sigmoid(a)
  c = Add(b, b)
  d = Sigmoid(c)
  e = Relu(d)
  f = Add(e, e)
  g = Sigmoid(f)
  h = Add(g, g)
  y = Add(h, g)
}
"""


def make_bundle(folder: Path, **options: Any) -> dict[str, bytes]:
    """Cut the model without a cache; return the files of its bundle."""
    with without_what_ifs():
        cut(parse(FOUR), folder, cache=False, verify=False, **options)
    return files(folder)


class Meeting:
    """Says that threads may call it, and waits until two do."""

    name = "meeting"
    parallel = True
    together: threading.Barrier

    def compile(self, region: Region, options: Mapping[str, str]) -> Artifact:
        self.together.wait(timeout=1200)
        return Artifact({"code.bin": region.name.encode()})


def test_threads_share_a_codegen_that_bears_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vendors.install(monkeypatch, meeting=Meeting)
    Meeting.together = threading.Barrier(2)
    bundle = make_bundle(tmp_path / "b", codegen="meeting", jobs=2)
    names = [name for name in bundle if name.endswith("code.bin")]
    assert len(names) == 4
    for name in names:
        assert bundle[name].decode() == name.split("/")[1]


class Alone:
    """Fails when two threads call it at once, and counts its calls."""

    name = "alone"
    calls: list[str]
    lock = threading.Lock()

    def compile(self, region: Region, options: Mapping[str, str]) -> Artifact:
        assert self.lock.acquire(blocking=False)
        self.calls.append(region.name)
        self.lock.release()
        return Artifact({"code.bin": region.name.encode()})


@pytest.mark.parametrize("jobs", [None, 1, 3])
def test_no_other_codegen_is_called_by_two_threads(
    jobs: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.install(monkeypatch, alone=Alone)  # no other process finds it
    Alone.calls = []
    bundle = make_bundle(tmp_path / "b", codegen="alone", jobs=jobs)
    assert sorted(Alone.calls) == ["dla_0", "dla_1", "dla_2", "dla_3"]
    assert len([name for name in bundle if name.endswith("code.bin")]) == 4


@pytest.mark.parametrize("codegen", ["dla", "c"])
def test_the_bundle_does_not_depend_on_the_number_of_jobs(codegen: str, tmp_path: Path) -> None:
    if codegen == "c":
        pytest.importorskip("emx_onnx_cgen")
    one, three = (make_bundle(tmp_path / str(n), codegen=codegen, jobs=n) for n in (1, 3))
    assert one == three


def test_processes_compile_what_threads_cannot(
    vendor: Vendor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    _, compiled = vendor.cut(parse(FOUR), tmp_path / "b", jobs=3)
    assert sorted(compiled) == ["dla_0", "dla_1", "dla_2", "dla_3"]
    assert vendor.cut(parse(FOUR), tmp_path / "b", jobs=3)[1] == []
    assert vendor.cut(parse(FOUR), tmp_path / "b", jobs=1)[1] == []
    assert make_bundle(tmp_path / "one", codegen="noting", isolate=True, jobs=1) == make_bundle(
        tmp_path / "two", codegen="noting", isolate=True, jobs=2
    )


class Refusing:
    """Refuses all regions but the first, each with its name."""

    name = "refusing"
    parallel = True

    def compile(self, region: Region, options: Mapping[str, str]) -> Artifact:
        if region.name == "dla_0":
            return Artifact()
        raise CompileError(f"no {region.name}", [region.nodes[0].name or region.nodes[0].output[0]])


def test_refusals_are_those_of_one_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vendors.install(monkeypatch, refusing=Refusing)
    told = []
    for jobs in (1, 4):
        with without_what_ifs():
            result = cut(
                parse(FOUR), tmp_path / "b", codegen="refusing", jobs=jobs, strict=False, verify=False
            )
        told.append([refusal.reason for refusal in result.report.refusals])
        with pytest.raises(InputError, match="codegen refusing: dla_1: no dla_1"):
            make_bundle(tmp_path / "s", codegen="refusing", jobs=jobs)
    assert told[0] == told[1]
    assert len(told[0]) >= 3


@pytest.mark.parametrize("jobs", [0, -1])
def test_a_number_of_jobs_that_is_none(jobs: int, tmp_path: Path, byoc: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match=f"jobs: {jobs} is not a number of at least 1"):
        make_bundle(tmp_path / "b", jobs=jobs)
    assert byoc("partition", "m.onnx", "--rules", "dla", "--jobs", jobs).code == 2
