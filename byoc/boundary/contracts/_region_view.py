"""Contracts of boundary tensors, and the region's view of them, read from its model alone.

The first nodes after an input show its form at the boundary: layout conversions of byoc's, a Cast, a
DequantizeLinear. The last nodes before an output show it in the same way. Constants are described in the
layout in which a codegen receives them.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal

import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TypeProto
from onnx.inliner import inline_local_functions

from byoc._dataclasses import dataclass, field, replace
from byoc.boundary.contracts._boundary_nodes import (
    UNKNOWN_LAYOUT,
    AxisTerms,
    find_producer,
    find_rank,
    find_type,
    includes_cast,
    is_conversion,
    layout_after,
    layout_before,
    read_scales,
    scale_fields,
)
from byoc.errors import ByocError, InputError
from byoc.model import (
    WEIGHT,
    WEIGHT_KEY,
    Dim,
    GraphIndex,
    TensorLayout,
    TensorType,
    check_nodes,
    clear_output_shapes,
    find_weights,
    get_metadata,
    get_stated_types,
    infer_types,
    is_dequantize,
    is_inserted,
    is_quantize,
    parse_layout,
    read_tensor_types,
)

# The contract of a boundary tensor: everything that host and region must agree on about its bytes.

Converter = Literal["host", "device", "model"]
"""Who converts: byoc's nodes on the host, byoc's nodes in the region, or nodes of the user's own."""

_MAX_SHOWN = 4  # numbers that are written out


class ContractError(ByocError):
    """Host and region disagree about a boundary tensor: a defect of byoc, never of the input."""


@dataclass(frozen=True)
class TensorView:
    """The view of a boundary tensor from the host or from the region; None stands for unknown.

    `layout` is empty for a tensor in ONNX's own layout. `scale`, `zero_point` and `axis` are as in
    `TensorContract`.
    """

    type: TensorType | None = None
    layout: str | None = None
    scale: tuple[float, ...] | None = None
    zero_point: tuple[int, ...] | None = None
    axis: int | None = None

    def agrees(self, other: "TensorView") -> bool:
        """Return whether the two views have no contradiction."""
        if self.type is not None and other.type is not None and not types_agree(self.type, other.type):
            return False
        if self.layout is not None and other.layout is not None and self.layout != other.layout:
            return False
        if self.scale is None or other.scale is None:
            return True
        return (self.scale, self.zero_point, self.axis) == (other.scale, other.zero_point, other.axis)

    def is_same(self, other: "TensorView") -> bool:
        """Return whether both views also know the same things, except for unknown extents."""
        return self.agrees(other) and (self.layout, self.scale) == (other.layout, other.scale)

    def describe(self, other: "TensorView") -> str:
        """Describe this view; long lists of scales show where they differ from the other view."""
        parts = [str(self.type or "unknown")]
        if self.layout:
            parts.append(f"in {self.layout}")
        if self.scale is not None:
            parts.append(f"scale {_format_numbers(self.scale, other.scale)}")
            parts.append(f"zero point {_format_numbers(self.zero_point or (), other.zero_point)}")
            if self.axis is not None:
                parts.append(f"axis {self.axis}")
        return " ".join(parts)


@dataclass(frozen=True)
class TensorContract:
    """The description of a tensor that a region reads, returns, or holds as a constant.

    `tensor` is its name in the user's model and `logical` its type there. `name` is the input, output or
    initializer of the region's model, and `type` its dtype and shape at the boundary, where an unknown
    extent may differ from run to run. `inner` is its name inside the region once byoc's own conversions
    of layout and float type are reverted; it equals `name` if there are none. `layout` is in the
    notation of `byoc.model._layouts`, empty for ONNX's own layout.

    A quantized tensor has `scale` and `zero_point`: real value = (stored - zero_point) * scale, with one
    pair for the tensor, or one for each element of the dimension `axis` of `logical` (ONNX,
    DequantizeLinear; with a block size the scales are in row-major order). All three are None if the
    tensor is not quantized, or nothing at the boundary states its scales.

    `converts` says who converts it between its form in the user's model and its form at the boundary,
    under the keys `layout`, `quantize` and `cast`, for each conversion that takes place.
    """

    tensor: str
    name: str
    inner: str
    type: TensorType
    logical: TensorType
    layout: str = ""
    scale: tuple[float, ...] | None = None
    zero_point: tuple[int, ...] | None = None
    axis: int | None = None
    converts: Mapping[str, Converter] = field(default_factory=dict)

    @property
    def view(self) -> TensorView:
        """The properties that the host must agree on."""
        return TensorView(self.type, self.layout, self.scale, self.zero_point, self.axis)

    def __str__(self) -> str:
        """Return for instance `int8[1, 8, 8, 3] in NHWC scale 0.5 zero point 3`."""
        return self.view.describe(TensorView())


