"""The formats of boundary tensors, the conversions that they undergo, and the bytes that they transfer.

The order is that of the boundary stage (`byoc.boundary.convert`): towards the region a tensor is cast or
quantized first and brought into the target's layout last; on its way back the order is reversed.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
from onnx import FunctionProto, ModelProto, NodeProto, TypeProto

from byoc._dataclasses import dataclass, field, replace
from byoc.model import (
    DTYPE_NUMBERS,
    LAYOUT,
    QUANTIZE,
    EditableGraph,
    EditableModel,
    GraphIndex,
    LayoutStep,
    TensorLayout,
    TensorType,
    build_node,
    find_constant_value,
    find_images,
    fix_type,
    get_input,
    get_purpose,
    is_dequantize,
    is_quantize,
    mark_inserted,
    rename_tensors,
    replace_names,
)

# Editing of an outlined model: its regions by name, and the contents of new tensors.


class RegionCall:
    """A call of a region: the calling node, the graph that it is in, and the nodes inside the region.

    Inputs and outputs of call and function correspond by position; at first they have the same names
    outside and inside.
    """

    def __init__(self, node: NodeProto, scope: EditableGraph, function: FunctionProto) -> None:
        """Take a node that calls a function."""
        self.node = node
        self.scope = scope
        self.function = function
        self.inside = EditableGraph(function)

    def replace_input(self, position: int, name: str, *steps: NodeProto, inside: str = "") -> None:
        """Let the region read `name` at an input, and make its former input by `steps`.

        The function's input is named `inside`, or the same as outside.
        """
        self.node.input[position] = name
        self.function.input[position] = inside or name
        self.inside.insert_first(*steps)

    def replace_output(self, position: int, name: str, *steps: NodeProto, inside: str = "") -> None:
        """Let the region return `name` at an output, which `steps` make of its former output."""
        self.node.output[position] = name
        self.function.output[position] = inside or name
        self.inside.insert_last(*steps)

    def rename_inside(self, names: Mapping[str, str]) -> None:
        """Rename the function's inputs and outputs like those of the call."""
        function = self.function
        inner: dict[str, str] = {}
        for ports, formals in ((self.node.input, function.input), (self.node.output, function.output)):
            pairs = zip(ports, formals, strict=True)
            inner |= {formal: names[outside] for outside, formal in pairs if outside in names}
        replace_names(function.input, inner)
        replace_names(function.output, inner)
        for node in self.inside.nodes:
            rename_tensors(node, inner)


class ModelEditor(EditableModel):
    """A model while its boundaries are edited: the graphs inside it, and `calls` by the region's name.

    Names are unique in the model, so `types` hold in each graph. `origins` names the user's tensor whose
    content each inserted one holds. `notes` are sentences for the user.
    """

    def __init__(self, model: ModelProto) -> None:
        """Take an outlined model, which is edited in place."""
        super().__init__(model)
        self.notes: list[str] = []
        self.origins: dict[str, str] = {}
        functions = {(f.domain, f.name): f for f in model.functions if f.domain.startswith("byoc.")}
        domains = {domain for domain, _ in functions}
        self.calls = {
            node.op_type: RegionCall(node, scope, functions[node.domain, node.op_type])
            for scope in self.scopes
            for node in scope.nodes
            if node.domain in domains and (node.domain, node.op_type) in functions
        }

    @property
    def opset(self) -> int:
        """The version of ONNX's operators in the model and its regions, 0 if it uses none."""
        versions = (e.version for e in self.model.opset_import if e.domain in ("", "ai.onnx"))
        return next(versions, 0)

    def new_name(self, name: str, of: str = "") -> str:
        """Return a name that is not in the model: `name`, or that with a number.

        `of` is the tensor whose content the new one holds in another form; see `find_origin`.
        """
        new = self.names.new_tensor(name)
        if of:
            self.origins[new] = self.find_origin(of)
        return new

    def find_origin(self, name: str) -> str:
        """Return the user's tensor whose content a tensor holds."""
        return self.origins.get(name, name)

    def add_tensor(self, name: str, kind: TypeProto | None, of: str = "") -> str:
        """Return a free name for a tensor and record its type."""
        new = self.new_name(name, of)
        if kind is not None:
            self.types[new] = kind
        return new

    def rename_tensors(self, node: NodeProto, names: Mapping[str, str]) -> list[NodeProto]:
        """Rename the tensors that a node reads and makes; those of a region also inside it.

        If a name is already taken in a region, the region receives a copy; the nodes that make the
        copies are returned and must be placed before the node.
        """
        call = self.calls.get(node.op_type)
        copies: list[NodeProto] = []
        if call is not None and call.node is node:
            names, copies = self._avoid_collisions(call, names)
            call.rename_inside(names)
        replace_names(node.input, names)
        replace_names(node.output, names)
        return copies

    def _avoid_collisions(
        self, call: RegionCall, names: Mapping[str, str]
    ) -> tuple[dict[str, str], list[NodeProto]]:
        """Return names that a region's function can use, and nodes that make the copies among them."""
        made = (name for node in call.inside.nodes for name in node.output)
        taken = {*call.function.input, *call.function.output, *made}
        result: dict[str, str] = {}
        copies = []
        for old in dict.fromkeys((*call.node.input, *call.node.output)):
            new = names.get(old, "")
            if new in taken:
                copy = self.add_tensor(new, self.types.get(old), old)
                node = build_node("Identity", [new], [copy], f"{call.node.name}_{copy}")
                copies.append(mark_inserted(node, LAYOUT))
                new = copy
            if new:
                taken.add(new)
                result[old] = new
        return result, copies

    def finish(self) -> ModelProto:
        """Write all nodes and the types of new tensors back, those in regions, too."""
        for call in self.calls.values():
            call.inside.write_to(call.function)
        return super().finish()


