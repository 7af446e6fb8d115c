"""ONNX's node tests in C: `python tests/onnx_suite/c_programs.py [--alone] [JOBS] [NAME...]`.

Each case is exported, compiled, and run on the inputs of the test; what it makes is compared with the
outputs that the standard expects. Prints every case that is not right, and how many are. With `--alone`
emx-onnx-cgen translates each case as its users call it, without byoc.
"""

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

sys.path[:0] = [str(Path(__file__).parents[1])]

from helpers.c_libraries import build_library, run_library  # noqa: E402 - needs the path
from suite import Case, collect, operators  # noqa: E402 - needs the path

from byoc.errors import ByocError  # noqa: E402 - as above
from byoc.model import RANDOM_OPERATORS, copy_without  # noqa: E402 - as above
from byoc.standalone import export_c  # noqa: E402 - as above

_COMMAND = ("cc", "-std=c99", "-O1", "-w")
_BY_VALUES = frozenset({"Loop", "Range", "Compress"})  # what they make is as long as values say
# Some units in the last place are right where each step of an operator is rounded to 16 bits.
_LEAST_RTOL = {"float16": 2e-3, "bfloat16": 2.0**-6}
_MOST_SIZES = 64  # elements of an input that says sizes
_KERNELS = (
    *("kernels", "windows", "rows", "digest", "decoders", "integers", "int_windows", "conversions"),
)
_HEADERS = ("kernels.h", "rounding.h")
RIGHT, REFUSED, WRONG, BROKEN, LEFT_OUT = "right", "refused", "wrong", "does not compile", "left out"


@dataclass(frozen=True)
class ProgramOutcome:
    """What became of a case: one of the words above, and why."""

    name: str
    operator: str
    kind: str
    reason: str = ""


def find_obstacle(case: Case) -> str:
    """Return why a case has no program by its nature: of no numbers, or of no fixed extents."""
    for value in (*case.model.graph.input, *case.model.graph.output):
        if value.type.WhichOneof("value") != "tensor_type":
            return "a sequence, a map or an optional"
        if value.type.tensor_type.elem_type == 8:
            return "strings"
        shape = value.type.tensor_type.shape
        if not value.type.tensor_type.HasField("shape") or any(
            dim.WhichOneof("value") != "dim_value" for dim in shape.dim
        ):
            return "open extents"
    return "random numbers" if operators(case.model) & RANDOM_OPERATORS else ""


def store_sizes(case: Case) -> Case:
    """Return a case whose sizes, axes and the like are stored, as exporters write them.

    Those are the inputs behind the first without which the extents of the outputs are not known, and
    scalars and conditions where there is a Loop, a Range or a Compress.
    """
    if len(case.data_sets) != 1 or _knows_extents(case.model):
        return case
    inputs, expected = case.data_sets[0]
    found, tried = list[Case](), list[Case]()
    for dtypes in ((6, 7), (1, 6, 7, 9, 10, 11)):
        for first in (1, 0):
            model = copy_without(case.model, "input")
            for at, value in enumerate(case.model.graph.input):
                kind = value.type.tensor_type.elem_type
                if at >= first and kind in dtypes and np.size(inputs[value.name]) <= _MOST_SIZES:
                    array = np.asarray(inputs[value.name])
                    model.graph.initializer.append(numpy_helper.from_array(array, value.name))
                else:
                    model.graph.input.append(value)
            stored = replace(case, model=model, data_sets=((inputs, expected),))
            tried.append(stored)
            if _knows_extents(model):
                return stored
            if _knows_extents(model, of_all=False):
                found.append(stored)
    if not found and operators(case.model) & _BY_VALUES:
        return _store_scalars(tried[0])
    return (*found, *tried)[0]  # byoc may know what ONNX's inference does not


def _store_scalars(case: Case) -> Case:
    """Return a case whose scalars and conditions are stored: those say the extents."""
    inputs = case.data_sets[0][0]
    model = copy_without(case.model, "input")
    for value in case.model.graph.input:
        array = np.asarray(inputs[value.name])
        if array.ndim and array.dtype != np.bool_:
            model.graph.input.append(value)
        else:
            model.graph.initializer.append(numpy_helper.from_array(array, value.name))
    return replace(case, model=model)


