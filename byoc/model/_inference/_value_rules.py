"""Values of small tensors that are known before the model runs, with symbolic elements among them.

An array of objects holds the elements of an integer, boolean or float tensor as extents: a number, an
expression, or None. In a float tensor an element may also be a `Ratio`. Arrays of numbers are computed
by numpy in their own dtype, as at run time.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import reduce
from math import ceil, floor, isfinite, prod
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from byoc._dataclasses import dataclass
from byoc.model._inference._extents import (
    add_dims,
    ceil_divide_dims,
    floor_divide_dims,
    is_dim_at_least,
    max_dims,
    min_dims,
    multiply_dims,
    subtract_dims,
)
from byoc.model._inference._moved_values import (
    MAX_ELEMENTS,
    MOVED_VALUES,
    Array,
    KnownNode,
    Value,
    expand_unknown,
    list_elements,
    make_objects,
    read_axes,
)
from byoc.model._tensor_data import FLOAT_DTYPES, Dim, to_numpy_dtype

# Arithmetic on elements of tensors that may be symbolic: what integers and floats compute of them.
#
# An element is a number, an expression of extents, or None where it is unknown; in a float tensor
# it may also be a `Ratio`. Of floats only what they compute without a rounding that matters is
# followed.

# Floors and ceilings of quotients by these are right for extents below 2**17, in float32.
_MAX_DENOMINATOR = 64
_MAX_FACTOR = 1 << 12


@dataclass(frozen=True, slots=True)
class Ratio:
    """An element of a float tensor: an extent divided by a whole number."""

    numerator: Dim
    denominator: int


def _read_ratio(element: Any) -> Ratio | None:
    """Return an element of a float tensor as a ratio, None if it is unknown or no small one."""
    if isinstance(element, Ratio) or element is None:
        return element
    if not isinstance(element, float):
        return Ratio(element, 1)
    if not isfinite(element):
        return None
    exact = Fraction(element)
    small = exact.denominator <= _MAX_DENOMINATOR and abs(exact.numerator) <= _MAX_FACTOR
    return Ratio(exact.numerator, exact.denominator) if small else None


def _make_ratio(numerator: Dim, denominator: int) -> Any:
    """Return a quotient as an element: an extent if the division is exact."""
    whole = floor_divide_dims(numerator, denominator)
    if whole is None or denominator > _MAX_DENOMINATOR:
        return None
    return whole if multiply_dims(whole, denominator) == numerator else Ratio(numerator, denominator)


def _multiply_floats(a: Any, b: Any) -> Any:
    one, other = _read_ratio(a), _read_ratio(b)
    if one is None or other is None:
        return None
    return _make_ratio(
        multiply_dims(one.numerator, other.numerator), one.denominator * other.denominator
    )


def _divide_floats(a: Any, b: Any) -> Any:
    one, other = _read_ratio(a), _read_ratio(b)
    if one is None or other is None or not isinstance(other.numerator, int) or other.numerator <= 0:
        return None
    return _make_ratio(
        multiply_dims(one.numerator, other.denominator), one.denominator * other.numerator
    )


def _add_floats(a: Any, b: Any) -> Any:
    one, other = _read_ratio(a), _read_ratio(b)
    if one is None or other is None:
        return None
    total = add_dims(
        multiply_dims(one.numerator, other.denominator), multiply_dims(other.numerator, one.denominator)
    )
    return _make_ratio(total, one.denominator * other.denominator)


def _subtract_floats(a: Any, b: Any) -> Any:
    return _add_floats(a, _multiply_floats(b, -1))


def truncate_float(element: Any) -> Any:
    """Return an element of a float tensor as an integer, rounded towards 0."""
    if isinstance(element, float):
        return int(element) if isfinite(element) else None
    if not isinstance(element, Ratio):
        return element
    return _round_down(element) if is_dim_at_least(element.numerator, 0) else None


def _round_down(element: Any) -> Any:
    if isinstance(element, Ratio):
        return floor_divide_dims(element.numerator, element.denominator)
    return floor(element) if isinstance(element, float) and isfinite(element) else element


def _round_up(element: Any) -> Any:
    if isinstance(element, Ratio):
        return ceil_divide_dims(element.numerator, element.denominator)
    return ceil(element) if isinstance(element, float) and isfinite(element) else element


def _divide_elements(a: Dim, b: Dim) -> Dim:
    """Return the quotient rounded towards 0, as integers are divided."""
    return floor_divide_dims(a, b) if is_dim_at_least(a, 0) and is_dim_at_least(b, 0) else None


def _take_element_rest(a: Dim, b: Dim) -> Dim:
    return subtract_dims(a, multiply_dims(_divide_elements(a, b), b))


def _compare(least: int, flipped: bool) -> Callable[[Dim, Dim], bool | None]:
    """Return the comparison `a - b >= least`, or `b - a >= least` if flipped."""

    def compare(a: Dim, b: Dim) -> bool | None:
        difference = subtract_dims(b, a) if flipped else subtract_dims(a, b)
        if is_dim_at_least(difference, least):
            return True
        return False if is_dim_at_least(multiply_dims(-1, difference), 1 - least) else None

    return compare


def _is_equal(a: Dim, b: Dim) -> bool | None:
    difference = subtract_dims(a, b)
    if isinstance(difference, int):
        return difference == 0
    apart = is_dim_at_least(difference, 1) or is_dim_at_least(multiply_dims(-1, difference), 1)
    return False if apart else None


def choose_element(condition: Any, a: Any, b: Any) -> Any:
    """Return `a` where the condition holds, else `b`; what both are where it is unknown."""
    if condition is None:
        return a if a == b else None
    return a if condition else b


INTEGER_ELEMENTS: dict[str, Callable[..., Any]] = {
    "Abs": lambda a: a if is_dim_at_least(a, 0) else None,
    "Add": add_dims,
    "And": lambda a, b: False if False in (a, b) else (a and b),
    "Div": _divide_elements,
    "Equal": _is_equal,
    "Greater": _compare(1, False),
    "GreaterOrEqual": _compare(0, False),
    "Less": _compare(1, True),
    "LessOrEqual": _compare(0, True),
    "Max": max_dims,
    "Min": min_dims,
    "Mod": _take_element_rest,
    "Mul": multiply_dims,
    "Neg": lambda a: multiply_dims(-1, a),
    "Not": lambda a: None if a is None else not a,
    "Or": lambda a, b: True if True in (a, b) else (None if None in (a, b) else False),
    "Sub": subtract_dims,
}
"""What operators compute of elements of integer and boolean tensors."""

FLOAT_ELEMENTS: dict[str, Callable[..., Any]] = {
    "Add": _add_floats,
    "Ceil": _round_up,
    "Div": _divide_floats,
    "Floor": _round_down,
    "Mul": _multiply_floats,
    "Sub": _subtract_floats,
}
"""What operators compute of elements of float tensors."""


def compute_values(node: KnownNode) -> list[Array | None]:
    """Compute the outputs of a node as far as they are known, by the rule of its operator."""
    if node.proto.op_type not in _OF_TYPES and all(value is None for value in node.values):
        return [None]
    with np.errstate(all="ignore"):  # a division by zero here is one when it runs
        made = _RULES[node.proto.op_type](node)
    return made if isinstance(made, list) else [made]


def is_followed(operator: str) -> bool:
    """Return whether values pass through an operator of ONNX's main domain, symbolic ones included."""
    return operator in _RULES


