"""Operators of vendors' own domains: the types and the work that an installed package states of them.

Each is an entry point of the group `byoc.operators`, named as rule files name the operator:
`acme.MyOp`. Without one the types behind such a node are not known, and its work is a guess.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

from byoc.errors import InputError
from byoc.model._tensor_types import DTYPES, TensorType
from byoc.support import (
    OPERATORS,
    UnsuitablePluginError,
    describe_failure,
    get_distribution,
    list_installed,
    load_plugin,
)

_KNOWN_DOMAINS = ("ai.onnx", "com.microsoft", "byoc")
"""The first part of names that are never asked for: ONNX's, onnxruntime's and byoc's own domains."""
_MOST = 2**62
"""The largest count that is taken, which a float holds to 16 digits."""

Attributes = Mapping[str, Any]
Types = Sequence[TensorType | None]


class VendorOperator(Protocol):
    """An operator of a vendor's own domain. A plug-in has both methods."""

    def infer_types(self, inputs: Types, attributes: Attributes) -> Types:
        """Return the dtype and shape of each output, None where nothing is known.

        `inputs` has an entry for each input, None where it is left out or not known. An extent is an
        int, an open dimension or an expression of some, which may be passed on, or None. `attributes`
        are those that a node states: numbers, texts, lists of them.
        """

    def count_operations(self, inputs: Types, outputs: Types, attributes: Attributes) -> int:
        """Return the floating-point operations of a node; a multiplication and an addition are two.

        All extents are ints; one that is not known is 1, and an open one has its planned size.
        """


@runtime_checkable
class CountsBytes(Protocol):
    """An operator that does not read all bytes of its inputs, or reads some several times."""

    def count_bytes_read(self, inputs: Types, outputs: Types, attributes: Attributes) -> Sequence[int]:
        """Return the bytes that a node reads of each input; extents are as in `count_operations`."""


def find_vendor_operator(name: str) -> VendorOperator | None:
    """Return the plug-in of an operator, named as in rule files; None where none is installed.

    Raises InputError for a plug-in that cannot be loaded, or lacks a method.
    """
    domain = name.rpartition(".")[0]
    if not domain or domain.startswith(_KNOWN_DOMAINS):
        return None
    point = list_installed(OPERATORS).get(name)
    return None if point is None else _load(name, point.value)


@lru_cache(maxsize=256)  # operators; one is asked for at each node that has it
def _load(name: str, value: str) -> VendorOperator:
    """Return the operator of an entry point, which is loaded once."""
    found: VendorOperator = load_plugin(OPERATORS, name, _make_operator)
    return found


def _make_operator(kind: Any) -> Any:
    made = kind() if isinstance(kind, type) else kind
    for method in ("infer_types", "count_operations"):
        if not callable(getattr(made, method, None)):
            raise UnsuitablePluginError(f"has no method {method}")
    return made


def infer_vendor_types(name: str, inputs: Types, attributes: Attributes) -> list[TensorType | None]:
    """Return the types of the outputs of a vendor's operator; none where nothing is installed for it.

    Raises InputError as `find_vendor_operator`, and where the plug-in fails or returns something else.
    """
    operator = find_vendor_operator(name)
    if operator is None:
        return []
    found = _ask(name, operator.infer_types, inputs, attributes)
    if not isinstance(found, list | tuple) or not all(map(_is_type, found)):
        raise InputError(f"{_describe(name)}: infer_types returned {found!r}, no list of types")
    return list(found)


def _is_type(value: object) -> bool:
    return value is None or (isinstance(value, TensorType) and value.dtype in DTYPES.values())


def count_vendor_operations(name: str, inputs: Types, outputs: Types, attributes: Attributes) -> int:
    """Return the operations of a node of a vendor's operator, for which something is installed.

    Raises as `infer_vendor_types`.
    """
    operator = find_vendor_operator(name)
    assert operator is not None  # who asks has looked
    return _require_count(
        name,
        "count_operations",
        _ask(name, operator.count_operations, inputs, outputs, attributes),
    )


def count_vendor_bytes(
    name: str, inputs: Types, outputs: Types, attributes: Attributes
) -> Sequence[int] | None:
    """Return the bytes that a node reads of each input, None where its operator does not say that.

    Raises as `infer_vendor_types`.
    """
    operator = find_vendor_operator(name)
    if not isinstance(operator, CountsBytes):
        return None
    found = _ask(name, operator.count_bytes_read, inputs, outputs, attributes)
    if not isinstance(found, list | tuple) or len(found) != len(inputs):
        what = f"count_bytes_read returned {found!r}, but must return a number for each input"
        raise InputError(f"{_describe(name)}: {what}")
    return [_require_count(name, "count_bytes_read", each) for each in found]


def _require_count(name: str, method: str, value: object) -> int:
    """Return a number of operations or bytes as an int. Raises InputError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:
        raise InputError(f"{_describe(name)}: {method} returned {value!r}, no count")
    return int(value)


def _ask(name: str, method: Any, *given: Any) -> Any:
    try:
        return method(*given)
    except Exception as error:  # a plug-in can fail in any way
        why = describe_failure(error)
        raise InputError(f"{_describe(name)}: {method.__name__} failed: {why}") from error


def _describe(name: str) -> str:
    return f"operator '{name}' of {get_distribution(list_installed(OPERATORS)[name])}"