def _knows_extents(model: onnx.ModelProto, of_all: bool = True) -> bool:
    """Return whether the extents of all tensors, or of all outputs, follow from the model."""
    plain = copy_without(model, "output")
    for value in model.graph.output:
        kind = helper.make_tensor_type_proto(value.type.tensor_type.elem_type, None)
        plain.graph.output.append(helper.make_value_info(value.name, kind))
    try:
        found = onnx.shape_inference.infer_shapes(plain, data_prop=True)
    except Exception:  # onnx.shape_inference.InferenceError, and others of its own functions
        return False
    return all(
        value.type.tensor_type.HasField("shape")
        and all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)
        for value in (*found.graph.output, *(found.graph.value_info if of_all else ()))
        if value.type.HasField("tensor_type") or value in found.graph.output
    )


def try_case(case: Case, folder: Path) -> ProgramOutcome:
    """Export, build and run the program of a case in an empty folder."""
    operator = case.model.graph.node[0].op_type if case.model.graph.node else ""

    def conclude(kind: str, reason: object = "") -> ProgramOutcome:
        return ProgramOutcome(case.name, operator, kind, str(reason))

    obstacle = find_obstacle(case)
    if obstacle:
        return conclude(LEFT_OUT, obstacle)
    case = store_sizes(case)
    run = _run_alone if _ALONE else _run
    try:
        _translate_alone(case, folder) if _ALONE else export_c(case.model, output=folder / "out")
    except ByocError as error:
        return conclude(REFUSED, error)
    try:
        library = _build_alone(folder) if _ALONE else _build(folder / "out")
    except subprocess.CalledProcessError as error:
        return conclude(BROKEN, error.stderr.decode(errors="replace")[:300])
    for inputs, expected in case.data_sets:
        made = run(library, case, inputs, expected)
        for name, value in expected.items():
            problem = _compare(case, np.asarray(value), made[name])
            if problem:
                return conclude(WRONG, f"{name}: {problem}")
    return conclude(RIGHT)


@cache
def _compile_kernel(name: str, content: tuple[bytes, ...]) -> str:
    """Compile a file of byoc's own kernels, equal in all programs, once; return the object."""
    folder = Path(tempfile.mkdtemp())
    for file, text in zip((*_HEADERS, f"{name}.c"), content, strict=True):
        (folder / file).write_bytes(text)
    command = [*_COMMAND, "-fPIC", "-c", f"{name}.c", "-o", f"{name}.o"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return str(folder / f"{name}.o")


def _build(out: Path) -> Path:
    headers = [(out / name).read_bytes() if (out / name).exists() else b"" for name in _HEADERS]
    objects = [
        _compile_kernel(name, (*headers, (out / f"{name}.c").read_bytes()))
        for name in _KERNELS
        if (out / f"{name}.c").exists()
    ]
    return build_library(out, _COMMAND, objects)


def _run(library: Path, case: Case, inputs: Any, expected: Any) -> Any:
    """Run the program in this process; return its outputs by name."""
    stored = {tensor.name for tensor in case.model.graph.initializer}
    given = [inputs[each.name] for each in case.model.graph.input if each.name not in stored]
    made = {
        value.name: np.zeros(
            np.shape(expected[value.name]),
            helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type),
        )
        for value in case.model.graph.output
    }
    return run_library(library, given, made)


# The programs that emx-onnx-cgen makes of a whole model: one function of its inputs and its outputs.

_ALONE = "--alone" in sys.argv
_FUNCTION = re.compile(r"^void model\((.*)\) \{$", re.MULTILINE)


def _translate_alone(case: Case, folder: Path) -> None:
    """Write `model.c`. Raises ByocError where emx-onnx-cgen refuses the model."""
    from emx_onnx_cgen.compiler import Compiler, CompilerOptions  # noqa: PLC0415 - in this mode alone

    try:
        text = Compiler(CompilerOptions(model_name="model", large_weight_threshold=0)).compile(
            case.model
        )
    except Exception as error:  # it raises KeyError and others besides its own
        raise ByocError(f"{type(error).__name__}: {error}"[:300]) from None
    (folder / "model.c").write_text(text, encoding="utf-8")


