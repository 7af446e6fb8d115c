"""Emitted functions proven when a program is made: compiled for this machine, run, and judged by ONNX.

Each kind of function is run on samples that reach the ends of types, NaN and infinities included
(`byoc.verification`). What was right is kept in the user's cache under the text of the function, the
compiler and the samples, so that the next program with that function costs nothing.
"""

import hashlib
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from byoc._dataclasses import dataclass
from byoc.errors import InputError, shorten_text
from byoc.standalone._program_graph import fill_template
from byoc.support import report_step
from byoc.support.cache import CacheEntry, open_user_cache
from byoc.verification import FunctionTrial, FunctionVerdict, make_function_trial

# The compiler of this machine. $BYOC_CC may be for another one, whose programs do not run here.
_COMMAND = ("cc", "-O1", "-w")
_CACHED_AS = "c-function"  # in the list of `byoc cache`
_FORMAT = 2  # of what is kept
_MOST_SECONDS = 60  # of a function on all its samples; most take milliseconds
_MOST_CHARACTERS = 300  # of a compiler's message
_CHUNK = re.compile(r"^/\*\n \* Node (\d+):\n", re.MULTILINE)
_HELPER = re.compile(r"^static [^\n;=]*?\b(\w+)\([^;]*?\) \{\n.*?^\}\n", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"(?<![A-Za-z0-9])(node|n|Node |weight)\d+(?=_|:)")

Operands = Sequence[tuple[str, int]]
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Proof:
    """The outcome of proving the functions of a program.

    `wrong` has what is wrong with functions, by number. `not_proven` is why some or all were not tried,
    as a sentence without its end, empty where all were; `tried` counts those that were. `overruled` are
    the functions, by number, that compute what ONNX defines, while onnxruntime computes something else.
    """

    wrong: Mapping[int, str]
    tried: int
    not_proven: str = ""
    overruled: frozenset[int] = frozenset()


@dataclass(frozen=True, eq=False)
class _Function:
    """A function to prove: its number, name and operands, its text, and its trial."""

    number: int
    name: str
    operands: Operands
    text: str
    trial: FunctionTrial

    def list_values(self, side: str) -> list[onnx.ValueInfoProto]:
        """Return the operands of a side, "i" or "o", in the order of the call."""
        graph = self.trial.model.graph
        values = {each.name: each for each in (*graph.input, *graph.output)}
        for tensor in graph.initializer:
            known = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            values.setdefault(tensor.name, known)
        return [values[f"n0_{one}{at}"] for one, at in self.operands if one == side]

    def list_places(self) -> list[int]:
        """Return the place of each operand of the call among its inputs, and its outputs behind them."""
        first = {"i": 0, "o": sum(side == "i" for side, _ in self.operands)}
        found = []
        for side, _ in self.operands:
            found.append(first[side])
            first[side] += 1
        return found

    def list_arguments(self, sample: Values) -> list[NDArray[Any]]:
        """Return the inputs of a call on a sample, constants among them."""
        graph = self.trial.model.graph
        known = {each.name: numpy_helper.to_array(each) for each in graph.initializer} | dict(sample)
        return [np.ascontiguousarray(known[value.name]) for value in self.list_values("i")]


def prove_functions(
    source: str,
    header: str,
    functions: Sequence[tuple[str, Operands]],
    models: Sequence[onnx.ModelProto],
    prefix: str = "",
) -> Proof:
    """Prove functions: `functions[i]` has to compute `models[i]`, whose tensors are n0_i0, n0_o0, ...

    `source` and `header` are C, with a comment `Node i:` before each function; operands are ("i", 2) for
    the third input, ("o", 0) for the first output; names begin with `prefix`.
    """
    compiler = _describe_compiler()
    if not compiler:
        return Proof({}, 0, f"there is no C compiler '{_COMMAND[0]}' here")
    report_step("prove functions")
    texts = _split_source(source.replace(prefix, "") if prefix else source)
    kept, open_ones, untried = open_user_cache(), [], []
    keys: dict[int, str] = {}
    overruled = set[int]()
    for number, ((name, operands), model) in enumerate(zip(functions, models, strict=True)):
        try:
            trial = make_function_trial(model, model.graph.node[0].op_type)
        except InputError as error:
            untried.append(str(error))
            continue
        text = texts[number]
        parts = (_FORMAT, text, compiler, _COMMAND, trial.digest)
        keys[number] = hashlib.sha256(repr(parts).encode()).hexdigest()
        entry = None if kept is None else kept.find(keys[number])
        if entry is None:
            open_ones.append(_Function(number, name, operands, text, trial))
        elif entry.facts["overruled"]:
            overruled.add(number)
    try:
        verdicts, endless = _try_functions(source, header, open_ones) if open_ones else ({}, {})
    except InputError as error:
        return Proof({}, 0, str(error))
    wrong = {number: verdict.problem for number, verdict in verdicts.items() if verdict.problem}
    for each in open_ones:
        if each.number in {*wrong, *endless}:
            continue
        is_overruled = verdicts[each.number].is_overruled
        if is_overruled:
            overruled.add(each.number)
        if kept is not None:
            facts = {"codegen": _CACHED_AS, "overruled": is_overruled}
            kept.store(keys[each.number], CacheEntry(facts))
    reasons = dict.fromkeys([*untried, *endless.values()])
    tried = len(keys) - len(endless)
    return Proof(wrong, tried, "; ".join(reasons), frozenset(overruled))


