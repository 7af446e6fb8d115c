"""Emitters: single nodes, tables of functions, ONNX's definition where emx departs from it.

The library gets nodes that mean the same and that it computes right. What has no such nodes is mended in
the C that it emits, function by function: each has a comment with the operator before it. The codegen
`c` and programs of byoc.standalone both take it from here. The values of tests/codegens/test_c_values.py
show what is left.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeVar

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper
from onnx.inliner import inline_local_functions

from byoc._dataclasses import dataclass
from byoc.codegen._identical_regions import CanonicalNames
from byoc.codegen._interface import CompileError
from byoc.codegen.byoc_worker import EmitterTable
from byoc.errors import ByocError, Verdict
from byoc.model import build_node, extract_nodes, get_node_name, prepare_model

# Models of a single node, to ask a compiler about each node of a model.

T = TypeVar("T")


@dataclass(frozen=True)
class SingleNode:
    """A node of a model's graph as a model of its own, with the constants that it reads."""

    node: NodeProto
    model: ModelProto

    def standard_model(self) -> ModelProto:
        """Return the model in standard operators: each composite is replaced by its body."""
        return inline_local_functions(self.model) if self.model.functions else self.model


def node_names(nodes: Iterable[NodeProto]) -> list[str]:
    """Return the nodes' names for a CompileError: their names, or else their first outputs."""
    return [get_node_name(node) for node in nodes]


def split_into_nodes(model: ModelProto) -> Iterator[SingleNode]:
    """Yield each node of a model's graph, in order. The model must hold all its data.

    Raises InputError when the model is not valid.
    """
    index = prepare_model(model, model.graph.name or "the model").index
    for position, node in enumerate(index.nodes):
        name = node.name or node.op_type
        yield SingleNode(node, extract_nodes(index, [position], name, index.type_protos))


def check_each_node(model: ModelProto, check: Callable[[SingleNode], T]) -> list[T]:
    """Return the result of `check` for each node of a model's graph, in order.

    Nodes that differ only in the names of their tensors are checked once. Raises as `split_into_nodes`.
    """
    keys: list[bytes] = []
    results: dict[bytes, T] = {}
    for single in split_into_nodes(model):
        keys.append(_similarity_key(single))
        if keys[-1] not in results:
            results[keys[-1]] = check(single)
    return [results[key] for key in keys]


def find_refused_nodes(
    load: Callable[[], ModelProto], check: Callable[[ModelProto], Sequence[Verdict]]
) -> list[str]:
    """Return the names of the nodes of a model that a codegen refuses alone; none if it cannot tell."""
    try:
        model = load()
        verdicts = check(model)
    except ByocError:
        return []
    return node_names(node for node, yes in zip(model.graph.node, verdicts, strict=True) if not yes)


def _similarity_key(single: SingleNode) -> bytes:
    """Return a key that is equal for nodes that differ only in the names of their tensors."""
    twin = ModelProto()
    twin.CopyFrom(single.model)
    CanonicalNames().rename_graph(twin.graph)
    return twin.SerializeToString(deterministic=True)


# The table of functions of an emitter, for codegens in this Python.


class Emitters(EmitterTable[T]):
    """A table of functions that emit code for an operation, by operator or composite.

    `emit = Emitters()`, `@emit.op("Conv")` or `@emit.composite("conv_relu")` over each function, and
    `emit(region)` calls them in order of execution.
    """

    refusal = CompileError


_ROW_HARDMAX = 13
"""The first operator set in which Hardmax does not take its input for a matrix (ONNX, Hardmax)."""
_BYTE = 8  # bits
_SCALES, _ZERO_POINTS = 2, 3  # inputs of MatMulNBits
_PADDED_KEYS = 6  # input of Attention
_OUTPUT_SHAPE = 2  # input of MaxUnpool


class _TemplateOnUse:
    """A template of emx-onnx-cgen, which is read when something of it is asked for."""

    def __init__(self, read: Callable[[], Any]) -> None:
        self._read = cache(read)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._read(), name)


