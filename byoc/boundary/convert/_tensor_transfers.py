"""The formats of boundary tensors, the conversions that they undergo, and the bytes that they transfer.

The order is that of the boundary stage (`byoc.boundary.convert`): towards the region a tensor is cast or
quantized first and brought into the target's layout last; on its way back the order is reversed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from onnx import TypeProto

from byoc.model import (
    DTYPE_NUMBERS,
    QUANTIZE,
    GraphIndex,
    LayoutStep,
    TensorLayout,
    TensorType,
    find_images,
    fix_type,
    get_purpose,
    is_dequantize,
    is_quantize,
)

ConvertedBy = Literal["host", "device"]


@dataclass(frozen=True)
class BoundaryFormat:
    """The form in which a target takes boundary tensors.

    `activations` is the layout of images, None for ONNX's own. `convert` says who quantizes and casts.
    `compute` is `float16` or `bfloat16` if regions compute in that type, None to follow the model.
    """

    activations: TensorLayout | None = None
    convert: Literal["host", "device"] = "host"
    compute: str | None = None


@dataclass(frozen=True)
class RegionBoundary:
    """A region of an outlined model, and the facts known about the tensors around it.

    `spatial` names the images (see `byoc.model._images`), `types` gives types, both by the names of the
    graph that the region was cut from.
    """

    region: str
    format: BoundaryFormat
    spatial: frozenset[str]
    types: Mapping[str, TypeProto]


@dataclass(frozen=True, slots=True)
class Conversion:
    """One operator of a conversion: ONNX's name for it, the types before and after it, and who runs it.

    `node` is the number of the node in the graph if byoc has inserted one already. `attributes` are
    those that are not the operator's defaults, by name. Equal conversions are the same work.
    """

    op: str
    by: ConvertedBy
    before: TensorType | None
    after: TensorType | None
    node: int | None = None
    attributes: tuple[tuple[str, int | tuple[int, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class TensorTransfer:
    """The transfer of a boundary tensor: its size in bytes, and the conversions in both directions.

    `converted_bytes` is the number of bytes that the host converts, `entering` the conversions on the
    way to the region in order, `leaving` those on the way back.
    """

    bytes: int
    converted_bytes: int
    entering: tuple[Conversion, ...]
    leaving: tuple[Conversion, ...]


def find_own_quantization(index: GraphIndex) -> frozenset[int]:
    """Return the numbers of byoc's own QuantizeLinear and DequantizeLinear nodes in a graph."""
    return frozenset(
        number
        for number, kind in enumerate(index.node_kinds)
        if kind.op_type in ("QuantizeLinear", "DequantizeLinear")
        and get_purpose(index.nodes[number]) == QUANTIZE
    )


def make_transfer_lookup(
    index: GraphIndex, wants: BoundaryFormat, own: frozenset[int] | None = None, fallback: int = 4096
) -> Callable[[str], TensorTransfer | None]:
    """Return a function from a tensor's name to its transfer, which is None for no conversion at all.

    A tensor made by a QuantizeLinear of byoc's is transferred quantized if the host converts, and as the
    float before it if the device does. A float32 tensor is transferred as `wants.compute` if the host
    casts. Images are transferred in the layout `wants.activations`, padded to whole blocks; the host
    converts layouts in both directions. `own` is `find_own_quantization(index)`, for callers that have
    it. For `bytes`, open dimensions have their planned
    sizes, an unknown extent counts as 1, and a tensor of unknown rank as `fallback` bytes.
    Takes time linear in the graph for all of its tensors together.
    """
    own = find_own_quantization(index) if own is None else own
    return _TransferLookup(index, wants, own, fallback).find


