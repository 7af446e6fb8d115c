"""The text of a program's own source, `model.h` and `model.c`, and the file of its constants."""

import hashlib
import re
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from byoc._dataclasses import dataclass, field
from byoc.errors import InputError
from byoc.memory.arena import ArenaPlan
from byoc.model import DTYPE_NUMBERS
from byoc.numerics import round_up
from byoc.standalone._kernel_calls import SHARED_KERNELS
from byoc.standalone._program_graph import (
    SCRATCH,
    Call,
    ProgramGraph,
    describe_in_comment,
    fill_template,
    quote,
    read_source,
)
from byoc.standalone._program_steps import ProgramStep, ProgramSteps, count_scratch
from byoc.standalone._region_text import RegionCalls, RegionText, list_crossing, plan_region_calls
from byoc.standalone._small_types import view_as_stored

# The file of a program's constants, which it maps or embeds: weights, and artifacts of regions.

ByteOrder = Literal["little", "big"]
HEADER_BYTES = 64  # of a weight file
IDENTITY_BYTES = 8  # of a SHA-256, which program and weight file share
ALIGNMENT = 64  # bytes, of each tensor in a weight file
_MAGIC = b"BYOCWGHT"
_MARK = 0x01020304  # reads otherwise on a machine of the other byte order
_START_BYTES = 8  # by which parts are found that may begin with others
_VERSION = 1  # of the weight file's layout


@dataclass
class ProgramWeights:
    """Constants at aligned offsets behind a header; what equals another, or begins it, is stored once.

    The header of 64 bytes has `BYOCWGHT`, the number 0x01020304 and the version, 32 bits each, the
    size of the file in 64 bits, and 8 bytes that name the content; numbers in the given byte order.
    """

    order: ByteOrder
    parts: list[bytes] = field(default_factory=list)
    size: int = HEADER_BYTES
    offsets: dict[bytes, int] = field(default_factory=dict)
    starts: dict[bytes, list[tuple[int, int]]] = field(default_factory=dict)
    """The offset of each part and its place in `parts`, by its first bytes."""

    def add_array(self, array: NDArray[Any]) -> int:
        """Add an array, its elements in the file's byte order; return its offset."""
        return self.add_bytes(to_byte_order(array, self.order))

    def add_bytes(self, content: bytes) -> int:
        """Add bytes as they are; return their offset."""
        digest = hashlib.sha256(content).digest() + len(content).to_bytes(8)
        if digest not in self.offsets:
            self.offsets[digest] = self._place(content)
        return self.offsets[digest]

    def _place(self, content: bytes) -> int:
        """Return the offset of a part that begins with some bytes, which is a new one if none does.

        So the first rows of a table, read at other sizes of an open dimension, are where the table is.
        """
        same = self.starts.setdefault(content[:_START_BYTES], [])
        for offset, number in same:
            if self.parts[number].startswith(content):
                return offset
        offset = self.size
        padded = round_up(len(content), ALIGNMENT)
        same.append((offset, len(self.parts)))
        self.parts.append(content + bytes(padded - len(content)))
        self.size += padded
        return offset

    @property
    def identity(self) -> bytes:
        """Eight bytes that name the content."""
        found = hashlib.sha256()
        for part in self.parts:
            found.update(part)
        return found.digest()[:IDENTITY_BYTES]

    def list_parts(self) -> Iterable[bytes]:
        """Return the file's bytes, the header first."""
        numbers = struct.pack("<IIQ" if self.order == "little" else ">IIQ", _MARK, _VERSION, self.size)
        header = _MAGIC + numbers + self.identity
        return [header + bytes(HEADER_BYTES - len(header)), *self.parts]


def to_byte_order(array: NDArray[Any], order: ByteOrder) -> bytes:
    """Return the elements of an array, row-major, in a byte order."""
    dense = np.ascontiguousarray(array)
    if order == sys.byteorder or dense.dtype.itemsize == 1:
        return dense.tobytes()
    single = dense.reshape(-1).view(np.uint8).reshape(-1, dense.dtype.itemsize)
    return single[:, ::-1].tobytes()


def make_sample_file(arrays: Iterable[NDArray[Any]], order: ByteOrder) -> bytes:
    """Return arrays one behind another, each at a multiple of 64 bytes."""
    result = bytearray()
    for array in arrays:
        result += to_byte_order(array, order)
        result += bytes(round_up(len(result), ALIGNMENT) - len(result))
    return bytes(result)


