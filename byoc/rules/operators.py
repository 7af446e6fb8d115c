"""What ONNX's schemas say of operators, in the shapes that rules and the linter ask for."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import onnx
from onnx import NodeProto
from onnx.defs import OpSchema

from byoc.graph.attributes import open_dtypes
from byoc.graph.types import NUMBERS
from byoc.graph.walk import is_onnx

_VARIADIC = OpSchema.FormalParameterOption.Variadic
# Schemas write these two as C does.
_IN_SCHEMAS = {"float32": "float", "float64": "double"}


@dataclass(frozen=True, slots=True)
class Formal:
    """A formal parameter: its name, its type variable (or type), whether it stands for several."""

    name: str
    type_str: str
    variadic: bool


@dataclass(frozen=True, eq=False)
class Signature:
    """The formal parameters of one version of an operator."""

    schema: OpSchema
    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]

    @cached_property
    def formals(self) -> Mapping[str, Formal]:
        """The formal parameters by name; where an output is called as an input is, the input."""
        return {formal.name: formal for formal in (*self.outputs, *self.inputs)}

    def computed(self, dtypes: Sequence[str]) -> frozenset[str]:
        """Return the types of parameters that a target's dtypes are meant for: what is computed with.

        A Gather's indices and a Dropout's flag could never have the dtype that a float target computes
        in.
        """
        result = self.outputs[0].type_str if self.outputs else ""
        kinds = {formal.type_str for formal in (*self.inputs, *self.outputs)}
        found = set()
        for kind in kinds:
            possible = open_dtypes(self.schema, kind)
            if possible and (kind == result or not possible.isdisjoint(dtypes)):
                found.add(kind)
        return frozenset(found)


def name_of(node: NodeProto) -> str:
    """Return a node's operator as rule files write it: `Conv`, `com.microsoft.Gelu`."""
    return node.op_type if is_onnx(node) else f"{node.domain}.{node.op_type}"


def signature(schema: OpSchema) -> Signature:
    """Return the formal parameters of a schema."""
    return Signature(schema, _formals(schema.inputs), _formals(schema.outputs))


def _formals(parameters: Sequence[OpSchema.FormalParameter]) -> tuple[Formal, ...]:
    return tuple(Formal(p.name, p.type_str, p.option == _VARIADIC) for p in parameters)


@dataclass(frozen=True, eq=False)
class Operator:
    """All versions of an operator together: what any of them has.

    `attributes` gives the kinds of each (`INT`, `FLOATS`); `dtypes` the data types that each formal
    parameter may have; `inputs` are the names of those that are read, `variadic` of those that stand for
    several.
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
def operator(name: str) -> Operator | None:
    """Return what ONNX knows of an operator by the name that rule files use, None when it has none."""
    schemas = _schemas().get(name)
    if schemas is None:
        return None
    attributes: dict[str, set[str]] = {}
    dtypes: dict[str, set[str]] = {}
    for schema in schemas:
        for attribute in schema.attributes.values():
            kind = str(attribute.type).rpartition(".")[2]  # AttrType.INTS
            attributes.setdefault(attribute.name, set()).add(kind)
        for formal in (*schema.inputs, *schema.outputs):
            spelled = (_dtype(text) for text in formal.types)
            dtypes.setdefault(formal.name, set()).update(filter(None, spelled))
    return Operator(
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


@cache
def _spelling() -> Mapping[str, str]:
    return {f"tensor({_IN_SCHEMAS.get(name, name)})": name for name in NUMBERS}


def _dtype(text: str) -> str:
    return _spelling().get(text, "")


@cache
def operators() -> tuple[str, ...]:
    """Return the names of all operators that ONNX defines, as rule files write them, sorted."""
    return tuple(sorted(_schemas()))


@cache
def _schemas() -> Mapping[str, Sequence[OpSchema]]:
    """Return every version of every operator, by the name that rule files use."""
    found: dict[str, list[OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        name = schema.name if not schema.domain else f"{schema.domain}.{schema.name}"
        found.setdefault(name, []).append(schema)
    return found
