"""Calls of a program: byoc's own kernels, and functions that emx-onnx-cgen writes for other nodes.

The compiler gets a model in which no node reads what another one makes, so what it emits is a function
for each node and nothing else: memory between nodes is byoc's. Equal nodes share a function.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from math import prod, sqrt
from typing import Any

import onnx
from onnx import AttributeProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper
from onnx.helper import make_tensor_value_info

from byoc._dataclasses import dataclass, field
from byoc.codegen import CompileError, define_emx_nodes, make_emx_compiler, mend_emx_source
from byoc.errors import MissingRuntimeError, describe_error, shorten_text
from byoc.memory.reading import written_outputs
from byoc.model import DTYPE_NUMBERS, is_onnx, list_bodies
from byoc.standalone._program_graph import (
    SCRATCH,
    Call,
    ProgramGraph,
    UnsupportedNodeError,
    format_float,
)
from byoc.standalone._proof import Proof, prove_functions
from byoc.standalone._small_types import find_stored_dtype, require_stored, view_as_stored
from byoc.standalone._written_operators import MOST_ADDED
from byoc.support import install_command

# Nodes that one kernel computes: a convolution or a product, the bias behind it, and the
# activation.

PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_INFINITY = float("inf")


@dataclass(frozen=True)
class FusedNodes:
    """Nodes that follow one another: the first computes, an Add gives its bias, the last limits it.

    `bias` is the constant that a MatMul gets by an Add; `low` and `high` are limits on the result, which
    with `hard_swish` a HardSwish makes.
    """

    nodes: tuple[int, ...]
    bias: str = ""
    low: float = -_INFINITY
    high: float = _INFINITY
    hard_swish: bool = False


def find_fused_nodes(graph: ProgramGraph) -> list[FusedNodes]:
    """Return the nodes that are computed together, at least two each; all compute 32-bit floats."""
    found = []
    for number, node in enumerate(graph.index.nodes):
        if is_onnx(node) and node.op_type in PRODUCTS and number not in graph.sizes.constant_nodes:
            fused = _follow_node(graph, number)
            if len(fused.nodes) > 1:
                found.append(fused)
    return found


def _follow_node(graph: ProgramGraph, number: int) -> FusedNodes:
    nodes, bias = [number], ""
    if graph.get_dtype(graph.index.nodes[number].output[0]) != "float32":
        return FusedNodes((number,))
    behind = _find_reader(graph, number)
    if behind is not None and graph.index.nodes[number].op_type == "MatMul":
        bias = _find_bias(graph, number, graph.index.nodes[behind])
        if bias:
            nodes.append(behind)
            behind = _find_reader(graph, behind)
    if behind is not None and graph.index.nodes[behind].op_type == "HardSwish":
        return FusedNodes((*nodes, behind), bias, hard_swish=True)
    limits = None if behind is None else find_limits(graph, graph.index.nodes[behind])
    if behind is None or limits is None:
        return FusedNodes(tuple(nodes), bias)
    return FusedNodes((*nodes, behind), bias, *limits)


def _find_reader(graph: ProgramGraph, number: int) -> int | None:
    """Return the only reader of a node's result, None where there are others."""
    index = graph.index
    name = index.nodes[number].output[0]
    readers: Sequence[int] = index.consumers.get(name, ())
    if name in index.outputs or len(readers) != 1 or list(index.reads[readers[0]]).count(name) != 1:
        return None
    return readers[0] if is_onnx(index.nodes[readers[0]]) else None


def _find_bias(graph: ProgramGraph, number: int, add: NodeProto) -> str:
    """Return the constant of one number a column that an Add adds to a product, empty if it does not."""
    result = graph.index.nodes[number].output[0]
    if add.op_type != "Add":
        return ""
    other = next((name for name in add.input if name != result), "")
    shape = graph.get_shape(result)
    fits = other and graph.is_constant(other) and shape and graph.get_shape(other) == shape[-1:]
    return other if fits else ""


def find_limits(graph: ProgramGraph, node: NodeProto) -> tuple[float, float] | None:
    """Return the limits that a node sets on its operand, None for a node that does something else."""
    if node.op_type == "Relu":
        return 0.0, _INFINITY
    if node.op_type != "Clip":
        return None
    if graph.index.get_opset(node) < 11:
        given = graph.index.get_attributes(node)
        return float(given.get("min", -_INFINITY)), float(given.get("max", _INFINITY))
    names = [*node.input[1:], "", ""][:2]
    if any(name and not graph.is_constant(name) for name in names):
        return None
    low, high = (
        float(graph.get_constant(name)) if name else default
        for name, default in zip(names, (-_INFINITY, _INFINITY), strict=True)
    )
    return (low, high) if low <= high else None


