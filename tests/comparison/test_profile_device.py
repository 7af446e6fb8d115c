"""Measuring a codegen unit by unit: the units cut out, the launch, and what cannot be measured."""

import threading
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import onnx
import pytest
from clocks import Clock
from comparison_parts import (
    MeasuredCodegen,
    MeasurementRecords,
    describe_machine,
    measure_copies,
    measure_launch,
    measure_slowdown,
    time_pair,
    time_units,
    time_whole,
)
from helpers.support import prepared
from helpers.vendors import CompileOnly

from byoc.codegen import Artifact, CompileError, Cycles, Executor, Region, find_codegen
from byoc.comparison import Patience
from byoc.costs import MeasuredWhole
from byoc.rules import Target, load_rules

TEXT = """
g (float[1, 8] x) => (float[1, 8] y) <float[8] w = {0, 1, 2, 3, 4, 5, 6, 7}> {
  a = Add (x, w)
  b = Relu (a)
  c = Add (b, w)
  d = Relu (c)
  y = Tanh (d)
}
"""
PATIENCE = Patience(warmup=1, least=2, most=2, seconds=0.0)
SECONDS = {"Add": 7.0, "Relu": 5.0, "add_relu": 9.0, "small": 2.0}
RULES = """
target: acc
codegen: taking
cost_model: dla
dtype: float32
ops: [{op: [Add, Relu]}]
composites: [{name: add_relu, pattern: "a = Add(x, w)\\ny = Relu(a)"}]
"""


class Taking:
    """A codegen whose regions take as long as `SECONDS` says, by what is in them."""

    name = "taking"

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.ran: list[str] = []

    def compile(self, region: Region, options: Mapping[str, str]) -> Artifact:
        nodes = region.load().graph.node
        (op,) = (node.op_type for node in nodes)
        if region.name == "small" and op != "Relu":
            raise CompileError("too small")
        if op not in SECONDS:
            raise CompileError(f"no {op} here")
        return Artifact(metadata={"op": "small" if region.name == "small" else op})

    def load(self, region: Region, artifact: Artifact) -> Executor:
        op = artifact.metadata["op"]

        def run(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
            self.ran.append(op)
            self.clock.now += SECONDS[op]
            shapes = {v.name: v.type.shape for v in region.outputs}
            return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}  # type: ignore[arg-type]

        return run


def device(codegen: Any = None) -> MeasuredCodegen:
    clock = Clock()
    return MeasuredCodegen(codegen or Taking(clock), {}, PATIENCE, clock if codegen is None else Clock())


def rules(folder: Path) -> Target:
    (folder / "acc.yaml").write_text(RULES)
    return load_rules(str(folder / "acc.yaml"))


def rows(records: MeasurementRecords, start: float = 0.0) -> dict[str, float]:
    table = records.make_table("acc", "", describe_machine(), launch=start)
    return {entry.op: entry.seconds for entry in table.entries}


def test_each_operator_is_measured_once_and_refusals_have_reasons() -> None:
    records, measuring = MeasurementRecords(), device()
    problems = time_units(prepared(TEXT), None, measuring, records)
    assert rows(records) == {"Add": 7.0, "Relu": 5.0}
    assert problems == ["Tanh on float32[1, 8] -> float32[1, 8]: no Tanh here"]
    # A run that is checked, one to warm up, and two that count.
    assert measuring.codegen.ran == ["Add"] * 4 + ["Relu"] * 4  # type: ignore[attr-defined]
    assert time_units(prepared(TEXT), None, measuring, records) == problems  # nothing is measured twice
    assert len(measuring.codegen.ran) == 8  # type: ignore[attr-defined]


class Thinking(Taking):
    """The same, whose compiler says what a region takes: 10 cycles for an operation, and a launch."""

    def estimate(self, region: Region, options: Any, artifact: Artifact) -> Cycles:
        return Cycles(10 * len(region.load().graph.node) + 1, 10.0)


def test_nothing_runs_where_the_compiler_estimates(tmp_path: Path) -> None:
    records, measuring = MeasurementRecords(), device(Thinking(Clock()))
    assert time_units(prepared(TEXT), None, measuring, records) == [
        "Tanh on float32[1, 8] -> float32[1, 8]: no Tanh here"
    ]
    assert rows(records) == {"Add": 1.1, "Relu": 1.1}
    assert measure_launch(measuring, records) == 1.1
    assert measuring.codegen.ran == []  # type: ignore[attr-defined]