def is_of_types(operator: str) -> bool:
    """Return whether an operator's value follows from the type of its input alone."""
    return operator in _OF_TYPES


def collapse_array(array: Array, dtype: str | None) -> Array | None:
    """Return an array of numbers if all elements are known, the array of objects otherwise.

    None if no element is known, or the dtype is unknown or cannot hold them.
    """
    if array.dtype != object:
        return array
    elements = array.ravel().tolist()
    if dtype is None or (elements and all(element is None for element in elements)):
        return None
    if not all(isinstance(element, (int, float)) for element in elements):
        return array
    try:
        return array.astype(to_numpy_dtype(dtype))
    except (OverflowError, ValueError, TypeError):
        return None


def _fill(node: KnownNode) -> Array | None:
    target = list_elements(node.get_value(0))
    if target is None or not all(isinstance(dim, int) and dim >= 0 for dim in target):
        return None
    if prod(target) > MAX_ELEMENTS:
        return None
    stated = "value" in node.attributes
    element = _read_tensor(node.attributes["value"]) if stated else np.zeros(1, np.float32)
    return None if element is None or element.size != 1 else np.full(target, element.ravel()[0])


def _cast(node: KnownNode) -> Array | None:
    data, number = node.get_value(0), node.attributes.get("to")
    dtype = _CAST_DTYPES.get(number) if isinstance(number, int) else None
    if data is None or dtype is None:
        return None
    if data.dtype != object:
        if data.dtype.kind not in "biuf" or (data.dtype.kind == "f" and not _fits(data, dtype)):
            return None
        return data.astype(dtype)
    if dtype == np.dtype(bool):
        return None
    whole = np.dtype(dtype).kind in "iu"
    return _map_elements(truncate_float if whole else lambda element: element, data)


