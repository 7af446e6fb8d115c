"""The process that compiles, run as a program with the arguments OPTIONS, FOLDER and FIRST.

For each file FIRST.onnx, FIRST + 1.onnx, ... in the folder it prints a line: a JSON string, empty or
what TVM says against the model. OPTIONS is a JSON object: `processor` and `level` of the codegen, and
`link`, whether the compiled library is to be written, as FIRST.so.
"""

import contextlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from byoc.codegen import walk_graphs

FUNCTION = "main"
_PIPELINE = "default"  # each operator is a kernel of its own: what is right alone is right in a region
_DOMAINS = ("", "ai.onnx")


def compile_model(model: onnx.ModelProto, processor: str, level: int) -> Any:
    """Return the module that TVM compiles: its function `FUNCTION` takes the inputs in their order.

    Raises ValueError for a node of another domain, and whatever TVM's importer and compiler raise.
    """
    for node in model.graph.node:
        if node.domain not in _DOMAINS:  # the importer would take it for ONNX's of the same name
            raise ValueError(f"{node.domain}.{node.op_type} is not an operator of ONNX")
    _drop_unread_outputs(model)
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
