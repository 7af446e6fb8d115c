"""Constraints on the tensors of a node: dtype, dimensions, sizes, broadcasting."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Literal

from byoc.model import Dim, TensorType, bound_dim, get_constant_value, list_plain_elements
from byoc.rules._node_view import (
    FLOAT32,
    Objection,
    ObjectionKind,
    RuleView,
    TensorUse,
    check_bounds,
    check_value,
    format_list,
    is_at_least,
    is_multiple,
    make_unknown,
    object_to_choice,
    object_to_open,
)
from byoc.rules._quantization_scheme import check_quantization, get_quantization, is_unquantized_float
from byoc.rules._rule_schema import TensorRule
from byoc.rules._schema_values import ANY_DTYPE, EACH_DIM, CountRule, DimRule, ElementRule


def check_shape(
    place: str, name: str, known: TensorType, rule: TensorRule, view: RuleView
) -> Iterator[Objection]:
    """Yield the objections to the shape of a tensor; extents that are not known are objected to."""
    shape = known.shape
    if rule.rank is not None:
        if shape is None:
            yield make_unknown(f"{place}.rank", f"the rank of {name}")
        elif len(shape) not in rule.rank:
            rank, allowed = str(len(shape)), format_list(rule.rank)
            text = f"{name} has rank {rank}; supported: {allowed}"
            yield Objection(f"{place}.rank", text, value=rank, allowed=allowed)
    yield from _check_dims(place, name, shape, rule, view)
    if rule.static is not None:
        yield from _check_static(f"{place}.static", name, shape, rule.static)
    if rule.elements is not None:
        count = f"the number of elements of {name}"
        yield from _check_count(
            f"{place}.elements", count, known.elements, rule.elements, *(shape or ())
        )
    if rule.bytes is not None:
        if known.bytes is None:
            yield make_unknown(f"{place}.bytes", f"the size of {name}", *(shape or ()))
        else:
            size = f"the size of {name} in bytes"
            yield from check_bounds(
                f"{place}.bytes", size, known.bytes, rule.bytes, ObjectionKind.TENSOR
            )
    if rule.scalar is not None:
        yield from _check_scalar(f"{place}.scalar", name, shape, rule.scalar)
    if rule.broadcast is not None:
        yield from _check_broadcast(f"{place}.broadcast", name, shape, rule.broadcast, view)


def _check_dims(
    place: str, name: str, shape: Sequence[Dim] | None, rule: TensorRule, view: RuleView
) -> Iterator[Objection]:
    if rule.dims and shape is None:
        yield make_unknown(f"{place}.dims", f"the rank of {name}")
        return
    extents = shape or ()
    for axis, dim in rule.dims.items():
        if axis == EACH_DIM:
            each = (
                _check_extent(f"{place}.dims.each", f"dimension {position} of {name}", extent, dim, view)
                for position, extent in enumerate(extents)
            )
            yield from islice(chain.from_iterable(each), 1)  # one is enough to refuse the tensor
            continue
        number = int(axis)
        where = f"{place}.dims[{number}]"
        if -len(extents) <= number < len(extents):
            what = f"dimension {number} of {name}"
            yield from _check_extent(where, what, extents[number], dim, view)
        else:
            yield Objection(where, f"{name} has no dimension {number}: its rank is {len(extents)}")


def check_known_shape(
    place: str, name: str, known: TensorType | None, wanted: Literal["any", "ranked", "static"]
) -> Iterator[Objection]:
    """Yield the objection to a tensor of whose shape less is known than the file asks for."""
    shape = known.shape if known is not None else None
    if wanted != "any" and shape is None:
        yield make_unknown(place, f"the rank of {name}")
    elif wanted == "static":
        yield from _check_static(place, name, shape, wanted=True)


def _check_extent(
    place: str, what: str, extent: Dim, rule: DimRule, view: RuleView
) -> Iterator[Objection]:
    if rule.equals is not None:
        yield from _check_equal(f"{place}.equals", what, extent, rule.equals, view)
    if (rule.one_of, rule.min, rule.max, rule.multiple_of) == (None, None, None, None):
        return
    ends = bound_dim(extent, view.index.planned.ranges)
    divides = is_multiple(extent, rule.multiple_of)
    if ends is None:
        if not divides or (rule.one_of, rule.max) != (None, None) or not is_at_least(extent, rule.min):
            yield make_unknown(place, what, extent)
        return
    if ends[0] != ends[1] and (rule.one_of is not None or not divides):
        yield object_to_open(place, f"{what} is {extent}, which is not fixed", extent)
        return
    if rule.one_of is not None and ends[0] not in rule.one_of:
        yield object_to_choice(f"{place}.one_of", what, str(ends[0]), rule.one_of)
    for end in dict.fromkeys(ends):  # what holds at both ends of a range holds for all of it
        yield from _check_count(place, what, end, rule)


def _check_count(
    place: str, what: str, value: int | None, rule: CountRule, *dims: Dim
) -> Iterator[Objection]:
    """Yield the objections to a number that follows from some extents, None if it is not known."""
    if (rule.min, rule.max, rule.multiple_of) == (None, None, None):
        return
    if value is None:
        yield make_unknown(place, what, *dims)
        return
    yield from check_bounds(place, what, value, rule, ObjectionKind.TENSOR)
    if rule.multiple_of is not None and value % rule.multiple_of:
        allowed = f"a multiple of {rule.multiple_of}"
        text = f"{what} is {value}, {allowed} is supported"
        yield Objection(f"{place}.multiple_of", text, value=str(value), allowed=allowed)


def parse_reference(text: str) -> tuple[str, int]:
    """Parse a reference such as `W[1]` to a tensor and an axis."""
    name, _, axis = text.removesuffix("]").partition("[")
    return name, int(axis)


def _check_equal(place: str, what: str, extent: Dim, text: str, view: RuleView) -> Iterator[Objection]:
    name, axis = parse_reference(text)
    tensor = view.find_tensor(name)
    if tensor is None:
        yield Objection(place, f"{what} must be {text}, and {name} is absent")
        return
    shape = view.index.get_shape(tensor)
    if shape is None:
        yield make_unknown(place, f"the rank of {name}")
    elif not -len(shape) <= axis < len(shape):
        yield Objection(place, f"{name} has no dimension {axis}: its rank is {len(shape)}")
    elif extent is None or shape[axis] is None:
        yield make_unknown(place, what if extent is None else text, extent, shape[axis])
    elif isinstance(extent, int) and isinstance(shape[axis], int):
        if extent != shape[axis]:
            yield Objection(
                place, f"{what} is {extent}, and {text} is {shape[axis]}; they must be equal"
            )
    elif extent != shape[axis]:  # symbolic, and not by the same name
        yield make_unknown(place, f"whether {what} equals {text}", extent, shape[axis])


def _check_static(
    place: str, name: str, shape: Sequence[Dim] | None, wanted: bool
) -> Iterator[Objection]:
    if shape is None:
        if wanted:
            yield make_unknown(place, f"the rank of {name}")
        return
    free = [position for position, extent in enumerate(shape) if not isinstance(extent, int)]
    if wanted and free:
        text = f"dimension {free[0]} of {name} is not fixed"
        yield object_to_open(place, text, shape[free[0]])
    if not wanted and not free:
        yield Objection(place, f"every dimension of {name} is fixed")


def _check_scalar(
    place: str, name: str, shape: Sequence[Dim] | None, wanted: bool
) -> Iterator[Objection]:
    answer = _has_one_element(shape)
    if answer is None:
        yield make_unknown(place, f"whether {name} has one element")
    elif answer != wanted:
        yield Objection(place, f"{name} must {'' if wanted else 'not '}have exactly one element")


def _has_one_element(shape: Sequence[Dim] | None) -> bool | None:
    if shape is None:
        return None
    if any(isinstance(extent, int) and extent != 1 for extent in shape):
        return False
    return True if all(isinstance(extent, int) for extent in shape) else None


def _check_broadcast(
    place: str, name: str, shape: Sequence[Dim] | None, allowed: Sequence[str], view: RuleView
) -> Iterator[Objection]:
    result = view.result_type.shape if view.result_type else None
    kind = None if shape is None or result is None else classify_broadcast(shape, result)
    if kind is None:
        yield make_unknown(place, f"how {name} broadcasts")
    elif kind not in allowed and not (
        kind == "channel" and len(result or ()) == 2 and "last" in allowed
    ):
        texts = {
            "none": f"{name} has the shape of the output",
            "scalar": f"{name} is one element broadcast",
            "channel": f"{name} is broadcast along all but axis 1",
            "last": f"{name} is broadcast along all but the last axis",
            "other": f"{name} is broadcast otherwise than by one element, channel or last axis",
        }
        yield Objection(place, f"{texts[kind]}; supported: {format_list(allowed)}")


def classify_broadcast(shape: Sequence[Dim], result: Sequence[Dim]) -> str | None:
    """Classify the broadcast of an input shape to an output shape, None if that is not known.

    The kind is none, scalar, channel, last or other; for a matrix, whose last axis is axis 1, channel.
    Symbolic extents with one name are equal, and differ from all that are known.
    """
    if None not in shape and tuple(shape) == tuple(result):
        return "none"
    if _has_one_element(shape):
        return "scalar"
    if len(shape) > len(result):
        return "other"
    padded = (*[1] * (len(result) - len(shape)), *shape)
    if any(not isinstance(extent, int) for extent in padded):
        return None
    wide = [axis for axis, extent in enumerate(padded) if extent != 1]
    if wide in ([1], [len(padded) - 1]):
        return "channel" if wide == [1] else "last"
    pairs = zip(padded, result, strict=True)
    differs = any(isinstance(full, int) and full != extent for extent, full in pairs)
    return "other" if differs or len(shape) < len(result) else None


_SUM_DTYPE = "int32"  # of biases, which are added to sums of products
_FEW_BITS = frozenset({"int4", "uint4", "int8", "uint8", "int16", "uint16"})


def check_tensor(  # noqa: PLR0913, PLR0917 - one tensor against all that a rule says of it
    place: str,
    use: TensorUse,
    rule: TensorRule | None,
    dtypes: tuple[str, Sequence[str]],
    view: RuleView,
    quantized: bool,
) -> Iterator[Objection]:
    """Yield the objections to a tensor.

    `place` is the location of its constraints `rule` (None if there are none); `dtypes` are the location
    and the names of the dtypes that apply unless the constraints name others.
    """
    if rule is not None and rule.absent:
        yield Objection(f"{place}.absent", f"{use.formal} is given, but must be absent")
        return
    known = view.get_type(use)
    if known is None:
        where = place if rule is not None else dtypes[0]
        yield make_unknown(where, f"the type of {use.formal}")
        return
    where, allowed = dtypes
    if rule is not None and rule.dtype:
        where, allowed = f"{place}.dtype", rule.dtype
    if allowed and ANY_DTYPE not in allowed:
        yield from _check_dtype(where, use, allowed, view, quantized)
    if rule is None:
        return
    if rule.constant is not None and view.index.is_constant(use.tensor) != rule.constant:
        text = f"{use.formal} must {'' if rule.constant else 'not '}be a constant"
        yield Objection(f"{place}.constant", text)
    found = get_quantization(view.index, use) if quantized else None
    dtype = (
        found.quantized_type.dtype
        if found is not None and found.quantized_type is not None
        else known.dtype
    )
    yield from check_shape(place, use.formal, replace(known, dtype=dtype), rule, view)
    if rule.value is not None:
        yield from islice(_check_value(f"{place}.value", use, rule.value, view), 1)
    if rule.quantized is not None:
        yield from check_quantization(f"{place}.quantized", use, rule.quantized, view)


def _check_dtype(
    place: str, use: TensorUse, allowed: Sequence[str], view: RuleView, quantized: bool
) -> Iterator[Objection]:
    known = view.get_type(use)
    found = get_quantization(view.index, use) if quantized else None
    if found is not None:
        if found.quantized_type is None:
            yield make_unknown(place, f"the quantized type of {use.formal}")
        elif found.quantized_type.dtype not in allowed:
            outside = found.quantized_type.dtype
            said = object_to_choice(
                place, use.formal, f"{outside} outside", allowed, ObjectionKind.DTYPE
            )
            # Most accelerators add up in 32 bits, which a `dtype` of the whole rule leaves out.
            is_sum = outside == _SUM_DTYPE and view.index.is_constant(use.tensor)
            if is_sum and all(name in _FEW_BITS for name in allowed):
                remedy = f"`tensors: {{{use.formal}: {{dtype: {_SUM_DTYPE}}}}}`"
                said = replace(said, advice=f"if the accelerator can, say {remedy} beside {place}")
            yield said
        return
    if known is None or known.dtype in allowed or (quantized and is_unquantized_float(view.index, use)):
        return
    found_dtype = object_to_choice(place, use.formal, known.dtype, allowed, ObjectionKind.DTYPE)
    if known.dtype == FLOAT32 and view.compute_dtype in allowed:
        version = view.index.get_opset(view.node)
        text = f"{use.formal} cannot be {view.compute_dtype} in operator set {version}"
        found_dtype = replace(found_dtype, text=text)
    yield found_dtype


def _check_value(place: str, use: TensorUse, rule: ElementRule, view: RuleView) -> Iterator[Objection]:
    value = get_constant_value(view.index, use.tensor)
    if value is None:
        yield make_unknown(place, f"the value of {use.formal}")
        return
    for element in list_plain_elements(value):
        yield from check_value(place, f"an element of {use.formal}", element, rule, ObjectionKind.TENSOR)
