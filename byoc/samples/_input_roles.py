"""The roles of a model's inputs: token ids, masks, positions, lengths, images, selectors, numbers.

The role of an input follows from who reads its numbers (`_input_traces`), and where that says nothing
from its name.
"""

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from math import prod
from typing import Any

import numpy as np

from byoc._dataclasses import dataclass
from byoc.model import (
    Dim,
    TensorType,
    add_dims,
    floor_divide_dims,
    get_constant_value,
    get_input,
    multiply_dims,
    subtract_dims,
)
from byoc.samples._size_relations import TracedInputs, Use


class Role(StrEnum):
    """The role of an input."""

    numbers = "numbers"  # floats of any size
    flags = "flags"  # integers 0 or 1, booleans
    pixels = "pixels"  # bytes
    indices = "indices"  # integers below the extents `limits`
    mask = "mask"  # all ones
    bias = "bias"  # added to attention scores: all zeros
    positions = "positions"  # counting from the past
    total = "total"  # the length with the past
    last = "last"  # the length with the past, less one
    past = "past"  # the length of the past
    lengths = "lengths"  # of sequences, as long as can be
    image_size = "image_size"  # rows and columns of the image
    ones = "ones"
    choices = "choices"  # one of the numbers `choices`, which the model compares it with
    constant = "constant"  # what the operator that reads it needs: `make_value`
    listed = "listed"  # the numbers `limits`, one after the other


@dataclass(frozen=True, eq=False)
class InputRole:
    """The role of an input, with what its values must keep to.

    Indices are below each of `limits`; floats lie in `domain`, lowest and highest. `make_value` makes
    the value of a shape for an operator that takes few, such as the axes of Unsqueeze.
    """

    role: Role
    limits: tuple[Dim, ...] = ()
    choices: tuple[float, ...] = ()
    domain: tuple[float, float] = (-np.inf, np.inf)
    make_value: Callable[[tuple[int, ...]], Any] | None = None
    extent: Dim = None


def find_roles(traced: TracedInputs) -> dict[str, InputRole]:
    """Find the role of each input of a model that is a tensor."""
    return {
        name: _find_role(name, kind, traced.uses[name]) for name, kind in traced.types.items() if kind
    }


def _find_role(name: str, kind: TensorType, uses: tuple[Use, ...]) -> InputRole:
    limits = tuple(limit for use in uses if use.key in _LIMITS for limit in _LIMITS[use.key](use))
    found = _find_role_by_use(kind, uses) or _find_role_by_name(name, kind, uses, limits)
    if found is not None:
        return found
    if "float" in kind.dtype:
        return InputRole(Role.numbers, domain=_find_domain(uses))
    choices = _find_choices(uses)
    if choices:
        return InputRole(Role.choices, choices=choices)
    if limits:
        return InputRole(Role.indices, limits)
    is_bytes = kind.dtype in ("uint8", "int8") and len(kind.shape or ()) > 1
    return InputRole(Role.pixels if is_bytes else Role.flags)


def _find_role_by_use(kind: TensorType, uses: tuple[Use, ...]) -> InputRole | None:
    """Return the role of an input for a reader that takes nothing else."""
    for use in uses:
        listed = _LISTED[use.key](use) if use.key in _LISTED else None
        if listed is not None:
            return InputRole(Role.listed, listed)
        make = _VALUES.get(use.key)
        if make is not None and ("int" in kind.dtype or use.node.op_type not in _OF_WHOLE_NUMBERS):
            return InputRole(Role.constant, make_value=make)
        role = _ROLES_BY_USE.get(use.key)
        if role is not None:
            return InputRole(role, extent=_find_sequence_extent(use))
    return None


_BY_NAME: tuple[tuple[Role, str, str], ...] = (
    (Role.positions, "int", r"position_?id|pos_?ids?$|cache_?pos|(^|_)positions?$"),
    (Role.total, "int", r"total_?(seq|len)"),
    (Role.last, "int", r"seq_?lens_?k$"),
    (Role.past, "int", r"past_?(seq|len|k)"),
    (Role.lengths, "int", r"len(gth)?s?$|_lens?(_|$)|seq_?lens"),
    (
        Role.image_size,
        "",
        r"^(im|image|img|orig|original|target|input)_?(img|image|target)?_?(shape|sizes?)s?$",
    ),
    (Role.ones, "float", r"^(scale_?factors?|im_?scale)$"),
)


