"""The noise of long sums: how far results move when every contraction of a network adds up otherwise.

A sum of K products in floating point is the exact sum of products whose factors are off by about sqrt(K)
units of roundoff (N. J. Higham and T. Mary, A New Approach to Probabilistic Rounding Error Analysis,
SIAM Journal on Scientific Computing 41, 2019). So the weights of all contractions are moved by as much
at random, and onnxruntime computes the network again. The results of two right implementations lie about
as far apart, in a deep network as in a flat one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import EncodeError
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper

from byoc.codegen import Executor
from byoc.errors import InputError
from byoc.model import GraphIndex, copy_without, find_constant_value, get_stated_attributes, is_onnx
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.verification._rounding_noise import CONTRACTIONS
from byoc.verification._thresholds import EPSILON

Array = NDArray[Any]
Values = Mapping[str, Any]

_DRAWS = 2
_MAX_ELEMENTS = 1 << 28  # of all moved weights: 1 GiB in float32


@dataclass(frozen=True, eq=False)
class AccumulationNoise:
    """Runs a model without functions with its weights moved, for given inputs.

    `folder` holds the external data of the model.
    """

    model: ModelProto
    folder: Path | None
    inputs: Values

    @cached_property
    def runs(self) -> tuple[Values, ...]:
        """The outputs of each run by name, without optimizations; none where the model has no such run.

        It has none without stored floating-point weights of a contraction in its main graph, with more
        than 2^28 elements of these, or where onnxruntime cannot run it with weights that are inputs.
        """
        try:
            return tuple(dict(run(self.inputs)) for run in self.executors)
        except (InputError, EncodeError, ValueError):
            return ()

    @cached_property
    def executors(self) -> tuple[Executor, ...]:
        """The model with its weights moved, once for each draw, to run on any inputs; none as `runs`."""
        lengths = self._list_lengths()
        if not lengths or sum(math.prod(t.dims) for t in self._find_tensors(lengths)) > _MAX_ELEMENTS:
            return ()
        generator = np.random.default_rng(0)
        try:
            with without_optimizations():
                session = open_session(self._make_open_model(lengths), self.folder)
            drawn = [self._move_weights(lengths, generator) for _ in range(_DRAWS)]
        except (InputError, EncodeError, ValueError):
            return ()
        return tuple(
            lambda inputs, moved=moved: run_session(session, {**inputs, **moved}) for moved in drawn
        )

    def _list_lengths(self) -> dict[str, int]:
        """Return for each weight how many products a contraction adds up with it, at most."""
        stored = {tensor.name: tensor for tensor in self.model.graph.initializer}
        lengths: dict[str, int] = {}
        for node in self.model.graph.node:
            if not is_onnx(node) or node.op_type not in CONTRACTIONS:
                continue
            tensor = stored.get(node.input[1])
            if tensor is not None and EPSILON.get(_name_dtype(tensor)):
                length = _count_products(node, tuple(tensor.dims))
                lengths[tensor.name] = max(length, lengths.get(tensor.name, 0))
        return lengths

    def _find_tensors(self, lengths: Mapping[str, int]) -> list[TensorProto]:
        return [tensor for tensor in self.model.graph.initializer if tensor.name in lengths]

    def _make_open_model(self, lengths: Mapping[str, int]) -> ModelProto:
        """Return the model with the moved weights as inputs."""
        result = copy_without(self.model, "initializer")
        stated = {value.name for value in result.graph.input}
        for tensor in self.model.graph.initializer:
            if tensor.name not in lengths:
                result.graph.initializer.append(tensor)
            elif tensor.name not in stated:
                result.graph.input.append(
                    helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
                )
        return result

    def _move_weights(
        self, lengths: Mapping[str, int], generator: np.random.Generator
    ) -> dict[str, Array]:
        index = GraphIndex(self.model, {})
        moved: dict[str, Array] = {}
        for name, length in lengths.items():
            value = find_constant_value(index, name, self.folder)
            if value is None:
                raise InputError(f"the weight '{name}' cannot be read")
            unit = math.sqrt(length) * EPSILON[str(value.dtype)] / 2
            signs = generator.choice((-unit, unit), size=value.shape)
            moved[name] = (value.astype(np.float64) * (1 + signs)).astype(value.dtype)
        return moved


def _name_dtype(tensor: TensorProto) -> str:
    return str(helper.tensor_dtype_to_np_dtype(tensor.data_type))


def _count_products(node: NodeProto, shape: tuple[int, ...]) -> int:
    """Count the products that each result of a contraction with a weight of this shape adds up."""
    match node.op_type:
        case "Conv":
            return math.prod(shape[1:])
        case "ConvTranspose":
            group = int(get_stated_attributes(node).get("group", 1))
            return shape[0] // max(group, 1) * math.prod(shape[2:])
        case "Gemm":
            return shape[-1] if get_stated_attributes(node).get("transB") else shape[0]
        case _:
            return shape[-2] if len(shape) > 1 else shape[0]
