"""Products of integers as ONNX defines them, where kernels of onnxruntime compute others.

On x86 without VNNI the kernels for uint8 by int8 add pairs of products in 16 bits, which saturate: two
times 255 * 127 give 32,767 (microsoft/onnxruntime#24220). Those for operands of one type are right
everywhere. So a product whose kernel a probe shows to be wrong gets its second operand in the type of
the first: values and zero point both move by 128, which changes no result.
"""

import platform
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from byoc._dataclasses import dataclass
from byoc.errors import InputError
from byoc.model import (
    EditableGraph,
    build_node,
    copy_without,
    inline_functions,
    list_bodies,
    read_array,
    walk_graphs,
    walk_nodes,
)

_CONTRIB = "com.microsoft"
_INT8, _UINT8 = TensorProto.INT8, TensorProto.UINT8
_TYPES: dict[int, str] = {_INT8: "int8", _UINT8: "uint8"}
_HALF = 128  # what int8 and uint8 differ by, of the same bits but the highest
_OPSET, _IR = 17, 8  # which every onnxruntime since 1.12 reads
_DEPTH = 67  # products of a probe: full vectors of all widths, and a rest
_LARGEST = 100.0  # units that the largest result of a probe is quantized to


@dataclass(frozen=True)
class _ProductForm:
    """The positions of an operator's operands among its inputs.

    `first` is None where the operator itself quantizes that operand, to uint8. `others` has the position
    of each second operand with that of its zero point.
    """

    first: int | None
    others: tuple[tuple[int, int], ...]


# From ONNX's operator schemas, and from onnxruntime's ContribOperators.md.
_FORMS = {
    "MatMulInteger": _ProductForm(0, ((1, 3),)),
    "ConvInteger": _ProductForm(0, ((1, 3),)),
    "QLinearMatMul": _ProductForm(0, ((3, 5),)),
    "QLinearConv": _ProductForm(0, ((3, 5),)),
    "QGemm": _ProductForm(0, ((3, 5),)),
    "MatMulIntegerToFloat": _ProductForm(0, ((1, 5),)),
    "DynamicQuantizeMatMul": _ProductForm(None, ((1, 3),)),
    "DynamicQuantizeLSTM": _ProductForm(None, ((1, 9), (2, 11))),
    "QAttention": _ProductForm(0, ((1, 7),)),
}
_QUANTIZING = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})
_FUSED = {"MatMul": "QLinearMatMul", "Gemm": "QGemm", "Conv": "QLinearConv"}
"""Operators between DequantizeLinear and QuantizeLinear, with what onnxruntime makes of them."""
# From ONNX's operator schemas: attributes that state the type of an output, and inputs that have it.
_STATING = {
    **{"Cast": "to", "BitCast": "to", "Constant": "value", "ConstantOfShape": "value"},
    **dict.fromkeys(("EyeLike", "Bernoulli", "SequenceEmpty"), "dtype"),
    **dict.fromkeys(
        ("BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix"), "output_datatype"
    ),
}
_TYPED_BY = {"CastLike": 1, "OneHot": 2, "QGemm": 8, "QLinearConv": 7, "QLinearMatMul": 7, "Where": 1}


def computes_in_integers(model: ModelProto) -> bool:
    """Return whether a model has quantized activations, or operators that compute in small integers.

    Weights alone may be stored as integers: an operator that computes in floats reads them.
    """
    scopes = (model.graph.node, *(function.node for function in model.functions))
    return any(
        node.op_type in _QUANTIZING or node.op_type in _FORMS or node.op_type.startswith("QLinear")
        for nodes in scopes
        for node in walk_nodes(nodes)
    )


def has_negative_scale(model: ModelProto) -> bool:
    """Return whether a model that computes in integers may have a scale below 0, as ONNX allows.

    A scale of a QuantizeLinear or DequantizeLinear that is not stored may be.
    """
    if not computes_in_integers(model):
        return False
    flat = inline_functions(model)
    for graph in walk_graphs(flat.graph):
        stored = {tensor.name: tensor for tensor in graph.initializer}
        for node in graph.node:
            scale = stored.get(_get(node, 1))
            if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
                continue
            if scale is None or scale.data_location == TensorProto.EXTERNAL:
                return True
            if numpy_helper.to_array(scale).astype(np.float64).min(initial=0.0) < 0:
                return True
    return False


