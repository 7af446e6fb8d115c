"""The constants of a region: the layout in which a codegen receives them, and their quantization."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TypeProto
from onnx.inliner import inline_local_functions

from byoc.boundary.contracts._boundary_nodes import Scales, read_scales
from byoc.boundary.contracts._tensor_contract import TensorContract
from byoc.model import (
    WEIGHT,
    WEIGHT_KEY,
    GraphIndex,
    TensorLayout,
    TensorType,
    get_metadata,
    get_stated_types,
    is_dequantize,
    parse_layout,
    read_type,
)
from byoc.model import find_weights as weights_of


def read_constant_contracts(
    index: GraphIndex, types: Mapping[str, TypeProto], folder: Path | None, layout: TensorLayout | None
) -> tuple[TensorContract, ...]:
    """Return the contracts of a region's constants, in the order of its model.

    `index` is of the region's model, `types` gives the user's types by name, `folder` is the directory
    of external data. `layout` applies to the weights of two-dimensional convolutions; all others stay in
    ONNX's layout. A weight that two DequantizeLinear nodes read with different scales has none.
    """
    orders = find_convolution_weights(index.proto) if layout is not None else {}
    return tuple(
        _build_constant_contract(
            index, name, types, folder, layout if name in orders else None, orders.get(name, "")
        )
        for name in index.initializers
    )


def find_convolution_weights(region: onnx.ModelProto) -> Mapping[str, str]:
    """Return the axis order of each initializer that is a convolution weight.

    Weights inside composites are included. The orders are those of `byoc.model.find_weights`.
    """
    flat = inline_local_functions(region) if region.functions else region
    flat = onnx.shape_inference.infer_shapes(flat)
    found = weights_of(GraphIndex(flat, get_stated_types(flat)))
    stored = {tensor.name for tensor in region.graph.initializer}
    return {name: order for name, order in found.items() if name in stored}


def pack_weight(array: NDArray[Any], layout: str, order: str) -> NDArray[Any]:
    """Return a weight with axes in an `order` such as IOHW in a layout, contiguous."""
    return parse_layout(layout).pack_array(array.transpose(_weight_permutation(order)))


def _build_constant_contract(  # noqa: PLR0913, PLR0917 - what is known of a constant
    index: GraphIndex,
    name: str,
    types: Mapping[str, TypeProto],
    folder: Path | None,
    layout: TensorLayout | None,
    order: str,
) -> TensorContract:
    kind = index.types[name]
    packed = None
    if layout is not None and kind.shape is not None:
        plain = TensorType(kind.dtype, tuple(kind.shape[i] for i in _weight_permutation(order)))
        packed = layout.pack_type(plain)
    readers = [index.nodes[i] for i in index.consumers.get(name, ())]
    pairs = [node for node in readers if is_dequantize(node) and node.input[0] == name]
    tensor = _find_float_name(pairs) or name
    logical = read_type(types[tensor]) if tensor in types else None
    if logical is None:
        logical = kind if tensor == name else TensorType("float32", kind.shape)
    scales = _common_scales([read_scales(index, node, folder) for node in pairs])
    return TensorContract(
        tensor=tensor,
        name=name,
        inner=name,
        type=packed or kind,
        logical=logical,
        layout=str(layout) if packed is not None else "",
        scale=scales.scale if scales is not None else None,
        zero_point=scales.zero_point if scales is not None else None,
        axis=scales.axis if scales is not None else None,
    )


def _common_scales(found: list[Scales | None]) -> Scales | None:
    return found[0] if found and all(scales == found[0] for scales in found) else None


def _find_float_name(pairs: list[NodeProto]) -> str:
    return next((get_metadata(node, WEIGHT_KEY) for node in pairs if get_metadata(node, WEIGHT_KEY)), "")


def _weight_permutation(order: str) -> list[int]:
    """Return the permutation that brings axes in some order into that of a Conv's weight."""
    return [order.index(axis) for axis in WEIGHT] if order else list(range(len(WEIGHT)))