DECODER_FILE = "decoders.c"
_NORMALIZE, _MULTIPLY, _ATTEND = "kernel_normalize", "kernel_multiply_packed", "kernel_attend"
DECODER_KERNELS = frozenset({_NORMALIZE, _MULTIPLY, _ATTEND})
"""The functions of `DECODER_FILE`."""

_FLOAT_BYTES = 4  # bytes of float32
_BITS = 4  # of a weight that the kernel unpacks
_WITHOUT_EFFECT: Mapping[str, tuple[Any, ...]] = {
    "smooth_softmax": (0, -1),
    "kv_cache_bit_width": (0,),
    "qk_output": (0,),
    "sliding_window_cache": (0,),
    "k_quant_type": ("NONE",),
    "v_quant_type": ("NONE",),
}
"""Attributes of GroupQueryAttention with the values that its kernel computes."""


def is_decoder_operator(node: NodeProto) -> bool:
    """Return whether a node is one of the operators of decoders that have a kernel."""
    return (node.domain, node.op_type) in _MAKERS


def make_decoder_call(graph: ProgramGraph, node: NodeProto) -> Call | None:
    """Return the call of a kernel for an operator of decoders, None where its form has none.

    Raises UnsupportedNodeError with the reason where no other function computes that form, either.
    """
    return _MAKERS[node.domain, node.op_type](graph, node)


def _make_norm(graph: ProgramGraph, node: NodeProto) -> Call | None:
    """Return the call for a SimplifiedLayerNormalization: x, scale."""
    x, scale = node.input
    attributes = graph.index.get_attributes(node)
    shape = graph.get_shape(x)
    axis = int(attributes.get("axis", -1)) % len(shape)
    if graph.get_shape(scale) != shape[axis:]:
        raise UnsupportedNodeError(f"its scale is not of the axes from {axis} on")
    return _make_norm_call(graph, node, axis, (x, None, None, scale), None)


def _make_skip_norm(graph: ProgramGraph, node: NodeProto) -> Call | None:
    """Return the call for a SkipSimplifiedLayerNormalization: x, skip, scale, bias."""
    x, skip, scale, bias = (*node.input, "")[:4]
    total = (*node.output, *[""] * 4)[3]
    axis = len(graph.get_shape(x)) - 1
    return _make_norm_call(graph, node, axis, (x, skip, bias or None, scale), total or None)


def _make_norm_call(
    graph: ProgramGraph, node: NodeProto, axis: int, given: tuple[str | None, ...], total: str | None
) -> Call:
    _require_floats(graph, *(name for name in given if name))
    if any(node.output[1:3]):
        raise UnsupportedNodeError("its second and third output have no kernel")
    shape = graph.get_shape(node.input[0])
    rows, cols = prod(shape[:axis]), prod(shape[axis:])
    skip_rows = prod(graph.get_shape(given[1])) // max(cols, 1) if given[1] else 1
    epsilon = format_float(float(graph.index.get_attributes(node).get("epsilon", 1e-5)))
    structure = f"{{{rows}, {cols}, {skip_rows}, {epsilon}}}"
    return Call(_NORMALIZE, (*given, total, node.output[0]), "kernel_norm", structure)


