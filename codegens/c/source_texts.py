"""Models without text that could change the meaning of C source.

emx-onnx-cgen writes names, documentation and attributes of a model into comments as they are. A name
such as `*/ int f(void) ...` would end the comment, and what follows would be compiled.
"""

import re
from collections.abc import Iterator

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, numpy_helper
from onnx.helper import make_tensor

from byoc.codegen import CompileError, node_names, quote_name, walk_graphs

_PREFIX = "t_"  # no tensor has the name of a function or macro of C
_OTHER_PREFIX = "u_"
# Without `*`, quotes, backslash, question mark and line ends a text can end neither comment nor string.
_HARMLESS = re.compile(r"[A-Za-z0-9_./:;,<>()\[\]=+ -]*")
_STANDARD = ("", "ai.onnx")
_COMMENT_END = "*/"


class _Renaming:
    """New names, the same for the same name; those that are harmless only get a prefix."""

    def __init__(self) -> None:
        self._others: dict[str, str] = {}

    def rename(self, name: str) -> str:
        """Return the new name; an empty one, which stands for no tensor, stays empty."""
        if not name:
            return ""
        if _HARMLESS.fullmatch(name):
            return _PREFIX + name
        return self._others.setdefault(name, f"{_OTHER_PREFIX}{len(self._others)}")


def adapt_model(model: ModelProto) -> ModelProto:
    """Return a copy of a model whose texts are harmless in C source, its functions left out.

    Documentation and metadata are left out, and names are changed where they must be. It also works
    around two faults of emx-onnx-cgen: names of tensors that are functions or macros of C, and empty
    names at the end of a node's inputs, as inlined composites have them.

    Raises CompileError for a text that cannot be changed: an operator's or an attribute's.
    """
    copy = ModelProto(ir_version=model.ir_version)
    copy.graph.CopyFrom(model.graph)
    names = _Renaming()
    domains = {*_STANDARD}
    for graph in walk_graphs(copy.graph):
        domains |= {node.domain for node in graph.node}
        _clean_graph(graph, names)
    for original, node in zip(model.graph.node, copy.graph.node, strict=True):
        _check_values(original, node)
    copy.opset_import.extend(opset for opset in model.opset_import if opset.domain in domains)
    return copy


def _clean_graph(graph: GraphProto, names: _Renaming) -> None:
    graph.name = "g"
    for field in ("doc_string", "metadata_props", "quantization_annotation"):
        graph.ClearField(field)
    for node in graph.node:
        _check_texts(node)
        while node.input and not node.input[-1]:
            node.input.pop()
        node.input[:] = map(names.rename, node.input)
        node.output[:] = map(names.rename, node.output)
        node.name = node.name if _HARMLESS.fullmatch(node.name) else names.rename(node.name)
        for field in ("doc_string", "metadata_props", "overload"):
            node.ClearField(field)
        for attribute in node.attribute:
            attribute.ClearField("doc_string")
            for tensor in (*((attribute.t,) if attribute.HasField("t") else ()), *attribute.tensors):
                _clean_tensor(tensor, names)
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = names.rename(value.name)
        value.ClearField("doc_string")
        value.ClearField("metadata_props")
        _clean_type(value.type, names)
    sparse = [tensor for each in graph.sparse_initializer for tensor in (each.values, each.indices)]
    for tensor in (*graph.initializer, *sparse):
        _clean_tensor(tensor, names)


def _clean_tensor(tensor: TensorProto, names: _Renaming) -> None:
    if _COMMENT_END.encode() in tensor.raw_data:  # a comment would have the bytes as characters
        numbers = numpy_helper.to_array(tensor).ravel()
        tensor.CopyFrom(make_tensor(tensor.name, tensor.data_type, tensor.dims, numbers))
    tensor.name = names.rename(tensor.name)
    tensor.ClearField("doc_string")
    tensor.ClearField("metadata_props")


def _clean_type(kind: TypeProto, names: _Renaming) -> None:
    kind.ClearField("denotation")
    which = kind.WhichOneof("value")
    if which in ("sequence_type", "optional_type"):
        _clean_type(getattr(kind, which).elem_type, names)
    elif which == "map_type":
        _clean_type(kind.map_type.value_type, names)
    elif which in ("tensor_type", "sparse_tensor_type"):
        for dim in getattr(kind, which).shape.dim:
            dim.ClearField("denotation")
            if not _HARMLESS.fullmatch(dim.dim_param):
                dim.dim_param = names.rename(dim.dim_param)


def _check_texts(node: NodeProto) -> None:
    """Raise CompileError for a text of a node that is not harmless and has a meaning."""
    for what, text in _meaningful_texts(node):
        if not _HARMLESS.fullmatch(text):
            raise CompileError(
                f"{what} {quote_name(text)} of a node has characters that are not written into C source",
                node_names([node]),
            )


def _check_values(original: NodeProto, cleaned: NodeProto) -> None:
    """Raise CompileError for an attribute that, as text in a comment, would end it."""
    for attribute in cleaned.attribute:
        if _COMMENT_END in str(attribute):
            raise CompileError(
                f"the attribute {quote_name(attribute.name)} of a node has characters that are not "
                "written into C source",
                node_names([original]),
            )


def _meaningful_texts(node: NodeProto) -> Iterator[tuple[str, str]]:
    yield "the operator", node.op_type
    yield "the domain", node.domain
    for attribute in node.attribute:
        yield "the attribute", attribute.name
        for content in _attribute_strings(attribute):
            yield "the text", content.decode("utf-8", "backslashreplace")


def _attribute_strings(attribute: AttributeProto) -> Iterator[bytes]:
    yield attribute.s
    yield from attribute.strings
