"""Verification of a program: it is built with the flags that ship, run on its sample, and judged."""

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from byoc._dataclasses import dataclass
from byoc.bundle import PROGRAM_FILE, find_folder_kind, read_signature
from byoc.codegen import describe_path_problem
from byoc.errors import InputError, MissingRuntimeError, shorten_text
from byoc.standalone._export import FORMAT, SAMPLE_FILE
from byoc.standalone._source_text import PREFIX, WEIGHTS_FILE
from byoc.support import check_type, read_limited, require_inside, split_command
from byoc.support.trust import judge_signature

_COMPILER_VARIABLE = "BYOC_CC"
_DEFAULT_COMMAND = "cc -O2"
_MOST_CHARACTERS = 1000  # of what a program or compiler says, in a sentence
_MOST_BYTES = 1 << 24  # of `program.json`
_OUTPUT = re.compile(
    r"^output (.*): largest error (\S+) of the range, at most (\S+) is allowed$", re.MULTILINE
)
_ARENA = re.compile(r"^arena: (\d+) bytes, of which the plan (\d+)$", re.MULTILINE)
_MEMORY = re.compile(r"^memory: (\d+) bytes at most$", re.MULTILINE)
_SECONDS = re.compile(r"^run: (\S+) s of processor time$", re.MULTILINE)
_PROGRAM = "model_test"
_RUN = re.compile(r"run_\d+")  # the steps of a combination of sizes
_STEP = re.compile(r"(\w+_)?node\d+_")  # the name of a node's function


@dataclass(frozen=True)
class ProgramOutput:
    """An output of a program: its largest error, as a share of the range of what was expected.

    `allowed` is the largest that is right: 1e-5, or where activations are quantized what was measured
    when the program was made ("Noise" in `docs/judging.md`).
    """

    name: str
    error: float
    allowed: float


@dataclass(frozen=True)
class ProgramVerification:
    """The outcome of a verification: whether a program is right, and what it needs, in bytes.

    `problem` is a sentence on what is wrong, empty if nothing is. `arena_bytes` includes what drivers
    need, `plan_bytes` is the plan alone. `stack_bytes` is a limit on what the program's own functions
    need, below `model_run`, None where the compiler does not say it. `peak_bytes` are the most memory
    that the process had, the sample and an emulator included, None where nothing says it. `seconds` are
    those of a run, in processor time, None unless runs were asked for.
    """

    problem: str
    outputs: tuple[ProgramOutput, ...]
    arena_bytes: int
    plan_bytes: int
    binary_bytes: int
    stack_bytes: int | None
    peak_bytes: int | None
    seconds: float | None

    @property
    def passed(self) -> bool:
        """Whether the outputs are right."""
        return not self.problem


def verify_program(
    folder: str | Path,
    compiler: str | None = None,
    runner: str | None = None,
    runs: int = 0,
    *,
    trust: bool = False,
) -> ProgramVerification:
    """Build the program in `folder`, run it on its sample, and compare with what onnxruntime computed.

    `compiler` is a command with the flags that ship (`aarch64-linux-gnu-gcc -static -O3`), by default
    that in the environment variable BYOC_CC, or `cc -O2`; `runner` is put before the program
    (`qemu-aarch64`). Both come from the caller alone: nothing in the folder chooses a command. `runs` is
    how often to run it to measure it.

    The code in the folder is executed. So it must have been made here, or be signed by a key that the
    user trusts, and be as it was written; with `trust` it is built whoever made it, and as it is.

    Raises InputError if the folder is no program, its maker is not trusted, or the compiler refuses it,
    and MissingRuntimeError where there is no such compiler or runner.
    """
    check_type("folder", folder, str | Path)
    folder = Path(folder)
    content = _read_content(folder)
    document = _read_document(folder, content)
    if not trust:
        _require_trust(folder, content)
    command = split_command(compiler or os.environ.get(_COMPILER_VARIABLE) or _DEFAULT_COMMAND)
    before = split_command(runner) if runner else []
    with TemporaryDirectory(prefix="byoc-") as place:
        program = Path(place) / _PROGRAM
        code = folder if trust else _copy_code(folder, document, Path(place) / "code")
        stack = _build(code, document, command, program)
        said, status = _run(folder, [*before, str(program)], runs)
        size = program.stat().st_size
    outputs = tuple(
        ProgramOutput(name, float(error), float(allowed))
        for name, error, allowed in _OUTPUT.findall(said)
    )
    arena, seconds, peak = _ARENA.search(said), _SECONDS.search(said), _MEMORY.search(said)
    return ProgramVerification(
        _judge(outputs, status, said),
        outputs,
        int(arena[1]) if arena else 0,
        int(arena[2]) if arena else 0,
        size,
        stack,
        int(peak[1]) if peak else None,
        float(seconds[1]) if seconds else None,
    )


