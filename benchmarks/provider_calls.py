"""What byoc's provider of ONNX Runtime costs: a call of a region, and shufflenet in many regions.

    python benchmarks/provider_calls.py [--runs N]

A call: chains of 1 and of 201 nodes on one float32, of regions whose driver does nothing and of Neg,
which onnxruntime runs itself, unoptimized so that it fuses nothing. What 200 nodes more take is 200
calls.

shufflenet: cut so that what joins branches stays on the host. The driver of `dla` adds up its own
processor time, so that in each run the rest is known: the host's nodes, those at boundaries, and the
calls. It is held to the model in one piece, in plain onnxruntime.

All take turns, on one thread; times are of processors. Medians and quartiles are printed.
"""

import argparse
import ctypes
import struct
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime
from common import machine
from onnx import TensorProto, helper
from runtime_overhead import pieces

import byoc
from byoc.codegen import DriverSources, find_codegen
from byoc.codegen.drivers import build_driver
from byoc.onnxrt import register_provider
from byoc.samples import model_samples
from byoc.zoo import load_model

SOURCE = Path(__file__).with_name("provider_driver.c")
NODES = 200
REPEATS = 200  # of a chain, since one run takes microseconds


def main(runs: int) -> None:
    """Print both."""
    print(f"{machine()}, onnxruntime {onnxruntime.__version__}, {runs} runs in turn")
    with TemporaryDirectory() as name:
        folder = Path(name)
        measure_calls(folder, runs)
        measure_network(folder, runs)


def measure_calls(folder: Path, runs: int) -> None:
    """Print the microseconds of a call of a region, and of a node of onnxruntime."""
    drivers = {"empty": build_driver(DriverSources("empty", (SOURCE,)), folder / "empty.so")}
    kinds = (("region", make_region_node), ("Neg", make_neg))
    sessions = {
        (kind, count): open_session(
            write_chain(folder / f"{kind}{count}.onnx", make, count), drivers, False
        )
        for kind, make in kinds
        for count in (1, NODES + 1)
    }
    given = {"x0": np.zeros(1, np.float32)}
    times = {key: [] for key in sessions}
    for number in range(runs + 2):
        for key, session in sessions.items():
            taken = cpu_seconds(lambda run=session.run: [run(None, given) for _ in range(REPEATS)])
            if number > 1:
                times[key].append(taken / REPEATS)
    for kind, _ in kinds:
        each = (np.array(times[kind, NODES + 1]) - np.array(times[kind, 1])) / NODES
        print(f"a call of a {kind:6}: {quartiles(each * 1e6, '.3f')} us")


def write_chain(path: Path, make: Callable[[int], onnx.NodeProto], count: int) -> Path:
    """Write a model of so many nodes in a row; return its path."""
    value = lambda number: helper.make_tensor_value_info(f"x{number}", TensorProto.FLOAT, [1])  # noqa: E731
    nodes = [make(number) for number in range(count)]
    inner = [value(number) for number in range(1, count)]
    graph = helper.make_graph(nodes, "chain", [value(0)], [value(count)], value_info=inner)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=imports), path)
    return path


def make_neg(number: int) -> onnx.NodeProto:
    """Return a node of onnxruntime's own."""
    return helper.make_node("Neg", [f"x{number}"], [f"x{number + 1}"], name=f"n{number}")


def make_region_node(number: int) -> onnx.NodeProto:
    """Return a node whose region has no files, one input and one output, by docs/epcontext.md."""
    text = lambda word: struct.pack("<I", len(word)) + word + b"\0"  # noqa: E731
    content = text(b"empty") + text(b"r")
    content += b"".join(
        text(name) + struct.pack("<2Iq", TensorProto.FLOAT, 1, 1) for name in (b"x", b"y")
    )
    description = struct.pack("<8s6I", b"BYOCREGN", 1, 32 + len(content), 0, 0, 1, 1) + content
    return helper.make_node(
        "EPContext",
        [f"x{number}"],
        [f"x{number + 1}"],
        name=f"n{number}",
        domain="com.microsoft",
        main_context=1,
        embed_mode=1,
        ep_cache_context=description.hex(),
        source="byoc",
    )


def measure_network(folder: Path, runs: int) -> None:
    """Print what shufflenet in regions takes besides its driver, against shufflenet in one piece."""
    model = load_model("zoo:shufflenet")
    byoc.partition(
        model.source, pieces(folder), output=folder / "b", strategy="all-supported", codegen="dla",
        verify=False, emit="epcontext",
    )  # fmt: skip
    sources = find_codegen("dla").driver()
    timed = DriverSources("dla", (SOURCE, *sources.files), sources.libraries)
    library = build_driver(
        timed, folder / "dla.so", flags=("-DTIMED=byoc_driver_dla", "-DBYOC_LINKED", "-O3")
    )
    split = open_session(folder / "b" / "model_ctx.onnx", {"dla": library}, True)
    onnx.save(model.proto, folder / "whole.onnx")
    whole = open_session(folder / "whole.onnx", None, True)
    regions = sum(
        node.op_type == "EPContext" for node in onnx.load(folder / "b/model_ctx.onnx").graph.node
    )
    take_seconds = ctypes.CDLL(str(library)).take_seconds
    take_seconds.restype = ctypes.c_double
    given = dict(model_samples(model))
    rest, driver, unsplit = [], [], []
    for number in range(runs + 2):
        one = np.median([cpu_seconds(lambda: whole.run(None, given)) for _ in range(5)])
        take_seconds()
        taken = cpu_seconds(lambda: split.run(None, given))
        if number > 1:
            driver.append(take_seconds())
            rest.append(taken - driver[-1])
            unsplit.append(one)
    columns = [np.array(each) for each in (unsplit, driver, rest)]
    one, own, left = columns
    print(f"shufflenet in {regions} regions:")
    for what, values in zip(("in one piece", "the driver", "all but the driver"), columns, strict=True):
        print(f"  {what:18}: {quartiles(values * 1e3, '.2f')} ms")
    print(f"  all but the driver / in one piece : {quartiles(left / one, '.3f')}")
    print(f"  all / (in one piece + the driver) : {quartiles((left + own) / (one + own), '.4f')}")


def open_session(path: Path, drivers: dict[str, Path] | None, optimized: bool) -> Any:
    """Return a session on one thread."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if drivers is None:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    register_provider(options, drivers)
    return onnxruntime.InferenceSession(str(path), options, enable_fallback=0)


def cpu_seconds(action: Callable[[], object]) -> float:
    """Return the seconds of processor time that a call takes."""
    before = time.process_time()
    action()
    return time.process_time() - before


def quartiles(values: Any, form: str) -> str:
    """Return the median of values, and their quartiles."""
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75))
    return f"{median:{form}} ({low:{form}} to {high:{form}})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=30)
    main(parser.parse_args().runs)
