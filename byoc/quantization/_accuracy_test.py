"""The test of an accuracy budget: the samples, the original's outputs, the accuracy measured on them."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from itertools import islice, permutations

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from byoc._dataclasses import dataclass, field
from byoc.errors import YES, InputError
from byoc.model import (
    DTYPE_NUMBERS,
    TENSOR_KEY,
    WEIGHT_KEY,
    GraphIndex,
    Model,
    build_node,
    copy_without,
    get_metadata,
    get_node_name,
    is_dequantize,
    is_inserted,
    is_quantize,
    list_reads,
    prepare_model,
)
from byoc.patterns import Mark
from byoc.planning import (
    WIDE,
    GraphPlan,
    PlanSettings,
    annotate_graphs,
    build_main_problem,
    group_graphs,
)
from byoc.quantization._accuracy_measures import SampleValues, measure_accuracy, run_samples
from byoc.quantization._choose_precision import (
    ChosenPrecision,
    PrecisionProblem,
    QuantizedPlan,
    TensorFigures,
    build_precision_problem,
)
from byoc.quantization._precision import Budget, KeptAccuracy, Precision
from byoc.quantization._prepare_model import SIXTEEN_BITS
from byoc.samples import NO_PREPROCESSING, find_samples
from byoc.support import report_step

_MOST_SAMPLES = 32  # that the accuracy of a plan is measured on
# Samples that the accuracy with a unit or tensor alone quantized is measured on, and the runs of the
# model for that in each type: with many units, on fewer samples.
_SAMPLES_ALONE, _MOST_RUNS_ALONE = 4, 200
_MOST_NOISE = 1e6  # the power of an error over that of the signal, instead of infinity

PartMeasurement = Callable[
    [Model, Mapping[str, Sequence[str]], Sequence[SampleValues], Sequence[SampleValues]],
    dict[str, KeptAccuracy],
]
"""A measurement of parts of a quantized model, each alone: of units, or of tensors."""


@dataclass(frozen=True, eq=False)
class AccuracyTest:
    """An accuracy budget, with the samples to measure on and what the original gives for them.

    `source` names the data; `precision` is the model with everything quantized.
    """

    budget: Budget
    source: str
    samples: Sequence[SampleValues]
    expected: Sequence[SampleValues]
    precision: ChosenPrecision

    def measure(self, proto: ModelProto, model: Model) -> KeptAccuracy:
        """Return the accuracy of a partitioned model, whose external data is that of `model`."""
        return measure_accuracy(self.expected, run_samples(proto, model, self.samples))

    def is_met(self, accuracy: KeptAccuracy) -> bool:
        """Return whether an accuracy is within the budget."""
        return self.budget.is_met(accuracy)

    def build_problem(self, settings: PlanSettings, plans: Sequence[GraphPlan]) -> PrecisionProblem:
        """Build the problem of units' precisions, from the plans with all units in each of them.

        They are in integers, perhaps in 16 bits where units may be, and in floating point.
        """
        narrow, *others, floating = plans
        precision, dtype = self.precision, self.precision.narrow_dtype
        types = [QuantizedPlan(narrow, precision.units, _list_noises(self.unit_accuracies), dtype)]
        for plan in others:
            assert precision.wide_model is not None
            types.append(
                QuantizedPlan(
                    plan, precision.wide_model.units, _list_noises(self.wide_unit_accuracies), WIDE
                )
            )
        tensors = [name for name in floating.graph_problem.tensors if ":" not in name]
        dtypes = [each.dtype for each in types]
        figures = TensorFigures(
            _list_noises(self._measure_alone(measure_roundings, precision.model, precision.units)),
            price_conversions(floating.index, tensors, settings, dtypes),
            np.array([each.rules.quantization.convert == "between" for each in settings.targets]),
        )
        return build_precision_problem(types, floating, figures)

    @cached_property
    def unit_accuracies(self) -> Mapping[str, KeptAccuracy]:
        """The accuracy with one unit alone quantized, for each unit by name."""
        return self._measure_alone(measure_sensitivities, self.precision.model, self.precision.units)

    @cached_property
    def wide_unit_accuracies(self) -> Mapping[str, KeptAccuracy]:
        """The accuracy with one unit alone in 16 bits, for each that may be."""
        wide = self.precision.wide_model
        return {} if wide is None else self._measure_alone(measure_sensitivities, wide.model, wide.units)

    def _measure_alone(
        self, measure: PartMeasurement, model: Model, units: Mapping[str, Sequence[str]]
    ) -> Mapping[str, KeptAccuracy]:
        few = slice(max(1, min(_SAMPLES_ALONE, _MOST_RUNS_ALONE // max(len(units), 1))))
        return measure(model, units, self.expected[few], self.samples[few])


def _list_noises(accuracies: Mapping[str, KeptAccuracy]) -> dict[str, NDArray[np.float64]]:
    """Return the noise of each unit or tensor, float64 `[outputs]`, finite."""
    return {
        name: np.nan_to_num(np.asarray(each.noises or [each.noise]), nan=_MOST_NOISE, posinf=_MOST_NOISE)
        for name, each in accuracies.items()
    }


def prepare_accuracy_test(
    model: Model, concluded: ChosenPrecision, precision: Precision
) -> AccuracyTest:
    """Run the original model on the samples that its accuracy budget is measured on.

    Raises InputError when there are no samples.
    """
    budget, data = precision.budget, precision.data
    assert budget is not None
    if data is None:
        raise InputError(f"accuracy budget {budget}: it is measured on samples (--data FOLDER)")
    source = find_samples(data, model, precision.images or NO_PREPROCESSING, _MOST_SAMPLES)
    samples = [sample.inputs for sample in islice(source.read_from(0), _MOST_SAMPLES)]
    if not samples:
        raise InputError(f"{source.name}: there are no samples to measure the accuracy on")
    report_step("run the original")
    expected = run_samples(model.proto, model, samples)
    return AccuracyTest(budget, source.name, samples, expected, concluded)


# Costs of conversions between floats and integers of one type or two, on accelerators.

Floats = NDArray[np.float64]
_IR = 10  # with operator set 21


def price_conversions(
    index: GraphIndex, tensors: Sequence[str], settings: PlanSettings, dtypes: Sequence[str]
) -> Mapping[str, Floats]:
    """Return the costs of converting a float model's tensors, float64 `[levels, levels, devices]`.

    The first level is floating point, the others are the integer `dtypes`. A cost is infinite where an
    accelerator does not take the conversion. The cost models are asked about a model of the conversions
    alone, as they stand in a quantized one: an Identity between DequantizeLinear and QuantizeLinear, or
    one of these by itself between floats and integers, on accelerators that convert between operators
    (`convert: between`). Tensors whose extents are not known are left out.
    """
    writer = _ConversionWriter(index)
    for name in tensors:
        if _has_extents(index, name):
            types = (index.get_dtype(name) or "float32", *dtypes)
            for ends in permutations(range(len(types)), 2):
                writer.add(name, ends, (types[ends[0]], types[ends[1]]))
    if not writer.made:
        return {}
    model = writer.build()
    marks = annotate_graphs(model.index, settings.targets)
    for target, own in zip(settings.targets, marks[id(model.index)], strict=True):
        if target.rules.quantization.convert == "between":
            between = Mark(YES, target.locate("quantization.convert"))
            for number in writer.list_single_nodes(model):
                own[number] = between
    units = group_graphs(model.index, settings.targets, marks)
    problem = build_main_problem(model.index, settings, units).problem
    row_of = {node: row for row, unit in enumerate(units[id(model.index)].units) for node in unit.nodes}
    levels = 1 + len(dtypes)
    found: dict[str, Floats] = {}
    for (name, ends), output in writer.made.items():
        own_costs = found.setdefault(name, np.full((levels, levels, problem.devices), np.inf))
        own_costs[ends] = problem.seconds[row_of[model.index.producers[output]], 1:]
    return found


def _has_extents(index: GraphIndex, name: str) -> bool:
    shape = index.get_shape(name)
    return shape is not None and all(isinstance(extent, int) for extent in shape)


@dataclass(eq=False)
class _ConversionWriter:
    """Writes a model of conversions; `made` has what each of them makes, by tensor and levels."""

    index: GraphIndex
    made: dict[tuple[str, tuple[int, int]], str] = field(default_factory=dict)
    nodes: list[NodeProto] = field(default_factory=list)
    inputs: list[ValueInfoProto] = field(default_factory=list)
    outputs: list[ValueInfoProto] = field(default_factory=list)
    stored: dict[str, TensorProto] = field(default_factory=dict)

    def add(self, name: str, ends: tuple[int, int], types: tuple[str, str]) -> None:
        """Add the conversion of a tensor from one type to another; `ends` are their levels."""
        number = len(self.made)
        given, made = f"given_{number}", f"made_{number}"
        before, behind = (self._store_scale(dtype) for dtype in types)
        last = given
        if ends[0]:
            last = f"float_{number}" if ends[1] else made
            self.nodes.append(build_node("DequantizeLinear", [given, *before], [last]))
        if all(ends):
            self.nodes.append(build_node("Identity", [last], [f"converted_{number}"]))
            last = f"converted_{number}"
        if ends[1]:
            self.nodes.append(build_node("QuantizeLinear", [last, *behind], [made]))
        shape = self.index.get_shape(name)
        self.inputs.append(helper.make_tensor_value_info(given, DTYPE_NUMBERS[types[0]], shape))
        self.outputs.append(helper.make_tensor_value_info(made, DTYPE_NUMBERS[types[1]], shape))
        self.made[name, ends] = f"converted_{number}" if all(ends) else made

    def _store_scale(self, dtype: str) -> list[str]:
        """Store a scale and the zero point of an integer type; return their names."""
        if dtype.startswith(("int", "uint")):
            self.stored["scale"] = helper.make_tensor("scale", TensorProto.FLOAT, [], [1.0])
            self.stored[dtype] = helper.make_tensor(f"zero_{dtype}", DTYPE_NUMBERS[dtype], [], [0])
        return ["scale", f"zero_{dtype}"]

    def build(self) -> Model:
        graph = helper.make_graph(
            self.nodes, "conversions", self.inputs, self.outputs, [*self.stored.values()]
        )
        opsets = [helper.make_opsetid("", max(SIXTEEN_BITS, self.index.opsets.get("", 1)))]
        proto = helper.make_model(graph, opset_imports=opsets, ir_version=_IR)
        return prepare_model(proto, "conversions")

    def list_single_nodes(self, model: Model) -> list[int]:
        """Return the nodes that convert between floats and integers by themselves."""
        outputs = {made for (_, ends), made in self.made.items() if not all(ends)}
        return [number for number, node in enumerate(model.index.nodes) if node.output[0] in outputs]


# Sensitivity of quantized units: the noise at the outputs when one unit alone is quantized.
#
# Where errors are small they hardly depend on one another, and the noise powers of units add up to
# about that of all of them. The noise of a unit is that of its weights and of the tensors that it
# reads. Quantizing its result counts for the quantized units that read it, and for the unit itself
# if something in floating point reads it.


def measure_sensitivities(
    quantized: Model,
    units: Mapping[str, Sequence[str]],
    expected: Sequence[SampleValues],
    samples: Sequence[SampleValues],
) -> dict[str, KeptAccuracy]:
    """Return for each unit the accuracy with it alone quantized.

    `units` have the names of their nodes; `expected` are the float model's outputs of the samples.
    """
    every = {node for nodes in units.values() for node in nodes}
    found = {}
    for number, (name, nodes) in enumerate(units.items(), 1):
        report_step(f"sensitivity of unit {number} of {len(units)}")
        variant = quantize_only(quantized.proto, set(nodes), every)
        found[name] = measure_accuracy(expected, run_samples(variant, quantized, samples))
    return found


def measure_roundings(
    quantized: Model,
    units: Mapping[str, Sequence[str]],
    expected: Sequence[SampleValues],
    samples: Sequence[SampleValues],
) -> dict[str, KeptAccuracy]:
    """Return for each quantized tensor of activations the accuracy with it alone rounded.

    Arguments are those of `measure_sensitivities`.
    """
    every = {node for nodes in units.values() for node in nodes}
    inserted = (node for node in quantized.proto.graph.node if is_quantize(node) and is_inserted(node))
    names = dict.fromkeys(get_metadata(node, TENSOR_KEY) for node in inserted)
    found = {}
    for number, name in enumerate(names, 1):
        report_step(f"sensitivity of tensor {number} of {len(names)}")
        variant = quantize_only(quantized.proto, (), every, name)
        found[name] = measure_accuracy(expected, run_samples(variant, quantized, samples))
    return found


def quantize_only(
    proto: ModelProto, nodes: Collection[str], every: Collection[str], tensor: str | None = None
) -> ModelProto:
    """Return a quantized model in which all nodes but those named compute in floating point again.

    `every` names the nodes of all quantized units. A node without a name goes by its first output.
    `tensor` is rounded for all that read it.
    """
    makers = {name: node for node in proto.graph.node for name in node.output}
    read = {
        name for node in proto.graph.node if _name_node(node) not in every for name in list_reads(node)
    }
    read.update(value.name for value in proto.graph.output)
    result = copy_without(proto, "node")
    rewritten: list[NodeProto] = []
    for node in proto.graph.node:
        if is_inserted(node) and is_quantize(node):
            continue
        if is_inserted(node) and is_dequantize(node):
            if get_metadata(node, WEIGHT_KEY):
                continue  # who reads it gets the weight itself: kernels differ for what is constant
            source = makers[node.input[0]].input[0]
            made = node.output[0] in read and source in makers and _name_node(makers[source]) in nodes
            if made or get_metadata(node, TENSOR_KEY) == tensor:
                rewritten += (makers[node.input[0]], node)
            else:
                rewritten.append(build_node("Identity", [source], [node.output[0]]))
            continue
        changed = deepcopy(node)
        for position, name in enumerate(node.input):
            maker = makers.get(name)
            if maker is None or not is_inserted(maker) or not is_dequantize(maker):
                continue
            if _name_node(node) in nodes:
                rewritten += _copy_pair(maker, makers, f"{node.output[0]}_{position}")
                changed.input[position] = rewritten[-1].output[0]
            elif get_metadata(maker, WEIGHT_KEY):
                changed.input[position] = get_metadata(maker, WEIGHT_KEY)
        rewritten.append(changed)
    result.graph.node.extend(rewritten)
    return result


def _name_node(node: NodeProto) -> str:
    """Return the name of a node among units; empty for a node put in by byoc, which is in none."""
    return "" if is_inserted(node) else get_node_name(node)


def _copy_pair(node: NodeProto, makers: Mapping[str, NodeProto], name: str) -> Iterable[NodeProto]:
    """Yield copies of a DequantizeLinear of ours and the QuantizeLinear before it, for one reader."""
    copy = deepcopy(node)
    copy.name = copy.output[0] = f"{name}_only"
    before = makers.get(node.input[0])
    if before is not None:
        first = deepcopy(before)
        first.name = first.output[0] = copy.input[0] = f"{name}_only_q"
        yield first
    yield copy
