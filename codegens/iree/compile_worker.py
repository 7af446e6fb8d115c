"""The process that compiles, run as a program with the arguments FOLDER, FIRST and FLAGS.

For each file FIRST.onnx, FIRST + 1.onnx, ... in the folder it writes the compiled module, as FIRST.vmfb,
and prints a line: a JSON string, empty or what IREE says against the model. FLAGS are a JSON list of
IREE's flags.
"""

import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
from iree.compiler.api import Invocation, Output, Session, Source
from iree.compiler.tools.binaries import find_tool

from .iree_import import import_model


def main(folder: str, first: str, flags: str) -> None:
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
