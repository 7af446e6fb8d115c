"""Schemas of operators: what ONNX, and onnxruntime where it is installed, say of each."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, cached_property
from importlib import import_module
from typing import Any

import onnx
from onnx import AttributeProto, TensorProto

from byoc._dataclasses import dataclass
from byoc.errors import shorten_text, suggest_nearest

# ONNX spells two types as C does; users write the number of bits.
_DTYPE_NAMES = {"FLOAT": "float32", "DOUBLE": "float64"}

DTYPES: dict[int, str] = {
    number: _DTYPE_NAMES.get(name, name.lower())
    for name, number in TensorProto.DataType.items()
    if name != "UNDEFINED"
}
"""Element type number (`onnx.TensorProto.DataType`) to the name that users write: `float32`."""

DTYPE_NUMBERS: dict[str, int] = {name: number for number, name in DTYPES.items()}
"""The inverse of `DTYPES`."""

# Schemas spell two dtypes as C does.
_C_NAMES = {"float32": "float", "float64": "double"}
_DTYPES_BY_TYPE = {f"tensor({_C_NAMES.get(name, name)})": name for name in DTYPE_NUMBERS}
_INDEX_DTYPES = frozenset({"int32", "int64"})


@dataclass(frozen=True, slots=True)
class FormalParameter:
    """A formal parameter of an operator.

    `type_str` is its type (`tensor(int64)`) or type variable (`T`), `dtypes` are the dtypes of tensors
    that it may be, none for a sequence or a map. A variadic parameter stands for several tensors, which
    have one type if it is `homogeneous`.
    """

    name: str
    type_str: str
    dtypes: frozenset[str]
    optional: bool
    variadic: bool
    homogeneous: bool


@dataclass(frozen=True, slots=True)
class AttributeSchema:
    """An attribute of an operator: `kind` is INT, FLOATS, ..., `default` None if it has none."""

    name: str
    kind: str
    required: bool
    default: AttributeProto | None


@dataclass(frozen=True, eq=False)
class OperatorSchema:
    """The schema of one version of an operator.

    `domain` is empty for ONNX's main domain. `variables` maps type variables to the dtypes that they may
    stand for. `onnx_schema` is the schema that it was read from where that is ONNX's, None for an
    operator that only onnxruntime registers.
    """

    op_type: str
    domain: str
    since_version: int
    inputs: tuple[FormalParameter, ...]
    outputs: tuple[FormalParameter, ...]
    attributes: Mapping[str, AttributeSchema]
    variables: Mapping[str, frozenset[str]]
    min_input: int
    max_input: int
    min_output: int
    max_output: int
    deprecated: bool
    onnx_schema: onnx.defs.OpSchema | None

    @property
    def is_function(self) -> bool:
        """Whether ONNX defines the operator by other operators."""
        defined = ("has_function", "has_context_dependent_function")  # missing in ONNX's type stubs
        return any(getattr(self.onnx_schema, name, False) for name in defined)

    @cached_property
    def formals(self) -> Mapping[str, FormalParameter]:
        """The formal parameters by name; an input precedes an output of the same name."""
        return {formal.name: formal for formal in (*self.outputs, *self.inputs)}

    def get_allowed_dtypes(self, type_str: str) -> frozenset[str]:
        """Return the dtypes that a type variable may stand for, none for a fixed type.

        In Reshape the type of `shape` is fixed, `tensor(int64)`. In Gather that of `indices` is a
        variable for int32 or int64, that of `data` one for any type.
        """
        return self.variables.get(type_str, frozenset())

    def is_computed(self, type_str: str, dtypes: Sequence[str]) -> bool:
        """Return whether a target's dtypes apply to parameters of a type: those it computes with.

        They apply to the result, and to what could have one of them. They do not to indices, int32 or
        int64 by the schema: those of a Gather, `seqlens_k` of a GroupQueryAttention.
        """
        possible = self.get_allowed_dtypes(type_str)
        if self.outputs and type_str == self.outputs[0].type_str:
            return bool(possible)
        return not possible <= _INDEX_DTYPES and not possible.isdisjoint(dtypes)

    def list_input_formals(self, count: int) -> list[FormalParameter]:
        """Return the formal parameter of each of `count` inputs; the last may be variadic."""
        return _repeat_last(self.inputs, count)

    def list_output_formals(self, count: int) -> list[FormalParameter]:
        """Return the formal parameter of each of `count` outputs; the last may be variadic."""
        return _repeat_last(self.outputs, count)


@dataclass(frozen=True, eq=False)
class OperatorVersions:
    """All versions of an operator together.

    `attributes` maps each to its kinds (`INT`, `FLOATS`), `dtypes` each formal parameter to its dtypes;
    `inputs` are the names of the inputs, `variadic` those of the variadic parameters.
    """

    name: str
    attributes: Mapping[str, frozenset[str]]
    dtypes: Mapping[str, frozenset[str]]
    inputs: frozenset[str]
    variadic: frozenset[str]

    @property
    def formals(self) -> Collection[str]:
        """The names of inputs and outputs, in the order of the schemas."""
        return self.dtypes.keys()


def join_versions(name: str, schemas: Sequence[OperatorSchema]) -> OperatorVersions:
    """Join the schemas of all versions of an operator."""
    attributes: dict[str, set[str]] = {}
    dtypes: dict[str, set[str]] = {}
    for schema in schemas:
        for attribute in schema.attributes.values():
            attributes.setdefault(attribute.name, set()).add(attribute.kind)
        for formal in (*schema.inputs, *schema.outputs):
            dtypes.setdefault(formal.name, set()).update(formal.dtypes)
    formals = [formal for schema in schemas for formal in (*schema.inputs, *schema.outputs)]
    return OperatorVersions(
        name,
        {key: frozenset(kinds) for key, kinds in attributes.items()},
        {key: frozenset(kinds) for key, kinds in dtypes.items()},
        frozenset(formal.name for schema in schemas for formal in schema.inputs),
        frozenset(formal.name for formal in formals if formal.variadic),
    )


def _repeat_last(formals: tuple[FormalParameter, ...], count: int) -> list[FormalParameter]:
    return [formals[min(i, len(formals) - 1)] for i in range(count if formals else 0)]


def read_schema(source: Any) -> OperatorSchema:
    """Read a schema of ONNX, or one of onnxruntime, whose Python class has nearly the same fields."""
    is_onnx = isinstance(source, onnx.defs.OpSchema)
    return OperatorSchema(
        op_type=source.name,
        domain=source.domain,
        since_version=source.since_version,
        inputs=tuple(map(_read_formal, source.inputs)),
        outputs=tuple(map(_read_formal, source.outputs)),
        attributes={name: _read_attribute(part) for name, part in source.attributes.items()},
        variables={
            constraint.type_param_str: _list_dtypes(constraint.allowed_type_strs)
            for constraint in source.type_constraints
        },
        min_input=source.min_input,
        max_input=source.max_input,
        min_output=source.min_output,
        max_output=source.max_output,
        deprecated=source.deprecated,
        onnx_schema=source if is_onnx else None,
    )


def _read_formal(source: Any) -> FormalParameter:
    option = str(source.option).rpartition(".")[2]  # FormalParameterOption.Optional
    return FormalParameter(
        name=source.name,
        type_str=source.type_str if hasattr(source, "type_str") else source.typeStr,
        dtypes=_list_dtypes(source.types),
        optional=option == "Optional",
        variadic=option == "Variadic",
        homogeneous=source.is_homogeneous if hasattr(source, "type_str") else source.isHomogeneous,
    )


def _read_attribute(source: Any) -> AttributeSchema:
    kind = str(source.type).rpartition(".")[2]  # AttrType.INTS
    if hasattr(source, "default_value"):
        default = source.default_value
    else:
        default = AttributeProto.FromString(source._default_value)  # onnxruntime has it serialized
    return AttributeSchema(source.name, kind, source.required, default if default.name else None)


def _list_dtypes(types: Any) -> frozenset[str]:
    return frozenset(_DTYPES_BY_TYPE[text] for text in types if text in _DTYPES_BY_TYPE)


# Look-up of operator schemas: ONNX's own, then those that only onnxruntime registers.
#
# onnxruntime is optional, and takes a third of a second to import: it is imported when an operator
# is looked up that ONNX lacks, and where it is missing those operators have no schema.

INSTALL_HINT = "onnxruntime is not installed (pip install onnxruntime)"
"""What to do where onnxruntime is missed."""

# The domains of functions that byoc makes of regions and composites.
_OWN_DOMAINS = "byoc."
# Models in use have these in ONNX's main domain; a rule file may name them where onnxruntime is missing.
_TRUSTED_OPERATORS = frozenset({"SimplifiedLayerNormalization"})
_MAX_CHARACTERS = 60  # of a name in a sentence
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


@cache
def _map_kernels() -> Mapping[str, Sequence[Any]]:
    """Return onnxruntime's kernels for CPUs by operator name, empty where it does not tell them."""
    try:
        state = import_module(_STATE_MODULE)
        list_all: Callable[[], Sequence[Any]] = state.get_all_opkernel_def
    except (ImportError, AttributeError):  # a build without it
        return {}
    found: dict[str, list[Any]] = {}
    for kernel in list_all():
        if kernel.provider == "CPUExecutionProvider":
            found.setdefault(make_operator_name(kernel.op_name, kernel.domain), []).append(kernel)
    return found


