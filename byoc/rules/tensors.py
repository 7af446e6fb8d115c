"""Constraints on the tensors of a node."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from byoc.graph.facts import plain_elements
from byoc.graph.values import constant_value
from byoc.rules.attributes import listed, value_objections
from byoc.rules.dims import shape_objections
from byoc.rules.objections import Kind, Objection, unknown
from byoc.rules.quantized import is_inner, outer, quantization_objections
from byoc.rules.schema import ElementRule, TensorRule
from byoc.rules.values import ANY_DTYPE
from byoc.rules.view import FLOAT32, Use, View


def tensor_objections(  # noqa: PLR0913, PLR0917 - one tensor against all that a rule says of it
    place: str,
    use: Use,
    rule: TensorRule | None,
    dtypes: tuple[str, Sequence[str]],
    view: View,
    quantized: bool,
) -> Iterator[Objection]:
    """Yield the objections to a tensor.

    `place` is the location of its constraints `rule` (None if there are none); `dtypes` are the location
    and the names of the dtypes that apply unless the constraints name others.
    """
    if rule is not None and rule.absent:
        yield Objection(f"{place}.absent", f"{use.formal} is given, but must be absent")
        return
    known = view.kind(use)
    if known is None:
        where = place if rule is not None else dtypes[0]
        yield unknown(where, f"the type of {use.formal}")
        return
    where, allowed = dtypes
    if rule is not None and rule.dtype:
        where, allowed = f"{place}.dtype", rule.dtype
    if allowed and ANY_DTYPE not in allowed:
        yield from _dtype(where, use, allowed, view, quantized)
    if rule is None:
        return
    if rule.constant is not None and view.index.is_constant(use.tensor) != rule.constant:
        text = f"{use.formal} must {'' if rule.constant else 'not '}be a constant"
        yield Objection(f"{place}.constant", text)
    found = outer(view.index, use) if quantized else None
    dtype = found.kind.dtype if found is not None and found.kind is not None else known.dtype
    yield from shape_objections(place, use.formal, replace(known, dtype=dtype), rule, view)
    if rule.value is not None:
        yield from islice(_value(f"{place}.value", use, rule.value, view), 1)
    if rule.quantized is not None:
        yield from quantization_objections(f"{place}.quantized", use, rule.quantized, view.index)


def _dtype(
    place: str, use: Use, allowed: Sequence[str], view: View, quantized: bool
) -> Iterator[Objection]:
    known = view.kind(use)
    found = outer(view.index, use) if quantized else None
    if found is not None:
        if found.kind is None:
            yield unknown(place, f"the quantized type of {use.formal}")
        elif found.kind.dtype not in allowed:
            text = f"{use.formal} is {found.kind.dtype} outside; supported: {listed(allowed)}"
            yield Objection(place, text, Kind.DTYPE)
        return
    if known is None or known.dtype in allowed or (quantized and is_inner(view.index, use)):
        return
    text = f"{use.formal} is {known.dtype}; supported: {listed(allowed)}"
    if known.dtype == FLOAT32 and view.compute in allowed:
        version = view.index.opset(view.node)
        text = f"{use.formal} cannot be {view.compute} in operator set {version}"
    yield Objection(place, text, Kind.DTYPE)


def _value(place: str, use: Use, rule: ElementRule, view: View) -> Iterator[Objection]:
    value = constant_value(view.index, use.tensor)
    if value is None:
        yield unknown(place, f"the value of {use.formal}")
        return
    for element in plain_elements(value):
        yield from value_objections(place, f"an element of {use.formal}", element, rule, Kind.TENSOR)
