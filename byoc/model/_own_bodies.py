"""Function bodies of operators that ONNX defines by none, though other operators compute the same.

Each is written for one node: its attributes, the types of what it reads and the model's operator set
are known, and its body has the operators as that set has them. A body computes what the operator does,
but for the rounding of floating-point numbers. No body has an operator that is made of the one it is
for, so that taking parts apart ends.

These have none, though formulas are known: Sinh, Cosh, Asinh, Acosh and Atanh, whose formulas by Exp
and Log lose all digits where they cancel; CumSum and CumProd, since a product with a triangle of ones
makes NaN of what stands before an infinity; Max and Min by sums, which round; Erf, Sin, Cos and the
like, which are series. Nor have Neg and Abs, which nearly every target has.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import FunctionProto, NodeProto, TypeProto, helper, numpy_helper

from byoc._dataclasses import dataclass, field
from byoc.model._constants import get_constant_value
from byoc.model._editable_graph import build_node
from byoc.model._graph_index import GraphIndex
from byoc.model._node_kinds import get_operator_name
from byoc.model._tensor_data import Dim

_AXES_OPSETS = {"ReduceSum": 13, "Squeeze": 13, "Unsqueeze": 13, "ReduceMean": 18, "ReduceMax": 18}
"""The ONNX operator sets from which the axes of operators are an input."""
_LEAST_OPSET = 11  # from which Equal takes floating-point numbers, and Slice has its places as inputs
_SPLIT_OPSET = 13  # from which the sizes of Split are an input
_CLIP_OPSET = 12  # from which Clip takes numbers of all widths, with bounds as inputs
_DILATED_OPSET = 19  # from which AveragePool has dilations
_PLACES_OPSET = 13  # from which Hardmax is along one axis, and ArgMax may take the last of equals
_AXIS_OPSET = 13  # from which DequantizeLinear has scales along an axis
_HIDDEN = -10_000.0  # onnxruntime's default of `mask_filter_value`, which hidden keys get
_FLOATS = ("float32", "float64", "float16")
_IMAGE = 2  # axes of batch and channels, before those of an image


@dataclass(eq=False)
class _Body:
    """The body of one node as it is written: what is known of the node, and the nodes so far."""

    index: GraphIndex
    node: NodeProto
    types: Mapping[str, TypeProto]
    nodes: list[NodeProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Read attributes, names of inputs and the operator set."""
        schema = self.index.get_schema(self.node)
        assert schema is not None
        self.schema = schema
        self.attributes: dict[str, Any] = self.index.get_attributes(self.node)
        self.opset = self.index.opsets.get("", 1)
        self.inputs = [f"given_{i}" for i, _ in enumerate(self.node.input)]

    def shape(self, position: int = 0) -> tuple[Dim, ...]:
        """Return the shape of an input; none of its extents where its rank is not known."""
        return self.index.get_shape(self.node.input[position]) or ()

    def dtype(self, position: int = 0) -> str:
        """Return the dtype of an input."""
        return self.index.get_dtype(self.node.input[position]) or ""

    def value(self, position: int) -> NDArray[Any] | None:
        """Return the value of an input that is a small constant."""
        name = self.node.input[position] if position < len(self.node.input) else ""
        return get_constant_value(self.index, name) if name else None

    def has(self, position: int) -> bool:
        """Return whether an input is given."""
        return position < len(self.node.input) and bool(self.node.input[position])

    def constant(self, value: object, dtype: str | None = None) -> str:
        """Add a constant, of the dtype of the first input unless one is given; return its name."""
        array = np.asarray(value, np.dtype(dtype or self.dtype()))
        return self.add("Constant", value=numpy_helper.from_array(array))

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; return the name of its output."""
        made = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(build_node(op, inputs, [made], made, **attributes))
        return made

    def reduce(self, op: str, given: str, axes: Sequence[int], keepdims: int = 1) -> str:
        """Add a reduction over axes."""
        if self.opset < _AXES_OPSETS[op]:
            return self.add(op, given, axes=axes, keepdims=keepdims)
        return self.add(op, given, self.constant(axes, "int64"), keepdims=keepdims)

    def reshape(self, given: str, shape: Sequence[int]) -> str:
        """Add a Reshape."""
        return self.add("Reshape", given, self.constant(shape, "int64"))

    def power(self, given: str, exponent: float) -> str:
        """Add a power of numbers that are not negative, as products and roots where these do."""
        if exponent == 1:
            return given
        if exponent == 2:
            return self.add("Mul", given, given)
        if exponent == 0.5:
            return self.add("Sqrt", given)
        if exponent == 0.75:
            root = self.add("Sqrt", given)
            return self.add("Mul", root, self.add("Sqrt", root))
        return self.add("Pow", given, self.constant(exponent))

    def finish(self, last: str | Sequence[str]) -> FunctionProto:
        """Return the body, whose outputs are some of its tensors."""
        made = [last] if isinstance(last, str) else [*last]
        outputs = [f"made_{i}" for i, _ in enumerate(made)]
        for name, output in zip(made, outputs, strict=True):
            self.nodes.append(build_node("Identity", [name], [output], f"{output}_copy"))
        imports = [helper.make_opsetid(domain, version) for domain, version in self.index.opsets.items()]
        return helper.make_function(
            self.node.domain or "ai.onnx", self.node.op_type, self.inputs, outputs, self.nodes, imports
        )


_Made = str | Sequence[str] | None
"""The outputs of a body, or None where the node has none."""


def has_own_body(node: NodeProto) -> bool:
    """Return whether nodes of an operator may have a body of this module."""
    return get_operator_name(node) in _BODIES


def list_own_bodies() -> frozenset[str]:
    """Return the operators that have a body of this module, by name as in rule files."""
    return frozenset(_BODIES)


def make_own_body(
    index: GraphIndex, node: NodeProto, types: Mapping[str, TypeProto]
) -> FunctionProto | None:
    """Return the body of a node by other operators, given the types of what it reads, or None."""
    if not has_own_body(node) or index.opsets.get("", 1) < _LEAST_OPSET or not all(node.input[:1]):
        return None
    schema = index.get_schema(node)
    if schema is None or schema.deprecated:
        return None
    body = _Body(index, node, types)
    if index.get_dtype(node.input[0]) is None or index.get_shape(node.input[0]) is None:
        return None
    made = _BODIES[get_operator_name(node)](body)
    return None if made is None else body.finish(made)


# Norms.


def _normalize(body: _Body) -> _Made:
    """LpNormalization: a quotient by the norm along an axis, 0 where that is 0.

    The root of a sum of squares is 0, or at least that of the least number above 0. So it is clamped to
    that, and what it is 0 for is multiplied by 0, all else by 1: this takes no comparison, which
    many accelerators lack. Squares of small numbers may be 0 where these are not.
    """
    x, dtype = body.inputs[0], body.dtype()
    p, axis = body.attributes["p"], body.attributes["axis"]
    if dtype not in _FLOATS or p not in (1, 2):
        return None
    powers = body.add("Abs", x) if p == 1 else body.add("Mul", x, x)
    norm = body.power(body.reduce("ReduceSum", powers, [axis]), 1 / p)
    if p == 2 and dtype != "float16" and body.opset >= _CLIP_OPSET:
        least = float(np.sqrt(np.finfo(np.dtype(dtype)).smallest_subnormal, dtype=np.float64))
        quotient = body.add("Div", x, body.add("Clip", norm, body.constant(least)))
        large = body.add("Mul", norm, body.constant(2 / least))
        one = body.add("Clip", large, body.constant(0), body.constant(1))
        return body.add("Mul", quotient, one)
    is_zero = body.add("Equal", norm, body.constant(0))
    return body.add("Div", x, body.add("Where", is_zero, body.constant(1), norm))


def _pool_norm(body: _Body) -> _Made:
    """LpPool: a root of so many times the mean of powers, in which padding counts as 0."""
    x, stated = body.inputs[0], dict(body.attributes)
    p, kernel = stated.pop("p"), stated["kernel_shape"]
    if body.dtype() not in _FLOATS or p < 1 or stated.get("ceil_mode", 0):
        return None
    if any(each > 1 for each in stated.get("dilations", ())):
        if body.opset < _DILATED_OPSET:
            return None
    else:
        stated.pop("dilations", None)
    powers = _take_powers(body, x, p)
    mean = body.add("AveragePool", powers, count_include_pad=1, **stated)
    return body.power(body.add("Mul", mean, body.constant(prod(kernel))), 1 / p)


def _pool_all_norms(body: _Body) -> _Made:
    """GlobalLpPool: a root of so many times the mean of powers of an image."""
    p, extents = body.attributes["p"], body.shape()[_IMAGE:]
    if body.dtype() not in _FLOATS or p < 1 or not all(isinstance(each, int) for each in extents):
        return None
    mean = body.add("GlobalAveragePool", _take_powers(body, body.inputs[0], p))
    count = prod(each for each in extents if isinstance(each, int))
    return body.power(body.add("Mul", mean, body.constant(count)), 1 / p)


def _take_powers(body: _Body, x: str, p: int) -> str:
    """Add powers of absolute values."""
    return body.add("Mul", x, x) if p == 2 else body.power(body.add("Abs", x), p)


def _normalize_instances(body: _Body) -> _Made:
    """InstanceNormalization: deviations from the mean of each image, over their root mean square."""
    x, scale, bias = body.inputs
    rank = len(body.shape())
    if rank <= _IMAGE or body.dtype() not in _FLOATS:
        return None
    deviation = body.add("Sub", x, body.add("GlobalAveragePool", x))
    variance = body.add("GlobalAveragePool", body.add("Mul", deviation, deviation))
    root = body.add("Sqrt", body.add("Add", variance, body.constant(body.attributes["epsilon"])))
    columns = [-1, *[1] * (rank - _IMAGE)]
    factor = body.add("Div", body.reshape(scale, columns), root)
    return body.add("Add", body.add("Mul", deviation, factor), body.reshape(bias, columns))


def _normalize_responses(body: _Body) -> _Made:
    """LRN: a quotient by a power of the mean of squares of the channels around."""
    x, stated, shape = body.inputs[0], body.attributes, body.shape()
    known = [each for each in shape[1:] if isinstance(each, int)]
    if body.dtype() not in _FLOATS or len(shape) <= _IMAGE or len(known) < len(shape) - 1:
        return None
    size, (channels, *image) = stated["size"], known
    flat = body.reshape(body.add("Mul", x, x), [-1, 1, channels, prod(image)])
    before = (size - 1) // 2
    mean = body.add(
        "AveragePool",
        flat,
        kernel_shape=[size, 1],
        pads=[before, 0, size - 1 - before, 0],
        count_include_pad=1,
    )
    squares = body.reshape(mean, [-1, channels, *image])
    scaled = body.add("Mul", squares, body.constant(stated["alpha"]))
    base = body.add("Add", scaled, body.constant(stated["bias"]))
    return body.add("Div", x, body.power(base, stated["beta"]))


# Reductions and pools of whole images.


def _pool_all(op: str) -> Callable[[_Body], _Made]:
    def write(body: _Body) -> _Made:
        """Global pools: pools whose window is the image."""
        extents = body.shape()[_IMAGE:]
        if not extents or not all(isinstance(each, int) and each for each in extents):
            return None
        return body.add(op, body.inputs[0], kernel_shape=extents)

    return write


def _reduce_images(op: str) -> Callable[[_Body], _Made]:
    def write(body: _Body) -> _Made:
        """Means and maxima over the axes of an image: pools of all of it."""
        x, rank = body.inputs[0], len(body.shape())
        axes = _read_axes(body)
        if axes != [*range(_IMAGE, rank)] or body.dtype() not in _FLOATS:
            return None
        pooled = body.add(op, x)
        if body.attributes.get("keepdims", 1):
            return pooled
        shape = _state_shape(body.shape()[:_IMAGE])
        return None if shape is None else body.reshape(pooled, shape)

    return write


def _sum_by_means(body: _Body) -> _Made:
    """ReduceSum: so many times the mean."""
    axes, shape = _read_axes(body), body.shape()
    if not axes or body.dtype() not in _FLOATS:
        return None
    extents = [shape[axis] for axis in axes]
    known = [each for each in extents if isinstance(each, int)]
    if len(known) < len(extents) or 0 in known:
        return None
    mean = body.reduce("ReduceMean", body.inputs[0], axes, body.attributes.get("keepdims", 1))
    return body.add("Mul", mean, body.constant(prod(known)))


def _read_axes(body: _Body) -> list[int] | None:
    """Return the axes of a node, counted from the front and in order; None where they are not known."""
    rank = len(body.shape())
    axes: Any = body.attributes.get("axes")
    if "axes" in body.schema.formals and body.has(1):
        axes = body.value(1)
        if axes is None:
            return None
    if axes is None or np.size(axes) == 0:
        return [] if body.attributes.get("noop_with_empty_axes", 0) else [*range(rank)]
    return sorted({int(axis) % rank for axis in np.ravel(axes)}) if rank else []


def _state_shape(shape: Sequence[Dim]) -> list[int] | None:
    """Return a shape as Reshape takes it; None where more than one extent is not known."""
    stated = [each if isinstance(each, int) else -1 for each in shape]
    return None if stated.count(-1) > 1 or 0 in stated else stated


# Parts and views of tensors.


def _slice_by_splits(body: _Body) -> _Made:
    """Slice in steps of one: for each axis the middle one of the parts of a Split."""
    shape = body.shape()
    ranges = _read_ranges(body)
    if ranges is None:
        return None
    made = body.inputs[0]
    for axis, (start, end) in sorted(ranges.items()):
        extent = shape[axis]
        assert isinstance(extent, int)
        sizes = [start, end - start, extent - end]
        if sizes[1] <= 0:
            return None
        kept = [i for i, size in enumerate(sizes) if size]
        if kept == [1]:
            continue
        names = [f"part_{axis}_{i}" for i in kept]
        own = [sizes[i] for i in kept]
        if body.opset < _SPLIT_OPSET:
            body.nodes.append(build_node("Split", [made], names, f"split_{axis}", axis=axis, split=own))
        else:
            inputs = [made, body.constant(own, "int64")]
            body.nodes.append(build_node("Split", inputs, names, f"split_{axis}", axis=axis))
        made = f"part_{axis}_1"
    return made


def _read_ranges(body: _Body) -> dict[int, tuple[int, int]] | None:
    """Return the first place and the one behind the last, by axis; None where they are not known."""
    shape = body.shape()
    starts, ends, axes, steps = (body.value(position) for position in range(1, 5))
    unknown = (body.has(3) and axes is None) or (body.has(4) and steps is None)
    if starts is None or ends is None or unknown:
        return None
    if steps is not None and any(step != 1 for step in np.ravel(steps)):
        return None
    places = range(np.size(starts)) if axes is None else np.ravel(axes)
    found = {}
    for axis, start, end in zip(places, np.ravel(starts), np.ravel(ends), strict=True):
        extent = shape[int(axis)]
        if not isinstance(extent, int):
            return None
        ends_ = [int(each) + extent if each < 0 else int(each) for each in (start, end)]
        first, last = (min(max(each, 0), extent) for each in ends_)
        found[int(axis) % len(shape)] = (first, last)
    return found


def _view_by_reshape(body: _Body) -> _Made:
    """Squeeze and Unsqueeze: the shape that they make."""
    made = body.index.get_shape(body.node.output[0])
    shape = None if made is None else _state_shape(made)
    return None if not shape else body.reshape(body.inputs[0], shape)


# One element in, one out.


def _invert(body: _Body) -> _Made:
    """Reciprocal: a quotient of 1."""
    return body.add("Div", body.constant(1), body.inputs[0])


def _take_power(body: _Body) -> _Made:
    """Pow by a constant: products, a root, or a quotient."""
    exponent, x = body.value(1), body.inputs[0]
    if exponent is None or exponent.size != 1 or body.dtype() not in _FLOATS:
        return None
    if len(body.shape()) < exponent.ndim:
        return None
    known: dict[float, Callable[[], str]] = {
        -1: lambda: body.add("Reciprocal", x),
        1: lambda: body.add("Identity", x),
        2: lambda: body.add("Mul", x, x),
        3: lambda: body.add("Mul", body.add("Mul", x, x), x),
    }
    write = known.get(float(exponent.item()))
    return None if write is None else write()


def _average(body: _Body) -> _Made:
    """Mean of tensors: their sum over how many they are."""
    total = body.add("Sum", *body.inputs)
    count = len(body.inputs)
    return total if count == 1 else body.add("Div", total, body.constant(count))


def _mark_largest(body: _Body) -> _Made:
    """Hardmax: 1 at the place of the first largest number along an axis."""
    axis = body.attributes["axis"]
    rank = len(body.shape())
    extent = body.shape()[axis] if rank else None
    if body.opset < _PLACES_OPSET or not isinstance(extent, int) or body.dtype() not in _FLOATS:
        return None
    place = body.add("ArgMax", body.inputs[0], axis=axis, keepdims=1)
    ones = [1] * rank
    ones[axis] = extent
    places = body.constant(np.arange(extent).reshape(ones), "int64")
    number = helper.np_dtype_to_tensor_dtype(np.dtype(body.dtype()))
    return body.add("Cast", body.add("Equal", place, places), to=number)


# Attention in integers, of onnxruntime.


def _attend(body: _Body) -> _Made:
    """com.microsoft.QAttention: attention in floating point, on what its integers stand for.

    The products of its integers are those of these real numbers. Masks are left out, one number for each
    key, or how many keys there are. One with a past has no body.
    """
    shape, width = body.shape(), body.shape(1)[-1:]
    heads, masks = body.attributes.get("num_heads"), body.shape(5) if body.has(5) else ()
    past = body.has(8) or any(body.node.output[1:]) or body.attributes.get("do_rotary", 0)
    known = [each for each in (*shape[1:2], *width) if isinstance(each, int)]
    if past or len(shape) != 3 or len(known) < 2 or not heads or body.opset < _AXIS_OPSET:
        return None
    if len(masks) > 2 or (len(masks) == 1 and masks != shape[:1]):
        return None
    length, size = known[0], known[1] // 3 // heads
    projected = body.add("Add", body.add("MatMul", *_dequantize(body)), body.inputs[2])
    parts = body.reshape(projected, [-1, length, 3, heads, size])
    turned = body.add("Transpose", parts, perm=[2, 0, 3, 1, 4])
    taken = [body.add("Gather", turned, body.constant(i, "int64"), axis=0) for i in range(3)]
    query, key, value = taken
    scores = body.add("MatMul", query, body.add("Transpose", key, perm=[0, 1, 3, 2]))
    factor = body.attributes.get("scale") or 1 / np.sqrt(size)
    scores = body.add("Mul", scores, body.constant(factor, "float32"))
    scores = _mask(body, scores, len(masks), length)
    made = body.add("MatMul", body.add("Softmax", scores, axis=-1), value)
    return body.reshape(body.add("Transpose", made, perm=[0, 2, 1, 3]), [-1, length, known[1] // 3])


def _dequantize(body: _Body) -> tuple[str, str]:
    """Return the real numbers that input and weights of a QAttention stand for."""
    made = []
    for given, scale, zero in ((0, 3, 6), (1, 4, 7)):
        parameters = [place for place in (scale, zero) if body.has(place)]
        columns = prod(each for each in body.shape(scale) if isinstance(each, int)) > 1
        names = [
            body.inputs[place] if columns else body.reshape(body.inputs[place], [])
            for place in parameters
        ]
        made.append(
            body.add("DequantizeLinear", body.inputs[given], *names, axis=1 if columns else None)
        )
    return made[0], made[1]


def _mask(body: _Body, scores: str, rank: int, length: int) -> str:
    """Add to scores what hides keys: those of padding, and those behind the query."""
    hidden = body.attributes.get("mask_filter_value") or _HIDDEN
    if rank:
        mask = body.inputs[5]
        if rank == 1:
            places = body.constant(np.arange(length)[None], "int32")
            shown = body.add("Less", places, body.reshape(mask, [-1, 1]))
        else:
            shown = body.add("Greater", mask, body.constant(0, "int32"))
        zero, low = body.constant(0, "float32"), body.constant(hidden, "float32")
        added = body.add("Where", shown, zero, low)
        scores = body.add("Add", scores, body.reshape(added, [-1, 1, 1, length]))
    if body.attributes.get("unidirectional", 0):
        behind = np.triu(np.full((length, length), np.finfo(np.float32).min), 1)
        scores = body.add("Add", scores, body.constant(behind, "float32"))
    return scores


_BODIES: Mapping[str, Callable[[_Body], _Made]] = {
    "GlobalAveragePool": _pool_all("AveragePool"),
    "GlobalLpPool": _pool_all_norms,
    "GlobalMaxPool": _pool_all("MaxPool"),
    "Hardmax": _mark_largest,
    "InstanceNormalization": _normalize_instances,
    "LRN": _normalize_responses,
    "LpNormalization": _normalize,
    "LpPool": _pool_norm,
    "Mean": _average,
    "Pow": _take_power,
    "Reciprocal": _invert,
    "ReduceMax": _reduce_images("GlobalMaxPool"),
    "ReduceMean": _reduce_images("GlobalAveragePool"),
    "ReduceSum": _sum_by_means,
    "Slice": _slice_by_splits,
    "Squeeze": _view_by_reshape,
    "com.microsoft.QAttention": _attend,
    "Unsqueeze": _view_by_reshape,
}
"""For operators: what writes the body of a node, as far as that is possible."""