def _make_packed_product(graph: ProgramGraph, node: NodeProto) -> Call | None:
    """Return the call for a MatMulNBits of four bits: x, numbers, scales, zero points, order, bias."""
    x, numbers, scales, zeros, order, bias = (*node.input, *[""] * 3)[:6]
    attributes = graph.index.get_attributes(node)
    depth, cols, block = (int(attributes[name]) for name in ("K", "N", "block_size"))
    floats = [name for name in (x, scales, bias) if name]
    if (
        int(attributes["bits"]) != _BITS
        or order
        or any(graph.get_dtype(name) != "float32" for name in floats)
        or (zeros and graph.get_dtype(zeros) != "uint8")
    ):
        return None  # emx-onnx-cgen's
    rows, blocks = prod(graph.get_shape(x)[:-1]), -(-depth // block)
    structure = f"{{{rows}, {depth}, {cols}, {blocks}, {block}}}"
    operands = (x, numbers, scales, zeros or None, bias or None, node.output[0], SCRATCH)
    scratch = blocks * block * _FLOAT_BYTES
    return Call(_MULTIPLY, operands, "kernel_packed", structure, scratch)


def _make_attention(graph: ProgramGraph, node: NodeProto) -> Call | None:
    """Return the call for a GroupQueryAttention.

    Its inputs are queries, keys, values, the cache of both, lengths, their largest, cosines, sines, and
    others that have no kernel.
    """
    query, key, value, *cache, lengths, total, cosines, sines = (*node.input, *[""] * 9)[:9]
    attributes = graph.index.get_attributes(node)
    heads, kv_heads = (int(attributes[name]) for name in ("num_heads", "kv_num_heads"))
    made = (*node.output, *[""] * 3)[:4]
    _require_floats(graph, *(name for name in (query, key, value, *cache, cosines, sines) if name))
    batch, count, width = graph.get_shape(query)
    head = width // (heads if key else heads + 2 * kv_heads)
    past = graph.get_shape(cache[0])[2] if cache[0] else 0
    _check_attention(node, attributes)
    length = graph.get_shape(made[1])[2]
    rotates = bool(attributes.get("do_rotary", 0))
    rotated = 2 * graph.get_shape(cosines)[1] if rotates else 0
    window = int(attributes.get("local_window_size", -1))
    if -1 < window < length:
        raise UnsupportedNodeError(f"local_window_size is {window}, less than the {length} of its cache")
    if length < count or (rotates and graph.get_shape(cosines)[0] < length):
        raise UnsupportedNodeError(f"its cache of {length} is not that of its positions")
    scale = float(attributes.get("scale", 0.0)) or 1 / sqrt(head)
    numbers = (batch, count, heads, kv_heads, head, past, length, rotated)
    interleaved = int(attributes.get("rotary_interleaved", 0))
    factors = (format_float(scale), format_float(float(attributes.get("softcap", 0.0))))
    structure = f"{{{', '.join(map(str, (*numbers, interleaved, *factors)))}}}"
    given = (query, key, value, *cache, lengths, total, *((cosines, sines) if rotates else ("", "")))
    operands = (*(name or None for name in given), *made[:3], SCRATCH)
    scratch = (head + length) * _FLOAT_BYTES
    return Call(_ATTEND, operands, "kernel_attention", structure, scratch)


def _check_attention(node: NodeProto, attributes: Mapping[str, Any]) -> None:
    """Raise UnsupportedNodeError for what the kernel of attention does not compute."""
    for name, allowed in _WITHOUT_EFFECT.items():
        value = attributes.get(name, allowed[0])
        if (value.decode() if isinstance(value, bytes) else value) not in allowed:
            raise UnsupportedNodeError(f"{name} is {value}, and must be {allowed[0]}")
    if any(node.input[9:]) or any(node.output[3:]):
        raise UnsupportedNodeError("it has positions, a bias, sinks, scales or scores")
    if not all((*node.output, "", "")[1:3]):
        raise UnsupportedNodeError("its caches are not outputs")


def _require_floats(graph: ProgramGraph, *names: str) -> None:
    """Raise UnsupportedNodeError for tensors of other types."""
    for name in names:
        if graph.get_dtype(name) != "float32":
            raise UnsupportedNodeError(f"'{name}' is {graph.get_dtype(name)}, and must be float32")


_MAKERS: Mapping[tuple[str, str], Callable[[ProgramGraph, NodeProto], Call | None]] = {
    ("", "SimplifiedLayerNormalization"): _make_norm,
    ("com.microsoft", "SimplifiedLayerNormalization"): _make_norm,
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): _make_skip_norm,
    ("com.microsoft", "MatMulNBits"): _make_packed_product,
    ("com.microsoft", "GroupQueryAttention"): _make_attention,
}


# C functions for operators without a kernel of byoc's, one for each kind of node, by emx-onnx-cgen.

