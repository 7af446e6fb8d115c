"""A fresh process that loads what was compiled, runs it, and compiles it once more.

Task and answers pass as files in a folder, tensors as ONNX TensorProtos, which hold every type that a
region can have. The process is `byoc.testing.worker`.
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

from byoc.codegen import Artifact
from byoc.errors import InputError

TASK = "task.json"
ANSWER = "answer.json"
_WORKER = "byoc.testing.worker"
_TIMEOUT = 600.0
_LAST_LINES = 3

Values = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Task:
    """A region of a bundle, and what it is to be run on."""

    bundle: Path
    region: str
    inputs: Values


@dataclass(frozen=True, eq=False)
class Answer:
    """What a region gave in the fresh process, or why nothing; `compiled` is its artifact's hash."""

    outputs: Values
    problem: str = ""
    compiled: str = ""


def fingerprint(artifact: Artifact) -> str:
    """Return a SHA-256 in hex of an artifact, its files and its metadata."""
    digest = hashlib.sha256(repr(sorted(artifact.metadata.items())).encode())
    for name, content in sorted(artifact.files.items()):
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def run_fresh(
    codegen: str, options: Mapping[str, str], tasks: Sequence[Task], folder: Path
) -> list[Answer]:
    """Return what regions give in one fresh process, in the order of the tasks.

    Raises InputError with what it said last when the process does not end well.
    """
    folder.mkdir(parents=True)
    told = []
    for number, task in enumerate(tasks):
        save_values(task.inputs, folder / f"in{number}")
        told.append({"bundle": str(task.bundle), "region": task.region})
    asked = {"codegen": codegen, "options": dict(options), "tasks": told}
    (folder / TASK).write_text(json.dumps(asked), encoding="utf-8")
    path = os.pathsep.join(dict.fromkeys(entry for entry in sys.path if entry))
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", _WORKER, str(folder)],
            # Another seed for the order of sets, which must not show in what is compiled.
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "12345"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"the process did not end within {_TIMEOUT:g} s") from None
    if done.returncode or not (folder / ANSWER).is_file():
        last = " / ".join(done.stdout.decode(errors="replace").strip().splitlines()[-_LAST_LINES:])
        raise InputError(
            f"the process ended with exit code {done.returncode}: {last or 'it says nothing'}"
        )
    answers = json.loads((folder / ANSWER).read_text(encoding="utf-8"))
    return [
        Answer(load_values(folder / f"out{number}"), answer["problem"], answer["compiled"])
        for number, answer in enumerate(answers)
    ]


def save_values(values: Values, folder: Path) -> None:
    """Write tensors to a folder that is not there yet."""
    folder.mkdir()
    for number, (name, value) in enumerate(values.items()):
        tensor = numpy_helper.from_array(value, name)
        (folder / f"{number:04}.pb").write_bytes(tensor.SerializeToString())


def load_values(folder: Path) -> dict[str, Any]:
    """Return the tensors that `save_values` wrote."""
    tensors = [onnx.TensorProto.FromString(path.read_bytes()) for path in sorted(folder.glob("*.pb"))]
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in tensors}
