"""ONNX's own inference and reference implementation, asked for single nodes."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from byoc.model._tensor_types import TensorType, read_type, write_type
from byoc.model.inference._elementwise_shapes import Types
from byoc.model.inference._known_node import KnownNode
from byoc.model.inference._moved_values import Array

_EVALUATED = frozenset(
    [
        "CastLike",
        "Clip",
        "Compress",
        "Cos",
        "CumSum",
        "DequantizeLinear",
        "Exp",
        "Flatten",
        "GatherElements",
        "GatherND",
        "Log",
        "Mean",
        "NonZero",
        "OneHot",
        "Pad",
        "Pow",
        "QuantizeLinear",
        "Reciprocal",
        "ReduceMean",
        "Relu",
        "Round",
        "ScatterElements",
        "ScatterND",
        "Sign",
        "Sin",
        "Sum",
        "TopK",
        "Trilu",
        "Unique",
        "Xor",
    ]
)
# Their outputs have an entry for each element and axis of their input at most.
_BOUNDED_BY_INPUT = frozenset({"Compress", "NonZero", "Unique"})


def is_evaluated(operator: str) -> bool:
    """Return whether ONNX's reference implementation is asked for an operator of its main domain."""
    return operator in _EVALUATED


def evaluate_node(
    node: KnownNode,
    kinds: Sequence[TensorType | None],
    opsets: Mapping[str, int],
    ir_version: int,
) -> Sequence[Array | None]:
    """Compute a node whose inputs are all known, by ONNX's reference implementation.

    `kinds` are the types of its outputs: what is not known to be small is not computed, since a few
    bytes in a file can stand for a tensor that does not fit into memory. Nothing is returned in that
    case.
    """
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415 - slow to import, seldom needed

    proto = node.proto
    feeds = {name: node.get_value(i) for i, name in enumerate(proto.input) if name}
    if not feeds or any(value is None or value.dtype == object for value in feeds.values()):
        return []
    small = all(kind is not None and kind.elements is not None for kind in kinds)
    if not small and proto.op_type not in _BOUNDED_BY_INPUT:
        return []
    outputs = [name for name in proto.output if name]
    graph = helper.make_graph(
        [proto],
        "node",
        [onnx.ValueInfoProto(name=name) for name in feeds],
        [onnx.ValueInfoProto(name=name) for name in outputs],
    )
    imports = _make_opset_imports(opsets)
    model = helper.make_model(graph, opset_imports=imports, ir_version=ir_version)
    try:
        with np.errstate(all="ignore"):  # a division by zero here is one when it runs
            made = ReferenceEvaluator(model).run(None, feeds)
    except Exception:  # an operator that the reference implementation lacks, or wrong attributes
        return []
    found = dict(zip(outputs, map(np.asarray, made), strict=True))
    return [found.get(name) for name in proto.output]


def infer_by_onnx(
    node: KnownNode, schema: onnx.defs.OpSchema, opsets: Mapping[str, int], ir_version: int
) -> Types:
    """Return the types of a node's outputs that ONNX infers from the types and values of its inputs.

    Nothing is returned if the type of an input is not known.
    """
    proto = node.proto
    names = [(i, name) for i, name in enumerate(proto.input) if name]
    types = {name: kind for i, name in names if (kind := node.get_type(i)) is not None}
    if len(types) < len({name for _, name in names}):
        return []
    values = {name: value for i, name in names if (value := node.get_value(i)) is not None}
    try:
        inferred = onnx.shape_inference.infer_node_outputs(
            schema,
            proto,
            {name: write_type(kind) for name, kind in types.items()},
            {n: numpy_helper.from_array(v, n) for n, v in values.items() if v.dtype != object},
            opset_imports=_make_opset_imports(opsets),
            ir_version=ir_version,
        )
    except (
        onnx.checker.ValidationError,  # an input that must not be left out is
        onnx.shape_inference.InferenceError,
        RuntimeError,
        ValueError,
    ):
        return []
    return [read_type(inferred[name]) if name in inferred else None for name in proto.output]


def _make_opset_imports(opsets: Mapping[str, int]) -> list[onnx.OperatorSetIdProto]:
    return [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
