"""Verification of each region alone and of every boundary tensor, against plain onnxruntime."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx.inliner
from onnx import ModelProto, NodeProto

from byoc.bundle import Bundle
from byoc.codegen import Executor, Region
from byoc.errors import InputError
from byoc.model import (
    CLAMP_OPERATORS,
    VIEW_OPERATORS,
    GraphIndex,
    Model,
    copy_without,
    is_dequantize,
    is_onnx,
    prepare_model,
    walk_graphs,
)
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.runtime import data_inputs, load_bundle, load_executors
from byoc.samples import NoSampleError, model_samples
from byoc.verification._tensor_comparison import OutputError, RegionError, compare_tensors
from byoc.verification._thresholds import DEFAULT_THRESHOLDS, Thresholds

# Operators whose first output is quantized.
_QUANTIZING_OPERATORS = ("QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul")
_MOVING_OPERATORS = VIEW_OPERATORS | CLAMP_OPERATORS | {"Pad"}


def find_quantized_tensors(model: ModelProto) -> frozenset[str]:
    """Return the names of the quantized tensors of a model, in bodies and functions as well.

    An operator that only moves numbers, such as Transpose, keeps them quantized. Tensors inside
    functions have names of their own here.
    """
    light = copy_without(model, "initializer", "sparse_initializer")
    light.graph.input.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in model.graph.initializer
        if tensor.name not in {value.name for value in model.graph.input}
    )
    if light.functions:
        light = onnx.inliner.inline_local_functions(light)
    nodes = [node for graph in walk_graphs(light.graph) for node in graph.node if is_onnx(node)]
    found = {name for node in nodes for name in _tensors_defined_quantized(node)}
    moving = [set(_moved_tensors(node)) for node in nodes if node.op_type in _MOVING_OPERATORS]
    before = -1
    while before < len(found):  # once for each change of direction along a chain of moves
        before = len(found)
        for names in (*moving, *reversed(moving)):
            if not found.isdisjoint(names):
                found |= names
    return frozenset(found)


def _tensors_defined_quantized(node: NodeProto) -> Iterator[str]:
    """Yield the tensors that are quantized by the definition of a node."""
    if node.op_type in _QUANTIZING_OPERATORS:
        yield node.output[0]
    if is_dequantize(node):
        yield node.input[0]


def _moved_tensors(node: NodeProto) -> list[str]:
    """Return the inputs and outputs of a node that hold the same numbers; indices do not."""
    reads = node.input if node.op_type == "Concat" else node.input[:1]
    makes = node.output if node.op_type == "Split" else node.output[:1]
    return [name for name in (*reads, *makes) if name]


Values = Mapping[str, Any]

# A region in a Loop may run any number of times; the values of this many runs are kept.
_MOST_RUNS = 64


class NotVerifiableError(InputError):
    """The original model cannot be run here, so that there is nothing to compare a bundle with."""


@dataclass(eq=False)
class RecordedRuns:
    """The runs of a region: their number, and the inputs and outputs of the first ones."""

    runs: int = 0
    values: list[tuple[Values, Values]] = field(default_factory=list)

    def record(self, run: Executor) -> Executor:
        """Return an executor that does the same, and records its inputs and outputs."""

        def run_and_record(inputs: Values) -> Values:
            outputs = run(inputs)
            self.runs += 1
            if len(self.values) < _MOST_RUNS:
                self.values.append((dict(inputs), dict(outputs)))
            return outputs

        return run_and_record


def verify_regions(
    bundle: Bundle,
    model: Model | None = None,
    inputs: Values | None = None,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
) -> tuple[RegionError, ...]:
    """Compute the error of each region alone, in order of execution.

    The inputs of a region are those that reach it when plain onnxruntime runs all regions, so that
    errors do not add up. `inputs` are those of the model; by default seeded ones of `model`, or of the
    bundle's own. Raise InputError if a codegen is missing, cannot run here or fails to load, and
    NotVerifiableError if plain onnxruntime cannot run the regions.
    """
    with without_optimizations():
        runs = load_executors(bundle)
    expected = record_reference_runs(bundle, inputs or bundle_samples(bundle, model))
    return compare_regions(bundle, runs, expected, thresholds)


def bundle_samples(bundle: Bundle, model: Model | None = None) -> Values:
    """Return seeded inputs of a model, by default of the bundle's partitioned model.

    Raise NotVerifiableError if it runs on none.
    """
    if model is None:
        model = prepare_model(bundle.model(), f"its own {bundle.manifest.model}", bundle.folder)
    try:
        return model_samples(model)
    except NoSampleError as error:
        raise NotVerifiableError(f"{model.source}: {error}") from error


def record_reference_runs(bundle: Bundle, inputs: Values) -> dict[str, RecordedRuns]:
    """Run a bundle with all regions on plain onnxruntime; return the runs of each region.

    Raise NotVerifiableError if it cannot run them.
    """
    found = {region.name: RecordedRuns() for _, region, _ in bundle.regions()}
    try:
        with without_optimizations():
            plain = {
                r.name: found[r.name].record(make_reference_executor(r)) for _, r, _ in bundle.regions()
            }
            load_bundle(bundle, plain)(inputs)
    except InputError as error:
        raise NotVerifiableError(f"plain onnxruntime does not run the regions: {error}") from error
    return found


def make_reference_executor(region: Region) -> Executor:
    """Return an executor of a region's own ONNX on plain onnxruntime, without optimizations."""
    with without_optimizations():
        session = open_session(region.path)
    return lambda inputs: run_session(session, inputs)


