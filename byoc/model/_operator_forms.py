"""Operators in another form: as the body that defines them, or in another operator set.

ONNX defines many operators by others (Gelu by Erf and Mul), and a model may bring functions of its own:
such a node is given as a small model. ONNX's converter brings a model to another operator set.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TypeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
    version_converter,
)

from byoc._dataclasses import dataclass, field, replace
from byoc.errors import InputError
from byoc.model._constants import get_constant_value
from byoc.model._editable_graph import EditableGraph, build_node
from byoc.model._graph_index import RANDOM_OPERATORS, GraphIndex
from byoc.model._graph_parts import find_called_functions, resolve_attributes
from byoc.model._heavy_weights import make_skeleton
from byoc.model._inference._shape_inference import infer_types
from byoc.model._own_bodies import has_own_body, make_own_body
from byoc.model._tensor_data import is_large
from byoc.model._vendor_operators import list_missing_defaults
from byoc.model._walk import (
    describe_node,
    get_node_name,
    is_onnx,
    list_bodies,
    list_own_names,
    list_reads,
    list_tensor_names,
    make_unique_name,
    walk_nodes,
)
from byoc.model.schemas import OperatorSchema, get_schema

# ONNX's own body hands vectors to Range, which takes scalars; onnxruntime refuses it (onnx 1.23).
_FAULTY_BODIES = frozenset({"AffineGrid"})
_CAST_OPSET = 6  # from which on Cast names its type as now
_F, _I = np.float32, np.int64
_PLAIN_VALUES = {"value_float": _F, "value_floats": _F, "value_int": _I, "value_ints": _I}
"""The attributes of Constant, from operator set 12 on, whose values are a tensor's as well."""


def has_function_body(index: GraphIndex, node: NodeProto) -> bool:
    """Return whether a function of the model, ONNX or byoc defines a node by other operators."""
    if _key(node) in index.functions:
        return True
    # No run of parts that are random can be compared with anything.
    if node.op_type in RANDOM_OPERATORS or (is_onnx(node) and node.op_type in _FAULTY_BODIES):
        return False
    schema = index.get_schema(node)
    return schema is not None and (schema.is_function or has_own_body(node))


def make_body_model(index: GraphIndex, number: int) -> ModelProto | None:
    """Return a model whose graph is the function body of a node, one level deep.

    Its inputs are the tensors that the node reads and that are no small constants, with their types; its
    outputs are those that the node makes, by their names in the graph. Names of inner tensors begin with
    that of the first output. Operator sets are the model's, and those that only the body needs. Returns
    None where nothing defines the node, a type that it reads is not known, or the body means other
    versions of its operators than the model has.
    """
    node = index.nodes[number]
    reads = list_reads(node)
    types = {name: index.type_protos.get(name, TypeProto()) for name in reads}
    made = [*filter(None, node.output)]
    if not made or any(kind.WhichOneof("value") is None for kind in types.values()):
        return None
    function = _find_function(index, node, types)
    if function is None:
        return None
    graph = GraphProto(name=node.op_type)
    graph.node.extend(_bind_call(node, function, index.get_schema(node), types))
    for name in reads:
        value = None if name in index.stored_tensors else get_constant_value(index, name)
        if name in index.stored_tensors and not is_large(index.stored_tensors[name]):
            graph.initializer.append(index.stored_tensors[name])
        elif value is not None:
            graph.initializer.append(numpy_helper.from_array(value, name))
        else:
            graph.input.append(ValueInfoProto(name=name, type=types[name]))
    graph.output.extend(ValueInfoProto(name=n, type=index.type_protos.get(n)) for n in made)
    edits = EditableGraph(graph)
    edits.drop_unread()  # a body makes outputs that a call leaves out
    edits.write_to(graph)
    return helper.make_model(
        graph,
        opset_imports=_join_imports(index, function),
        ir_version=index.proto.ir_version,
        functions=find_called_functions(graph.node, index.functions),
    )