def use_exact_products(model: ModelProto, folder: Path | None, fused: bool = False) -> ModelProto:
    """Return a model each of whose products of integers has a kernel that is right on this machine.

    A model that has them all is returned as it is; no given model is changed. With `fused`, weights
    behind a DequantizeLinear count as well, for sessions that fuse it with its reader. `folder` holds
    the external data. Raises InputError naming operator and machine where no kernel is right.
    """
    if not computes_in_integers(model):
        return model
    flat = inline_functions(model)
    if not any(_list_inexact(flat, fused)):
        return model
    result = copy_without(flat)
    _Retyping(folder, fused).edit_graph(result.graph, {})
    for op, first, other in _list_inexact(result, fused):
        raise InputError(f"{describe_machine()} computes {op} of {first} by {other} wrong")
    return result


def use_equal_types(model: ModelProto, folder: Path | None) -> ModelProto:
    """Return a model whose products of integers have operands of one type, for any machine to run."""
    flat = inline_functions(model)
    result = copy_without(flat)
    return result if _Retyping(folder, fused=False, always=True).edit_graph(result.graph, {}) else model


@cache
def find_inexact_kernels() -> tuple[str, ...]:
    """Return the kernels for products of integers that are wrong here, as `MatMulInteger uint8 int8`.

    Each operator is probed on each pair of types, a few milliseconds in all.
    """
    pairs = [("uint8", "int8"), ("int8", "uint8"), ("uint8", "uint8"), ("int8", "int8")]
    return tuple(
        f"{op} {first} {other}"
        for op, form in _FORMS.items()
        for first, other in pairs
        if (form.first is not None or first == "uint8") and not is_exact(op, first, other)
    )


@cache
def describe_machine() -> str:
    """Return the processor and the version of onnxruntime, for messages."""
    import onnxruntime  # noqa: PLC0415 - optional

    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration, UnicodeDecodeError):  # another system than Linux, or a thin one
        pass
    return f"onnxruntime {onnxruntime.__version__} on {name}"


def _list_inexact(model: ModelProto, fused: bool) -> Iterator[tuple[str, str, str]]:
    """Yield operator and types of each product whose kernel is wrong here; its functions are inlined."""
    for node, products in _walk_products(model.graph, {}, fused):
        for first, other, _ in products:
            kernel = _FUSED.get(node.op_type, node.op_type)
            if not is_exact(kernel, _TYPES[first], _TYPES[other]):
                yield node.op_type, _TYPES[first], _TYPES[other]


_Product = tuple[int, int, tuple[str, str]]
"""The types of both operands, and the names of the second one and its zero point."""


def _walk_products(
    graph: GraphProto, around: Mapping[str, int], fused: bool
) -> Iterator[tuple[NodeProto, list[_Product]]]:
    """Yield each node that multiplies small integers, with its products, in bodies as well."""
    scope = _Scope.of_graph(graph, around)
    for node in graph.node:
        for body in list_bodies(node):
            yield from _walk_products(body, scope.types, fused)
        found = scope.list_products(node, fused)
        if found:
            yield node, found
        scope.add_outputs(node)


