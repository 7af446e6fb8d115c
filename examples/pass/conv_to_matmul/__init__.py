"""A pass for byoc: 1x1 convolutions of a region become matrix products."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import onnx
import onnx.inliner
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

_TO_NHWC, _TO_NCHW = [0, 2, 3, 1], [0, 3, 1, 2]
_IDLE = {"strides": [1, 1], "dilations": [1, 1], "pads": [0, 0, 0, 0], "auto_pad": b"NOTSET", "group": 1}


@dataclass(frozen=True)
class ConvToMatMul:
    """Turn 1x1 convolutions with constant weights into matrix products over the channels."""

    scope: ClassVar[str] = "region"

    least_channels: int = field(
        default=1, metadata={"help": "Convolutions of fewer input channels stay as they are."}
    )

    def run(self, model: ModelProto) -> ModelProto:
        """Return the model with its composites opened, and 1x1 convolutions replaced."""
        if model.functions:  # a convolution in a composite has its weight outside
            model = onnx.inliner.inline_local_functions(model)
        weights = {tensor.name: tensor for tensor in model.graph.initializer}
        nodes = [part for node in model.graph.node for part in self._rewrite(node, weights)]
        del model.graph.node[:], model.graph.initializer[:]
        model.graph.node.extend(nodes)
        model.graph.initializer.extend(weights.values())
        return model

    def _rewrite(self, node: NodeProto, weights: dict[str, TensorProto]) -> Iterator[NodeProto]:
        """Yield what takes the place of a node; its weight is added to `weights`."""
        weight = weights.get(node.input[1]) if node.op_type == "Conv" else None
        if weight is None or not self._is_product(node, weight):
            yield node
            return
        image, result = node.input[0], node.output[0]
        rows, product, sum_, matrix = (f"{result}_{part}" for part in ("rows", "product", "sum", "w"))
        array = numpy_helper.to_array(weight)[:, :, 0, 0]
        weights[matrix] = numpy_helper.from_array(np.ascontiguousarray(array.T), matrix)
        yield helper.make_node("Transpose", [image], [rows], f"{rows}", perm=_TO_NHWC)
        yield helper.make_node("MatMul", [rows, matrix], [product], f"{product}")
        if has_bias := len(node.input) > 2 and bool(node.input[2]):
            yield helper.make_node("Add", [product, node.input[2]], [sum_], f"{sum_}")
        last = sum_ if has_bias else product
        yield helper.make_node("Transpose", [last], [result], node.name, perm=_TO_NCHW)

    def _is_product(self, node: NodeProto, weight: TensorProto) -> bool:
        if len(weight.dims) != 4 or list(weight.dims[2:]) != [1, 1]:
            return False
        given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        idle = all(given.get(name, value) == value for name, value in _IDLE.items())
        return idle and weight.dims[1] >= self.least_channels
