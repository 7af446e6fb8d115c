"""Random models cut at random and run, against onnxruntime: `differential.py --graphs 2000 --seed 0`.

Each model of mixed_graphs.py is cut by rules that take every operator in every type, written as a bundle
with `reference`, loaded and run: its outputs must be those of plain onnxruntime bit for bit. Where
onnxruntime cannot run the model, onnx.reference computes both the original and the partitioned model.
Graph number i of a seed is the same on every run: `--first i --graphs 1` tries it again.
"""

import argparse
import sys
import time
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "onnx_suite")]

import numpy as np  # noqa: E402
import onnx  # noqa: E402
from mixed_graphs import MixedGraphMaker  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402
from partitioned import WAYS, differs, planned, run_bundle  # noqa: E402
from suite import Case, operators  # noqa: E402

from byoc.errors import InputError  # noqa: E402
from byoc.onnxrt import open_session, run_session, without_optimizations  # noqa: E402

_ROUNDED = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
# Two units in the last place: what crosses is rounded, where onnxruntime goes on in float32.
_ROUNDING = {onnx.TensorProto.FLOAT16: 2.0**-9, onnx.TensorProto.BFLOAT16: 2.0**-6}
ONNXRUNTIME, REFERENCE = "onnxruntime", "onnx.reference"


@dataclass(frozen=True)
class Comparison:
    """How a graph went: who judged, how many regions the cut had, and what is wrong, if anything."""

    graph: int
    way: str
    judge: str
    regions: int
    wrong: str = ""


def make_case(seed: int, number: int) -> Case:
    """Return a random model with inputs: a function of both numbers alone."""
    maker = MixedGraphMaker(seed * 1_000_003 + number)
    model = maker.model(4 + number % 14)
    return Case(f"graph-{seed}-{number}", "mixed", model, ((maker.inputs(), {}),), 0.0, 0.0, False)


def compare(seed: int, number: int) -> Comparison:
    """Cut a model in one of the ways and return how its outputs compare with the original's."""
    case, way = make_case(seed, number), list(WAYS)[number % len(WAYS)]
    ((inputs, _),) = case.data_sets
    judge, regions = REFERENCE, 0
    try:
        # ONNX's inference takes a sparse initializer for no tensor, while its evaluators run it as one.
        onnx.checker.check_model(case.model, full_check=not case.model.graph.sparse_initializer)
        expected = _run_plain(case.model, inputs)
        judge = ONNXRUNTIME if expected is not None else REFERENCE
        plan = planned(case, WAYS[way])
        regions = len(plan.regions)
        if expected is not None:
            (given,) = run_bundle(plan, [inputs])
            wrong = _compare_outputs(case.model, expected, given)
        else:
            expected = _run_reference(case.model, inputs)
            wrong = _compare_outputs(case.model, expected, _run_reference(plan.proto, inputs))
    except Exception as error:  # whatever happens is a finding
        wrong = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
    return Comparison(number, way, judge, regions, wrong)


def _run_plain(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what plain onnxruntime gives, None where it cannot run the model."""
    try:
        with without_optimizations():
            return run_session(open_session(model), inputs)
    except InputError:
        return None


def _run_reference(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    evaluator = ReferenceEvaluator(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # overflows are part of random arithmetic
        return dict(zip(evaluator.output_names, evaluator.run(None, dict(inputs)), strict=True))


def _compare_outputs(
    model: onnx.ModelProto, expected: Mapping[str, Any], given: Mapping[str, Any]
) -> str:
    """Return how outputs differ, by more than rounding where the model computes in 16-bit floats."""
    kinds = {a.i for node in model.graph.node if node.op_type == "Cast" for a in node.attribute}
    rtol = max((_ROUNDING[kind] for kind in kinds & set(_ROUNDED)), default=0.0)
    if list(given) != list(expected):
        return f"outputs {list(given)} instead of {list(expected)}"
    for name, value in expected.items():
        other = given[name]
        if rtol:
            scale = float(np.max(np.abs(np.nan_to_num(value)), initial=1.0))
            wrong = differs(value, other, rtol, rtol * scale)
        else:
            wrong = (
                "" if _has_same_bits(value, other) else "has other bits: " + differs(value, other, 0, 0)
            )
        if wrong:
            return f"output '{name}' {wrong}"
    return ""


def _has_same_bits(expected: Any, given: Any) -> bool:
    a, b = np.asarray(expected), np.asarray(given)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first graph")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    begun, judges, regions, wrong = time.monotonic(), Counter[str](), 0, Counter[str]()
    seen: Counter[str] = Counter()
    for number in range(options.first, options.first + options.graphs):
        found = compare(options.seed, number)
        judges[found.judge] += 1
        regions += found.regions
        seen.update(operators(make_case(options.seed, number).model))
        if found.wrong:
            wrong[found.wrong] += 1
            sys.stdout.write(f"graph {number}, {found.way}, {found.judge}: {found.wrong}\n")
            sys.stdout.flush()
    counts = ", ".join(f"{count} judged by {judge}" for judge, count in sorted(judges.items()))
    seconds = time.monotonic() - begun
    sys.stdout.write(
        f"{options.graphs} graphs of seed {options.seed}, {len(seen)} operators: {counts}; "
    )
    sys.stdout.write(f"{regions} regions, {wrong.total()} differences, {seconds:.0f} s\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