def _key(node: NodeProto) -> tuple[str, str, str]:
    return node.domain, node.op_type, node.overload


# The function of a node, if the model's operator sets mean what its body means.


def _find_function(
    index: GraphIndex, node: NodeProto, types: Mapping[str, TypeProto]
) -> FunctionProto | None:
    own = index.functions.get(_key(node))
    if own is not None:
        return own if _has_same_meaning(own, index) else None
    schema = index.get_schema(node)
    if schema is None or not has_function_body(index, node):
        return None
    found = _read_schema_functions(schema, node, types) if schema.is_function else iter(())
    known = next((each for each in found if _has_same_meaning(each, index)), None)
    return known or make_own_body(index, node, types)


def _read_schema_functions(
    schema: OperatorSchema, node: NodeProto, types: Mapping[str, TypeProto]
) -> Iterator[FunctionProto]:
    """Yield the bodies by which ONNX defines a node, those for newer operator sets first."""
    source: Any = schema.onnx_schema  # ONNX's type stubs lack its functions
    given = [types.get(name, TypeProto()).SerializeToString() for name in node.input]
    for version in sorted(source.context_dependent_function_opset_versions, reverse=True):
        text = source.get_context_dependent_function_with_opset_version(
            version, node.SerializeToString(), given
        )
        if text:
            yield FunctionProto.FromString(text)
    for version in sorted(source.function_opset_versions, reverse=True):
        yield FunctionProto.FromString(source.get_function_with_opset_version(version))


def _has_same_meaning(function: FunctionProto, index: GraphIndex) -> bool:
    """Return whether each node of a body is the same operator in the operator sets of the model."""
    meant = _read_imports(function)
    can_lower = index.opsets.get("", 1) >= _CAST_OPSET
    for node in walk_nodes(function.node):
        if _key(node) in index.functions or (can_lower and _is_lowered(node, function)):
            continue
        domain = "" if is_onnx(node) else node.domain
        here = index.opsets.get(domain, meant.get(domain, 1))
        there = meant.get(domain, here)  # ONNX's own bodies leave out what they have no need to say
        if there != here and not _is_same_operator(node, there, here):
            return False
    return True


def _is_same_operator(node: NodeProto, there: int, here: int) -> bool:
    """Return whether a node means the same in two versions of its operator set.

    Types that a version adds do not matter, nor do inputs and attributes that only one has and that the
    node leaves out: ONNX adds these so that their defaults are what was before. An attribute that became
    an input (the axes of ReduceMean) is the same where neither is given.
    """
    old, new = (get_schema(node.op_type, node.domain, version) for version in (there, here))
    if old is None or new is None or old.deprecated != new.deprecated:
        return False
    if old.since_version == new.since_version:
        return True
    stated = {attribute.name for attribute in node.attribute}
    common = old.attributes.keys() & new.attributes.keys()
    moved = (old.attributes[name] for name in old.attributes.keys() - new.attributes.keys())
    names = ([formal.name for formal in each.inputs[: len(node.input)]] for each in (old, new))
    return (
        stated <= common
        and all(each.name in new.formals and each.default is None for each in moved)
        and all(old.attributes[each].default == new.attributes[each].default for each in common)
        and len({tuple(each) for each in names}) == 1
    )


def _read_imports(function: FunctionProto) -> dict[str, int]:
    return {
        "" if each.domain == "ai.onnx" else each.domain: each.version for each in function.opset_import
    }


def _join_imports(index: GraphIndex, function: FunctionProto) -> list[object]:
    versions = {**_read_imports(function), **index.opsets}
    return [helper.make_opsetid(domain, version) for domain, version in versions.items()]


# Copies of nodes under other names, with the attributes of a call where they are a function's.


