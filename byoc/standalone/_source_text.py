"""The text of a program's own source, `model.h` and `model.c`, and the file of its constants."""

import hashlib
import re
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from byoc.boundary.contracts import TensorContract
from byoc.errors import InputError
from byoc.model import DTYPE_NUMBERS, count_bits
from byoc.numerics import round_up
from byoc.standalone._program_graph import (
    SCRATCH,
    Call,
    ProgramGraph,
    describe_in_comment,
    fill_template,
    quote,
    read_source,
)
from byoc.standalone._program_steps import ProgramStep, ProgramSteps

# The file of a program's constants, which it maps or embeds: weights, and artifacts of regions.

ByteOrder = Literal["little", "big"]
HEADER_BYTES = 64  # of a weight file
IDENTITY_BYTES = 8  # of a SHA-256, which program and weight file share
_ALIGNMENT = 64  # bytes, of each tensor in a weight file
_MAGIC = b"BYOCWGHT"
_MARK = 0x01020304  # reads otherwise on a machine of the other byte order
_VERSION = 1  # of the weight file's layout


@dataclass
class ProgramWeights:
    """Constants at aligned offsets behind a header; equal ones are stored once.

    The header of 64 bytes has `BYOCWGHT`, the number 0x01020304 and the version, 32 bits each, the
    size of the file in 64 bits, and 8 bytes that name the content; numbers in the given byte order.
    """

    order: ByteOrder
    parts: list[bytes] = field(default_factory=list)
    size: int = HEADER_BYTES
    offsets: dict[bytes, int] = field(default_factory=dict)

    def add_array(self, array: NDArray[Any]) -> int:
        """Add an array, its elements in the file's byte order; return its offset."""
        return self.add_bytes(to_byte_order(array, self.order))

    def add_bytes(self, content: bytes) -> int:
        """Add bytes as they are; return their offset."""
        digest = hashlib.sha256(content).digest() + len(content).to_bytes(8)
        if digest not in self.offsets:
            self.offsets[digest] = self.size
            padded = round_up(len(content), _ALIGNMENT)
            self.parts.append(content + bytes(padded - len(content)))
            self.size += padded
        return self.offsets[digest]

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
        result += bytes(round_up(len(result), _ALIGNMENT) - len(result))
    return bytes(result)


TOLERANCE = 1e-5
"""The largest error of floats, as a share of the range of what onnxruntime computes, without noise."""

WEIGHTS_FILE = "weights.bin"


@dataclass(frozen=True)
class ModelText:
    """The text of `model.h` and `model.c`."""

    header: str
    source: str


def write_model_text(
    graph: ProgramGraph, steps: ProgramSteps, weights: ProgramWeights, embed: bool
) -> ModelText:
    """Write the source of a model; its constants are added to the weights.

    Raises InputError for elements of less than a byte.
    """
    inputs, outputs = list(graph.sample), list(graph.expected)
    run = write_run_text(graph, steps, weights, inputs, outputs)
    regions = RegionText.write(graph, weights)
    title = describe_in_comment(graph.display_name)
    plan = steps.plan
    proven = "which no plan can beat" if plan.is_minimal else f"of which {plan.bound} are needed"
    includes = '#include "kernels.h"\n'
    includes += '#include "nodes.h"\n' if steps.functions else ""
    tensors = _describe_tensors(graph, "model_inputs", inputs)
    tensors += _describe_tensors(graph, "model_outputs", outputs)
    tensors += _describe_noise(graph, outputs)
    source = fill_template(
        "model.c.in",
        {
            "title": title,
            "plan": f"The plan of the arena has {plan.size} bytes, {proven}.",
            "includes": includes,
            "tensors": tensors,
            "structures": run.structures,
            "regions": regions.definitions,
            "identity": ", ".join(map(str, weights.identity)),
            "header": HEADER_BYTES,
            "opening": regions.opening,
            "body": run.body,
        },
    )
    embedded = f"\n#define MODEL_EMBEDDED 1\nextern const unsigned char model_weights[{weights.size}];\n"
    header = fill_template(
        "model.h.in",
        {
            "title": title,
            "includes": regions.includes,
            "inputs": len(inputs),
            "outputs": len(outputs),
            "plan": plan.size,
            "weights": weights.size,
            "weights_file": WEIGHTS_FILE,
            "tolerance": TOLERANCE,
            "embedded": embedded if embed else "",
            "members": regions.members,
        },
    )
    return ModelText(header, source)


@dataclass(frozen=True)
class RunText:
    """The text of a run: constant structures, and the statements that read them."""

    structures: str
    body: str