def list_programs(folder: Path) -> list[Path]:
    """Return the folders of the programs in one that `export_c` wrote of several; else it alone.

    Raises InputError where its `program.json`, or a folder that it names, leads out of it or cannot be
    read.
    """
    return [*_list_inside(folder, 2)]


def _list_inside(folder: Path, most_levels: int) -> Iterator[Path]:
    """Yield the programs in a folder: models of a package may have a program for each variant."""
    try:
        with require_inside(folder, PROGRAM_FILE).open("rb") as file:
            names = json.loads(read_limited(file, _MOST_BYTES)).get("models", [])
        inside = [require_inside(folder, name) for name in names]
    except OSError as error:
        path = folder / PROGRAM_FILE
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, TypeError, AttributeError, RecursionError):
        inside = []  # what is wrong is said when the folder is verified
    if not inside or not most_levels:
        yield folder
    else:
        for each in inside:
            yield from _list_inside(each, most_levels - 1)


def _read_content(folder: Path) -> bytes:
    """Return the bytes of `program.json`. Raises InputError unless the folder is a program."""
    if find_folder_kind(folder) != "program":
        raise InputError(f"{folder}: is no program of export-c: it holds no {PROGRAM_FILE}")
    try:
        # The program itself opens the weights and the sample, which nobody signs.
        path, *_ = [require_inside(folder, name) for name in (PROGRAM_FILE, WEIGHTS_FILE, SAMPLE_FILE)]
        with path.open("rb") as file:
            return read_limited(file, _MOST_BYTES)
    except OSError as error:
        path = folder / PROGRAM_FILE
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


def _require_trust(folder: Path, content: bytes) -> None:
    """Raise InputError unless the maker of a program is trusted."""
    judged = judge_signature(read_signature(folder), hashlib.sha256(content).digest(), "program")
    if not judged.trusted:
        raise InputError(
            f"{folder}: is a program, which is not built and run: {judged.reason}. If you trust its "
            "maker, give --trust (in Python trust=True)"
        )


def _copy_code(folder: Path, document: Mapping[str, Any], place: Path) -> Path:
    """Copy the code that `program.json` names to a folder of its own, and link the weights there.

    So nothing that is not signed is compiled, a header beside it either. Raises InputError for a file
    that is not as it was written.
    """
    for name, expected in document["code"].items():
        try:
            found = (folder / name).read_bytes()
        except OSError as error:
            reason = error.strerror or error
            raise InputError(f"{folder}: {name} of the program cannot be read: {reason}") from None
        if hashlib.sha256(found).hexdigest() != expected:
            raise InputError(
                f"{folder}: {name} is not as it was written, so it is not built. If that was you, give "
                "--trust (in Python trust=True)"
            )
        target = place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(found)
    (place / WEIGHTS_FILE).symlink_to(folder.resolve() / WEIGHTS_FILE)  # for `.incbin`
    return place


def _read_document(folder: Path, content: bytes) -> dict[str, Any]:
    path = folder / PROGRAM_FILE
    try:
        document = json.loads(content)
        sources = [*document["sources"], *document["libraries"], *document["code"].items()]
        texts = [text for each in sources for text in ([each] if isinstance(each, str) else each)]
        unsigned = {*document["sources"]} - {*document["code"]}
        if document["format"] != FORMAT or unsigned or not all(isinstance(each, str) for each in texts):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(f"{path}: is not what export-c writes, of format {FORMAT}") from None
    for name in (*document["sources"], *document["code"]):
        inside = (folder / name).resolve()
        wrong = name.startswith("-") or describe_path_problem(name)
        if wrong or folder.resolve() not in inside.parents or not inside.is_file():
            raise InputError(f"{path}: sources: there is no file {name!r} in this folder")
    for name in document["libraries"]:
        if not re.fullmatch(r"\w+", name):
            raise InputError(f"{path}: libraries: {name!r} is no name of a library")
    return dict(document)