@dataclass(frozen=True, eq=False)
class NodeCopies:
    """Copies of nodes, and of the bodies in them, in which tensors have other names.

    `names` are the new names that are given; others are made by `new_name`. `call` has the values of
    attributes that the nodes refer to.
    """

    names: dict[str, str]
    new_name: Callable[[str], str]
    call: NodeProto = field(default_factory=NodeProto)

    def copy(self, node: NodeProto) -> NodeProto:
        """Return a copy of a node."""
        copied = resolve_attributes(node, self.call)
        for body in list_bodies(copied):
            self._rename_body(body)
        copied.input[:] = [self.rename(name) for name in node.input]
        copied.output[:] = [self.rename(name) for name in node.output]
        return copied

    def rename(self, name: str) -> str:
        """Return the new name of a tensor; an input or output that is left out stays so."""
        if name and name not in self.names:
            self.names[name] = self.new_name(name)
        return self.names.get(name, "")

    def _rename_body(self, body: GraphProto) -> None:
        own = {name: self.new_name(name) for name in sorted(list_own_names(body) - {""})}
        inner = replace(self, names={**self.names, **own})
        for value in (*body.input, *body.output, *body.value_info):
            value.name = inner.rename(value.name)
        for tensor in body.initializer:
            tensor.name = inner.rename(tensor.name)
        for sparse in body.sparse_initializer:
            sparse.values.name = inner.rename(sparse.values.name)
        for node in body.node:
            node.CopyFrom(inner.copy(node))


def _bind_call(
    node: NodeProto,
    function: FunctionProto,
    schema: OperatorSchema | None,
    types: Mapping[str, TypeProto],
) -> list[NodeProto]:
    """Return the nodes of a function's body, as they stand for a call of it."""
    call = NodeProto()
    call.CopyFrom(node)
    given = {attribute.name for attribute in node.attribute}
    call.attribute.extend(each for each in function.attribute_proto if each.name not in given)
    if schema is not None:
        call.attribute.extend(list_missing_defaults(call, schema))
    prefix, whole = next(filter(None, node.output)), get_node_name(node)
    taken = {*types, *node.output}
    copies = NodeCopies({}, lambda name: make_unique_name(f"{prefix}/{name}", taken), call)
    for position, formal in enumerate(function.input):
        copies.names[formal] = node.input[position] if position < len(node.input) else ""
    passed = {}
    for formal, name in zip(function.output, node.output, strict=False):
        if name and formal in copies.names:  # an input, or an output that stands twice
            passed[name] = copies.names[formal]
        elif name:
            copies.names[formal] = name
    nodes = [_lower_node(copies.copy(each), types) for each in function.node]
    nodes += [build_node("Identity", [given], [name]) for name, given in passed.items()]
    for each in nodes:
        each.name = f"{whole}/{each.name or each.op_type}"
    return nodes


def _lower_node(node: NodeProto, types: Mapping[str, TypeProto]) -> NodeProto:
    """Return a node of a body as older operator sets have it, too.

    A CastLike to a type that is known is a Cast, and a Constant has a tensor: beside these ONNX's bodies
    need little that is newer than what they define.
    """
    if _is_cast_like(node) and node.input[1] in types:
        number = types[node.input[1]].tensor_type.elem_type
        return build_node("Cast", [node.input[0]], node.output, node.name, to=number)
    if node.op_type == "Constant" and is_onnx(node) and len(node.attribute) == 1:
        dtype = _PLAIN_VALUES.get(node.attribute[0].name)
        if dtype is not None:
            array = np.array(helper.get_attribute_value(node.attribute[0]), dtype)
            value = numpy_helper.from_array(array)
            return build_node("Constant", [], node.output, node.name, value=value)
    return node


def _is_lowered(node: NodeProto, function: FunctionProto) -> bool:
    """Return whether `_lower_node` makes a node that older operator sets have."""
    if _is_cast_like(node):
        return node.input[1] in function.input
    given = {attribute.name for attribute in node.attribute}
    return node.op_type == "Constant" and is_onnx(node) and given <= {"value", *_PLAIN_VALUES}


