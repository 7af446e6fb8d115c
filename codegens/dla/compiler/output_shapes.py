"""Shapes of the results of operations, by the rules of ONNX and in its order of axes."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from byoc.codegen import CompileError, Operation

from .layer_tensors import Shape, SlidingWindow

Attributes = Mapping[str, Any]


def window_of(attributes: Attributes, kernel: Sequence[int]) -> SlidingWindow:
    """Return the window of a two-dimensional convolution or pool from its attributes."""
    top, left, bottom, right = attributes.get("pads") or (0, 0, 0, 0)
    strides = attributes.get("strides") or (1, 1)
    dilations = attributes.get("dilations") or (1, 1)
    return SlidingWindow(
        _to_pair(kernel), _to_pair(strides), _to_pair(dilations), (top, left, bottom, right)
    )


def _to_pair(values: Sequence[int]) -> tuple[int, int]:
    first, second = values
    return (first, second)


def windowed_extents(extents: Sequence[int], window: SlidingWindow, ceil: bool = False) -> Shape:
    """Return the height and width of the result of a window that slides over an image.

    With `ceil` a last window may reach past the padding at the end, unless it would start in it.
    """
    made = []
    for axis in (0, 1):
        before, after = window.pads[axis], window.pads[axis + 2]
        room = extents[axis] + before + after - window.extent[axis]
        stride = window.strides[axis]
        steps = -(-room // stride) if ceil else room // stride
        if ceil and steps * stride >= extents[axis] + before:
            steps -= 1
        made.append(steps + 1)
    return tuple(made)


def infer_shapes(
    operation: Operation, shapes: Sequence[Shape | None], target: Sequence[int]
) -> list[Shape]:
    """Return the shapes of an operation's outputs, from those of its inputs.

    `shapes` has None for an input that is left out, and `target` is the value of the input that says a
    shape, as the second of a Reshape. Of what else an operation gives out, such as means, nobody asks
    the shape. Unknown operators are assumed to work element by element; lowering refuses those that it
    does not support. Raises CompileError if shapes do not match.
    """
    given = [shape for shape in shapes if shape is not None]
    if operation.op == "Split":
        return _split_shapes(operation, given[0], target)
    if operation.op == "DynamicQuantizeLinear":
        return [given[0], (), ()]
    if operation.op in _SKIP_NORMALIZATIONS:
        return [given[0]] * len(operation.outputs)
    if operation.op == "GroupQueryAttention":
        return _cached_attention_shapes(operation.attributes, shapes, target)
    return [_infer_first_shape(operation, given, target)]


def _infer_first_shape(operation: Operation, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    rule = _RULES.get(operation.op)
    if rule is not None:
        return rule(operation.attributes, shapes, target)
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        listed = " and ".join(map(str, shapes))
        raise CompileError(f"{operation.op} of shapes {listed}", [operation.name]) from None


def _conv_shape(attributes: Attributes, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    x, w = shapes[:2]
    return (x[0], w[0], *windowed_extents(x[2:], window_of(attributes, w[2:])))


def _pool_shape(attributes: Attributes, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    x = shapes[0]
    window = window_of(attributes, attributes["kernel_shape"])
    return (*x[:2], *windowed_extents(x[2:], window, bool(attributes.get("ceil_mode"))))


def _global_pool_shape(attributes: Attributes, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    return (*shapes[0][:2], 1, 1)


def _gemm_shape(attributes: Attributes, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    a, b = shapes[:2]
    return (a[0], b[0 if attributes.get("transB") else 1])


def _matmul_shape(attributes: Attributes, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    a, b = shapes
    return (*np.broadcast_shapes(a[:-2], b[:-2]), *a[-2:-1], *b[1:][-1:])


def _int4_product_shape(attributes: Attributes, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    return (*shapes[0][:-1], attributes["N"])


def _split_shapes(operation: Operation, shape: Shape, target: Sequence[int]) -> list[Shape]:
    """Return the shapes of all results of a Split; `target` is the value of its second input."""
    axis = operation.attributes.get("axis", 0) % len(shape)
    count = len(operation.outputs)
    sizes = target or operation.attributes.get("split")
    if not sizes:  # in equal parts, the last one what is left
        size = -(-shape[axis] // count)
        sizes = [min(size, max(shape[axis] - n * size, 0)) for n in range(count)]
    return [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]


def _gather_shape(attributes: Attributes, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    x, indices = shapes
    axis = attributes.get("axis", 0) % len(x)
    return (*x[:axis], *indices, *x[axis + 1 :])


def _transpose_shape(attributes: Attributes, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    x = shapes[0]
    return tuple(x[axis] for axis in attributes.get("perm") or range(len(x))[::-1])


def _concat_shape(attributes: Attributes, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    axis = attributes["axis"] % len(shapes[0])
    together = sum(shape[axis] for shape in shapes)
    return (*shapes[0][:axis], together, *shapes[0][axis + 1 :])


def _flatten_shape(attributes: Attributes, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    x = shapes[0]
    axis = attributes.get("axis", 1)
    axis = axis + len(x) if axis < 0 else axis
    return (prod(x[:axis]), prod(x[axis:]))


def _reshape_shape(attributes: Attributes, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    x = shapes[0]
    keeps_zeros = bool(attributes.get("allowzero"))
    found = [x[i] if extent == 0 and not keeps_zeros else extent for i, extent in enumerate(target)]
    if -1 in found:
        rest = prod(extent for extent in found if extent != -1)
        found[found.index(-1)] = prod(x) // rest if rest else 0
    return tuple(found)


def _cached_attention_shapes(
    attributes: Attributes, shapes: Sequence[Shape | None], total: Sequence[int]
) -> list[Shape]:
    """Return the shapes of the result and of the cache, keys and values."""
    heads, kv_heads = attributes["num_heads"], attributes["kv_num_heads"]
    batch, count, width = shapes[0] or (0, 0, 0)
    head = width // (heads + 2 * kv_heads if shapes[1] is None else heads)
    past = shapes[3]
    length = max(past[2] if past else 0, *total, 0) or count
    return [(batch, count, heads * head), *[(batch, kv_heads, length, head)] * 2]


def _mean_shape(attributes: Attributes, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    """Return the shape of means over the last axis, which are all that lowering takes."""
    return (*shapes[0][:-1], *[1] * bool(attributes["keepdims"]))


def _squeezed_shape(attributes: Attributes, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    x = shapes[0]
    axes = {axis % len(x) for axis in target or attributes.get("axes", ())}
    return tuple(n for axis, n in enumerate(x) if (axis not in axes if axes else n != 1))


def _unsqueezed_shape(attributes: Attributes, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    axes = target or attributes.get("axes", ())
    rank = len(shapes[0]) + len(axes)
    kept, added = iter(shapes[0]), {axis % rank for axis in axes}
    return tuple(1 if axis in added else next(kept) for axis in range(rank))


def _same_shape(attributes: Attributes, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    return shapes[0]


_SKIP_NORMALIZATIONS = ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")

_RULES: Mapping[str, Callable[[Attributes, Sequence[Shape], Sequence[int]], Shape]] = {
    "Conv": _conv_shape,
    "MaxPool": _pool_shape,
    "AveragePool": _pool_shape,
    "GlobalAveragePool": _global_pool_shape,
    "Gemm": _gemm_shape,
    "MatMul": _matmul_shape,
    "Concat": _concat_shape,
    "Gather": _gather_shape,
    "Pow": _same_shape,
    "Transpose": _transpose_shape,
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", "RotaryEmbedding"), _same_shape),
    "SimplifiedLayerNormalization": _same_shape,
    "ReduceMean": _mean_shape,
    "MatMulNBits": _int4_product_shape,
    "Flatten": _flatten_shape,
    "Squeeze": _squeezed_shape,
    "Unsqueeze": _unsqueezed_shape,
    "Reshape": _reshape_shape,
    **dict.fromkeys(("BatchNormalization", "Clip", "Dropout", "DequantizeLinear"), _same_shape),
    "QuantizeLinear": _same_shape,
}
