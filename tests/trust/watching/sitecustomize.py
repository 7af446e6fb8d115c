"""Python imports this module at its start: it records what a process opens, writes and executes.

`test_trust_inputs_watched` puts the folder of this file on PYTHONPATH, so that the processes that byoc
starts are recorded as well. A line of the log is JSON: a kind of event, and a path or a command.
"""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PATHS = {
    **dict.fromkeys(("os.listdir", "os.scandir"), "list"),
    **dict.fromkeys(("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod"), "write"),
    **dict.fromkeys(("os.chown", "os.utime", "os.setxattr"), "write"),
    **dict.fromkeys(("os.system", "ctypes.dlopen"), "execute"),
}
"""The events whose first argument says what they are about."""
_IN_FOLDERS = frozenset({"os.mkdir", "os.remove", "os.rmdir"})
_COMMANDS = frozenset({"subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn"})
_TWO_PATHS = frozenset({"os.rename", "os.link", "os.symlink"})
_NETWORK = frozenset({"socket.connect", "socket.bind", "urllib.Request"})


def _watch(log: int) -> None:
    def record(kind: str, what: object) -> None:
        if isinstance(what, int) or what is None:  # a descriptor, whose opening was recorded
            return
        text = os.fsdecode(what) if isinstance(what, (str, bytes, os.PathLike)) else repr(what)
        if kind in {"read", "write", "list"}:
            with suppress(OSError):
                text = str(Path.cwd() / text)
        os.write(log, json.dumps([kind, text]).encode() + b"\n")

    def hear(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            record("write" if isinstance(flags, int) and flags & _WRITING else "read", path)
        elif event in _PATHS:
            relative = event in _IN_FOLDERS and isinstance(arguments[-1], int) and arguments[-1] >= 0
            if not relative:  # to an open folder, which a removal of a whole tree opened before
                record(_PATHS[event], arguments[0])
        elif event in _TWO_PATHS:
            # What a link leads to is no write, and is recorded when it is opened.
            for path in arguments[1:2] if event == "os.symlink" else arguments[:2]:
                record("write", path)
        elif event in _COMMANDS:
            words = arguments[1]
            record("execute", " ".join(map(str, words)) if isinstance(words, (list, tuple)) else words)
        elif event == "pickle.find_class":
            record("unpickle", ".".join(map(str, arguments)))
        elif event in _NETWORK:
            record("network", f"{event} {arguments}")

    sys.addaudithook(hear)


if "BYOC_WATCH_LOG" in os.environ:
    _watch(os.open(os.environ["BYOC_WATCH_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