class _TransferLookup:
    def __init__(
        self, index: GraphIndex, wants: BoundaryFormat, own: frozenset[int], fallback: int
    ) -> None:
        self.index, self.wants, self.own, self.fallback = index, wants, own, fallback
        has_layout = wants.activations is not None and not wants.activations.is_plain
        self.images = find_images(index) if has_layout else frozenset()
        self.quantized = {index.nodes[i].output[0]: i for i in own if is_quantize(index.nodes[i])}
        self._seen: dict[tuple[TensorType, bool], TensorTransfer | None] = {}

    def find(self, name: str) -> TensorTransfer | None:
        if name in self.quantized:
            return self._quantized_transfer(name, self.quantized[name])
        if self.wants.compute is None and name not in self.images:
            return None
        kind = self.index.types.get(name)
        if kind is None:
            return None
        # Models have few distinct types, so each is worked out once.
        image = name in self.images
        key = kind, image
        if key not in self._seen:
            self._seen[key] = self._float_transfer(fix_type(kind, self.index.planned.sizes), image)
        return self._seen[key]

    def _find_type(self, name: str) -> TensorType | None:
        """Return the type of a tensor at the planned sizes of open dimensions."""
        kind = self.index.types.get(name)
        return None if kind is None else fix_type(kind, self.index.planned.sizes)

    def _float_transfer(self, kind: TensorType, image: bool) -> TensorTransfer | None:
        compute, by = self.wants.compute, self.wants.convert
        if compute is None or kind.dtype != "float32":
            return self._build_transfer(kind, (), (), image)
        target = replace(kind, dtype=compute)
        entering = (_cast_conversion(kind, target, by),)
        return self._build_transfer(kind, entering, (_cast_conversion(target, kind, by),), image)

    def _quantized_transfer(self, name: str, maker: int) -> TensorTransfer:
        """Return the transfer of the output of a QuantizeLinear of byoc's."""
        index, by = self.index, self.wants.convert
        source = index.nodes[maker].input[0]
        outer, inner = self._find_type(source), self._find_type(name)
        entering = (Conversion("QuantizeLinear", by, outer, inner, maker),)
        leaving = tuple(
            Conversion("DequantizeLinear", by, inner, outer, reader)
            for reader in index.consumers.get(name, ())
            if reader in self.own and is_dequantize(index.nodes[reader])
        )[:1]  # however many read it, it is converted once
        image = name in self.images or source in self.images
        found = self._build_transfer(outer, entering, leaving, image)
        return found or TensorTransfer(self._transfer_bytes(inner), 0, (), ())

    def _build_transfer(
        self,
        kind: TensorType | None,
        entering: tuple[Conversion, ...],
        leaving: tuple[Conversion, ...],
        image: bool,
    ) -> TensorTransfer | None:
        """Return the transfer of a tensor with the given changes of dtype, which may be an image."""
        crossing = entering[-1].after if entering and entering[-1].by == "host" else kind
        layout = self.wants.activations
        packed = layout.pack_type(crossing) if layout and image and crossing else None
        if layout and crossing and packed:
            target = _layout_conversions(crossing, layout.make_pack_steps(crossing))
            back = _layout_conversions(packed, layout.make_unpack_steps(crossing))
            device = [each for each in (*entering, *leaving) if each.by == "device"]
            if device:
                entering, leaving = (*target, *entering), (*leaving, *back)
            else:
                entering, leaving = (*entering, *target), (*back, *leaving)
        if not entering and not leaving:
            return None
        size = self._transfer_bytes(packed or crossing)
        host = any(each.by == "host" for each in (*entering, *leaving))
        return TensorTransfer(size, size if host else 0, entering, leaving)

    def _transfer_bytes(self, kind: TensorType | None) -> int:
        if kind is None or kind.shape is None:
            return self.fallback
        shape = tuple(dim if isinstance(dim, int) else 1 for dim in kind.shape)
        return TensorType(kind.dtype, shape).bytes or 0


def _cast_conversion(before: TensorType, after: TensorType, by: ConvertedBy) -> Conversion:
    return Conversion("Cast", by, before, after, attributes=(("to", DTYPE_NUMBERS[after.dtype]),))


def _layout_conversions(kind: TensorType, steps: Sequence[LayoutStep]) -> tuple[Conversion, ...]:
    """Return the steps into or out of a layout as conversions, without those that move no data."""
    kinds = [kind, *(step.output_type for step in steps)]
    return tuple(
        Conversion(
            step.op,
            "host",
            before,
            after,
            attributes=(("perm", step.argument),) if step.op == "Transpose" else (),
        )
        for step, (before, after) in zip(steps, pairwise(kinds), strict=True)
        if step.op != "Reshape"
    )
