"""Look-up of operator schemas: ONNX's own, then those that only onnxruntime registers.

onnxruntime is optional, and takes a third of a second to import: it is imported when an operator is
looked up that ONNX lacks, and where it is missing those operators have no schema.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import onnx

from byoc.errors import shorten_text, suggest_nearest
from byoc.schemas._operator_schema import (
    OperatorSchema,
    OperatorVersions,
    join_versions,
    read_schema,
)

INSTALL_HINT = "onnxruntime is not installed (pip install 'onnx-byoc[run]')"
"""What to do where onnxruntime is missed."""

# The domains of functions that byoc makes of regions and composites.
_OWN_DOMAINS = "byoc."
# Models in use have these in ONNX's main domain; a rule file may name them where onnxruntime is missing.
_TRUSTED_OPERATORS = frozenset({"SimplifiedLayerNormalization"})
_MAX_CHARACTERS = 60
_STATE_MODULE = "onnxruntime.capi.onnxruntime_pybind11_state"


@cache
def get_schema(op_type: str, domain: str, opset: int) -> OperatorSchema | None:
    """Return the schema of an operator at a version of its operator set, None if there is none.

    ONNX's main domain is the empty text or `ai.onnx`. An operator that ONNX lacks is looked up in
    onnxruntime where that is installed; of those, deprecated ones have no schema.
    """
    domain = "" if domain == "ai.onnx" else domain
    try:
        return read_schema(onnx.defs.get_schema(op_type, opset, domain))
    except (onnx.defs.SchemaError, TypeError):  # TypeError: a version beyond 32 bits
        pass
    versions = _find_runtime_sources(make_operator_name(op_type, domain))
    possible = [source for source in versions if source.since_version <= opset]
    if not possible:
        return None
    newest = max(possible, key=lambda source: int(source.since_version))
    return None if newest.deprecated else read_schema(newest)


@cache
def find_schemas(name: str) -> tuple[OperatorSchema, ...]:
    """Return the schemas of all versions of an operator by its name in rule files, none if unknown."""
    sources = _map_onnx_sources().get(name) or _find_runtime_sources(name)
    return tuple(map(read_schema, sources))


@cache
def find_operator(name: str) -> OperatorVersions | None:
    """Return all versions of an operator by its name in rule files, None if there is none."""
    schemas = find_schemas(name)
    return join_versions(name, schemas) if schemas else None


def make_operator_name(op_type: str, domain: str) -> str:
    """Return an operator as rule files and patterns spell it: `Conv`, `com.microsoft.Gelu`."""
    return f"{domain}.{op_type}" if domain not in ("", "ai.onnx") else op_type


def list_onnx_operators() -> Sequence[str]:
    """Return the names of all operators of ONNX's domains, by name as in rule files.

    They are those that ONNX defines, and those that onnxruntime adds and exporters write.
    """
    return [*_map_onnx_sources(), *_TRUSTED_OPERATORS]


@cache
def list_onnx_domains() -> frozenset[str]:
    """Return the domains whose operators ONNX defines; its main domain is the empty text."""
    return frozenset(schema.domain for schema in onnx.defs.get_all_schemas_with_history())


def describe_unknown_operator(name: str) -> str:
    """Return a sentence if a name, as in rule files, is of no operator, empty if it may be of one.

    Names of domains that neither ONNX nor an installed onnxruntime has operators of are taken on trust.
    """
    if name in _TRUSTED_OPERATORS or find_schemas(name):
        return ""
    domain = name.rpartition(".")[0]
    standard = domain in list_onnx_domains()
    there = [
        other
        for other in (list_onnx_operators() if standard else _map_runtime_sources())
        if other.rpartition(".")[0] == domain
    ]
    if not there:
        return ""
    who = "ONNX" if standard else f"onnxruntime {_get_runtime_version()}"
    return f"{who} has no operator '{shorten_text(name, _MAX_CHARACTERS)}'{suggest_nearest(name, there)}"


def has_runtime_schemas() -> bool:
    """Return whether onnxruntime is installed, and gives its schemas; imports it."""
    return bool(_map_runtime_sources())


@cache
def _map_onnx_sources() -> Mapping[str, Sequence[onnx.defs.OpSchema]]:
    return _group_by_name(onnx.defs.get_all_schemas_with_history())


@cache
def _map_runtime_sources() -> Mapping[str, Sequence[Any]]:
    """Return onnxruntime's schemas by operator name, empty where it is not installed."""
    try:
        state = import_module(_STATE_MODULE)
        list_all: Callable[[], Sequence[Any]] = state.get_all_operator_schema
    except (ImportError, AttributeError):  # a build without it
        return {}
    return _group_by_name(list_all())


def _find_runtime_sources(name: str) -> Sequence[Any]:
    return () if name.startswith(_OWN_DOMAINS) else _map_runtime_sources().get(name, ())


def _get_runtime_version() -> str:
    return str(import_module("onnxruntime").__version__)


def _group_by_name(sources: Sequence[Any]) -> Mapping[str, Sequence[Any]]:
    found: dict[str, list[Any]] = {}
    for source in sources:
        found.setdefault(make_operator_name(source.name, source.domain), []).append(source)
    return found
