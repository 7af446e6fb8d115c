"""Rules that type convolutions, pools, Resize and their like, and checks of nodes beside ONNX's."""

import re
from collections.abc import Iterable, Sequence, Set
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto

from byoc.errors import InputError, shorten_text
from byoc.model._inference._elementwise_shapes import (
    Shape,
    Types,
    broadcast_dims,
    broadcast_shapes,
    keep_dtype,
    make_type,
    merge_dims,
)
from byoc.model._inference._extents import (
    add_dims,
    ceil_divide_dims,
    floor_divide_dims,
    min_dims,
    multiply_dims,
    subtract_dims,
)
from byoc.model._inference._moved_values import KnownNode, Rule, list_elements
from byoc.model._inference._movement_shapes import read_dims
from byoc.model._node_kinds import list_distinct_nodes
from byoc.model._tensor_data import Dim, TensorType
from byoc.model._walk import describe_node, is_onnx, walk_nodes

_TERM = re.compile(r"[A-Za-z]*(?:\.\.\.[A-Za-z]*)?")
_ELLIPSIS = "..."
_MAX_CHARACTERS_SHOWN = 80  # of a name in a sentence
# onnxruntime divides by it; a negative one it takes where there are no channels.
_GROUPED = frozenset(
    {"Conv", "ConvInteger", "ConvTranspose", "DeformConv", "FusedConv", "NhwcConv", "NhwcFusedConv"}
    | {"QLinearConv"}
)
_CHECKED = _GROUPED | {"Einsum"}
_POSITIVE_GROUP = frozenset({"ConvTranspose", "DeformConv"})


def check_nodes(model: ModelProto, distinct: Sequence[NodeProto] | None = None) -> None:
    """Raise InputError for a node that no runtime executes, in bodies and functions, too.

    `distinct` has one node of each kind of the main graph, where they are known (`list_distinct_nodes`).
    That is a convolution of no groups, and an Einsum whose equation is wrong by itself or has another
    number of operands than the node. ONNX's inference does not return from some equations.
    """
    functions = {(f.domain, f.name) for f in model.functions}
    inside = [node for each in model.functions for node in walk_nodes(each.node)]
    passed_on = _find_attributes_for_equations(inside)
    own = list_distinct_nodes(model.graph.node) if distinct is None else distinct
    for node in (*own, *inside):
        if node.op_type not in _CHECKED and (node.domain, node.op_type) not in functions:
            continue
        attributes = {attribute.name: attribute for attribute in node.attribute}
        if is_onnx(node) and node.op_type == "Einsum" and "equation" in attributes:
            given = attributes["equation"]
            if not given.ref_attr_name:
                _require(node, find_equation_problem(_read_text(given), [None] * len(node.input)))
        elif node.op_type in _GROUPED and (node.domain, node.op_type) not in functions:
            _require(node, _find_group_problem(node.op_type, attributes.get("group")))
        elif (node.domain, node.op_type) in functions:
            for name in passed_on & attributes.keys():
                _require(node, _find_term_problem(_read_text(attributes[name])))
    for function in model.functions:
        for attribute in function.attribute_proto:
            problem = _find_term_problem(_read_text(attribute)) if attribute.name in passed_on else ""
            if problem:
                raise InputError(f"function '{function.name}': {problem}")


def find_equation_problem(equation: str, ranks: Sequence[int | None]) -> str:
    """Describe the mistake in an Einsum, as the end of a sentence; empty if there is none.

    `ranks` has the number of dimensions of each input, None where it is not known. What is wrong here is
    so by the operator's definition in ONNX, whose inference the runtimes share.
    """
    left, _, right = equation.replace(" ", "").partition("->")
    terms, shown = left.split(","), _quote(equation)
    problem = _find_term_problem(equation)
    if problem:
        return problem
    if len(terms) != len(ranks):
        counts = f"{_count(len(terms), 'operand')} for {_count(len(ranks), 'input')}"
        return f"its equation {shown} has {counts}"
    missing = sorted(set(re.findall("[A-Za-z]", right)) - set(left))
    if missing:
        return f"its equation {shown} has '{missing[0]}' in the output, which no input has"
    spread: dict[int, int] = {}
    for position, (term, rank) in enumerate(zip(terms, ranks, strict=True)):
        letters = len(term.replace(_ELLIPSIS, ""))
        if rank is None or not left:
            continue
        if _ELLIPSIS in term and rank >= letters:
            spread[position] = rank - letters
        elif rank != letters:
            given = f"{_count(rank, 'dimension')}, not {_count(letters, 'letter')}"
            return f"its equation {shown} does not fit input {position}, which has {given}"
    if len(set(spread.values())) > 1:
        counts = ", ".join(f"{count} of input {position}" for position, count in spread.items())
        return f"the ellipses of its equation {shown} stand for different dimensions: {counts}"
    return ""