@dataclass(frozen=True, eq=False)
class _Scope:
    """Element types by name, and the nodes of DequantizeLinear by what they make."""

    types: dict[str, int]
    dequantized: dict[str, NodeProto]

    @classmethod
    def of_graph(cls, graph: GraphProto, around: Mapping[str, int]) -> "_Scope":
        types = dict(around)
        for value in (*graph.input, *graph.output, *graph.value_info):
            kind = value.type
            while kind.WhichOneof("value") in ("sequence_type", "optional_type"):
                holder = kind.sequence_type if kind.HasField("sequence_type") else kind.optional_type
                kind = holder.elem_type
            if kind.tensor_type.elem_type:
                types[value.name] = kind.tensor_type.elem_type
        types.update((tensor.name, tensor.data_type) for tensor in graph.initializer)
        return cls(types, {})

    def add_outputs(self, node: NodeProto) -> None:
        """Add the types of a node's outputs: of quantizers, of casts, of bodies, else of an input.

        All that passes small integers on has their type: Reshape, Concat, MaxPool, sequences.
        """
        if node.op_type == "DequantizeLinear":
            self.dequantized[node.output[0]] = node
            return
        bodies = [self._find_body_types(node, body) for body in list_bodies(node)]
        if bodies:
            kinds = [next(filter(None, each), 0) for each in zip(*bodies, strict=False)]
        else:
            kinds = [self._find_type(node)] * len(node.output)
        for name, kind in zip(node.output, kinds, strict=False):
            if name:
                self.types.setdefault(name, kind)

    def _find_body_types(self, node: NodeProto, body: GraphProto) -> list[int]:
        """Return the types that a body gives the outputs of its node, 0 where they are not known."""
        inside = _Scope.of_graph(body, self.types)
        for each in body.node:
            inside.add_outputs(each)
        outputs = list(body.output)[1 if node.op_type == "Loop" else 0 :]  # first whether it goes on
        return [inside.types.get(each.name, 0) for each in outputs]

    def _find_type(self, node: NodeProto) -> int:
        """Return the type of what a node without bodies makes, 0 where it is not known."""
        attributes = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type in ("DynamicQuantizeLinear", "ImageDecoder"):
            return _UINT8
        if node.op_type == "QuantizeLinear":
            stated = attributes["output_dtype"].i if "output_dtype" in attributes else 0
            return self.types.get(_get(node, 2), 0) or stated or _UINT8
        stating = attributes.get(_STATING.get(node.op_type, ""))
        if stating is not None:
            return stating.i or stating.t.data_type
        reads = [*node.input[_TYPED_BY.get(node.op_type, 0) :], *node.input]
        return next((self.types[name] for name in reads if self.types.get(name) in _TYPES), 0)

    def list_products(self, node: NodeProto, fused: bool) -> list[_Product]:
        """Return the products of a node whose operands are both int8 or uint8, of one type or of two."""
        if fused and node.op_type in _FUSED:
            pair = [self.dequantized.get(name) for name in node.input[:2]]
            if len(pair) < 2 or None in pair:
                return []
            one, two = (self.types.get(each.input[0], 0) for each in pair if each is not None)
            assert pair[1] is not None
            return self._keep_small([(one, two, (pair[1].input[0], _get(pair[1], 2)))])
        form = _FORMS.get(node.op_type)
        if form is None:
            return []
        first = _UINT8 if form.first is None else self.types.get(_get(node, form.first), 0)
        named = [(_get(node, other), _get(node, point)) for other, point in form.others]
        return self._keep_small([(first, self.types.get(names[0], 0), names) for names in named])

    @staticmethod
    def _keep_small(found: list[_Product]) -> list[_Product]:
        return [each for each in found if each[0] in _TYPES and each[1] in _TYPES]


@dataclass(eq=False)
class _Retyping:
    """Gives second operands the type of the first ones, where the kernel is wrong or `always`."""

    folder: Path | None
    fused: bool
    always: bool = False

    def edit_graph(self, graph: GraphProto, around: Mapping[str, int]) -> bool:
        """Edit a graph and its bodies, and return whether there was something to edit.

        `around` has the types of what bodies capture.
        """
        scope = _Scope.of_graph(graph, around)
        editable = EditableGraph(graph)
        operands = _Operands(editable, self.folder)
        changed = False
        for node in editable.nodes:
            for body in list_bodies(node):
                changed |= self.edit_graph(body, scope.types)
            for first, other, names in scope.list_products(node, self.fused):
                if not self._is_wanted(node, first, other):
                    continue
                is_fused = node.op_type in _FUSED
                reader = scope.dequantized[node.input[1]] if is_fused else node
                editable.insert_before(reader, *operands.retype(reader, names, first))
                changed = True
            scope.add_outputs(node)
        editable.write_to(graph)
        editable.write_stored(graph)
        return changed

    def _is_wanted(self, node: NodeProto, first: int, other: int) -> bool:
        kernel = _FUSED.get(node.op_type, node.op_type)
        types = _TYPES[first], _TYPES[other]
        return first != other and (self.always or not is_exact(kernel, *types))