def make_emx_compiler(**options: Any) -> Any:
    """Return a compiler of emx-onnx-cgen with these options.

    It would read its 170 templates before it emits a line, which takes 2 to 3 processor seconds; most
    models need a few, so each is read when it is used. Raises ImportError where it is not installed.
    """
    from emx_onnx_cgen.compiler import Compiler, CompilerOptions  # noqa: PLC0415 - optional

    compiler = Compiler(CompilerOptions(**options))
    templates = getattr(getattr(compiler, "_emitter", None), "_env", None)
    if templates is not None:  # a later release may keep them elsewhere, and is as slow as it is
        read = templates.get_template
        templates.get_template = lambda *given: _TemplateOnUse(partial(read, *given))
    return compiler


def define_emx_nodes(model: onnx.ModelProto) -> None:
    """Replace nodes, in a model that the caller owns, by others that the library computes right.

    Raises CompileError, naming the node, for what it computes wrong in any form.
    """
    graph = model.graph
    opset = next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 1)
    stored = {tensor.name: tensor for tensor in graph.initializer}
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        reason = _find_refusal(node, stored, opset)
        if reason:
            raise CompileError(reason, node_names([node]))
        change = _CHANGES.get((node.domain, node.op_type))
        graph.node.extend([node] if change is None else change(node, graph, stored))


def _find_refusal(node: NodeProto, stored: Mapping[str, TensorProto], opset: int) -> str:
    """Return why the library cannot compute a node right, "" where it can."""
    is_cubic = _read(node, "mode", b"") in (b"cubic", b"bicubic")
    is_computed = len(node.input) > 1 and node.input[1] != "" and node.input[1] not in stored
    may_be_none = is_computed and bool(_read(node, "noop_with_empty_axes", 0))
    wrong = {
        "Resize of tf_half_pixel_for_nn": node.op_type == "Resize"
        and _read(node, "coordinate_transformation_mode", b"") == b"tf_half_pixel_for_nn",
        "cubic GridSample with padding of borders": node.op_type == "GridSample"
        and is_cubic
        and _read(node, "padding_mode", b"") == b"border",
        "GridSample of the nearest with padding by reflection": node.op_type == "GridSample"
        and _read(node, "mode", b"") == b"nearest"
        and _read(node, "padding_mode", b"") == b"reflection",
        "causal Attention with padded keys": node.op_type == "Attention"
        and bool(_read(node, "is_causal", 0))
        and _is_given(node, _PADDED_KEYS),
        "MaxUnpool to a given shape": node.op_type == "MaxUnpool" and _is_given(node, _OUTPUT_SHAPE),
        "SpaceToDepth of the mode CRD": node.op_type == "SpaceToDepth"
        and _read(node, "mode", b"") == b"CRD",
        "Unique along an axis": node.op_type == "Unique" and _read(node, "axis", None) is not None,
        f"Hardmax of operator set {opset}": node.op_type == "Hardmax" and opset < _ROW_HARDMAX,
        f"{node.op_type} over axes that are computed": node.op_type in _NOT_REDUCED
        and (may_be_none or (is_computed and node.op_type == "ReduceLogSumExp")),
    }
    found = next((what for what, holds in wrong.items() if holds and not node.domain), "")
    return f"emx-onnx-cgen computes a {found} wrong" if found else ""


def _is_given(node: NodeProto, position: int) -> bool:
    return len(node.input) > position and bool(node.input[position])


_NOT_REDUCED = {
    "ReduceL1": "Abs",
    "ReduceL2": "Abs",
    "ReduceLogSum": "Log",
    "ReduceLogSumExp": "Identity",
    "ReduceSumSquare": "Mul",
}
"""What is left of reductions without axes; of the others the library makes a copy, as is right."""


def _leave_unreduced(
    node: NodeProto, graph: GraphProto, stored: Mapping[str, TensorProto]
) -> Iterator[NodeProto]:
    """Yield a reduction, or what it does to each element where it has no axes."""
    axes = stored.get((*node.input, "")[1])
    is_empty = len(node.input) == 1 or not node.input[1] or (axes is not None and 0 in axes.dims)
    if not is_empty or not _read(node, "noop_with_empty_axes", 0) or _read(node, "axes", ()):
        yield node
        return
    op = _NOT_REDUCED[node.op_type]
    operands = [node.input[0]] * (2 if op == "Mul" else 1)
    yield build_node(op, operands, node.output, node.name)


