"""Checks of one node or one constant against a line of a pattern."""

from collections.abc import Mapping
from math import isclose, isinf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.errors import YES, Verdict, refuse
from byoc.model import GraphIndex, get_constant_value
from byoc.patterns import _operator_schemas as operators
from byoc.patterns._node_table import NodeTable
from byoc.patterns._pattern_syntax import AttributeTest, PatternLine, PatternOperand, Scalar

# Relative tolerance of literals: exporters round 0.044715 and sqrt(2) differently, float16 included.
_LITERAL_TOLERANCE = 1e-3
# Relative tolerance of attributes, which are float32.
_ATTRIBUTE_TOLERANCE = 1e-6
_MAX_ELEMENTS_SHOWN = 8


def check_node(line: PatternLine, number: int, table: NodeTable) -> Verdict:
    """Check the operator, outputs and attributes of a node against a line."""
    op = table.ops[number]
    if op not in line.ops and not line.matches_any_operator:
        return refuse(f"it wants {' or '.join(line.ops)}, and there is {table.describe(number)}")
    if number in table.index.bodies:
        return refuse(f"{table.describe(number)} has bodies")
    problem = _output_problem(line, op, table.outputs[number])
    for test in line.attributes:
        problem = problem or _attribute_problem(test, op, table.attributes(number))
    return refuse(f"{table.describe(number)}: {problem}") if problem else YES


def _output_problem(line: PatternLine, op: str, outputs: tuple[str, ...]) -> str | None:
    wanted, present = len(line.outputs), len(outputs)
    if any(line.outputs[present:]) or (wanted != present and operators.has_variadic_output(op)):
        return f"it makes {present}, the pattern wants {wanted}"
    if any(name and not tensor for name, tensor in zip(line.outputs, outputs, strict=False)):
        return "it leaves out an output that the pattern wants"
    return None


def _attribute_problem(test: AttributeTest, op: str, values: Mapping[str, Any]) -> str | None:
    possible = operators.attribute_names(op)
    if possible is not None and test.name not in possible:
        return None  # a line may have several operators, some without the attribute
    value = values.get(test.name)
    if value is None:
        return None if test.absent else f"{test.name} is absent, the pattern wants {test.text}"
    if any(_attribute_equals(value, wanted) for wanted in test.values):
        return None
    if _is_number(value) and any(low <= value <= high for low, high in test.ranges):
        return None
    return f"{test.name} is {value}, the pattern wants {test.text}"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float))


def _attribute_equals(value: Any, wanted: Scalar | tuple[Scalar, ...]) -> bool:
    if isinstance(wanted, tuple):
        return (
            isinstance(value, list)
            and len(value) == len(wanted)
            and all(map(_attribute_equals, value, wanted))
        )
    if _is_number(value) and not isinstance(wanted, str):
        return value == wanted or isclose(value, wanted, rel_tol=_ATTRIBUTE_TOLERANCE)
    return bool(value == wanted)


def check_operand(operand: PatternOperand, tensor: str, index: GraphIndex) -> Verdict:
    """Check a tensor (empty: left out) against an operand that no line makes."""
    if not tensor:
        return (
            YES if operand.optional else refuse(f"its operand {_describe_operand(operand)} is left out")
        )
    if operand.constant and not index.is_constant(tensor):
        return refuse(f"'{tensor}' is no constant, the pattern wants {_describe_operand(operand)}")
    if operand.value is None:
        return YES
    value = get_constant_value(index, tensor)
    if value is None or not _has_value(value, operand):
        return refuse(
            f"'{tensor}' is {_describe_value(value)}, the pattern wants {_describe_operand(operand)}"
        )
    return YES


def _has_value(value: NDArray[Any], operand: PatternOperand) -> bool:
    wanted = operand.value or ()
    if value.size != len(wanted) or value.dtype.kind in "OSUc":
        return False
    if value.dtype.kind in "iub":
        return all(int(a) == b for a, b in zip(value.reshape(-1), wanted, strict=True))
    try:
        elements = value.reshape(-1).astype(np.float64).tolist()
    except (TypeError, ValueError):  # text, and what numpy cannot convert
        return False
    return all(_is_close(a, b) for a, b in zip(elements, wanted, strict=True))


def _is_close(value: float, wanted: float) -> bool:
    if isinf(wanted) or isinf(value):
        return value == wanted
    return isclose(value, wanted, rel_tol=_LITERAL_TOLERANCE)


def _describe_operand(operand: PatternOperand) -> str:
    if operand.value is None:
        return f"{operand.name}!" if operand.constant else operand.name
    numbers = ", ".join(f"{number:g}" for number in operand.value)
    return f"[{numbers}]" if operand.vector else numbers


def _describe_value(value: NDArray[Any] | None) -> str:
    if value is None:
        return "not known"
    if value.size > _MAX_ELEMENTS_SHOWN:
        return f"a constant of {value.size} elements"
    is_float = value.dtype.kind == "f"
    numbers = ", ".join(f"{number:g}" if is_float else str(number) for number in value.flat)
    return numbers if value.size == 1 else f"[{numbers}]"
