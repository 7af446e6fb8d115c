"""Flash and RAM of programs for a Cortex-M4, and the instructions of a run.

    python benchmarks/microcontroller_sizes.py

The networks are the keyword network of `examples/cortex_m`, in floats and in int8, and the smallest
MobileNet v1 (Howard et al., arXiv:1704.04861: width 0.25, images of 96x96x3, here five classes) in int8,
all of random weights. Programs are built by `arm-none-eabi-gcc -O2` and verified on the board that
`qemu-system-arm` emulates. Flash is what the linker kept of the model's own files, and of its weights;
RAM is the arena, with inputs and outputs in it. Instructions are counted by QEMU, whose clock moves by a
nanosecond for each with `-icount shift=0`: no cycles, since it emulates no pipeline and no memory.
"""

import re
import runpy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from byoc.standalone import ExportedProgram, export_c, verify_program

EXAMPLE = Path(__file__).parents[1] / "examples" / "cortex_m"
MAKING = runpy.run_path(str(EXAMPLE / "make_model.py"))
COMPILER = "arm-none-eabi-gcc -mcpu=cortex-m4 -mthumb -mfpu=fpv4-sp-d16 -mfloat-abi=hard -O2"
PLAIN = "-U__ARM_FEATURE_SIMD32"  # as for a processor without products of pairs
QEMU = "qemu-system-arm -M mps2-an386 -display none -semihosting"
CLASSES = 5
_KEPT = re.compile(
    r"^ \.(?:text|rodata|data)\S*\s+0x[0-9a-f]+\s+0x([0-9a-f]+)\s+(\S+)\.o$", re.MULTILINE
)
# SysTick counts 25 MHz of the emulated nanoseconds down from 2^24.
MEASURE = """
#include "model.h"
#include <stdio.h>
#include <stdlib.h>
#define SYSTICK ((volatile uint32_t *)(uintptr_t)0xE000E010u)
static void *allocate(size_t bytes) {
    unsigned char *memory = calloc(bytes + 64, 1);
    return memory + (64 - (uintptr_t)memory % 64);
}
int main(void) {
    static model opened;
    void *inputs[MODEL_INPUTS], *outputs[MODEL_OUTPUTS];
    for (int i = 0; i < MODEL_INPUTS; i++) inputs[i] = allocate(model_inputs[i].bytes);
    for (int i = 0; i < MODEL_OUTPUTS; i++) outputs[i] = allocate(model_outputs[i].bytes);
    const size_t bytes = MODEL_PLAN_BYTES;
    if (model_open(&opened, model_weights, MODEL_WEIGHT_BYTES, allocate(bytes), bytes)) return 1;
    SYSTICK[1] = 0xFFFFFFu;
    SYSTICK[2] = 0;
    SYSTICK[0] = 5u;
    const uint32_t before = SYSTICK[2];
    if (model_run(&opened, (const void *const *)inputs, outputs) || SYSTICK[0] & 0x10000u) return 2;
    printf("%lu\\n", (unsigned long)(((before - SYSTICK[2]) & 0xFFFFFFu) * 40u));
    return 0;
}
"""


def make_mobilenet() -> onnx.ModelProto:
    """Return MobileNet v1 of width 0.25 for images of 96x96x3."""
    writer = MAKING["NetworkWriter"]()
    writer.add_convolution(3, (3, 3), 8, strides=[2, 2], pads=[0, 0, 1, 1])
    inputs = 8
    for channels, stride in (
        *((16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2)),
        *[(128, 1)] * 5,
        *((256, 2), (256, 1)),
    ):
        pads = [1] * 4 if stride == 1 else [0, 0, 1, 1]
        writer.add_convolution(1, (3, 3), inputs, group=inputs, strides=[stride] * 2, pads=pads)
        writer.add_convolution(inputs, (1, 1), channels)
        inputs = channels
    return writer.finish(inputs, CLASSES, [1, 3, 96, 96])


