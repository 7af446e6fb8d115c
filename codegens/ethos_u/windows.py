"""Windows that move over images: what convolutions and pools have in common."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from byoc.codegen import Operation

from .lowering import IMAGE, Lowering, Value, arrange
from .tosa_file import Array
from .tosa_graph import Tensor

_MOST_STEP = 3  # stride that Vela takes with padding


@dataclass(frozen=True)
class Window:
    """The moves of a window: pads above, below, left and right, and steps of height and width.

    `shape` is that of the result, NHWC.
    """

    shape: tuple[int, ...]
    pads: tuple[int, ...] = (0, 0, 0, 0)
    strides: tuple[int, ...] = (1, 1)
    dilations: tuple[int, ...] = (1, 1)

    @property
    def pool(self) -> dict[str, Any]:
        """The attributes of a pool."""
        return {"pad": self.pads, "stride": self.strides}

    @property
    def convolution(self) -> dict[str, Any]:
        """The attributes of CONV2D and DEPTHWISE_CONV2D."""
        return {**self.pool, "dilation": self.dilations}


@dataclass(frozen=True, eq=False)
class Filters:
    """Filters of an operator: int8 weights in its layout, and a bias in units of the sums."""

    op: str
    weights: Array
    bias: Array


def read_image(source: Value, lowering: Lowering) -> Value:
    """Return an operand in NHWC; rows, which have rank 3, become images of height 1."""
    if source.rank == 3:
        batch, channels, width = source.shape
        rows = arrange(lowering.graph, source, (0, 2, 1))
        tensor = lowering.graph.reshape(rows.tensor, (batch, 1, width, channels))
        return replace(source, tensor=tensor, order=IMAGE)
    return arrange(lowering.graph, source, IMAGE)


def order_image(shape: Sequence[int]) -> tuple[int, ...]:
    """Return extents of an image, or of rows, in NHWC."""
    if len(shape) == 3:
        return shape[0], 1, shape[2], shape[1]
    return tuple(shape[axis] for axis in IMAGE)


def read_pair(operation: Operation, name: str) -> tuple[int, ...]:
    """Return an attribute of height and width, 1 where it is not stated; that of rows has height 1."""
    values = tuple(int(each) for each in operation.attributes.get(name) or (1, 1))
    return (1, *values) if len(values) == 1 else values


def fit_window(
    image: Value, lowering: Lowering, operation: Operation, kernel: Sequence[int]
) -> tuple[Value, Window]:
    """Return an image, and a window that ends at its last row and column.

    TOSA asks that height plus pads less window be a multiple of the stride. What no window reads is cut
    off.
    """
    shape = order_image(lowering.shape(operation))
    strides, dilations = read_pair(operation, "strides"), read_pair(operation, "dilations")
    begins = find_begins(operation, image.tensor.shape[1:3], shape[1:3], kernel)
    pads, extents = list[int](), list(image.tensor.shape)
    for axis in (0, 1):
        reach = (shape[1 + axis] - 1) * strides[axis] + (kernel[axis] - 1) * dilations[axis] + 1
        end = reach - begins[axis] - extents[1 + axis]
        extents[1 + axis] += min(end, 0)
        pads += [begins[axis], max(end, 0)]
    tensor = lowering.graph.slice(image.tensor, [0] * 4, extents)
    return replace(image, tensor=tensor), Window(shape, tuple(pads), strides, dilations)


def pad_ahead(image: Value, lowering: Lowering, window: Window, filler: int) -> tuple[Value, Window]:
    """Return an image with its padding, and a window without pads, for steps above 3.

    Vela takes such steps where there is neither padding nor dilation.
    """
    if max(window.strides) <= _MOST_STEP or not any(window.pads):
        return image, window
    top, bottom, left, right = window.pads
    pads = [(0, 0), (top, bottom), (left, right), (0, 0)]
    padded = replace(image, tensor=lowering.graph.pad(image.tensor, pads, filler))
    return padded, replace(window, pads=(0, 0, 0, 0))


def find_begins(
    operation: Operation, inside: Sequence[int], outside: Sequence[int], kernel: Sequence[int]
) -> tuple[int, ...]:
    """Return the rows above and the columns left of an image that an operator's pads add.

    A window of `kernel` moves over `inside` rows and columns, and is in `outside` places.
    """
    auto = operation.attributes.get("auto_pad", "NOTSET")
    auto = auto.decode() if isinstance(auto, bytes) else auto
    if auto == "VALID":
        return 0, 0
    if auto == "NOTSET":
        pads = [int(pad) for pad in operation.attributes.get("pads") or [0] * 4]
        return (0, pads[0]) if len(pads) == 2 else (pads[0], pads[1])
    strides, dilations = read_pair(operation, "strides"), read_pair(operation, "dilations")
    begins = list[int]()
    for axis in (0, 1):
        reach = (outside[axis] - 1) * strides[axis] + (kernel[axis] - 1) * dilations[axis] + 1
        total = max(reach - inside[axis], 0)
        begins.append(total // 2 if auto == "SAME_UPPER" else total - total // 2)
    return tuple(begins)


def convolve(lowering: Lowering, source: Value, filters: Filters, attributes: dict[str, Any]) -> Tensor:
    """Return the sums of a convolution; `shape` among the attributes is that of the result."""
    assert source.quantization is not None
    graph = lowering.graph
    kind = "int48" if source.tensor.dtype == "int16" else "int32"
    operands = [
        source.tensor,
        graph.constant(filters.weights, "int8"),
        graph.constant(filters.bias, kind),
    ]
    point = int(source.quantization.zero_point)
    rest = {name: value for name, value in attributes.items() if name != "shape"}
    return graph.convolve(filters.op, operands, point, attributes["shape"], rest)


def convolve_depthwise(image: Value, lowering: Lowering, weights: Array, window: Window) -> Tensor:
    """Return the sums of a DEPTHWISE_CONV2D without a bias; weights are [h, w, channels, multiplier]."""
    bias = np.zeros(weights.shape[2] * weights.shape[3], np.int64)
    filters = Filters("DEPTHWISE_CONV2D", weights, bias)
    return convolve(lowering, image, filters, {"shape": window.shape, **window.convolution})


def convolve_ones(image: Value, lowering: Lowering, kernel: Sequence[int], window: Window) -> Tensor:
    """Return the sums of windows of an image, each channel alone: a convolution with weights of 1."""
    ones = np.ones((*kernel, image.tensor.shape[-1], 1), np.int8)
    return convolve_depthwise(image, lowering, ones, window)
