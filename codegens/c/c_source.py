"""Emit C for a region by emx-onnx-cgen.

The emitted function takes pointers to the inputs, the large constants and the outputs. Large constants
are arguments and not part of the source, because the bundle has them already, and writing them takes
long (10 s and 4 GB for 240 MB).
"""

import ctypes
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, numpy_helper
from onnx.helper import make_tensor

from byoc.codegen import (
    YES,
    AnyArray,
    ByocError,
    CompileError,
    InputError,
    MissingRuntimeError,
    Region,
    SingleNode,
    TensorContract,
    TensorType,
    Verdict,
    check_each_node,
    define_emx_nodes,
    describe_error,
    describe_missing,
    find_refused_nodes,
    list_node_captures,
    list_reads,
    make_emx_compiler,
    mend_emx_source,
    node_names,
    quote_name,
    read_type,
    refuse,
    shorten_text,
    split_into_nodes,
    to_numpy_dtype,
    walk_graphs,
)

from .c_compiler import COptions, find_lacking_type

# Models without text that could change the meaning of C source.
#
# emx-onnx-cgen writes names, documentation and attributes of a model into comments as they are. A
# name such as `*/ int f(void) ...` would end the comment, and what follows would be compiled.

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


# A region for C: large constants are arguments of the function, the others are in its source.

_MAX_INSIDE = 128  # bytes of a constant that is written into the source,
_MAX_INDICES = 1024  # and of one of int64: shapes, axes and sizes decide what is emitted


@dataclass(frozen=True, eq=False)
class SeparatedRegion:
    """A region in standard operators, with large constants and constant outputs separated.

    `model` computes the outputs of nodes from the region's inputs and from `weights`, which are inputs
    of it as well. `known` are outputs that are constants. Any other output of the region is an input of
    it.
    """

    model: ModelProto
    weights: Mapping[str, AnyArray]
    known: Mapping[str, AnyArray]

    @property
    def made(self) -> list[str]:
        """Names of the outputs that are computed."""
        return [value.name for value in self.model.graph.output]


def separate_region(region: Region) -> SeparatedRegion:
    """Return a region in the form that emx-onnx-cgen takes.

    Raises CompileError for unknown extents, with the nodes that read or write a tensor with one.
    """
    for value in (*region.inputs, *region.outputs):
        if value.type.elements is None:
            raise CompileError(
                f"'{value.name}' is {value.type}: all extents must be known (--dim gives a model's)",
                node_names(_open_nodes(region)),
            )
    model = load_standard_model(region)
    graph = model.graph
    used = dict.fromkeys(name for node in graph.node for name in list_reads(node))
    inner = {name for node in graph.node for name in list_node_captures(node)}
    outputs = {value.name: value for value in graph.output}
    made = {name for node in graph.node for name in node.output}
    stored = {tensor.name: tensor for tensor in graph.initializer}
    weights = {}
    kept = []
    for name in (name for name in (*used, *sorted(inner - used.keys())) if name in stored):
        tensor = stored[name]
        array = numpy_helper.to_array(tensor)
        most = _MAX_INDICES if tensor.data_type == TensorProto.INT64 else _MAX_INSIDE
        if name not in inner and array.nbytes > most:
            weights[name] = array
            graph.input.append(onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims))
        else:
            kept.append(tensor)
    known = {name: numpy_helper.to_array(stored[name]) for name in outputs if name in stored}
    del graph.initializer[:], graph.output[:]
    graph.initializer.extend(kept)
    graph.output.extend(value for name, value in outputs.items() if name in made)
    return SeparatedRegion(model, weights, known)


def have_same_source(one: SeparatedRegion, other: SeparatedRegion) -> bool:
    """Return whether two regions become the same C, names apart.

    Nodes, inputs, outputs and weights then correspond by position; other constants are equal.
    """
    graphs = (one.model.graph, other.model.graph)
    if any(list_node_captures(node) for graph in graphs for node in graph.node):
        return False  # names inside bodies are not looked at
    return _describe(graphs[0]) == _describe(graphs[1])