def _fits(data: Array, dtype: "np.dtype[Any]") -> bool:
    """Return whether floats keep their meaning as integers: what does not fit differs by machine."""
    if dtype.kind in "fb":
        return True
    limits = np.iinfo(dtype)
    return bool(np.all(np.isfinite(data) & (data >= limits.min) & (data < float(limits.max))))


_CAST_DTYPES = {
    number: np.dtype(kind)
    for number, kind in {
        1: np.float32, 2: np.uint8, 3: np.int8, 5: np.int16, 6: np.int32, 7: np.int64, 9: np.bool_, 10:
        np.float16, 11: np.float64, 4: np.uint16, 12: np.uint32, 13: np.uint64, }.items() }  # fmt: skip


def _map_elements(function: Callable[..., Any], *arrays: Array) -> Array | None:
    """Apply a function to the elements of arrays of objects, broadcast; None if they cannot be."""
    try:
        spread = np.broadcast_arrays(*(array.astype(object) for array in arrays))
    except ValueError:
        return None
    if spread[0].size > MAX_ELEMENTS:
        return None
    columns = zip(*(part.ravel() for part in spread), strict=True)
    return make_objects([function(*each) for each in columns]).reshape(spread[0].shape)


def _compute_elements(node: KnownNode) -> Array | None:
    """Compute an elementwise operator: by numpy on numbers, by arithmetic on elements on objects."""
    operator = node.proto.op_type
    arrays = [expand_unknown(node, i) for i in range(len(node.proto.input))]
    known = [array for array in arrays if array is not None]
    if len(known) < len(arrays) or node.attributes.get("fmod"):
        return None
    if any(array.dtype == object for array in known):
        of_floats = any(node.get_dtype(i) in FLOAT_DTYPES for i in range(len(arrays)))
        function = (FLOAT_ELEMENTS if of_floats else INTEGER_ELEMENTS).get(operator)
        return _map_elements(function, *known) if function is not None else None
    try:
        result = _ELEMENTWISE[operator](*known)
    except (TypeError, ValueError):
        return None
    return np.asarray(result) if result is not None and np.size(result) <= MAX_ELEMENTS else None


def _divide(a: Array, b: Array) -> Array | None:
    if a.dtype.kind == "f":
        return np.divide(a, b)
    if not np.all(b):
        return None
    quotient = np.floor_divide(a, b)
    return np.where((quotient < 0) & (quotient * b != a), quotient + 1, quotient).astype(a.dtype)


def _take_rest(a: Array, b: Array) -> Array | None:
    return np.mod(a, b) if a.dtype.kind in "iu" and np.all(b) else None