def _find_term_problem(equation: str) -> str:
    """Describe the first operand of an equation that is not letters and one ellipsis; else empty."""
    for term in equation.replace(" ", "").partition("->")[0].split(","):
        if not _TERM.fullmatch(term):
            operand, shown = _quote(term), _quote(equation)
            return f"the operand {operand} of its equation {shown} is not letters and one ellipsis"
    return ""


def _find_group_problem(op: str, group: AttributeProto | None) -> str:
    if group is None or group.ref_attr_name or group.type != AttributeProto.INT:
        return ""
    wrong = group.i == 0 or (group.i < 0 and op in _POSITIVE_GROUP)
    return f"its group is {group.i}, and has to be at least 1" if wrong else ""


def _find_attributes_for_equations(inside: Sequence[NodeProto]) -> set[str]:
    """Return the names of attributes that functions pass on to an equation, directly or by calls.

    `inside` are the nodes of all functions.
    """
    einsums = (node for node in inside if node.op_type == "Einsum")
    found = _list_references(einsums, {"equation"})
    while found:
        more = _list_references(inside, found)
        if more <= found:
            break
        found |= more
    return found


def _list_references(nodes: Iterable[NodeProto], names: Set[str]) -> set[str]:
    """Return the attributes of functions that nodes have as attributes of some names."""
    attributes = (attribute for node in nodes for attribute in node.attribute)
    return {a.ref_attr_name for a in attributes if a.ref_attr_name and a.name in names}


def _require(node: NodeProto, problem: str) -> None:
    if problem:
        raise InputError(f"{describe_node(node)}: {problem}")


def _read_text(attribute: AttributeProto) -> str:
    return attribute.s.decode("utf-8", "replace")


def _quote(text: str) -> str:
    return f"'{shorten_text(text, _MAX_CHARACTERS_SHOWN)}'"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + "s" * (number != 1)


# Rules that type convolutions, pools, Resize, and what else slides over an image or a signal.


# Rules that type products of matrices, recurrent networks and attention.


def multiply_shapes(a: Shape, b: Shape) -> Shape:
    """Return the shape of a matrix product as numpy defines it; of a vector an axis is left out."""
    if not a or not b:
        return None
    rows = a[-2:-1]
    columns = b[-1:] if len(b) > 1 else ()
    batch = broadcast_shapes(a[:-2], b[:-2])
    return None if batch is None else (*batch, *rows, *columns)


def _multiply(node: KnownNode) -> Types:
    return [make_type(keep_dtype(node), multiply_shapes(node.get_shape(0), node.get_shape(1)))]


def _multiply_integers(node: KnownNode) -> Types:
    return [make_type("int32", multiply_shapes(node.get_shape(0), node.get_shape(1)))]


def _multiply_quantized(node: KnownNode) -> Types:
    return [make_type(node.get_dtype(7), multiply_shapes(node.get_shape(0), node.get_shape(3)))]


def _multiply_and_add(node: KnownNode) -> Types:
    sides: list[Dim] = []
    for position, name, axis in ((0, "transA", 0), (1, "transB", 1)):
        shape = node.get_shape(position)
        taken = 1 - axis if node.attributes.get(name, 0) else axis
        sides.append(shape[taken] if shape is not None and len(shape) == 2 else None)
    return [make_type(keep_dtype(node), sides)]


def _sum_products(node: KnownNode) -> Types:
    shapes = [node.get_shape(i) for i in range(len(node.types))]
    equation = node.attributes.get("equation", "")
    ranks = [None if shape is None else len(shape) for shape in shapes]
    problem = find_equation_problem(equation, ranks)
    if problem:
        raise InputError(f"{describe_node(node.proto)}: {problem}")
    return [make_type(keep_dtype(node), infer_einsum(equation, shapes))]


