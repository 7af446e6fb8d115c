"""Bundles whose regions run by drivers in C in byoc's own runtime: what crosses, threads, faults."""

import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.support import parse

import byoc
from byoc.bundle import Bundle, open_bundle
from byoc.codegen import find_codegen
from byoc.codegen.drivers import build_driver
from byoc.errors import InputError
from byoc.runtime import (
    DriverExecutor,
    RegionDrivers,
    Session,
    Trace,
    load_on_executors,
    load_with_drivers,
    use_drivers,
)

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
# `t` and `v` pass between regions alone; `a` and `w` the host reads, too, and `y` the caller.
ROW = """row (float[1, 3, 8, 8] x) => (float[1, 3, 8, 8] y, float[1, 3, 8, 8] z) {
  a = Relu(x)
  t = Tanh(a)
  s = Softsign(a)
  w = Add(t, s)
  v = Sigmoid(w)
  q = Softsign(w)
  y = Mul(v, q)
  z = Softsign(y)
}"""
BYTES = 3 * 8 * 8 * 4


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_driver(find_codegen("dla").driver(), tmp_path_factory.mktemp("driver") / "dla.so")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("row") / "b"
    byoc.partition(parse(ROW), "dla", output=folder, strategy="all-supported")
    return open_bundle(folder, None)


def open_executors(bundle: Bundle, library: Path) -> Mapping[str, DriverExecutor]:
    with use_drivers({"dla": library}):
        return RegionDrivers(bundle).open_regions()


def make_input(seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    return {"x": np.random.default_rng(seed).standard_normal((1, 3, 8, 8)).astype(np.float32)}


def test_what_passes_between_regions_does_not_cross(bundle: Bundle, library: Path) -> None:
    executors = open_executors(bundle, library)
    session = load_on_executors(bundle, executors)
    trace = Trace()
    found = session.run(make_input(), trace)
    expected = byoc.load(bundle.folder)(make_input())
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-6)
    counted = {name: executor.read_counters() for name, executor in executors.items()}
    first, second, third = (counted[stage.name] for stage in session.stages if stage.device == "dla")
    crossing = [
        (each.bytes_from_program // BYTES, each.bytes_to_program // BYTES, each.bytes_on_device // BYTES)
        for each in (first, second, third)
    ]
    assert crossing == [(1, 1, 1), (1, 1, 2), (1, 1, 1)]
    events = [event for event in trace.events if event.device == "dla"]
    assert [(each.bytes_read // BYTES, each.bytes_made // BYTES) for each in events] == [(1, 1)] * 3


def test_tensors_that_stay_on_the_device_can_be_asked_for(bundle: Bundle, library: Path) -> None:
    session = load_on_executors(bundle, open_executors(bundle, library))
    plain = byoc.load(bundle.folder)
    assert isinstance(plain, Session)
    expected = plain.tensors(make_input())
    found = session.tensors(make_input())
    assert {"t", "v"} <= found.keys() == expected.keys()
    for name, value in expected.items():
        assert isinstance(found[name], np.ndarray)
        np.testing.assert_allclose(found[name], value, atol=1e-6)


def test_calls_at_once_do_not_mix_their_tensors(bundle: Bundle, library: Path) -> None:
    session = load_on_executors(bundle, open_executors(bundle, library))
    expected = [session(make_input(seed)) for seed in range(6)]

    def work(seed: int) -> bool:
        found = session(make_input(seed % 6))
        return all(np.array_equal(found[name], value) for name, value in expected[seed % 6].items())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(60)))
    in_turn = session.run_pipeline([make_input(seed) for seed in range(6)], in_flight=3)
    for found, wanted in zip(in_turn, expected, strict=True):
        for name, value in wanted.items():
            np.testing.assert_array_equal(found[name], value)


def test_a_driver_without_buffers_passes_tensors_through_the_host(bundle: Bundle, library: Path) -> None:
    executors = open_executors(bundle, library)
    for executor in executors.values():
        executor.library.functions.pop("open_buffer", None)
    session = load_on_executors(bundle, executors)
    session(make_input())
    counted = [executor.read_counters() for executor in executors.values()]
    assert [each.bytes_on_device for each in counted] == [0, 0, 0]
    assert sum(each.bytes_from_program for each in counted) == 5 * BYTES


def test_options_and_what_is_wrong(bundle: Bundle, library: Path) -> None:
    with use_drivers({"dla": library}):
        session = load_with_drivers(bundle, options={"dla": {"priority": "low", "cores": "1"}})
        assert session(make_input())["y"].any()
        with pytest.raises(InputError, match=r"driver dla: dla_\w+: option priority: low, normal or"):
            load_with_drivers(bundle, options={"dla": {"priority": "none"}})
    with pytest.raises(InputError, match="input 'x' is float64"):
        session({"x": np.zeros((1, 3, 8, 8))})


def test_a_bundle_is_verified_as_its_drivers_run_it(bundle: Bundle, library: Path) -> None:
    verified = byoc.verify(bundle, runtime="drivers", drivers={"dla": library})
    assert verified.passed
    assert len(verified.regions) == 3
