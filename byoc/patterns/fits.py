"""Whether one node, or one constant, is what a line of a pattern says: empty, or why not."""

from collections.abc import Mapping
from math import isclose, isinf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.graph.index import GraphIndex
from byoc.graph.values import constant_value
from byoc.patterns import operators
from byoc.patterns.syntax import AttributeTest, Operand, PatternNode, Scalar
from byoc.patterns.table import Table

_CLOSE = 1e-3  # of literals: exporters round 0.044715 and sqrt(2) in many ways, float16 among them
_SAME = 1e-6  # of attributes, which are float32


def node_objection(line: PatternNode, number: int, table: Table) -> str:
    """Return why a node cannot be the one of a line whatever is around it, empty when it can."""
    op = table.ops[number]
    if op not in line.ops and not line.any:
        return f"it wants {' or '.join(line.ops)}, and there is {table.called(number)}"
    if number in table.index.bodies:
        return f"{table.called(number)} has bodies"
    reason = _outputs(line, op, table.outputs[number])
    for test in line.attributes:
        reason = reason or _attribute(test, op, table.attributes(number))
    return reason and f"{table.called(number)}: {reason}"


def _outputs(line: PatternNode, op: str, outputs: tuple[str, ...]) -> str:
    wanted, given = len(line.outputs), len(outputs)
    if any(line.outputs[given:]) or (wanted != given and operators.has_variadic_output(op)):
        return f"it makes {given}, the pattern wants {wanted}"
    if any(name and not tensor for name, tensor in zip(line.outputs, outputs, strict=False)):
        return "it leaves out an output that the pattern wants"
    return ""


def _attribute(test: AttributeTest, op: str, values: Mapping[str, Any]) -> str:
    possible = operators.attributes(op)
    if possible is not None and test.name not in possible:
        return ""  # of several operators, some may not have it
    value = values.get(test.name)
    if value is None:
        return "" if test.absent else f"{test.name} is absent, the pattern wants {test.text}"
    if any(_equal(value, wanted) for wanted in test.values):
        return ""
    if _is_number(value) and any(low <= value <= high for low, high in test.ranges):
        return ""
    return f"{test.name} is {value}, the pattern wants {test.text}"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float))


def _equal(value: Any, wanted: Scalar | tuple[Scalar, ...]) -> bool:
    if isinstance(wanted, tuple):
        return isinstance(value, list) and len(value) == len(wanted) and all(map(_equal, value, wanted))
    if _is_number(value) and not isinstance(wanted, str):
        return value == wanted or isclose(value, wanted, rel_tol=_SAME)
    return bool(value == wanted)


def operand_objection(operand: Operand, tensor: str, index: GraphIndex) -> str:
    """Return why a tensor (empty: left out) cannot be an operand that no line makes."""
    if not tensor:
        return "" if operand.optional else f"its operand {_shown(operand)} is left out"
    if operand.constant and not index.is_constant(tensor):
        return f"'{tensor}' is no constant, the pattern wants {_shown(operand)}"
    if operand.value is None:
        return ""
    value = constant_value(index, tensor)
    if value is None or not _has_value(value, operand):
        return f"'{tensor}' is {_read(value)}, the pattern wants {_shown(operand)}"
    return ""


def _has_value(value: NDArray[Any], operand: Operand) -> bool:
    wanted = operand.value or ()
    if value.size != len(wanted) or value.dtype.kind in "OSUc":
        return False
    if value.dtype.kind in "iub":
        return all(int(a) == b for a, b in zip(value.reshape(-1), wanted, strict=True))
    try:
        found = value.reshape(-1).astype(np.float64).tolist()
    except (TypeError, ValueError):  # text, and what numpy cannot convert
        return False
    return all(_close(a, b) for a, b in zip(found, wanted, strict=True))


def _close(value: float, wanted: float) -> bool:
    if isinf(wanted) or isinf(value):
        return value == wanted
    return isclose(value, wanted, rel_tol=_CLOSE)


def _shown(operand: Operand) -> str:
    if operand.value is None:
        return f"{operand.name}!" if operand.constant else operand.name
    numbers = ", ".join(f"{number:g}" for number in operand.value)
    return f"[{numbers}]" if operand.vector else numbers


def _read(value: NDArray[Any] | None) -> str:
    if value is None:
        return "not known"
    if value.size > 8:
        return f"a constant of {value.size} elements"
    numbers = ", ".join(
        f"{number:g}" if value.dtype.kind == "f" else str(number) for number in value.flat
    )
    return numbers if value.size == 1 else f"[{numbers}]"
