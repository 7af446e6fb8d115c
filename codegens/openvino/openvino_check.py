"""Check nodes one by one with OpenVINO, in another process because a model may crash it."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import onnx

from byoc.codegen import (
    YES,
    CompileError,
    Region,
    SingleNode,
    Verdict,
    check_each_node,
    find_refused_nodes,
    format_options,
    refuse,
)

from .openvino_device import openvino_core, save_region, state_defaults
from .openvino_options import OpenVINOOptions

_PATIENCE = 600.0  # seconds for all nodes
_CRASHED = "OpenVINO crashes"


def check_nodes(model: onnx.ModelProto, options: OpenVINOOptions) -> Sequence[Verdict]:
    """Return for each node of a model's graph whether OpenVINO's device reads and compiles it."""
    openvino_core()  # raise here if it is not installed
    with tempfile.TemporaryDirectory(prefix="byoc-") as folder:
        numbers = count()

        def save(single: SingleNode) -> int:
            number = next(numbers)
            model = single.standard_model()
            state_defaults(model)
            (Path(folder) / f"{number}.onnx").write_bytes(model.SerializeToString())
            return number

        order = check_each_node(model, save)
        answers = _compile_files(folder, next(numbers), replace(options, threads=1))
    return [answers[number] for number in order]


def refused_nodes(region: Region, options: OpenVINOOptions) -> list[str]:
    """Return the nodes of a region that OpenVINO does not compile alone; none if that is unknown."""
    return find_refused_nodes(region.load, lambda model: check_nodes(model, options))


def compiles_safely(region: Region, options: OpenVINOOptions) -> bool:
    """Return whether OpenVINO compiles a region, or refuses it, without crashing."""
    with tempfile.TemporaryDirectory(prefix="byoc-") as folder:
        save_region(region, Path(folder) / "0.onnx")
        (verdict,) = _compile_files(folder, 1, options)
    return not str(verdict).startswith(_CRASHED)


def _compile_files(folder: str, number: int, options: OpenVINOOptions) -> list[Verdict]:
    """Return the verdicts on the files in a folder; restart a process that crashes."""
    answers: list[Verdict] = []
    while len(answers) < number:
        given = json.dumps(format_options(options))
        # -P: a module in the working directory may be a stranger's.
        worker = [sys.executable, "-P", "-m", f"{__package__}.answer"]
        command = [*worker, folder, str(len(answers)), given]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
        except subprocess.TimeoutExpired:
            why = f"OpenVINO gave no answer in {_PATIENCE:g} s"
            raise CompileError(why, lasting=False) from None
        reasons = [json.loads(line) for line in ran.stdout.splitlines()]
        answers += [refuse(why) if why else YES for why in reasons]
        if len(answers) < number:
            answers.append(refuse(f"{_CRASHED}: its process ended with {ran.returncode}"))
    return answers
