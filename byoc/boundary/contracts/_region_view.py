"""The region view of a boundary, read from the region's own model and nothing else.

The first nodes after an input show its form at the boundary: layout conversions of byoc's, a Cast, a
DequantizeLinear. The last nodes before an output show it in the same way.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
from onnx import NodeProto, TypeProto

from byoc.boundary.contracts import _axis_terms as axes
from byoc.boundary.contracts._boundary_nodes import (
    find_rank_after,
    find_rank_before,
    find_shape,
    includes_cast,
    is_conversion,
    layout_after,
    layout_before,
    read_scales,
)
from byoc.boundary.contracts._constant_contracts import read_constant_contracts
from byoc.boundary.contracts._tensor_contract import Converter, TensorContract
from byoc.model import (
    GraphIndex,
    TensorLayout,
    TensorType,
    clear_output_shapes,
    get_stated_types,
    is_dequantize,
    is_inserted,
    is_quantize,
    read_tensor_types,
    read_type,
)


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
    typed = onnx.shape_inference.infer_shapes(bare, data_prop=True)
    return GraphIndex(typed, get_stated_types(typed))


def read_region_contracts(
    region: onnx.ModelProto,
    types: Mapping[str, TypeProto],
    folder: Path | None = None,
    weights: TensorLayout | None = None,
    index: GraphIndex | None = None,
) -> RegionContracts:
    """Read the contracts of a region from its model.

    `types` gives the types of the user's tensors by name, `folder` is the directory of external data,
    and `weights` the layout of convolution weights for the target. `index` is `inferred(region)` if the
    caller has it. A dtype or shape that cannot be inferred is the one that the model states.
    """
    reader = _RegionReader(
        index or infer_region_types(region), types, folder, read_tensor_types(get_stated_types(region))
    )
    return RegionContracts(
        tuple(reader.read_input(value.name) for value in region.graph.input),
        tuple(reader.read_output(value.name) for value in region.graph.output),
        read_constant_contracts(reader.index, types, folder, weights),
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
        known = self._user_type(inner)
        rank = self._find_rank(known, inner, find_rank_after(self.index, steps, self.stated))
        terms = layout_before(self.index, steps, axes.plain_terms(rank), self.stated)
        kind = stated
        if known is not None:
            shape = known.shape
            if steps:
                shape = stated.shape if shape is None or terms is None else axes.pack_shape(shape, terms)
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
        rank = self._find_rank(inner_type, inner, find_rank_before(self.index, steps, self.stated))
        terms = layout_after(self.index, steps, axes.plain_terms(rank), self.stated)
        kind = self.index.types.get(name) or self._stated_type(name)
        node = self._find_producer(inner)
        pair = node if node is not None and is_quantize(node) else None
        around = node if node is not None and is_dequantize(node) and is_inserted(node) else None
        contract = self._build_contract(name, inner, kind, terms, steps, pair, around)
        return replace(contract, tensor=self._find_source(inner))

    def _find_source(self, name: str) -> str:
        """Return the tensor before byoc's own quantization inside the region."""
        while (node := self._find_producer(name)) is not None and is_inserted(node):
            name = node.input[0]
        return name

    def _build_contract(  # noqa: PLR0913, PLR0917 - what was found on the way
        self,
        name: str,
        inner: str,
        kind: TensorType,
        terms: axes.AxisTerms | None,
        steps: Sequence[NodeProto],
        pair: NodeProto | None,
        around: NodeProto | None,
    ) -> TensorContract:
        """Build a contract, given the node that quantizes at the boundary or inside it, if any."""
        converts: dict[str, Converter] = {}
        layout = axes.format_terms(terms) if terms is not None else axes.UNKNOWN_LAYOUT
        if layout:
            converts["layout"] = "host"
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
            logical=self._user_type(inner) or kind,
            layout=layout,
            scale=None if scales is None else scales.scale,
            zero_point=None if scales is None else scales.zero_point,
            axis=None if scales is None else scales.axis,
            converts=converts,
        )

    def _stated_type(self, name: str) -> TensorType:
        """Return the type that the model states; all boundary values are tensors."""
        kind = self.index.types.get(name)
        return kind if kind is not None else TensorType("float32", None)

    def _find_rank(self, kind: TensorType | None, name: str, found: int | None) -> int:
        """Return the rank of a tensor, or `found` if neither its type nor the model gives one.

        Shape inference finds no shape for the outputs of a Loop; the model or the layout steps then give
        the rank.
        """
        shape = kind.shape if kind is not None else None
        if shape is None:
            shape = find_shape(self.index, name, self.stated)
        return (found or 0) if shape is None else len(shape)

    def _user_type(self, name: str) -> TensorType | None:
        """Return the type of a tensor in the user's model."""
        return read_type(self.types[name]) if name in self.types else None

    def _find_only_reader(self, name: str) -> NodeProto | None:
        readers = self.index.consumers.get(name, ())
        return self.index.nodes[readers[0]] if len(readers) == 1 else None

    def _find_producer(self, name: str) -> NodeProto | None:
        number = self.index.producers.get(name)
        return None if number is None else self.index.nodes[number]
