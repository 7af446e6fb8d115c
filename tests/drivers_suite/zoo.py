"""Run every model of the zoo in stock onnxruntime with byoc's provider, and in the Python runtime.

    python tests/drivers_suite/zoo.py [--rules dla] [--codegen dla] [--strategy NAME]
        [--results FILE] [MODEL...]

Regions of the provider run by the driver in C, which for `--codegen reference` is made of each bundle;
those of the Python runtime run as the codegen loads them. An output is right if it is off by at most
1e-5 of its range; otherwise both run once more without onnxruntime's optimizations, which may differ in
the two sessions. What is off then, too, is right if `byoc.verify` by the provider passes, which compares
with the model itself, and knows its noise; then each region is also compared alone, on equal inputs.
What was found is a line of the results file, and not asked again. Leaves with 1 if a model is wrong.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx

import byoc
from byoc.bundle import CONTEXT_MODEL_FILE, Bundle, open_bundle
from byoc.codegen import Executor
from byoc.errors import ByocError
from byoc.model import Model
from byoc.onnxrt import open_provider_session, without_optimizations
from byoc.runtime import RegionDrivers, load_bundle, load_executors, use_drivers
from byoc.samples import model_samples
from byoc.standalone import make_driver
from byoc.zoo import list_entries, load_model

TOLERANCE = 1e-5
Row = dict[str, Any]


def find_shapes(model: Model, inputs: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the shapes in a sample of those inputs that have open dimensions."""
    return {
        value.name: list(np.shape(inputs[value.name]))
        for value in model.proto.graph.input
        if value.name in inputs and any(not dim.dim_value for dim in value.type.tensor_type.shape.dim)
    }


def count_nodes(graph: onnx.GraphProto) -> tuple[int, int]:
    """Return how many EPContext nodes a graph has, and how many are in its bodies."""
    bodies = [each.g for node in graph.node for each in node.attribute if each.HasField("g")]
    inside = sum(sum(count_nodes(body)) for body in bodies)
    return sum(node.op_type == "EPContext" for node in graph.node), inside


def measure_error(expected: Any, found: Any) -> float:
    """Return the error of an output as a share of its range; infinite for other shapes and integers."""
    wanted, got = np.asarray(expected), np.asarray(found)
    if wanted.shape != got.shape or wanted.dtype != got.dtype:
        return float("inf")
    if wanted.dtype.kind != "f":
        return 0.0 if np.array_equal(wanted, got) else float("inf")
    if not wanted.size or np.array_equal(wanted, got, equal_nan=True):
        return 0.0
    both = wanted.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(both[0])
    if not np.array_equal(both[0][~finite], both[1][~finite], equal_nan=True) or not finite.any():
        return float("inf")
    error = float(np.max(np.abs(both[0] - both[1])[finite]))
    return error / (float(np.ptp(both[0][finite])) or float(np.max(np.abs(both[0][finite]))) or 1.0)


def compare_runtimes(bundle: Path, drivers: Mapping[str, Path], inputs: Mapping[str, Any]) -> float:
    """Return the largest error of the provider against the Python runtime, as a share of the range."""
    expected = byoc.load(bundle)(inputs)
    session = open_provider_session(bundle / CONTEXT_MODEL_FILE, drivers)
    names = [value.name for value in session.get_outputs()]
    found = dict(zip(names, session.run(names, inputs), strict=True))
    return max(measure_error(expected[each], found[each]) for each in names)


def compare_regions(bundle: Bundle, drivers: Mapping[str, Path], inputs: Mapping[str, Any]) -> Row:
    """Return the largest errors of regions alone, on what reaches them in the Python runtime.

    `alone` is that of floats as a share of the range, `units` the largest difference of integers, of
    which `differing` differ.
    """
    row: Row = {"alone": 0.0, "units": 0, "differing": 0}

    def watch(run: Executor, driven: Executor) -> Executor:
        def run_both(given: Mapping[str, Any]) -> Mapping[str, Any]:
            expected = run(given)
            found = driven({name: np.asarray(value) for name, value in given.items()})
            for name, wanted in expected.items():
                if wanted.dtype.kind == "f":
                    row["alone"] = max(row["alone"], measure_error(wanted, found[name]))
                elif wanted.size:
                    apart = np.abs(wanted.astype(np.int64) - found[name].astype(np.int64))
                    row["units"] = max(row["units"], int(apart.max()))
                    row["differing"] += int(np.count_nonzero(apart))
            return expected

        return run_both

    with without_optimizations(), use_drivers(drivers):
        driven = RegionDrivers(bundle).open_regions()
        both = {name: watch(run, driven[name]) for name, run in load_executors(bundle).items()}
        load_bundle(bundle, both)(inputs)
    return row