def _is_cast_like(node: NodeProto) -> bool:
    return node.op_type == "CastLike" and is_onnx(node)


_MAX_REASON = 300  # characters of the converter's own message
_MIN_IR_OF_FUNCTIONS = 8  # ONNX IR version that brought model-local functions
_MIN_IR_OF_BARE_INITIALIZERS = 4  # ONNX IR version since which initializers need not be inputs
# The version of each operator from which on later ones only take more dtypes, or have more attributes
# whose default means what their absence did before (ONNX, Changelog). The converter has no way back for
# most of them.
_COMPATIBLE_SINCE = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Not", "Sum", "Mean"), 8),
    **dict.fromkeys(("Max", "Min", "Expand", "Greater", "Less", "MatMul", "Where", "PRelu"), 9),
    **dict.fromkeys(("Abs", "Neg", "Sqrt", "Exp", "Log", "Reciprocal", "Floor", "Ceil", "Erf"), 9),
    **dict.fromkeys(("Relu", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "Softplus", "HardSigmoid"), 9),
    **dict.fromkeys(("Identity", "Reshape", "Shape", "Size", "Transpose", "Cast", "Sign"), 9),
    **dict.fromkeys(("Tile", "ConstantOfShape", "Constant", "Dropout"), 9),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "LRN", "InstanceNormalization"), 9),
    **dict.fromkeys(("Equal", "Concat", "Flatten", "Gather", "Gemm", "Clip", "CumSum", "Pad"), 11),
    **dict.fromkeys(("Slice", "Conv", "DepthToSpace", "SpaceToDepth", "ScatterElements"), 11),
    **dict.fromkeys(("ScatterND", "GatherElements", "Round"), 11),
    **dict.fromkeys(("ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"), 11),
    "BatchNormalization": 9,
    **dict.fromkeys(("GatherND", "GreaterOrEqual", "LessOrEqual", "MaxPool"), 12),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax", "Squeeze", "Unsqueeze", "Split"), 13),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear", "ArgMax", "ArgMin", "ReduceSum"), 13),
}
_BODY_OWNERS = ("If", "Loop", "Scan", "SequenceMap")


class ConversionError(InputError):
    """A model cannot be converted; `nodes` names the nodes at fault where they are known."""

    def __init__(self, reason: str, nodes: tuple[str, ...] = ()) -> None:
        """Keep the names of the nodes beside the message."""
        super().__init__(reason)
        self.nodes = nodes


def convert_opset(proto: ModelProto, version: int, folder: Path | None = None) -> None:
    """Convert a model to another version of ONNX's operator set, in place.

    `folder` is the directory of external data. The weights are not converted, and metadata of nodes is
    kept. A node whose operator means the same in the older version stays as it is; attributes that this
    lacks are dropped where they have their default value. Raises ConversionError for functions, for
    what ONNX's converter refuses, and for a node that the version has no operator for.
    """
    present = next((e.version for e in proto.opset_import if e.domain in ("", "ai.onnx")), version)
    if present == version:
        return
    newest = onnx.defs.onnx_opset_version()
    if not 1 <= version <= newest:
        raise ConversionError(
            f"onnx {onnx.__version__} knows operator sets up to {newest}, not {version}"
        )
    if proto.functions:
        raise ConversionError("functions cannot be converted to another operator set")
    skeleton = make_skeleton(proto, folder)
    index = GraphIndex(skeleton, infer_types(skeleton, {}).type_protos)
    _Conversion(present, version, list_tensor_names(proto.graph)).convert_graph(proto.graph, index)
    del proto.graph.value_info[:]
    for entry in proto.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = version
    proto.ir_version = max(proto.ir_version, helper.find_min_ir_version_for(proto.opset_import, True))