def infer_einsum(equation: str, shapes: Sequence[Shape]) -> Shape:
    """Return the shape of an Einsum, None if the equation is wrong or a rank that matters is unknown."""
    left, _, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        return None
    dims: dict[str, Dim] = {}
    spread: Shape = ()
    for term, shape in zip(terms, shapes, strict=True):
        before, dots, after = term.partition("...")
        letters = before + after
        if shape is None:
            if dots:
                return None
            for letter in letters:
                dims.setdefault(letter, None)
            continue
        rest = len(shape) - len(letters)
        if rest < 0 or (rest > 0 and not dots):
            return None
        for letter, dim in zip(before, shape, strict=False):
            dims[letter] = broadcast_dims(dims[letter], dim) if letter in dims else dim
        for letter, dim in zip(after, shape[len(before) + rest :], strict=True):
            dims[letter] = broadcast_dims(dims[letter], dim) if letter in dims else dim
        spread = broadcast_shapes(spread, shape[len(before) : len(before) + rest])
    if spread is None:
        return None
    if "->" not in equation:
        once = [letter for letter in sorted(dims) if left.count(letter) == 1]
        right = ("..." if "..." in left else "") + "".join(once)
    if not set(right) - {"."} <= dims.keys():
        return None
    found: list[Dim] = []
    for part in re.findall(r"\.\.\.|[A-Za-z]", right):
        found.extend(spread if part == "..." else [dims[part]])
    return tuple(found)


def _recur(node: KnownNode) -> Types:
    """Return the types of RNN, GRU and LSTM: the outputs of all steps, and the last states."""
    shape, recurrence = node.get_shape(0), node.get_shape(2)
    dtype = node.get_dtype(0)
    directions = 2 if node.attributes.get("direction", "forward") == "bidirectional" else 1
    hidden: Dim = node.attributes.get("hidden_size")
    if hidden is None and recurrence is not None:
        hidden = recurrence[-1]
    steps, batch = (shape[0], shape[1]) if shape is not None and len(shape) == 3 else (None, None)
    state: list[Dim] = [directions, batch, hidden]
    every: list[Dim] = [steps, directions, batch, hidden]
    if node.attributes.get("layout", 0):
        steps, batch = batch, steps
        state, every = [batch, directions, hidden], [batch, steps, directions, hidden]
    last = make_type(dtype, state)
    return [make_type(dtype, every), last, last][: len(node.proto.output)]


def _attend(node: KnownNode) -> Types:
    """Return the types of Attention: its output, the keys and values so far, and the scores."""
    query, key, value = (node.get_shape(i) for i in range(3))
    dtype = node.get_dtype(0)
    if query is None or key is None or value is None or len({len(query), len(key), len(value)}) > 1:
        return [make_type(dtype, None)]
    heads, groups = node.attributes.get("q_num_heads"), node.attributes.get("kv_num_heads")
    past = node.get_shape(4) if node.has_input(4) else (0, 0, 0, 0)
    if len(query) == 4:
        heads, groups = query[1], merge_dims(key[1], value[1])
        shape: list[Dim] = [query[0], heads, query[2], value[3]]
        sequence, size, out = key[2], key[3], value[3]
    elif len(query) == 3 and heads and groups:
        size, out = floor_divide_dims(key[2], groups), floor_divide_dims(value[2], groups)
        shape = [query[0], query[1], None if not isinstance(out, int) else out * heads]
        sequence = key[1]
    else:
        return [make_type(dtype, None)]
    total = add_dims(past[2] if past is not None and len(past) == 4 else None, sequence)
    found = [
        make_type(dtype, shape),
        make_type(node.get_dtype(1), [query[0], groups, total, size]),
        make_type(node.get_dtype(2), [query[0], groups, total, out]),
        make_type(dtype, [query[0], heads, query[-2], total]),
    ]
    return found[: len(node.proto.output)]


def _suppress(node: KnownNode) -> Types:
    """Return the type of NonMaxSuppression: batch, class and box of each that is left."""
    return [TensorType("int64", (None, 3))]