def find_owner(
    scope: EditableGraph, name: str, own_names: Mapping[EditableGraph, Collection[str]]
) -> EditableGraph:
    """Return the graph that a tensor is in, this one or one around it; this one if it is in none."""
    return next((around for around in scope.walk_outward() if name in own_names[around]), scope)


ConvertedBy = Literal["host", "device"]


@dataclass(frozen=True)
class AskedTranspose:
    """A Transpose by `order` of an image of type `kind`, which a target may take or not.

    `quantization` is the scale and the zero point of a quantized image.
    """

    kind: TensorType
    order: tuple[int, ...]
    quantization: tuple[float, int] | None = None


@dataclass(frozen=True)
class BoundaryFormat:
    """The form in which a target takes boundary tensors.

    `activations` is the layout of images, None for ONNX's own. `convert` says who quantizes and casts.
    `compute` is `float16` or `bfloat16` if regions compute in that type, None to follow the model.
    `takes_transpose` says which Transposes of images the target can run itself at its boundary; None if
    the host runs them all.
    """

    activations: TensorLayout | None = None
    convert: ConvertedBy = "host"
    compute: str | None = None
    takes_transpose: Callable[[AskedTranspose], bool] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class TransposeShares:
    """The prices of an image's Transposes inside a region, as shares of their prices on the host.

    `entering` is where it enters a region, `leaving` where it leaves; None where the host transposes.
    """

    entering: float | None = None
    leaving: float | None = None


@dataclass(frozen=True)
class RegionBoundary:
    """A region of an outlined model, and the facts known about the tensors around it.

    `spatial` names the images (see `byoc.model._layouts`), `types` gives types, both by the names of the
    graph that the region was cut from.
    """

    region: str
    format: BoundaryFormat
    spatial: frozenset[str]
    types: Mapping[str, TypeProto]
    shares: Mapping[str, TransposeShares] = field(default_factory=dict)
    """Of the images that the region may transpose itself, by name."""


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
    offer: "TransposeOffer | None" = None