def convert_ir_version(proto: ModelProto, version: int) -> None:
    """Set the IR version of a model, in place. Raises ConversionError where the model needs another."""
    least = helper.find_min_ir_version_for(proto.opset_import, ignore_unknown=True)
    if proto.functions:
        least = max(least, _MIN_IR_OF_FUNCTIONS)
    if not least <= version <= onnx.IR_VERSION:
        raise ConversionError(
            f"its operator sets need IR version {least} to {onnx.IR_VERSION}, not {version}"
        )
    if version < _MIN_IR_OF_BARE_INITIALIZERS:
        given = {value.name for value in proto.graph.input}
        proto.graph.input.extend(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            for tensor in proto.graph.initializer
            if tensor.name not in given
        )
    proto.ir_version = version


class _Conversion:
    """The conversion of graphs from one version to another; `taken` are the names that are in use."""

    def __init__(self, present: int, version: int, taken: set[str]) -> None:
        self.present = present
        self.version = version
        self.taken = taken

    def convert_graph(self, graph: GraphProto, index: GraphIndex) -> None:
        """Convert the nodes of a graph, which `index` has the same of, and of its bodies, in place."""
        for i, bodies in index.bodies.items():
            inside = {(each.attribute, each.position): each.index for each in bodies}
            for attribute in graph.node[i].attribute:
                if attribute.HasField("g"):
                    self.convert_graph(attribute.g, inside[attribute.name, 0])
        nodes = [NodeProto.FromString(node.SerializeToString()) for node in graph.node]
        changed = [node for node in nodes if not self._keeps(node)]
        made = dict(zip(map(id, changed), self._run_converter(graph, index, changed), strict=True))
        del graph.node[:]
        for node in nodes:
            for each in made.get(id(node), [node]):
                problem = self._find_problem(index, each) if is_onnx(each) else ""
                if problem:
                    raise self._refuse(node, problem)
                if each.op_type == node.op_type and not each.metadata_props:
                    each.metadata_props.extend(node.metadata_props)
                    each.doc_string = node.doc_string
                graph.node.append(each)

    def _keeps(self, node: NodeProto) -> bool:
        """Whether a node means the same in both versions; what it may not have is checked afterwards."""
        before = get_schema(node.op_type, node.domain, self.present)
        after = get_schema(node.op_type, node.domain, self.version)
        if before is None or (after is not None and before.since_version == after.since_version):
            return True
        if not is_onnx(node) or node.op_type in _BODY_OWNERS:
            return True  # the converter would convert the bodies once more
        least = _COMPATIBLE_SINCE.get(node.op_type, self.version + 1)
        return least <= self.version < self.present

    def _refuse(self, node: NodeProto, problem: str) -> ConversionError:
        return ConversionError(
            f"{describe_node(node)} cannot be converted to operator set {self.version}: {problem}",
            (get_node_name(node),),
        )

    def _run_converter(
        self, graph: GraphProto, index: GraphIndex, nodes: Sequence[NodeProto]
    ) -> list[list[NodeProto]]:
        """Convert some nodes by ONNX's converter; new constants are added to the graph.

        It takes longer to start than to convert, so it gets all nodes at once.
        """
        if not nodes:
            return []
        try:
            made = version_converter.convert_version(
                _make_model(index, nodes, self.present), self.version
            ).graph
        except Exception as error:  # the converter fails in many ways
            if len(nodes) > 1:
                half = len(nodes) // 2
                found = self._run_converter(graph, index, nodes[:half])
                return [*found, *self._run_converter(graph, index, nodes[half:])]
            reason = " ".join(str(error).split()).rpartition("failed: ")[2]
            raise self._refuse(nodes[0], reason[:_MAX_REASON]) from None
        known = {"", *(name for node in nodes for name in (*node.input, *node.output))}
        parts = list(_split_by_origin(made.node, nodes))
        names = {
            tensor.name: make_unique_name(f"converted_{tensor.name}", self.taken)
            for tensor in made.initializer
            if tensor.name not in known
        }
        for node, part in zip(nodes, parts, strict=True):
            for name in (name for each in part for name in each.output if name not in known):
                names[name] = make_unique_name(f"{get_node_name(node)}_converted", self.taken)
        for tensor in made.initializer:
            if tensor.name in names:
                stored = graph.initializer.add()
                stored.CopyFrom(tensor)
                stored.name = names[tensor.name]
        for each in made.node:
            each.input[:] = [names.get(name, name) for name in each.input]
            each.output[:] = [names.get(name, name) for name in each.output]
        return parts

    def _find_problem(self, index: GraphIndex, node: NodeProto) -> str:
        """Describe why the version does not allow a node, "" where it does."""
        schema = get_schema(node.op_type, node.domain, self.version)
        if schema is None or schema.deprecated:
            return f"it has no {node.op_type}"
        return next(self._list_problems(index, node, schema), "")

    def _list_problems(
        self, index: GraphIndex, node: NodeProto, schema: OperatorSchema
    ) -> Iterator[str]:
        """Yield the parts of a node that a schema lacks; attributes with their default are dropped."""
        before = get_schema(node.op_type, node.domain, self.present)
        for attribute in [each for each in node.attribute if each.name not in schema.attributes]:
            known = before.attributes.get(attribute.name) if before is not None else None
            default = known.default if known is not None else None
            value = helper.get_attribute_value(attribute)
            is_default = default is not None and helper.get_attribute_value(default) == value
            if not is_default and not _is_redundant(index, node, attribute.name):
                yield f"it has no attribute {attribute.name}"
            node.attribute.remove(attribute)
        if len(node.input) > schema.max_input or len(node.output) > schema.max_output:
            yield "it has fewer inputs or outputs"
            return
        bound: dict[str, str] = {}
        for name, formal in zip(node.input, schema.list_input_formals(len(node.input)), strict=True):
            dtype = index.get_dtype(name)
            if not name or dtype is None or not formal.dtypes or not formal.homogeneous:
                continue
            if dtype not in formal.dtypes or bound.setdefault(formal.type_str, dtype) != dtype:
                yield f"{formal.name} is {dtype}"


