"""Calls of byoc's own kernels (`source/kernels.h`) for the operators that take most of the time."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from byoc.model import is_onnx
from byoc.standalone._node_calls import FusedNodes, is_decoder_operator, make_decoder_call
from byoc.standalone._program_graph import SCRATCH, Call, Operand, ProgramGraph, format_float

# KERNEL_DEPTH, KERNEL_COLUMNS, WIDTH, KERNEL_BAND and KERNEL_SPARE of the C source
_DEPTH, _COLUMNS, _WIDTH, _BAND, _SPARE = 256, 64, 16, 2048, 16
IMAGE_RANKS = (3, 4)
_FLOAT_BYTES = 4  # bytes of float32
_SOFTMAX_OF_ONE_AXIS = 13  # the operator set
_RESIZE = 11  # the operator set that states how coordinates are transformed
_STEPS = 16  # KERNEL_STEPS of the C source
_INTEGERS = {"Resize": (1, 2, 3), "LSTM": (4,)}  # inputs that are no floats: extents, and lengths
_COORDINATES = frozenset({"half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"})

ELEMENTWISE = frozenset({"kernel_tanh", "kernel_sigmoid"})
"""Kernels that read each element right before they write it."""
FUNCTION_FILE = "functions.c"
FUNCTION_KERNELS = ELEMENTWISE | {"kernel_interpolate", "kernel_run_lstm"}
"""The functions of `FUNCTION_FILE`."""

SHARED_KERNELS = frozenset(
    f"kernel_{name}{end}"
    for name in ("convolve", "convolve_depthwise", "multiply")
    for end in ("", "_int", "_wide")
)
"""Kernels of which threads do shares: their last operand says which."""


def make_kernel_call(graph: ProgramGraph, fused: FusedNodes) -> Call | None:
    """Return the call of a kernel that computes some nodes, None where no kernel does.

    Raises UnsupportedNodeError with the reason where no other function does, either.
    """
    node = graph.index.nodes[fused.nodes[0]]
    if is_decoder_operator(node):
        return make_decoder_call(graph, node)
    maker = _MAKERS.get(node.op_type) if is_onnx(node) else None
    read = [name for at, name in enumerate(node.input) if at not in _INTEGERS.get(node.op_type, ())]
    if maker is None or any(
        name and graph.get_dtype(name) != "float32" for name in (*read, *node.output)
    ):
        return None
    result = graph.index.nodes[fused.nodes[-1]].output[0]
    call: Call | None = maker(graph, node, fused, result)
    return call


def _make_convolution(
    graph: ProgramGraph, node: NodeProto, fused: FusedNodes, result: str
) -> Call | None:
    x, weights = (graph.get_shape(name) for name in node.input[:2])
    y = graph.get_shape(node.output[0])
    if len(x) not in IMAGE_RANKS or not prod(y):
        return None
    attributes = graph.index.get_attributes(node)
    groups = int(attributes.get("group", 1))
    structure = describe_convolution(graph, node, _format_activation(fused))
    operands = [node.input[0], node.input[1], get_bias(node), result]
    if weights[1] == 1 and (weights[0] == groups or groups > 1):
        scratch = count_band(attributes, weights[2:], y[2:])
        operands.append(SCRATCH)
        return Call("kernel_convolve_depthwise", tuple(operands), "kernel_conv", structure, scratch)
    scratch = _count_scratch(prod(weights[1:]), prod(y[2:]))
    return Call("kernel_convolve", (*operands, SCRATCH), "kernel_conv", structure, scratch)


def describe_convolution(graph: ProgramGraph, node: NodeProto, activation: str) -> str:
    """Return the initializer of a `kernel_conv`."""
    x, weights = (graph.get_shape(name) for name in node.input[:2])
    y = graph.get_shape(node.output[0])
    attributes = graph.index.get_attributes(node)
    window = _make_window(attributes, weights[2:], x[2:], y[2:])
    groups = int(attributes.get("group", 1))
    channels = f"{weights[1]}, {weights[0] // groups}"
    return f"{{{x[0]}, {groups}, {channels}, {_describe_images(x, y)}, {window}, {activation}}}"


def _make_transposed(
    graph: ProgramGraph, node: NodeProto, fused: FusedNodes, result: str
) -> Call | None:
    """Return the call for a ConvTranspose of stored weights, which are taken apart by strides."""
    x, weights = (graph.get_shape(name) for name in node.input[:2])
    y = graph.get_shape(node.output[0])
    attributes = graph.index.get_attributes(node)
    auto = attributes.get("auto_pad") or "NOTSET"
    stated = auto in ("NOTSET", b"NOTSET", "VALID", b"VALID") and "output_shape" not in attributes
    dilated = any(each != 1 for each in attributes.get("dilations") or ())
    if len(x) not in IMAGE_RANKS or not stated or dilated or not prod(y) * prod(weights) * prod(x):
        return None
    if not graph.is_constant(node.input[1]):
        return None
    groups = int(attributes.get("group", 1))
    numbers = f"{x[0]}, {groups}, {weights[0] // groups}, {weights[1]}, {_describe_images(x, y)}"
    window = _make_window(attributes, weights[2:], x[2:], y[2:])
    structure = f"{{{numbers}, {window}, {_format_activation(fused)}}}"
    strides = _as_image(attributes.get("strides") or [1] * (len(x) - 2))
    before = _as_image(_find_pads(attributes, weights[2:], x[2:], y[2:])[0], 0)
    matrix = graph.get_constant(node.input[1])
    matrix = matrix.reshape(groups, weights[0] // groups, weights[1], *_as_image(weights[2:]))
    phases = [
        matrix[
            ...,
            (row + before[0]) % strides[0] :: strides[0],
            (col + before[1]) % strides[1] :: strides[1],
        ]
        for row in range(strides[0])
        for col in range(strides[1])
    ]
    apart = [each[..., ::-1, ::-1].swapaxes(1, 2) for each in phases]
    places = max(each.shape[3] * each.shape[4] for each in apart)
    scratch = _count_scratch(max(1, places * weights[0] // groups), prod(y[2:]))
    scratch += weights[1] * _COLUMNS * _FLOAT_BYTES
    stored = np.concatenate([each.reshape(-1) for each in apart])
    operands = (node.input[0], stored, get_bias(node), result, SCRATCH)
    return Call("kernel_convolve_transposed", operands, "kernel_conv", structure, scratch)


def _make_gemm(graph: ProgramGraph, node: NodeProto, fused: FusedNodes, result: str) -> Call | None:
    attributes = graph.index.get_attributes(node)
    rows, cols = graph.get_shape(node.output[0])
    depth = graph.get_shape(node.input[0])[1 - int(attributes.get("transA", 0))]
    if attributes.get("transA", 0) or not rows * cols * depth:
        return None
    b_row, b_col = (1, depth) if attributes.get("transB", 0) else (cols, 1)
    bias = get_bias(node)
    bias_row, bias_col = _find_bias_steps(graph.get_shape(bias) if bias else (), rows, cols)
    return _make_product(
        graph,
        (1, rows, depth, cols),
        (0, 0),
        (depth, b_row, b_col, bias_row, bias_col),
        (float(attributes.get("alpha", 1)), float(attributes.get("beta", 1))),
        fused,
        (node.input[0], node.input[1], bias, result),
    )


def _make_matmul(graph: ProgramGraph, node: NodeProto, fused: FusedNodes, result: str) -> Call | None:
    a, b = (graph.get_shape(name) for name in node.input)
    y = graph.get_shape(node.output[0])
    if len(a) < 2 or len(b) < 2 or not prod(y) * a[-1]:
        return None
    batches = find_batches(a, b, y)
    if batches is None:
        return None
    (count, rows, depth, cols), steps = batches
    bias_col = 1 if fused.bias else 0
    return _make_product(
        graph,
        (count, rows, depth, cols),
        steps,
        (depth, cols, 1, 0, bias_col),
        (1.0, 1.0),
        fused,
        (node.input[0], node.input[1], fused.bias or None, result),
    )


def find_batches(
    a: tuple[int, ...], b: tuple[int, ...], y: tuple[int, ...]
) -> tuple[tuple[int, int, int, int], tuple[int, int]] | None:
    """Return count, rows, depth and columns of products, and the steps of both operands to the next.

    None where operands repeat in another way than one for all.
    """
    rows, depth, cols = a[-2], a[-1], b[-1]
    count = prod(y[:-2])
    if prod(b[:-2]) == 1:
        count, rows = 1, rows * count
        if prod(a[:-2]) * a[-2] != rows:
            return None
    elif y[:-2] != b[:-2] or (a[:-2] != b[:-2] and prod(a[:-2]) != 1):
        return None
    return (count, rows, depth, cols), (0 if prod(a[:-2]) == 1 else rows * depth, depth * cols)


def _make_product(  # noqa: PLR0913, PLR0917 - the structure has as many parts
    graph: ProgramGraph,
    extents: tuple[int, int, int, int],
    batch_steps: tuple[int, int],
    steps: tuple[int, ...],
    scales: tuple[float, float],
    fused: FusedNodes,
    operands: tuple[str | None, ...],
) -> Call:
    a_row, b_row, b_col, *bias_steps = steps
    tiled, copied = None, extents[3]
    if extents[0] == 1 and operands[1] and _is_read_once(graph, operands[1]):
        matrix = graph.get_constant(operands[1]).reshape(-1)
        shape = extents[2:] if b_col == 1 else extents[:1:-1]
        tiled = arrange_tiles(matrix.reshape(shape) if b_col == 1 else matrix.reshape(shape).T)
        copied = extents[3] % _WIDTH
    values = (*extents, *batch_steps, a_row, b_row, b_col, int(tiled is not None), *bias_steps)
    texts = (*map(str, values), *map(format_float, scales), _format_activation(fused))
    structure = f"{{{', '.join(texts)}}}"
    scratch = _count_scratch(extents[2], copied)
    given: tuple[Operand, ...] = (operands[0], operands[1] if tiled is None else tiled, *operands[2:])
    return Call("kernel_multiply", (*given, SCRATCH), "kernel_product", structure, scratch)


def _is_read_once(graph: ProgramGraph, name: str) -> bool:
    """Return whether a tensor is known before a run, and no other node needs it as it is stored."""
    readers = graph.index.consumers.get(name, ())
    return graph.is_constant(name) and len(readers) == 1 and name not in graph.index.outputs


def arrange_tiles(matrix: NDArray[Any]) -> NDArray[Any]:
    """Return a matrix as `kernel_product` has it: tiles of 16 columns, and the other columns behind."""
    depth, cols = matrix.shape
    whole = cols - cols % _WIDTH
    tiles = matrix[:, :whole].reshape(depth, -1, _WIDTH).transpose(1, 0, 2)
    return np.concatenate([tiles.reshape(-1), matrix[:, whole:].reshape(-1)])


def _make_max_pool(graph: ProgramGraph, node: NodeProto, fused: FusedNodes, result: str) -> Call | None:
    if len(node.output) > 1 and node.output[1]:
        return None
    return _make_pool(graph, node, "kernel_pool_max", result)


def _make_average_pool(
    graph: ProgramGraph, node: NodeProto, fused: FusedNodes, result: str
) -> Call | None:
    return _make_pool(graph, node, "kernel_pool_average", result)


def _make_global_pool(
    graph: ProgramGraph, node: NodeProto, fused: FusedNodes, result: str
) -> Call | None:
    function = "kernel_pool_max" if node.op_type == "GlobalMaxPool" else "kernel_pool_average"
    return _make_pool(graph, node, function, result)


def _make_pool(graph: ProgramGraph, node: NodeProto, function: str, result: str) -> Call | None:
    structure = describe_pool(graph, node)
    operands = (node.input[0], result)
    return None if structure is None else Call(function, operands, "kernel_pool", structure)


def describe_pool(graph: ProgramGraph, node: NodeProto) -> str | None:
    """Return the initializer of a `kernel_pool`, None for what is no image."""
    x, y = graph.get_shape(node.input[0]), graph.get_shape(node.output[0])
    if len(x) not in IMAGE_RANKS or not prod(x) or not prod(y):
        return None
    if node.op_type.startswith("Global"):
        rows, cols = _as_image(x[2:])
        return f"{{{x[0] * x[1]}, {rows}, {cols}, 1, 1, {{{rows}, {cols}, 1, 1, 1, 1, 0, 0}}, 0, 0, 0}}"
    attributes = graph.index.get_attributes(node)
    kernel = tuple(attributes["kernel_shape"])
    window = _make_window(attributes, kernel, x[2:], y[2:])
    counts = int(attributes.get("count_include_pad", 0))
    bottom, right = _as_image(_find_pads(attributes, kernel, x[2:], y[2:])[1], 0)
    return f"{{{x[0] * x[1]}, {_describe_images(x, y)}, {window}, {counts}, {bottom}, {right}}}"


def _make_softmax(graph: ProgramGraph, node: NodeProto, fused: FusedNodes, result: str) -> Call | None:
    shape, old = graph.get_shape(node.input[0]), graph.index.get_opset(node) < _SOFTMAX_OF_ONE_AXIS
    axis = int(graph.index.get_attributes(node).get("axis", 1 if old else -1))
    axis += len(shape) if axis < 0 else 0
    cols = prod(shape[axis:])  # up to operator set 12 of all axes from that one on
    if not prod(shape) or (not old and cols != shape[axis]):
        return None
    structure = f"{{{prod(shape) // cols}, {cols}}}"
    return Call("kernel_softmax", (node.input[0], result), "kernel_rows", structure)


def _make_elementwise(
    graph: ProgramGraph, node: NodeProto, fused: FusedNodes, result: str
) -> Call | None:
    function = "kernel_tanh" if node.op_type == "Tanh" else "kernel_sigmoid"
    structure = f"{{1, {prod(graph.get_shape(result))}}}"
    return Call(function, (node.input[0], result), "kernel_rows", structure)


def _make_resize(graph: ProgramGraph, node: NodeProto, fused: FusedNodes, result: str) -> Call | None:
    """Return the call for a Resize by linear interpolation along the last two axes."""
    x, y = graph.get_shape(node.input[0]), graph.get_shape(result)
    attributes = {
        name: value.decode() if isinstance(value, bytes) else value
        for name, value in graph.index.get_attributes(node).items()
    }
    mode = attributes.get("coordinate_transformation_mode", "half_pixel")
    plain = attributes.get("mode") == "linear" and mode in _COORDINATES
    others = ("axes", "antialias", "keep_aspect_ratio_policy")
    if not plain or any(attributes.get(name) not in (None, 0, "stretch") for name in others):
        return None
    if (
        len(x) not in IMAGE_RANKS
        or x[:2] != y[:2]
        or not prod(y)
        or graph.index.get_opset(node) < _RESIZE
    ):
        return None
    given = (*node.input, "", "", "")[2]
    if given and not graph.is_constant(given):
        return None
    stated: list[float] = graph.get_constant(given).reshape(-1).tolist() if given else []
    scales = stated[2:] or [high / low for low, high in zip(x[2:], y[2:], strict=True)]
    exact = all(high == low * scale for low, high, scale in zip(x[2:], y[2:], scales, strict=True))
    if stated and mode == "align_corners" and not exact:
        return None  # the last pixels then lie between two of x
    axes = [
        _interpolate(*each, mode)
        for each in zip(_as_image(x[2:]), _as_image(y[2:]), [1.0, *scales][-2:], strict=True)
    ]
    places, shares = (np.concatenate([axis[i] for axis in axes]) for i in range(2))
    structure = f"{{{x[0] * x[1]}, {_describe_images(x, y)}}}"
    operands = (node.input[0], places, shares, result, SCRATCH)
    return Call("kernel_interpolate", operands, "kernel_resize", structure, x[-1] * _FLOAT_BYTES)


def _interpolate(low: int, high: int, scale: float, mode: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the two places that each of `high` results is between, of `low`, and their shares."""
    at = np.arange(high, dtype=np.float64)
    if mode == "align_corners":
        at = at * (low - 1) / (high - 1) if high > 1 else at * 0
    elif mode == "asymmetric":
        at = at / float(scale)
    else:
        at = (at + 0.5) / float(scale) - 0.5 if mode == "half_pixel" or high > 1 else at * 0
    at = np.clip(at, 0, low - 1)
    first = np.floor(at).astype(np.int32)
    second = np.minimum(first + 1, low - 1).astype(np.int32)
    share = (at - first).astype(np.float32)
    return np.concatenate([first, second]), np.concatenate([1 - share, share])