def types_agree(one: TensorType, other: TensorType) -> bool:
    """Return whether two types can belong to one tensor; symbolic extents match any extent."""
    if one.dtype != other.dtype:
        return False
    if one.shape is None or other.shape is None:
        return True
    return len(one.shape) == len(other.shape) and all(map(_dims_agree, one.shape, other.shape))


def _dims_agree(one: Dim, other: Dim) -> bool:
    return not (isinstance(one, int) and isinstance(other, int)) or one == other


def _format_numbers(own: tuple[float, ...], other: tuple[float, ...] | None) -> str:
    """Format numbers: all of a few, otherwise the first that differs from the other view's."""
    if len(own) <= _MAX_SHOWN:
        return ", ".join(map(_format_number, own))
    pairs = enumerate(zip(own, other or (), strict=False))
    first = next((i for i, (own_number, other_number) in pairs if own_number != other_number), None)
    some = (
        ", ".join(map(_format_number, own[:2]))
        if first is None
        else f"[{first}] {_format_number(own[first])}"
    )
    return f"{some}, ... ({len(own)})"


def _format_number(value: float) -> str:
    return f"{value:.9g}"  # enough digits to tell two float32 apart


@dataclass(frozen=True)
class RegionContracts:
    """The contracts of a region's inputs, outputs and constants, each in the order of its model."""

    inputs: tuple[TensorContract, ...]
    outputs: tuple[TensorContract, ...]
    constants: tuple[TensorContract, ...] = ()


def infer_region_types(region: onnx.ModelProto) -> GraphIndex:
    """Return the index of a region's model with types inferred from its inputs alone.

    Types that the model states for outputs and intermediate tensors are discarded first.
    """
    bare = deepcopy(region)
    del bare.graph.value_info[:]
    clear_output_shapes(bare.graph)
    inferred = infer_types(bare, {})
    return GraphIndex(bare, inferred.type_protos, inferred.typed_graph)


def read_region_contracts(
    region: onnx.ModelProto,
    types: Mapping[str, TypeProto],
    folder: Path | None = None,
    weights: TensorLayout | None = None,
    index: GraphIndex | None = None,
) -> RegionContracts:
    """Read the contracts of a region from its model.

    `types` gives the types of the user's tensors by name, `folder` is the directory of external data,
    and `weights` the layout of convolution weights for the target. `index` is that of
    `infer_region_types(region)` if the caller has it. A dtype or shape that cannot be inferred is the
    one that the model states.
    """
    reader = _RegionReader(
        index or infer_region_types(region), types, folder, read_tensor_types(get_stated_types(region))
    )
    return RegionContracts(
        tuple(reader.read_input(value.name) for value in region.graph.input),
        tuple(reader.read_output(value.name) for value in region.graph.output),
        _read_constants(reader.index, types, folder, weights),
    )


