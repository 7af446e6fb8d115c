"""Programs in C on other machines: emulated ones, WebAssembly, a microcontroller."""

import runpy
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers.support import parse
from small_programs import SMALL

from byoc import partition
from byoc.standalone import export_c, verify_program

pytest.importorskip("emx_onnx_cgen")
pytest.importorskip("onnxruntime")
CROSS = [
    ("aarch64-linux-gnu-gcc", "qemu-aarch64", "little"),
    ("riscv64-linux-gnu-gcc", "qemu-riscv64", "little"),
    ("powerpc64le-linux-gnu-gcc", "qemu-ppc64le", "little"),
    ("s390x-linux-gnu-gcc", "qemu-s390x", "big"),
]


def need_commands(*commands: str) -> None:
    """Skip the test where a command is not installed."""
    for command in commands:
        if shutil.which(command) is None:
            pytest.skip(f"{command} is not installed")


@pytest.mark.parametrize(("compiler", "runner", "order"), CROSS)
def test_other_machines(compiler: str, runner: str, order: str, tmp_path: Path) -> None:
    need_commands(compiler, runner)
    made = export_c(parse(SMALL), output=tmp_path / "out", byte_order=order)
    found = verify_program(tmp_path / "out", f"{compiler} -static -O1 -Wall -Wextra -Werror", runner)
    assert found.passed, found.problem
    assert (found.arena_bytes, found.plan_bytes) == (found.plan_bytes, made.bound)


WASI = (
    "clang --target=wasm32-wasi -O1 -Wall -Wextra -Werror "
    "-D_WASI_EMULATED_PROCESS_CLOCKS -lwasi-emulated-process-clocks"
)
needs_wasi = pytest.mark.skipif(
    not (find_spec("wasmtime") and Path("/usr/lib/wasm32-wasi").is_dir()),
    reason="needs wasmtime, and wasi-libc",
)


@needs_wasi
def test_webassembly(tmp_path: Path) -> None:
    need_commands("clang", "wasm-ld")
    partition(parse(SMALL), rules="dla", output=tmp_path / "b", strategy="all-supported")
    made = export_c(tmp_path / "b", output=tmp_path / "out")
    runner = f"{sys.executable} {Path(__file__).with_name('run_wasi.py')}"
    found = verify_program(tmp_path / "out", WASI, runner)
    assert found.passed, found.problem
    assert (made.regions, found.plan_bytes) == (1, made.bound)
    assert found.stack_bytes is not None


CORTEX_M = Path(__file__).parents[2] / "examples" / "cortex_m"


def test_a_microcontroller_of_512_kib(tmp_path: Path) -> None:
    compiler = "arm-none-eabi-gcc -mcpu=cortex-m4 -mthumb -mfpu=fpv4-sp-d16 -mfloat-abi=hard -O3"
    need_commands("arm-none-eabi-gcc", "qemu-system-arm", "timeout")
    model = runpy.run_path(str(CORTEX_M / "make_model.py"))["make_model"]()
    made = export_c(model, output=tmp_path / "out", embed=True)
    strict = [*compiler.split(), "-Wall", "-Wextra", "-Werror", "-Wshadow", "-pedantic"]
    start = [*strict, "-c", str(CORTEX_M / "startup.c"), "-o", str(tmp_path / "start.o")]
    subprocess.run(start, check=True)
    link = f"-nostartfiles --specs=rdimon.specs -T {CORTEX_M / 'memory.ld'} {tmp_path / 'start.o'}"
    runner = "timeout 300 qemu-system-arm -M mps2-an386 -display none -semihosting -kernel"
    found = verify_program(tmp_path / "out", f"{compiler} {link}", runner)
    assert found.passed, found.problem
    assert found.arena_bytes == made.bound
    assert found.stack_bytes is not None
    assert found.stack_bytes < 8 * 1024