_MOST_EMBEDDED = 1024  # bytes of a constant that may decide what is emitted: shapes, axes, scales
_MOST_ON_STACK = 16 << 10  # bytes of a temporary inside of a function
_MAX_CHARACTERS = 300  # of a message of emx-onnx-cgen
_ENTRY = "region"
_OPERANDS_OF_ADD = 2  # a Sum of two tensors is an Add
# Attributes are written into comments of C. What is harmless can end neither comment nor string.
_HARMLESS = re.compile(r"[A-Za-z0-9_.:;,<>()\[\]=+> -]*")
_COMMENT_END = "*/"
_NAME = re.compile(r"\b(node\d+_\w+(?=\()|weight\d+_\w+)")  # what other files can see
_PROTOTYPE = re.compile(r"^EMX_NODE_FN (void (\w*?node(\d+)_\w+)\(.*\)) \{$", re.MULTILINE)
_CALL = re.compile(r"^    (\w*?node\d+_\w+)\((.*)\);$", re.MULTILINE)
_BODY = re.compile(
    r"^EMX_NODE_FN void \w*?node(\d+)_\w+\([^\n]*\) \{\n(.*?)^\}$", re.MULTILINE | re.DOTALL
)
_RESULT = re.compile(r"\boutput\w*")
_ASSIGNED = re.compile(r"^ *output(\[\w+\])+ = [^;]*;$", re.MULTILINE)
# Types of numbers that C99 lacks: integers of 4 bits, floats of 8 and fewer bits, bfloat16.
_FOREIGN_TYPE = re.compile(r"\b(?:unsigned )?_BitInt\(\d+\)|\bemx_float\w+|__bf16\b")
_TENSOR = re.compile(r"n(\d+)_([io])(\d+)$")
_UNUSED = """\
/* What emx-onnx-cgen emits has helpers and variables that not every node uses. */
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"
#endif
"""


@dataclass(frozen=True, eq=False)
class _NodeKind:
    """A node without names: its operands are n0_i0, n0_i1 and so on, its results n0_o0."""

    node: NodeProto
    inputs: tuple[ValueInfoProto, ...]
    outputs: tuple[ValueInfoProto, ...]
    constants: tuple[TensorProto, ...]


@dataclass
class NodeFunctions:
    """The functions of a program's nodes; nodes are added, then the source is emitted.

    Names of functions begin with `prefix`.
    """

    opsets: tuple[onnx.OperatorSetIdProto, ...]
    prefix: str = ""
    kinds: dict[bytes, tuple[int, _NodeKind]] = field(default_factory=dict)

    def add(self, graph: ProgramGraph, number: int) -> int:
        """Add a node, and return the number of its function. Raises UnsupportedNodeError."""
        kind = _describe_kind(graph, number)
        key = _make_key(kind)
        if key not in self.kinds:
            self._emit([kind])
            self.kinds[key] = len(self.kinds), kind
        return self.kinds[key][0]

    def emit(self) -> "EmittedFunctions":
        """Emit the source of all functions that were added."""
        return self._emit([kind for _, kind in self.kinds.values()])

    def prove(self, emitted: "EmittedFunctions") -> Proof:
        """Prove all functions that were emitted, each by a model of its node alone."""
        models = [self._make_model([kind]) for _, kind in self.kinds.values()]
        source, header = emitted.format_source(), emitted.format_header()
        return prove_functions(source, header, emitted.functions, models, self.prefix)

    def _make_model(self, kinds: Sequence[_NodeKind]) -> onnx.ModelProto:
        """Return the model of some nodes, in which none reads what another one makes."""
        model = onnx.ModelProto(ir_version=8)
        model.graph.name = "g"
        model.opset_import.extend(self.opsets)
        for number, kind in enumerate(kinds):
            _add_kind(model.graph, kind, number)
        return model

    def _emit(self, kinds: Sequence[_NodeKind]) -> "EmittedFunctions":
        model = self._make_model(kinds)
        try:
            define_emx_nodes(model)
        except CompileError as error:
            raise UnsupportedNodeError(str(error)) from None
        if len(model.graph.node) != len(kinds):  # each is one function
            raise UnsupportedNodeError("emx-onnx-cgen: it computes the node right as several alone")
        try:
            text: str = mend_emx_source(_load_compiler().compile(model))
        except MissingRuntimeError:
            raise
        except Exception as error:  # it raises KeyError and others besides its own
            raise UnsupportedNodeError(_explain(error)) from None
        if "malloc(" in text:
            raise UnsupportedNodeError(
                f"emx-onnx-cgen: it needs more than {_MOST_ON_STACK} bytes of memory of its own"
            )
        if foreign := _FOREIGN_TYPE.search(text[: text.index(f"_Bool {_ENTRY}_load(")]):
            raise UnsupportedNodeError(f"emx-onnx-cgen: it needs {foreign[0]}, a type that C99 lacks")
        return EmittedFunctions.read(text, self.prefix)