def _find_role_by_name(
    name: str, kind: TensorType, uses: tuple[Use, ...], limits: tuple[Dim, ...]
) -> InputRole | None:
    lower = name.lower()
    if "mask" in lower and not limits:
        is_added = "float" in kind.dtype and any(use.key in _ADDED for use in uses)
        return InputRole(Role.bias if is_added else Role.mask)
    for role, dtype, pattern in _BY_NAME:
        if dtype in kind.dtype and re.search(pattern, lower):
            return InputRole(role, limits)
    return None


# Places where a mask of floats is added to scores.
_ADDED = {
    ("Add", 0),
    ("Add", 1),
    ("Attention", 3),
    ("MultiHeadAttention", 5),
    ("GroupQueryAttention", 10),
}

_ROLES_BY_USE = {
    ("GroupQueryAttention", 5): Role.last,
    ("GroupQueryAttention", 6): Role.total,
    ("LSTM", 4): Role.lengths,
    ("GRU", 4): Role.lengths,
    ("RNN", 4): Role.lengths,
    ("ReverseSequence", 1): Role.lengths,
    ("DecoderMaskedMultiHeadAttention", 7): Role.past,
}


def _find_sequence_extent(use: Use) -> Dim:
    """Return the extent that lengths are at most, None if it does not follow from the reader."""
    shape = use.get_shape(0)
    if not shape:
        return None
    attributes = use.graph.get_attributes(use.node)
    if use.node.op_type == "ReverseSequence":
        return shape[int(attributes.get("time_axis", 0))]
    if use.node.op_type in ("LSTM", "GRU", "RNN"):
        return shape[1 if attributes.get("layout") else 0]
    return None


def _limit_by_axis(default: int, attribute: str = "axis") -> Callable[[Use], tuple[Dim, ...]]:
    def find(use: Use) -> tuple[Dim, ...]:
        shape = use.get_shape(0)
        axis = int(use.graph.get_attributes(use.node).get(attribute, default))
        return (shape[axis],) if shape and -len(shape) <= axis < len(shape) else ()

    return find


def _limit_by_rows(position: int) -> Callable[[Use], tuple[Dim, ...]]:
    return lambda use: (use.get_shape(position) or ())[:1]


def _limit_by_all(use: Use) -> tuple[Dim, ...]:
    return use.get_shape(0) or ()


def _limit_by_depth(use: Use) -> tuple[Dim, ...]:
    depth = get_constant_value(use.graph, get_input(use.node, 1))
    return () if depth is None else (int(depth.ravel()[0]),)


def _limit_by_classes(use: Use) -> tuple[Dim, ...]:
    return (use.get_shape(0) or ())[1:2]


_LIMITS: Mapping[tuple[str, int], Callable[[Use], tuple[Dim, ...]]] = {
    ("Gather", 1): _limit_by_axis(0),
    ("GatherElements", 1): _limit_by_axis(0),
    ("ScatterElements", 1): _limit_by_axis(0),
    ("Scatter", 1): _limit_by_axis(0),
    ("GatherBlockQuantized", 1): _limit_by_axis(0, "gather_axis"),
    ("ArrayFeatureExtractor", 1): _limit_by_axis(-1),
    ("GatherND", 1): _limit_by_all,
    ("ScatterND", 1): _limit_by_all,
    ("OneHot", 0): _limit_by_depth,
    ("RoiAlign", 2): _limit_by_rows(0),
    ("EmbedLayerNormalization", 0): _limit_by_rows(2),
    ("EmbedLayerNormalization", 1): _limit_by_rows(4),
    ("EmbedLayerNormalization", 8): _limit_by_rows(3),
    ("RotaryEmbedding", 1): _limit_by_rows(2),  # of com.microsoft
    ("RotaryEmbedding", 3): _limit_by_rows(1),
    ("SoftmaxCrossEntropyLoss", 1): _limit_by_classes,
    ("NegativeLogLikelihoodLoss", 1): _limit_by_classes,
}

_COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")


def _find_choices(uses: tuple[Use, ...]) -> tuple[float, ...]:
    """Return the numbers that an input is compared with, in order, and one beyond them."""
    found: dict[float, None] = {}
    for use in uses:
        if use.node.op_type in _COMPARISONS:
            value = get_constant_value(use.graph, get_input(use.node, 1 - use.position))
            if value is not None and value.size == 1 and value.dtype.kind in "if":
                found[float(value.ravel()[0])] = None
    return (*found, max(found) + 1) if found else ()