TOLERANCE = 1e-5
"""The largest error of floats, as a share of the range of what onnxruntime computes, without noise."""
# What is written with nine digits is not below what was measured: of integers that is one unit.
_ABOVE = 1 + 1e-6

_BFLOAT16_UNIT = 2.0**-7
"""The step between two numbers of bfloat16 as a share of the lower one: results are rounded to it."""

WEIGHTS_FILE = "weights.bin"


_WORKERS = """/* Threads that share steps, the caller's included. */
#define MODEL_THREADS {threads}

typedef struct model_worker {{
    struct model *opened;
    pthread_t thread;
    int32_t number;
}} model_worker;

"""
_TEAM = """    pthread_mutex_t lock;
    pthread_cond_t begun, ended;
    unsigned long round;
    size_t step;
    int32_t started, left, closing;
    model_worker workers[MODEL_THREADS - 1];
"""


@dataclass(frozen=True)
class ModelText:
    """The text of `model.h` and `model.c`."""

    header: str
    source: str


@dataclass(frozen=True)
class ProgramForm:
    """The form of a program: whether its weights are embedded, and how it gets drivers.

    `abis` has the version of the table that each codegen's driver is linked by. Where the file of
    weights is another than the program's own, it is one of several programs for other devices, which
    finds drivers where it runs.
    """

    abis: Mapping[str, int]
    embed: bool = False
    weights_file: str = WEIGHTS_FILE

    @property
    def finds_drivers(self) -> bool:
        """Whether drivers are opened where the program runs."""
        return self.weights_file != WEIGHTS_FILE


@dataclass(frozen=True)
class RunText:
    """The text of a run: constant structures, the statements that read them, and when regions run.

    `shares` are cases of a switch, one for each step that threads share.
    """

    structures: str
    body: str
    calls: RegionCalls
    shares: str


@dataclass
class SharedText:
    """The weights, constant structures and steps of threads that all runs of a source share."""

    weights: ProgramWeights
    names: dict[str, str] = field(default_factory=dict)
    shares: list[str] = field(default_factory=list)

    def name_structure(self, call: Call) -> str:
        """Return the name of a call's structure, which is defined once for equal ones."""
        key = f"{call.kind} {call.structure}"
        number = len(self.names)
        return self.names.setdefault(key, f"{call.kind.removeprefix('kernel_')}_{number}")

    def format_structures(self) -> str:
        """Return the definitions of the structures."""
        return "".join(
            f"static const {kind} {name} = {structure};\n"
            for key, name in self.names.items()
            for kind, _, structure in [key.partition(" ")]
        )


@dataclass(frozen=True, eq=False)
class ProgramText:
    """The text of a program's steps, for each combination of the sizes of its open dimensions.

    Without `ranges` there is one combination. `header` declares the sizes and `includes` the functions
    of nodes; `tensors` are the tables of inputs and outputs, by combination; `run` has the steps of all
    combinations. `files` are those of functions of nodes, and `sample` the inputs and outputs of all
    combinations, as they are stored. `plan` is the largest, and its bound that of any combination.
    `tried` counts the functions that were proven.
    """

    ranges: Mapping[str, tuple[int, int]]
    combinations: int
    header: str
    includes: str
    tensors: str
    run: RunText
    files: Mapping[str, bytes]
    kernel_files: Sequence[str]
    sample: Sequence[NDArray[Any]]
    plan: ArenaPlan
    tried: int
    not_proven: str


