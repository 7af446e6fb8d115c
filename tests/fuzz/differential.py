"""Random models cut at random and run, against onnxruntime: `differential.py --graphs 5000 --seed 0`.

Each model of mixed_graphs.py is cut by rules that take every operator in every type, written as a bundle
with `reference`, loaded and run: its outputs must be those of plain onnxruntime bit for bit, and where
16-bit floats cross, those of the original rounded there (rounded_crossings.py). Where onnxruntime cannot
run the model, onnx.reference computes both the original and the partitioned model, and these must agree
bit for bit.

Graph number i of a seed is the same on every run: `--first i --graphs 1` tries it again. With `--log
FILE` each graph is a line of JSON there, and a run that was broken off goes on behind the last one.
"""

import argparse
import json
import resource
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "onnx_suite")]

import numpy as np  # noqa: E402
import onnx  # noqa: E402
from differing import differs  # noqa: E402
from helpers.cutting import without_what_ifs  # noqa: E402
from mixed_graphs import MixedGraphMaker  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402
from partitioned import WAYS, planned, run_bundle  # noqa: E402
from rounded_crossings import run_rounded  # noqa: E402
from suite import Case, operators  # noqa: E402
from targets import look_up_once  # noqa: E402

from byoc.errors import InputError  # noqa: E402
from byoc.model import walk_graphs  # noqa: E402
from byoc.onnxrt import open_session, run_session, without_optimizations  # noqa: E402
from byoc.planning import Plan  # noqa: E402

EQUAL = "equal bit for bit"
ROUNDED = "equal to the original rounded where 16-bit floats cross"
NO_KERNEL = "no kernel in onnxruntime, equal bit for bit in onnx.reference"
NOT_JUDGED = "not judged"
DIFFERENT = "different"
_EVERY = 100
"""Graphs between two lines about progress."""


@dataclass(frozen=True)
class Comparison:
    """How a graph went: the outcome, with why not where it is none of the good ones.

    `types` are the element types of its tensors, `operators` those of bodies and functions included.
    """

    graph: int
    way: str
    outcome: str
    regions: int = 0
    types: Sequence[str] = ()
    operators: Sequence[str] = ()
    why: str = ""


def make_case(seed: int, number: int) -> Case:
    """Return a random model with inputs: a function of both numbers alone."""
    maker = MixedGraphMaker(seed * 1_000_003 + number)
    model = maker.model(4 + number % 14)
    return Case(f"graph-{seed}-{number}", "mixed", model, ((maker.inputs(), {}),), 0.0, 0.0, False)


def compare(seed: int, number: int) -> Comparison:
    """Cut a model in one of the ways and return how its outputs compare with the original's."""
    case, way = make_case(seed, number), list(WAYS)[number % len(WAYS)]
    outcome, regions, why = DIFFERENT, 0, ""
    try:
        # ONNX's inference takes a sparse initializer for no tensor, while its evaluators run it as one.
        onnx.checker.check_model(case.model, full_check=not case.model.graph.sparse_initializer)
        with without_what_ifs():
            plan = planned(case, WAYS[way])
        regions = len(plan.regions)
        outcome, why = _judge(case, plan)
    except Exception as error:  # whatever happens is a finding
        why = _describe(error)
    return Comparison(
        number, way, outcome, regions, _list_types(case.model), sorted(operators(case.model)), why
    )


def _judge(case: Case, plan: Plan) -> tuple[str, str]:
    """Return the outcome for a plan, and what is wrong or who could not judge."""
    ((inputs, _),) = case.data_sets
    expected, no_kernel = _run_plain(case.model, inputs)
    if expected is None:
        try:
            expected = _run_reference(case.model, inputs)
        except Exception as error:  # an operator that the evaluator lacks, or a defect of it
            return NOT_JUDGED, f"onnxruntime: {no_kernel}; onnx.reference: {_describe(error)}"
        why = find_difference(expected, _run_reference(plan.proto, inputs))
        return (DIFFERENT, why) if why else (NO_KERNEL, no_kernel)
    (given,) = run_bundle(plan, [inputs])
    why = find_difference(expected, given)
    if not why:
        return EQUAL, ""
    expected, crossings = run_rounded(case.model, plan, inputs, _run_or_raise)
    if crossings:
        why = find_difference(expected, given)
    return (DIFFERENT, why) if why else (ROUNDED, "")


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


def _run_plain(
    model: onnx.ModelProto, inputs: Mapping[str, Any]
) -> tuple[Mapping[str, Any] | None, str]:
    """Return what plain onnxruntime gives, or None and why it cannot run the model."""
    try:
        return _run_or_raise(model, inputs), ""
    except InputError as error:
        return None, _describe(error)


