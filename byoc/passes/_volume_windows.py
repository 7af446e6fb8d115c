"""The windows of 3-D convolutions and pools, by their depth, and the extents of volumes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from byoc.model import GraphIndex, get_stated_attributes, set_attribute

RANK = 5  # of a batch of volumes with channels
DEPTH = 2  # the axis of frames

WEIGHTS = {"Conv": 1, "ConvInteger": 1, "ConvTranspose": 1, "QLinearConv": 3}
"""The operators of convolution, and the position of their weights."""

_WINDOW = ("kernel_shape", "strides", "dilations", "output_shape", "output_padding")
"""The attributes of a window with a number for each axis; `pads` has two."""

ZERO_POINTS = {"ConvInteger": 2, "QLinearConv": 2}
"""The position of the zero point of what some of them read."""
POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})
GLOBAL_POOLS = frozenset({"GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"})
Extent = int | None
Dims = tuple[Extent, Extent, Extent, Extent, Extent]
Tap = Sequence[int | None]
"""For each frame that is made the one that is read, None for one of padding."""


def read_dims(index: GraphIndex, name: str) -> Dims | None:
    """Return the extents of a volume; None unless all are known but one of batch, rows and columns."""
    shape = index.get_shape(name)
    if shape is None or len(shape) != RANK:
        return None
    n, c, d, h, w = (each if isinstance(each, int) else None for each in shape)
    if not c or not d or [n, h, w].count(None) > 1 or 0 in (n, h, w):
        return None
    return n, c, d, h, w


def multiply(one: Extent, other: Extent) -> Extent:
    """Return the product of two extents, None where one is not known."""
    return None if one is None or other is None else one * other


def restate(tensor: TensorProto, dims: Iterable[int]) -> TensorProto:
    """Return a stored tensor with other extents, wherever its data is."""
    made = TensorProto()
    made.CopyFrom(tensor)
    made.dims[:] = list(dims)
    return made


def to_tensor(value: NDArray[Any]) -> TensorProto:
    """Return an array as a stored tensor."""
    return numpy_helper.from_array(np.ascontiguousarray(value))


@dataclass(frozen=True)
class Window:
    """The window of a convolution or pool over volumes; `pads` are those before and behind its depth.

    `is_along_depth` says that it has one element of each frame, and `depths` are those of what is read
    and made.
    """

    kernel: tuple[int, ...]
    stride: int
    dilation: int
    pads: tuple[int, int]
    is_along_depth: bool
    depths: tuple[int, int]

    @classmethod
    def of_node(cls, index: GraphIndex, number: int) -> "Window | None":
        """Return the window of a node; None where it is not known."""
        node, op = index.nodes[number], index.node_kinds[number].op_type
        stated = get_stated_attributes(node)
        given, made = (
            read_dims(index, name)
            for name in (index.node_inputs[number][0], index.node_outputs[number][0])
        )
        shape: Any = stated.get("kernel_shape")
        if shape is None and op in WEIGHTS:
            shape = (index.get_shape(index.node_inputs[number][WEIGHTS[op]]) or ())[2:]
        if shape is None or len(shape) != RANK - 2 or not all(isinstance(each, int) for each in shape):
            return None
        depths = given[DEPTH] if given else None, made[DEPTH] if made else None
        if not depths[0] or not depths[1]:
            return None
        strides, dilations = (stated.get(each, [1, 1, 1]) for each in ("strides", "dilations"))
        pads = stated.get("pads", [0] * 6)
        shapes = any(any(stated.get(each, ())) for each in ("output_shape", "output_padding"))
        along = (
            [*shape[1:], *strides[1:]] == [1, 1, 1, 1]
            and not any([*pads[1:3], *pads[4:]])
            and not shapes
        )
        own = cls(
            tuple(shape),
            strides[0],
            dilations[0],
            (pads[0], pads[3]),
            along,
            (depths[0], depths[1]),
        )
        return own._pad(stated, op)

    def _pad(self, stated: Mapping[str, Any], op: str) -> "Window | None":
        """Return the window with the padding along its depth that it leaves to `auto_pad`."""
        automatic = stated.get("auto_pad", "NOTSET")
        if automatic == "VALID":
            return self._with_pads(0, 0)
        if op == "ConvTranspose" and (automatic != "NOTSET" or stated.get("output_shape")):
            return (
                self._with_pads(0, 0)
                if not self.has_depth and self.depths[0] == self.depths[1]
                else None
            )
        if automatic == "NOTSET":
            return self
        # As ONNX has it: a window for every `stride` frames, an odd one more behind for SAME_UPPER.
        given, made = self.depths
        total = (made - 1) * self.stride + (self.kernel[0] - 1) * self.dilation + 1 - given
        if total < 0 and self.has_depth:
            return None  # onnxruntime cuts what is not under any window
        less, more = max(total, 0) // 2, max(total, 0) - max(total, 0) // 2
        return self._with_pads(*((less, more) if automatic == "SAME_UPPER" else (more, less)))

    def _with_pads(self, before: int, behind: int) -> "Window":
        return Window(
            self.kernel, self.stride, self.dilation, (before, behind), self.is_along_depth, self.depths
        )

    @property
    def has_depth(self) -> bool:
        """Whether the window reads other frames than those that it makes one of."""
        return self.kernel[0] > 1 or self.stride > 1 or any(self.pads)

    def list_taps(self, transposed: bool) -> list[Tap]:
        """Return for each step of the kernel along the depth which frames are under it."""
        given, made = self.depths
        taps: list[Tap] = []
        for step in range(self.kernel[0]):
            shift = step * self.dilation - self.pads[0]
            if transposed:  # which frame adds to one, through this step
                places = [frame - shift for frame in range(made)]
                found = [each // self.stride if each % self.stride == 0 else -1 for each in places]
            else:
                found = [frame * self.stride + shift for frame in range(made)]
            taps.append([place if 0 <= place < given else None for place in found])
        return taps


def drop_depth(node: NodeProto) -> None:
    """Remove the depth from the attributes of a window."""
    stated = get_stated_attributes(node)
    for name in _WINDOW:
        if name in stated:
            set_attribute(node, helper.make_attribute(name, stated[name][1:]))
    if "pads" in stated:
        pads = stated["pads"]
        set_attribute(node, helper.make_attribute("pads", [*pads[1:3], *pads[4:]]))


def keep_depth(node: NodeProto) -> None:
    """Leave the depth alone in the attributes of a window, along rows; columns have a window of one."""
    stated = get_stated_attributes(node)
    for name in _WINDOW:
        if name in stated:
            one = 0 if name == "output_padding" else 1
            set_attribute(node, helper.make_attribute(name, [stated[name][0], one]))
    if "pads" in stated:
        pads = stated["pads"]
        set_attribute(node, helper.make_attribute("pads", [pads[0], 0, pads[3], 0]))
