"""ONNX's operator schemas in the form that rules and the linter need."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from onnx.defs import OpSchema

from byoc.model import DTYPES_BY_SCHEMA_TYPE, get_allowed_dtypes, map_schemas

_VARIADIC = OpSchema.FormalParameterOption.Variadic


@dataclass(frozen=True, slots=True)
class FormalParameter:
    """A formal parameter: its name, its type or type variable, whether it stands for several tensors."""

    name: str
    type_str: str
    variadic: bool


@dataclass(frozen=True, eq=False)
class OperatorSignature:
    """The formal parameters of one version of an operator."""

    schema: OpSchema
    inputs: tuple[FormalParameter, ...]
    outputs: tuple[FormalParameter, ...]

    @cached_property
    def formals(self) -> Mapping[str, FormalParameter]:
        """The formal parameters by name; an input precedes an output of the same name."""
        return {formal.name: formal for formal in (*self.outputs, *self.inputs)}

    def is_computed(self, type_str: str, dtypes: Sequence[str]) -> bool:
        """Return whether a target's dtypes apply to parameters of a type: those it computes with.

        The indices of a Gather and the flag of a Dropout can never have the dtype of a float target.
        """
        possible = get_allowed_dtypes(self.schema, type_str)
        is_result = bool(self.outputs) and type_str == self.outputs[0].type_str
        return bool(possible) and (is_result or not possible.isdisjoint(dtypes))


@cache
def make_signature(schema: OpSchema) -> OperatorSignature:
    """Return the formal parameters of a schema."""
    return OperatorSignature(schema, _make_formals(schema.inputs), _make_formals(schema.outputs))


def _make_formals(parameters: Sequence[OpSchema.FormalParameter]) -> tuple[FormalParameter, ...]:
    return tuple(FormalParameter(p.name, p.type_str, p.option == _VARIADIC) for p in parameters)


@dataclass(frozen=True, eq=False)
class OnnxOperator:
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


@cache
def find_operator(name: str) -> OnnxOperator | None:
    """Return an operator of ONNX by its name in rule files, None if there is none."""
    schemas = map_schemas().get(name)
    if schemas is None:
        return None
    attributes: dict[str, set[str]] = {}
    dtypes: dict[str, set[str]] = {}
    for schema in schemas:
        for attribute in schema.attributes.values():
            kind = str(attribute.type).rpartition(".")[2]  # AttrType.INTS
            attributes.setdefault(attribute.name, set()).add(kind)
        for formal in (*schema.inputs, *schema.outputs):
            known = (
                DTYPES_BY_SCHEMA_TYPE[text] for text in formal.types if text in DTYPES_BY_SCHEMA_TYPE
            )
            dtypes.setdefault(formal.name, set()).update(known)
    return OnnxOperator(
        name,
        {key: frozenset(kinds) for key, kinds in attributes.items()},
        {key: frozenset(kinds) for key, kinds in dtypes.items()},
        frozenset(formal.name for schema in schemas for formal in schema.inputs),
        frozenset(
            formal.name
            for schema in schemas
            for formal in (*schema.inputs, *schema.outputs)
            if formal.option == _VARIADIC
        ),
    )
