"""Writing of graphs node by node, each tensor with its type, as exporters do."""

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from byoc.zoo._classic_models import IR_VERSION
from byoc.zoo._seeded_weights import UniformSpread, derive_seed, draw_uniform

Shape = Sequence[int | str | None] | None
"""Extents as numbers, as names or neither; None where not even the rank is stated."""


class GraphWriter:
    """A model that is being written: nodes, types and seeded weights are appended.

    Operators are named with their domain, as `com.microsoft.BiasGelu`; those of ONNX have none.
    """

    def __init__(self, name: str, opsets: dict[str, int], seed: str) -> None:
        self.model = onnx.ModelProto(ir_version=IR_VERSION, producer_name="byoc")
        for domain, version in opsets.items():
            self.model.opset_import.add(domain=domain, version=version)
        self.graph = self.model.graph
        self.graph.name = name
        self.seed = seed

    def add_input(self, name: str, dtype: int, shape: Shape) -> None:
        """Add an input of the graph."""
        self.graph.input.append(helper.make_tensor_value_info(name, dtype, shape))

    def add_output(self, name: str, dtype: int, shape: Shape) -> None:
        """Add an output of the graph."""
        self.graph.output.append(helper.make_tensor_value_info(name, dtype, shape))

    def state_type(self, name: str, dtype: int, shape: Shape) -> None:
        """State the type of a tensor that a node makes."""
        self.graph.value_info.append(helper.make_tensor_value_info(name, dtype, shape))

    def add_node(
        self,
        operator: str,
        name: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        **attributes: Any,
    ) -> None:
        """Add a node; inputs and outputs that are left out have empty names."""
        domain, _, kind = operator.rpartition(".")
        self.graph.node.append(
            helper.make_node(kind, inputs, outputs, name, domain=domain, **attributes)
        )

    def store(self, name: str, values: NDArray[Any]) -> str:
        """Store an initializer, and return its name."""
        self.graph.initializer.append(numpy_helper.from_array(values, name))
        return name

    def draw(
        self, name: str, shape: tuple[int, ...], deviation: float, centre: float = 0.0
    ) -> NDArray[np.float32]:
        """Draw float32 values, seeded by the writer's seed and a name."""
        spread = UniformSpread(centre, deviation * sqrt(3.0))
        return draw_uniform(derive_seed(self.seed, name), shape, spread)
