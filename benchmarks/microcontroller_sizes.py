"""Flash and RAM of programs for a Cortex-M4, and the instructions of a run: `python benchmarks/microcontroller_sizes.py`.

The networks are the keyword network of `examples/cortex_m`, in floats and in int8, and the smallest network of
MobileNet (Howard et al., arXiv:1704.04861: width 0.25, images of 96x96x3, here five classes) in int8, of random
weights. Programs are linked by `arm-none-eabi-gcc` for the board that `qemu-system-arm` emulates, and verified there.
Flash is counted in the map of the linker: of the model's own files, of its weights, and of what else is linked.
Instructions are counted by QEMU: with `-icount shift=0` its clock moves by a nanosecond for each.
"""

import re
import runpy
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
from onnx import TensorProto, helper

from byoc import export_c
from byoc.standalone import verify_program

EXAMPLE = Path(__file__).parents[1] / "examples" / "cortex_m"
CPU = "arm-none-eabi-gcc -mcpu=cortex-m4 -mthumb -mfpu=fpv4-sp-d16 -mfloat-abi=hard -O2"
PLAIN = " -D__ARM_FEATURE_SIMD32=0 -U__ARM_FEATURE_SIMD32"  # as for a processor without SMLAD
RUNNER = "qemu-system-arm -M mps2-an386 -display none -semihosting -icount shift=0 -kernel"
CLASSES = 5
_SECTION = re.compile(r"^ \.(\S+)?\s+(0x[0-9a-f]+)\s+(0x[0-9a-f]+)\s+(\S+)$", re.MULTILINE)
# The clock of `main.c` on the board: SysTick counts 25 MHz of the emulated nanoseconds down from 2^24.
CLOCK = """
#include <stdint.h>
#include <time.h>
clock_t clock(void);
#define CONTROL ((volatile uint32_t *)(uintptr_t)0xE000E010u)
static uint64_t ticks;
static uint32_t last;
void SysTick_Handler(void);
void SysTick_Handler(void) { ticks += 1u << 24; }
/* Nanoseconds, of which 40 are a tick: the largest run that fits is 0.67 s of them between two calls. */
clock_t clock(void) {
    if (!(CONTROL[0] & 1u)) {
        CONTROL[1] = 0xFFFFFFu;
        CONTROL[2] = 0;
        CONTROL[0] = 5u;
        last = CONTROL[2];
    }
    const uint32_t now = CONTROL[2];
    ticks += (last - now) & 0xFFFFFFu;
    last = now;
    return (clock_t)(ticks * 40u);
}
"""


def make_mobilenet() -> onnx.ModelProto:
    """Return MobileNet v1 of width 0.25 for images of 96x96x3."""
    example = runpy.run_path(str(EXAMPLE / "make_model.py"))
    writer = example["NetworkWriter"]()
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
    writer.add("GlobalAveragePool")
    writer.add("Flatten")
    writer.add("Gemm", (CLASSES, inputs), (CLASSES,), transB=1)
    writer.add("Softmax", axis=-1)
    graph = writer.graph
    graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 96, 96]))
    graph.output.append(helper.make_tensor_value_info(writer.last, TensorProto.FLOAT, [1, CLASSES]))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
