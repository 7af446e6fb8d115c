"""The rule file: what an accelerator takes, as types that YAML is checked against.

Every key is documented in docs/rules.md. The types say what the keys are; `byoc.rules.lint` holds the
file against ONNX's own operator schemas, and `byoc.rules.annotate` applies it to a model.
"""

from math import isnan
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from byoc.yamlfile import Strict


def _as_list(value: object) -> object:
    return [value] if isinstance(value, (str, int, float, bool)) else value


Integers = Annotated[tuple[int, ...], BeforeValidator(_as_list), Field(min_length=1)]
"""One whole number or a list of them."""

Names = Annotated[tuple[str, ...], BeforeValidator(_as_list), Field(min_length=1)]
"""One name or a list of them."""


def _scalar(value: object) -> object:
    if not isinstance(value, (str, int, float)):
        raise ValueError("expected a number, a text, true or false")
    return value


Scalar = Annotated[bool | int | float | str, BeforeValidator(_scalar)]
Values = Annotated[tuple[Scalar, ...], BeforeValidator(_as_list), Field(min_length=1)]


ANY = "*"
"""As an operator: whichever."""
ANY_DTYPE = "any"
"""As a dtype: whichever."""


def _a_number(value: float) -> float:
    if isnan(value):
        raise ValueError("a limit is a number")
    return value


_Limit = Annotated[float, AfterValidator(_a_number)]


class Bounds(Strict):
    """A number's limits, both included."""

    min: _Limit | None = None
    max: _Limit | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min:g} is greater than max {self.max:g}")
        return self


class ElementRule(Bounds):
    """What each element of a list attribute may be."""

    one_of: Values | None = None


class AttributeRule(Bounds):
    """What an attribute may be. All that is given must hold."""

    one_of: Values | None = None
    each: ElementRule | None = None
    length: Integers | None = None
    absent: bool | None = None


class TensorRule(Strict):
    """What an input or output may be, by its name in ONNX's operator schema."""

    dtype: Names | None = None
    rank: Integers | None = None
    constant: bool | None = None
    absent: bool | None = None


class OpRule(Strict):
    """One or more operators and the constraints under which the accelerator takes them."""

    op: Names
    opset: Bounds = Bounds()
    dtype: Names | None = None
    tensors: dict[str, TensorRule] = Field(default_factory=dict)
    attributes: dict[str, AttributeRule] = Field(default_factory=dict)
    standalone: bool = True


class CompositeRule(Strict):
    """Operators that the accelerator runs as one."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    pattern: str


class RuleFile(Strict):
    """A target: its operators, its composites, and what it uses unless told otherwise."""

    target: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", max_length=40)]
    description: str = ""
    codegen: str = "reference"
    cost_model: str
    regions: Literal["connected", "phase"] = "connected"
    dtype: Names
    ops: Annotated[tuple[OpRule, ...], Field(min_length=1)]
    composites: tuple[CompositeRule, ...] = ()