def _build_alone(folder: Path) -> Path:
    command = [*_COMMAND, "-fPIC", "-shared", "model.c", "-lm", "-o", "model.so"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "model.so"


def _run_alone(library: Path, case: Case, inputs: Any, expected: Any) -> Any:
    """Run the function in a process of its own, which a fault ends; return its outputs by name."""
    stored = {tensor.name for tensor in case.model.graph.initializer}
    given = [np.array(inputs[e.name]) for e in case.model.graph.input if e.name not in stored]
    made = {
        value.name: np.zeros_like(np.asarray(expected[value.name])) for value in case.model.graph.output
    }
    parameters = _FUNCTION.findall((library.parent / "model.c").read_text(encoding="utf-8"))[-1]
    if len(parameters.split(", ")) != len(given) + len(made):
        raise ValueError(f"it has other parameters than inputs and outputs: {parameters[:200]}")
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        arrays = [np.ascontiguousarray(each) for each in (*given, *made.values())]
        ctypes.CDLL(str(library)).model(*(ctypes.c_void_p(each.ctypes.data) for each in arrays))
        with os.fdopen(writes, "wb") as pipe:
            pipe.writelines(each.tobytes() for each in arrays[len(given) :])
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        for value in made.values():
            value[...] = np.frombuffer(pipe.read(value.nbytes), value.dtype).reshape(value.shape)
    if os.waitpid(child, 0)[1]:
        raise ValueError("its process crashed")
    return made


def _compare(case: Case, expected: Any, made: Any) -> str:
    """Return how an output is off, by the tolerance that the test states; empty if it is not."""
    if made.shape != expected.shape or made.dtype != expected.dtype:
        return f"is {made.dtype}{made.shape} instead of {expected.dtype}{expected.shape}"
    whole = expected.dtype.kind in "biu" or expected.dtype.name.startswith(("int", "uint"))
    one, other = (each.astype(np.int64 if whole else np.float64) for each in (expected, made))
    rtol = 0.0 if whole else max(case.rtol, _LEAST_RTOL.get(expected.dtype.name, 0.0))
    largest = float(np.max(np.abs(one[np.isfinite(one)]), initial=0.0))
    try:
        np.testing.assert_allclose(
            other, one, rtol=rtol, atol=0.0 if whole else max(case.atol, 1e-6 * largest)
        )
    except AssertionError as error:
        return re.sub(r"\s+", " ", str(error))[:200]
    return ""


_cases: list[Case] = []


def _collect() -> None:
    _cases.extend(each for each in collect() if each.kind == "node")


def _try_number(number: int) -> ProgramOutcome:
    folder = Path(tempfile.mkdtemp(prefix="byoc-c-"))
    try:
        return try_case(_cases[number], folder)
    except Exception as error:  # the table counts what should not be
        return ProgramOutcome(_cases[number].name, "", WRONG, f"{type(error).__name__}: {error}")
    finally:
        shutil.rmtree(folder)


def format_table(outcomes: Sequence[ProgramOutcome]) -> str:
    """Return lines that count the outcomes, those refused by operator, those left out by reason."""
    counts = Counter(each.kind for each in outcomes)
    fit = len(outcomes) - counts[LEFT_OUT]
    named = ", ".join(f"{counts[kind]} {kind}" for kind in (RIGHT, REFUSED, WRONG, BROKEN))
    share = 100 * counts[RIGHT] / max(fit, 1)
    lines = [f"{len(outcomes)} cases, {fit} of fixed extents and numbers: {named}; {share:.1f} % right"]
    for kind, reasons in (
        (REFUSED, Counter(each.operator for each in outcomes if each.kind == REFUSED)),
        (LEFT_OUT, Counter(each.reason for each in outcomes if each.kind == LEFT_OUT)),
    ):
        if reasons:
            told = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
            lines.append(f"{kind}: {told}")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Run all cases, or those named; print those that are not right, and return the exit code."""
    arguments = [each for each in arguments if each != "--alone"]
    _collect()
    chosen = [i for i, case in enumerate(_cases) if not arguments[1:] or case.name in arguments[1:]]
    outcomes = []
    with ProcessPoolExecutor(int((*arguments, "2")[0]), get_context("spawn"), _collect) as pool:
        for each in pool.map(_try_number, chosen):
            outcomes.append(each)
            if each.kind != RIGHT:
                sys.stdout.write(f"{each.kind}: {each.name} ({each.operator}): {each.reason}\n")
                sys.stdout.flush()
    sys.stdout.write(f"{format_table(outcomes)}\n")
    return int(any(each.kind in (WRONG, BROKEN) for each in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
