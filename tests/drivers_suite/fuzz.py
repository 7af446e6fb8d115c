"""Give a driver many damaged artifacts, under AddressSanitizer and UndefinedBehaviorSanitizer.

Each that runs is also submitted, from buffers, and sometimes cancelled; the first twentieth under
ThreadSanitizer, too.

    python tests/drivers_suite/fuzz.py [--inputs 100000] [--seed 0] [--codegen dla]

The artifacts are those of five small regions, in float32, int8 and int4, with two sizes of scratchpad.
Exits 1 if the driver crashed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

from byoc.codegen import Artifact, Region, find_codegen, parse_codegen_options, read_region
from byoc.codegen.drivers import get_include_folder
from byoc.model import DTYPE_NUMBERS

SANITIZED = (
    "-O1",
    "-g",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-Wall",
    "-Wextra",
)
OF_THREADS = ("-O1", "-g", "-fsanitize=thread", "-Wall", "-Wextra")
_FLOAT = """net (float[1, 3, 8, 8] x, float[1, 4, 8, 8] r) => (float[1, 4, 4, 4] y, float[1, 4, 8, 8] z)
{
    a = Conv <pads = [1, 1, 1, 1]> (x, kernel)
    b = Relu(a)
    z = Add(b, r)
    c = Conv <group = 4, dilations = [2, 2], pads = [2, 2, 2, 2]> (z, depthwise)
    e = Sigmoid(c)
    y = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (e)
}"""
_BYTES = """net (int8[1, 3, 8, 8] x) => (int8[1, 4, 4, 4] y)
{
    xf = DequantizeLinear(x, scale, zero)
    kf = DequantizeLinear(bytes, scale, none)
    a = Conv <pads = [1, 1, 1, 1]> (xf, kf)
    aq = QuantizeLinear(a, scale, zero)
    af = DequantizeLinear(aq, scale, zero)
    m = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (af)
    mq = QuantizeLinear(m, scale, zero)
    mf = DequantizeLinear(mq, scale, zero)
    t = Tanh(mf)
    y = QuantizeLinear(t, scale, zero)
}"""
_ATTENTION = """a (float[1, 4, 6, 8] q, float[1, 4, 6, 8] k) => (float[1, 6, 32] y, float[1, 4, 6, 6] s)
{
    t = Transpose <perm = [0, 1, 3, 2]> (k)
    p = MatMul(q, t)
    s = Softmax <axis = -1> (p)
    c = MatMul(s, k)
    o = Transpose <perm = [0, 2, 1, 3]> (c)
    f = Reshape(o, shape)
    n = LayerNormalization <axis = -1> (f, gain, shift)
    y = Erf(n)
}"""
_PRODUCTS = """net (int8[1, 2, 6, 8] x, int8[1, 2, 8, 6] w) => (int8[1, 2, 6, 6] y)
{
    xf = DequantizeLinear(x, scale, zero)
    wf = DequantizeLinear(w, scale, none)
    m = MatMul(xf, wf)
    y = QuantizeLinear(m, scale, zero)
}"""
_INT4 = """net (float[3, 64] x, int32[3, 1] n) => (float[3, 8] y)
{
    f = Cast <to = 1> (n)
    p = com.microsoft.MatMulNBits <K = 64, N = 8, bits = 4, block_size = 32> (x, packed, factors, zeros)
    y = Add(p, f)
}"""
_KERNEL = np.arange(108).reshape(4, 3, 3, 3) % 7 - 3
_CONSTANTS = {
    "kernel": _KERNEL.astype(np.float32),
    "depthwise": _KERNEL[:, :1].astype(np.float32),
    "bytes": _KERNEL.astype(np.int8),
    "scale": np.array(0.05, np.float32),
    "zero": np.array(3, np.int8),
    "none": np.array(0, np.int8),
    "shape": np.array([1, 6, 32]),
    "gain": np.arange(32, dtype=np.float32) / 16,
    "shift": np.arange(32, dtype=np.float32) / 8 - 2,
    "packed": (np.arange(256) * 37 % 256).astype(np.uint8).reshape(8, 2, 16),
    "factors": np.arange(16, dtype=np.float32).reshape(8, 2) / 16,
    "zeros": np.arange(120, 128, dtype=np.uint8).reshape(8, 1),
}
_NAMES = set(_CONSTANTS)
_VERSIONS = 'ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]'
_ENVIRONMENT = os.environ | {"ASAN_OPTIONS": "detect_leaks=0"}  # the harness ends without tidying up


def compile_regions(codegen_name: str, folder: Path) -> Iterator[tuple[Region, Artifact]]:
    """Yield compiled regions, with default options and with a small scratchpad."""
    codegen = find_codegen(codegen_name)
    for number, text in enumerate((_FLOAT, _BYTES, _ATTENTION, _PRODUCTS, _INT4)):
        model = parser.parse_model(f"<{_VERSIONS}>\n{text}")
        words = set(text.replace(",", " ").replace(")", " ").replace("(", " ").split())
        constants = [numpy_helper.from_array(_CONSTANTS[name], name) for name in sorted(words & _NAMES)]
        model.graph.initializer.extend(constants)
        path = folder / f"region_{number}.onnx"
        onnx.save(model, path)
        region = read_region(path, f"region_{number}", codegen_name)
        for given in ({}, {"scratchpad": "2048"}):
            yield region, codegen.compile(region, parse_codegen_options(codegen, given))


def write_case(region: Region, artifact: Artifact, folder: Path) -> list[str]:
    """Write an artifact and its description; return their paths."""
    folder.mkdir()
    lines = [
        f"{side} {DTYPE_NUMBERS[each.type.dtype]} {each.type.bytes}"
        for side, contracts in (("input", region.inputs), ("output", region.outputs))
        for each in contracts
    ]
    (folder / "description").write_text("\n".join(lines))
    paths = [folder / "description"]
    for name, content in artifact.files.items():
        if name.endswith(".bin"):
            (folder / name).write_bytes(content)
            paths.append(folder / name)
    return list(map(str, paths))


def main() -> None:
    """Build the driver with sanitizers, and run it."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    asked.add_argument("--inputs", type=int, default=100_000)
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--codegen", default="dla")
    chosen = asked.parse_args()
    sources = find_codegen(chosen.codegen).driver()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        programs = {folder / "fuzz_driver": (SANITIZED, 1), folder / "fuzz_threads": (OF_THREADS, 20)}
        for program, (flags, _) in programs.items():
            command = ["cc", "-std=c11", *flags, f"-I{get_include_folder()}", "-o", str(program)]
            command += [str(Path(__file__).with_name("fuzz_driver.c")), *map(str, sources.files)]
            libraries = [f"-l{library}" for library in (*sources.libraries, "pthread")]
            subprocess.run([*command, *libraries], check=True)
        cases = list(compile_regions(chosen.codegen, folder))
        for number, (region, artifact) in enumerate(cases):
            paths = write_case(region, artifact, folder / f"case_{number}")
            for program, (_, part) in programs.items():
                inputs = chosen.inputs // len(cases) // part
                asked_for = [str(program), str(inputs), str(chosen.seed + number), *paths]
                ran = subprocess.run(asked_for, env=_ENVIRONMENT, check=False)
                if ran.returncode:
                    sys.exit(f"case {number}: the driver ended with exit code {ran.returncode}")


if __name__ == "__main__":
    main()