def _describe(graph: onnx.GraphProto) -> list[object]:
    """Return all of a graph that its source depends on, with numbers in the place of names."""
    boundary = (*graph.input, *graph.output)
    read = (name for node in graph.node for name in (*node.input, *node.output))
    names = dict.fromkeys((*(value.name for value in boundary), *read))
    numbers = {name: number for number, name in enumerate(names)}
    values = [
        (numbers[value.name], value.type.SerializeToString(deterministic=True)) for value in boundary
    ]
    stored = [
        (numbers[tensor.name], tensor.data_type, tuple(tensor.dims), array.tobytes())
        for tensor in graph.initializer
        for array in [numpy_helper.to_array(tensor)]
    ]
    nodes = [
        (
            (node.domain, node.op_type),
            [numbers[name] for name in node.input],
            [numbers[name] for name in node.output],
            sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute),
        )
        for node in graph.node
    ]
    return [values, stored, nodes]


def _open_nodes(region: Region) -> list[NodeProto]:
    """Return the nodes that read or write a tensor with an unknown extent.

    A model may state an extent of an output that its values decide: the boundary says that it is open.
    """
    graph = region.model.graph
    boundary = (*region.inputs, *region.outputs)
    known = {
        value.name
        for value in (*graph.input, *graph.output, *graph.value_info)
        if (kind := read_type(value.type)) is not None and kind.elements is not None
    }
    known |= {"", *(tensor.name for tensor in graph.initializer)}
    known -= {value.name for value in boundary if value.type.elements is None}
    return [node for node in graph.node if not {*node.input, *node.output} <= known]


def load_standard_model(region: Region, inline: bool = True) -> ModelProto:
    """Return the model of a region, with constants folded if ONNX can evaluate them."""
    try:
        return region.load(fold=True, inline=inline)
    except Exception:  # an operator's version that the reference implementation lacks, for one
        return region.load(inline=inline)


ENTRY = "region"
_MAX_ON_STACK = 64  # bytes of a temporary that is not allocated; there may be thousands
_MAX_CHARACTERS = 300  # of a message of emx-onnx-cgen
# The emitted function returns early, without an error, if it gets no memory.
FAILED = "region_failed"
_STDLIB = "#include <stdlib.h>"
_WATCHED = f"""{_STDLIB}

static _Thread_local int region_without_memory;

static void *region_malloc(size_t size) {{
    void *memory = malloc(size);
    region_without_memory |= memory == NULL;
    return memory;
}}

#define malloc region_malloc
"""
_ASKED = f"""
int {FAILED}(void) {{
    int failed = region_without_memory;
    region_without_memory = 0;
    return failed;
}}
"""
_ONE_AT_A_TIME = Lock()  # the compiler has state while it runs


def emit_source(model: ModelProto) -> str:
    """Return the C source of a model, with a function named `ENTRY`.

    Raises CompileError with the message of emx-onnx-cgen, or with the first node at which it fails.
    """
    try:
        return _emit_unchecked(model)
    except CompileError:
        raise
    except Exception as error:  # it raises KeyError and others besides its own
        raise CompileError(_explain_failure(model, error)) from None


def check_nodes(model: ModelProto, options: COptions) -> list[Verdict]:
    """Return for each node of a model whether C can be emitted for it alone, of types that cc has."""
    compiler()
    return check_each_node(model, lambda single: _check_node(single, options))


def _check_node(single: SingleNode, options: COptions) -> Verdict:
    try:
        source = _emit_unchecked(single.standard_model())
    except Exception as error:  # as above
        return refuse(_shorten_message(error))
    lacking = find_lacking_type(source, options)
    return refuse(lacking) if lacking else YES


def refused_nodes(region: Region, options: COptions) -> list[str]:
    """Return the nodes of a region that `check_nodes` refuses; none if that is unknown."""
    return find_refused_nodes(
        lambda: load_standard_model(region, inline=False), lambda model: check_nodes(model, options)
    )


def _emit_unchecked(model: ModelProto) -> str:
    adapted = adapt_model(model)
    define_emx_nodes(adapted)
    with _ONE_AT_A_TIME:
        source = mend_emx_source(compiler().compile(adapted))
    if _STDLIB not in source:
        return source
    return source.replace(_STDLIB, _WATCHED, 1) + _ASKED


