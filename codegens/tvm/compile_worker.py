"""The process that compiles, run as a program with the arguments OPTIONS, FOLDER and FIRST.

For each file FIRST.onnx, FIRST + 1.onnx, ... in the folder it prints a line: a JSON string, empty or
what TVM says against the model. OPTIONS is a JSON object: `processor` and `level` of the codegen, and
`link`, whether the compiled library is to be written, as FIRST.so.
"""

import contextlib
import json
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from byoc.codegen import build_node, walk_graphs

FUNCTION = "main"
_PIPELINE = "default"  # each operator is a kernel of its own: what is right alone is right in a region
_DOMAINS = ("", "ai.onnx")
_HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
# What TVM adds up in the type that it reads, so that sums of many halves lose all but a few digits, or
# has kernels for in float32 alone.
# fmt: off
_WIDENED = {
    "Acos", "Acosh", "Asin", "Asinh", "Atan", "AveragePool", "Conv", "ConvTranspose", "Cosh",
    "CumSum", "Einsum", "Elu", "Gemm", "GlobalAveragePool", "GroupNormalization", "HardSigmoid",
    "InstanceNormalization", "LRN", "LayerNormalization", "LogSoftmax", "LpPool", "MatMul",
    "MeanVarianceNormalization", "PRelu", "Pow", "RMSNormalization", "ReduceL1", "ReduceL2",
    "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceProd", "ReduceSum", "ReduceSumSquare",
    "Selu", "Shrink", "Sinh", "Softmax", "Tan", "ThresholdedRelu",
}
# fmt: on


def compile_model(model: onnx.ModelProto, processor: str, level: int) -> Any:
    """Return the module that TVM compiles: its function `FUNCTION` takes the inputs in their order.

    Raises ValueError for a node of another domain, and whatever TVM's importer and compiler raise.
    """
    for node in model.graph.node:
        if node.domain not in _DOMAINS:  # the importer would take it for ONNX's of the same name
            raise ValueError(f"{node.domain}.{node.op_type} is not an operator of ONNX")
    _drop_unread_outputs(model)
    _define_nodes(model)
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")  # names that it changes
        module = relax.transform.DecomposeOpsForInference()(from_onnx(model))
        with tvm.transform.PassContext(opt_level=level):
            return tvm.compile(module, target=make_target(processor, level), relax_pipeline=_PIPELINE)


def _drop_unread_outputs(model: onnx.ModelProto) -> None:
    """Leave out the optional outputs that nothing reads, which the importer would have to make."""
    read = {name for graph in walk_graphs(model.graph) for node in graph.node for name in node.input}
    read |= {value.name for graph in walk_graphs(model.graph) for value in graph.output}
    opset = next((each.version for each in model.opset_import if each.domain in _DOMAINS), 1)
    for node in model.graph.node:
        known = onnx.defs.get_schema(node.op_type, opset, "").outputs
        optional = onnx.defs.OpSchema.FormalParameterOption.Optional
        while (
            len(known) >= len(node.output) > 1
            and known[len(node.output) - 1].option == optional
            and node.output[-1] not in read
        ):
            del node.output[-1]


def _define_nodes(model: onnx.ModelProto) -> None:
    """Write nodes that TVM computes otherwise than ONNX defines as others that mean the same."""
    graph = model.graph
    if not _has_halves(graph) and not _find_shifts(graph.node):  # types of a large model take long
        return
    inferred = onnx.shape_inference.infer_shapes(model).graph
    types = {each.name: each.data_type for each in graph.initializer}
    for value in (*inferred.value_info, *inferred.input, *inferred.output):
        types[value.name] = value.type.tensor_type.elem_type
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        name = f"{node.output[0]}/defined"
        if node.op_type in _WIDENED:
            nodes += _widen_halves(node, types, name)
        elif _find_shifts([node]):
            nodes += _bound_shift(node, types, name)
        else:
            nodes.append(node)
    copies = [*nodes]  # they are the graph's own until here
    del graph.node[:]
    graph.node.extend(copies)


def _has_halves(graph: onnx.GraphProto) -> bool:
    """Return whether halves are stored, read, or made by a node that names the type of its result."""
    stored = {each.data_type for each in graph.initializer}
    read = {each.type.tensor_type.elem_type for each in (*graph.input, *graph.output)}
    made = {
        number for node in graph.node for each in node.attribute for number in (each.i, each.t.data_type)
    }
    return not (stored | read | made).isdisjoint(_HALVES)


def _find_shifts(nodes: Iterable[onnx.NodeProto]) -> bool:
    return any(node.op_type == "BitShift" for node in nodes)


def _widen_halves(node: onnx.NodeProto, types: Mapping[str, int], name: str) -> Iterator[onnx.NodeProto]:
    """Yield a node between Casts, so that it computes halves in float32; itself where it has none."""
    wide = onnx.NodeProto()
    wide.CopyFrom(node)
    places = [i for i, each in enumerate(node.input) if types.get(each) in _HALVES]
    for i in places:
        wide.input[i] = f"{name}/{i}"
        yield build_node("Cast", [node.input[i]], [wide.input[i]], to=TensorProto.FLOAT)
    made = [i for i, each in enumerate(node.output) if places and types.get(each) in _HALVES]
    for i in made:
        wide.output[i] = f"{name}/made/{i}"
    yield wide
    for i in made:
        yield build_node("Cast", [wide.output[i]], [node.output[i]], to=types[node.output[i]])


def _bound_shift(node: onnx.NodeProto, types: Mapping[str, int], name: str) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a BitShift by any number of bits: LLVM leaves as many as there are open.

    Nothing is left but the sign, of signed numbers that are shifted right.
    """
    x, y = node.input
    dtype = helper.tensor_dtype_to_np_dtype(types[x])
    bits = dtype.itemsize * 8
    for what, value in (("bits", bits), ("most", bits - 1), ("zero", 0)):
        constant = numpy_helper.from_array(np.array(value, dtype))
        yield build_node("Constant", [], [f"{name}/{what}"], value=constant)
    yield build_node("Min", [y, f"{name}/most"], [f"{name}/by"])
    shift = onnx.NodeProto()
    shift.CopyFrom(node)
    shift.input[1] = f"{name}/by"
    if dtype.kind == "i" and any(each.s == b"RIGHT" for each in node.attribute):
        yield shift
        return
    shift.output[0] = f"{name}/shifted"
    yield shift
    yield build_node("Less", [y, f"{name}/bits"], [f"{name}/inside"])
    reads = [f"{name}/inside", f"{name}/shifted", f"{name}/zero"]
    yield build_node("Where", reads, [node.output[0]])


def make_target(processor: str, level: int) -> Any:
    """Return TVM's target of this machine's kind for a processor by LLVM's name."""
    return tvm.target.Target({"kind": "llvm", "mcpu": processor, "opt-level": level})


def main(options: str, folder: str, first: str) -> None:
    """Compile the models in a folder, from number `first`."""
    number = int(first)
    while (path := Path(folder) / f"{number}.onnx").exists():
        why = _compile_file(path, **json.loads(options))
        sys.stdout.write(f"{json.dumps(why)}\n")
        sys.stdout.flush()
        number += 1


def _compile_file(path: Path, processor: str, level: int, link: bool) -> str:
    """Compile one model, and return what TVM says against it."""
    try:
        made = compile_model(onnx.load(path), processor, level)
        relax.VirtualMachine(made, tvm.cpu())  # which finds out that a kernel is missing
        if link:
            made.export_library(str(path.with_suffix(".so")))
    except Exception as error:  # of TVM's importer, of its compiler, of the linker
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    main(*sys.argv[1:])
