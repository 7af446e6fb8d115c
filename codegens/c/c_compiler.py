"""Options of the codegen `c`.

Compile C to a shared library with the C compiler of the system.
"""

import ctypes
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Literal

import onnx

from byoc.codegen import CompileError, Fit, MissingRuntimeError, read_options, refuse, shorten_text


@dataclass(frozen=True)
class COptions:
    """Options of the codegen `c`: the command of the C compiler, and flags for optimization.

    Both run what they name, flags too (`-fplugin=`, `-wrapper`), so they come from the user alone. The
    defaults are environment variables, which so decide when a bundle is loaded, too.
    """

    cc: str = field(
        default_factory=lambda: os.environ.get("BYOC_CC", "cc"),
        metadata={"help": "the C compiler's command; by default $BYOC_CC, or cc", "executes": True},
    )
    cflags: str = field(
        default_factory=lambda: os.environ.get("BYOC_CFLAGS", "-O2"),
        metadata={"help": "flags for optimization; by default $BYOC_CFLAGS, or -O2", "executes": True},
    )

    def __post_init__(self) -> None:
        """Raise ValueError for an empty command, and for flags that cannot be split."""
        if not shlex.split(self.cc):
            raise ValueError("cc is empty, but must name a compiler")
        shlex.split(self.cflags)

    @property
    def is_for_this_cpu(self) -> bool:
        """Whether the library runs only on CPUs like this one."""
        return "native" in self.cflags


# Each node's function is called once, so all would be inlined into one, which is slow to optimize:
# 910 nodes take 10 s instead of 3.5, for code that is a tenth faster.
_APART = "-DEMX_NODE_FN=static __attribute__((noinline))"
_MAX_CHARACTERS = 300  # of a compiler's message in a sentence
# The environment variables of GCC and Clang that change what a source becomes.
_VARIABLES = (
    *("CPATH", "C_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX"),
    *("CCC_OVERRIDE_OPTIONS", "SDKROOT", "MACOSX_DEPLOYMENT_TARGET", "LD_LIBRARY_PATH"),
)
_NEWER = {
    "_BitInt": "it has no types of 2 or 4 bits (GCC 14 and Clang 16 do)",
    "__bf16": "it has no type bfloat16 (GCC 13 and Clang 17 do)",
}
_USES = {"_BitInt": "unsigned _BitInt(4) x;", "__bf16": "__bf16 x;"}


def compile_library(source: bytes, options: COptions) -> bytes:
    """Compile a source and return the shared library.

    Raises CompileError if the compiler refuses, and MissingRuntimeError if there is none.
    """
    with tempfile.TemporaryDirectory(prefix="byoc-") as folder:
        (Path(folder) / "region.c").write_bytes(source)
        flags = ["-shared", "-fPIC", "-w", _APART, *shlex.split(options.cflags)]
        command = [*shlex.split(options.cc), *flags, "-o", "region.so", "region.c", "-lm"]
        ran = _run_compiler(command, options, folder)
        if ran.returncode != 0:
            why = f"'{options.cc}' refuses the C source: {_first_error(ran.stderr)}"
            raise CompileError(why, lasting=False)  # or the disk is full, or memory ran out
        return (Path(folder) / "region.so").read_bytes()


def find_lacking_type(source: str, options: COptions) -> str:
    """Return the reason why a C compiler refuses the types of a source; empty if it does not."""
    lacking = (why for name, why in _NEWER.items() if name in source and not _has_type(name, options))
    return next((f"'{options.cc}' refuses the C source: {why}" for why in lacking), "")


@cache
def _has_type(name: str, options: COptions) -> bool:
    """Return whether the compiler knows a type of newer ones. Unless it says otherwise, it does."""
    command = [
        *shlex.split(options.cc),
        *shlex.split(options.cflags),
        "-w",
        "-fsyntax-only",
        "-x",
        "c",
        "-",
    ]
    try:
        ran = _run_compiler(command, options, given=_USES[name])
    except MissingRuntimeError:
        return True
    return ran.returncode == 0 or name not in ran.stderr


def compiler_version(options: COptions) -> str:
    """Return the version line of the compiler. Raises MissingRuntimeError if there is none."""
    lines = _run_compiler([*shlex.split(options.cc), "--version"], options).stdout.splitlines()
    return lines[0] if lines else "unknown"


def describe_compiler(options: COptions) -> dict[str, str]:
    """Describe the compiler, as far as a library depends on it. Raises as `compiler_version`."""
    path = shutil.which(shlex.split(options.cc)[0]) or ""
    variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    return {"version": compiler_version(options), "path": path, **variables}


_CPU = "cpu"
_CROSS = "cross"
_MACHINES = {
    **{3: "i386", 8: "mips", 20: "ppc", 21: "ppc64", 22: "s390x", 40: "arm", 42: "sh", 62: "x86_64"},
    **{94: "xtensa", 164: "hexagon", 183: "aarch64", 195: "arc", 243: "riscv", 258: "loongarch"},
}
"""The names of machines by their numbers in ELF headers (e_machine of the System V ABI)."""


def library_stamp(library: bytes, options: COptions) -> dict[str, str]:
    """Return the properties of a computer that a shared library runs on.

    They are those of this computer, unless a cross compiler made the library for another machine.
    """
    machine = find_other_machine(library, Path(sys.executable).read_bytes()[:_HEADER])
    if machine:
        return {"machine": machine, "system": "Linux", _CROSS: "true"}
    return _computer_stamp(options.is_for_this_cpu)


_HEADER = 20  # bytes of an ELF file up to the number of its machine