def _is_redundant(index: GraphIndex, node: NodeProto, attribute: str) -> bool:
    """Return whether an attribute says what holds without it, too."""
    if (node.op_type, attribute) == ("Reshape", "allowzero"):
        shape = get_constant_value(index, node.input[1])
        return shape is not None and 0 not in shape
    if (node.op_type, attribute) == ("Split", "num_outputs"):
        shapes = {index.get_shape(name) for name in node.output}
        return len(shapes) == 1 and all(shape and None not in shape for shape in shapes)
    return False


def _make_model(index: GraphIndex, nodes: Sequence[NodeProto], version: int) -> ModelProto:
    """Return a model of some nodes; their small constant inputs are stored in it."""

    def make_value(name: str) -> ValueInfoProto:
        return ValueInfoProto(name=name, type=index.type_protos.get(name))

    outputs = [name for node in nodes for name in node.output if name]
    inputs, stored = [], []
    for name in dict.fromkeys(name for node in nodes for name in node.input if name):
        value = get_constant_value(index, name)
        if name in outputs:
            continue
        if value is not None:
            stored.append(numpy_helper.from_array(value, name))
        else:
            inputs.append(make_value(name))
    graph = helper.make_graph(nodes, "part", inputs, [make_value(name) for name in outputs], stored)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", version)], ir_version=_MIN_IR_OF_FUNCTIONS
    )


def _split_by_origin(
    converted: Iterable[NodeProto], nodes: Sequence[NodeProto]
) -> Iterator[list[NodeProto]]:
    """Yield for each node what it was converted to: all up to where its outputs are made."""
    left = iter(converted)
    for node in nodes:
        missing = set(filter(None, node.output))
        made: list[NodeProto] = []
        while missing and (each := next(left, None)) is not None:
            made.append(each)
            missing -= {*each.output}
        yield made
