"""The types of values in rule files, and the arithmetic contract: promises about values.

A clause of the contract names operators and data types, and what is promised of their values. Later
clauses override earlier ones key by key. What no clause says is as ONNX defines it. docs/rules.md
documents the keys.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from math import isfinite
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from byoc._dataclasses import dataclass, field
from byoc.patterns import ANY_OPERATOR
from byoc.support import StrictModel, format_short

ANY_DTYPE = "any"
"""The dtype that stands for all."""
EACH_DIM = "each"
"""The key for all dimensions."""

_UNITS = {
    **{"": 1, "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9},
    **{"KiB": 2**10, "MiB": 2**20, "GiB": 2**30},
}
_MAX_INT = (1 << 63) - 1
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", re.ASCII)
_SIZE_PATTERN = rf"^\s*[0-9]+(\.[0-9]+)?\s*({'|'.join(unit for unit in _UNITS if unit)})?\s*$"


def _wrap_single(value: object) -> object:
    """Return a single value as a list of one; a tuple, since a manifest is read strictly."""
    if isinstance(value, (str, int, float, bool)):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def wrap_single_part(value: object) -> object:
    """Return a single text or mapping as a list."""
    return [value] if isinstance(value, (str, dict)) else value


def _check_scalar(value: object) -> object:
    if not isinstance(value, (str, int, float)):
        raise ValueError("expected a number, a text, true or false")
    if value != value:  # noqa: PLR0124 - NaN, which equals nothing
        raise ValueError("it is NaN, which equals nothing")
    return _check_64_bits(value) if isinstance(value, int) else value


def _reject_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("expected a number")
    return value


def _parse_size(value: object) -> object:
    if not isinstance(value, str):
        return _reject_bool(value)
    found = _SIZE.fullmatch(value.strip())
    if found is None or found[2] not in _UNITS:
        raise ValueError(f"'{format_short(value)}' is not a size such as 4096 or 512KiB")
    size = float(found[1]) * _UNITS[found[2]]
    if size > _MAX_INT:
        raise ValueError(f"'{format_short(value)}' is more than any memory has")
    return round(size)


def _parse_axis(value: object) -> object:
    if isinstance(value, str) and _AXIS.fullmatch(value):
        return int(value)
    if value != EACH_DIM and (
        not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 10**9
    ):
        raise ValueError(f"expected the number of a dimension, or '{EACH_DIM}'")
    return value


_AXIS = re.compile(r"-?[0-9]{1,9}")
_REFERENCE = r"^[A-Za-z_][A-Za-z0-9_]*\[-?[0-9]{1,9}\]$"


def _check_state_patterns(patterns: dict[str, str]) -> dict[str, str]:
    """Raise ValueError for names that have not the same number of `*`, none or one."""
    for past, present in patterns.items():
        if past.count("*") > 1 or past.count("*") != present.count("*"):
            raise ValueError(f"'{past}: {present}' must have one `*` in both names, or none")
    return patterns


def _check_reference(value: str) -> str:
    if value.endswith("\n") or not re.match(_REFERENCE, value):
        raise ValueError(f"'{format_short(value)}' is not a tensor and a dimension such as W[1]")
    return value


def _check_finite(value: float) -> float:
    if not isfinite(value):
        raise ValueError("a limit is a number, and a finite one")
    return value


def _check_64_bits(value: int) -> int:
    if abs(value) > _MAX_INT:
        raise ValueError("expected a whole number of at most 64 bits")
    return value


_NonEmpty = Field(min_length=1)


def _one_or_list(item: Any) -> BeforeValidator:
    return BeforeValidator(_wrap_single, json_schema_input_type=item | Annotated[list[item], _NonEmpty])


Whole = Annotated[int, BeforeValidator(_reject_bool), AfterValidator(_check_64_bits)]
"""A whole number."""

Count = Annotated[int, Field(ge=1), BeforeValidator(_reject_bool), AfterValidator(_check_64_bits)]
"""A whole number of something, at least one."""

Integers = Annotated[tuple[Whole, ...], _NonEmpty, _one_or_list(int)]
"""One whole number or a list of them."""

Names = Annotated[tuple[str, ...], _NonEmpty, _one_or_list(str)]
"""One name or a list of them."""

_Offered = Annotated[str, Field(json_schema_extra={"x-offered": "dtypes"})]
Dtypes = Annotated[tuple[str, ...], _NonEmpty, _one_or_list(_Offered)]
"""One data type or a list of them."""

_Operator = Annotated[str, Field(json_schema_extra={"x-offered": "operators"})]
Operators = Annotated[tuple[str, ...], _NonEmpty, _one_or_list(_Operator)]
"""One operator or a list of them."""

Scalar = Annotated[bool | int | float | str, BeforeValidator(_check_scalar)]
Values = Annotated[tuple[Scalar, ...], _NonEmpty, _one_or_list(bool | int | float | str)]
"""One value or a list of them."""

_Bytes = Annotated[int, Field(ge=0)] | Annotated[str, Field(pattern=_SIZE_PATTERN)]
Size = Annotated[
    int,
    Field(ge=0),
    AfterValidator(_check_64_bits),
    BeforeValidator(_parse_size, json_schema_input_type=_Bytes),
]
"""A number of bytes, or text such as 512KiB."""

StatePatterns = Annotated[dict[str, str], AfterValidator(_check_state_patterns)]
"""Names of inputs to names of outputs, with a `*` in both or in none."""

Reference = Annotated[
    str, AfterValidator(_check_reference), Field(json_schema_extra={"pattern": _REFERENCE})
]
"""A dimension of a tensor, such as W[1]."""

Axis = Annotated[int | Literal["each"], BeforeValidator(_parse_axis)]
"""The number of a dimension, negative from the end, or `each`."""

_Limit = Annotated[float, BeforeValidator(_reject_bool), AfterValidator(_check_finite)]


class Bounds(StrictModel):
    """Limits of a number, both inclusive."""

    min: _Limit | None = Field(default=None, description="At least this.")
    max: _Limit | None = Field(default=None, description="At most this.")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min:g} is greater than max {self.max:g}")
        return self


class SizeBounds(StrictModel):
    """Limits of a number of bytes, both inclusive."""

    min: Size | None = Field(default=None, description="At least this: bytes, or text such as 512KiB.")
    max: Size | None = Field(default=None, description="At most this: bytes, or text such as 512KiB.")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is greater than max {self.max}")
        return self


def make_optional_field(text: str) -> Any:
    """Return an optional field with a description."""
    return Field(default=None, description=text)


class ElementRule(Bounds):
    """A constraint on each element of a list."""

    one_of: Values | None = make_optional_field("One value or several, one of which it must be.")


class AttributeRule(Bounds):
    """A constraint on an attribute. All given keys must hold."""

    one_of: Values | None = make_optional_field("One value or several, one of which it must be.")
    each: ElementRule | None = make_optional_field("What every element of a list attribute may be.")
    length: Integers | None = make_optional_field(
        "The number of elements of a list attribute, one or several."
    )
    absent: bool | None = make_optional_field("true: must not have a value; false: must have one.")


class CountRule(Bounds):
    """A constraint on a number of elements."""

    multiple_of: Count | None = make_optional_field("Must be a multiple of this.")


class DimRule(CountRule):
    """A constraint on a dimension. A number stands for that extent, a list for one of several."""

    one_of: Integers | None = make_optional_field("One extent or several, one of which it must be.")
    equals: Reference | None = make_optional_field(
        "Must be the same as a dimension of a tensor of this node, such as W[1]."
    )


def _as_dim(value: object) -> object:
    return {"one_of": value} if isinstance(value, (int, list)) else value


Dim = Annotated[
    DimRule,
    BeforeValidator(
        _as_dim, json_schema_input_type=int | Annotated[list[int], Field(min_length=1)] | DimRule
    ),
]


def _as_text(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (int, float)) else value


OptionText = Annotated[str, BeforeValidator(_as_text, json_schema_input_type=str | bool | int | float)]
"""An option as codegens read it, from text; in YAML also a number, true or false."""

GENERATION_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$"
"""The pattern of the names of generations."""
NOT_IN_GENERATIONS = ("extends", "target", "generation", "generations")
"""The keys of a rule file that a generation does not have."""
Generation = Annotated[dict[str, Any], Field(json_schema_extra={"x-offered": "generation"})]
"""What a generation changes, in keys of a rule file; checked when the file is loaded."""


# The types of what a rule file says of quantization: the scheme, and the scales of a tensor.


class QuantizedRule(StrictModel):
    """A constraint on the quantization of a tensor: its scale and zero point."""

    per_channel: bool | None = make_optional_field(
        "true: a scale for each channel; false: one for the tensor."
    )
    symmetric: bool | None = make_optional_field(
        "true: the zero points are 0; false: they are not all 0."
    )
    power_of_two: bool | None = make_optional_field(
        "true: the scales are powers of two; false: not all are."
    )
    axis: Integers | None = make_optional_field(
        "The dimension along which several scales lie, one or several (negative: from the end); one "
        "scale for the tensor always fits."
    )
    same_as: str | None = make_optional_field(
        "A tensor of this node, by its name in ONNX, that must have the same scale and zero point."
    )


class QuantizedTensors(StrictModel):
    """The quantization of one kind of tensor; rules with `quantized: true` can say more."""

    dtype: Dtypes | None = make_optional_field("The data types it may have.")
    symmetric: bool | None = make_optional_field(
        "true: the zero points must be 0; false: they need not be."
    )
    per_channel: bool | None = make_optional_field(
        "true: each channel may have a scale; false: one for all."
    )


class QuantizedWeights(QuantizedTensors):
    """The quantization of constants that are no bias."""

    largest: Count | None = make_optional_field(
        "The greatest magnitude that byoc quantizes weights to, if not that of the data type: 126 where "
        "a compiler does not keep 127."
    )


class Quantization(StrictModel):
    """The quantization scheme of the accelerator, which applies to rules with `quantized: true`."""

    activations: QuantizedTensors | None = make_optional_field("What is computed.")
    weights: QuantizedWeights | None = make_optional_field("Constants that are no bias.")
    bias: QuantizedTensors | None = make_optional_field(
        "Constants that are int32, or of one dimension beside others."
    )
    scales: Literal["any", "power_of_two"] | None = make_optional_field("What scales may be.")
    same_scale: Operators | None = make_optional_field(
        "Operators whose inputs and output must all have one scale and zero point."
    )
    convert: Literal["host", "device", "between"] | None = make_optional_field(
        "Who quantizes and casts at the border of a region: the host, or the accelerator itself. "
        "Between: the accelerator, between operators that it takes in integers and in floating point."
    )


# The arithmetic contract of a rule file: an accelerator's promises about values.


FloatDtype = Literal["float16", "bfloat16", "float32", "float64"]
Overflow = Literal["wraps", "saturates", "any"]

# Of the dtypes that `computes` may name, the most precise first.
_PRECISIONS = ("float64", "float32", "float16", "bfloat16")
# More than any integer of ONNX's types; as `exact_below` it withdraws what a clause before said.
_MOST = 1 << 64


def _check_limit(value: int) -> int:
    if not 1 <= value <= _MOST:
        raise ValueError("expected a whole number from 1 to 2^64")
    return value


def _reject_other_types(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("expected a number")
    return value


_Promised = Annotated[
    int,
    BeforeValidator(_reject_other_types, json_schema_input_type=Annotated[int, Field(ge=1, le=_MOST)]),
    AfterValidator(_check_limit),
]


class ArithmeticClause(StrictModel):
    """Promises about the values of some operators and data types."""

    op: Operators = Field(default=(), description="The operators it is about; all if left out.")
    dtype: Dtypes = Field(
        default=(), description="The data types of the tensors it is about; all if left out."
    )
    computes: FloatDtype | None = make_optional_field(
        "Floats of a wider data type are computed with the precision of this one."
    )
    exact_below: _Promised | None = make_optional_field(
        "Whole numbers are exact only while all that are read, made, or summed on the way have at most "
        "this magnitude."
    )
    overflow: Overflow | None = make_optional_field(
        "What a whole number beyond its data type becomes: wraps (default), saturates, or any."
    )
    nan: Literal["kept", "any"] | None = make_optional_field(
        "Whether NaN gives what ONNX says: kept (default), or any value."
    )
    infinities: Literal["kept", "any"] | None = make_optional_field(
        "Whether infinities give what ONNX says: kept (default), or any value."
    )
    denormals: Literal["kept", "flushed"] | None = make_optional_field(
        "Whether denormal floats are kept (default), or flushed to zero."
    )
    equal_keys: Literal["first", "any"] | None = make_optional_field(
        "Which of equal keys is selected: the first (default), as ONNX says, or any."
    )
    halves: Literal["even", "any"] | None = make_optional_field(
        "How exact halves are rounded: to even (default), as ONNX says, or either way."
    )

    @model_validator(mode="after")
    def _promises_something(self) -> Self:
        if not any(True for _ in self.list_promises()):
            raise ValueError(f"says nothing about values; give one of {', '.join(PROMISES)}")
        return self

    @model_serializer(mode="wrap")
    def _leave_out_defaults(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in serialize(self).items() if value not in (None, (), [])}

    def list_promises(self) -> Iterator[tuple[str, Any]]:
        """Yield the keys that are given with their values, but for the scope."""
        for name in PROMISES:
            value = getattr(self, name)
            if value is not None:
                yield name, value

    def covers(self, op: str, dtype: str) -> bool:
        """Return whether it is about an operator, as rule files spell it, on a data type."""
        return (not self.op or op in self.op or ANY_OPERATOR in self.op) and (
            not self.dtype or dtype in self.dtype or ANY_DTYPE in self.dtype
        )


PROMISES = tuple(name for name in ArithmeticClause.model_fields if name not in ("op", "dtype"))
"""The keys of a clause that promise something."""


@dataclass(frozen=True)
class Arithmetic:
    """Resolved promises about values; without arguments, ONNX's definition.

    `computes` is the data type that floats are computed with, empty for their own; `exact_below` the
    largest magnitude of whole numbers that are exact, None for all.
    """

    computes: str = ""
    exact_below: int | None = None
    overflow: Overflow = "wraps"
    nan: Literal["kept", "any"] = "kept"
    infinities: Literal["kept", "any"] = "kept"
    denormals: Literal["kept", "flushed"] = "kept"
    equal_keys: Literal["first", "any"] = "first"
    halves: Literal["even", "any"] = "even"

    def join(self, other: "Arithmetic") -> "Arithmetic":
        """Return the weaker of each two promises."""
        exact = [each.exact_below for each in (self, other) if each.exact_below is not None]
        overflow = self.overflow if self.overflow == other.overflow else "any"
        return Arithmetic(
            max(self.computes, other.computes, key=_rank_precision),
            min(exact, default=None),
            overflow,
            _pick("any", self.nan, other.nan),
            _pick("any", self.infinities, other.infinities),
            _pick("flushed", self.denormals, other.denormals),
            _pick("any", self.equal_keys, other.equal_keys),
            _pick("any", self.halves, other.halves),
        )


_DEFINITION = Arithmetic()


def _pick(weaker: Any, *given: Any) -> Any:
    """Return the weaker promise if one of two is that, else what both are."""
    return weaker if weaker in given else given[0]


def _rank_precision(dtype: str) -> int:
    """Return the rank of a float dtype by imprecision; -1 for the empty text, each value's own dtype."""
    return _PRECISIONS.index(dtype) if dtype else -1


