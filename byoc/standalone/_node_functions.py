"""C functions for operators without a kernel of byoc's, one for each kind of node, by emx-onnx-cgen.

The compiler gets a model in which no node reads what another one makes, so what it emits is a function
for each node and nothing else: memory between nodes is byoc's. Equal nodes share a function.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from typing import Any

import onnx
from onnx import AttributeProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper
from onnx.helper import make_tensor_value_info

from byoc.codegen import CompileError, define_emx_nodes, mend_emx_source
from byoc.errors import MissingRuntimeError, describe_error, shorten_text
from byoc.memory.reading import written_outputs
from byoc.model import DTYPE_NUMBERS, TensorType, is_onnx, list_bodies
from byoc.standalone._program_graph import Call, ProgramGraph, UnsupportedNodeError
from byoc.support import install_command

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

    def _emit(self, kinds: Sequence[_NodeKind]) -> "EmittedFunctions":
        model = onnx.ModelProto(ir_version=8)
        model.graph.name = "g"
        model.opset_import.extend(self.opsets)
        for number, kind in enumerate(kinds):
            _add_kind(model.graph, kind, number)
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

    def format_header(self) -> str:
        """Return the text of the header that declares all functions."""
        lines = "\n".join(self.prototypes)
        return (
            "/* Functions of nodes. Operands are dense tensors, results come last. */\n"
            "#ifndef NODES_H\n#define NODES_H\n\n#include <stdbool.h>\n#include <stdint.h>\n\n"
            f"{lines}\n\n#endif\n"
        )


def _is_one_pass(body: str) -> bool:
    """Return whether the body of a function has the result once: on the left of an assignment."""
    return len(_RESULT.findall(body)) == 1 and len(_ASSIGNED.findall(body)) == 1


def _describe_kind(graph: ProgramGraph, number: int) -> _NodeKind:
    node = graph.index.nodes[number]
    if list_bodies(node):
        raise UnsupportedNodeError("operators with bodies have no function in C")
    _check_texts(node)
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
            constants.append(numpy_helper.from_array(graph.get_constant(name), f"n0_i{at}"))
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
    kind: TensorType = graph.index.types[tensor]
    return make_tensor_value_info(name, DTYPE_NUMBERS[kind.dtype], graph.get_shape(tensor))


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
    """Return the only compiler of this process, as reading its templates takes a second."""
    try:
        from emx_onnx_cgen.compiler import Compiler, CompilerOptions  # noqa: PLC0415 - optional
    except ImportError:
        raise MissingRuntimeError(
            f"emx-onnx-cgen is not installed ({install_command('c')}), and C for this model needs it"
        ) from None
    return Compiler(
        CompilerOptions(
            model_name=_ENTRY, large_weight_threshold=0, large_temp_threshold_bytes=_MOST_ON_STACK
        )
    )


def _explain(error: Exception) -> str:
    if not type(error).__module__.startswith("emx_onnx_cgen"):
        return f"emx-onnx-cgen fails with {describe_error(error)}"
    text = str(error)
    for end in (" (while lowering", " (during ", " Hint:"):
        text = text.partition(end)[0]
    return f"emx-onnx-cgen: {shorten_text(text.rstrip('. '), _MAX_CHARACTERS)}"
