"""A fresh process that loads artifacts, runs them, and compiles their regions again."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from byoc.codegen import (
    Artifact,
    Codegen,
    Codegens,
    Isolation,
    Keyed,
    RefusedError,
    Region,
    ask_cache_key,
    compile_region,
    parse_codegen_options,
)
from byoc.errors import ByocError
from byoc.runtime import RegionFailedError, find_executable, load_executor

_TIMEOUT = 600.0
# Another hash seed: the iteration order of sets must not affect artifacts.
_ENVIRONMENT = {"PYTHONHASHSEED": "12345"}

TensorValues = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class RegionTask:
    """A compiled region, and the inputs to run it on."""

    region: Region
    artifact: Artifact
    inputs: TensorValues


@dataclass(frozen=True, eq=False)
class RegionAnswer:
    """A region's outputs in the fresh process, or the problem; `artifact_hash` is the artifact's."""

    outputs: TensorValues
    problem: str = ""
    artifact_hash: str = ""


def hash_artifact(artifact: Artifact) -> str:
    """Return a SHA-256 in hex of an artifact, its files and its metadata."""
    digest = hashlib.sha256(repr(sorted(artifact.metadata.items())).encode())
    for name, content in sorted(artifact.files.items()):
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def hash_files(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file under a folder by relative path."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def run_fresh_process(
    codegen: str, options: Mapping[str, str], tasks: Sequence[RegionTask]
) -> list[RegionAnswer]:
    """Run regions in one fresh process; return the answers in the order of the tasks.

    Raises InputError when the process cannot be started or does not find the codegen.
    """
    isolation = Isolation(call_timeout=_TIMEOUT, environment=_ENVIRONMENT)
    with closing(Codegens(isolation)) as codegens:
        find_executable(codegen, codegens)
        return [_run_task(codegens, codegen, options, task) for task in tasks]


def check_cache_key(codegen: Keyed, name: str, options: Mapping[str, str]) -> Iterator[str]:
    """Check that `cache_key` gives the same texts twice here, and in a fresh process."""
    parsed = parse_codegen_options(cast(Codegen, codegen), options)
    here, again = (ask_cache_key(codegen, parsed) for _ in range(2))
    with closing(Codegens(Isolation(call_timeout=_TIMEOUT, environment=_ENVIRONMENT))) as codegens:
        there = ask_cache_key(cast(Keyed, codegens.find(name)), options)
    for where, other in (("the second time", again), ("in another process", there)):
        for key in sorted(here.keys() | other.keys()):
            if here.get(key) != other.get(key):
                yield (
                    f"`cache_key` has another '{key}' {where}, so that nothing would be found in the "
                    "cache: give no times, addresses or sets"
                )


def _run_task(
    codegens: Codegens, name: str, options: Mapping[str, str], task: RegionTask
) -> RegionAnswer:
    codegen = codegens.find(name)
    try:
        run = load_executor(find_executable(name, codegens), name, task.region, task.artifact)
        outputs = run(task.inputs)
        parsed = parse_codegen_options(codegen, options)
        again = compile_region(codegen, task.region, parsed)
    except ByocError as error:
        return RegionAnswer({}, error_reason(error))
    return RegionAnswer(outputs, "", hash_artifact(again))


def error_reason(error: ByocError) -> str:
    """Return the reason of an error, without the codegen's name."""
    if isinstance(error, RefusedError):
        return error.refusals[0].reason
    return error.reason if isinstance(error, RegionFailedError) else str(error)