def call(*command: str, folder: Path) -> str:
    """Run a command; return what it prints."""
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def write_memory(folder: Path) -> Path:
    """Write a map of the emulated board's memory, larger than the example's."""
    memory = (EXAMPLE / "memory.ld").read_text().replace("256K", "4M")
    path = folder / "memory.ld"
    path.write_text(memory)
    return path


def link(program: Path, folder: Path, main: Path, flags: str = "") -> Mapping[str, int]:
    """Build a program with a main file; return the bytes that were kept of each file."""
    compiler = [*COMPILER.split(), *flags.split(), "-ffunction-sections", "-fdata-sections", "-w"]
    sources = [*program.glob("*.c"), *program.glob("*.S"), EXAMPLE / "startup.c"]
    objects = []
    for source in [each for each in sources if each.name != "main.c"] + [main]:
        objects.append(f"{source.stem}.o")
        call(
            *compiler,
            f"-I{program}",
            f"-I{folder}",
            "-c",
            str(source),
            "-o",
            str(folder / objects[-1]),
            folder=program,
        )
    options = ["-nostartfiles", "--specs=rdimon.specs", "-T", str(write_memory(folder))]
    options += ["-Wl,--gc-sections", "-Wl,-Map=map.txt"]
    call(*compiler, *options, *objects, "-lm", "-o", "program.elf", folder=folder)
    kept: dict[str, int] = {}
    text = (folder / "map.txt").read_text().partition("Linker script and memory map")[2]
    for size, name in _KEPT.findall(text):
        kept[Path(name).name] = kept.get(Path(name).name, 0) + int(size, 16)
    return kept


def measure(name: str, made: ExportedProgram, folder: Path) -> str:
    """Return the row of a table for a program: sizes, instructions, and whether it is right."""
    main = folder / "measure.c"
    main.write_text(MEASURE)
    counts = []
    for flags in (PLAIN, ""):
        kept = link(made.folder, folder, main, flags)
        counts.append(
            int(call(*QEMU.split(), "-icount", "shift=0", "-kernel", "program.elf", folder=folder))
        )
    own = {each.stem for each in made.folder.glob("*.c")} - {"main"}
    code = sum(size for each, size in kept.items() if each in own)
    start = folder / "start.o"
    call(*COMPILER.split(), "-c", str(EXAMPLE / "startup.c"), "-o", str(start), folder=folder)
    linking = f"-nostartfiles --specs=rdimon.specs -T {write_memory(folder)} {start}"
    found = verify_program(made.folder, f"{COMPILER} {linking}", f"{QEMU} -kernel")
    cells = (
        name,
        f"{kept['weights'] / 1024:.1f}",
        f"{code / 1024:.1f}",
        f"{made.arena_bytes / 1024:.1f}",
        f"{(found.stack_bytes or 0) / 1024:.1f}",
        f"{counts[0] / 1e6:.1f}",
        f"{counts[1] / 1e6:.1f}",
        found.problem or f"{max(each.error for each in found.outputs):.2g}",
    )
    return f"| {' | '.join(cells)} |\n"


def main() -> None:
    """Print the table."""
    sys.stdout.write(
        "| | weights, KiB | code, KiB | arena, KiB | stack, KiB | instructions, plain C, millions | "
        "with SMLAD | error |\n|---|---|---|---|---|---|---|---|\n"
    )
    keywords, mobilenet = MAKING["make_model"](), make_mobilenet()
    for name, model, is_quantized in (
        ("keywords, floats", keywords, False),
        ("keywords, int8", keywords, True),
        ("MobileNet v1 0.25, int8", mobilenet, True),
    ):
        with TemporaryDirectory() as temporary:
            folder = Path(temporary)
            path = folder / "model.onnx"
            if is_quantized:
                MAKING["quantize_model"](model, path)
            else:
                onnx.save(model, path)
            made = export_c(path, output=folder / "program", embed=True)
            sys.stdout.write(measure(name, made, folder))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
