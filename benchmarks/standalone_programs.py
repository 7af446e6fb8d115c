"""Programs in C against onnxruntime on one thread, and what each kind of operator takes of them.

    python benchmarks/standalone_programs.py [--compiler COMMAND] [--runs N] [--share PERCENT] [--iree]
        [--tvm] [MODEL...]

`export-c` writes the program. Its model is built as a library, and both run in turn in this
process, on the sample that the program comes with; times are of processors, the ratio is that of
each turn, and medians and quartiles are printed. `upsampler` has two ConvTranspose and a Resize,
`lstm` two bidirectional LSTMs, and `int8:NAME` is a model of the zoo that onnxruntime quantized to
QDQ. With `--iree` so does what IREE compiles of the whole model for this processor (its `llvm-cpu`,
one thread), and with `--tvm` what Apache TVM does by its default pipeline, not tuned (`pip install
apache-tvm`, and TVM_NUM_THREADS=1); further ratios are those of each to the program. A model that
one of them refuses has the refusal there. Then the program is built with -DMODEL_PROFILE, and says
what each kind of operator takes; kinds of less than `--share` percent are summed up.
"""

import argparse
import ctypes
import json
import re
import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime
from common import machine
from onnx import helper, numpy_helper, version_converter
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

import byoc
from byoc.samples import model_samples
from byoc.standalone import export_c
from byoc.zoo import load_model

MODELS = (
    *("int8:squeezenet", "int8:mobilenet_v3_large", "zoo:squeezenet", "zoo:mobilenet_v3_large"),
    *("upsampler", "lstm", "zoo:vit_tiny", "zoo:bert", "zoo:resnet50"),
)
ANYTHING = "{target: any, cost_model: near.yaml, dtype: any, regions: connected, ops: [{op: '*'}]}"
COSTS = (
    "{name: near, kind: roofline, peak: {default: 1.0e+12}, bandwidth: 1.0e+12, link: {bandwidth: .inf}}"
)
OPSET = 17
ALIGNMENT = 64
HANDLE_BYTES = 1 << 16  # the structure of a model without regions has three pointers
PROFILE = re.compile(r"^profile: (.*): (\S+) s of a run, (\S+) %$", re.MULTILINE)


class CProgram:
    """A program without regions, as a library in this process."""

    def __init__(self, folder: Path, compiler: list[str], inputs: list[Any], outputs: list[Any]) -> None:
        """Build the program in `folder`, and open it for arrays that it reads and writes."""
        library = folder / "model.so"
        build(folder, [*compiler, "-shared", "-fPIC"], library, skip="main.c")
        self.model = ctypes.CDLL(str(library))
        for name in ("model_arena_bytes", "model_error"):
            getattr(self.model, name).restype = ctypes.c_size_t if "arena" in name else ctypes.c_char_p
        self.weights = align(np.fromfile(folder / "weights.bin", np.uint8))
        self.handle = ctypes.create_string_buffer(HANDLE_BYTES)
        weights, size = point(self.weights), ctypes.c_size_t(self.weights.size)
        needed = self.model.model_arena_bytes(weights, size)
        self.arena = align(np.zeros(needed, np.uint8))
        if self.model.model_open(self.handle, weights, size, point(self.arena), ctypes.c_size_t(needed)):
            raise RuntimeError(self.model.model_error(self.handle).decode())
        self.tensors = [np.ascontiguousarray(each) for each in inputs], outputs
        self.pointers = [(ctypes.c_void_p * len(each))(*map(point, each)) for each in self.tensors]

    def run(self) -> None:
        """Run the model on the inputs it was opened with."""
        if self.model.model_run(self.handle, *self.pointers):
            raise RuntimeError(self.model.model_error(self.handle).decode())


def main(models: list[str], compiler: list[str], runs: int, share: float, others: list[str]) -> None:
    """Print a row for each model, then the profiles."""
    print(f"{machine()}, onnxruntime {onnxruntime.__version__}, {shlex.join(compiler)}, {runs} in turn")
    more = "".join(f" {other}, ms | {other} to C |" for other in others)
    print(f"| | in C, ms | onnxruntime, ms | ratio |{more} error |")
    print("|---|---|---|---|" + "---|---|" * len(others) + "---|")
    profiles = []
    for model in models:
        with TemporaryDirectory() as name:
            folder = Path(name) / "out"
            source = find_model(model, Path(name))
            export_c(source, output=folder)
            row = compare(source, folder, compiler, runs, others)
            print(f"| {model} | {row}", flush=True)
            profiles.append((model, take_profile(folder, compiler, runs)))
    for model, rows in profiles:
        shown = [f"{kind} {part:.1f}" for kind, part in rows if part >= share]
        others = sum(part for _, part in rows if part < share)
        print(f"{model}, percent: {', '.join(shown)}, others {others:.1f}")