def compare(name: str, rules: str, codegen: str, strategy: str, folder: Path) -> Row:
    """Return what the two runtimes make of a model."""
    row: Row = {"model": name}
    try:
        model = load_model(f"zoo:{name}")
        inputs = dict(model_samples(model))
        byoc.partition(
            f"zoo:{name}", rules, output=folder / "b", shapes=find_shapes(model, inputs),
            codegen=codegen, strategy=strategy, verify=False, emit="epcontext",
        )  # fmt: skip
        bundle = open_bundle(folder / "b", None)
        context = onnx.load(folder / "b" / CONTEXT_MODEL_FILE, load_external_data=False)
        row["regions"], row["inside"] = count_nodes(context.graph)
        if not row["regions"] + row["inside"]:
            return row | {"verdict": "no region"}
        drivers = {codegen: folder / "driver.so"}
        make_driver(bundle, drivers[codegen], codegen=codegen, compiler="cc -O3")
        row["error"] = compare_runtimes(folder / "b", drivers, inputs)
        if row["error"] <= TOLERANCE:
            return row | {"verdict": "right"}
        with without_optimizations():
            row["unoptimized"] = compare_runtimes(folder / "b", drivers, inputs)
        if row["unoptimized"] <= TOLERANCE:
            return row | {"verdict": "right"}
        row |= compare_regions(bundle, drivers, inputs)
        verified = byoc.verify(bundle, inputs=inputs, runtime="ort-plugin", drivers=drivers)
        return row | {"verdict": "right by its noise" if verified.passed else "WRONG"}
    except ByocError as error:
        return row | {"verdict": f"refused: {error}"}
    except Exception as error:  # a fault of byoc's or of onnxruntime's, which the table names
        return row | {"verdict": f"FAILED: {type(error).__name__}: {error}"}


def compare_apart(name: str, rules: str, codegen: str, strategy: str, folder: Path) -> Row:
    """Return what `compare` does, from a process of its own, which onnxruntime may end."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["byoc.standalone", "byoc.onnxrt", "emx_onnx_cgen.compiler"])
    with ProcessPoolExecutor(1, context) as process:
        try:
            return process.submit(compare, name, rules, codegen, strategy, folder).result()
        except BrokenProcessPool:
            return {"model": name, "verdict": "FAILED: the process ended"}


def main() -> int:
    """Ask what is not yet known, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--rules", default="dla")
    parser.add_argument("--codegen", default="dla")
    parser.add_argument("--strategy", default="all-supported")
    parser.add_argument("--results", type=Path, default=Path("provider_zoo.jsonl"))
    given = parser.parse_args()
    lines = given.results.read_text().splitlines() if given.results.exists() else []
    rows = {row["model"]: row for row in map(json.loads, lines)}
    names = given.models or [entry.name for entry in list_entries()]
    for name in names:
        if name in rows:
            continue
        with TemporaryDirectory() as folder:
            rows[name] = compare_apart(name, given.rules, given.codegen, given.strategy, Path(folder))
        with given.results.open("a") as file:
            print(json.dumps(rows[name]), file=file)
    keys = ("regions", "inside", "error", "unoptimized", "alone", "units", "differing", "verdict")
    heads = (
        "regions",
        "in bodies",
        "off by",
        "without optimizations",
        "regions alone",
        "units",
        "of",
        "",
    )
    lines = [f"| | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for row in rows.values():
        cells = [row.get(key, "") for key in keys]
        texts = [f"{cell:.1e}" if isinstance(cell, float) else str(cell) for cell in cells]
        lines.append(f"| {row['model']} | {' | '.join(texts)} |")
    sys.stdout.write("\n".join([*lines, ""]))
    return int(any(row["verdict"].startswith(("WRONG", "FAILED")) for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
