"""What the operators' schemas say of data types: which tensors of a node may be short.

Formal parameters that share a type variable have one type. Nothing here knows an operator by name.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper
from onnx.defs import OpSchema

from byoc.boundary.casting.rounding import twin
from byoc.graph.attributes import open_dtypes, schema_of
from byoc.graph.bodies import body_input_types
from byoc.graph.types import DTYPES, NUMBERS, read_type
from byoc.graph.walk import is_onnx

FLOAT = "float32"
Dtypes = Mapping[str, str]
"""Tensors to their data types; those that are not known, or are no tensors, are left out."""

_FIXED = {f"tensor({name})": name for name in NUMBERS} | {"tensor(float)": FLOAT}
_FIXED["tensor(double)"] = "float64"


@dataclass(frozen=True)
class Schemas:
    """Operators at the versions that a model imports, which is by domain in `opsets`."""

    opsets: Mapping[str, int]

    def of(self, node: NodeProto) -> OpSchema | None:
        """Return the schema of a node's operator, None when ONNX has none."""
        domain = "" if is_onnx(node) else node.domain
        return schema_of(node.op_type, domain, self.opsets.get(domain, 1))

    def inputs(self, node: NodeProto) -> list[str]:
        """Return the type or type variable of each input, empty where there is no schema."""
        schema = self.of(node)
        return list(_types(schema.inputs if schema else (), len(node.input)))

    def outputs(self, node: NodeProto) -> list[str]:
        """Return the type or type variable of each output, empty where there is no schema."""
        schema = self.of(node)
        return list(_types(schema.outputs if schema else (), len(node.output)))

    def may_be(self, node: NodeProto, type_str: str, dtype: str) -> bool:
        """Return whether tensors of a type variable may have a data type.

        Of an operator that ONNX does not define all may: the rule file says that the accelerator has it.
        """
        schema = self.of(node)
        return schema is None or dtype in open_dtypes(schema, type_str)

    def has_tensors_alone(self, node: NodeProto) -> bool:
        """Return whether no parameter of a node is a sequence or a map by its type."""
        schema = self.of(node)
        if schema is None:
            return True
        sides = (schema.inputs, len(node.input)), (schema.outputs, len(node.output))
        formals = (formal for side, count in sides for formal in side[:count])
        return all(any(kind.startswith("tensor(") for kind in formal.types) for formal in formals)

    def inferred(self, node: NodeProto, known: Dtypes) -> dict[str, str]:
        """Return the data types of a node's outputs by ONNX's inference; none where that fails."""
        schema = self.of(node)
        if schema is None:
            return {}
        kinds = {
            name: helper.make_tensor_type_proto(NUMBERS[dtype], None) for name, dtype in known.items()
        }
        imports = [helper.make_opsetid(domain, version) for domain, version in self.opsets.items()]
        try:
            found = onnx.shape_inference.infer_node_outputs(schema, node, kinds, opset_imports=imports)
        except (KeyError, RuntimeError, onnx.shape_inference.InferenceError):
            return {}
        read = {name: read_type(kind) for name, kind in found.items()}
        return {name: kind.dtype for name, kind in read.items() if kind is not None}

    def output(self, node: NodeProto, position: int, known: Dtypes) -> str | None:
        """Return the data type of an output of a node, None when it is not known."""
        schema = self.of(node)
        if schema is None:
            return next((known[name] for name in node.input if name in known), None)
        type_str = self.outputs(node)[position]
        if type_str in _FIXED:
            return _FIXED[type_str]
        same = zip(self.inputs(node), node.input, strict=True)
        bound = next((known[name] for t, name in same if t == type_str and name in known), None)
        return bound or self.inferred(node, _asked(node, known)).get(node.output[position])

    def shortened(
        self, node: NodeProto, output: str, known: Dtypes, dtype: str
    ) -> tuple[NodeProto, str] | None:
        """Return a node and the data type of an output that no input gives, `dtype` if it can be.

        An attribute may say the type: a Cast's `to`, or a tensor as a ConstantOfShape's `value`. None
        for operators that make numbers from nothing but an extent: what they draw or compute in float32
        is more than what they would in less, and onnxruntime has not all of them in float16. `known`
        has the types of the inputs as they would be.
        """
        schema = self.of(node)
        known = _asked(node, known)
        for changed in _changes(node, schema, dtype) if schema is not None else ():
            if self.inferred(changed, known).get(output) == dtype:
                return changed, dtype
        found = self.inferred(node, known).get(output)
        return (node, found) if found is not None and found != dtype else None


def is_fixed(type_str: str) -> bool:
    """Return whether a parameter has one type by its schema, and not a variable."""
    return type_str in _FIXED


def _types(formals: Sequence[OpSchema.FormalParameter], count: int) -> Iterator[str]:
    for position in range(count):
        if not formals:
            yield ""
            continue
        formal = formals[min(position, len(formals) - 1)]  # the last may be variadic
        yield formal.type_str


def _asked(node: NodeProto, known: Dtypes) -> Dtypes:
    """Return the types that a node's inference asks for: with bodies, of all around it."""
    if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
        return dict(known)
    return {name: known[name] for name in node.input if name in known}


def _changes(node: NodeProto, schema: OpSchema, dtype: str) -> Iterator[NodeProto]:
    """Yield a node with one attribute changed that may say that an output is float32."""
    given = {attribute.name: attribute for attribute in node.attribute}
    for name, formal in schema.attributes.items():
        attribute = given.get(name)
        if formal.type == OpSchema.AttrType.TENSOR:
            zero = TensorProto(dims=[1], data_type=TensorProto.FLOAT, raw_data=bytes(4))
            old = attribute.t if attribute is not None else zero
            if old.data_type != TensorProto.FLOAT:
                continue
            new = helper.make_attribute(name, twin(old, old.name, dtype)[0])
        elif (schema.name, name) == ("Cast", "to"):
            new = helper.make_attribute(name, NUMBERS[dtype])
        else:
            continue
        changed = NodeProto()
        changed.CopyFrom(node)
        set_attribute(changed, new)
        yield changed


def set_attribute(node: NodeProto, attribute: AttributeProto) -> None:
    """Write an attribute in the place of one of the same name."""
    for own in node.attribute:
        if own.name == attribute.name:
            own.CopyFrom(attribute)
            return
    node.attribute.add().CopyFrom(attribute)


def body_dtypes(node: NodeProto, body: GraphProto, around: Dtypes) -> dict[str, str]:
    """Return what a body says of its own tensors, and what follows for its inputs from its node's."""
    kinds = {name: helper.make_tensor_type_proto(NUMBERS[t], None) for name, t in around.items()}
    found = body_input_types(node, body, {name: kinds[name] for name in node.input if name in kinds})
    stated = {v.name: v.type for v in (*body.value_info, *body.output, *body.input)}
    found.update((name, kind) for name, kind in stated.items() if read_type(kind) is not None)
    read = {name: read_type(kind) for name, kind in found.items()}
    result = {name: kind.dtype for name, kind in read.items() if kind is not None}
    return result | {tensor.name: DTYPES[tensor.data_type] for tensor in body.initializer}
