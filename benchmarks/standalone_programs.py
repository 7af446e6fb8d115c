"""Programs in C against onnxruntime on one thread, and what each kind of operator takes of them.

    python benchmarks/standalone_programs.py [--compiler COMMAND] [--runs N] [--share PERCENT] [--iree]
        [MODEL...]

`export-c` writes the program. Its model is built as a library, and both run in turn in this process, on
the sample that the program comes with; times are of processors, the ratio is that of each turn, and
medians and quartiles are printed. With `--iree` so does what IREE compiles of the whole model for this
processor (its `llvm-cpu`, one thread); the second ratio is that of it to the program. A model that IREE
refuses has the refusal there. Then the program is built with -DMODEL_PROFILE, and says what each kind of
operator takes; kinds of less than `--share` percent are summed up.
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

import byoc
from byoc.errors import ByocError
from byoc.samples import model_samples
from byoc.standalone import export_c
from byoc.zoo import load_model

MODELS = ("zoo:squeezenet", "zoo:mobilenet_v3_large", "zoo:resnet50", "zoo:bert")
ANYTHING = "{target: any, cost_model: near.yaml, dtype: any, regions: connected, ops: [{op: '*'}]}"
COSTS = (
    "{name: near, kind: roofline, peak: {default: 1.0e+12}, bandwidth: 1.0e+12, link: {bandwidth: .inf}}"
)
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


def main(models: list[str], compiler: list[str], runs: int, share: float, iree: bool) -> None:
    """Print a row for each model, then the profiles."""
    print(f"{machine()}, onnxruntime {onnxruntime.__version__}, {shlex.join(compiler)}, {runs} in turn")
    more = " IREE, ms | IREE to C |" if iree else ""
    print(f"| | in C, ms | onnxruntime, ms | ratio |{more} error |")
    print("|---|---|---|---|" + "---|---|" * iree + "---|")
    profiles = []
    for model in models:
        with TemporaryDirectory() as name:
            folder = Path(name) / "out"
            export_c(model, output=folder)
            print(compare(model, folder, compiler, runs, iree), flush=True)
            profiles.append((model, take_profile(folder, compiler, runs)))
    for model, rows in profiles:
        shown = [f"{kind} {part:.1f}" for kind, part in rows if part >= share]
        others = sum(part for _, part in rows if part < share)
        print(f"{model}, percent: {', '.join(shown)}, others {others:.1f}")


def compare(model: str, folder: Path, compiler: list[str], runs: int, iree: bool) -> str:
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
    refusal = ""
    if iree:
        try:
            actions.append(compile_iree(model, folder.parent / "iree", given))
        except ByocError as error:
            refusal = str(error)
    times = [[cpu_seconds(action) for action in actions] for _ in range(runs + 2)][2:]
    columns = np.array(times).T
    ratio = quartiles(columns[0] / columns[1], ".2f")
    error = max(
        float(np.max(np.abs(one - other)) / np.ptp(one))
        for one, other in zip(expected, made, strict=True)
    )
    cells = [*(quartiles(column * 1e3, ".1f") for column in columns[:2]), ratio]
    if refusal:
        cells += [refusal, ""]
    elif iree:
        cells += [quartiles(columns[2] * 1e3, ".1f"), quartiles(columns[2] / columns[0], ".2f")]
    return f"| {model} | {' | '.join(cells)} | {error:.1e} |"


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
    parser.add_argument("--iree", action="store_true")
    asked = parser.parse_args()
    main(list(asked.models), shlex.split(asked.compiler), asked.runs, asked.share, asked.iree)