def _run_or_raise(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    with without_optimizations():
        return run_session(open_session(model), inputs)


def _run_reference(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    evaluator = ReferenceEvaluator(_name_overloads(model))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # overflows are part of random arithmetic
        return dict(zip(evaluator.output_names, evaluator.run(None, dict(inputs)), strict=True))


def _name_overloads(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model whose overloads are functions of other names: onnx.reference knows only one."""
    named = onnx.ModelProto()
    named.CopyFrom(model)
    nodes = [node for graph in walk_graphs(named.graph) for node in graph.node]
    nodes += [node for function in named.functions for node in function.node]
    for node in nodes:
        if node.overload:
            node.op_type += f".{node.overload}"
            node.ClearField("overload")
    for function in named.functions:
        if function.overload:
            function.name += f".{function.overload}"
            function.ClearField("overload")
    return named


def find_difference(expected: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Return how outputs differ in names, types, shapes or bits, or nothing."""
    if list(given) != list(expected):
        return f"outputs {list(given)} instead of {list(expected)}"
    for name, value in expected.items():
        if not _has_same_bits(value, given[name]):
            return f"output '{name}' has other bits: {differs(value, given[name], 0, 0)}"
    return ""


def _has_same_bits(expected: Any, given: Any) -> bool:
    if isinstance(expected, list) or isinstance(given, list):
        same = isinstance(expected, list) and isinstance(given, list) and len(expected) == len(given)
        return same and all(map(_has_same_bits, expected, given))
    a, b = np.asarray(expected), np.asarray(given)
    if a.dtype.kind in "OSU" and b.dtype.kind in "OSU":
        return a.shape == b.shape and a.astype(object).tolist() == b.astype(object).tolist()
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _list_types(model: onnx.ModelProto) -> list[str]:
    """Return the element types of tensors of the main graph, as ONNX infers them."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    values = [*graph.input, *graph.output, *graph.value_info]
    kinds = {value.type.tensor_type.elem_type for value in values if value.type.HasField("tensor_type")}
    kinds |= {tensor.data_type for tensor in graph.initializer}
    return sorted(onnx.TensorProto.DataType.Name(kind).lower() for kind in kinds if kind)


def _read_log(path: Path | None, seed: int) -> dict[int, Comparison]:
    """Return the graphs of a seed that an earlier run compared; a line that was broken off is none."""
    found = {}
    for line in path.read_text().splitlines() if path and path.exists() else ():
        if line.endswith("}"):
            content = json.loads(line)
            if content.pop("seed") == seed:
                found[content["graph"]] = Comparison(**content)
    return found


def _compare_all(seed: int, numbers: range, log: Path | None) -> Iterator[Comparison]:
    known = _read_log(log, seed)
    for number in numbers:
        if number in known:
            yield known[number]
            continue
        found = compare(seed, number)
        if log:
            with log.open("a") as file:
                file.write(json.dumps({"seed": seed, **asdict(found)}) + "\n")
        yield found


def _summarize(seed: int, found: Sequence[Comparison]) -> Iterator[str]:
    """Yield the lines of the summary: the outcomes, and who judged graphs of each element type."""
    seen = {name for each in found for name in each.operators}
    regions = sum(each.regions for each in found)
    yield f"{len(found)} graphs of seed {seed}: {len(seen)} operators, {regions} regions"
    for outcome, number in Counter(each.outcome for each in found).most_common():
        yield f"  {number:6} {outcome}"
    why = Counter(each.why for each in found if each.outcome == NOT_JUDGED)
    yield from (f"  not judged: {number} of {reason}" for reason, number in why.most_common())
    judged = [each for each in found if each.outcome not in (NOT_JUDGED, DIFFERENT)]
    elsewhere = Counter(kind for each in judged if each.outcome == NO_KERNEL for kind in each.types)
    for kind, number in sorted(Counter(kind for each in judged for kind in each.types).items()):
        yield f"  {number:6} with {kind}, {elsewhere[kind]} of them in onnx.reference"


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first graph")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, help="keep what was found, and go on behind it")
    options = parser.parse_args()
    look_up_once()
    found: list[Comparison] = []
    numbers = range(options.first, options.first + options.graphs)
    for each in _compare_all(options.seed, numbers, options.log):
        found.append(each)
        if each.outcome == DIFFERENT:
            sys.stdout.write(f"graph {each.graph}, {each.way}: {each.why}\n")
            sys.stdout.flush()
        if len(found) % _EVERY == 0:
            wrong = sum(each.outcome == DIFFERENT for each in found)
            sys.stderr.write(f"{len(found)} of {len(numbers)}: {wrong} differ\n")
    sys.stdout.writelines(f"{line}\n" for line in _summarize(options.seed, found))
    used = resource.getrusage(resource.RUSAGE_SELF)
    sys.stdout.write(f"{used.ru_utime + used.ru_stime:.0f} s of processor time\n")
    return int(any(each.outcome in (DIFFERENT, NOT_JUDGED) for each in found))


if __name__ == "__main__":
    sys.exit(main())