_TINY = 1e-3  # away from 0, where the function has a pole
_DOMAINS = {
    ("Log", 0): (_TINY, np.inf),
    ("Sqrt", 0): (0.0, np.inf),
    ("Reciprocal", 0): (_TINY, np.inf),
    ("Acosh", 0): (1.0, np.inf),
    ("Atanh", 0): (-0.99, 0.99),
    ("Asin", 0): (-1.0, 1.0),
    ("Acos", 0): (-1.0, 1.0),
    ("Div", 1): (_TINY, np.inf),
    ("Pow", 0): (_TINY, np.inf),
    ("BatchNormalization", 4): (_TINY, np.inf),
    ("QuantizeLinear", 1): (_TINY, np.inf),
    ("DequantizeLinear", 1): (_TINY, np.inf),
    ("QuantizeLinear", 2): (0.0, 0.0),  # of float8, whose zero point is 0
    ("DequantizeLinear", 2): (0.0, 0.0),
    ("Dropout", 1): (0.0, 0.9),
    ("Bernoulli", 0): (0.0, 1.0),
    ("Clip", 1): (-1.5, -0.5),
    ("Clip", 2): (0.5, 1.5),
    ("GridSample", 1): (-1.0, 1.0),
}


def _find_domain(uses: tuple[Use, ...]) -> tuple[float, float]:
    domains = [_DOMAINS[use.key] for use in uses if use.key in _DOMAINS and not _takes_any(use)]
    return max((low for low, _ in domains), default=-np.inf), min(
        (high for _, high in domains), default=np.inf
    )


def _takes_any(use: Use) -> bool:
    """Return whether a Pow has a whole exponent, so that its base may be negative."""
    if use.node.op_type != "Pow":
        return False
    exponent = get_constant_value(use.graph, get_input(use.node, 1))
    return exponent is not None and bool(np.all(exponent == np.round(exponent)))


Shape = tuple[int, ...]


def _make_reshape(shape: Shape) -> Any:
    """Return a target shape that any tensor has: the first axis takes all."""
    return np.where(np.arange(shape[0] if shape else 1) == 0, -1, 1)


def _fill(number: float) -> Callable[[Shape], Any]:
    return lambda shape: np.full(shape, number)


def _make_scales(shape: Shape) -> Any:
    """Return scales of 2 for the last two axes."""
    count = shape[0] if shape else 1
    return np.where(np.arange(count) >= count - 2, 2.0, 1.0)


def _count_axes(shape: Shape) -> Any:
    return np.arange(int(np.prod(shape))).reshape(shape)


# Floats may be divided by any float but 0, and lie between other floats.
_OF_WHOLE_NUMBERS = ("Div", "Mod", "Clip")
_REDUCTIONS = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
# Values for operators that take few, from the shape of the input.
_VALUES: Mapping[tuple[str, int], Callable[[Shape], Any]] = {
    ("Reshape", 1): _make_reshape,
    ("Expand", 1): _fill(1),
    ("Tile", 1): _fill(2),
    ("ConstantOfShape", 0): _fill(2),
    ("TopK", 1): _fill(1),
    ("Slice", 1): _fill(0),
    ("Slice", 2): _fill(2**31 - 1),
    ("Slice", 3): _count_axes,
    ("Slice", 4): _fill(1),
    ("Pad", 1): _fill(1),
    ("Pad", 3): _count_axes,
    ("CenterCropPad", 1): _fill(2),
    ("Col2Im", 2): _fill(1),
    ("OneHot", 1): _fill(4),
    ("Resize", 2): _make_scales,
    ("Upsample", 1): _make_scales,
    ("Range", 0): _fill(0),
    ("Range", 1): _fill(4),
    ("Range", 2): _fill(1),
    ("Unsqueeze", 1): _count_axes,
    ("Squeeze", 1): _count_axes,
    ("CumSum", 1): _fill(0),
    **{(f"Reduce{name}", 1): _count_axes for name in _REDUCTIONS},
    ("Loop", 0): _fill(3),
    ("Loop", 1): _fill(1),
    ("NonMaxSuppression", 2): _fill(10),
    ("NonMaxSuppression", 3): _fill(0.5),
    ("NonMaxSuppression", 4): _fill(0.0),
    ("Clip", 1): _fill(0),
    ("Clip", 2): _fill(3),
    ("Div", 1): _fill(2),
    ("Dropout", 2): _fill(0),  # not in training, where it draws
    ("Mod", 1): _fill(2),
    ("SequenceAt", 1): _fill(0),
    ("HannWindow", 0): _fill(16),
    ("HammingWindow", 0): _fill(16),
    ("BlackmanWindow", 0): _fill(16),
    ("MelWeightMatrix", 0): _fill(8),
    ("MelWeightMatrix", 1): _fill(64),
    ("MelWeightMatrix", 2): _fill(8000),
    ("MelWeightMatrix", 3): _fill(0.0),
    ("MelWeightMatrix", 4): _fill(4000.0),
}


