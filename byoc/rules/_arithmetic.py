"""The arithmetic contract of a rule file: an accelerator's promises about values.

A clause names operators and data types, and what is promised of their values. Later clauses override
earlier ones key by key. What no clause says is as ONNX defines it. docs/rules.md documents the keys.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from byoc.patterns import ANY_OPERATOR
from byoc.rules._schema_values import ANY_DTYPE, Dtypes, Operators, make_optional_field
from byoc.support import StrictModel

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


_Limit = Annotated[
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
    exact_below: _Limit | None = make_optional_field(
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