def _make_lstm(graph: ProgramGraph, node: NodeProto, fused: FusedNodes, result: str) -> Call | None:
    """Return the call for an LSTM of stored weights with its usual functions."""
    x, w, r, bias, lengths, h, c, peepholes = (*node.input, *[""] * 5)[:8]
    attributes = graph.index.get_attributes(node)
    order = [
        each if isinstance(each, str) else each.decode() for each in attributes.get("activations", ())
    ]
    usual = order in ([], ["Sigmoid", "Tanh", "Tanh"] * (len(order) // 3))
    if not usual or attributes.get("layout"):
        return None
    steps, batch, inputs = graph.get_shape(x)
    directions, _, hidden = graph.get_shape(r)
    stored = (w, r, *([bias] if bias else ()))
    if not all(map(graph.is_constant, stored)) or not steps * batch * inputs * hidden:
        return None
    direction = attributes.get("direction", b"forward")
    reversed_ = int(direction in (b"reverse", "reverse"))
    numbers = (directions, reversed_, steps, batch, inputs, hidden)
    clip = format_float(float(attributes.get("clip", 0)))
    tiles = [
        np.concatenate([arrange_tiles(each.T) for each in graph.get_constant(name)]) for name in (w, r)
    ]
    whole = np.zeros((directions, 8 * hidden), np.float32) if not bias else graph.get_constant(bias)
    whole = whole[:, : 4 * hidden] + whole[:, 4 * hidden :]
    made = [name or None for name in (*node.output, "", "")[:3]]
    given = (peepholes or None, lengths or None, h or None, c or None)
    operands = (x, *tiles, whole, *given, *made, SCRATCH)
    floats = (2 * hidden + 4 * hidden * _STEPS) * batch + _DEPTH * _WIDTH
    structure = f"{{{', '.join(map(str, numbers))}, {int(attributes.get('input_forget', 0))}, {clip}}}"
    return Call("kernel_run_lstm", operands, "kernel_lstm", structure, floats * _FLOAT_BYTES)


def get_bias(node: NodeProto) -> str | None:
    return (node.input[2] or None) if len(node.input) > 2 else None


def _find_bias_steps(shape: Sequence[int], rows: int, cols: int) -> tuple[int, int]:
    """Return the steps from one row, and one column, to the next of what is added to a matrix."""
    high, wide = (1, 1, *shape)[-2:]
    return (wide if high == rows and rows > 1 else 0), (1 if wide == cols and cols > 1 else 0)


def _count_scratch(depth: int, cols: int) -> int:
    """Return the bytes of the block that a product copies its second operand to."""
    width = min(_COLUMNS, -(-cols // _WIDTH) * _WIDTH)
    return min(depth, _DEPTH) * width * _FLOAT_BYTES


def count_band(attributes: Mapping[str, Any], kernel: Sequence[int], y: Sequence[int]) -> int:
    """Return the bytes of a band of a depthwise convolution, and of what its windows read."""
    ones = [1] * len(kernel)
    down, across = _as_image(attributes.get("strides") or ones)
    rows, cols = (
        (size - 1) * dilation
        for size, dilation in zip(
            _as_image(kernel), _as_image(attributes.get("dilations") or ones), strict=True
        )
    )
    width = (_as_image(y)[1] - 1) * across + cols + 1
    band = min(_as_image(y)[0], max(1, _BAND // width))
    return ((band + (band - 1) * down + rows + 1) * width + 2 * _SPARE) * _FLOAT_BYTES


def _format_activation(fused: FusedNodes) -> str:
    return f"{{{int(fused.hard_swish)}, {format_float(fused.low)}, {format_float(fused.high)}}}"


def _as_image(extents: Sequence[int], missing: int = 1) -> tuple[int, int]:
    """Return rows and columns; one axis is a row."""
    return (missing, extents[0]) if len(extents) == 1 else (extents[0], extents[1])


def _describe_images(x: Sequence[int], y: Sequence[int]) -> str:
    return ", ".join(str(extent) for shape in (x, y) for extent in _as_image(shape[2:]))


def _make_window(
    attributes: Mapping[str, Any], kernel: Sequence[int], x: Sequence[int], y: Sequence[int]
) -> str:
    """Return the initializer of a `kernel_window`."""
    ones = [1] * len(kernel)
    strides = attributes.get("strides") or ones
    dilations = attributes.get("dilations") or ones
    before = _find_pads(attributes, kernel, x, y)[0]
    values = (*_as_image(kernel), *_as_image(strides), *_as_image(dilations), *_as_image(before, 0))
    return f"{{{', '.join(map(str, values))}}}"


def _find_pads(
    attributes: Mapping[str, Any], kernel: Sequence[int], x: Sequence[int], y: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the padding before and behind each axis of an image."""
    rank = len(kernel)
    auto = attributes.get("auto_pad") or "NOTSET"
    auto = auto.decode() if isinstance(auto, bytes) else auto
    if not auto.startswith("SAME"):
        pads = list(attributes.get("pads") or [0] * (2 * rank))
        return pads[:rank], pads[rank:]
    strides = attributes.get("strides") or [1] * rank
    dilations = attributes.get("dilations") or [1] * rank
    total = [
        max(0, (y[i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 - x[i]) for i in range(rank)
    ]
    less = [each // 2 for each in total]
    more = [each - half for each, half in zip(total, less, strict=True)]
    return (more, less) if auto == "SAME_LOWER" else (less, more)


_MAKERS: Mapping[str, Any] = {
    "Conv": _make_convolution,
    "ConvTranspose": _make_transposed,
    "Gemm": _make_gemm,
    "MatMul": _make_matmul,
    "MaxPool": _make_max_pool,
    "AveragePool": _make_average_pool,
    "GlobalAveragePool": _make_global_pool,
    "GlobalMaxPool": _make_global_pool,
    "Softmax": _make_softmax,
    "Tanh": _make_elementwise,
    "Sigmoid": _make_elementwise,
    "Resize": _make_resize,
    "LSTM": _make_lstm,
}
