"""Calls a second of a bundle on host, dla, host by drivers in C: in sequence, and several in flight.

    python benchmarks/driver_pipeline.py [--calls N] [--rounds N] [--clock PERCENT]

The host's convolutions run on one thread of onnxruntime, and the region by the driver of dla in C,
which works on one processor; both wait outside of Python. The network is made so that its region takes
about as long as the host. Sequences and pipelines take turns; ratios are those of neighbours by the wall
clock: the median, and the least and the greatest in brackets. `at work` is how many stages were running
on the average.

`two processes` is what the machine allows: two processes that know nothing of one another each do the
whole sequence, and their calls are counted together. Two processors that share caches and memory, or
that others use, do less than twice the calls of one; `of two processes` is a pipeline's share of that,
round by round. With `--clock 10` the device rests nine tenths of its time, as one does that leaves the
processors to the host, and the host has ten times the layers: one processor is enough then, and two
processes do more than a pipeline, which has one device.
"""

import argparse
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
from common import machine
from onnx import ModelProto, TensorProto, helper, numpy_helper

import byoc
from byoc.bundle import open_bundle
from byoc.codegen import find_codegen
from byoc.codegen.drivers import build_driver
from byoc.onnxrt import with_threads
from byoc.runtime import Session, Trace, load_with_drivers, use_drivers

_CHANNELS, _SIDE = 32, 48
_HOST_LAYERS, _REGION_LAYERS = 12, 1
_IN_FLIGHT = (2, 3, 4)


def make_network(clock: int) -> ModelProto:
    """Return a network whose middle dla takes; convolutions dilated by 5, as the others, it does not."""
    random = np.random.default_rng(0)
    nodes, weights = [], []
    before = "x"

    def add_layers(count: int, part: str) -> None:
        nonlocal before
        for number in range(count):
            name = f"{part}_{number}"
            side, reach = (1, 0) if part == "region" else (3, 5)  # dla takes dilations of up to 4
            kernel = random.standard_normal((_CHANNELS, _CHANNELS, side, side)).astype(np.float32)
            kernel /= np.float32(side * _CHANNELS**0.5)
            weights.append(numpy_helper.from_array(kernel, f"{name}_w"))
            nodes.append(
                helper.make_node(
                    "Conv",
                    [before, f"{name}_w"],
                    [name],
                    pads=[reach] * 4,
                    dilations=[max(reach, 1)] * 2,
                )
            )
            before = name

    at_ends = _HOST_LAYERS * 100 // clock
    add_layers(at_ends, "first")
    add_layers(_REGION_LAYERS, "region")
    add_layers(at_ends, "last")
    shape = [1, _CHANNELS, _SIDE, _SIDE]
    graph = helper.make_graph(
        nodes,
        "pipeline",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(before, TensorProto.FLOAT, shape)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def write_bundle(folder: Path, clock: int) -> None:
    """Partition the network, and build the driver of its region."""
    byoc.partition(
        make_network(clock),
        "dla",
        output=folder / "b",
        strategy="all-supported",
        verify=False,
        cache=False,
    )
    build_driver(find_codegen("dla").driver(), folder / "dla.so", flags=("-O3",))


def open_session(folder: Path, clock: int) -> Session:
    """Load the bundle of a folder with its region on the driver in C."""
    with use_drivers({"dla": folder / "dla.so"}), with_threads(1):
        bundle = open_bundle(folder / "b", None)
        return load_with_drivers(bundle, options={"dla": {"clock": str(clock)}})


def make_input() -> Mapping[str, Any]:
    """Return an input of the network."""
    shape = (1, _CHANNELS, _SIDE, _SIDE)
    return {"x": np.random.default_rng(1).standard_normal(shape).astype("f4")}


def serve_calls(connection: Connection, folder: Path, clock: int) -> None:
    """Do the sequence whenever another process sends how many calls; answer when ready and when done."""
    session, given = open_session(folder, clock), make_input()
    session.run(given)
    connection.send(None)
    while calls := connection.recv():
        time_calls(session, given, calls, 1)
        connection.send(None)


@contextmanager
def second_process(folder: Path, clock: int) -> Iterator[Connection]:
    """Give a connection to another process that does the same sequence, ready to begin."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve_calls, args=(theirs, folder, clock))
    process.start()
    try:
        ours.recv()
        yield ours
        ours.send(0)
    finally:
        process.join(10)
        process.kill()


def time_both(other: Connection, session: Session, given: Mapping[str, Any], calls: int) -> float:
    """Return the seconds in which two processes do so many calls each."""
    start = perf_counter()
    other.send(calls)
    time_calls(session, given, calls, 1)
    other.recv()
    return perf_counter() - start


def measure_load(session: Session, given: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the seconds of a call by device, of the fastest of three."""
    found: dict[str, float] = {}
    for _ in range(3):
        trace = Trace()
        session.run(given, trace)
        load: dict[str, float] = defaultdict(float)
        for event in trace.events:
            load[event.device] += event.seconds
        found = {device: min(seconds, found.get(device, seconds)) for device, seconds in load.items()}
    return found


def time_calls(
    session: Session, given: Mapping[str, Any], calls: int, in_flight: int
) -> tuple[float, float]:
    """Return the seconds of so many calls, by the wall clock, and how many stages were at work."""
    trace = Trace()
    start = perf_counter()
    if in_flight == 1:
        for _ in range(calls):
            session.run(given, trace)
    else:
        for _ in session.run_pipeline([given] * calls, in_flight, trace):
            pass
    seconds = perf_counter() - start
    return seconds, sum(event.seconds for event in trace.events) / seconds


def describe_ratios(ratios: list[float]) -> str:
    """Return the median, and the least and the greatest."""
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def main(calls: int, rounds: int, clock: int) -> None:
    """Print how many calls a second there are."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_bundle(folder, clock)
        session, given = open_session(folder, clock), make_input()
        print(
            f"{machine()}, load {os.getloadavg()[0]:.1f}, {calls} calls, {rounds} rounds, "
            f"clock {clock} %"
        )
        print("stages: " + ", ".join(f"{stage.name} on {stage.device}" for stage in session.stages))
        load = measure_load(session, given)
        at_best = sum(load.values()) / max(load.values())
        loads = ", ".join(f"{device} {1000 * seconds:.1f} ms" for device, seconds in load.items())
        print(f"{loads}; at best {at_best:.2f} times as many calls")
        found: dict[int, list[float]] = {count: [] for count in (1, *_IN_FLIGHT)}
        working: dict[int, list[float]] = {count: [] for count in found}
        both = []
        with second_process(folder, clock) as other:
            for _ in range(rounds):
                for count, seconds in found.items():
                    taken, at_work = time_calls(session, given, calls, count)
                    seconds.append(taken)
                    working[count].append(at_work)
                both.append(time_both(other, session, given, calls))
        allowed = [2 * alone / each for alone, each in zip(found[1], both, strict=True)]
        a_second = 2 * calls / median(both)
        print(f"  two processes: {a_second:7.2f} calls a second, {describe_ratios(allowed)}")
        for count, seconds in found.items():
            ratios = [first / each for first, each in zip(found[1], seconds, strict=True)]
            shares = [ratio / most for ratio, most in zip(ratios, allowed, strict=True)]
            print(
                f"  {count} in flight: {calls / median(seconds):7.2f} calls a second, "
                f"{describe_ratios(ratios)}, {median(working[count]):.2f} at work, "
                f"{describe_ratios(shares)} of two processes"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--calls", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clock", type=int, default=100, help="of the device, in percent")
    options = parser.parse_args()
    main(options.calls, options.rounds, options.clock)