def compare_regions(
    bundle: Bundle,
    runs: Mapping[str, Executor],
    expected: Mapping[str, RecordedRuns],
    thresholds: Thresholds,
) -> tuple[RegionError, ...]:
    """Compute the error of each region on the inputs that reached it, in order of execution."""
    return tuple(
        compare_region(region, runs[region.name], expected[region.name], thresholds)
        for _, region, _ in bundle.regions()
    )


def compare_region(
    region: Region, run: Executor, expected: RecordedRuns, thresholds: Thresholds
) -> RegionError:
    """Compute the error of a region's executor against its expected outputs."""
    quantized = quantized_tensors_of(region)
    found = []
    for inputs, outputs in expected.values:
        try:
            actual = run(inputs)
        except InputError as error:
            return RegionError(region.name, (), expected.runs, f"does not run: {error}")
        found.append(tuple(compare_tensors(outputs, actual, thresholds, quantized)))
    return RegionError(region.name, worst_errors(found), expected.runs)


def compare_boundary(
    bundle: Bundle,
    expected: Mapping[str, RecordedRuns],
    actual: Mapping[str, RecordedRuns],
    thresholds: Thresholds,
) -> tuple[OutputError, ...]:
    """Compute the errors of the boundary tensors, by their names in the partitioned model.

    Regions are in order of execution, and of each its inputs and then its outputs; each tensor is there
    once.
    """
    proto = bundle.model()
    names = _outer_names(GraphIndex(proto, {}), {region.name for _, region, _ in bundle.regions()})
    found: dict[str, OutputError] = {}
    for _, region, _ in bundle.regions():
        wanted, got = expected[region.name], actual[region.name]
        quantized = quantized_tensors_of(region)
        rounds = [
            tuple(compare_tensors({**one[0], **one[1]}, {**other[0], **other[1]}, thresholds, quantized))
            for one, other in zip(wanted.values, got.values, strict=False)
        ]
        for error in worst_errors(rounds):
            name = names[region.name][error.name]
            found.setdefault(name, replace(error, name=name))
    return tuple(found.values())


def quantized_tensors_of(region: Region) -> frozenset[str]:
    """Return the tensors of a region's model that represent real numbers as integers."""
    contracts = (*region.inputs, *region.outputs)
    with_scale = {contract.name for contract in contracts if contract.scale is not None}
    return find_quantized_tensors(region.model) | with_scale


def worst_errors(rounds: Sequence[tuple[OutputError, ...]]) -> tuple[OutputError, ...]:
    """Return the worst error of each tensor over several runs, in the order of the first run."""
    by_name: dict[str, list[OutputError]] = {}
    for errors in rounds:
        for error in errors:
            by_name.setdefault(error.name, []).append(error)
    return tuple(max(errors, key=OutputError.severity) for errors in by_name.values())


def _outer_names(index: GraphIndex, regions: Collection[str]) -> dict[str, dict[str, str]]:
    """Return the outer names of the boundary tensors, by region and inner name."""
    functions = {(f.domain, f.name): f for f in index.proto.functions}
    found = {}
    for graph in index.walk():
        for node in graph.nodes:
            function = functions.get((node.domain, node.op_type))
            if function is None or node.op_type not in regions:
                continue
            data = set(data_inputs(graph, node))
            reads = zip(function.input, node.input, strict=True)
            inner = {formal: name for formal, name in reads if name in data}
            found[node.op_type] = inner | dict(zip(function.output, node.output, strict=True))
    return found