def write_model_text(
    graph: ProgramGraph, text: ProgramText, threads: int, weights: ProgramWeights, form: ProgramForm
) -> ModelText:
    """Write the source of a model, whose constants the weights have; those of regions are added.

    `graph` is that of the largest sizes, and `threads` compute steps. Raises InputError for elements of
    less than a byte between host and regions.
    """
    run, plan = text.run, text.plan
    has_threads = bool(run.shares)
    regions = RegionText.write(
        graph, weights, run.calls, form.abis, form.finds_drivers, has_threads=has_threads
    )
    sharing = fill_template("threads.c.in", {"cases": run.shares}) if has_threads else ""
    title = describe_in_comment(graph.display_name)
    proven = "which no plan can beat" if plan.is_minimal else f"of which {plan.bound} are needed"
    source = fill_template(
        "model.c.in",
        {
            "title": title,
            "plan": f"The plan of the arena has {plan.size} bytes, {proven}.",
            "includes": '#include "kernels.h"\n' + text.includes,
            "tensors": text.tensors,
            "structures": run.structures,
            "regions": regions.definitions,
            "identity": ", ".join(map(str, weights.identity)),
            "header": HEADER_BYTES,
            "threads": f"\n{sharing}" if sharing else "",
            "opening": regions.opening,
            "run": run.body,
        },
    )
    embedded = f"\n#define MODEL_EMBEDDED 1\nextern const unsigned char model_weights[{weights.size}];\n"
    header = fill_template(
        "model.h.in",
        {
            "title": title,
            "includes": "#include <pthread.h>\n" * has_threads + regions.includes,
            "inputs": len(graph.sample),
            "outputs": len(graph.expected),
            "plan": plan.size,
            "weights": weights.size,
            "weights_file": form.weights_file,
            "tolerance": TOLERANCE,
            "tensors": read_source("tensors.h.in").decode(),
            "sizes": text.header,
            "given": "const model_sizes *sizes, " if text.ranges else "",
            "embedded": embedded if form.embed else "",
            "members": regions.members,
            "workers": _WORKERS.format(threads=threads) if has_threads else "",
            "team": _TEAM if has_threads else "",
            "functions": regions.functions,
        },
    )
    return ModelText(header, source)


