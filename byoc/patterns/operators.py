"""What ONNX says of the operators that patterns name: over all their versions, since any may be met."""

from collections.abc import Collection, Mapping, Sequence
from functools import cache

import onnx

# Operands may be exchanged without changing the result (ONNX's operator documentation).
COMMUTATIVE = frozenset({"Add", "Mul", "And", "Or", "Xor", "Equal", "Sum", "Max", "Min"})

# They have bodies, which no function of a composite could hold.
_WITH_BODIES = frozenset({"If", "Loop", "Scan", "SequenceMap"})


@cache
def _schemas() -> Mapping[str, Sequence[onnx.defs.OpSchema]]:
    found: dict[str, list[onnx.defs.OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        name = schema.name if not schema.domain else f"{schema.domain}.{schema.name}"
        found.setdefault(name, []).append(schema)
    return found


def names() -> Collection[str]:
    """Return the names of all operators, those of other domains as `ai.onnx.ml.Scaler`."""
    return _schemas()


@cache
def operand_counts(op: str) -> tuple[int, int] | None:
    """Return the least and the most inputs of an operator, None when ONNX does not know it."""
    schemas = _schemas().get(op)
    if not schemas:
        return None
    return min(s.min_input for s in schemas), max(s.max_input for s in schemas)


@cache
def output_count(op: str) -> int | None:
    """Return the most outputs of an operator, None when ONNX does not know it."""
    schemas = _schemas().get(op)
    return max(s.max_output for s in schemas) if schemas else None


@cache
def attributes(op: str) -> frozenset[str] | None:
    """Return the attributes of an operator, None when ONNX does not know it."""
    schemas = _schemas().get(op)
    return frozenset(name for s in schemas for name in s.attributes) if schemas else None


@cache
def has_variadic_output(op: str) -> bool:
    """Return whether the number of outputs is part of what an operator means, as it is of Split."""
    many = onnx.defs.OpSchema.FormalParameterOption.Variadic
    return any(s.outputs and s.outputs[-1].option == many for s in _schemas().get(op, ()))


def has_bodies(op: str) -> bool:
    """Return whether an operator holds graphs."""
    return op in _WITH_BODIES


def is_random(op: str) -> bool:
    """Return whether an operator is no constant even where its inputs are."""
    return op in {"Bernoulli", "Multinomial", "Dropout"} or op.startswith("Random")