@dataclass(frozen=True, slots=True)
class TransposeOffer:
    """The conversions of an image that the target transposes at its boundary instead of the host.

    `entering` and `leaving` are its Transposes, None where its rules refuse one; the others are the
    conversions that are left, and the bytes that the host still converts.
    """

    entering: Conversion | None
    leaving: Conversion | None
    other_entering: tuple[Conversion, ...]
    other_leaving: tuple[Conversion, ...]
    other_bytes: int


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
        self.captured = frozenset(index.captured_names)
        self.quantized = {index.nodes[i].output[0]: i for i in own if is_quantize(index.nodes[i])}
        self._seen: dict[tuple[TensorType, bool, AskedTranspose | None], TensorTransfer | None] = {}

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
        key = kind, image, self._ask(name, kind) if image else None
        if key not in self._seen:
            fixed = fix_type(kind, self.index.planned.sizes)
            self._seen[key] = self._float_transfer(fixed, image, key[-1])
        return self._seen[key]

    def _ask(self, name: str, kind: TensorType | None) -> AskedTranspose | None:
        """Return the question whether the target transposes an image; None where the host does.

        That needs a layout without blocks, known extents, and one scale where numbers are quantized. In
        another type than the model's, regions have conversions of their own at their boundary.
        """
        wants = self.wants
        if wants.takes_transpose is None or wants.compute is not None or kind is None:
            return None
        if wants.activations is None or wants.activations.blocks or name in self.captured:
            return None
        if kind.shape is None or not all(isinstance(dim, int) for dim in kind.shape):
            return None
        readers = [self.index.nodes[i] for i in self.index.consumers.get(name, ())]
        maker = self.index.producers.get(name)
        around = [node for node in readers if is_dequantize(node) and node.input[0] == name]
        around += [self.index.nodes[maker]] if maker is not None else []
        node = next((node for node in around if is_quantize(node) or is_dequantize(node)), None)
        if node is None or (is_dequantize(node) and node.output[0] == name):
            return AskedTranspose(kind, ())
        scale = find_constant_value(self.index, node.input[1])
        given = get_input(node, 2)
        zero = find_constant_value(self.index, given) if given else np.zeros(1)
        if scale is None or zero is None or scale.size != 1:
            return None
        return AskedTranspose(kind, (), (float(scale.ravel()[0]), int(zero.ravel()[0])))

    def _find_type(self, name: str) -> TensorType | None:
        """Return the type of a tensor at the planned sizes of open dimensions."""
        kind = self.index.types.get(name)
        return None if kind is None else fix_type(kind, self.index.planned.sizes)

    def _float_transfer(
        self, kind: TensorType, image: bool, asked: AskedTranspose | None
    ) -> TensorTransfer | None:
        compute, by = self.wants.compute, self.wants.convert
        if compute is None or kind.dtype != "float32":
            return self._build_transfer(kind, (), (), image, asked)
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
        image = name in self.images  # as its float is: a QuantizeLinear keeps the axes
        asked = self._ask(name, self.index.types.get(name)) if image and by == "host" else None
        found = self._build_transfer(outer, entering, leaving, image, asked)
        return found or TensorTransfer(self._transfer_bytes(inner), 0, (), ())

    def _build_transfer(
        self,
        kind: TensorType | None,
        entering: tuple[Conversion, ...],
        leaving: tuple[Conversion, ...],
        image: bool,
        asked: AskedTranspose | None = None,
    ) -> TensorTransfer | None:
        """Return the transfer of a tensor with the given changes of dtype, which may be an image.

        `asked` is the question whether the target transposes it, without the order of the axes.
        """
        offer = None
        crossing = entering[-1].after if entering and entering[-1].by == "host" else kind
        layout = self.wants.activations
        packed = layout.pack_type(crossing) if layout and image and crossing else None
        if layout and crossing and packed:
            target = _layout_conversions(crossing, layout.make_pack_steps(crossing))
            back = _layout_conversions(packed, layout.make_unpack_steps(crossing))
            offer = self._build_offer(asked, entering, leaving, (target, back), packed)
            device = [each for each in (*entering, *leaving) if each.by == "device"]
            if device:
                entering, leaving = (*target, *entering), (*leaving, *back)
            else:
                entering, leaving = (*entering, *target), (*back, *leaving)
        if not entering and not leaving:
            return None
        size = self._transfer_bytes(packed or crossing)
        host = any(each.by == "host" for each in (*entering, *leaving))
        return TensorTransfer(size, size if host else 0, entering, leaving, offer)

    def _build_offer(
        self,
        asked: AskedTranspose | None,
        entering: tuple[Conversion, ...],
        leaving: tuple[Conversion, ...],
        layout: tuple[tuple[Conversion, ...], tuple[Conversion, ...]],
        packed: TensorType,
    ) -> TransposeOffer | None:
        """Return the Transposes, `layout` on the host, that the target can run instead of it."""
        takes = self.wants.takes_transpose
        if asked is None or takes is None:
            return None
        kinds = asked.kind, replace(asked.kind, shape=packed.shape)
        found: list[Conversion | None] = []
        for steps, kind in zip(layout, kinds, strict=True):
            order = dict(steps[0].attributes)["perm"] if steps else ()
            assert isinstance(order, tuple)
            taken = bool(steps) and takes(replace(asked, kind=kind, order=order))
            found.append(replace(steps[0], by="device") if taken else None)
        if found == [None, None]:
            return None
        host = any(each.by == "host" for each in (*entering, *leaving))
        left = self._transfer_bytes(packed) if host else 0
        return TransposeOffer(found[0], found[1], entering, leaving, left)

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
