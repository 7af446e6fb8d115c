"""The process of `warm_processes.ForkServer`: `fork_server.py LINK -m MODULE`, or `-c TEXT`.

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
        exec(PROGRAM.partition(";")[0], {})  # noqa: S102 - the import of byoc's own program
    gc.collect()
    gc.freeze()


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
    importlib.invalidate_caches()
    if FLAG == "-m":
        # The descriptors have other numbers here than in the process that asked.
        sys.argv = [PROGRAM, *map(str, descriptors[4:])]
        runpy.run_module(PROGRAM, run_name="__main__", alter_sys=True)
    else:
        sys.argv = ["-c"]
        exec(PROGRAM, {"__name__": "__main__"})  # noqa: S102 - byoc's own program


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