def find_model(name: str, folder: Path) -> str:
    """Return a model by what `load_model` takes; one that is made is a file in `folder`."""
    if ":" in name and not name.startswith("int8:"):
        return name
    made = str(folder / "made.onnx")
    if name.startswith("int8:"):
        quantize(f"zoo:{name.removeprefix('int8:')}", folder, made)
    else:
        onnx.save(build_upsampler() if name == "upsampler" else build_lstm(), made)
    return made


def quantize(model: str, folder: Path, target: str) -> None:
    """Quantize a model by onnxruntime: activations in uint8, weights in int8 by channel."""
    loaded = load_model(model)
    floats = str(folder / "floats.onnx")
    onnx.save(version_converter.convert_version(loaded.proto, OPSET), floats)
    prepared = str(folder / "prepared.onnx")
    quant_pre_process(floats, prepared)
    given = iter([dict(model_samples(loaded))])
    reader = type("Reader", (CalibrationDataReader,), {"get_next": lambda self: next(given, None)})()
    types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    quantize_static(prepared, target, reader, quant_format=QuantFormat.QDQ, per_channel=True, **types)


def build_network(
    shape: list[int], nodes: list[onnx.NodeProto], weights: dict[str, Any], out: list[int]
) -> onnx.ModelProto:
    """Return a model from x to y; weights are given by value, or by shape and made at random."""
    random = np.random.default_rng(7)
    stored = []
    for name, given in weights.items():
        value = given
        if isinstance(given, tuple):
            value = (random.standard_normal(given) / np.sqrt(np.prod(given[1:]))).astype(np.float32)
        stored.append(numpy_helper.from_array(value, name))
    x, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, extents)
        for name, extents in (("x", shape), ("y", out))
    )
    graph = helper.make_graph(nodes, "net", [x], [y], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


def build_upsampler() -> onnx.ModelProto:
    """Return a network that halves an image twice, and makes it four times as large again by turns."""
    make = helper.make_node
    nodes = [
        make("Conv", ["x", "a"], ["c0"], pads=[1] * 4, strides=[2, 2]),
        make("Relu", ["c0"], ["r0"]),
        make("Conv", ["r0", "b"], ["c1"], pads=[1] * 4, strides=[2, 2]),
        make("Relu", ["c1"], ["r1"]),
        make("ConvTranspose", ["r1", "c"], ["t0"], pads=[1] * 4, strides=[2, 2]),
        make("Relu", ["t0"], ["r2"]),
        make("Resize", ["r2", "", "scales"], ["z"], mode="linear"),
        make("Conv", ["z", "d"], ["c3"], pads=[1] * 4),
        make("Relu", ["c3"], ["r3"]),
        make("ConvTranspose", ["r3", "e"], ["t1"], strides=[2, 2]),
        make("Tanh", ["t1"], ["h"]),
        make("Conv", ["h", "f"], ["c5"], pads=[1] * 4),
        make("Sigmoid", ["c5"], ["y"]),
    ]
    weights: dict[str, Any] = {"scales": np.array([1, 1, 2, 2], np.float32)}
    weights |= {"a": (32, 3, 3, 3), "b": (64, 32, 3, 3), "c": (64, 32, 4, 4)}
    weights |= {"d": (16, 32, 3, 3), "e": (16, 8, 2, 2), "f": (3, 8, 3, 3)}
    return build_network([1, 3, 128, 128], nodes, weights, [1, 3, 256, 256])


def build_lstm() -> onnx.ModelProto:
    """Return a network of two bidirectional LSTMs of 128 numbers, over 100 steps, and 40 classes."""
    nodes, weights, x = [], dict[str, Any](), "x"
    for number, inputs in enumerate((64, 256)):
        weights |= {f"w{number}": (2, 512, inputs), f"r{number}": (2, 512, 128), f"b{number}": (2, 1024)}
        given = [x, *(f"{part}{number}" for part in "wrb")]
        made = [f"{part}{number}" for part in ("l", "p", "t")]
        nodes.append(
            helper.make_node("LSTM", given, made[:1], hidden_size=128, direction="bidirectional")
        )
        nodes.append(helper.make_node("Transpose", made[:1], made[1:2], perm=[0, 2, 1, 3]))
        nodes.append(helper.make_node("Reshape", [made[1], "shape"], made[2:]))
        x = made[2]
    weights |= {"shape": np.array([100, 1, 256], np.int64), "f": (256, 40)}
    nodes.append(helper.make_node("MatMul", [x, "f"], ["m"]))
    nodes.append(helper.make_node("Softmax", ["m"], ["y"], axis=-1))
    return build_network([100, 1, 64], nodes, weights, [100, 1, 40])


def compare(model: str, folder: Path, compiler: list[str], runs: int, others: list[str]) -> str:
    """Return the row of a model: milliseconds of each, and their ratios."""
    loaded = load_model(model)
    given = dict(model_samples(loaded))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    onnx.save(loaded.proto, folder.parent / "model.onnx")
    path = str(folder.parent / "model.onnx")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    expected = [np.asarray(each) for each in session.run(None, given)]
    made = [np.empty_like(each) for each in expected]
    stored = {each.name for each in loaded.proto.graph.initializer}
    inputs = [given[each.name] for each in loaded.proto.graph.input if each.name not in stored]
    program = CProgram(folder, compiler, inputs, made)
    actions = [program.run, lambda: session.run(None, given)]
    refusals = dict[str, str]()
    for other in others:
        try:
            actions.append(COMPILERS[other](model, folder.parent / other, given))
        except Exception as error:  # of any kind: the row has what the compiler says
            refusals[other] = f"refused: {str(error).strip().splitlines()[-1][:200]}"
    times = [[cpu_seconds(action) for action in actions] for _ in range(runs + 2)][2:]
    columns = np.array(times).T
    ratio = quartiles(columns[0] / columns[1], ".2f")
    error = max(
        float(np.max(np.abs(one - other)) / np.ptp(one))
        for one, other in zip(expected, made, strict=True)
    )
    cells = [*(quartiles(column * 1e3, ".1f") for column in columns[:2]), ratio]
    rest = iter(columns[2:])
    for other in others:
        if other in refusals:
            cells += [refusals[other], ""]
            continue
        column = next(rest)
        cells += [quartiles(column * 1e3, ".1f"), quartiles(column / columns[0], ".2f")]
    return f"{' | '.join(cells)} | {error:.1e} |"


def compile_iree(model: str, folder: Path, given: Any) -> Callable[[], object]:
    """Return a run of the model, compiled whole by IREE for this processor and one thread."""
    (folder.parent / "any.yaml").write_text(ANYTHING)
    (folder.parent / "near.yaml").write_text(COSTS)
    byoc.partition(
        model, str(folder.parent / "any.yaml"), output=folder, strategy="all-supported", codegen="iree",
        codegen_options={"threads": "1"}, verify=False, strict=True,
    )  # fmt: skip
    loaded = byoc.load(folder)
    if [stage.device for stage in loaded.stages] != ["any"]:
        raise RuntimeError(f"{model}: IREE does not take all of it")
    return lambda: loaded(given)


def compile_tvm(model: str, folder: Path, given: Any) -> Callable[[], object]:
    """Return a run of the model, compiled whole by Apache TVM's default pipeline for this processor."""
    import tvm  # noqa: PLC0415 - only where it is asked for
    from tvm import relax  # noqa: PLC0415 - as above
    from tvm.relax.frontend.onnx import from_onnx  # noqa: PLC0415 - as above

    proto = load_model(model).proto
    module = from_onnx(proto, keep_params_in_input=False)
    target = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()})
    machine_of = relax.VirtualMachine(tvm.compile(module, target=target), tvm.cpu())
    stored = {each.name for each in proto.graph.initializer}
    inputs = [
        tvm.runtime.tensor(given[each.name]) for each in proto.graph.input if each.name not in stored
    ]
    return lambda: machine_of["main"](*inputs)


