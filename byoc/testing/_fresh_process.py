"""A fresh process that loads artifacts, runs them, and compiles their regions again.

Tasks and answers are files in a folder; tensors are ONNX TensorProtos, which support all types that
regions can have. The process runs `byoc.testing._fresh_worker`.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper

from byoc.codegen import Artifact, RefusedError
from byoc.errors import ByocError, InputError
from byoc.runtime import RegionFailedError

TASK_FILE = "task.json"
ANSWER_FILE = "answer.json"
_WORKER = "byoc.testing._fresh_worker"
_TIMEOUT = 600.0
_LAST_LINES = 3

TensorValues = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class RegionTask:
    """A region of a bundle, and the inputs to run it on."""

    bundle: Path
    region: str
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


def run_fresh_process(
    codegen: str, options: Mapping[str, str], tasks: Sequence[RegionTask], folder: Path
) -> list[RegionAnswer]:
    """Run regions in one fresh process; return the answers in the order of the tasks.

    Raises InputError with the last lines of output when the process fails.
    """
    folder.mkdir(parents=True)
    entries = []
    for number, task in enumerate(tasks):
        save_values(task.inputs, folder / f"in{number}")
        entries.append({"bundle": str(task.bundle), "region": task.region})
    asked = {"codegen": codegen, "options": dict(options), "tasks": entries}
    (folder / TASK_FILE).write_text(json.dumps(asked), encoding="utf-8")
    path = os.pathsep.join(dict.fromkeys(entry for entry in sys.path if entry))
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", _WORKER, str(folder)],
            # Another hash seed: the iteration order of sets must not affect artifacts.
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "12345"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"the process did not end within {_TIMEOUT:g} s") from None
    if done.returncode or not (folder / ANSWER_FILE).is_file():
        last = " / ".join(done.stdout.decode(errors="replace").strip().splitlines()[-_LAST_LINES:])
        raise InputError(
            f"the process ended with exit code {done.returncode}: {last or 'it says nothing'}"
        )
    answers = json.loads((folder / ANSWER_FILE).read_text(encoding="utf-8"))
    return [
        RegionAnswer(load_values(folder / f"out{number}"), answer["problem"], answer["compiled"])
        for number, answer in enumerate(answers)
    ]


def save_values(values: TensorValues, folder: Path) -> None:
    """Write tensors to a new folder."""
    folder.mkdir()
    for number, (name, value) in enumerate(values.items()):
        tensor = numpy_helper.from_array(value, name)
        (folder / f"{number:04}.pb").write_bytes(tensor.SerializeToString())


def load_values(folder: Path) -> dict[str, Any]:
    """Return the tensors that `save_values` wrote."""
    tensors = [onnx.TensorProto.FromString(path.read_bytes()) for path in sorted(folder.glob("*.pb"))]
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in tensors}


def error_reason(error: ByocError) -> str:
    """Return the reason of an error, without the codegen's name."""
    if isinstance(error, RefusedError):
        return error.refusals[0].reason
    return error.reason if isinstance(error, RegionFailedError) else str(error)
