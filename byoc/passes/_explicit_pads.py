"""A pass that writes out the padding that convolutions and pools leave to `auto_pad`."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

from onnx import NodeProto, helper

from byoc.model import get_stated_attributes
from byoc.passes._cleaning import CleanPass
from byoc.passes._graph_edits import GraphEdits

_AUTOMATIC = ("SAME_UPPER", "SAME_LOWER", "VALID")
# Which input of a convolution has its weights.
_WEIGHTS = {"Conv": 1, "ConvInteger": 1, "QLinearConv": 3}


@dataclass(frozen=True)
class ExplicitPads(CleanPass):
    """Write the pads of convolutions and pools that state `auto_pad`: many targets take pads alone.

    SAME needs an image of known size. These stay: a window with dilations, which onnxruntime refuses
    under SAME; a pool with `ceil_mode`; and under SAME a pool whose stride is larger than its window, or
    a convolution whose last window ends three elements and more before the image does, where onnxruntime
    cuts the image as if its padding were negative.
    """

    name: ClassVar[str] = "explicit-pads"
    operators: ClassVar[frozenset[str]] = frozenset({*_WEIGHTS, "AveragePool", "LpPool", "MaxPool"})

    def edit(self, edits: GraphEdits, numbers: Sequence[int]) -> None:
        """Replace the nodes whose padding is known."""
        for number in numbers:
            node = edits.index.nodes[number]
            stated = get_stated_attributes(node)
            if stated.get("auto_pad") not in _AUTOMATIC or number in edits.index.constant_nodes:
                continue
            pads = _find_pads(edits, node, stated)
            if pads is None:
                continue
            edits.note_replaced(number, f"had auto_pad {stated['auto_pad']}")
            edits.replace(number, _write_pads(node, pads))


def _find_pads(edits: GraphEdits, node: NodeProto, stated: Mapping[str, Any]) -> list[int] | None:
    """Return the padding before and behind each axis, None where it is not known.

    SAME pads so that there is a window for every `stride` elements (ONNX, Conv): of an odd padding the
    element more is behind the image for SAME_UPPER, before it for SAME_LOWER.
    """
    kernel = _find_kernel(edits, node, stated)
    if kernel is None:
        return None
    ones = [1] * len(kernel)
    strides, dilations = stated.get("strides", ones), stated.get("dilations", ones)
    is_pool = node.op_type not in _WEIGHTS
    if dilations != ones or (is_pool and stated.get("ceil_mode", 0)):
        return None
    if stated["auto_pad"] == "VALID":
        return [0] * (2 * len(kernel))
    shape = None if edits.known is None else edits.known.find_shape(node.input[0])
    if shape is None or len(shape) != len(kernel) + 2:
        return None
    pairs = []
    for extent, size, stride in zip(shape[2:], kernel, strides, strict=True):
        whole = None if is_pool and stride > size else _find_padding(extent, size, stride)
        if whole is None:
            return None
        less, more = whole // 2, whole - whole // 2
        pairs.append((less, more) if stated["auto_pad"] == "SAME_UPPER" else (more, less))
    return [first for first, _ in pairs] + [last for _, last in pairs]


def _find_padding(extent: int | str | None, size: int, stride: int) -> int | None:
    """Return by how much SAME pads an axis, before and behind together, None where that is not known.

    It is not known to be 0 where onnxruntime cuts three elements and more, the first one among them.
    """
    if not isinstance(extent, int):
        return None
    windows = -(-extent // stride)
    wanted = (windows - 1) * stride + size - extent
    return max(wanted, 0) if wanted > -3 else None


def _find_kernel(
    edits: GraphEdits, node: NodeProto, stated: Mapping[str, Any]
) -> tuple[int, ...] | None:
    """Return the extents of the window, those of the weights unless the node states them."""
    if "kernel_shape" in stated:
        return tuple(stated["kernel_shape"])
    shape = None if edits.known is None else edits.known.find_shape(node.input[_WEIGHTS[node.op_type]])
    extents = () if shape is None else shape[2:]
    known = tuple(each for each in extents if isinstance(each, int))
    return known if extents and len(known) == len(extents) else None


def _write_pads(node: NodeProto, pads: Sequence[int]) -> NodeProto:
    written = deepcopy(node)
    kept = [each for each in node.attribute if each.name not in ("auto_pad", "pads")]
    del written.attribute[:]
    written.attribute.extend([*kept, helper.make_attribute("pads", pads)])
    return written