class _Operands:
    """The operands of a graph that are made in the other type, each once."""

    def __init__(self, graph: EditableGraph, folder: Path | None) -> None:
        self._graph, self._folder = graph, folder
        self._stored = {tensor.name: tensor for tensor in graph.graph.initializer}
        for node in graph.graph.node:
            stated = {a.name: a for a in node.attribute} if node.op_type == "Constant" else {}
            if "value" in stated:
                self._stored[node.output[0]] = stated["value"].t
            elif "value_floats" in stated:
                floats = np.array(stated["value_floats"].floats, np.float32)
                self._stored[node.output[0]] = numpy_helper.from_array(floats)
        self._made: dict[str, str] = {}

    def retype(self, node: NodeProto, names: tuple[str, str], kind: int) -> list[NodeProto]:
        """Have a node read an operand and its zero point in the type `kind`.

        Return the nodes that make them, to stand before it. A zero point that is left out is 0.
        """
        added: list[NodeProto] = []
        operand, point = names
        position = list(node.input).index(operand)
        at = 2 if node.op_type == "DequantizeLinear" else dict(_FORMS[node.op_type].others)[position]
        node.input.extend([""] * (at + 1 - len(node.input)))
        node.input[position] = self._move(operand, kind, added)
        node.input[at] = self._move(point, kind, added) if point else self._add_point(node, kind)
        return added

    def _move(self, name: str, kind: int, added: list[NodeProto]) -> str:
        """Return the name of a tensor moved by 128 into the type `kind`: the same but for one bit."""
        if name in self._made:
            return self._made[name]
        wanted = f"{name}_{_TYPES[kind]}"
        if name in self._stored:
            array = read_array(self._stored[name], self._folder).view(np.uint8) ^ np.uint8(_HALF)
            self._made[name] = self._graph.store(array.view(_TYPES[kind]), wanted)
            return self._made[name]
        made = self._made[name] = self._graph.names.new_tensor(wanted)
        moved = _HALF if kind == _UINT8 else -_HALF
        number = self._graph.store(np.array(moved, np.int32), f"{made}_offset")
        wide, sums = (self._graph.names.new_tensor(f"{made}_{part}") for part in ("wide", "sum"))
        added += [
            build_node("Cast", [name], [wide], to=TensorProto.INT32),
            build_node("Add", [wide, number], [sums]),
            build_node("Cast", [sums], [made], to=kind),
        ]
        return made

    def _add_point(self, node: NodeProto, kind: int) -> str:
        """Return the name of a new zero point, which was 0 before; of the scales' shape where needed."""
        moved = _HALF if kind == _UINT8 else -_HALF
        shape: tuple[int, ...] = ()
        if node.op_type == "DequantizeLinear" and node.input[1] in self._stored:
            shape = tuple(self._stored[node.input[1]].dims)
        return self._graph.store(np.full(shape, moved, _TYPES[kind]), f"{node.output[0]}_zero_point")


def _get(node: NodeProto, position: int) -> str:
    return node.input[position] if position < len(node.input) else ""


@cache
def is_exact(op: str, first: str, other: str) -> bool:
    """Return whether onnxruntime's kernel of a product is right here for operands of two types.

    Products of the ends of both types tell: their sums are known. True where there is no such kernel.
    """
    try:
        return _PROBES.get(op, _probe_product)(op, np.dtype(first), np.dtype(other))
    except _NoKernelError:
        return True


class _NoKernelError(Exception):
    """onnxruntime has no kernel for an operator on these types."""