@cache
def compiler() -> Any:
    """Return the only compiler of this process, which keeps the templates that it has read.

    Raises MissingRuntimeError if emx-onnx-cgen is not installed.
    """
    try:
        return make_emx_compiler(
            model_name=ENTRY, large_weight_threshold=0, large_temp_threshold_bytes=_MAX_ON_STACK
        )
    except ImportError:
        raise MissingRuntimeError(describe_missing("emx-onnx-cgen", "c")) from None


def _explain_failure(model: ModelProto, error: Exception) -> str:
    """Return a sentence on a failure; search for the node at fault unless it is a refusal."""
    if isinstance(error, ByocError):
        return str(error)
    if _is_refusal(error):
        return _shorten_message(error)
    try:
        for single in split_into_nodes(model):
            try:
                _emit_unchecked(single.model)
            except Exception as own:  # as above
                name = f"{single.node.op_type} ({single.node.name or single.node.output[0]})"
                return f"emx-onnx-cgen refuses {name}: {_shorten_message(own)}"
    except ByocError:
        pass
    return f"emx-onnx-cgen fails with {describe_error(error)}"


def _is_refusal(error: Exception) -> bool:
    return type(error).__module__.startswith("emx_onnx_cgen")


def _shorten_message(error: Exception) -> str:
    """Return its message, without the dump of the node and hints for its command line."""
    if not _is_refusal(error):
        return describe_error(error)
    text = str(error)
    for end in (" (while lowering", " (during ", " Hint:"):
        text = text.partition(end)[0]
    return f"emx-onnx-cgen: {shorten_text(text.rstrip('. '), _MAX_CHARACTERS)}"


# Load a shared library, and call its function with numpy arrays.


@dataclass(frozen=True, eq=False)
class CExecutor:
    """The function of a region as an executor.

    `failed` returns whether the last call of this thread ran out of memory; it is None if the function
    allocates none. The arguments of the function are the region's inputs, named in `arguments`, then
    `weights`, then the outputs `made`; `known` are outputs that are constants. The function has no
    state, so threads may call it concurrently.
    """

    function: Any
    failed: Any
    arguments: Sequence[str]
    weights: Sequence[AnyArray]
    made: Sequence[str]
    known: Mapping[str, AnyArray]
    outputs: Sequence[TensorContract]

    def __call__(self, inputs: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        """Return the outputs by name, arrays of their own."""
        given = [np.asarray(inputs[name], order="C") for name in self.arguments]
        types = {value.name: value.type for value in self.outputs}
        made = {name: _zero_array(types[name]) for name in self.made}
        if made:
            arrays = [*given, *self.weights, *made.values()]
            self.function(*(array.ctypes.data for array in arrays))
            if self.failed is not None and self.failed():
                raise InputError("there is not enough memory for intermediate results")
        passed = {name: inputs[name].copy() for name in types if name in inputs}
        return {**passed, **{name: value.copy() for name, value in self.known.items()}, **made}


def load_functions(library: bytes, count: int) -> tuple[Any, Any]:
    """Return the function of a shared library, which takes `count` pointers, and the check for failures.

    The check is None if the function allocates no memory. Raises OSError if the library cannot be
    loaded.
    """
    return find_functions(open_library(library), count)


def open_library(library: bytes) -> ctypes.CDLL:
    """Return a loaded shared library. Raises OSError if it cannot be loaded."""
    with tempfile.TemporaryDirectory(prefix="byoc-") as folder:
        path = Path(folder) / "region.so"
        path.write_bytes(library)
        try:
            return ctypes.CDLL(str(path))  # stays loaded when the file is deleted
        except UnicodeError:  # ctypes decodes the linker's message, which has the path
            raise OSError("the linker does not open it") from None


def find_functions(opened: ctypes.CDLL, count: int) -> tuple[Any, Any]:
    """Return the function and the check for failures of a library; see `load_functions`."""
    function = getattr(opened, ENTRY)
    function.restype = None
    function.argtypes = [ctypes.c_void_p] * count
    try:
        failed = getattr(opened, FAILED)
    except (AttributeError, UnicodeError):  # as above
        failed = None
    return function, failed


def _zero_array(kind: TensorType) -> AnyArray:
    shape: Any = kind.shape  # all extents are known
    return np.zeros(shape, to_numpy_dtype(kind.dtype))
