"""The machine's functions by operator, and those of a tensor times a function of it."""

from collections.abc import Mapping, Sequence

from byoc.codegen import Operation

from ..machine import FunctionKind

FUNCTIONS: Mapping[str, FunctionKind] = {
    "Sigmoid": FunctionKind.SIGMOID,
    "Tanh": FunctionKind.TANH,
    "HardSigmoid": FunctionKind.HARD_SIGMOID,
    "HardSwish": FunctionKind.HARD_SWISH,
    "LeakyRelu": FunctionKind.LEAKY_RELU,
    "Elu": FunctionKind.ELU,
    "Erf": FunctionKind.ERF,
    "Gelu": FunctionKind.GELU,
    "Sqrt": FunctionKind.SQRT,
    "Exp": FunctionKind.EXP,
    "Reciprocal": FunctionKind.RECIPROCAL,
    "Swish": FunctionKind.SWISH,
    "com.microsoft.Gelu": FunctionKind.GELU,
    "com.microsoft.FastGelu": FunctionKind.GELU_TANH,
    "com.microsoft.QuickGelu": FunctionKind.SWISH,
}
"""Operators that are a function of one variable, and the machine's function for each."""

_GATED = {FunctionKind.SIGMOID: FunctionKind.SWISH, FunctionKind.HARD_SIGMOID: FunctionKind.HARD_GATE}
"""The function that is a tensor times a function of it."""


def get_operator(operation: Operation) -> str:
    """Return an operator as rule files have it: `Conv`, `com.microsoft.QuickGelu`."""
    return ".".join(filter(None, (operation.domain, operation.op)))


def is_function(operation: Operation) -> bool:
    """Whether an operation is a function of one variable, its first input."""
    return get_operator(operation) in FUNCTIONS


def is_gate(operation: Operation) -> bool:
    """Whether the product of a tensor by this function of it is a function of the machine."""
    return FUNCTIONS.get(get_operator(operation)) in _GATED


def find_function(operations: Sequence[Operation]) -> tuple[FunctionKind, tuple[float, float]]:
    """Return the machine's function, with its two parameters, for one that is one operation or two.

    The second operation is the product of the first one's operand by its result. A parameter that the
    function does not have is 0.
    """
    first = operations[0]
    kind, attributes = FUNCTIONS[get_operator(first)], first.attributes
    parameters = (attributes.get("alpha", 0.0), attributes.get("beta", 0.0))
    if len(operations) > 1:
        kind = _GATED[kind]
        return kind, (1.0, 0.0) if kind is FunctionKind.SWISH else parameters
    if attributes.get("approximate") == "tanh":
        kind = FunctionKind.GELU_TANH
    return kind, parameters