def _probe_product(op: str, first: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Probe a product of matrices, or a convolution of one pixel, of the ends of both types."""
    ends, weights = _ends(first), _ends(other)
    a, b = np.repeat(ends[:, None], _DEPTH, 1), np.repeat(weights[None, :], _DEPTH, 0)
    exact = a.astype(np.int64) @ b.astype(np.int64)
    if op in ("ConvInteger", "QLinearConv"):
        a, b, exact = a.T[None, :, None, :], b.T[:, :, None, None], exact.T[None, :, None, :]
    one, zero, point = np.float32(1), first.type(0), other.type(0)
    scale = np.float32(np.abs(exact).max() / _LARGEST)
    rounded = np.rint(exact / scale)
    low, high = np.iinfo(first).min, np.iinfo(first).max
    match op:
        case "MatMulInteger" | "ConvInteger":
            return bool(np.array_equal(_run(op, [a, b]), exact))
        case "MatMulIntegerToFloat":
            made = _run(op, [a, b, one, one, zero, point])
            return bool(np.allclose(made, exact, rtol=1e-5))
        case "QGemm":
            made = _run(op, [a, one, zero, b, one, point, None, scale, zero])
        case _:
            made = _run(op, [a, one, zero, b, one, point, scale, zero])
    return bool(np.abs(made.astype(np.int64) - np.clip(rounded, low, high)).max() <= 1)


def _probe_dynamic(op: str, first: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Probe the product that quantizes its first operand, here ones, which become 255."""
    b = np.repeat(_ends(other)[None, :], _DEPTH, 0)
    a = np.ones((2, _DEPTH), np.float32)
    made = _run(op, [a, b, np.float32(1), other.type(0)])
    return bool(np.allclose(made, a @ b.astype(np.float32), rtol=1e-4))


def _probe_lstm(op: str, first: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Probe a quantized LSTM by the same one in floats."""
    size = 4
    scale, point = np.array([1e-3], np.float32), np.array([np.iinfo(other).max // 2], other)
    w, r = (np.full((1, depth, 4 * size), np.iinfo(other).max, other) for depth in (_DEPTH, size))
    x = np.ones((2, 1, _DEPTH), np.float32)
    made = _run(op, [x, w, r, *[None] * 5, scale, point, scale, point], hidden_size=size)
    real = [((each - point.astype(np.float32)) * scale[0]).transpose(0, 2, 1) for each in (w, r)]
    wanted = _run("LSTM", [x, *(each.astype(np.float32) for each in real)], "", hidden_size=size)
    return bool(np.abs(made - wanted).max() <= 1e-2)  # saturated sums are off by a tenth and more


def _probe_attention(op: str, first: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Probe a quantized Attention by the same one in floats."""
    size = 64
    x = np.full((1, 2, size), np.iinfo(first).max, first)
    w = np.repeat(np.resize(_ends(other), 3 * size)[None, :], size, 0)
    bias, one = np.zeros(3 * size, np.float32), np.float32(1e-3)
    made = _run(op, [x, w, bias, one, one, None, first.type(0), other.type(0)], num_heads=1)
    real = [each.astype(np.float32) * one for each in (x, w)]
    wanted = _run("Attention", [*real, bias], num_heads=1)
    return bool(np.abs(made - wanted).max() <= 1e-2 * np.abs(wanted).max())


_PROBES = {
    "DynamicQuantizeMatMul": _probe_dynamic,
    "DynamicQuantizeLSTM": _probe_lstm,
    "QAttention": _probe_attention,
}


def _ends(dtype: np.dtype[Any]) -> NDArray[Any]:
    limits = np.iinfo(dtype)
    return np.array([limits.max, limits.min], dtype)


def _run(op: str, inputs: list[Any], domain: str | None = None, **attributes: Any) -> NDArray[Any]:
    """Run one operator without optimizations, its first input given, the others stored."""
    import onnxruntime  # noqa: PLC0415 - optional

    if domain is None:
        is_standard = op in ("MatMulInteger", "ConvInteger", "QLinearConv", "QLinearMatMul")
        domain = "" if is_standard else _CONTRIB
    arrays = {f"i{i}": np.asarray(each) for i, each in enumerate(inputs) if each is not None}
    names = [f"i{i}" if f"i{i}" in arrays else "" for i in range(len(inputs))]
    given = arrays.pop("i0")
    node = build_node(op, names, ["made"], domain=domain, **attributes)
    kind = helper.np_dtype_to_tensor_dtype(given.dtype)
    graph = helper.make_graph(
        [node],
        "probe",
        [helper.make_tensor_value_info("i0", kind, given.shape)],
        [helper.make_empty_tensor_value_info("made")],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    imports = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_CONTRIB, 1)]
    model = helper.make_model(graph, ir_version=_IR, opset_imports=imports)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime's own exception types share no base but this
        raise _NoKernelError from error
    made: NDArray[Any] = session.run(None, {"i0": given})[0]
    return made
