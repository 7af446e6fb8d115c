"""Rules that are never tried, since an earlier one accepts all that they would."""

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel

from byoc.rules.schema import OpRule, TensorRule
from byoc.rules.values import ANY_OPERATOR, ANY_DTYPE

_SET_KEYS = {"rank", "one_of", "length", "broadcast"}


def find_hidden_rules(rules: Sequence[tuple[int, OpRule]], dtypes: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each rule, or operator of one, that an earlier rule hides.

    Only obvious cases are found: each constraint of the earlier rule follows from one of the same name
    in the later. `dtypes` are the file's.
    """
    before: dict[str, list[tuple[int, OpRule]]] = {}
    for i, rule in rules:
        covered: dict[int, list[str]] = {}
        for op in dict.fromkeys(rule.op):
            earlier = sorted((*before.get(op, ()), *(before.get(ANY_OPERATOR, ()) if op != ANY_OPERATOR else ())))
            number = next((n for n, other in earlier if _covers(other, rule, dtypes)), None)
            if number is not None:
                covered.setdefault(number, []).append(op)
        for number, ops in covered.items():
            about = "" if len(ops) == len(set(rule.op)) else f" about {', '.join(ops)}"
            yield f"ops[{i}]: never asked{about}, since ops[{number}] takes all that this rule would"
        for op in dict.fromkeys(rule.op):
            before.setdefault(op, []).append((i, rule))


def _covers(first: OpRule, second: OpRule, dtypes: Sequence[str]) -> bool:
    """Return whether the first rule accepts everything that the second accepts."""
    if first.quantized != second.quantized or not _implies(second.opset, first.opset):
        return False
    if first.check not in (None, second.check) or not _has_same_scheme(first, second):
        return False
    if not {c.expr for c in first.where} <= {c.expr for c in second.where}:
        return False
    wide, narrow = first.dtype or dtypes, second.dtype or dtypes
    if not _are_dtypes_within(narrow, wide) or not _tensors_cover(first, second, wide, narrow):
        return False
    return all(
        name in second.attributes and _implies(second.attributes[name], rule)
        for name, rule in first.attributes.items()
        if rule.model_fields_set
    )


def _has_same_scheme(first: OpRule, second: OpRule) -> bool:
    """Return whether the file's quantization scheme adds the same constraints to both rules."""
    if not first.quantized:
        return True
    own = [
        {name: rule.quantized for name, rule in r.tensors.items() if rule.quantized}
        for r in (first, second)
    ]
    return own[0] == own[1] and (
        bool(first.dtype) == bool(second.dtype) or ANY_DTYPE in (first.dtype or ())
    )


def _tensors_cover(first: OpRule, second: OpRule, wide: Sequence[str], narrow: Sequence[str]) -> bool:
    for name in {*first.tensors, *second.tensors}:
        outer, inner = first.tensors.get(name, TensorRule()), second.tensors.get(name, TensorRule())
        if (outer.dtype or inner.dtype) and not _are_dtypes_within(inner.dtype or narrow, outer.dtype or wide):
            return False
        if not _implies(inner, outer):
            return False
    return True


def _are_dtypes_within(narrow: Sequence[str], wide: Sequence[str]) -> bool:
    return ANY_DTYPE in wide or (ANY_DTYPE not in narrow and set(narrow) <= set(wide))


def _implies(inner: BaseModel, outer: BaseModel) -> bool:
    """Return whether `inner` is at least as strict as `outer`, a rule of the same type."""
    return all(
        name == "dtype" or _constraint_follows(name, getattr(inner, name), getattr(outer, name))
        for name in outer.model_fields_set
    )


def _constraint_follows(name: str, inner: Any, outer: Any) -> bool:  # noqa: PLR0911 - one return for each kind of constraint
    if outer is None or outer == inner:
        return True
    if isinstance(outer, dict):
        return all(key in (inner or {}) and _implies(inner[key], outer[key]) for key in outer)
    if inner is None:
        return False
    if isinstance(outer, BaseModel):
        return _implies(inner, outer)
    if name in _SET_KEYS:
        return set(inner) <= set(outer)
    if name == "min":
        return bool(inner >= outer)
    if name == "max":
        return bool(inner <= outer)
    if name == "multiple_of":
        return int(inner) % int(outer) == 0
    return False