MATRIX_RULES: dict[str, Rule] = {
    "Attention": _attend,
    "Einsum": _sum_products,
    "GRU": _recur,
    "Gemm": _multiply_and_add,
    "LSTM": _recur,
    "MatMul": _multiply,
    "MatMulInteger": _multiply_integers,
    "NonMaxSuppression": _suppress,
    "QLinearMatMul": _multiply_quantized,
    "RNN": _recur,
}
"""Operator of ONNX's main domain to its rule."""


POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})
"""Operators that slide a window without weights."""

# Scales of a symbolic extent are multiples of 1 / 64, whose products floats hold exactly.
_SCALE_UNIT = 64


def count_windows(node: KnownNode, dims: Sequence[Dim], kernel: Sequence[Dim]) -> list[Dim] | None:
    """Return the extents of a convolution's or pool's output, as onnxruntime computes them."""
    rank = len(dims)
    attributes = node.attributes
    strides, dilations = (attributes.get(name) or [1] * rank for name in ("strides", "dilations"))
    auto, rounds_up = attributes.get("auto_pad", "NOTSET"), bool(attributes.get("ceil_mode", 0))
    pads = attributes.get("pads") or [0] * (2 * rank)
    pads = [0] * (2 * rank) if auto == "VALID" else pads
    if not len(kernel) == len(strides) == len(dilations) == len(pads) // 2 == rank or 0 in strides:
        return None
    counts: list[Dim] = []
    for i, (dim, size, stride) in enumerate(zip(dims, kernel, strides, strict=True)):
        reach = add_dims(multiply_dims(subtract_dims(size, 1), dilations[i]), 1)
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            # A pool is padded for its kernel as if that were not dilated.
            missing = 0 if node.proto.op_type not in POOLS else subtract_dims(size, reach)
            divide = ceil_divide_dims if rounds_up else floor_divide_dims
            counts.append(add_dims(ceil_divide_dims(dim, stride), divide(missing, stride)))
            continue
        rest = subtract_dims(add_dims(dim, pads[i], pads[i + rank]), reach)
        if rounds_up:
            # The last window begins inside the image or the padding before it.
            most = ceil_divide_dims(add_dims(dim, pads[i]), stride)
            counts.append(min_dims(add_dims(ceil_divide_dims(rest, stride), 1), most))
        # Of an image smaller than the window C++ rounds the quotient towards 0.
        elif isinstance(rest, int) and rest < 0:
            counts.append(1 - -rest // stride)
        else:
            counts.append(add_dims(floor_divide_dims(rest, stride), 1))
    return counts


def _find_filters(node: KnownNode, position: int) -> tuple[Dim, ...] | None:
    """Return the shape of the weights of a convolution, None where it is not known or too short."""
    shape = node.get_shape(position)
    return shape if shape is not None and len(shape) > 2 else None


def _convolve_at(data: int, weight: int, dtype: str | None = None) -> Rule:
    """Return the rule of a convolution with the given positions of its data and weight."""

    def rule(node: KnownNode) -> Types:
        shape, filters = node.get_shape(data), _find_filters(node, weight)
        kind = dtype or node.get_dtype(data)
        if shape is None or len(shape) < 3:
            rank = len(filters) if filters is not None else None
            return [make_type(kind, None if rank is None else [None] * rank)]
        kernel = node.attributes.get("kernel_shape")
        if kernel is None:
            kernel = list(filters[2:]) if filters is not None else [None] * (len(shape) - 2)
        spatial = count_windows(node, shape[2:], kernel) or [None] * (len(shape) - 2)
        return [make_type(kind, [shape[0], filters[0] if filters is not None else None, *spatial])]

    return rule


def _convolve_quantized(node: KnownNode) -> Types:
    found = _convolve_at(0, 3)(node)[0]
    return [make_type(node.get_dtype(7), found.shape if found else None)]


def _convolve_transposed(node: KnownNode) -> Types:
    shape, filters = node.get_shape(0), _find_filters(node, 1)
    attributes, dtype = node.attributes, node.get_dtype(0)
    if shape is None or len(shape) < 3:
        return [make_type(dtype, None)]
    rank = len(shape) - 2
    channels = None if filters is None else multiply_dims(filters[1], attributes.get("group", 1))
    kernel = attributes.get("kernel_shape") or (list(filters[2:]) if filters is not None else [])
    if attributes.get("output_shape"):
        stated = attributes["output_shape"][-rank:]
        return [make_type(dtype, [shape[0], channels, *stated])]
    strides, dilations, extra = (
        attributes.get(name) or [default] * rank
        for name, default in (("strides", 1), ("dilations", 1), ("output_padding", 0))
    )
    auto = attributes.get("auto_pad", "NOTSET")
    pads = attributes.get("pads") if auto == "NOTSET" else None
    pads = pads or [0] * (2 * rank)
    if not len(kernel) == len(strides) == len(dilations) == len(extra) == len(pads) // 2 == rank:
        return [make_type(dtype, [shape[0], channels, *[None] * rank])]
    spatial: list[Dim] = []
    for i, dim in enumerate(shape[2:]):
        reach = add_dims(multiply_dims(subtract_dims(kernel[i], 1), dilations[i]), 1)
        spread = multiply_dims(subtract_dims(dim, 1), strides[i])
        whole = add_dims(spread, reach, extra[i], -pads[i] - pads[i + rank])
        same = auto in ("SAME_UPPER", "SAME_LOWER")
        spatial.append(min_dims(whole, multiply_dims(dim, strides[i])) if same else whole)
    return [make_type(dtype, [shape[0], channels, *spatial])]


def _pool(node: KnownNode) -> Types:
    shape, kernel = node.get_shape(0), node.attributes.get("kernel_shape")
    if shape is None or kernel is None or len(shape) != len(kernel) + 2:
        return [make_type(node.get_dtype(0), None if kernel is None else [None] * (len(kernel) + 2))]
    spatial = count_windows(node, shape[2:], kernel) or [None] * len(kernel)
    found = make_type(node.get_dtype(0), [*shape[:2], *spatial])
    return [found, None if found is None else TensorType("int64", found.shape)]


def _pool_globally(node: KnownNode) -> Types:
    shape = node.get_shape(0)
    dims = None if shape is None else [*shape[:2], *[1] * (len(shape) - 2)]
    return [make_type(node.get_dtype(0), dims)]


def _scale_dim(dim: Dim, scale: Any) -> Dim:
    """Return `dim * scale` rounded down, as onnxruntime does in float32; None if that is unknown."""
    if not isinstance(scale, (int, float)) or not 0 < scale <= _SCALE_UNIT**2:
        return None
    if isinstance(dim, int):
        return int(np.float32(dim) * np.float32(scale))
    factor = scale * _SCALE_UNIT
    if dim is None or factor != int(factor):
        return None
    return floor_divide_dims(multiply_dims(dim, int(factor)), _SCALE_UNIT)


def _resize(node: KnownNode) -> Types:
    shape, dtype = node.get_shape(0), node.get_dtype(0)
    if shape is None:
        return [make_type(dtype, None)]
    position = 2 if node.opset >= 11 else 1
    axes = [axis % len(shape) for axis in node.attributes.get("axes") or range(len(shape))]
    dims: list[Dim] = list(shape)
    found: Sequence[Dim] | None = None
    scales, sizes = list_elements(node.get_value(position)), None
    if node.has_input(3):
        sizes = read_dims(node, 3)
        if node.attributes.get("keep_aspect_ratio_policy", "stretch") == "stretch":
            found = sizes
        elif sizes is not None:
            found = _fit_sizes(
                [shape[axis] for axis in axes], sizes, node.attributes["keep_aspect_ratio_policy"]
            )
    elif node.attributes.get("coordinate_transformation_mode") != "tf_crop_and_resize" and scales:
        found = [_scale_dim(shape[axis], scale) for axis, scale in zip(axes, scales, strict=False)]
    if found is None or len(found) != len(axes):
        found = [None] * len(axes)
    for axis, dim in zip(axes, found, strict=True):
        dims[axis] = dim
    return [make_type(dtype, dims)]


def _fit_sizes(dims: Sequence[Dim], sizes: Sequence[Dim], policy: str) -> Sequence[Dim] | None:
    """Return sizes of the same ratio as an image's: the largest inside, or the smallest around, some."""
    pairs = list(zip(dims, sizes, strict=False))
    if len(dims) != len(sizes) or not all(
        isinstance(d, int) and d and isinstance(s, int) for d, s in pairs
    ):
        return None
    scales = [np.float32(size) / np.float32(dim) for dim, size in pairs]
    scale = min(scales) if policy == "not_larger" else max(scales)
    products = [float(scale) * dim for dim in dims if isinstance(dim, int)]
    rounded = [int(np.floor(product + 0.5)) for product in products]
    # Halves are rounded in float32 or float64 by version: what is near one is not certain.
    near = any(abs(product % 1 - 0.5) < 1e-3 for product in products)
    return None if near else rounded


def _upsample(node: KnownNode) -> Types:
    shape = node.get_shape(0)
    if shape is None:
        return [make_type(node.get_dtype(0), None)]
    scales = node.attributes.get("scales", list_elements(node.get_value(1)))
    if scales is None or len(scales) != len(shape):
        return [make_type(node.get_dtype(0), [None] * len(shape))]
    return [make_type(node.get_dtype(0), map(_scale_dim, shape, scales))]


def _read_scalar(node: KnownNode, position: int) -> Any:
    elements = list_elements(node.get_value(position))
    return elements[0] if elements is not None and len(elements) == 1 else None


def _transform_signal(node: KnownNode) -> Types:
    """Return the type of STFT: batch, windows, frequencies, real and imaginary part."""
    shape, window, step = node.get_shape(0), node.get_shape(2), _read_scalar(node, 1)
    length = _read_scalar(node, 3)
    if length is None and window is not None and len(window) == 1 and not node.has_input(3):
        length = window[0]
    if shape is None or len(shape) < 2:
        return [make_type(node.get_dtype(0), [None] * 4)]
    onesided = node.attributes.get("onesided", 1)
    frames = add_dims(floor_divide_dims(subtract_dims(shape[1], length), step), 1)
    bins = add_dims(floor_divide_dims(length, 2), 1) if onesided else length
    return [make_type(node.get_dtype(0), [shape[0], frames, bins, 2])]


def _sample_grid(node: KnownNode) -> Types:
    shape, grid = node.get_shape(0), node.get_shape(1)
    if shape is None or grid is None or len(shape) != len(grid):
        rank = None if shape is None else len(shape)
        return [make_type(node.get_dtype(0), None if rank is None else [None] * rank)]
    return [make_type(node.get_dtype(0), [merge_dims(shape[0], grid[0]), shape[1], *grid[1:-1]])]


def _pool_rois(node: KnownNode) -> Types:
    """Return the type of RoiAlign: regions, channels, height and width."""
    shape, rois = node.get_shape(0), node.get_shape(1)
    channels = shape[1] if shape is not None and len(shape) == 4 else None
    count = rois[0] if rois else None
    size = [node.attributes.get(name, 1) for name in ("output_height", "output_width")]
    return [make_type(node.get_dtype(0), [count, channels, *size])]


def _unpool(node: KnownNode) -> Types:
    """Return the type of MaxUnpool: the shape that is asked for, or that of the pool's input."""
    if node.has_input(2):
        return [make_type(node.get_dtype(0), read_dims(node, 2))]
    return [None]  # as ONNX's inference has it


def _join_columns(node: KnownNode) -> Types:
    """Return the type of Col2Im: columns [N, C * block, blocks], an image and a block of known sizes."""
    shape, image, block = node.get_shape(0), read_dims(node, 1), read_dims(node, 2)
    if shape is None or len(shape) != 3 or image is None or block is None:
        return [None]
    channels = floor_divide_dims(shape[1], multiply_dims(*block))
    return [make_type(node.get_dtype(0), [shape[0], channels, *image])]


WINDOW_RULES: dict[str, Rule] = {
    "AveragePool": _pool,
    "Col2Im": _join_columns,
    "Conv": _convolve_at(0, 1),
    "ConvInteger": _convolve_at(0, 1, "int32"),
    "ConvTranspose": _convolve_transposed,
    "DeformConv": _convolve_at(0, 1),
    "GlobalAveragePool": _pool_globally,
    "GlobalLpPool": _pool_globally,
    "GlobalMaxPool": _pool_globally,
    "GridSample": _sample_grid,
    "LpPool": _pool,
    "MaxPool": _pool,
    "MaxUnpool": _unpool,
    "QLinearConv": _convolve_quantized,
    "Resize": _resize,
    "RoiAlign": _pool_rois,
    "STFT": _transform_signal,
    "Upsample": _upsample,
}
"""Operator of ONNX's main domain to its rule."""