def _repeat(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of any number of arrays made of one of two."""
    return lambda *arrays: reduce(function, arrays)


_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "Abs": np.abs,
    "Add": np.add,
    "And": np.logical_and,
    "Ceil": np.ceil,
    "Div": _divide,
    "Equal": np.equal,
    "Floor": np.floor,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Max": _repeat(np.maximum),
    "Min": _repeat(np.minimum),
    "Mod": _take_rest,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Not": np.logical_not,
    "Or": np.logical_or,
    "Sqrt": np.sqrt,
    "Sub": np.subtract,
}


def _where(node: KnownNode) -> Array | None:
    parts = [expand_unknown(node, i) for i in range(3)]
    if any(part is None for part in parts):
        return None
    found = [part for part in parts if part is not None]
    if all(part.dtype != object for part in found):
        try:
            result = np.where(*found)
        except ValueError:
            return None
        return result if result.size <= MAX_ELEMENTS else None
    return _map_elements(choose_element, *found)


def _reduce(
    plain: Callable[..., Any], combine: Callable[..., Dim]
) -> Callable[[KnownNode], Array | None]:
    """Return the rule of a reduction, such as that of a sum."""

    def compute(node: KnownNode) -> Array | None:
        data, axes = node.get_value(0), read_axes(node)
        if data is None or (node.has_input(1) and axes is None):
            return None
        if not axes and node.attributes.get("noop_with_empty_axes", 0):
            return data
        keep = bool(node.attributes.get("keepdims", 1))
        places = (
            tuple(range(data.ndim)) if not axes else tuple(axis % max(data.ndim, 1) for axis in axes)
        )
        if data.dtype != object:
            return np.asarray(plain(data, axis=places, keepdims=keep, dtype=data.dtype))
        if len(places) < data.ndim or node.get_dtype(0) in FLOAT_DTYPES or not data.size:
            return None
        return make_objects([combine(*data.ravel())]).reshape([1] * data.ndim if keep else ())

    return compute


def _take_extreme(function: Callable[..., Any]) -> Callable[..., Any]:
    def compute(data: Array, axis: tuple[int, ...], keepdims: bool, dtype: Any) -> Any:
        return function(data, axis=axis, keepdims=keepdims)

    return compute


def _range(node: KnownNode) -> Array | None:
    ends = [node.get_value(i) for i in range(3)]
    if any(end is None or end.dtype == object or end.size != 1 for end in ends):
        return None
    start, limit, delta = (end.ravel()[0] for end in ends if end is not None)
    if not delta or not np.isfinite([start, limit, delta]).all():
        return None
    count = max(ceil((limit.item() - start.item()) / delta.item()), 0)
    return (start + np.arange(count) * delta).astype(start.dtype) if count <= MAX_ELEMENTS else None


def _read_constant(node: KnownNode) -> Array | None:
    for name, dtype in _CONSTANTS.items():
        if name in node.attributes:
            return np.array(node.attributes[name], dtype)
    return _read_tensor(node.attributes.get("value"))


def _read_tensor(tensor: TensorProto | None) -> Array | None:
    """Return a small tensor as an array of numbers, None for a large one and for text."""
    if tensor is None or prod(tensor.dims) > MAX_ELEMENTS or tensor.data_type not in _CAST_DTYPES:
        return None
    return numpy_helper.to_array(tensor)


_CONSTANTS = {
    "value_int": np.int64,
    "value_ints": np.int64,
    "value_float": np.float32,
    "value_floats": np.float32,
}


_OF_TYPES = frozenset({"Shape", "Size", "Constant"})
_RULES: dict[str, Callable[[KnownNode], Value]] = {
    **MOVED_VALUES,
    **dict.fromkeys(_ELEMENTWISE, _compute_elements),
    "Cast": _cast,
    "Constant": _read_constant,
    "ConstantOfShape": _fill,
    "Range": _range,
    "ReduceMax": _reduce(_take_extreme(np.max), max_dims),
    "ReduceMin": _reduce(_take_extreme(np.min), min_dims),
    "ReduceProd": _reduce(np.prod, multiply_dims),
    "ReduceSum": _reduce(np.sum, add_dims),
    "Where": _where,
}
