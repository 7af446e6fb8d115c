"""Programs in C on other machines: emulated ones, WebAssembly, a microcontroller."""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.c_libraries import build_library, run_library
from helpers.support import parse
from small_programs import SMALL, RecurrentModel, planning_quickly
from test_integers import (
    TYPES,
    QuantizedModel,
    add_functions,
    add_others,
    add_products,
    add_windows,
    draw_inputs,
)

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
CORTEX_CPU = "arm-none-eabi-gcc -mcpu=cortex-m4 -mthumb -mfpu=fpv4-sp-d16 -mfloat-abi=hard"
CORTEX_RUNNER = "timeout 300 qemu-system-arm -M mps2-an386 -display none -semihosting -kernel"


def link_on_cortex_m(memory: str, folder: Path) -> str:
    """Return the options that link a program for the emulated board, into a map of its memory."""
    script, start = folder / "memory.ld", folder / "start.o"
    script.write_text(memory)
    strict = [*CORTEX_CPU.split(), "-O3", "-Wall", "-Wextra", "-Werror", "-Wshadow", "-pedantic"]
    subprocess.run([*strict, "-c", str(CORTEX_M / "startup.c"), "-o", str(start)], check=True)
    return f"-nostartfiles --specs=rdimon.specs -T {script} {start}"


@pytest.mark.parametrize(("form", "most"), [("floats", 90_000), ("int8", 30_000), ("int16", 45_000)])
def test_a_microcontroller_of_512_kib(form: str, most: int, tmp_path: Path) -> None:
    need_commands("arm-none-eabi-gcc", "qemu-system-arm", "timeout")
    path = tmp_path / "keywords.onnx"
    script = [sys.executable, str(CORTEX_M / "make_model.py"), str(path)]
    subprocess.run([*script, *([] if form == "floats" else [form])], check=True, capture_output=True)
    made = export_c(path, output=tmp_path / "out", embed=True)
    assert made.arena_bytes == made.bound < most
    link = link_on_cortex_m((CORTEX_M / "memory.ld").read_text(), tmp_path)
    found = verify_program(tmp_path / "out", f"{CORTEX_CPU} -O3 {link}", CORTEX_RUNNER)
    assert found.passed, found.problem
    assert found.arena_bytes == made.bound
    assert found.stack_bytes is not None
    assert found.stack_bytes < 8 * 1024


MACHINES = {
    "native": ("cc", "", "little"),
    **{runner.removeprefix("qemu-"): (f"{cc} -static", runner, order) for cc, runner, order in CROSS},
    "cortex-m4": (CORTEX_CPU, CORTEX_RUNNER, "little"),
}


def run_on(machine: str, program: Path, folder: Path) -> int:
    """Verify a program on a machine, or skip; return how many outputs are right."""
    compiler, runner, _ = MACHINES[machine]
    need_commands(compiler.split()[0], *runner.split()[:3:2])
    if machine == "cortex-m4":  # the board has far more memory than the example takes
        memory = (CORTEX_M / "memory.ld").read_text().replace("256K", "4M", 1)
        memory = memory.replace("0x20000000, LENGTH = 256K", "0x21000000, LENGTH = 16M")
        compiler += f" {link_on_cortex_m(memory, folder)}"
    found = verify_program(program, f"{compiler} -O1", runner or None)
    assert found.passed, found.problem
    return len(found.outputs)


def state_outputs(folder: Path, model: onnx.ModelProto, given: Mapping[str, object]) -> None:
    """Make what a program computes here the sample of all, whose bits other machines have to compute."""
    shapes = onnx.shape_inference.infer_shapes(model).graph.output
    results = {
        value.name: np.zeros(
            [dim.dim_value for dim in value.type.tensor_type.shape.dim],
            onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type),
        )
        for value in shapes
    }
    library = build_library(folder / sys.byteorder, ("cc", "-O1", "-w"))
    made = run_library(library, list(given.values()), results)
    for order, mark in (("little", "<"), ("big", ">")):
        content = b""
        for value in (*given.values(), *made.values()):
            array = np.asarray(value)
            content += array.astype(array.dtype.newbyteorder(mark)).tobytes()
            content += bytes(-len(content) % 64)
        (folder / order / "sample.bin").write_bytes(content)


@pytest.fixture(scope="module", params=["some", pytest.param("all", marks=pytest.mark.thorough)])
def recurrent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of programs by byte order: forms of LSTM, GRU and RNN, right here."""
    net = RecurrentModel(1 if request.param == "all" else 11)
    folder = tmp_path_factory.mktemp("recurrent")
    for order in ("little", "big"):
        export_c(net.build(), output=folder / order, byte_order=order, embed=True)
    results = {name: np.zeros_like(value) for name, value in net.expected.items()}
    library = build_library(folder / sys.byteorder, ("cc", "-std=c99", "-O1", "-w"))
    made = run_library(library, list(net.inputs.values()), results)
    for name, value in net.expected.items():
        np.testing.assert_allclose(made[name], value, rtol=1e-5, atol=2e-6, err_msg=name)
    return folder


@pytest.mark.parametrize("machine", MACHINES)
def test_recurrent_operators_in_every_form(machine: str, recurrent: Path, tmp_path: Path) -> None:
    assert run_on(machine, recurrent / MACHINES[machine][2], tmp_path) >= 18


@pytest.fixture(scope="module")
def integers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of programs by byte order: all kernels of integers, with what they make here."""
    net = QuantizedModel()
    forms = (("uint8", "int8", False), ("int8", "int8", False))
    wide = (("int16", "int8", True), ("uint16", "uint16", False))
    for net.dtype, net.weights, net.symmetric in (*forms, *wide):
        add_products(net)
        add_windows(net)
        add_others(net)
        if net.dtype in TYPES:
            add_functions(net)
    model, folder = net.build(), tmp_path_factory.mktemp("integers")
    with planning_quickly():
        for order in ("little", "big"):
            export_c(model, output=folder / order, byte_order=order, embed=True)
    state_outputs(folder, model, draw_inputs(model))
    return folder