# Sizes as products, and indices, are converted where compilers warn of it (-Wconversion): as they say.
_CONVERSIONS = (
    (re.compile(r"(\b\w+|\([^()]*\)) \* sizeof\("), r"(size_t)\1 * sizeof("),
    (re.compile(r"\bidx_t (\w+) = (\w+(?:\[\w+\])+);"), r"idx_t \1 = (idx_t)\2;"),
)


@dataclass(frozen=True)
class EmittedFunctions:
    """Source of functions: its text, the prototypes, and names and operands by function number.

    An operand is ("i", 2) for the third input of a node, ("o", 0) for its first output. `one_pass` are
    functions that write each element of the result once and never read it, so that the result may lie
    over an operand that is read element by element.
    """

    source: str
    prototypes: tuple[str, ...]
    functions: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
    one_pass: frozenset[int]

    @staticmethod
    def read(text: str, prefix: str = "") -> "EmittedFunctions":
        """Take emitted text apart: the functions of nodes stay, the one that calls them all goes."""
        text = _NAME.sub(rf"{prefix}\g<0>", text) if prefix else text
        end = text.index(f"_Bool {_ENTRY}_load(")
        entry = text[text.index(f"void {_ENTRY}(", end) :]
        found = {match[2]: match[1] for match in _PROTOTYPE.finditer(text)}
        functions = []
        for match in _CALL.finditer(entry):
            names = [_TENSOR.search(each.strip()) for each in match[2].split(",")]
            if not all(names):
                raise UnsupportedNodeError(f"emx-onnx-cgen: it calls {match[1]} in another form")
            functions.append((match[1], tuple((m[2], int(m[3])) for m in names if m)))
        if [name for name, _ in functions] != list(found):
            raise UnsupportedNodeError("emx-onnx-cgen: it emits functions in another form")
        body = re.sub(r"/\*\n \* Generated by.*?\*/\n", "", text[:end], count=1, flags=re.DOTALL)
        prototypes = tuple(f"{each};" for each in found.values())
        one_pass = frozenset(int(match[1]) for match in _BODY.finditer(body) if _is_one_pass(match[2]))
        source = body.replace("EMX_NODE_FN void", "void")
        for pattern, stated in _CONVERSIONS:
            source = pattern.sub(stated, source)
        return EmittedFunctions(source, prototypes, tuple(functions), one_pass)

    def make_call(self, graph: ProgramGraph, number: int, function: int) -> Call:
        """Return the call of a function for a node."""
        node = graph.index.nodes[number]
        name, operands = self.functions[function]
        places = {"i": node.input, "o": node.output}
        return Call(name, tuple(places[side][at] for side, at in operands))

    def format_source(self, header: str = "nodes.h") -> str:
        """Return the text of a C file with all functions, which includes `header`."""
        made = f"/* Functions of nodes, emitted by emx-onnx-cgen {version('emx-onnx-cgen')}. */\n"
        return f'{made}#include "{header}"\n\n{_UNUSED}\n{self.source.strip()}\n'

    def format_header(self, suffix: str = "") -> str:
        """Return the text of the header that declares all functions; `suffix` is that of its name."""
        lines = "\n".join(self.prototypes)
        return (
            "/* Functions of nodes. Operands are dense tensors, results come last. */\n"
            f"#ifndef NODES{suffix}_H\n#define NODES{suffix}_H\n\n"
            "#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n\n"
            f"{lines}\n\n#endif\n"
        )


def _is_one_pass(body: str) -> bool:
    """Return whether the body of a function has the result once: on the left of an assignment."""
    return len(_RESULT.findall(body)) == 1 and len(_ASSIGNED.findall(body)) == 1


_WITH_BODY = {
    "If": "its branches make tensors of other types or extents, or of extents that are not known",
    "Loop": "nothing limits its iterations before a run, they decide an extent, or they add more than "
    f"{MOST_ADDED} nodes",
    "Scan": f"its steps are not known before a run, or add more than {MOST_ADDED} nodes",
}
"""Why operators are left that `write_out_operators` writes out elsewhere."""