COMPILERS = {"iree": compile_iree, "tvm": compile_tvm}


def take_profile(folder: Path, compiler: list[str], runs: int) -> list[tuple[str, float]]:
    """Return the kinds of operators and the percent of the time that each takes, most first."""
    build(folder, [*compiler, "-DMODEL_PROFILE"], folder / "model_test")
    command = ["./model_test", "--runs", str(runs)]
    text = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    found = [(kind, float(part)) for kind, _, part in PROFILE.findall(text)]
    return sorted(found, key=lambda each: -each[1])


def build(folder: Path, command: list[str], target: Path, skip: str = "") -> None:
    """Build the sources of a program, all but `skip`."""
    document = json.loads((folder / "program.json").read_text())
    sources = [str(folder / name) for name in document["sources"] if name != skip]
    libraries = [f"-l{name}" for name in document["libraries"]]
    subprocess.run([*command, f"-I{folder}", *sources, *libraries, "-o", str(target)], check=True)


def align(content: np.ndarray) -> np.ndarray:
    """Return a copy of bytes at a multiple of 64 bytes."""
    room = np.empty(content.size + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    room[start : start + content.size] = content
    return room[start : start + content.size]


def point(array: np.ndarray) -> ctypes.c_void_p:
    """Return a pointer to an array, which the caller keeps."""
    return ctypes.c_void_p(array.ctypes.data)


def cpu_seconds(action: Callable[[], object]) -> float:
    """Return the seconds of processor time that a call takes."""
    before = time.process_time()
    action()
    return time.process_time() - before


def quartiles(values: np.ndarray, form: str) -> str:
    """Return the median of values, and their quartiles."""
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75))
    return f"{median:{form}} ({low:{form}} to {high:{form}})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--compiler", default="gcc -O3 -march=native")
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--share", type=float, default=2.0)
    for name in COMPILERS:
        parser.add_argument(f"--{name}", dest="others", action="append_const", const=name, default=[])
    asked = parser.parse_args()
    main(list(asked.models), shlex.split(asked.compiler), asked.runs, asked.share, asked.others)
