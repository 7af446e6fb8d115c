"""The programs of worker processes: how one is started, and how requests to it are written."""

import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from byoc.codegen.byoc_worker.link import BrokenMessageError, SharedMemory

PATH_VARIABLE = "PYTHONPATH"

_MODULE = "byoc.codegen._worker_process"


class WorkerProgram(Protocol):
    """The program that a worker process runs: how it is started, and how it takes requests.

    `command` is the command without its last arguments, the descriptors of the socket, of the shared
    memory, and of the pipe that is closed when byoc ends. Before it answers a request it may ask
    questions.
    """

    @property
    def command(self) -> Sequence[str]:
        """The command."""
        ...

    def make_environment(self) -> dict[str, str]:
        """Return the environment variables of the process."""
        ...

    def write_request(self, number: int, method: str, request: Mapping[str, Any]) -> bytes:
        """Return a request as the program reads it."""
        ...

    def answer_question(self, question: Any, memory: SharedMemory) -> bytes:
        """Return the answer to a question of the program. Raises BrokenMessageError for what is none."""
        ...


class OwnProgram:
    """byoc itself, in the same interpreter: it takes requests as pickles, and asks no questions."""

    # -P: modules in the working directory are not imported, as with the `byoc` command.
    command = (sys.executable, "-P", "-m", _MODULE)

    def make_environment(self) -> dict[str, str]:
        """Return the environment of this process, with its import path."""
        path = os.pathsep.join(dict.fromkeys(entry for entry in sys.path if entry))
        return {**os.environ, PATH_VARIABLE: path}

    def write_request(self, number: int, method: str, request: Mapping[str, Any]) -> bytes:
        """Return a request as a pickle, which byoc wrote and byoc reads."""
        return pickle.dumps((number, method, request))

    def answer_question(self, question: Any, memory: SharedMemory) -> bytes:
        """Raise BrokenMessageError."""
        raise BrokenMessageError("it asks a question")
