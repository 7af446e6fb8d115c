"""Properties of the operators that patterns name, over all their ONNX versions."""

import re
from functools import cache

from byoc.schemas import OperatorSchema, find_schemas, list_onnx_operators

# Operators whose operands may be exchanged (ONNX's operator documentation).
COMMUTATIVE = frozenset({"Add", "Mul", "And", "Or", "Xor", "Equal", "Sum", "Max", "Min"})

# The characters that `function_label` escapes: all but letters, digits that do not begin a word, and
# dots between words.
_ODD = re.compile(r"(?<![a-zA-Z0-9])\.|\.(?![a-zA-Z])|(?<!.)[0-9]|[^a-zA-Z0-9.]", re.DOTALL)

# Operators with bodies, which the function of a composite cannot hold.
OPERATORS_WITH_BODIES = frozenset({"If", "Loop", "Scan", "SequenceMap"})


@cache
def operand_counts(op: str) -> tuple[int, int] | None:
    """Return the least and the most inputs of an operator, None for an unknown operator."""
    schemas = find_schemas(op)
    if not schemas:
        return None
    return min(s.min_input for s in schemas), max(s.max_input for s in schemas)


@cache
def output_count(op: str) -> int | None:
    """Return the most outputs of an operator, None for an unknown operator."""
    schemas = find_schemas(op)
    return max(s.max_output for s in schemas) if schemas else None


@cache
def attribute_names(op: str) -> frozenset[str] | None:
    """Return the names of the attributes of an operator, None for an unknown operator."""
    schemas = find_schemas(op)
    return frozenset(name for s in schemas for name in s.attributes) if schemas else None


@cache
def has_variadic_output(op: str) -> bool:
    """Return whether the number of outputs changes the meaning of an operator, as for Split."""
    return any(s.outputs and s.outputs[-1].variadic for s in find_schemas(op))


def counts_trailing_inputs(schema: OperatorSchema | None) -> bool:
    """Return whether an empty name at the end of the inputs differs from leaving it out.

    It does for operators that count their inputs (Sum), and may for unknown ones. onnxruntime reads an
    empty second input of Split as sizes.
    """
    if schema is None or schema.op_type == "Split":
        return True
    return bool(schema.inputs) and schema.inputs[-1].variadic


def function_label(op: str) -> str:
    """Return a unique part of a function name for an operator: `relu`, `acme__Op`.

    ONNX operators are in lower case. For other domains a dot becomes `__`, and other characters that are
    neither letters nor digits become `_0..._` with their code.
    """
    if op in list_onnx_operators() and "." not in op:
        return op.lower()
    dotted = op if "." in op else f".{op}"
    return _ODD.sub(lambda found: f"_0{ord(found[0]):x}_", dotted).replace(".", "__")