@dataclass(frozen=True)
class _RegionReader:
    """Reads contracts from a region's model."""

    index: GraphIndex
    types: Mapping[str, TypeProto]
    folder: Path | None
    stated: Mapping[str, TensorType]

    def read_input(self, name: str) -> TensorContract:
        """Follow an input to the first tensor that the region's operators read."""
        steps: list[NodeProto] = []
        inner = name
        while (node := self._find_only_reader(inner)) is not None and is_conversion(node):
            steps.append(node)
            inner = node.output[0]
        stated = self._stated_type(name)
        known = find_type(self.types, inner)
        rank = _find_rank(known, find_rank(self.index, steps, self.stated, before=False))
        terms = layout_before(self.index, steps, AxisTerms.of_plain(rank), self.stated)
        kind = stated
        if known is not None:
            shape = known.shape
            if steps:
                shape = stated.shape if shape is None or terms is None else terms.pack(shape)
            kind = TensorType(stated.dtype if includes_cast(steps) else known.dtype, shape)
        readers = [self.index.nodes[i] for i in self.index.consumers.get(inner, ())]
        pair = next((node for node in readers if is_dequantize(node) and node.input[0] == inner), None)
        around = next((node for node in readers if is_quantize(node) and is_inserted(node)), None)
        contract = self._build_contract(name, inner, kind, terms, steps, pair, around)
        scales = None if pair is None else read_scales(self.index, pair, self.folder)
        if scales is not None:  # a DequantizeLinear says itself what it reads
            contract = replace(contract, type=TensorType(scales.dtype, contract.type.shape))
        return contract

    def read_output(self, name: str) -> TensorContract:
        """Follow an output back to the tensor that the region's operators make."""
        steps: list[NodeProto] = []
        inner = name
        while (node := self._find_producer(inner)) is not None and is_conversion(node):
            steps.insert(0, node)
            inner = node.input[0]
        inner_type = self.index.types.get(inner)
        rank = _find_rank(inner_type, find_rank(self.index, steps, self.stated, before=True))
        terms = layout_after(self.index, steps, AxisTerms.of_plain(rank), self.stated)
        kind = self._stated_type(name)
        node = self._find_producer(inner)
        pair = node if node is not None and is_quantize(node) else None
        around = node if node is not None and is_dequantize(node) and is_inserted(node) else None
        return self._build_contract(name, inner, kind, terms, steps, pair, around)

    def _build_contract(  # noqa: PLR0913, PLR0917 - what was found on the way
        self,
        name: str,
        inner: str,
        kind: TensorType,
        terms: AxisTerms | None,
        steps: Sequence[NodeProto],
        pair: NodeProto | None,
        around: NodeProto | None,
    ) -> TensorContract:
        """Build a contract, given the node that quantizes at the boundary or inside it, if any."""
        converts: dict[str, Converter] = {}
        layout = str(terms) if terms is not None else UNKNOWN_LAYOUT
        if layout:
            converts["layout"] = "host"
        elif any(node.op_type == "Transpose" for node in steps):
            converts["layout"] = "device"
        if pair is not None:
            converts["quantize"] = "host" if is_inserted(pair) else "model"
        elif around is not None:
            converts["quantize"] = "device"
        if includes_cast(steps):
            converts["cast"] = "device"
        scales = None if pair is None else read_scales(self.index, pair, self.folder)
        return TensorContract(
            tensor=inner,
            name=name,
            inner=inner,
            type=kind,
            logical=find_type(self.types, inner) or kind,
            layout=layout,
            **scale_fields(scales),
            converts=converts,
        )

    def _stated_type(self, name: str) -> TensorType:
        """Return the type that the model states; all boundary values are tensors."""
        kind = self.index.types.get(name)
        return kind if kind is not None else TensorType("float32", None)

    def _find_only_reader(self, name: str) -> NodeProto | None:
        readers = self.index.consumers.get(name, ())
        return self.index.nodes[readers[0]] if len(readers) == 1 else None

    def _find_producer(self, name: str) -> NodeProto | None:
        return find_producer(self.index, name)[1]


def _find_rank(kind: TensorType | None, found: int | None) -> int:
    """Return the rank of a tensor, or `found`, that of its layout steps, if its type gives none.

    Shape inference finds no shape for the outputs of a Loop. Without steps any rank is the plain layout.
    """
    shape = kind.shape if kind is not None else None
    return (found or 0) if shape is None else len(shape)


def _read_constants(
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

    Weights inside composites are included. The orders are those of `byoc.model.find_weights`. Raises
    InputError for a node that no runtime executes, and for shapes that contradict each other.
    """
    flat = inline_local_functions(region) if region.functions else region
    check_nodes(flat)
    try:
        flat = onnx.shape_inference.infer_shapes(flat)
    except onnx.shape_inference.InferenceError as error:
        raise InputError(f"not valid ONNX: {' '.join(str(error).split())}") from None
    found = find_weights(GraphIndex.of_model(flat))
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
    tensor = next(filter(None, (get_metadata(node, WEIGHT_KEY) for node in pairs)), name)
    logical = find_type(types, tensor)
    if logical is None:
        logical = kind if tensor == name else TensorType("float32", kind.shape)
    scales = {read_scales(index, node, folder) for node in pairs}
    return TensorContract(
        tensor=tensor,
        name=name,
        inner=name,
        type=packed or kind,
        logical=logical,
        layout=str(layout) if packed is not None else "",
        **scale_fields(scales.pop() if len(scales) == 1 else None),
    )


def _weight_permutation(order: str) -> list[int]:
    """Return the permutation that brings axes in some order into that of a Conv's weight."""
    return [order.index(axis) for axis in WEIGHT] if order else list(range(len(WEIGHT)))