@dataclass(frozen=True)
class ArithmeticContract:
    """The clauses of a target, those that override others behind them."""

    clauses: tuple[ArithmeticClause, ...] = ()
    _resolved: dict[tuple[str, str], Arithmetic] = field(default_factory=dict, repr=False, compare=False)

    def resolve(self, op: str, dtype: str) -> Arithmetic:
        """Return the promises for an operator, as rule files spell it, on a dtype."""
        key = op, dtype
        if key not in self._resolved:
            self._resolved[key] = self._resolve(op, dtype)
        return self._resolved[key]

    def _resolve(self, op: str, dtype: str) -> Arithmetic:
        found = {
            name: value
            for clause in self.clauses
            if clause.covers(op, dtype)
            for name, value in clause.list_promises()
        }
        computes = found.get("computes", "")
        if computes and (
            dtype not in _PRECISIONS or _rank_precision(computes) <= _rank_precision(dtype)
        ):
            del found["computes"]
        if found.get("exact_below", 0) == _MOST:
            del found["exact_below"]
        return Arithmetic(**found) if found else _DEFINITION

    @cached_property
    def limits_values(self) -> bool:
        """Whether a clause limits whole numbers, so that ranges decide which nodes are taken."""
        return any(each.exact_below is not None or each.overflow is not None for each in self.clauses)

    def find_clause(self, op: str, dtype: str, promise: str) -> int | None:
        """Return the position of the clause that says what is promised of some values; None if none."""
        found = (
            position
            for position, clause in reversed([*enumerate(self.clauses)])
            if clause.covers(op, dtype) and getattr(clause, promise) is not None
        )
        return next(found, None)

    def loosest(self, pairs: Iterable[tuple[str, str]]) -> Arithmetic:
        """Return the weakest promises for pairs of an operator and a dtype."""
        distinct = dict.fromkeys(self.resolve(op, dtype) for op, dtype in pairs)
        return reduce(Arithmetic.join, distinct) if distinct else _DEFINITION

    def to_json(self) -> list[dict[str, Any]]:
        """Return the clauses as they are written in a rule file, lists for names."""
        return [clause.model_dump(mode="json") for clause in self.clauses]

    @classmethod
    def from_json(cls, clauses: Sequence[Mapping[str, Any]]) -> "ArithmeticContract":
        """Return the contract of clauses as `to_json` gave them. Raises ValueError for others."""
        return cls(tuple(ArithmeticClause.model_validate(clause) for clause in clauses))


def lint_arithmetic(
    clauses: Iterable[tuple[int, ArithmeticClause]],
    lint_operator: Callable[[str], Iterator[str]],
    lint_dtypes: Callable[[str, tuple[str, ...]], Iterator[str]],
) -> Iterator[str]:
    """Yield a sentence for each name in clauses that is not known, and each that can have no effect."""
    for i, clause in clauses:
        place = f"arithmetic[{i}]"
        yield from (f"{place}.op: {problem}" for op in clause.op for problem in lint_operator(op))
        unknown = list(lint_dtypes(f"{place}.dtype", clause.dtype))
        yield from unknown
        if unknown or not clause.dtype or ANY_DTYPE in clause.dtype:
            continue
        whole = [dtype for dtype in clause.dtype if "int" in dtype]
        for name in ("exact_below", "overflow"):
            if getattr(clause, name) is not None and not whole:
                yield f"{place}.{name}: is about whole numbers, and {clause.dtype[0]} has none"
        if clause.computes is not None and not any(
            _rank_precision(dtype) < _rank_precision(clause.computes)
            for dtype in clause.dtype
            if dtype in _PRECISIONS
        ):
            yield f"{place}.computes: none of the clause's data types is wider than {clause.computes}"