@pytest.mark.parametrize("machine", MACHINES)
def test_integers_are_equal_on_every_machine(machine: str, integers: Path, tmp_path: Path) -> None:
    assert run_on(machine, integers / MACHINES[machine][2], tmp_path) >= 200


# Two models that compute in the same memory, one after the other, and the first once more.
TOGETHER = """
#include "first.h"
#include "second.h"
#include <stdio.h>
#include <stdlib.h>
static unsigned char pool[1 << 16];
static size_t taken;
static void *reserve(size_t bytes) {
    void *found = pool + taken + (64 - (uintptr_t)(pool + taken) % 64);
    taken += bytes + 64;
    if (taken > sizeof pool) exit(9);
    return found;
}
static void *read_file(const char *path, size_t bytes) {
    void *found = reserve(bytes);
    FILE *file = fopen(path, "rb");
    if (!file || fread(found, 1, bytes, file) != bytes) exit(8);
    fclose(file);
    return found;
}
static void print(const float *values, size_t count) {
    for (size_t i = 0; i < count; i++) printf("%.9g ", (double)values[i]);
    printf("\\n");
}
int main(void) {
    const size_t shared = FIRST_PLAN_BYTES > SECOND_PLAN_BYTES ? FIRST_PLAN_BYTES : SECOND_PLAN_BYTES;
    void *memory = reserve(shared);
    const void *one = read_file("first/weights.bin", FIRST_WEIGHT_BYTES);
    const void *two = read_file("second/weights.bin", SECOND_WEIGHT_BYTES);
    float *x = reserve(first_inputs[0].bytes), *y = reserve(first_outputs[0].bytes);
    float *z = reserve(second_outputs[0].bytes);
    static first a;
    static second b;
    if (first_own_bytes(one, FIRST_WEIGHT_BYTES) || second_own_bytes(two, SECOND_WEIGHT_BYTES)) return 1;
    if (first_open_shared(&a, one, FIRST_WEIGHT_BYTES, memory, NULL, 0)) return 2;
    if (second_open_shared(&b, two, SECOND_WEIGHT_BYTES, memory, NULL, 0)) return 3;
    for (size_t i = 0; i < first_inputs[0].elements; i++) x[i] = (float)i / 7 - 1;
    for (int turn = 0; turn < 2; turn++) {
        if (first_run(&a, (const void *const[]){x}, (void *const[]){y})) return 4;
        if (second_run(&b, (const void *const[]){y}, (void *const[]){z})) return 5;
        print(y, first_outputs[0].elements);
        print(z, second_outputs[0].elements);
    }
    first_close(&a);
    second_close(&b);
    return 0;
}
"""
SECOND = """net (float[1, 3, 6, 6] x) => (float[1, 108] y) {
    a = Tanh(x)
    b = Flatten(a)
    y = Softmax(b)
}"""


def compute_both() -> list[np.ndarray]:
    """Return what the two models make, by the definition."""
    x = (np.arange(72, dtype=np.float32) / np.float32(7) - 1).reshape(1, 2, 6, 6)
    first = onnx.reference.ReferenceEvaluator(parse(SMALL)).run(None, {"x": x})[0]
    second = onnx.reference.ReferenceEvaluator(parse(SECOND)).run(None, {"x": first})[0]
    return [first.ravel(), second.ravel()]


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with both models and what runs them, by byte order."""
    made = tmp_path_factory.mktemp("together")
    for order in ("little", "big"):
        (made / order).mkdir()
        for name, text in (("first", SMALL), ("second", SECOND)):
            export_c(parse(text), output=made / order / name, prefix=name, byte_order=order)
        (made / order / "app.c").write_text(TOGETHER)
    return made


@pytest.mark.parametrize("machine", [*MACHINES, "sanitized"])
def test_two_models_share_an_arena(machine: str, together: Path, tmp_path: Path) -> None:
    strict = "cc -fsanitize=address,undefined -fno-sanitize-recover=all"
    compiler, runner, order = MACHINES.get(machine, (strict, "", "little"))
    need_commands(compiler.split()[0], *runner.split()[:3:2])
    folder = together / order
    own = [path for path in sorted(folder.glob("*/*.c")) if path.name != "main.c"]
    own = [str(path.relative_to(folder)) for path in own]
    command = [*compiler.split(), *["-std=c99", "-O0", "-Wall", "-Wextra", "-Wconversion", "-Werror"]]
    command += ["-Ifirst", "-Isecond", "app.c", *own, "-lm", "-o", str(tmp_path / "app")]
    if machine == "cortex-m4":
        memory = (CORTEX_M / "memory.ld").read_text()
        command += link_on_cortex_m(memory, tmp_path).split()
    subprocess.run(command, cwd=folder, check=True)
    done = subprocess.run(
        [*runner.split(), tmp_path / "app"], cwd=folder, check=True, capture_output=True, text=True
    )
    lines = [[float(each) for each in line.split()] for line in done.stdout.splitlines()]
    assert lines[:2] == lines[2:]
    for found, expected in zip(lines[:2], compute_both(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