def _describe_kind(graph: ProgramGraph, number: int) -> _NodeKind:
    node = graph.index.nodes[number]
    if list_bodies(node):
        raise UnsupportedNodeError(_WITH_BODY.get(node.op_type, "it has a body"))
    _check_texts(node)
    require_stored(graph, node)
    # A Sum of two is an Add, whose function writes in one pass.
    is_add = is_onnx(node) and node.op_type == "Sum" and len(node.input) == _OPERANDS_OF_ADD
    result = NodeProto(op_type="Add" if is_add else node.op_type, domain=node.domain)
    result.attribute.extend(sorted(node.attribute, key=lambda each: each.name))
    for attribute in result.attribute:
        attribute.ClearField("doc_string")
    written = set(written_outputs(graph.index, node))
    inputs, outputs, constants = [], [], []
    given = ["" if _is_left_out(graph, node, at) else name for at, name in enumerate(node.input)]
    for at, name in enumerate(given):
        result.input.append(f"n0_i{at}" if name else "")
        if name and graph.is_constant(name) and graph.sizes.count_bytes(name) <= _MOST_EMBEDDED:
            stored = view_as_stored(graph.get_constant(name), graph.get_dtype(name))
            constants.append(numpy_helper.from_array(stored, f"n0_i{at}"))
        elif name:
            inputs.append(_describe_value(f"n0_i{at}", graph, name))
    while result.input and not result.input[-1]:
        result.input.pop()
    for at, name in enumerate(node.output):
        result.output.append(f"n0_o{at}" if name in written else "")
        if name in written:
            outputs.append(_describe_value(f"n0_o{at}", graph, name))
    while result.output and not result.output[-1]:
        result.output.pop()
    return _NodeKind(result, tuple(inputs), tuple(outputs), tuple(constants))


def _is_left_out(graph: ProgramGraph, node: NodeProto, at: int) -> bool:
    """Return whether an input of Resize is empty, as exporters write one that is left out."""
    name = node.input[at]
    return node.op_type == "Resize" and at > 0 and bool(name) and not graph.sizes.count_bytes(name)


def _describe_value(name: str, graph: ProgramGraph, tensor: str) -> ValueInfoProto:
    dtype = find_stored_dtype(graph.get_dtype(tensor))
    return make_tensor_value_info(name, DTYPE_NUMBERS[dtype], graph.get_shape(tensor))


def _check_texts(node: NodeProto) -> None:
    for attribute in node.attribute:
        texts = [attribute.s, *attribute.strings, attribute.name.encode()]
        harmless = all(_HARMLESS.fullmatch(each.decode("utf-8", "replace")) for each in texts)
        if not harmless or _COMMENT_END in str(attribute) or _has_comment_end(attribute):
            raise UnsupportedNodeError(f"its attribute {attribute.name} has text that C cannot hold")


def _has_comment_end(attribute: AttributeProto) -> bool:
    tensors = (attribute.t, *attribute.tensors)
    return any(_COMMENT_END.encode() in tensor.raw_data for tensor in tensors)


def _make_key(kind: _NodeKind) -> bytes:
    parts = (kind.node, *kind.inputs, *kind.outputs, *kind.constants)
    return b"\0".join(part.SerializeToString(deterministic=True) for part in parts)


def _add_kind(graph: onnx.GraphProto, kind: _NodeKind, number: int) -> None:
    def rename(name: str) -> str:
        return f"n{number}{name[2:]}" if name else ""

    node = graph.node.add()
    node.CopyFrom(kind.node)
    node.input[:] = map(rename, node.input)
    node.output[:] = map(rename, node.output)
    for values, known in ((graph.input, kind.inputs), (graph.output, kind.outputs)):
        for value in known:
            added = values.add()
            added.CopyFrom(value)
            added.name = rename(value.name)
    for tensor in kind.constants:
        stored = graph.initializer.add()
        stored.CopyFrom(tensor)
        stored.name = rename(tensor.name)


@cache
def _load_compiler() -> Any:
    """Return the only compiler of this process, which keeps the templates that it has read."""
    try:
        return make_emx_compiler(
            model_name=_ENTRY, large_weight_threshold=0, large_temp_threshold_bytes=_MOST_ON_STACK
        )
    except ImportError:
        raise MissingRuntimeError(
            f"emx-onnx-cgen is not installed ({install_command('c')}), and C for this model needs it"
        ) from None


def _explain(error: Exception) -> str:
    if not type(error).__module__.startswith("emx_onnx_cgen"):
        return f"emx-onnx-cgen fails with {describe_error(error)}"
    text = str(error)
    for end in (" (while lowering", " (during ", " Hint:"):
        text = text.partition(end)[0]
    return f"emx-onnx-cgen: {shorten_text(text.rstrip('. '), _MAX_CHARACTERS)}"
