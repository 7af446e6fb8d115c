"""What ONNX says of the operators that patterns name: over all their versions, since any may be met."""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache

import onnx

# Operands may be exchanged without changing the result (ONNX's operator documentation).
COMMUTATIVE = frozenset({"Add", "Mul", "And", "Or", "Xor", "Equal", "Sum", "Max", "Min"})

# A dot between a letter or a digit and a letter stays one; so do letters and digits, but for a digit
# that a dot or nothing is before.
_ODD = re.compile(r"(?<![a-zA-Z0-9])\.|\.(?![a-zA-Z])|(?<!.)[0-9]|[^a-zA-Z0-9.]", re.DOTALL)

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


def exact(schema: onnx.defs.OpSchema | None) -> bool:
    """Return whether an empty name at the end of the inputs is not the same as none at all.

    So it is not for an operator that counts its inputs (Sum), and it may not be for an unknown one.
    onnxruntime takes an empty name among a Split's for sizes.
    """
    if schema is None or schema.name == "Split":
        return True
    many = onnx.defs.OpSchema.FormalParameterOption.Variadic
    return bool(schema.inputs) and schema.inputs[-1].option == many


def most_inputs(schema: onnx.defs.OpSchema | None) -> int | None:
    """Return the most inputs that an operator can have, None where that is not known."""
    return schema.max_input if schema is not None else None


def label(op: str) -> str:
    """Return an operator as a part of a function's name, another one for each: `relu`, `acme__Op`.

    Those of ONNX are in small letters. Of other domains a dot becomes `__`, and what is neither a letter
    nor a digit `_0..._`, with its code.
    """
    if op in names() and "." not in op:
        return op.lower()
    dotted = op if "." in op else f".{op}"
    return _ODD.sub(lambda found: f"_0{ord(found[0]):x}_", dotted).replace(".", "__")


def has_bodies(op: str) -> bool:
    """Return whether an operator holds graphs."""
    return op in _WITH_BODIES


def is_random(op: str) -> bool:
    """Return whether an operator is no constant even where its inputs are."""
    return op in {"Bernoulli", "Multinomial", "Dropout"} or op.startswith("Random")
