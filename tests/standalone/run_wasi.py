"""Run a WASI program by the package `wasmtime`, which may open files of the folder it is called in.

python run_wasi.py PROGRAM [ARGUMENT...]
"""

import sys

from wasmtime import Config, Engine, ExitTrap, Linker, Module, Store, WasiConfig


def run_program(program: str, arguments: list[str]) -> int:
    """Run a program; return its exit status."""
    engine = Engine(Config())
    linker, store = Linker(engine), Store(engine)
    linker.define_wasi()
    wasi = WasiConfig()
    wasi.argv = [program, *arguments]
    wasi.inherit_stdout()
    wasi.inherit_stderr()
    wasi.preopen_dir(".", ".")
    store.set_wasi(wasi)
    instance = linker.instantiate(store, Module.from_file(engine, program))
    try:
        instance.exports(store)["_start"](store)
    except ExitTrap as ended:
        return int(ended.code)
    return 0


if __name__ == "__main__":
    sys.exit(run_program(sys.argv[1], sys.argv[2:]))
