"""A partitioned model's host graph, with regions that onnxruntime can neither enter nor move past."""

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

from byoc.model import walk_graphs

_TRANSPOSE = "TransposeOptimizer"
_CONDITION = "opaque_condition"
_FATAL_ONLY = 4


def hidden(model: ModelProto) -> ModelProto:
    """Return a model in which each region's call is an If that reads and makes the same tensors.

    Its condition is an input of the model, so that neither branch is ever chosen, and its branches hold
    nothing that a Transpose could be moved into: zeros, of a shape that only a run would tell.
    """
    result = ModelProto()
    result.CopyFrom(model)
    names = {(f.domain, f.name) for f in model.functions if f.domain.startswith("byoc.")}
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=False)
    types = {
        v.name: v.type
        for graph in walk_graphs(inferred.graph)
        for v in (*graph.input, *graph.output, *graph.value_info)
    }
    stored = {tensor.name for graph in walk_graphs(model.graph) for tensor in graph.initializer}
    for graph in walk_graphs(result.graph):
        for node in graph.node:
            if (node.domain, node.op_type) in names:
                reads = [n for n in dict.fromkeys(node.input) if n and n not in stored and n in types]
                node.CopyFrom(_if(node, reads, types))
    result.graph.input.append(helper.make_tensor_value_info(_CONDITION, onnx.TensorProto.BOOL, []))
    kept = [
        f
        for f in result.functions
        if (f.domain, f.name) not in names and not f.domain.startswith("byoc.")
    ]
    del result.functions[:]
    result.functions.extend(kept)
    return result


def _if(call: NodeProto, reads: Sequence[str], types: dict[str, onnx.TypeProto]) -> NodeProto:
    branches = {
        key: _branch(f"{call.name}_{key}", call, reads, types) for key in ("then_branch", "else_branch")
    }
    return helper.make_node("If", [_CONDITION], call.output, name=call.name, **branches)


def _branch(
    name: str, call: NodeProto, reads: Sequence[str], types: dict[str, onnx.TypeProto]
) -> GraphProto:
    nodes = []
    for i, read in enumerate(reads):
        nodes.append(helper.make_node("Cast", [read], [f"{name}_cast{i}"], to=onnx.TensorProto.FLOAT))
        nodes.append(helper.make_node("NonZero", [f"{name}_cast{i}"], [f"{name}_at{i}"]))
        nodes.append(helper.make_node("ReduceMax", [f"{name}_at{i}"], [f"{name}_n{i}"], keepdims=0))
    nodes.append(
        helper.make_node("Sum", [f"{name}_float{i}" for i in range(len(reads))], [f"{name}_sum"])
    )
    nodes[-1:-1] = [
        helper.make_node("Cast", [f"{name}_n{i}"], [f"{name}_float{i}"], to=onnx.TensorProto.FLOAT)
        for i in range(len(reads))
    ]
    nodes.append(helper.make_node("Cast", [f"{name}_sum"], [f"{name}_size"], to=onnx.TensorProto.INT64))
    outputs, stored = [], [numpy_helper.from_array(np.array([-1], np.int64), f"{name}_flat")]
    for i, output in enumerate(call.output):
        kind = types[output].tensor_type
        shape, made = f"{name}_shape{i}", f"{name}_{i}"
        if kind.HasField("shape"):
            rank = np.array([len(kind.shape.dim)], np.int64)
            stored.append(numpy_helper.from_array(rank, f"{name}_rank{i}"))
            nodes.append(helper.make_node("Expand", [f"{name}_size", f"{name}_rank{i}"], [shape]))
        else:  # a shape of no known length
            nodes.append(helper.make_node("Reshape", [f"{name}_at0", f"{name}_flat"], [shape]))
        zero = helper.make_tensor("zero", kind.elem_type, [1], [0])
        nodes.append(helper.make_node("ConstantOfShape", [shape], [made], value=zero))
        outputs.append(helper.make_value_info(made, types[output]))
    return helper.make_graph(nodes, name, [], outputs, stored)


def optimized(model: ModelProto, transposes: bool) -> ModelProto | None:
    """Return what onnxruntime's basic optimizations make of a model, with that of Transposes or not.

    That is done by a process of its own, since onnxruntime may end it; None when it fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder) / "given.onnx", Path(folder) / "made.onnx"
        onnx.save(model, given)
        without = [] if transposes else [_TRANSPOSE]
        command = [sys.executable, __file__, str(given), str(made), *without]
        failed = subprocess.run(command, check=False, capture_output=True).returncode
        return None if failed else onnx.load(made)


def _optimize(given: str, made: str, *without: str) -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _FATAL_ONLY
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = made
    onnxruntime.InferenceSession(
        given, options, providers=["CPUExecutionProvider"], disabled_optimizers=list(without)
    )


def count(model: ModelProto) -> tuple[int, int]:
    """Return how many Transposes a model's graphs hold, and the bytes that these move.

    An extent that is not known counts as 1.
    """
    inferred = onnx.shape_inference.infer_shapes(model)
    found, moved = 0, 0
    for graph in walk_graphs(inferred.graph):
        values = (*graph.input, *graph.output, *graph.value_info)
        types = {value.name: value.type.tensor_type for value in values}
        for node in graph.node:
            if node.op_type == "Transpose":
                found += 1
                kind = types.get(node.output[0]) or types.get(node.input[0])
                if kind is not None:
                    width = helper.tensor_dtype_to_np_dtype(kind.elem_type).itemsize
                    moved += prod(dim.dim_value or 1 for dim in kind.shape.dim) * width
    return found, moved


def inverse_pairs(model: ModelProto) -> int:
    """Return how many Transposes undo the one that they read and are not the user's own, both."""
    pairs = 0
    for graph in walk_graphs(model.graph):
        turned = {
            node.output[0]: node
            for node in graph.node
            if node.op_type == "Transpose" and any(a.name == "perm" for a in node.attribute)
        }
        for node in turned.values():
            before = turned.get(node.input[0])
            if before is None or not any(_ours(n) for n in (before, node)):
                continue
            first, second = ([*a.ints] for n in (before, node) for a in n.attribute if a.name == "perm")
            pairs += [first[axis] for axis in second] == sorted(first)
    return pairs


def _ours(node: NodeProto) -> bool:
    return any(entry.key == "byoc.boundary" for entry in node.metadata_props)


def operators(model: ModelProto) -> Counter[str]:
    """Return how many nodes of each operator the main graph has."""
    return Counter(node.op_type for node in model.graph.node)


if __name__ == "__main__":
    _optimize(*sys.argv[1:])
