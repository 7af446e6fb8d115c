"""Compile models in a process of its own, which a model may crash."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from onnx import ModelProto

from byoc.codegen._emx_definitions import SingleNode, check_each_node
from byoc.codegen._interface import CompileError


@dataclass(frozen=True)
class Answer:
    """What a compiler says against a model: nothing where it takes it.

    `lasting` says whether it would say so again; an end of its process may have another cause.
    """

    reason: str
    lasting: bool = True


@dataclass(frozen=True)
class CompileProcess:
    """A Python program that compiles the models of a folder.

    It is the module named `module`, run with `arguments`, FOLDER and FIRST. For each file FIRST.onnx,
    FIRST + 1.onnx, ... in the folder it prints a line: a JSON string, empty or what the compiler says
    against the model. What it writes to N.txt explains why it ended at N.onnx, else its standard error
    does. `compiler` is the compiler's name in messages, `patience` how many seconds all models of a
    folder may take.
    """

    compiler: str
    module: str
    arguments: tuple[str, ...]
    patience: float

    def run(self, folder: Path, number: int) -> list[Answer]:
        """Compile the files 0.onnx, 1.onnx, ... in a folder; start again behind one that crashes.

        Return an answer for each. Raises CompileError if the compiler takes longer than `patience`.
        """
        answers: list[Answer] = []
        while len(answers) < number:
            # -P: a module in the working directory may be a stranger's.
            words = [sys.executable, "-P", "-m", self.module, *self.arguments]
            try:
                ran = subprocess.run(
                    [*words, str(folder), str(len(answers))],
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=self.patience,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                why = f"{self.compiler} gave no answer in {self.patience:g} s"
                raise CompileError(why, lasting=False) from None
            answers += [Answer(json.loads(line)) for line in ran.stdout.splitlines()]
            if len(answers) < number:
                answers.append(_explain_end(folder / f"{len(answers)}.txt", ran))
        return answers

    def check_nodes(
        self, model: ModelProto, prepare: Callable[[ModelProto], object] | None = None
    ) -> list[Answer]:
        """Return the answer about each node of a model's graph, compiled alone.

        `prepare` changes the model of a node before it is written.
        """
        with tempfile.TemporaryDirectory(prefix="byoc-") as folder:
            numbers = count()

            def save(single: SingleNode) -> int:
                number = next(numbers)
                model = single.standard_model()
                if prepare is not None:
                    prepare(model)
                (Path(folder) / f"{number}.onnx").write_bytes(model.SerializeToString())
                return number

            order = check_each_node(model, save)
            answers = self.run(Path(folder), next(numbers))
        return [answers[number] for number in order]


def _explain_end(messages: Path, ran: "subprocess.CompletedProcess[str]") -> Answer:
    """Return why a process ended: some compilers end it where they do not know an option."""
    text = messages.read_text(errors="replace") if messages.exists() else ran.stderr
    if ran.returncode > 0 and text.strip():
        return Answer(text, lasting=False)
    return Answer(f"its compiler ended with {ran.returncode}", lasting=False)