def find_other_machine(library: bytes, own: bytes) -> str:
    """Return the machine of an ELF library where it is another than that of an `own` ELF program.

    Otherwise, and for other formats of files, it is empty.
    """
    magic = b"\x7fELF"
    if not library.startswith(magic) or (own.startswith(magic) and _machine(library) == _machine(own)):
        return ""
    width, order, number = _machine(library)
    name = _MACHINES.get(number, f"ELF machine {number}")
    return name if name in {"x86_64", "aarch64"} else f"{name}, {width} bits, {order} endian"


def _machine(header: bytes) -> tuple[int, Literal["little", "big"], int]:
    """Return the width, byte order and number of the machine that an ELF header is for."""
    order: Literal["little", "big"] = "big" if header[5] == 2 else "little"
    return 32 * header[4], order, int.from_bytes(header[18:20], order)


def is_cross_compiled(stored: Mapping[str, str]) -> bool:
    """Return whether a cross compiler made the library with a stored stamp."""
    return _CROSS in stored


def find_misfit(stored: Mapping[str, str]) -> str:
    """Return why a library with a stored stamp is not for this computer, as a sentence; "" if it is."""
    for name, mark in _computer_stamp(_CPU in stored).items():
        made = stored.get(name, "another")
        if made != mark:
            return f"the library was compiled for the {name} {made}, but this is {mark}"
    return ""


def find_fit(has_library: bool, stored: Mapping[str, str]) -> Fit:
    """Return whether a library with a stored stamp runs here, or its source can be compiled again."""
    misfit = find_misfit(stored) if has_library else ""
    fit = Fit("this processor", machine=stored.get("machine", ""), again=misfit)
    if not misfit:
        return fit
    if is_cross_compiled(stored):
        return replace(fit, verdict=refuse(misfit), again="")
    command = shlex.split(read_options(COptions, {}).cc)[0]
    if shutil.which(command) is None:
        why = f"{misfit}, and there is no C compiler '{command}' here that would compile it again"
        return replace(fit, verdict=refuse(why), again="")
    return fit


def _computer_stamp(with_cpu: bool) -> dict[str, str]:
    found = {"machine": platform.machine(), "system": platform.system()}
    return {**found, _CPU: _cpu_hash()} if with_cpu else found


def _cpu_hash() -> str:
    """Return a hash of the instruction sets of this CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = [platform.processor()]
    able = next((line for line in lines if line.startswith(("flags", "Features"))), lines[0])
    return hashlib.sha256(able.encode()).hexdigest()[:16]


def _run_compiler(
    command: list[str], options: COptions, folder: str | None = None, given: str = ""
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd=folder,
            input=given,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError:
        raise MissingRuntimeError(
            f"there is no C compiler '{options.cc}' here (install one, or name it with the option cc)"
        ) from None


def _first_error(text: str) -> str:
    newer = next((why for name, why in _NEWER.items() if name in text), "")
    if newer:
        return newer
    lines = text.splitlines()
    errors = (line.partition("error: ")[2] for line in lines if "error: " in line)
    return shorten_text(next(errors, "") or " ".join(lines) or "it says nothing", _MAX_CHARACTERS)


# A clock around the calls of a source's functions, one for each node.

_NODE = re.compile(
    r"^ \* Node (\d+):\n(?: \* .*\n)*? \* Name: (.*)\n \* Inputs: .*\n \* Outputs: (.*)$", re.M
)
_CALL = re.compile(r"^    (node(\d+)_\w+)(\(.*\);)$", re.M)
_SECONDS = "region_seconds"
_CLOCK = """
#include <time.h>
double region_seconds[{count}];
static double read_clock(void) {{  /* from the first call on, so that a double has the nanoseconds */
    static long long began;
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    if (!began)
        began = now.tv_sec;
    return (double)(now.tv_sec - began) + 1e-9 * (double)now.tv_nsec;
}}
"""


@dataclass(frozen=True)
class TimedSource:
    """A C source that keeps the seconds of the last call of each function: its name, and its nodes."""

    source: str
    functions: tuple[tuple[str, tuple[str, ...]], ...]

    def read(self, opened: ctypes.CDLL) -> list[float]:
        """Return the seconds of each function, of the library that was compiled of the source."""
        if not self.functions:
            return []
        return list((ctypes.c_double * len(self.functions)).in_dll(opened, _SECONDS))


def add_clock(source: str, model: onnx.ModelProto) -> TimedSource:
    """Return a source of emx-onnx-cgen with a clock around each function, made of `model`.

    A function whose node has no name is found by the node's output, as C spells it.
    """
    outputs = {f"t_{re.sub(r'[^A-Za-z0-9_]', '_', name)}": name for name in _list_outputs(model)}
    nodes: dict[str, str] = {}
    for number, name, made in _NODE.findall(source):
        first = made.partition(",")[0]
        nodes[number] = name if name != "n/a" else outputs.get(first, "")
    known = {*(node.name for node in model.graph.node), *_list_outputs(model)}
    functions: list[tuple[str, tuple[str, ...]]] = []

    def time_call(found: re.Match[str]) -> str:
        place = len(functions)
        node = nodes.get(found[2], "")
        functions.append((found[1], (node,) if node in known else ()))
        return (
            f"    {_SECONDS}[{place}] = -read_clock();\n    {found[1]}{found[3]}\n"
            f"    {_SECONDS}[{place}] += read_clock();"
        )

    timed = _CALL.sub(time_call, source)
    head = _CLOCK.format(count=max(len(functions), 1))
    return TimedSource(head + timed, tuple(functions))


def _list_outputs(model: onnx.ModelProto) -> list[str]:
    return [name for node in model.graph.node for name in node.output if name]