def write_run_text(
    graph: ProgramGraph,
    steps: ProgramSteps,
    weights: ProgramWeights,
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> RunText:
    """Write the steps of a graph, from `inputs` to `outputs`; its constants are added to the weights."""
    writer = _StepWriter(graph, steps, weights)
    body = "".join(_copy_inputs(graph, steps, inputs))
    body += "".join(writer.write(number, step) for number, step in enumerate(steps.steps))
    body += "".join(writer.copy_outputs(outputs))
    return RunText("".join(writer.list_structures()), body)


class _StepWriter:
    """Writes the calls of steps, and the constant structures that they point to."""

    def __init__(self, graph: ProgramGraph, steps: ProgramSteps, weights: ProgramWeights) -> None:
        self.graph, self.steps, self.weights = graph, steps, weights
        self.names: dict[str, str] = {}

    def write(self, number: int, step: ProgramStep) -> str:
        """Return the lines of a step."""
        title = f"    /* {number}: {describe_in_comment(step.title)} */\n"
        title += f"    STEP({quote(self._name_kind(step))});\n"
        if step.call is None:
            return title + self._write_region(step)
        return f"{title}    {self._write_call(step.call, step.scratch)};\n"

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
        return f"WEIGHT({self.weights.add_array(self.graph.get_constant(name))})"

    def _write_call(self, call: Call, scratch: int) -> str:
        given = []
        if call.structure:
            given.append(f"&{self.name_structure(call)}")
        for operand in call.operands:
            if operand == SCRATCH:
                given.append(f"AT({scratch})")
            else:
                given.append("NULL" if operand is None else self.find(operand))
        return f"{call.function}({', '.join(given)})"

    def name_structure(self, call: Call) -> str:
        """Return the name of a call's structure, which is defined once for equal ones."""
        key = f"{call.kind} {call.structure}"
        number = len(self.names)
        return self.names.setdefault(key, f"{call.kind.removeprefix('kernel_')}_{number}")

    def list_structures(self) -> list[str]:
        """Return the definitions of the structures."""
        return [
            f"static const {kind} {name} = {structure};\n"
            for key, name in self.names.items()
            for kind, _, structure in [key.partition(" ")]
        ]

    def _name_kind(self, step: ProgramStep) -> str:
        """Return the kind of a step in a profile: its first operator, or the codegen of its region."""
        operator = self.graph.index.nodes[step.nodes[0]].op_type
        if step.call is None:
            return f"region of {self.graph.regions[operator].codegen}"
        return f"{operator}, depthwise" if "depthwise" in step.call.function else operator

    def _write_region(self, step: ProgramStep) -> str:
        node = self.graph.index.nodes[step.nodes[0]]
        inputs = [name for name in node.input if not self.graph.is_constant(name)]
        given = ", ".join(self.find(name) for name in inputs) or "NULL"
        made = ", ".join(self.find(name) for name in node.output)
        return (
            f"    if (run_region(opened, {step.region}, (const void *const[]){{{given}}}, "
            f"(void *const[]){{{made}}})) {{\n        return 1;\n    }}\n"
        )


def _copy_inputs(graph: ProgramGraph, steps: ProgramSteps, names: Sequence[str]) -> list[str]:
    found = []
    for i, name in enumerate(names):
        offset, size = steps.find_offset(name), graph.sizes.count_bytes(name)
        if offset is not None and size:
            found.append(f"    memcpy(AT({offset}), inputs[{i}], {size});\n")
    return found


def _describe_tensors(graph: ProgramGraph, array: str, names: Sequence[str]) -> str:
    """Return the definitions of a table of inputs or outputs."""
    shapes, rows = [], []
    for number, name in enumerate(names):
        shape = graph.get_shape(name)
        extents = ", ".join(map(str, shape)) or "1"
        shapes.append(f"static const int64_t {array}_shape_{number}[] = {{{extents}}};\n")
        dtype = DTYPE_NUMBERS[graph.get_dtype(name)]
        sizes = f"{prod(shape)}, {graph.sizes.count_bytes(name)}"
        rows.append(f"    {{{quote(name)}, {dtype}, {len(shape)}, {array}_shape_{number}, {sizes}}},\n")
    end = "    {NULL, 0, 0, NULL, 0, 0},\n"
    return f"{''.join(shapes)}const model_tensor {array}[] = {{\n{''.join(rows)}{end}}};\n"


def _describe_noise(graph: ProgramGraph, names: Sequence[str]) -> str:
    """Return the definition of the table of noise, in shares of the range that `main.c` divides by."""
    rows = []
    for number, name in enumerate(names):
        values = graph.expected[name].astype(np.float64)
        values = values[np.isfinite(values)]
        scale = (float(np.ptp(values)) or float(np.abs(values).max()) or 1.0) if values.size else 1.0
        rows += [
            f"    {{{number}, {each.largest / scale:.9g}, {each.power / scale**2:.9g}}},\n"
            for each in graph.noise.get(name, ())
            if each.largest > TOLERANCE * scale
        ]
    end = "    {0, 0, 0},\n"
    return f"const model_noise model_noises[] = {{\n{''.join(rows)}{end}}};\n"


# The part of `model.c` that opens and runs the regions of a bundle by their drivers.


@dataclass(frozen=True)
class RegionText:
    """Pieces of `model.h` (`includes`, `members`) and of `model.c` (`definitions`, `opening`)."""

    includes: str
    members: str
    definitions: str
    opening: str

    @staticmethod
    def write(graph: ProgramGraph, weights: ProgramWeights) -> "RegionText":
        """Write the text of all regions; their artifacts are added to the weights, as they are.

        Raises InputError for a boundary tensor of elements of less than a byte.
        """
        if not graph.regions:
            return RegionText("", "", "", read_source("open_host.c.in").decode())
        calls = list(graph.regions.values())
        blobs = [list(call.artifact.files.items()) for call in calls]
        flat = [blob for each in blobs for blob in each]
        texts = [list(call.artifact.metadata.items()) for call in calls]
        codegens = dict.fromkeys(call.codegen for call in calls)
        definitions = fill_template(
            "regions.c.in",
            {
                "externs": "".join(
                    f"extern const byoc_driver byoc_driver_{name};\n" for name in codegens
                ),
                "drivers": ", ".join(f"&byoc_driver_{call.codegen}" for call in calls),
                "names": ", ".join(quote(call.region.name) for call in calls),
                "blob_names": ", ".join(quote(name) for name, _ in flat),
                "blob_offsets": ", ".join(str(weights.add_bytes(content)) for _, content in flat),
                "blob_bytes": ", ".join(str(len(content)) for _, content in flat),
                "first_blobs": _count_up(blobs),
                "texts": _list_texts(texts),
                "tensors": _list_tensors("inputs", [call.region.inputs for call in calls])
                + _list_tensors("outputs", [call.region.outputs for call in calls]),
            },
        )
        members = (
            f"    byoc_blob blobs[{len(flat)}];\n    byoc_region_info infos[{len(calls)}];\n"
            f"    byoc_region *regions[{len(calls)}];\n"
        )
        includes = (
            f'\n#include "byoc_driver.h"\n\n#define MODEL_REGIONS {len(calls)}\n'
            f"#define MODEL_BLOBS {len(flat)}\n"
        )
        return RegionText(includes, members, definitions, read_source("open_regions.c.in").decode())


def _count_up(groups: Sequence[Sequence[object]]) -> str:
    total, counts = 0, [0]
    for group in groups:
        total += len(group)
        counts.append(total)
    return ", ".join(map(str, counts))


def _list_texts(texts: Sequence[Sequence[tuple[str, str]]]) -> str:
    rows = "".join(f"    {{{quote(name)}, {quote(text)}}},\n" for each in texts for name, text in each)
    return (
        f"static const byoc_text texts[] = {{\n{rows}    {{NULL, NULL}},\n}};\n"
        f"static const size_t first_texts[] = {{{_count_up(texts)}}};\n"
    )


def _list_tensors(side: str, regions: Sequence[Sequence[TensorContract]]) -> str:
    shapes, rows = [], []
    for number, contract in enumerate(each for contracts in regions for each in contracts):
        kind = contract.type
        if kind.elements is None or count_bits(kind.dtype) % 8:
            raise InputError(f"{contract.name}: {kind} does not cross to a driver")
        extents = ", ".join(map(str, kind.shape or ())) or "1"
        shapes.append(f"static const int64_t region_{side}_shape_{number}[] = {{{extents}}};\n")
        rows.append(
            f"    {{{quote(contract.name)}, {DTYPE_NUMBERS[kind.dtype]}, {len(kind.shape or ())}, "
            f"region_{side}_shape_{number}, {kind.bytes}}},\n"
        )
    end = "    {NULL, 0, 0, NULL, 0},\n"
    return (
        f"{''.join(shapes)}static const byoc_tensor region_{side}[] = {{\n{''.join(rows)}{end}}};\n"
        f"static const size_t first_{side}[] = {{{_count_up(regions)}}};\n"
    )


# Names of a program: several models in one program have names of their own.

PREFIX = "model"
"""What the names of files, functions and targets of a program begin with, unless it is told."""
_PREFIX = re.compile(r"[a-z][a-z0-9_]{0,39}")
_TAKEN = frozenset(
    ["kernel", "kernels", "nodes", "rows", "windows", "decoders", "main", "weights", "byoc"]
)
_KEYWORDS = frozenset(
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
    r"\b(?P<own>model|MODEL)(?P<rest>_\w+)?\b|\b(?P<part>(?:kernel|node\d+|weight\d+)_\w+|KERNEL\w*|NODES_H)\b",
    re.DOTALL,
)
_IN_COMMENT = re.compile("`model_")
_IN_TEXT = re.compile(r"`model\.([ch])`|\bmodel_(test|arena_bytes)\b|\bMODEL_(PROFILE)\b")


CODE_SUFFIXES = (".c", ".h", ".S")
"""Endings of the files of a program that a compiler reads; the others are data and texts."""


def check_prefix(prefix: str) -> None:
    """Raise InputError unless names can begin with a prefix."""
    if not _PREFIX.fullmatch(prefix) or prefix in _TAKEN | _KEYWORDS:
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
