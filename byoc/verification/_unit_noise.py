"""The noise of quantized layers: how far results move when every layer but the last is one unit off.

Two right implementations of a quantized operator round halves otherwise, or scale in fixed point, and
some of their results are neighbouring integers. Each is within one unit of the other, but the next layer
starts from there. So a part of the results of each QuantizeLinear is moved by one unit at random, and
onnxruntime computes the network again: what is allowed grows with the depth of a region as it does in
that region.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import EncodeError
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from byoc.errors import InputError
from byoc.model import GraphIndex, NameAllocator, copy_without, find_constant_value, is_quantize
from byoc.onnxrt import open_session, run_session, without_optimizations

Values = Mapping[str, Any]

_SEEDS = (1, 2)
SHARE = 1 / 8
"""The share of the results of each layer that is moved, half of them up and half of them down."""


@dataclass(frozen=True, eq=False)
class UnitNoise:
    """Runs a model without functions with its quantized activations one unit off, for given inputs.

    `folder` holds the external data of the model. Outputs are what their own layers make: what is moved
    are the activations that they read.
    """

    model: ModelProto
    folder: Path | None
    inputs: Values

    @cached_property
    def runs(self) -> tuple[Values, ...]:
        """The outputs of each run by name; none where nothing can be moved."""
        moved = self._find_moved()
        if not moved:
            return ()
        try:
            with without_optimizations():
                return tuple(
                    run_session(
                        open_session(self._make_moved_model(moved, seed), self.folder), self.inputs
                    )
                    for seed in _SEEDS
                )
        except (InputError, EncodeError, ValueError):
            return ()

    def _find_moved(self) -> dict[str, Any]:
        """Return the activations that QuantizeLinears make, each with the zero point of its dtype."""
        index = GraphIndex(self.model, {})
        found = {}
        for number, node in enumerate(index.nodes):
            if not is_quantize(node) or number in index.constant_nodes:
                continue
            name = (*node.input[2:], "")[0]
            point = find_constant_value(index, name, self.folder) if name else np.zeros((), np.uint8)
            if point is not None and point.dtype.kind in "iu" and node.output[0] in index.consumers:
                found[node.output[0]] = point
        return found

    def _make_moved_model(self, moved: Mapping[str, Any], seed: int) -> ModelProto:
        """Return the model with what reads the given tensors reading moved ones."""
        result = copy_without(self.model, "node", "value_info")
        names = NameAllocator(self.model.graph)
        readers = {name: names.new_tensor(f"{name}_moved") for name in moved}
        for number, node in enumerate(self.model.graph.node):
            changed = result.graph.node.add()
            changed.CopyFrom(node)
            changed.input[:] = [readers.get(name, name) for name in node.input]
            for name in node.output:
                if name in moved:
                    result.graph.node.extend(
                        _move_by_units(
                            name, readers[name], moved[name].dtype, seed + number, names, result
                        )
                    )
        return result


def _move_by_units(  # noqa: PLR0913, PLR0917 - what the nodes are made of
    name: str, made: str, dtype: Any, seed: int, names: NameAllocator, model: ModelProto
) -> Iterator[NodeProto]:
    """Yield nodes that move some elements of a tensor of integers by one, up or down."""
    real, drawn, step, wide, sum_, low, high = (names.new_tensor(f"{made}_{i}") for i in range(7))
    info = np.iinfo(dtype)
    bounds = []
    for limit in (info.min, info.max):
        bounds.append(names.new_tensor(f"{made}_limit"))
        model.graph.initializer.append(numpy_helper.from_array(np.array(limit, np.int32), bounds[-1]))
    most = 1 / (1 - SHARE)  # numbers beyond 1 are truncated to 1, all others to 0
    yield helper.make_node("Cast", [name], [real], to=TensorProto.FLOAT)
    yield helper.make_node("RandomUniformLike", [real], [drawn], low=-most, high=most, seed=float(seed))
    yield helper.make_node("Cast", [drawn], [step], to=TensorProto.INT32)
    yield helper.make_node("Cast", [name], [wide], to=TensorProto.INT32)
    yield helper.make_node("Add", [wide, step], [sum_])
    yield helper.make_node("Max", [sum_, bounds[0]], [low])
    yield helper.make_node("Min", [low, bounds[1]], [high])
    yield helper.make_node("Cast", [high], [made], to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
