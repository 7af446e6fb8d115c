"""The process that compiles, run as a program with the arguments FLAGS, FOLDER and FIRST.

For each file FIRST.onnx, FIRST + 1.onnx, ... in the folder it writes the compiled module, as FIRST.vmfb,
and prints a line: a JSON string, empty or what IREE says against the model. FLAGS are a JSON list of
IREE's flags.
"""

import io
import json
import os
import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import onnx.shape_inference
import onnx.version_converter
from iree.compiler.api import Invocation, Output, Session, Source
from iree.compiler.extras import onnx_importer
from iree.compiler.ir import Context
from iree.compiler.tools.binaries import find_tool

# Turn an ONNX model into MLIR, in the worker process, by IREE's importer.

FUNCTION = "region"
_OLDEST_OPSET = 17  # ONNX opset that IREE's importer reads without a conversion
_LARGE = 1024  # bytes of a constant that shapes do not depend on


def import_model(model: onnx.ModelProto) -> bytes:
    """Return a model as MLIR bytecode, with one function named `FUNCTION`.

    IREE lowers operators of older opsets wrongly or not at all, so the model is converted first. Raises
    whatever ONNX's version converter and IREE's importer raise.
    """
    model = _prepare_model(model)
    model.graph.name = FUNCTION
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # outputs that nobody reads have no type
        info = onnx_importer.ModelInfo(model)
        module = info.create_module(context=Context()).operation
        onnx_importer.NodeImporter.define_function(info.main_graph, module).import_all()
    module.verify()
    code = io.BytesIO()
    module.write_bytecode(code)
    return code.getvalue()


def _prepare_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with types for all tensors, of an opset that IREE knows.

    Large constants are put aside meanwhile, as inputs: ONNX's converter copies them several times, and a
    protobuf holds at most 2 GB.
    """
    large = [tensor for tensor in model.graph.initializer if tensor.ByteSize() > _LARGE]
    kept = [tensor for tensor in model.graph.initializer if tensor.ByteSize() <= _LARGE]
    inputs = list(model.graph.input)
    del model.graph.initializer[:], model.graph.input[:]
    model.graph.initializer.extend(kept)
    model.graph.input.extend(inputs)
    model.graph.input.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in large
    )
    for node in model.graph.node:
        while node.input and not node.input[-1]:  # the importer would hand it over as a value
            del node.input[-1]
    (opset,) = (each for each in model.opset_import if each.domain in {"", "ai.onnx"})
    if opset.version < _OLDEST_OPSET:
        model = onnx.version_converter.convert_version(model, _OLDEST_OPSET)
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.graph.initializer.extend(large)
    return model


def main(flags: str, folder: str, first: str) -> None:
    """Compile the models in a folder, from number `first`."""
    number = int(first)
    given = [*json.loads(flags), _write_linker(Path(folder))]
    while (path := Path(folder) / f"{number}.onnx").exists():
        why = _compile_file(path, given)
        sys.stdout.write(f"{json.dumps(why)}\n")
        sys.stdout.flush()
        number += 1


def _write_linker(folder: Path) -> str:
    """Write a linker for WebAssembly, and return the flag that names it.

    What a module calls of C's library, such as fmaxf, is there when it is loaded. IREE calls the linker
    by a path without arguments, and finds none by itself.
    """
    script = folder / "link"
    linker = shlex.quote(find_tool("iree-lld"))
    script.write_text(f'#!/bin/sh\nexec {linker} "$@" --allow-undefined --strip-all\n')
    script.chmod(0o700)
    return f"--iree-llvmcpu-wasm-linker-path={script}"


def _compile_file(path: Path, flags: list[str]) -> str:
    """Compile one model, and return what IREE says against it."""
    messages = path.with_suffix(".txt")
    with _redirect_messages(messages):
        try:
            code = import_model(onnx.load(path))
            with Session() as session:
                session.set_flags(*flags)
                done = _compile_code(session, code, path.with_suffix(".vmfb"))
        except Exception as error:  # of ONNX's converter, of IREE's importer, of its flags
            return str(error) or type(error).__name__
    return "" if done else messages.read_text(errors="replace") or "no reason is given"


def _compile_code(session: Session, code: bytes, path: Path) -> bool:
    """Compile MLIR to a file, and return whether IREE takes it."""
    with Invocation(session) as invocation:
        invocation.enable_console_diagnostics()
        source = Source.wrap_buffer(session, code)
        if not invocation.parse_source(source) or not invocation.execute():
            return False
        with Output.open_file(str(path)) as output:
            output.keep()
            invocation.output_vm_bytecode(output)
        return True


@contextmanager
def _redirect_messages(path: Path) -> Iterator[None]:
    """Write to a file what goes to the standard error of the process meanwhile, from C++ as well.

    Where the process ends on the way, the file has the reason.
    """
    kept = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


if __name__ == "__main__":
    main(*sys.argv[1:])
