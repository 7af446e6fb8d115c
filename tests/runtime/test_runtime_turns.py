"""An executor is somebody else's code: one thread at a time is in it, unless it says otherwise."""

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.cutting import DEVICE_ONLY, cut, ramp
from helpers.support import parse

from byoc.bundle import open_bundle
from byoc.codegen import Artifact, Region
from byoc.errors import InputError
from byoc.runtime import load_executor


class Watched:
    """Doubles its inputs in a while, and counts the threads that are in it."""

    name = "watched"

    def __init__(self, output: Any = None) -> None:
        self.output = output
        self.inside = self.most = 0

    def load(self, region: Region, artifact: Artifact) -> Any:
        def run(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
            self.inside += 1
            self.most = max(self.most, self.inside)
            threading.Event().wait(0.02)
            self.inside -= 1
            x = next(iter(inputs.values()))
            return {region.outputs[0].name: 2 * x if self.output is None else self.output}

        return run


class Concurrent(Watched):
    """Waits inside for a second thread."""

    concurrent = True

    def __init__(self) -> None:
        super().__init__()
        self.both = threading.Barrier(2)

    def load(self, region: Region, artifact: Artifact) -> Any:
        def run(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
            self.both.wait(60)
            return {region.outputs[0].name: next(iter(inputs.values()))}

        return run


@pytest.fixture
def region(tmp_path: Path) -> Region:
    cut(parse(DEVICE_ONLY), tmp_path / "b")
    ((_, found, _),) = open_bundle(tmp_path / "b").regions()
    return found


def test_one_thread_at_a_time(region: Region) -> None:
    codegen = Watched()
    runs = [load_executor(codegen, "watched", region, Artifact()) for _ in range(2)]
    name = region.inputs[0].name
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: runs[i % 2]({name: ramp(1, 4) * i}), range(8)))
    assert codegen.most == 1
    for i, outputs in enumerate(found):
        assert np.array_equal(outputs[region.outputs[0].name], 2 * (ramp(1, 4) * i))


def test_two_at_once_where_it_says_so(region: Region) -> None:
    run = load_executor(Concurrent(), "meeting", region, Artifact())
    name = region.inputs[0].name
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda i: run({name: ramp(1, 4) * i}), range(2)))
    assert [float(each[region.outputs[0].name][0, 3]) for each in found] == [0.0, 0.3125]


@pytest.mark.parametrize("open_shapes", [None, False, True])
def test_inputs_of_other_extents_come_where_it_takes_them(
    open_shapes: bool | None, region: Region
) -> None:
    codegen = Watched(ramp(1, 4))
    if open_shapes is not None:
        codegen.open_shapes = open_shapes  # type: ignore[attr-defined]
    run = load_executor(codegen, "watched", region, Artifact())
    inputs = {region.inputs[0].name: ramp(1, 5)}
    if open_shapes:
        assert np.array_equal(run(inputs)[region.outputs[0].name], ramp(1, 4))
        return
    with pytest.raises(
        InputError, match=r"is float32\[1, 5\], but dla_0 is compiled for float32\[1, 4\]"
    ):
        run(inputs)
    assert codegen.most == 0


def test_what_it_gives_is_contiguous_and_held_to_its_type(region: Region) -> None:
    name = region.inputs[0].name
    wide = np.arange(8, dtype=np.float32).reshape(1, 8)[:, ::2]
    given = load_executor(Watched(wide), "watched", region, Artifact())({name: ramp(1, 4)})
    (made,) = given.values()
    assert made.flags.c_contiguous
    assert made.tolist() == [[0, 2, 4, 6]]
    with pytest.raises(InputError, match=r"float64\[1, 4\], but it is declared float32\[1, 4\]"):
        load_executor(Watched(np.zeros((1, 4))), "watched", region, Artifact())({name: ramp(1, 4)})
