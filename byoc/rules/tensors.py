"""Constraints on the tensors of a node."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from byoc.graph.facts import list_plain_elements
from byoc.graph.values import get_constant_value
from byoc.rules.attributes import format_list, check_value
from byoc.rules.dims import check_shape
from byoc.rules.objections import ObjectionKind, Objection, make_unknown
from byoc.rules.quantized import is_unquantized_float, get_quantization, check_quantization
from byoc.rules.schema import ElementRule, TensorRule
from byoc.rules.values import ANY_DTYPE
from byoc.rules.view import FLOAT32, TensorUse, RuleView


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
    dtype = found.quantized_type.dtype if found is not None and found.quantized_type is not None else known.dtype
    yield from check_shape(place, use.formal, replace(known, dtype=dtype), rule, view)
    if rule.value is not None:
        yield from islice(_check_value(f"{place}.value", use, rule.value, view), 1)
    if rule.quantized is not None:
        yield from check_quantization(f"{place}.quantized", use, rule.quantized, view.index)


def _check_dtype(
    place: str, use: TensorUse, allowed: Sequence[str], view: RuleView, quantized: bool
) -> Iterator[Objection]:
    known = view.get_type(use)
    found = get_quantization(view.index, use) if quantized else None
    if found is not None:
        if found.quantized_type is None:
            yield make_unknown(place, f"the quantized type of {use.formal}")
        elif found.quantized_type.dtype not in allowed:
            text = f"{use.formal} is {found.quantized_type.dtype} outside; supported: {format_list(allowed)}"
            yield Objection(place, text, ObjectionKind.DTYPE)
        return
    if known is None or known.dtype in allowed or (quantized and is_unquantized_float(view.index, use)):
        return
    text = f"{use.formal} is {known.dtype}; supported: {format_list(allowed)}"
    if known.dtype == FLOAT32 and view.compute_dtype in allowed:
        version = view.index.get_opset(view.node)
        text = f"{use.formal} cannot be {view.compute_dtype} in operator set {version}"
    yield Objection(place, text, ObjectionKind.DTYPE)


def _check_value(place: str, use: TensorUse, rule: ElementRule, view: RuleView) -> Iterator[Objection]:
    value = get_constant_value(view.index, use.tensor)
    if value is None:
        yield make_unknown(place, f"the value of {use.formal}")
        return
    for element in list_plain_elements(value):
        yield from check_value(place, f"an element of {use.formal}", element, rule, ObjectionKind.TENSOR)
