"""A vendor's own answer for small models: does it take one, and are the numbers right.

It is asked in processes of its own, since a model may make it crash or hang; each process loads the
vendor's library once, and is replaced when it is lost.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Literal

PATIENCE = 60.0  # seconds for a model; a large convolution takes one or two
Serve = Callable[[Connection], None]


@dataclass(frozen=True)
class Data:
    """Inputs and expected outputs by name, and how far off outputs may be."""

    inputs: Mapping[str, Any]
    expected: Mapping[str, Any]
    rtol: float
    atol: float


@dataclass(frozen=True)
class Question:
    """A model as bytes, and what it must compute."""

    model: bytes
    data: Sequence[Data]


@dataclass(frozen=True)
class Answer:
    """What became of a model in a vendor's hands; `why` is the end of what it said, or what was off.

    `imported` says of a model that is computed right whether it is so, too, when what OpenVINO
    compiled is exported and imported. Where it is not, the codegen must not store it, else the numbers
    are wrong.
    """

    kind: Literal["takes", "refuses", "wrong numbers", "crash"]
    why: str = ""
    imported: Literal["", "right", "wrong"] = field(default="", compare=False)

    def __bool__(self) -> bool:
        """Return whether it compiles the model and computes it right."""
        return self.kind == "takes"


def ask(
    questions: Sequence[Question], *, serve: Serve, workers: int = 2, patience: float = PATIENCE
) -> Iterator[Answer]:
    """Yield the vendor's answer to each question, in their order, as soon as it is known.

    `serve` runs in a process of its own, and answers each question that comes through a pipe.
    """
    idle: SimpleQueue[_Worker] = SimpleQueue()
    started = [_Worker(serve) for _ in range(workers)]
    for worker in started:
        idle.put(worker)

    def answer(question: Question) -> Answer:
        worker = idle.get()
        try:
            return worker.ask(question, patience)
        finally:
            idle.put(worker)

    try:
        with ThreadPoolExecutor(workers) as threads:
            yield from threads.map(answer, questions)
    finally:
        for worker in started:
            worker.stop()


def answer_all(pipe: Connection, answer: Callable[[Question], Answer]) -> None:
    """Answer the questions that come through a pipe until it is closed: what `serve` does."""
    while True:
        try:
            question = pipe.recv()
        except EOFError:
            return
        pipe.send(answer(question))


class _Worker:
    """A process that answers, started when it is first asked and again after it was lost."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._process: Any = None
        self._pipe: Any = None

    def ask(self, question: Question, patience: float) -> Answer:
        if self._process is None:
            context = get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=self._serve, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()  # else its end would not be seen
        try:
            self._pipe.send(question)
            if self._pipe.poll(patience):
                found: Answer = self._pipe.recv()
                return found
            why = f"no answer in {patience:g} s"
        except (EOFError, OSError):
            self._process.join()
            why = f"the process ended with {self._process.exitcode}"
        self.stop()
        return Answer("crash", why)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None