def write_run_text(
    graph: ProgramGraph,
    steps: ProgramSteps,
    shared: SharedText,
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> RunText:
    """Write the steps of a graph, from `inputs` to `outputs`.

    Its constants are added to the weights. The text of the last run has the structures of all that share
    them.
    """
    calls = plan_region_calls(graph, steps)
    writer = _StepWriter(graph, steps, shared, calls)
    body = "".join(_copy_inputs(graph, steps, inputs))
    body += "".join(writer.write(number) for number in range(len(steps.steps)))
    body += writer.end_regions(len(steps.steps))
    body += "".join(writer.copy_outputs(outputs))
    return RunText(shared.format_structures(), body, calls, "".join(shared.shares))


class _StepWriter:
    """Writes the calls of steps, and the constant structures that they point to."""

    def __init__(
        self, graph: ProgramGraph, steps: ProgramSteps, shared: SharedText, calls: RegionCalls
    ) -> None:
        self.graph, self.steps, self.shared, self.calls = graph, steps, shared, calls

    def write(self, number: int) -> str:
        """Return the lines of a step, behind the ends and beginnings of regions that stand there."""
        step = self.steps.steps[number]
        text = self.end_regions(number)
        for place in self.calls.list_begun(number):
            text += self._write_title(place) + self._begin_region(self.steps.steps[place])
        if step.call is not None:
            call = f"    {self._write_call(step.call, step.scratch)};\n"
            if step.guards:
                truths = (f"{'' if truth else '!'}IS_TRUE({self.find(n)})" for n, truth in step.guards)
                call = f"    if ({' && '.join(truths)}) {{\n    {call}    }}\n"
            return f"{text}{self._write_title(number)}{call}"
        return text if self.calls.spans else text + self._write_title(number) + self._run_region(step)

    def end_regions(self, number: int) -> str:
        """Return the lines that wait for the regions whose ends are needed before a step."""
        return "".join(
            f"    if (end_region(opened, {self.steps.steps[place].region})) {{\n"
            "        return abandon(opened);\n    }\n"
            for place in self.calls.list_ended(number)
        )

    def _write_title(self, number: int) -> str:
        step = self.steps.steps[number]
        title = f"    /* {number}: {describe_in_comment(step.title)} */\n"
        return f"{title}    STEP({quote(self._name_kind(step))});\n"

    def _run_region(self, step: ProgramStep) -> str:
        inputs, outputs = ([*map(self.find, side)] for side in list_crossing(self.graph, step))
        return (
            f"    if (run_region(opened, {step.region}, (const void *const[]){{"
            f"{', '.join(inputs) or 'NULL'}}}, "
            f"(void *const[]){{{', '.join(outputs)}}})) {{\n        return 1;\n    }}\n"
        )

    def _begin_region(self, step: ProgramStep) -> str:
        text = ""
        for side, names in zip(("inputs", "outputs"), list_crossing(self.graph, step), strict=True):
            rows = ", ".join(map(self._bind, names)) or "{NULL, NULL, 0}"
            text += f"    const byoc_binding {side}_{step.region}[] = {{{rows}}};\n"
        return (
            f"{text}    if (begin_region(opened, {step.region}, inputs_{step.region}, "
            f"outputs_{step.region})) {{\n        return abandon(opened);\n    }}\n"
        )

    def _bind(self, name: str) -> str:
        """Return the binding of a tensor: the arena, or a buffer that passes it to other regions."""
        link = self.calls.links.get(name)
        if link is None:
            return f"{{{self.find(name)}, NULL, 0}}"
        return f"bind_link(opened, {link}, {self.find(name)})"

    def copy_outputs(self, names: Sequence[str]) -> list[str]:
        """Return the lines that copy the outputs of a run to the caller."""
        return [
            f"    memcpy(outputs[{i}], {self.find(name)}, {self.graph.sizes.count_bytes(name)});\n"
            for i, name in enumerate(names)
            if self.graph.sizes.count_bytes(name)
        ]

    def find(self, name: str) -> str:
        """Return the pointer to a tensor, in C."""
        offset = self.steps.find_offset(name)
        if offset is not None:
            return f"AT({offset})"
        stored = view_as_stored(self.graph.get_constant(name), self.graph.get_dtype(name))
        return f"WEIGHT({self.shared.weights.add_array(stored)})"

    def _write_call(self, call: Call, scratch: int) -> str:
        has_shares = call.function in SHARED_KERNELS
        is_shared = has_shares and self.steps.threads > 1
        given = []
        if call.structure:
            given.append(f"&{self.shared.name_structure(call)}")
        for operand in call.operands:
            if isinstance(operand, np.ndarray):
                given.append(f"WEIGHT({self.shared.weights.add_array(operand)})")
            elif operand == SCRATCH:
                own = f" + (size_t)share.number * {count_scratch(call)}" if is_shared else ""
                given.append(f"AT({scratch}{own})")
            else:
                given.append("NULL" if operand is None else self.find(operand))
        if has_shares:
            given.append("share" if is_shared else "KERNEL_WHOLE")
        text = f"{call.function}({', '.join(given)})"
        if not is_shared:
            return text
        number = len(self.shared.shares)
        self.shared.shares.append(f"    case {number}:\n        {text};\n        break;\n")
        return f"share_step(opened, {number})"

    def _name_kind(self, step: ProgramStep) -> str:
        """Return the kind of a step in a profile: its first operator, or the codegen of its region."""
        kinds = [self.graph.index.nodes[number].op_type for number in step.nodes]
        operator = next((kind for kind in kinds if kind != "DequantizeLinear"), kinds[0])
        if step.call is None:
            return f"region of {self.graph.regions[kinds[0]].codegen}"
        return f"{operator}, depthwise" if "depthwise" in step.call.function else operator


def _copy_inputs(graph: ProgramGraph, steps: ProgramSteps, names: Sequence[str]) -> list[str]:
    found = []
    for i, name in enumerate(names):
        offset, size = steps.find_offset(name), graph.sizes.count_bytes(name)
        if offset is not None and size:
            found.append(f"    memcpy(AT({offset}), inputs[{i}], {size});\n")
    return found


def describe_tensors(graph: ProgramGraph, array: str, names: Sequence[str], storage: str = "") -> str:
    """Return the definitions of a table of inputs or outputs; `storage` is `static ` where C has it."""
    shapes, rows = [], []
    for number, name in enumerate(names):
        shape = graph.get_shape(name)
        extents = ", ".join(map(str, shape)) or "1"
        shapes.append(f"static const int64_t {array}_shape_{number}[] = {{{extents}}};\n")
        dtype = DTYPE_NUMBERS[graph.get_dtype(name)]
        sizes = f"{prod(shape)}, {graph.sizes.count_bytes(name)}"
        rows.append(f"    {{{quote(name)}, {dtype}, {len(shape)}, {array}_shape_{number}, {sizes}}},\n")
    end = "    {NULL, 0, 0, NULL, 0, 0},\n"
    return f"{''.join(shapes)}{storage}const model_tensor {array}[] = {{\n{''.join(rows)}{end}}};\n"


def list_noise(graph: ProgramGraph, first: int = 0) -> list[str]:
    """Return rows of the table of noise, in shares of the range that `main.c` divides by.

    `first` is the number of the first output: those of a further combination of sizes come behind.
    """
    rows = []
    for number, (name, expected) in enumerate(graph.expected.items(), first):
        values = expected.astype(np.float64)
        values = values[np.isfinite(values)]
        scale = (float(np.ptp(values)) or float(np.abs(values).max()) or 1.0) if values.size else 1.0
        allowed = [(each.largest, each.power) for each in graph.noise.get(name, ())]
        if graph.get_dtype(name) == "bfloat16" and values.size:
            unit = float(np.abs(values).max()) * _BFLOAT16_UNIT
            allowed.append((unit, unit**2))
        rows += [
            f"    {{{number}, {_ABOVE * largest / scale:.9g}, {_ABOVE * power / scale**2:.9g}}},\n"
            for largest, power in allowed
            if largest > TOLERANCE * scale
        ]
    return rows


def format_noise(rows: Sequence[str]) -> str:
    """Return the definition of the table of noise."""
    end = "    {0, 0, 0},\n"
    return f"const model_noise model_noises[] = {{\n{''.join(rows)}{end}}};\n"


# Names of a program: several models in one program have names of their own.

PREFIX = "model"
"""What the names of files, functions and targets of a program begin with, unless it is told."""
_PREFIX = re.compile(r"[a-z][a-z0-9_]{0,39}")
_TAKEN = frozenset(
    [
        *("kernel", "kernels", "nodes", "rows", "windows", "decoders", "digest", "integers"),
        *(
            "int_windows",
            "wide_integers",
            "rounding",
            "conversions",
            "functions",
            "main",
            "weights",
            "byoc",
        ),
    ]
)
KEYWORDS = frozenset(
    [
        *("auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else"),
        *("enum", "extern", "float", "for", "goto", "if", "inline", "int", "long", "register"),
        *("restrict", "return", "short", "signed", "sizeof", "static", "struct", "switch", "typedef"),
        *("union", "unsigned", "void", "volatile", "while"),
        *("class", "new", "delete", "this", "template", "namespace", "private", "public", "using"),
    ]
)
"""Keywords of C99, and those of C++ that are likely names: headers are for both."""
# A comment or a string, which stay, a header of the program, or a name that other files can see.
_SEEN = re.compile(
    r"/\*.*?\*/|(?P<header>#include \"model\.h\")|\"(?:\\.|[^\"\\])*\"|"
    r"\b(?P<own>model|MODEL)(?P<rest>_\w+)?\b|\b(?P<part>(?:kernel|(?:sizes_\d+_)?(?:node|weight)\d+)_\w+|KERNEL\w*|NODES_H)\b",
    re.DOTALL,
)
_IN_COMMENT = re.compile("`model_")
_IN_TEXT = re.compile(r"`model\.([ch])`|\bmodel_(test|arena_bytes)\b|\bMODEL_(PROFILE)\b")


CODE_SUFFIXES = (".c", ".h", ".S")
"""Endings of the files of a program that a compiler reads; the others are data and texts."""


def check_prefix(prefix: str) -> None:
    """Raise InputError unless names can begin with a prefix."""
    if not _PREFIX.fullmatch(prefix) or prefix in _TAKEN | KEYWORDS:
        raise InputError(
            f"prefix '{prefix}': a name in small letters, digits and _ is expected, which C does not "
            "use, such as detector"
        )


def rename_program(contents: Mapping[str, bytes], prefix: str) -> dict[str, bytes]:
    """Return the files of a program whose names begin with a prefix: of files, functions and macros.

    Drivers and their interface keep their names: programs with regions of the same codegen share them.
    """
    if prefix == PREFIX:
        return dict(contents)

    def rename(match: re.Match[str]) -> str:
        if match["header"]:
            return f'#include "{prefix}.h"'
        if match["own"]:
            return (prefix if match["own"] == PREFIX else prefix.upper()) + (match["rest"] or "")
        if match["part"]:
            return f"{prefix if match['part'][0].islower() else prefix.upper()}_{match['part']}"
        return _IN_COMMENT.sub(rf"`{prefix}_", match[0]) if match[0].startswith("/*") else match[0]

    def rename_in_text(match: re.Match[str]) -> str:
        if match[1]:
            return f"`{prefix}.{match[1]}`"
        return f"{prefix}_{match[2]}" if match[2] else f"{prefix.upper()}_{match[3]}"

    found = {}
    for name, content in contents.items():
        path = f"{prefix}{name[len(PREFIX) :]}" if name in ("model.h", "model.c") else name
        found[path] = content
        if name == "README.md":
            found[path] = _IN_TEXT.sub(rename_in_text, content.decode()).encode()
        elif name.endswith(CODE_SUFFIXES) and "/" not in name and name != "byoc_driver.h":
            found[path] = _SEEN.sub(rename, content.decode()).encode()
    return found