def _split_source(source: str) -> list[str]:
    """Return the text that each function depends on, without numbers: its own, and helpers before it."""
    starts = [match.start() for match in _CHUNK.finditer(source)]
    before = source[: starts[0]]
    helpers = {match[1]: match[0] for match in _HELPER.finditer(before)}
    rest = _HELPER.sub("", before)
    found = []
    for start, end in zip(starts, [*starts[1:], len(source)], strict=True):
        text, used = source[start:end], dict[str, str]()
        waiting = [text]
        while waiting:
            words = set(re.findall(r"\w+", waiting.pop()))
            fresh = [name for name in helpers if name in words and name not in used]
            used |= {name: helpers[name] for name in fresh}
            waiting += [helpers[name] for name in fresh]
        found.append(_NUMBER.sub(r"\1", "".join((rest, *(used[name] for name in sorted(used)), text))))
    return found


def _try_functions(
    source: str, header: str, functions: Sequence[_Function]
) -> tuple[dict[int, FunctionVerdict], dict[int, str]]:
    """Build a program of some functions and run each.

    Returns verdicts, and why a function was stopped before it could be judged, both by number.
    Raises InputError where this machine's compiler refuses it, or there is no memory to run it.
    """
    with TemporaryDirectory(prefix="byoc-") as name:
        folder = Path(name)
        (folder / "nodes.h").write_text(header, encoding="utf-8")
        (folder / "nodes.c").write_text(source, encoding="utf-8")
        (folder / "prove.c").write_text(_write_program(functions), encoding="utf-8")
        command = [*_COMMAND, "nodes.c", "prove.c", "-lm", "-o", "prove"]
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if ran.returncode:
            said = shorten_text(ran.stderr.strip() or "it says nothing", _MOST_CHARACTERS)
            raise InputError(f"'{_COMMAND[0]}' refuses the functions of emx-onnx-cgen: {said}")
        verdicts, endless = {}, {}
        for place, each in enumerate(functions):
            try:
                verdicts[each.number] = _try_function(folder / "prove", place, each)
            except subprocess.TimeoutExpired:
                kind = each.trial.model.graph.node[0].op_type
                endless[each.number] = f"a function of {kind} has not ended after {_MOST_SECONDS} s"
    return verdicts, endless


def _write_program(functions: Sequence[_Function]) -> str:
    sizes = [[_count_bytes(each) for side in "io" for each in f.list_values(side)] for f in functions]
    firsts = np.cumsum([0, *map(len, sizes)]).tolist()
    calls = [
        f"static void call_{place}(void *const *at) {{\n"
        f"    {f.name}({', '.join(f'at[{at}]' for at in f.list_places())});\n}}\n"
        for place, f in enumerate(functions)
    ]
    return fill_template(
        "prove.c.in",
        {
            "calls": "\n".join(calls),
            "most": max(len(row) for row in sizes),
            "names": ", ".join(f"call_{place}" for place in range(len(functions))),
            "bytes": "".join(f"{size}, " for row in sizes for size in row),
            "firsts": ", ".join(map(str, firsts)),
            "inputs": ", ".join(str(len(f.list_values("i"))) for f in functions),
        },
    )


def _try_function(program: Path, place: int, function: _Function) -> FunctionVerdict:
    """Run a function on its samples; return the verdict.

    Raises subprocess.TimeoutExpired where it does not end in time, which need not be wrong: operands of
    a node may be large, and this machine slow.
    """
    with (program.parent / "samples").open("w+b") as given:
        for sample in function.trial.samples:
            given.write(b"\1")
            for array in function.list_arguments(sample.inputs):
                given.write(array.tobytes())
        given.seek(0)
        ran = subprocess.run(
            [str(program), str(place)],
            stdin=given,
            capture_output=True,
            check=False,
            timeout=_MOST_SECONDS,
        )
    if ran.returncode < 0:
        return FunctionVerdict(f"it ends with {signal.Signals(-ran.returncode).name}")
    if ran.returncode:
        raise InputError(f"functions cannot be run here: the program ended with {ran.returncode}")
    made, overwritten = _read_results(ran.stdout, function.list_values("o"), len(function.trial.samples))
    if overwritten:
        return FunctionVerdict("it writes behind an operand")
    return function.trial.judge(made)


def _read_results(
    content: bytes, outputs: Sequence[onnx.ValueInfoProto], count: int
) -> tuple[list[Values], bool]:
    at, overwritten = 0, False
    made: list[Values] = []
    for _ in range(count):
        overwritten |= content[at] != 0
        at += 1
        values = {}
        for value in outputs:
            size = _count_bytes(value)
            array: NDArray[Any] = np.frombuffer(
                content, _get_dtype(value), size // _get_dtype(value).itemsize, at
            )
            values[value.name] = array.reshape(_get_shape(value))
            at += size
        made.append(values)
    return made, overwritten


def _get_dtype(value: onnx.ValueInfoProto) -> np.dtype[Any]:
    return np.dtype(helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))


def _get_shape(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    return tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)


def _count_bytes(value: onnx.ValueInfoProto) -> int:
    return int(np.prod(_get_shape(value), dtype=np.int64)) * _get_dtype(value).itemsize


@cache
def _describe_compiler() -> str:
    """Return the compiler's version and machine; empty where there is none."""
    try:
        said = [
            subprocess.run([_COMMAND[0], option], capture_output=True, text=True, check=True).stdout
            for option in ("--version", "-dumpmachine")
        ]
    except (OSError, subprocess.CalledProcessError):
        return ""
    return "\n".join(said)