def has_kernel(schema: OperatorSchema, dtypes: Mapping[str, str]) -> bool:
    """Return whether onnxruntime runs an operator with dtypes, given by type variable, on a CPU.

    It is taken to run all where it is not installed. Of one that it has no kernel for, but runs as
    others, that is not known.
    """
    kernels = _map_kernels().get(make_operator_name(schema.op_type, schema.domain), ())
    if not _map_kernels():
        return True
    types = {variable: f"tensor({_C_NAMES.get(dtype, dtype)})" for variable, dtype in dtypes.items()}
    return any(
        kernel.version_range[0] <= schema.since_version <= kernel.version_range[1]
        and all(
            types.get(variable, allowed[0] if allowed else "") in allowed
            for variable, allowed in kernel.type_constraints.items()
        )
        for kernel in kernels
    )


def _find_runtime_sources(name: str) -> Sequence[Any]:
    return () if name.startswith(_OWN_DOMAINS) else _map_runtime_sources().get(name, ())


def _get_runtime_version() -> str:
    return str(import_module("onnxruntime").__version__)


def _group_by_name(sources: Sequence[Any]) -> Mapping[str, Sequence[Any]]:
    found: dict[str, list[Any]] = {}
    for source in sources:
        found.setdefault(make_operator_name(source.name, source.domain), []).append(source)
    return found
