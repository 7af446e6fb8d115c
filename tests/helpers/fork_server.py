"""The process of `warm_processes.ForkServer`: `fork_server.py LINK -m MODULE`, or `-c IMPORTS`.

With `-m` it runs that module, with `-c` what the arguments of an interpreter say that are in a request.
A request is a line of JSON, with descriptors: standard input, output and error, a pipe for exit code and
processor seconds, and those that the program is passed.
"""

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

LINK = socket.socket(fileno=int(sys.argv[1]))
FLAG, PROGRAM = sys.argv[2:4]
_MOST_DESCRIPTORS = 16
_before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
_BASE_PATH = [entry for entry in sys.path if entry not in _before]


def import_program() -> None:
    """Import all that the program imports; its own module is run anew by each fork."""
    if FLAG == "-m":
        importlib.import_module(PROGRAM)
        del sys.modules[PROGRAM]
    else:
        exec(PROGRAM, {})  # noqa: S102 - imports of tests
    finish_classes()
    gc.collect()
    gc.freeze()


def finish_classes() -> None:
    """Build what classes of byoc build when they are first used: each fork would do it anew.

    Dataclasses compile their methods then, and models of pydantic their validators.
    """
    for name in [name for name in sys.modules if name.startswith("byoc.")]:
        for kind in list(vars(sys.modules[name]).values()):
            if isinstance(kind, type) and kind.__module__ == name:
                getattr(kind, "__dataclass_fields__", None)
                if hasattr(kind, "model_rebuild"):
                    kind.model_rebuild(raise_errors=False)


def run_program(request: dict[str, object], descriptors: list[int]) -> None:
    """Become the process that was asked for, and run the program."""
    os.setsid()
    os.chdir(str(request["folder"]))
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
    for descriptor in descriptors[:4]:
        os.close(descriptor)
    environment = request["environment"]
    assert isinstance(environment, dict)
    os.environ.clear()
    os.environ.update(environment)
    path = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [*path, *(entry for entry in _BASE_PATH if entry not in path)]
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    importlib.invalidate_caches()
    if FLAG == "-m":
        # The descriptors have other numbers here than in the process that asked.
        sys.argv = [PROGRAM, *map(str, descriptors[4:])]
        runpy.run_module(PROGRAM, run_name="__main__", alter_sys=True)
    else:
        arguments = request["arguments"]
        assert isinstance(arguments, list)
        interpret(arguments)


def interpret(arguments: list[str]) -> None:
    """Run what the arguments of an interpreter say: `-P`, then `-c TEXT`, `-m MODULE` or a file."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests ignore it
    for number, name in enumerate(("stdin", "stdout", "stderr")):  # of another kind than the server's
        buffering = 1 if number == 2 or os.isatty(number) else -1
        errors = "backslashreplace" if number == 2 else None
        mode = "w" if number else "r"
        setattr(sys, name, open(number, mode, buffering, errors=errors, closefd=False))  # noqa: SIM115
    isolated = arguments[0] == "-P"
    flag, *sys.argv = arguments[isolated:]
    if flag == "-c":
        text, sys.argv[0] = sys.argv[0], "-c"
        sys.path[:0] = [] if isolated else [""]
        exec(compile(text, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - of a test
    elif flag == "-m":
        sys.path[:0] = [] if isolated else [str(Path.cwd())]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:0] = [flag]
        sys.path[:0] = [] if isolated else [str(Path(flag).resolve().parent)]
        runpy.run_path(flag, run_name="__main__")


def serve() -> None:
    """Fork for each request, until the other end of the link is closed."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake)
    pipes: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([LINK, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            report_ends(pipes)
        if LINK in ready:
            content, descriptors, _, _ = socket.recv_fds(LINK, 1 << 20, _MOST_DESCRIPTORS)
            if not content:
                return
            while not content.endswith(b"\n"):
                content += LINK.recv(1 << 20)
            number = os.fork()
            if number == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for descriptor in (woken, wake, *pipes.values()):
                    os.close(descriptor)
                LINK.close()
                run_program(json.loads(content), descriptors)
                return
            pipes[number] = os.dup(descriptors[3])
            for descriptor in descriptors:
                os.close(descriptor)
            LINK.send(str(number).encode())


def report_ends(pipes: dict[int, int]) -> None:
    """Write exit code and processor seconds of the processes that have ended."""
    for number in list(pipes):
        found, status, usage = os.wait4(number, os.WNOHANG)
        if found:
            seconds = usage.ru_utime + usage.ru_stime
            with suppress(BrokenPipeError):  # nobody waits for it
                os.write(pipes[number], f"{os.waitstatus_to_exitcode(status)} {seconds}".encode())
            os.close(pipes.pop(number))


if __name__ == "__main__":
    import_program()
    serve()
