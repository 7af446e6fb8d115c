"""Readers of the results that a worker process answers with; all of them raise BrokenMessageError."""

from __future__ import annotations

from dataclasses import fields
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from byoc.codegen._abilities import Context, DriverSources
from byoc.codegen._interface import Artifact, Cycles
from byoc.codegen.byoc_worker.link import (
    BrokenMessageError,
    read_array,
    read_files,
    read_pairs,
    read_texts,
)
from byoc.errors import Verdict

if TYPE_CHECKING:
    from byoc.codegen._interface import AnyArray
    from byoc.codegen.byoc_worker.link import SharedMemory


def read_nothing(_: Any, __: SharedMemory) -> None: ...


def read_pairs_of_texts(result: Any, _: SharedMemory) -> dict[str, str]:
    pairs = read_pairs(result)
    read_texts([value for _, value in pairs])
    return dict(pairs)


def read_artifact(result: Any, memory: SharedMemory) -> Artifact:
    if not isinstance(result, dict):
        raise BrokenMessageError("an artifact is missing")
    files = read_files(result.get("files"), memory)
    return Artifact(files, read_pairs_of_texts(result.get("metadata"), memory))


def read_optional_artifact(result: Any, memory: SharedMemory) -> Artifact | None:
    return None if result is None else read_artifact(result, memory)


def read_artifacts(result: Any, memory: SharedMemory) -> dict[str, Artifact]:
    return {name: read_artifact(entry, memory) for name, entry in read_pairs(result)}


def read_number(result: Any, _: SharedMemory) -> int:
    if type(result) is not int:
        raise BrokenMessageError("a number is missing")
    return result


def read_outputs(result: Any, memory: SharedMemory) -> dict[str, AnyArray]:
    return {name: read_array(entry, memory) for name, entry in read_pairs(result)}


def read_verdict(result: Any, _: SharedMemory) -> Verdict:
    match result:
        case [list(reasons), bool(own_cpu)]:
            return Verdict(tuple(read_texts(reasons)), own_cpu)
        case _:
            raise BrokenMessageError("a verdict is missing")


def read_verdicts(result: Any, memory: SharedMemory) -> list[Verdict]:
    if not isinstance(result, list):
        raise BrokenMessageError("a list of verdicts is missing")
    return [read_verdict(each, memory) for each in result]


def read_seconds(result: Any, _: SharedMemory) -> float:
    if not isinstance(result, float) or not 0 < result < inf:
        raise BrokenMessageError("a number of seconds is missing")
    return result


def read_estimate(result: Any, _: SharedMemory) -> float | Cycles:
    numbers = result if isinstance(result, list) else []
    if not all(isinstance(each, float) and 0 < each < inf for each in numbers):
        raise BrokenMessageError("an estimate is missing")
    match numbers:
        case [seconds]:
            return float(seconds)
        case [count, hertz] if 0 < Cycles(count, hertz).seconds < inf:
            return Cycles(count, hertz)
    raise BrokenMessageError("an estimate is missing")


def read_runs(result: Any, _: SharedMemory) -> list[float]:
    runs = result if isinstance(result, list) else []
    if not runs or not all(isinstance(each, float) and 0 <= each < inf for each in runs):
        raise BrokenMessageError("the seconds of runs are missing")
    return runs


def read_sentences(result: Any, _: SharedMemory) -> list[str]:
    return read_texts(result)


def read_driver(result: Any, _: SharedMemory) -> DriverSources:
    """Return the sources of a driver."""
    if not isinstance(result, dict) or result.keys() != {"name", "files", "libraries"}:
        raise BrokenMessageError("the sources of a driver are missing")
    (name,) = read_texts([result["name"]])
    files = tuple(map(Path, read_texts(result["files"])))
    return DriverSources(name, files, tuple(read_texts(result["libraries"])))


def read_context(result: Any, _: SharedMemory) -> Context:
    names = {entry.name for entry in fields(Context)}
    if not isinstance(result, dict) or result.keys() != names or not isinstance(result["more"], dict):
        raise BrokenMessageError("a context is missing")
    texts = {"inputs", "outputs"}
    read_texts([value for name, value in result.items() if name not in {*texts, "more"}])
    return Context(**{**result, **{name: tuple(read_texts(result[name])) for name in texts}})
