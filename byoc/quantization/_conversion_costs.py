"""Costs of conversions between floats and integers of one type or two, on accelerators."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, ValueInfoProto, helper

from byoc.errors import YES
from byoc.model import (
    DTYPE_NUMBERS,
    GraphIndex,
    Model,
    prepare_model,
)
from byoc.patterns import Mark
from byoc.planning import PlanSettings, annotate_graphs, build_main_problem, group_graphs
from byoc.quantization._prepare_model import SIXTEEN_BITS

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
            self.nodes.append(helper.make_node("DequantizeLinear", [given, *before], [last]))
        if all(ends):
            self.nodes.append(helper.make_node("Identity", [last], [f"converted_{number}"]))
            last = f"converted_{number}"
        if ends[1]:
            self.nodes.append(helper.make_node("QuantizeLinear", [last, *behind], [made]))
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
