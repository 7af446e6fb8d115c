"""A process that imports modules once, and forks for each program: `_fork_server.py MODULE ...`.

The arguments are the modules to import. A request is a line of JSON on standard input: `module` and
`arguments` of the program (as `python -m` takes them), `stdout` and `stderr`, files for what it writes,
and `patience`, how many seconds it may take. The answer is a line on standard output: the exit code,
negative for a signal, or `null` for a program that took longer and was killed. Each program begins in
the state after the imports, whatever those before it did.
"""

import importlib
import json
import os
import runpy
import select
import signal
import sys
from contextlib import suppress
from typing import Any

_MOST_MILLISECONDS = 2**31 - 1  # that poll(2) takes


def main() -> None:
    """Import, then fork for each request until standard input is closed; return in forks as well."""
    answers = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)  # what an import prints is no answer
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asks ends this one
    for name in sys.argv[1:]:
        with suppress(Exception):  # the program meets it again, and says so
            importlib.import_module(name)
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        ended, held = os.pipe()  # which has its end when the fork has
        child = os.fork()
        if not child:
            os.close(answers)
            os.dup2(nothing, 0)
            signal.signal(signal.SIGINT, handler)
            _run_program(request)
            return
        os.close(held)
        code = _await_end(child, ended, request["patience"])
        os.close(ended)
        os.write(answers, f"{json.dumps(code)}\n".encode())


def _run_program(request: dict[str, Any]) -> None:
    """Run a program as `python -m` does, with its output in files."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(request[name], os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(file, number)
        os.close(file)
    sys.argv = [request["module"], *request["arguments"]]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def _await_end(child: int, ended: int, patience: float) -> int | None:
    """Return the exit code of a child, None where it is killed: too slow, or nobody asks any more."""
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(0, select.POLLIN)
    ready = poll.poll(min(patience * 1000, _MOST_MILLISECONDS))
    late = ended not in dict(ready)
    if late:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return None if late else code


if __name__ == "__main__":
    main()