def _build(folder: Path, document: dict[str, Any], command: Sequence[str], program: Path) -> int | None:
    """Build the program, and return a limit on its stack, None where the compiler does not say it."""
    frames = program.parent / "frames"
    frames.mkdir()
    sources = {name: str(folder.resolve() / name) for name in document["sources"]}
    measured = {name: path for name, path in sources.items() if name.endswith(".c") and name != "main.c"}
    own = ["-DBYOC_LINKED", f"-I{folder.resolve()}"]
    libraries = [f"-l{name}" for name in document["libraries"]]

    def list_objects(*flags: str) -> dict[str, str] | None:
        """Compile each source whose frames count; None where the compiler does not."""
        found = {}
        for name, source in measured.items():
            found[name] = str(frames / f"{name.replace('/', '.')}.o")
            arguments = [*command, *own, *flags, "-fstack-usage", "-c", source, "-o", found[name]]
            if _call(arguments, frames).returncode:
                return None
        return found

    def link(inputs: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        # `.incbin` looks for the weights where the assembler runs, and in the folders of -I.
        arguments = [*command, *own, *inputs.values(), *libraries, "-o", str(program)]
        return _call(arguments, program.parent)

    objects = list_objects()
    if objects is None or link({**sources, **objects}).returncode:
        # It builds whole programs alone with these flags, or something is wrong, which it says.
        ran = link(sources)
        if ran.returncode:
            messages = ran.stderr.strip() or "it says nothing"
            raise InputError(
                f"{command[0]} refuses the program: {shorten_text(messages, _MOST_CHARACTERS)}"
            )
        if list_objects("-Wno-error") is None:
            return None
    return _limit_stack(frames, str(document.get("prefix", PREFIX)))


def _limit_stack(folder: Path, prefix: str) -> int | None:
    """Return a limit on the stack that `model_run` needs: no function calls itself.

    Each step is of one file, and calls each function there at most once on its way down; of the
    functions of nodes it calls one, and helpers.
    """
    run = None
    others = [0]
    for path in sorted(folder.glob("*.su")):
        frames = list(_read_frames(path))
        sizes = dict(frames)
        if path.name.startswith(f"{prefix}."):
            run = sizes.pop(f"{prefix}_run", 0) + sizes.get("run_region", 0)
            run += max((size for name, size in frames if _RUN.fullmatch(name)), default=0)
        elif path.name.startswith("nodes"):
            steps = [size for name, size in frames if _STEP.match(name)]
            helpers = sum(size for name, size in frames if not _STEP.match(name))
            others.append(max(steps, default=0) + helpers)
        else:
            others.append(sum(size for _, size in frames))
    return None if run is None else run + max(others)


def _read_frames(path: Path) -> Iterator[tuple[str, int]]:
    """Yield functions and the bytes of their frames, as GCC and Clang write them."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split("\t")
        if len(fields) > 1 and fields[1].isdecimal():
            yield fields[0].rpartition(":")[2], int(fields[1])


def _run(folder: Path, command: Sequence[str], runs: int) -> tuple[str, int]:
    """Run the program in its folder; return what it printed, and its exit status."""
    ran = _call([*command, *(("--runs", str(runs)) if runs else ())], folder)
    return ran.stdout + ran.stderr, ran.returncode


def _call(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        reason = error.strerror or str(error)
        raise MissingRuntimeError(
            f"there is no command '{command[0]}' here, which --cc, $BYOC_CC or --run names: {reason}"
        ) from None


def _judge(outputs: Sequence[ProgramOutput], status: int, said: str) -> str:
    """Return a sentence on what is wrong, empty if nothing is."""
    wrong = [each for each in outputs if not each.error <= each.allowed]
    if wrong:
        worst = max(wrong, key=lambda each: each.error)
        return (
            f"output {worst.name} is off by {worst.error:.3g} of the range, and at most "
            f"{worst.allowed:.3g} is allowed: the compiler or its flags, the weights or the source are "
            "wrong"
        )
    if status:
        last = (said.strip().splitlines() or ["it says nothing"])[-1]
        return f"the program ended with {status}: {shorten_text(last, _MOST_CHARACTERS)}"
    return "" if outputs else "the program said nothing of its outputs"