def test_composites_are_measured_whole(tmp_path: Path) -> None:
    records = MeasurementRecords()
    assert time_units(prepared(TEXT), rules(tmp_path), device(), records) == []
    table = records.make_table("acc", "", describe_machine())
    assert [(entry.op, entry.types, entry.seconds) for entry in table.entries] == [
        ("add_relu", "float32[1, 8], float32[8] -> float32[1, 8]", 9.0)
    ]


def test_a_launch_is_the_cheapest_region_and_no_part_of_an_operator() -> None:
    records, measuring = MeasurementRecords(), device()
    time_units(prepared(TEXT), None, measuring, records)
    start = measure_launch(measuring, records)
    assert start == 2.0
    assert rows(records, start) == {"Add": 5.0, "Relu": 3.0}


def test_without_a_small_region_what_was_measured_counts() -> None:
    class Large(Taking):
        def compile(self, region: Region, options: Mapping[str, str]) -> Artifact:
            raise RuntimeError("no licence")

    records = MeasurementRecords()
    assert measure_launch(device(Large(Clock())), records) == 0.0
    time_units(prepared(TEXT), None, device(), records)
    assert measure_launch(device(Large(Clock())), records) == 5.0
    problems = time_units(prepared(TEXT), None, device(Large(Clock())), MeasurementRecords())
    assert "failed with RuntimeError: no licence (test_profile_device.py:" in problems[0]


def test_a_codegen_that_cannot_run_its_artifacts() -> None:
    problems = time_units(prepared(TEXT), None, device(CompileOnly()), MeasurementRecords())
    assert problems[0].endswith(
        "codegen compileonly cannot run what it compiles here (it has no `load`)"
    )


def test_copies_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 KiB take 1 s and 16 MiB take 3 s: the rest moves at the difference over 2 s."""
    clock = Clock()

    def copyto(destination: Any, source: Any) -> None:
        clock.now += 1.0 if source.nbytes == 2**12 else 3.0

    monkeypatch.setattr(np, "copyto", copyto)
    link = measure_copies(PATIENCE, clock)
    assert link.latency == 1.0
    assert link.bandwidth == (2**24 - 2**12) / 2


def test_weights_come_along(tmp_path: Path) -> None:
    """A unit's large constants are in its folder, as in a bundle."""
    seen = []

    class Looking(Taking):
        def compile(self, region: Region, options: Mapping[str, str]) -> Artifact:
            (weight,) = region.load().graph.initializer
            seen.append(onnx.numpy_helper.to_array(weight).sum())
            return super().compile(region, options)

    text = "g (float[64, 64] x, float[64, 64] w) => (float[64, 64] y) { y = Add (x, w) }"
    model = prepared(text)
    weight = onnx.numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    del proto.graph.input[1]
    proto.graph.initializer.append(weight)
    from byoc.model import prepare_model  # noqa: PLC0415

    assert (
        time_units(prepare_model(proto, "test"), None, device(Looking(Clock())), MeasurementRecords())
        == []
    )
    assert seen == [4096.0]


def test_a_whole_is_measured_as_one_region(tmp_path: Path) -> None:
    host = MeasuredCodegen(find_codegen("reference"), {}, PATIENCE, perf_counter)
    model = prepared(TEXT)
    whole = time_whole(model, None, host)
    assert isinstance(whole, MeasuredWhole)
    assert [task.op for task in whole.tasks] == ["Add", "Relu", "Add", "Relu", "Tanh"]
    assert whole.seconds > 0
    assert time_whole(model, rules(tmp_path), device()) == (
        "not measured as a whole: taking cannot run all of it as one"
    )


def test_a_device_beside_another_takes_longer_by_a_counted_clock() -> None:
    """Alone a run takes 4, beside the thread of the other one 6."""
    runs: list[int] = []
    others = threading.active_count()

    def measure() -> list[float]:
        return [6.0 if threading.active_count() > others else 4.0] * 3

    assert measure_slowdown(measure, lambda: runs.append(1)) == 1.5
    assert len(runs) >= 3
    assert measure_slowdown(lambda: [2.0], lambda: None) == 1.0
    assert measure_slowdown(lambda: [0.0], lambda: None) == 1.0

    def fails() -> None:
        raise ValueError("it stopped")

    with pytest.raises(ValueError, match="it stopped"):
        measure_slowdown(lambda: [2.0], fails)


def test_a_pair_of_the_host_and_a_codegen(tmp_path: Path) -> None:
    host = MeasuredCodegen(find_codegen("reference"), {}, PATIENCE, perf_counter)
    pair = time_pair(prepared(TEXT), None, host, host)
    assert isinstance(pair, tuple)
    assert min(pair) >= 1
    assert time_pair(prepared(TEXT), rules(tmp_path), device(), host) == (
        "no pair: taking cannot run all of it as one"
    )
