"""Costs of conversions between integers of two types, on accelerators and by the host."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from byoc.model import DTYPE_NUMBERS, GraphIndex, Model, prepare_model
from byoc.planning import PlanSettings, annotate_graphs, build_main_problem, group_graphs
from byoc.quantization._prepare_model import SIXTEEN_BITS

Floats = NDArray[np.float64]
_IR = 10  # with operator set 21


@dataclass(frozen=True, eq=False)
class ConversionCosts:
    """The costs of converting tensors to 16 bits and back on each accelerator, `[devices]`, by tensor.

    A cost is infinite where an accelerator does not take the conversion.
    """

    costs: Mapping[str, tuple[Floats, Floats]]

    def find(self, tensor: str, by_host: Floats) -> tuple[Floats, Floats]:
        """Return the costs of both directions, those of a way by the host where that is cheaper."""
        known = self.costs.get(tensor)
        if known is None:
            return by_host, by_host
        return np.minimum(known[0], by_host), np.minimum(known[1], by_host)


def price_conversions(
    index: GraphIndex, tensors: Sequence[str], settings: PlanSettings, narrow: str, wide: str
) -> ConversionCosts:
    """Price the conversions of a float model's tensors between two types, as a quantized model has them.

    The cost models are asked about a model of these conversions alone. Tensors whose extents are not
    known are left out.
    """
    known = [name for name in tensors if _has_extents(index, name)]
    if not known:
        return ConversionCosts({})
    model = _make_conversions(index, known, (narrow, wide), (wide, narrow))
    marks = annotate_graphs(model.index, settings.targets)
    units = group_graphs(model.index, settings.targets, marks)
    problem = build_main_problem(model.index, settings, units).problem
    found: dict[str, tuple[Floats, Floats]] = {}
    row_of = {node: row for row, unit in enumerate(units[id(model.index)].units) for node in unit.nodes}
    for number, name in enumerate(known):
        rows = [row_of[model.index.producers[f"converted_{number}_{way}"]] for way in (0, 1)]
        to_wide, to_narrow = problem.seconds[rows, 1:]
        found[name] = to_wide, to_narrow
    return ConversionCosts(found)


def _has_extents(index: GraphIndex, name: str) -> bool:
    shape = index.get_shape(name)
    return shape is not None and all(isinstance(extent, int) for extent in shape)


def _make_conversions(index: GraphIndex, tensors: Sequence[str], *ways: tuple[str, str]) -> Model:
    """Return a model that converts tensors of the shapes of others, each from and to given types."""
    nodes, inputs, outputs = [], [], []
    stored = [helper.make_tensor("scale", 1, [], [1.0])]
    for dtype in {dtype for way in ways for dtype in way}:
        stored.append(helper.make_tensor(f"zero_{dtype}", DTYPE_NUMBERS[dtype], [], [0]))
    for number, name in enumerate(tensors):
        for way, (before, behind) in enumerate(ways):
            own = f"{number}_{way}"
            given, made = f"given_{own}", f"made_{own}"
            zeros = [f"zero_{before}", f"zero_{behind}"]
            nodes += [
                helper.make_node("DequantizeLinear", [given, "scale", zeros[0]], [f"float_{own}"]),
                helper.make_node("Identity", [f"float_{own}"], [f"converted_{own}"]),
                helper.make_node("QuantizeLinear", [f"converted_{own}", "scale", zeros[1]], [made]),
            ]
            shape = index.get_shape(name)
            inputs.append(helper.make_tensor_value_info(given, DTYPE_NUMBERS[before], shape))
            outputs.append(helper.make_tensor_value_info(made, DTYPE_NUMBERS[behind], shape))
    graph = helper.make_graph(nodes, "conversions", inputs, outputs, stored)
    opsets = [helper.make_opsetid("", max(SIXTEEN_BITS, index.opsets.get("", 1)))]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=_IR)
    return prepare_model(proto, "conversions")
