"""Conversion of a model to another operator set, by ONNX's converter, and to another IR version."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import onnx
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
    version_converter,
)

from byoc.errors import InputError
from byoc.model._constants import get_constant_value
from byoc.model._graph_index import GraphIndex
from byoc.model._heavy_weights import make_skeleton
from byoc.model._walk import describe_node, get_node_name, is_onnx, list_tensor_names, make_unique_name
from byoc.model.inference import infer_types
from byoc.model.schemas import OperatorSchema, get_schema

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