def _leave_out_bias(
    node: NodeProto, graph: GraphProto, stored: Mapping[str, TensorProto]
) -> Iterator[NodeProto]:
    """Yield a Gemm, without its C where that is multiplied by 0, since 0 times NaN would stay."""
    if not _read(node, "beta", 1.0):
        del node.input[2:]
    yield node


def _leave_out_direction(
    node: NodeProto, graph: GraphProto, stored: Mapping[str, TensorProto]
) -> Iterator[NodeProto]:
    """Yield a recurrent node without the usual direction: the library reads none that is stated."""
    if _read(node, "direction", b"") == b"forward":
        kept = [each for each in node.attribute if each.name != "direction"]
        del node.attribute[:]
        node.attribute.extend(kept)
    yield node


def _shape_scales(
    node: NodeProto, graph: GraphProto, stored: Mapping[str, TensorProto]
) -> Iterator[NodeProto]:
    """Yield a MatMulNBits with a row of scales and of zero points for each column of weights.

    The library takes flat ones for one number a column.
    """
    width, count, block, bits = (int(_read(node, name, 4)) for name in ("K", "N", "block_size", "bits"))
    blocks = -(-width // block)
    ranks = {each.name: len(each.dims) for each in graph.initializer}
    for value in (*graph.input, *graph.value_info):
        ranks[value.name] = len(value.type.tensor_type.shape.dim)
    packed = {_SCALES: blocks, _ZERO_POINTS: -(-blocks * bits // _BYTE)}
    for position, extent in packed.items():
        name = (*node.input, "", "")[position]
        if not name or ranks.get(name) != 1:
            continue
        if position == _ZERO_POINTS and _is_float(name, graph):
            extent = blocks  # noqa: PLW2901 - one number each, not packed
        shape, made = f"{name}.extents.{node.output[0]}", f"{name}.rows.{node.output[0]}"
        graph.initializer.append(helper.make_tensor(shape, TensorProto.INT64, [2], [count, extent]))
        yield build_node("Reshape", [name, shape], [made])
        node.input[position] = made
    yield node


def _is_float(name: str, graph: GraphProto) -> bool:
    """Return whether a tensor with a stored value or a known type is of floats."""
    kinds = {each.name: each.data_type for each in graph.initializer}
    kinds |= {each.name: each.type.tensor_type.elem_type for each in (*graph.input, *graph.value_info)}
    return kinds.get(name) != TensorProto.UINT8


def _read(node: NodeProto, name: str, default: Any) -> Any:
    """Return the value of a node's attribute, or the default where it is not stated."""
    found = next((each for each in node.attribute if each.name == name), None)
    return default if found is None else helper.get_attribute_value(found)


_Change = Callable[[NodeProto, GraphProto, Mapping[str, TensorProto]], Iterator[NodeProto]]
_CHANGES: Mapping[tuple[str, str], _Change] = {
    **{("", op): _leave_unreduced for op in _NOT_REDUCED},
    ("", "Gemm"): _leave_out_bias,
    ("", "GRU"): _leave_out_direction,
    ("", "RNN"): _leave_out_direction,
    ("com.microsoft", "MatMulNBits"): _shape_scales,
}

_FUNCTION = re.compile(
    r"^/\*\n \* Node \d+:\n \* OpType: (?P<op>\S+)\n.*?\*/\n.*?(?=^/\*\n \* Node |^_Bool )",
    re.MULTILINE | re.DOTALL,
)
"""A node's function, with the comment and the helpers before it."""
_START = re.compile(r"^(static inline |/\*\n \* Node )", re.MULTILINE)
_HELPER = re.compile(
    r"^static inline \S+ ref_scalar_(?P<type>[a-z]+\d+)_(?P<name>\w+)\([^)]*\) \{\n(?P<body>.*?)^\}\n",
    re.MULTILINE | re.DOTALL,
)
"""A function of one element, such as `static inline float ref_scalar_f32_relu(float a) {`."""
_TYPES = {"f16": "_Float16", "f32": "float", "f64": "double"}
_REALS = """
/* fmax and fmin return the number beside NaN; ONNX's Max, Min and their kin return NaN. */
static inline {type} region_{name}_maximum({type} a, {type} b) {{
    return a != a || a > b ? a : b;
}}

static inline {type} region_{name}_minimum({type} a, {type} b) {{
    return a != a || a < b ? a : b;
}}

/* The logarithm of e^a + e^b, of which neither has to be finite. */
static inline {type} region_{name}_add_exponents({type} a, {type} b) {{
    const {type} most = region_{name}_maximum(a, b), least = region_{name}_minimum(a, b);
    return isinf(most) ? most : most + ({type})log1p(exp((double)least - (double)most));
}}
"""
_WHOLE = """
/* Powers of whole numbers wrap as products do. */
static inline uint64_t region_power(uint64_t base, uint64_t exponent) {
    uint64_t made = 1;
    for (; exponent > 0; exponent >>= 1, base *= base) {
        made *= exponent & 1 ? base : 1;
    }
    return made;
}

static inline uint64_t region_signed_power(int64_t base, int64_t exponent) {
    if (exponent >= 0) {
        return region_power((uint64_t)base, (uint64_t)exponent);
    }
    return base == 1 ? 1 : base == -1 ? region_power((uint64_t)base, (uint64_t)exponent & 1) : 0;
}

/* What is behind the point is cut off. */
static inline uint64_t region_real_power(int64_t base, double exponent) {
    const double made = pow((double)base, exponent);
    if (exponent == floor(exponent) && fabs(exponent) < 9e18) {
        return region_signed_power(base, (int64_t)exponent);
    }
    return fabs(made) < 9e18 ? (uint64_t)(int64_t)made : (uint64_t)INT64_MIN;
}

/* Ends of slices may be any int64; no axis is this long. */
static inline idx_t region_index(int64_t given) {
    const int64_t most = 1 << 30;
    return (idx_t)(given > most ? most : given < -most ? -most : given);
}
"""
_LARGEST = r"\1    return (a > b) || ((a == b) && (ai < bi)) || ((a != a) && ((b == b) || (ai < bi)));"
_LEAST = r"\1    return (a < b) || ((a == b) && (ai < bi)) || ((b != b) && ((a == a) || (ai < bi)));"
_MAXIMUM = ((r"\bref_scalar_(f\d+)_(maximum|minimum)\(", r"region_\1_\2("),)
_EXTREME = ((r"if \((.+) ([<>]) (acc|\*out_ptr)\) \3 = \1;", r"if (\1 \2 \3 || \1 != \1) \3 = \1;"),)
_MENDED: Mapping[str, Sequence[tuple[str, str]]] = {
    **dict.fromkeys(("Max", "Min", "MaxPool", "GlobalMaxPool"), _MAXIMUM + _EXTREME),
    # A bound that is left out is the limit of the type (ONNX, Clip).
    "Clip": (
        *_MAXIMUM,
        (r"(const float \w+_value = -?)INFINITY;", r"\g<1>3.402823466e+38f;"),
        (r"(const double \w+_value = -?)INFINITY;", r"\g<1>1.7976931348623157e+308;"),
        (r"(const _Float16 \w+_value = -?)INFINITY;", r"\g<1>65504;"),
    ),
    **dict.fromkeys(("ReduceMax", "ReduceMin"), _EXTREME),
    "ReduceLogSumExp": (
        (r"acc = 0[.0f]*;", "acc = -INFINITY;"),
        (r"acc \+= ref_scalar_(f\d+)_exp\((.+)\);", r"acc = region_\1_add_exponents(acc, \2);"),
        (r"ref_scalar_f\d+_log\(acc\)", "acc"),
    ),
    # float32 is computed, and rounded and limited as float16, which has not all integers of 16 bits.
    "QuantizeLinear": (
        (r"\bref_scalar_f16_nearbyint\(", "nearbyintf("),
        (r"\bref_scalar_f16_maximum\(", "fmaxf("),
        (r"\bref_scalar_f16_minimum\(", "fminf("),
    ),
    # A step of a sequence that is read from its end makes the result of that place.
    "LSTM": (
        (r"\[step\](\[dir\]\[b\]\[h\] = h_new;)", r"[t]\1"),
        (r"\[step\](\[dir\]\[h\] = h_new;)", r"[t]\1"),
    ),
    # C leaves a shift by all bits and more open.
    "BitShift": ((r"= (\S+) (<<|>>) (\S+);", r"= (\3) < 8 * sizeof(\1) ? \1 \2 \3 : 0;"),),
    # A row of scores that are no numbers has weights that are none; one that is masked has none at all.
    "Attention": (
        (r"if \(max_score != -INFINITY\)", "if (max_score != -INFINITY || scores[ki] != scores[ki])"),
    ),
    "Slice": ((r"((?:start|end|step)_value) = (\w+\[i\]);", r"\1 = region_index(\2);"),),
    # ONNX does not say where a place is that is not finite; onnxruntime takes it for -1.
    "GridSample": (
        (r"(const double grid_\d) = \(double\)(.+);", r"\1 = isfinite(\2) ? (double)\2 : -1.0;"),
    ),
    # NaN is the greatest, as numpy sorts it: an order that has no place for it depends on where it is.
    "TopK": (
        (r"(_better\((?:float|double|_Float16) .*\n)    return \(a > b\).*;", _LARGEST),
        (r"(_better\((?:float|double|_Float16) .*\n)    return \(a < b\).*;", _LEAST),
    ),
}
"""The texts in the functions of operators that are replaced, as regular expressions."""
_REAL_EXPONENT = re.compile(r"const u?int\d+_t (\w+)[^,]*, const (?:float|double) ")


def mend_emx_source(source: str) -> str:
    """Return emitted C with the functions mended that compute otherwise than ONNX defines."""
    mended = _FUNCTION.sub(_mend_function, _HELPER.sub(_mend_helper, source))
    used = [name for name in _TYPES if f"region_{name}_" in mended]
    added = "".join(_REALS.format(name=name, type=_TYPES[name]) for name in used)
    if re.search(r"\bregion_(?:\w*power|index)\(", mended):
        added += _WHOLE
    start = _START.search(mended)
    if not added or start is None:
        return mended
    head = "#include <stdint.h>\n#include <math.h>\n"
    return f"{mended[: start.start()]}{head}{added}\n{mended[start.start() :]}"


def _mend_helper(match: re.Match[str]) -> str:
    """Return a function of one element, mended."""
    whole, kind, name, body = match[0], match["type"], match["name"], match["body"]
    if kind in _TYPES:
        if name == "relu":
            return whole.replace(body, "    return a < 0 ? 0 : a;\n")
        if name.startswith(("hardsigmoid", "hardswish")):
            whole = re.sub(r"\bfmaxf?\(", f"region_{kind}_maximum(", whole)
            whole = re.sub(r"\bfminf?\(", f"region_{kind}_minimum(", whole)
            return re.sub(r"return a \* clamped / (\S+);", r"return a * (clamped / \1);", whole)
    elif name == "pow":
        power = "region_power" if kind.startswith("u") else "region_signed_power"
        return whole.replace(body, f"    return {power}(a, b);\n")
    return whole


def _mend_function(match: re.Match[str]) -> str:
    """Return the function of a node, mended."""
    text = match[0]
    for pattern, replacement in _MENDED.get(match["op"], ()):
        text = re.sub(pattern, replacement, text)
    if match["op"] == "BitShift" and "uint" not in text:  # a negative number has its sign in all bits
        text = re.sub(r"\? (\S+) >> (\S+) : 0;", r"? \1 >> \2 : \1 < 0 ? -1 : 0;", text)
    if match["op"] == "Pow" and _REAL_EXPONENT.search(text):
        text = re.sub(r"\bref_scalar_[iu]\d+_pow\(", "region_real_power(", text)
    return text