def _list_parts(use: Use) -> tuple[Dim, ...] | None:
    """Return equal parts of an axis, the last one as large as is left."""
    shape, split = use.get_shape(0), use.get_shape(1)
    axis = int(use.graph.get_attributes(use.node).get("axis", 0))
    count = split[0] if split else None
    if not isinstance(count, int) or not count or not shape or not -len(shape) <= axis < len(shape):
        return (1,) if split == () else None
    part = floor_divide_dims(shape[axis], count)
    return (*[part] * (count - 1), subtract_dims(shape[axis], multiply_dims(part, count - 1)))


def _list_grid(use: Use) -> tuple[Dim, ...] | None:
    """Return the size of an image for AffineGrid, whose matrices are theta [N, axes, axes + 1]."""
    shape = use.get_shape(0)
    if shape is None or len(shape) != 3 or shape[1] not in (2, 3):
        return None
    return (shape[0], 1, *((3, 4) if shape[1] == 2 else (2, 3, 4)))


def _list_unpooled(use: Use) -> tuple[Dim, ...] | None:
    """Return the shape that MaxUnpool makes unless another is asked for."""
    shape, attributes = use.get_shape(0), use.graph.get_attributes(use.node)
    kernel = attributes["kernel_shape"]
    if shape is None or len(shape) != len(kernel) + 2:
        return None
    strides = attributes.get("strides") or [1] * len(kernel)
    pads = attributes.get("pads") or [0] * (2 * len(kernel))
    spatial = [
        add_dims(multiply_dims(subtract_dims(dim, 1), step), size - before - after)
        for dim, step, size, before, after in zip(
            shape[2:], strides, kernel, pads, pads[len(kernel) :], strict=False
        )
    ]
    return (*shape[:2], *spatial)


def _list_image(use: Use) -> tuple[Dim, ...] | None:
    """Return an image of one row for Col2Im that has as many blocks of one element as there are."""
    shape, image = use.get_shape(0), use.get_shape(1)
    if shape is None or len(shape) != 3 or not image or not isinstance(image[0], int):
        return None
    count, attributes = image[0], use.graph.get_attributes(use.node)
    steps = attributes.get("strides") or [1] * count
    pads = [sum(attributes.get("pads", [0] * (2 * count))[axis::count]) for axis in range(count)]
    rows = prod(pad // step + 1 for pad, step in zip(pads[:-1], steps, strict=False))  # of one element
    last = subtract_dims(floor_divide_dims(shape[2], rows), 1)
    return (*[1] * (count - 1), add_dims(multiply_dims(last, steps[-1]), 1 - pads[-1]))


def _list_pads(use: Use) -> tuple[Dim, ...] | None:
    """Return no padding where axes of one element have nothing to reflect."""
    count, mode = use.get_shape(1), use.graph.get_attributes(use.node).get("mode")
    reflects = mode == "reflect" and count is not None and len(count) == 1
    return (0,) if reflects else None


def _list_doubled(use: Use) -> tuple[Dim, ...] | None:
    """Return the extents of an image, twice as large along its last two axes."""
    shape = use.get_shape(0)
    if shape is None:
        return None
    axes = use.graph.get_attributes(use.node).get("axes") or range(len(shape))
    last = range(len(shape) - 2, len(shape))
    return tuple(multiply_dims(shape[i], 2 if i % len(shape) in last else 1) for i in axes)


def _list_box(use: Use) -> tuple[Dim, ...] | None:
    """Return the whole image as a region of Resize, which came with operator set 11."""
    box = use.get_shape(1)
    if use.graph.get_opset(use.node) < 11 or not box or not isinstance(box[0], int):
        return None
    return (*[0] * (box[0] // 2), *[1] * (box[0] // 2))


def _list_single_axes(use: Use) -> tuple[Dim, ...] | None:
    """Return the axes of one element, which can be squeezed."""
    shape = use.get_shape(0)
    return tuple(i for i, dim in enumerate(shape) if dim == 1) or None if shape else None


# Numbers for operators that take few, from what else they read; each may be repeated.
_LISTED: Mapping[tuple[str, int], Callable[[Use], tuple[Dim, ...] | None]] = {
    ("AffineGrid", 1): _list_grid,
    ("Col2Im", 1): _list_image,
    ("MaxUnpool", 2): _list_unpooled,
    ("Pad", 1): _list_pads,
    ("Resize", 1): _list_box,
    ("Resize", 3): _list_doubled,
    ("Split", 1): _list_parts,
    ("SplitToSequence", 1): _list_parts,
    ("Squeeze", 1): _list_single_axes,
}
